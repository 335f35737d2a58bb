/* Conversations in a server's cache: they grow, part, and end with the server; their files are cut, damaged, taken away
 * or cannot be written. Whatever is loaded goes on with the logits of a session that evaluated all of it, and what
 * cannot be loaded leaves less of the conversation, never something else. What cannot be read for a while is kept.
 *
 * usage: test_saved MODEL.gguf FOLDER */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "check.h"
#include "serve/cache/aside.h"
#include "serve/cache/part.h"
#include "serve/cache/room.h"
#include "serve/cache/saved.h"

enum { N_CTX = 512, KEY = 7, MOST_FILES = 64 };
#define PLENTY 1000000000u

static pf_model   *m;
static const char *folder;
static size_t      n_vocab;
static bool        cuts;             /* the model's sequences can be cut short */

/* ---- Sessions and files ------------------------------------------------------------------------------------------ */

static pf_session *open_one(void)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    o.n_batch = 64;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

static int32_t token(int i, int text)
{
    return (int32_t)(((unsigned)i * 40503u + (unsigned)text * 977u) % n_vocab);
}

/* The session goes on to n tokens, from position `from` on with those of another text. */
static void go_on(pf_session *s, int n, int from, int text)
{
    int32_t tok[N_CTX];
    for (int i = 0; i < n; i++)
        tok[i] = token(i, i < from ? 0 : text);
    CHECK(pf_session_sync(s, tok, (size_t)n, NULL) == PF_OK, "%s", pf_last_error());
}

struct listing {
    char     name[MOST_FILES][64];
    uint64_t bytes[MOST_FILES];
    int      n;
};

static void list(struct listing *l)
{
    DIR *d = opendir(folder);
    l->n = 0;
    for (struct dirent *f; d && l->n < MOST_FILES && (f = readdir(d));) {
        struct buf path = { 0 };
        struct stat st;
        buf_printf(&path, "%s/%s", folder, f->d_name);
        if (part_is_name(f->d_name) && stat(path.p, &st) == 0) {
            snprintf(l->name[l->n], sizeof l->name[0], "%s", f->d_name);
            l->bytes[l->n++] = (uint64_t)st.st_size;
        }
        buf_free(&path);
    }
    if (d)
        closedir(d);
}

static void remove_all(void)
{
    struct listing l;
    list(&l);
    for (int i = 0; i < l.n; i++) {
        struct buf path = { 0 };
        buf_printf(&path, "%s/%s", folder, l.name[i]);
        unlink(path.p);
        buf_free(&path);
    }
}

static uint64_t bytes_of(const struct listing *l)
{
    uint64_t sum = 0;
    for (int i = 0; i < l->n; i++)
        sum += l->bytes[i];
    return sum;
}

static struct saved *reopen(struct saved *s, const char *in, uint64_t most)
{
    if (s)
        saved_close(s);
    s = saved_open(in, most, KEY);
    CHECK(s, "%s", in);
    return s;
}

/* How much of n tokens can be loaded; the session then goes on like one that evaluated all of it. */
static size_t take_up(struct saved *saved, int n, int from, int text)
{
    int32_t tok[N_CTX], next = 5;
    size_t common;
    pf_session *s = open_one(), *fresh = open_one();
    for (int i = 0; i < n; i++)
        tok[i] = token(i, i < from ? 0 : text);
    struct part *p = saved_find(saved, tok, (size_t)n, N_CTX, !cuts, &common);
    bool ok = p && saved_load(saved, p, s);
    CHECK(ok == (pf_session_pos(s) > 0), "%d tokens", (int)pf_session_pos(s));
    common = (size_t)pf_session_pos(s) < common ? (size_t)pf_session_pos(s) : common;
    CHECK(memcmp(pf_session_tokens(s), tok, common * sizeof *tok) == 0, "the tokens");
    CHECK(pf_session_rewind(s, (int64_t)common) == PF_OK && (size_t)pf_session_computed(s) == common, "%d of %d",
          (int)pf_session_computed(s), (int)common);
    if (common > 0)
        CHECK(pf_session_eval(fresh, tok, common, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(s, &next, 1, 0) == PF_OK && pf_session_eval(fresh, &next, 1, 0) == PF_OK &&
          memcmp(pf_session_logits(s), pf_session_logits(fresh), n_vocab * sizeof(float)) == 0, "after %d tokens",
          (int)common);
    pf_session_close(&s);
    pf_session_close(&fresh);
    return common;
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

/* A conversation of many turns is written in few parts, each as large as what is new, and outlives its server. */
static void test_turns(const char *in)
{
    struct saved *saved = reopen(NULL, in, PLENTY);
    pf_session *s = open_one();
    struct listing before, after;
    for (int n = 300; n <= 480; n += 20) {
        list(&before);
        go_on(s, n, n, 0);
        CHECK(saved_put(saved, s, false) == PUT_DONE && saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
        if (in)
            saved = reopen(saved, in, PLENTY);
        list(&after);
        CHECK(!in || (after.n >= 1 && after.n <= 5), "%d files", after.n);
        CHECK(!in || n != 320 || after.n == 2, "%d files after a second turn", after.n);
        CHECK(take_up(saved, n + 1, n, 0) == (size_t)n, "%d tokens", n);
    }
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* Two texts that begin alike share what is saved of the beginning, and each is found. */
static void test_branches(const char *in)
{
    struct saved *saved = reopen(NULL, in, PLENTY);
    pf_session *s = open_one();
    struct listing one, both;
    go_on(s, 300, 300, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    saved = in ? reopen(saved, in, PLENTY) : saved;
    list(&one);
    for (int text = 0; text < 2; text++) {
        go_on(s, 350, 300, text);
        CHECK(saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
    }
    saved = in ? reopen(saved, in, PLENTY) : saved;
    list(&both);
    CHECK(!in || (both.n == 3 && (bytes_of(&both) < 2 * bytes_of(&one) || !cuts)), "%d files", both.n);
    CHECK(take_up(saved, 351, 300, 0) == 350 && take_up(saved, 351, 300, 1) == 350);
    CHECK(take_up(saved, 351, 300, 2) == 300, "the beginning of both");
    CHECK(take_up(saved, 351, 250, 2) == (cuts ? 250u : 0u), "a part of the beginning");
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* A text that differs from what is kept goes on from where it does, and shares what is before. */
static void test_other_endings(const char *in)
{
    struct saved *saved = reopen(NULL, in, PLENTY);
    pf_session *s = open_one();
    struct listing l;
    size_t common;
    int32_t tok[N_CTX];
    int n_files = 1;
    go_on(s, 400, 400, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    saved = in ? reopen(saved, in, PLENTY) : saved;
    list(&l);
    uint64_t first = bytes_of(&l);
    for (int text = 1; text < 4; text++) {
        go_on(s, 410 - 20 * text, 390 - 20 * text, text);
        CHECK(saved_put(saved, s, false) == PUT_DONE && saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
        saved = in ? reopen(saved, in, PLENTY) : saved;
        list(&l);
        n_files++;
        CHECK(!in || l.n == n_files, "%d files", l.n);
        CHECK(!in || !cuts || bytes_of(&l) < (uint64_t)(n_files + 1) * first / 2, "%d files, %llu and %llu bytes", l.n,
              (unsigned long long)first, (unsigned long long)bytes_of(&l));
    }
    CHECK(take_up(saved, 401, 400, 0) == 400);
    for (int text = 1; text < 4; text++)
        CHECK(take_up(saved, 420, 390 - 20 * text, text) == (size_t)(410 - 20 * text), "text %d", text);
    if (cuts) {
        for (int i = 0; i < 345; i++)
            tok[i] = token(i, i < 330 ? 0 : 3);
        CHECK(saved_find(saved, tok, 345, 400, false, &common) && common == 345, "%zu", common);
        CHECK(!saved_find(saved, tok, 345, 399, false, &common), "what is loaded first does not fit");
        for (int i = 300; i < 345; i++)
            tok[i] = token(i, 6);
        struct part *p = saved_find(saved, tok, 345, 400, false, &common);
        CHECK(p && common == 300 && p->n == 400, "nothing is loaded behind what has all of it: %zu", p ? p->n : 0);
        go_on(s, 200, 200, 0);
        CHECK(saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
        saved = in ? reopen(saved, in, PLENTY) : saved;
        list(&l);
        CHECK(!in || l.n == n_files, "what is kept is not kept twice: %d files", l.n);
    }
    go_on(s, 350, 200, 5);
    CHECK(saved_put(saved, s, false) == PUT_DONE && take_up(saved, 351, 200, 5) == 350, "%s", pf_last_error());
    CHECK(take_up(saved, 401, 400, 0) == 400);
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* What others begin with stays when a longer sequence is kept that does not continue it; what nobody does, goes. */
static void test_shared(void)
{
    for (int is_shared = 0; is_shared < 2; is_shared++) {
        struct saved *saved = reopen(NULL, NULL, PLENTY);
        pf_session *s = open_one();
        int32_t tok[150];
        size_t common;
        for (int i = 0; i < 150; i++)
            tok[i] = token(i, i < 100 ? 0 : 2);
        go_on(s, 100, 100, 0);
        CHECK(saved_put(saved, s, is_shared) == PUT_DONE, "%s", pf_last_error());
        go_on(s, 300, 300, 0);
        CHECK(saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
        CHECK((saved_find(saved, tok, 150, N_CTX, true, &common) != NULL) == is_shared, "%zu tokens", common);
        pf_session_close(&s);
        saved_close(saved);
    }
}

/* A sequence that has room, but not as a part behind those that it goes on from, is kept as one part. */
static void test_room_for_one(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one(), *begins = open_one();
    struct listing l;
    go_on(s, 300, 300, 0);
    go_on(begins, 250, 250, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    saved = reopen(saved, folder, PLENTY);
    list(&l);
    remove_all();
    saved = reopen(saved, folder, bytes_of(&l));
    CHECK(saved_put(saved, begins, false) == PUT_DONE && saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
    CHECK(take_up(saved, 301, 300, 0) == 300);
    pf_session_close(&s);
    pf_session_close(&begins);
    saved_close(saved);
    list(&l);
    CHECK(l.n == 1, "%d files", l.n);
    remove_all();
}

/* Where room is short, what was used longest ago goes, the beginning of something never before that. */
static void test_budget(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one();
    struct listing l;
    go_on(s, 200, 200, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    saved = reopen(saved, folder, PLENTY);
    list(&l);
    uint64_t most = bytes_of(&l) * 2;
    saved = reopen(saved, folder, most);
    for (int text = 1; text < 8; text++) {
        go_on(s, 250, 200, text);
        CHECK(saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
    }
    CHECK(take_up(saved, 251, 200, 7) == 250 && take_up(saved, 251, 200, 9) == 200);
    saved = reopen(saved, folder, most);
    list(&l);
    CHECK(l.n >= 2 && bytes_of(&l) <= most, "%d files of %llu bytes", l.n, (unsigned long long)bytes_of(&l));
    saved = reopen(saved, folder, most / 4);
    CHECK(saved_put(saved, s, false) == PUT_NO_ROOM, "more than may be kept");
    list(&l);
    CHECK(bytes_of(&l) <= most / 4, "%llu bytes", (unsigned long long)bytes_of(&l));
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* Does something to the largest file, or to the smallest. */
static void change(bool largest, int how)
{
    struct listing l;
    struct buf path = { 0 }, data = { 0 };
    int i = 0;
    list(&l);
    for (int k = 1; k < l.n; k++)
        i = (l.bytes[k] > l.bytes[i]) == largest ? k : i;
    buf_printf(&path, "%s/%s", folder, l.name[i]);
    if (how == 0)
        CHECK(unlink(path.p) == 0);
    if (how == 1)
        CHECK(truncate(path.p, (off_t)(l.bytes[i] / 2)) == 0);
    if (how == 5)
        CHECK(truncate(path.p, 50) == 0);
    if (how >= 2 && how < 5) {               /* a bit of the head, of the tokens or of the keys */
        CHECK(buf_read_file(&data, path.p));
        data.p[how == 2 ? 33 : how == 3 ? 150 : data.n - 200] ^= 4;
        FILE *f = fopen(path.p, "w");
        CHECK(f && fwrite(data.p, 1, data.n, f) == data.n && fclose(f) == 0);
    }
    buf_free(&path);
    buf_free(&data);
}

/* What is left of a conversation of two parts whose files fare ill: the first part, or nothing, and no other file. */
static void test_damage(void)
{
    for (int how = 0; how < 6; how++)
        for (int first = 0; first < 2; first++) {
            struct saved *saved = reopen(NULL, folder, PLENTY);
            pf_session *s = open_one();
            struct listing l;
            go_on(s, 250, 250, 0);
            CHECK(saved_put(saved, s, false) == PUT_DONE);
            go_on(s, 300, 300, 0);
            CHECK(saved_put(saved, s, false) == PUT_DONE);
            saved_close(saved);
            change(first, how);
            saved = reopen(NULL, folder, PLENTY);
            size_t is = take_up(saved, 301, 300, 0);
            CHECK(is == (first ? 0u : 250u), "damage %d of part %d leaves %zu tokens", how, 2 - first, is);
            list(&l);
            CHECK(l.n == !first, "damage %d of part %d leaves %d files", how, 2 - first, l.n);
            CHECK(saved_put(saved, s, false) == PUT_DONE);
            CHECK(take_up(saved, 301, 300, 0) == 300, "it is saved again");
            saved_close(saved);
            list(&l);
            CHECK(l.n == 2 - first, "%d files", l.n);
            pf_session_close(&s);
            remove_all();
        }
}

/* Saves the session where its file cannot be written, behind what is being written. */
static void put_in_vain(struct saved *saved, pf_session *s)
{
    struct buf away = { 0 };
    while (saved_is_busy(saved))
        usleep(1000);
    buf_printf(&away, "%s.away", folder);
    CHECK(rename(folder, away.p) == 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    while (saved_is_busy(saved))
        usleep(1000);
    CHECK(rename(away.p, folder) == 0);
    buf_free(&away);
}

/* A part that could not be written is noticed when it is wanted. */
static void test_no_folder(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one();
    go_on(s, 300, 300, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    go_on(s, 350, 350, 0);
    put_in_vain(saved, s);
    CHECK(take_up(saved, 351, 351, 0) == 300, "what was there before");
    CHECK(saved_put(saved, s, false) == PUT_DONE && take_up(saved, 351, 351, 0) == 350);
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* A failure that passes is told from lack of room, and leaves nothing behind. */
static void test_passing_failure(void)
{
    struct saved *saved = reopen(NULL, NULL, PLENTY);
    pf_session *s = open_one();
    enum put put;
    go_on(s, 300, 300, 0);
    for (uint64_t nth = 1;; nth++) {
        pf_mem_fail_nth(nth);
        put = saved_put(saved, s, false);
        pf_mem_fail_nth(0);
        if (put == PUT_DONE)
            break;
        CHECK(put == PUT_FAILED && nth < 100, "failed allocation %d", (int)nth);
    }
    CHECK(take_up(saved, 301, 300, 0) == 300);
    pf_session_close(&s);
    saved_close(saved);
}

/* The part up to which n tokens of a text of its own are kept; NULL: another one, or none that is to be tried now. */
static struct part *part_at(struct saved *saved, int n, int text)
{
    int32_t tok[N_CTX];
    size_t common;
    for (int i = 0; i <= n; i++)
        tok[i] = token(i, text);
    struct part *p = saved_find(saved, tok, (size_t)n + 1, N_CTX, true, &common);
    return p && p->n == (size_t)n ? p : NULL;
}

/* Keeps a text in two parts. */
static void put_two(struct saved *saved, pf_session *s, int text)
{
    for (int n = 250; n <= 300; n += 50) {
        go_on(s, n, 0, text);
        CHECK(saved_put(saved, s, false) == PUT_DONE, "%s", pf_last_error());
    }
    while (saved_is_busy(saved))
        usleep(1000);
}

/* A file that can be opened takes the place of another one, and reading it fails: at the low addresses of this process
 * there is no memory. */
static void put_away(const char *path, bool back)
{
    struct buf away = { 0 };
    buf_printf(&away, "%s.away", path);
    CHECK(back ? unlink(path) == 0 && rename(away.p, path) == 0
               : rename(path, away.p) == 0 && symlink("/proc/self/mem", path) == 0);
    buf_free(&away);
}

/* No file can be opened as long as there is no number for it. */
static void allow_files(bool allow)
{
    static struct rlimit before;
    struct rlimit none;
    if (!allow)
        getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, allow ? &before : &none) == 0);
}

static bool comes_back(struct saved *saved, int text)
{
    for (int i = 0; i < 2000 && !part_at(saved, 300, text); i++)
        usleep(10000);
    return take_up(saved, 301, 0, text) == 300 && part_at(saved, 300, text)->wait_s == 0;
}

/* Files that cannot be read just now cost a request what is in them, once in a while, and are kept: text 0 has its
 * second part where reading fails, text 1 its first, of text 2 no file can be opened, and text 3 lies in memory, of
 * which there is too little. */
static void test_unreadable(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY), *in_memory = reopen(NULL, NULL, PLENTY);
    pf_session *s = open_one();
    struct listing l;
    for (int text = 0; text < 4; text++)
        put_two(text < 3 ? saved : in_memory, s, text);
    char *second = xstrdup(part_at(saved, 300, 0)->path), *first = xstrdup(part_at(saved, 250, 1)->path);
    put_away(second, false);
    put_away(first, false);
    CHECK(take_up(saved, 301, 0, 0) == 250 && take_up(saved, 301, 0, 1) == 0);
    put_away(second, true);
    put_away(first, true);
    allow_files(false);
    CHECK(take_up(saved, 301, 0, 2) == 0);
    allow_files(true);
    struct part *p = part_at(in_memory, 300, 3);
    pf_mem_fail_nth(1);
    CHECK(!saved_load(in_memory, p, s) && pf_session_pos(s) == 0);
    pf_mem_fail_nth(0);
    CHECK(!part_at(saved, 300, 0) && !part_at(saved, 300, 1) && !part_at(saved, 250, 1) && !part_at(saved, 300, 2) &&
          !part_at(in_memory, 300, 3), "what failed just now is tried again");
    for (int text = 0; text < 4; text++)
        CHECK(comes_back(text < 3 ? saved : in_memory, text), "text %d", text);
    list(&l);
    CHECK(l.n == 6, "%d files", l.n);
    free(second);
    free(first);
    pf_session_close(&s);
    saved_close(saved);
    saved_close(in_memory);
    remove_all();
}

/* What is saved behind a part that cannot be read does not need it. */
static void test_behind_unreadable(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one();
    struct listing l;
    put_two(saved, s, 1);
    char *second = xstrdup(part_at(saved, 300, 1)->path);
    put_away(second, false);
    CHECK(take_up(saved, 301, 0, 1) == 250);
    go_on(s, 320, 0, 1);
    CHECK(saved_put(saved, s, false) == PUT_DONE && take_up(saved, 321, 0, 1) == 320);
    put_away(second, true);
    saved_close(saved);
    list(&l);
    CHECK(l.n == 2, "%d files", l.n);
    free(second);
    pf_session_close(&s);
    remove_all();
}

/* A sequence that is kept where it cannot be read is written again when a slot loses it again, as an answer that comes
 * out the same does. */
static void test_unreadable_anew(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one();
    struct listing l;
    struct buf away = { 0 };
    go_on(s, 300, 0, 1);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    while (saved_is_busy(saved))
        usleep(1000);
    char *path = xstrdup(part_at(saved, 300, 1)->path);
    put_away(path, false);
    CHECK(take_up(saved, 301, 0, 1) == 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE && take_up(saved, 301, 0, 1) == 300);
    saved = reopen(saved, folder, PLENTY);
    CHECK(take_up(saved, 301, 0, 1) == 300);
    list(&l);
    CHECK(l.n == 1, "%d files", l.n);
    buf_printf(&away, "%s.away", path);
    CHECK(unlink(away.p) == 0);
    buf_free(&away);
    free(path);
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* What continues a part that a server cannot read when it starts is kept for the next one. */
static void test_unreadable_at_start(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one();
    struct buf away = { 0 };
    put_two(saved, s, 1);
    char *first = xstrdup(part_at(saved, 250, 1)->path);
    buf_printf(&away, "%s.away", first);
    CHECK(rename(first, away.p) == 0 && symlink(first, first) == 0, "a link to itself cannot be followed");
    saved = reopen(saved, folder, PLENTY);
    CHECK(take_up(saved, 301, 0, 1) == 0);
    CHECK(unlink(first) == 0 && rename(away.p, first) == 0);
    saved = reopen(saved, folder, PLENTY);
    CHECK(take_up(saved, 301, 0, 1) == 300);
    buf_free(&away);
    free(first);
    pf_session_close(&s);
    saved_close(saved);
    remove_all();
}

/* What a longer part was to replace stays where that cannot be written, and goes where it can. */
static void test_not_replaced(void)
{
    struct saved *saved = reopen(NULL, folder, PLENTY);
    pf_session *s = open_one();
    struct listing l;
    go_on(s, 100, 100, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    go_on(s, 350, 350, 0);
    put_in_vain(saved, s);
    CHECK(take_up(saved, 351, 351, 0) == 100, "what was to be replaced");
    CHECK(saved_put(saved, s, false) == PUT_DONE && take_up(saved, 351, 351, 0) == 350);
    pf_session_close(&s);
    saved_close(saved);
    list(&l);
    CHECK(l.n == 1, "%d files", l.n);
    remove_all();
}

/* What a server that was killed has left beside its files goes when another one starts; what is written just then, and
 * whatever others have there, stays. */
static void test_left(void)
{
    static const char *const names[] = {
        "0123456789abcdef.pfsession.new", "fedcba9876543210.pfsession.new", "0123456789abcdef.new",
        "notes.pfsession.new", "0123456789ABCDEF.pfsession.new", "0123456789abcdef0.pfsession.new",
        "0123456789abcdef.pfsession.new.new",
    };
    enum { N = sizeof names / sizeof names[0], WRITTEN = 1 };
    struct buf path[N] = { { 0 } };
    int fd[N];
    for (int i = 0; i < N; i++) {
        buf_printf(&path[i], "%s/%s", folder, names[i]);
        fd[i] = open(path[i].p, O_CREAT | O_WRONLY, 0600);
        CHECK(fd[i] >= 0, "%s", path[i].p);
    }
    CHECK(flock(fd[WRITTEN], LOCK_EX) == 0);
    saved_close(reopen(NULL, folder, PLENTY));
    for (int i = 0; i < N; i++)
        CHECK((access(path[i].p, F_OK) == 0) == (i > 0), "%s", names[i]);
    close(fd[WRITTEN]);
    saved_close(reopen(NULL, folder, PLENTY));
    CHECK(access(path[WRITTEN].p, F_OK) != 0, "%s", names[WRITTEN]);
    for (int i = 0; i < N; i++) {
        if (i != WRITTEN)
            close(fd[i]);
        unlink(path[i].p);
        buf_free(&path[i]);
    }
}

/* A FIFO with a part's name, which nobody writes to, does not hold up a server that starts. */
static void test_fifo_at_start(void)
{
    struct buf path = { 0 };
    buf_printf(&path, "%s/0123456789abcdef.pfsession", folder);
    CHECK(mkfifo(path.p, 0600) == 0);
    alarm(20);
    saved_close(reopen(NULL, folder, PLENTY));
    alarm(0);
    CHECK(unlink(path.p) == 0, "what is no file is left alone");
    buf_free(&path);
}

struct moved {
    struct saved *saved;
    pf_session   *session;
    struct part  *part;              /* NULL: it is saved */
    bool          ok, is_given_up;
};

static void move_aside(void *ctx)
{
    struct moved *w = ctx;
    enum put put = w->part ? PUT_DONE : saved_put(w->saved, w->session, false);
    w->ok = w->part ? saved_load(w->saved, w->part, w->session) : put == PUT_DONE;
    w->is_given_up = put == PUT_GIVEN_UP;
}

/* In slices as short as can be, between which other parts are looked for. */
static void move_in_slices(struct aside *a, struct moved *w)
{
    int n_slices = 1;
    int32_t other = token(0, 1);
    size_t common;
    aside_begin(a, move_aside, w);
    for (; !aside_go_on(a, 0, n_slices % 2); n_slices++)
        saved_find(w->saved, &other, 1, N_CTX, false, &common);
    CHECK(w->ok && n_slices > 8, "%d slices", n_slices);
}

/* What is saved and loaded in slices is what it is otherwise. */
static void test_slices(const char *in)
{
    struct saved *saved = reopen(NULL, in, PLENTY);
    struct aside *a = aside_open();
    pf_session *s = open_one(), *other = open_one();
    int32_t tok[N_CTX], next = 5;
    size_t common;
    saved_set_aside(saved, a);
    for (int n = 300; n <= 340; n += 20) {
        go_on(s, n, n, 0);
        move_in_slices(a, &(struct moved){ saved, s, NULL, false, false });
    }
    memcpy(tok, pf_session_tokens(s), 340 * sizeof *tok);
    tok[340] = next;
    struct part *p = saved_find(saved, tok, 341, N_CTX, !cuts, &common);
    CHECK(p && common == 340, "%zu tokens", common);
    move_in_slices(a, &(struct moved){ saved, other, p, false, false });
    CHECK(pf_session_pos(other) == 340 && pf_session_eval(s, &next, 1, 0) == PF_OK &&
          pf_session_eval(other, &next, 1, 0) == PF_OK &&
          memcmp(pf_session_logits(s), pf_session_logits(other), n_vocab * sizeof(float)) == 0, "what is loaded");
    pf_session_close(&s);
    pf_session_close(&other);
    saved_close(saved);
    aside_close(a);
    remove_all();
}

/* The work is given up after n slices of no time; false: it was done before. */
static bool give_up(struct aside *a, struct moved *w, int n)
{
    aside_begin(a, move_aside, w);
    for (int i = 0; i < n; i++)
        if (aside_go_on(a, 0, true))
            return false;
    aside_give_up(a);
    for (int i = 0; !aside_go_on(a, 0.001, true); i++)
        CHECK(i < 1000, "work that is given up goes on");
    return true;
}

/* Wherever saving and loading is given up, what was kept is kept, and the session has a sequence that it can have. */
static void test_giving_up(const char *in)
{
    struct saved *saved = reopen(NULL, in, PLENTY);
    struct aside *a = aside_open();
    pf_session *s = open_one(), *other = open_one();
    int32_t tok[N_CTX];
    size_t common, n_empty = 0;
    go_on(s, 300, 300, 0);
    CHECK(saved_put(saved, s, false) == PUT_DONE);
    go_on(s, 420, 420, 0);
    memcpy(tok, pf_session_tokens(s), 420 * sizeof *tok);
    saved_set_aside(saved, a);
    struct moved put = { saved, s, NULL, false, false };
    int i = 0;
    for (; give_up(a, &put, i); i += 1 + i / 4)
        CHECK(!put.ok && put.is_given_up && pf_session_pos(s) == 420 &&
              saved_find(saved, tok, 420, N_CTX, true, &common) && common == 300, "slice %d, %zu tokens", i, common);
    CHECK(put.ok && i > 1, "%d slices", i);
    CHECK(take_up(saved, 421, 421, 0) == 420);
    struct part *p = saved_find(saved, tok, 420, N_CTX, false, &common);
    for (i = 0; i == 0 || !put.ok; i += 1 + i / 4) {
        size_t before = (size_t)pf_session_pos(other), n;
        put = (struct moved){ saved, other, p, false, false };
        give_up(a, &put, i);
        n = (size_t)pf_session_pos(other);
        CHECK(n == before || n == 0 || n == 300 || n == 420, "slice %d leaves %zu tokens", i, n);
        CHECK(memcmp(pf_session_tokens(other), tok, n * sizeof *tok) == 0, "slice %d", i);
        n_empty += n == 0;
    }
    CHECK(n_empty > 1 && take_up(saved, 421, 421, 0) == 420, "what was not loaded is kept");
    pf_session_close(&s);
    pf_session_close(&other);
    saved_close(saved);
    aside_close(a);
    remove_all();
}

/* More than was expected, in pieces of which some are larger than what is touched at once: nothing written is lost. */
static void test_room(void)
{
    enum { MB = 1 << 20 };
    static const size_t pieces[] = { 3, 1 * MB, 30 * MB, 1 * MB - 1, 1, 1 * MB, 90 * MB, 1 * MB, 100 * MB, 7 };
    struct buf b = { 0 };
    struct room r;
    char *from = malloc(100 * MB);
    size_t n = 0;
    memset(from, 1, 100 * MB);
    buf_puts(&b, "in front");
    room_open(&r, &b, 140 * MB);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; n += pieces[i++]) {
        if (!room_is_ready(&r, pieces[i]))
            room_await(&r, pieces[i]);
        buf_add(&b, from, pieces[i]);
    }
    room_close(&r);
    CHECK(b.n == 8 + n && memcmp(b.p, "in front", 8) == 0, "%zu bytes", b.n);
    size_t same = 8;
    while (same < b.n && b.p[same] == 1)
        same++;
    CHECK(same == b.n, "byte %zu of %zu was lost", same, b.n);
    buf_free(&b);
    free(from);
}

int main(int argc, char **argv)
{
    struct pf_model_opts o;
    if (argc != 3)
        return 2;
    folder = argv[2];
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = -1;
    if (pf_model_open(&m, argv[1], &o) < 0) {
        printf("%s\n", pf_last_error());
        return 1;
    }
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    pf_session *s = open_one();
    go_on(s, 3, 3, 0);
    cuts = pf_session_rewind(s, 1) == PF_OK && pf_session_computed(s) == 1;
    pf_session_close(&s);
    remove_all();
    test_room();
    test_turns(folder);
    test_turns(NULL);
    test_branches(folder);
    test_branches(NULL);
    test_other_endings(folder);
    test_other_endings(NULL);
    test_shared();
    test_room_for_one();
    test_budget();
    test_damage();
    test_no_folder();
    test_passing_failure();
    test_unreadable();
    test_behind_unreadable();
    test_unreadable_anew();
    test_unreadable_at_start();
    test_not_replaced();
    test_left();
    test_fifo_at_start();
    test_slices(folder);
    test_slices(NULL);
    test_giving_up(folder);
    test_giving_up(NULL);
    pf_model_close(&m);
    return check_status();
}

/* Wherever a session goes back to, and whatever the sizes of the pieces it is given, what it computes next is what a
 * session that never went anywhere computes, to the bit: with keys and values, windows, indexers or recurrent state.
 *
 * usage: rewind MODEL.gguf [long]     long: after one long prompt; 77: its architecture is not one that pfmoe has */
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "memory_file.h"
#include "pfmoe.h"

enum { N = 200, N_CTX = 256, N_BATCH = 48, N_WALK = 60 };

static int32_t tokens[N], other[N];
static float  *want, *want_other;        /* [N][n_vocab] */
static size_t  n_vocab;

static pf_session *open_session(pf_model *m)
{
    pf_session *s;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    o.n_batch = N_BATCH;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

static float *logits_of(pf_model *m, const int32_t *tok)
{
    pf_session *s = open_session(m);
    float *all = malloc(N * n_vocab * sizeof *all);
    CHECK(pf_session_eval(s, tok, N, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < N; i++)
        memcpy(all + i * n_vocab, pf_session_logits_at(s, i), n_vocab * sizeof *all);
    pf_session_close(&s);
    return all;
}

static bool same(const float *a, const float *b)
{
    return a && memcmp(a, b, n_vocab * sizeof *a) == 0;
}

/* The session stands at position pos of `tok`, after n more tokens of it. */
static void go_on(pf_session *s, const int32_t *tok, const float *expected, int n, unsigned flags)
{
    int pos = (int)pf_session_pos(s);
    CHECK(pf_session_eval(s, tok + pos, (size_t)n, flags) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_pos(s) == pos + n);
    CHECK(same(pf_session_logits(s), expected + (size_t)(pos + n - 1) * n_vocab), "%d tokens after %d", n, pos);
    for (int i = 0; flags & PF_LOGITS_ALL && i < n; i++)
        CHECK(same(pf_session_logits_at(s, (size_t)i), expected + (size_t)(pos + i) * n_vocab), "row %d of %d after %d",
              i, n, pos);
}

static void test_walk(pf_model *m)
{
    pf_session *s = open_session(m);
    unsigned state = 12345;
    for (int i = 0; i < N_WALK; i++) {
        state = state * 1664525u + 1013904223u;
        int pos = (int)pf_session_pos(s), back = (int)(state >> 24) % (pos + 1);
        if (pos == N || i % 3 == 2) {
            int64_t computed = pf_session_computed_at(s, back);
            CHECK(pf_session_rewind(s, back) == PF_OK && pf_session_logits(s) == NULL);
            CHECK(pf_session_computed(s) == computed, "%d said, %d computed at %d", (int)computed,
                  (int)pf_session_computed(s), back);
        }
        pos = (int)pf_session_pos(s);
        int room = N - pos, n = i % 4 == 0 ? 1 : 1 + (int)(state >> 8) % 90;
        if (room > 0)
            go_on(s, tokens, want, n < room ? n : room, i % 2 ? PF_LOGITS_ALL : 0);
    }
    pf_session_close(&s);
}

/* A conversation: the end of the prompt is where turns are taken up again. */
static void test_turns(pf_model *m)
{
    pf_session *s = open_session(m);
    size_t reused;
    go_on(s, tokens, want, 120, 0);
    for (int i = 0; i < 20; i++)
        go_on(s, tokens, want, 1, 0);
    CHECK(pf_session_sync(s, tokens, 160, &reused) == PF_OK && reused == 140, "%zu", reused);
    CHECK(same(pf_session_logits(s), want + 159 * n_vocab));

    CHECK(pf_session_rewind(s, 119) == PF_OK);
    CHECK(pf_session_sync(s, tokens, 150, &reused) == PF_OK && reused >= 80 && reused < 120,
          "%zu of a prompt of 120 kept", reused);
    CHECK(same(pf_session_logits(s), want + 149 * n_vocab));

    CHECK(pf_session_sync(s, other, N, &reused) == PF_OK && reused <= 100, "%zu", reused);
    CHECK(same(pf_session_logits(s), want_other + (N - 1) * n_vocab), "another ending");
    CHECK(pf_session_sync(s, tokens, N, &reused) == PF_OK && same(pf_session_logits(s), want + (N - 1) * n_vocab),
          "and back");
    pf_session_close(&s);
}

/* 32 tokens before a prompt's end: within a batch, where one ends, where one begins. */
static void test_tail(pf_model *m)
{
    for (int n = 2 * N_BATCH + 31; n <= 2 * N_BATCH + 33; n++) {
        pf_session *s = open_session(m);
        size_t reused;
        go_on(s, tokens, want, n, 0);
        go_on(s, tokens, want, 3, 0);
        CHECK(pf_session_rewind(s, n - 2) == PF_OK);
        CHECK(pf_session_sync(s, tokens, (size_t)n, &reused) == PF_OK && reused + 32 >= (size_t)n,
              "%zu of a prompt of %d kept", reused, n);
        CHECK(same(pf_session_logits(s), want + (size_t)(n - 1) * n_vocab), "a prompt of %d", n);
        pf_session_close(&s);
    }
}

enum { N_TURNS = 6, ASKED = 24, ANSWERED = 9, LEFT_OUT = 4 };

/* Turns whose template leaves out the beginning of each answer, as it does with reasoning, once the next question
 * comes: what stood before the answer is not evaluated again, but for a few tokens. */
static void test_conversation(pf_model *m)
{
    static const int tail = 32;          /* tokens that a template may change in front of an answer */
    pf_session *s = open_session(m), *fresh = open_session(m);
    int32_t text[N_CTX];
    size_t n = 0, reused;
    for (int turn = 0; turn < N_TURNS; turn++) {
        size_t before = n;
        for (int i = 0; i < ASKED; i++)
            text[n++] = tokens[(turn * 31 + i * 7) % N];
        CHECK(pf_session_sync(s, text, n, &reused) == PF_OK, "%s", pf_last_error());
        CHECK(turn == 0 || reused + tail + ANSWERED >= before, "turn %d: %zu of %zu tokens kept", turn, reused, before);
        CHECK(pf_session_rewind(fresh, 0) == PF_OK && pf_session_eval(fresh, text, n, 0) == PF_OK, "%s",
              pf_last_error());
        CHECK(same(pf_session_logits(s), pf_session_logits(fresh)), "turn %d", turn);
        for (int i = 0; i < ANSWERED; i++) {
            text[n] = other[(turn * 17 + i) % N];
            CHECK(pf_session_eval(s, text + n++, 1, 0) == PF_OK, "%s", pf_last_error());
        }
        memmove(text + n - ANSWERED, text + n - ANSWERED + LEFT_OUT, (ANSWERED - LEFT_OUT) * sizeof *text);
        n -= LEFT_OUT;
    }
    pf_session_close(&s);
    pf_session_close(&fresh);
}

static void test_cancel(pf_model *m)
{
    pf_session *s = open_session(m);
    go_on(s, tokens, want, 50, 0);
    pf_session_cancel(s);
    CHECK(pf_session_eval(s, tokens + 50, 100, 0) == PF_ECANCEL && pf_session_pos(s) == 50);
    go_on(s, tokens, want, 10, PF_LOGITS_ALL);
    CHECK(pf_session_rewind(s, 30) == PF_OK);
    pf_session_cancel(s);
    CHECK(pf_session_eval(s, tokens + 30, 1, 0) == PF_ECANCEL && pf_session_pos(s) == 30,
          "cancelled while catching up");
    go_on(s, tokens, want, 1, 0);
    go_on(s, tokens, want, 100, PF_LOGITS_ALL);
    pf_session_close(&s);
}

/* Saved in mid-answer, and saved just after going back, before the state has caught up. */
static void test_save(pf_model *m, int evaluated, int back_to)
{
    struct file f = { 0 };
    pf_session *a = open_session(m), *b = open_session(m);
    go_on(a, tokens, want, evaluated, 0);
    CHECK(pf_session_rewind(a, back_to) == PF_OK);
    CHECK(pf_session_save(a, write_file, &f) == PF_OK, "%s", pf_last_error());
    go_on(b, other, want_other, 7, 0);
    CHECK(pf_session_load(b, read_file, &f) == PF_OK && pf_session_pos(b) == back_to, "%s", pf_last_error());
    for (int i = 0; i < 3; i++)
        go_on(b, tokens, want, 1, 0);
    CHECK(pf_session_rewind(b, back_to) == PF_OK && (pf_session_computed(b) == back_to || evaluated != back_to),
          "what was loaded can be gone back to: %d of %d", (int)pf_session_computed(b), back_to);
    go_on(b, tokens, want, 20, PF_LOGITS_ALL);
    CHECK(pf_session_rewind(b, back_to / 2) == PF_OK);
    go_on(b, tokens, want, 5, PF_LOGITS_ALL);
    free(f.data);
    pf_session_close(&a);
    pf_session_close(&b);
}

/* Tokens that the model has evaluated until now. */
static uint64_t work_done(const pf_model *m)
{
    struct pf_stats stats;
    pf_stats_get(m, &stats);
    return stats.n_tokens;
}

/* After a prompt of many steps, or many pieces, going back by any distance evaluates a few times as many tokens again,
 * and not the prompt. */
static void test_long(pf_model *m, int piece)
{
    enum { LONG = 2900, ROOM = 3000, APART = 256 };
    static const int back[] = { 40, 100, 300, 1000, 1800 };
    int32_t text[LONG];
    struct pf_session_opts o;
    pf_session *s, *fresh;
    pf_session_opts_init(&o);
    o.n_ctx = ROOM;
    o.n_batch = N_BATCH;
    CHECK(pf_session_open(&s, m, &o) == PF_OK && pf_session_open(&fresh, m, &o) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < LONG; i++)
        text[i] = tokens[i * 7 % N];
    for (int at = 0; at < LONG; at += piece)
        CHECK(pf_session_eval(s, text + at, (size_t)(LONG - at < piece ? LONG - at : piece), 0) == PF_OK, "%s",
              pf_last_error());
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        uint64_t before = work_done(m);
        int at = LONG - back[i];
        CHECK(pf_session_rewind(s, at) == PF_OK && pf_session_eval(s, other, 1, 0) == PF_OK, "%s", pf_last_error());
        uint64_t again = work_done(m) - before;
        CHECK(again <= 3 * (uint64_t)back[i] + APART + N_BATCH, "%d tokens back: %llu evaluated again", back[i],
              (unsigned long long)again);
    }
    int at = LONG - back[sizeof back / sizeof *back - 1];
    CHECK(pf_session_eval(fresh, text, (size_t)at, 0) == PF_OK && pf_session_eval(fresh, other, 1, 0) == PF_OK, "%s",
          pf_last_error());
    CHECK(same(pf_session_logits(s), pf_session_logits(fresh)), "logits after going back by %d", LONG - at);
    pf_session_close(&s);
    pf_session_close(&fresh);
}

/* What was saved goes on in continuations, each as large as what is new; one that is damaged, or does not belong
 * there, leaves nothing. */
static void test_save_more(pf_model *m)
{
    static const int ends[] = { 70, 71, 71, 150, 140 };          /* the last one after going back */
    enum { PARTS = sizeof ends / sizeof *ends };
    struct file f = { 0 }, whole = { 0 };
    struct pf_saved saved = { 0 };
    size_t begin[PARTS + 1] = { 0 };
    pf_session *a = open_session(m), *b = open_session(m);
    for (int i = 0; i < PARTS; i++) {
        int pos = (int)pf_session_pos(a);
        if (ends[i] > pos)
            go_on(a, tokens, want, ends[i] - pos, 0);
        CHECK(pf_session_rewind(a, ends[i]) == PF_OK);
        pf_status st = pf_session_save_more(a, &saved, write_file, &f);
        CHECK(st == (ends[i] < pos ? PF_EINVAL : PF_OK), "part %d: %s", i, pf_last_error());
        begin[i + 1] = f.n;
    }
    CHECK(pf_session_eval(a, tokens + 140, 10, 0) == PF_OK && pf_session_save(a, write_file, &whole) == PF_OK);
    size_t fixed = begin[3] - begin[2], of_one = begin[2] - begin[1] - fixed;      /* nothing new but headers, state */
    CHECK(of_one <= (whole.n - fixed) / 150 * 64 + 64, "%zu bytes for one token, %zu for 150 and %zu for none", of_one,
          whole.n, fixed);               /* 64 positions are one block */
    CHECK(pf_session_load(b, read_file, &f) == PF_OK && pf_session_pos(b) == 70, "%s", pf_last_error());
    for (int i = 1; i < PARTS - 1; i++)
        CHECK(pf_session_load_more(b, read_file, &f) == PF_OK && pf_session_pos(b) == ends[i], "%s", pf_last_error());
    CHECK(pf_session_load_more(b, read_file, &f) == PF_EIO && pf_session_pos(b) == 0, "there is no more");
    for (int damage = 0; damage < 3; damage++) {
        f.at = 0;
        CHECK(pf_session_load(b, read_file, &f) == PF_OK, "%s", pf_last_error());
        f.at = begin[damage == 0 ? 3 : damage == 1 ? 0 : 1];     /* not the next; no continuation; then a bit */
        char *at = f.data + (begin[1] + begin[2]) / 2;
        *at ^= (char)(damage == 2);
        CHECK(pf_session_load_more(b, read_file, &f) < 0 && pf_session_pos(b) == 0);
        *at ^= (char)(damage == 2);
    }
    f.at = 0;
    CHECK(pf_session_load(b, read_file, &f) == PF_OK, "%s", pf_last_error());
    for (int i = 1; i < PARTS - 1; i++)
        CHECK(pf_session_load_more(b, read_file, &f) == PF_OK, "%s", pf_last_error());
    go_on(b, tokens, want, 1, 0);
    CHECK(pf_session_load_more(b, read_file, &f) == PF_EINVAL && pf_session_pos(b) == 151, "it has gone on");
    go_on(b, tokens, want, 20, PF_LOGITS_ALL);
    CHECK(pf_session_rewind(b, 30) == PF_OK);
    go_on(b, other, want_other, 90, 0);
    CHECK(pf_session_save_more(b, &saved, write_file, &f) == PF_EINVAL, "another text");
    free(f.data);
    free(whole.data);
    pf_session_close(&a);
    pf_session_close(&b);
}

/* Calls of a stream's function, of which number `bad` fails; 0: none does. */
struct shaky {
    struct file *f;
    int          n, bad;
};

static bool shaky_write(void *ctx, const void *data, size_t n)
{
    struct shaky *s = ctx;
    return ++s->n != s->bad && write_file(s->f, data, n);
}

static bool shaky_read(void *ctx, void *data, size_t n)
{
    struct shaky *s = ctx;
    return ++s->n != s->bad && read_file(s->f, data, n);
}

/* A session that holds the first part of the file; the stream stands at its continuation. */
static void load_first(pf_session *s, struct shaky *in)
{
    *in = (struct shaky){ in->f, 0, 0 };
    in->f->at = 0;
    CHECK(pf_session_load(s, read_file, in->f) == PF_OK && pf_session_pos(s) == 70, "%s", pf_last_error());
}

/* A continuation of which any write, read or allocation fails: it can be written again, and loaded again. */
static void test_more_faults(pf_model *m)
{
    struct file f = { 0 };
    struct pf_saved first = { 0 }, saved;
    struct shaky way = { &f, 0, 0 };
    pf_session *a = open_session(m), *b = open_session(m);
    go_on(a, tokens, want, 70, 0);
    CHECK(pf_session_save_more(a, &first, shaky_write, &way) == PF_OK, "%s", pf_last_error());
    go_on(a, tokens, want, 75, 0);
    size_t part = f.n;
    pf_status st = PF_EIO;
    for (int i = 1; st == PF_EIO; i++) {
        way = (struct shaky){ &f, 0, i };
        f.n = part;
        saved = first;
        st = pf_session_save_more(a, &saved, shaky_write, &way);
        CHECK(st == PF_OK || memcmp(&saved, &first, sizeof saved) == 0, "write %d", i);
    }
    CHECK(st == PF_OK && way.n > 5, "%s", pf_last_error());
    int step = way.n / 40 + 1;
    st = PF_EIO;
    for (int i = 1; st == PF_EIO; i += step) {
        load_first(b, &way);
        way.bad = i;
        st = pf_session_load_more(b, shaky_read, &way);
        CHECK(pf_session_pos(b) == (st == PF_OK ? 145 : 0), "read %d", i);
    }
    st = PF_ENOMEM;
    for (uint64_t i = 1; st == PF_ENOMEM; i++) {
        load_first(b, &way);
        pf_mem_fail_nth(i);
        st = pf_session_load_more(b, shaky_read, &way);
        pf_mem_fail_nth(0);
        CHECK(pf_session_pos(b) == (st == PF_OK ? 145 : 0), "allocation %d", (int)i);
    }
    CHECK(st == PF_OK, "%s", pf_last_error());
    go_on(b, tokens, want, 10, 0);
    st = PF_ENOMEM;
    for (uint64_t i = 1; st == PF_ENOMEM; i++) {
        saved = first;
        pf_mem_fail_nth(i);
        st = pf_session_save_more(a, &saved, shaky_write, &way);
        pf_mem_fail_nth(0);
        CHECK(st == PF_OK || memcmp(&saved, &first, sizeof saved) == 0, "allocation %d", (int)i);
    }
    CHECK(st == PF_OK, "%s", pf_last_error());
    free(f.data);
    pf_session_close(&a);
    pf_session_close(&b);
}

/* Another text goes on from the middle of what was saved, where its session can be cut. */
static void test_saved_cut(pf_model *m)
{
    static const int at[] = { 130, 100, 64, 37, 0 };         /* `other` is the same up to 100 */
    struct file f = { 0 };
    struct pf_saved whole = { 0 }, saved;
    pf_session *a = open_session(m), *b = open_session(m);
    go_on(a, tokens, want, 130, 0);
    CHECK(pf_session_save_more(a, &whole, write_file, &f) == PF_OK, "%s", pf_last_error());
    size_t first = f.n;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        CHECK(pf_session_save_can_cut(a, at[i]) == pf_saved_can_cut(m, &whole, at[i]), "cut to %d", at[i]);
    CHECK(!pf_session_save_can_cut(a, 131) && !pf_session_save_can_cut(a, -1));
    saved = whole;
    CHECK(pf_saved_cut(a, &saved, 131) == PF_EINVAL && pf_saved_cut(a, &saved, -1) == PF_EINVAL);
    CHECK(!pf_saved_can_cut(m, &whole, 131) && !pf_saved_can_cut(m, &whole, -1));
    CHECK(pf_saved_cut(a, &saved, 130) == PF_OK && memcmp(&saved, &whole, sizeof saved) == 0, "all of it");
    CHECK(pf_session_rewind(a, 100) == PF_OK);
    CHECK(pf_saved_cut(a, &saved, 101) == PF_EINVAL && memcmp(&saved, &whole, sizeof saved) == 0);
    go_on(a, other, want_other, 50, 0);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        saved = whole;
        f.n = first;
        f.at = 0;
        pf_status st = pf_saved_cut(a, &saved, at[i]);
        CHECK(pf_session_load(b, read_file, &f) == PF_OK && pf_session_rewind(b, at[i]) == PF_OK);
        CHECK((st == PF_OK) == (pf_session_computed(b) == at[i]), "cut to %d: %d", at[i], (int)st);
        CHECK(st == PF_OK || memcmp(&saved, &whole, sizeof saved) == 0, "cut to %d", at[i]);
        CHECK(pf_saved_can_cut(m, &whole, at[i]) == (st == PF_OK), "cut to %d", at[i]);
        if (st < 0)
            continue;
        CHECK(pf_session_save_more(a, &saved, write_file, &f) == PF_OK, "%s", pf_last_error());
        CHECK(at[i] == 0 || f.n - first < first, "%zu bytes behind %d", f.n - first, at[i]);
        st = (at[i] ? pf_session_load_more : pf_session_load)(b, read_file, &f);
        CHECK(st == (at[i] <= 100 ? PF_OK : PF_EINVAL), "behind %d: %s", at[i], pf_last_error());
        if (st == PF_OK)
            go_on(b, other, want_other, 30, PF_LOGITS_ALL);
    }
    free(f.data);
    pf_session_close(&a);
    pf_session_close(&b);
}

/* Another session gets the first tokens of one that walks about, and both go on. */
static void test_copy(pf_model *m)
{
    pf_session *a = open_session(m), *b = open_session(m);
    unsigned state = 54321;
    for (int i = 0; i < N_WALK; i++) {
        state = state * 1664525u + 1013904223u;
        int pos = (int)pf_session_pos(a), n = i % 4 ? (int)(state >> 24) % (pos + 1) : pos;
        int64_t computed = pf_session_computed_at(a, n);
        CHECK(pf_session_copy(b, a, n, NULL, NULL) == PF_OK && pf_session_pos(b) == n, "%s", pf_last_error());
        CHECK(pf_session_logits(b) == NULL && pf_session_computed(b) <= computed, "%d of %d computed at %d",
              (int)pf_session_computed(b), (int)computed, n);
        CHECK(pf_session_computed(b) == computed || computed - pf_session_computed(b) <= N_BATCH,
              "%d of %d computed at %d of %d", (int)pf_session_computed(b), (int)computed, n, pos);
        go_on(b, tokens, want, N - n < 5 ? N - n : 5, i % 2 ? PF_LOGITS_ALL : 0);
        if (pos == N || i % 3 == 2)
            CHECK(pf_session_rewind(a, (int)(state >> 16) % (pos + 1)) == PF_OK, "%s", pf_last_error());
        pos = (int)pf_session_pos(a);
        n = i % 2 ? 1 : 1 + (int)(state >> 8) % 90;
        go_on(a, tokens, want, n < N - pos ? n : N - pos, 0);
    }
    pf_session_close(&a);
    pf_session_close(&b);
}

static bool stop_at(void *ctx)
{
    return --*(int *)ctx == 0;
}

/* What is refused changes nothing; what is cancelled leaves an empty session. */
static void test_copy_refused(pf_model *m)
{
    pf_session *a = open_session(m), *b = open_session(m), *little;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = 64;
    o.n_batch = N_BATCH;
    CHECK(pf_session_open(&little, m, &o) == PF_OK, "%s", pf_last_error());
    go_on(a, tokens, want, 70, 0);
    go_on(b, other, want_other, 120, 0);
    CHECK(pf_session_copy(a, a, 3, NULL, NULL) == PF_EINVAL && pf_session_copy(b, a, 71, NULL, NULL) == PF_EINVAL &&
          pf_session_copy(b, a, -1, NULL, NULL) == PF_EINVAL);
    CHECK(pf_session_copy(little, a, 65, NULL, NULL) == PF_ECONTEXT);
    CHECK(pf_session_pos(b) == 120 && same(pf_session_logits(b), want_other + 119 * n_vocab),
          "a refusal changes nothing");
    int at = 0;
    for (pf_status st = PF_ECANCEL; st == PF_ECANCEL;) {
        int left = ++at;
        st = pf_session_copy(b, a, 70, stop_at, &left);
        CHECK(st == PF_OK || pf_session_pos(b) == 0, "cancelled at %d", at);
        go_on(b, tokens, want, 20, 0);
    }
    CHECK(at > pf_model_info(m)->n_layers, "asked %d times", at);
    go_on(a, tokens, want, 20, PF_LOGITS_ALL);
    pf_session_close(&a);
    pf_session_close(&b);
    pf_session_close(&little);
}

int main(int argc, char **argv)
{
    pf_model *m;
    struct pf_model_opts o;
    bool is_long = argc == 3 && strcmp(argv[2], "long") == 0;
    if (argc != 2 && !is_long)
        return 2;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    pf_status st = pf_model_open(&m, argv[1], &o);
    if (st < 0) {
        printf("%s\n", pf_last_error());
        return st == PF_EUNSUPPORTED ? 77 : 1;
    }
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    for (int i = 0; i < N; i++) {
        tokens[i] = (int32_t)((unsigned)i * 40503u % n_vocab);
        other[i] = (tokens[i] + (i >= 100)) % (int32_t)n_vocab;
    }
    if (is_long) {
        test_long(m, 2900);
        test_long(m, 300);
        pf_model_close(&m);
        return check_status();
    }
    want = logits_of(m, tokens);
    want_other = logits_of(m, other);
    test_walk(m);
    test_turns(m);
    test_tail(m);
    test_conversation(m);
    test_cancel(m);
    test_save(m, 70, 70);
    test_save(m, 70, 41);
    test_save(m, 1, 0);
    test_save_more(m);
    test_more_faults(m);
    test_saved_cut(m);
    test_copy(m);
    test_copy_refused(m);
    free(want);
    free(want_other);
    pf_model_close(&m);
    return check_status();
}

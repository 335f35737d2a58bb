/* See saved.h. Parts lie in the order in which they came, so that none lies before what it continues. */
#define _GNU_SOURCE
#include "serve/cache/saved.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "serve/cache/behind.h"
#include "serve/cache/part.h"

/* Of what a part would go on from, at most one token for so many that it shares is past the place. */
enum { MOST_PARTS = 4096, MOST_DEPTH = 64, SHARED_PER_PAST = 4 };

/* How long a part that could not be loaded is left alone, at first and at most; and how many times as long as it took
 * to find out besides, so that a drive which has gone bad takes no more than a fifth of the time. */
static const double LEAST_WAIT_S = 1, MOST_WAIT_S = 256, WAITS_PER_TRY = 4;

struct saved {
    char    *folder;
    uint64_t most, key, token_bytes, total, n_used;
    const pf_model *m;               /* NULL: not known yet */
    uint64_t beside_bytes;           /* that a part took beside those of its tokens, at most: a recurrent state's */
    struct part   *parts[MOST_PARTS + 1];
    int            n;                /* between calls, MOST_PARTS at most */
    struct part   *written;          /* whose file is being written, or was lately; NULL: nobody wants to know */
    struct behind *behind;
    struct aside  *aside;
};

/* Until the file, or with NULL any, is written. False: given up. */
static bool wait_for(struct saved *s, const char *path)
{
    aside_leave(s->aside);
    while (!behind_wait(s->behind, path) && aside_goes_on(s->aside))
        ;
    return aside_return(s->aside);
}

static void remove_file(struct saved *s, const char *path)
{
    aside_leave(s->aside);
    while (!behind_wait(s->behind, path))
        ;
    unlink(path);
    aside_return(s->aside);
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

/* Whether the part's file could not be written; what bears its name may be another server's. */
static bool is_lost(const struct saved *s, const struct part *p)
{
    return p == s->written && behind_failed(s->behind);
}

/* Nothing is replaced by the part that was written, since it is not there. */
static void keep_replaced(struct saved *s)
{
    s->written = NULL;
    for (int i = 0; i < s->n; i++)
        s->parts[i]->replaced = false;
}

/* A part that none continues; its file stays. */
static void take_out(struct saved *s, int i)
{
    struct part *p = s->parts[i];
    if (p->parent)
        p->parent->n_children--;
    s->total -= p->bytes;
    memmove(s->parts + i, s->parts + i + 1, (size_t)(--s->n - i) * sizeof *s->parts);
    part_free(p);
}

/* Forgets a part that none continues. */
static void forget(struct saved *s, int i)
{
    struct part *p = s->parts[i];
    if (p->path && !is_lost(s, p))
        remove_file(s, p->path);
    if (p == s->written)
        keep_replaced(s);
    take_out(s, i);
}

static bool continues(const struct part *p, const struct part *other)
{
    while (p && p != other)
        p = p->parent;
    return p != NULL;
}

/* Forgets a part and all that continue it. */
static void forget_from(struct saved *s, struct part *p)
{
    for (int i = s->n; i-- > 0;) {
        bool is_last = s->parts[i] == p;
        if (continues(s->parts[i], p))
            forget(s, i);
        if (is_last)
            return;
    }
}

/* Whether a part goes before another one where room is wanted. */
static bool goes_before(const struct part *p, const struct part *q)
{
    return p->replaced != q->replaced ? p->replaced : p->used < q->used;
}

/* Parts that none continues give way, but for p, whose conversation has room (make). */
static void make_room(struct saved *s, const struct part *p)
{
    while (s->n > MOST_PARTS || s->total > s->most) {
        int oldest = -1;
        for (int i = 0; i < s->n; i++)
            if (s->parts[i]->n_children == 0 && s->parts[i] != p &&
                (oldest < 0 || goes_before(s->parts[i], s->parts[oldest])))
                oldest = i;
        if (oldest < 0)
            return;
        forget(s, oldest);
    }
}

static void add(struct saved *s, struct part *p)
{
    uint64_t of_tokens = (p->n - p->from) * s->token_bytes, beside = p->bytes > of_tokens ? p->bytes - of_tokens : 0;
    s->beside_bytes = beside > s->beside_bytes ? beside : s->beside_bytes;
    s->total += p->bytes;
    s->parts[s->n++] = p;
    if (p->parent)
        p->parent->n_children++;
}

/* Adds a part in place of one with its tokens, and its file's name, that could not be loaded. */
static void add_anew(struct saved *s, struct part *p)
{
    for (int i = s->n; i-- > 0;)
        if (s->parts[i]->id == p->id && s->parts[i]->n == p->n && s->parts[i]->n_children == 0)
            take_out(s, i);
    add(s, p);
}

static void use(struct saved *s, struct part *p)
{
    s->n_used++;
    for (; p; p = p->parent)
        p->used = s->n_used;
}

/* ---- Finding and loading ----------------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What each part and those that it continues have in common with the tokens, and whether one of them is not to be
 * tried now. */
static void compare(struct saved *s, const int32_t *tok, size_t n)
{
    const double now = seconds();
    for (int i = 0; i < s->n; i++) {
        struct part *p = s->parts[i];
        bool differs = p->parent && p->parent->common < p->from;
        p->common = differs ? p->parent->common : part_common(p, tok, n);
        p->is_put_off = now < p->again || (p->parent && p->parent->is_put_off);
    }
}

static bool can_cut(const struct saved *s, const struct part *p, size_t n)
{
    return !s->m || pf_saved_can_cut(s->m, &p->saved, (int64_t)n);
}

size_t saved_common(struct saved *s, const int32_t *tok, size_t n)
{
    size_t most = 0;
    compare(s, tok, n);
    for (int i = 0; i < s->n; i++)
        most = s->parts[i]->common > most ? s->parts[i]->common : most;
    return most;
}

/* Of what is loaded for a part, one after the other. */
static size_t longest(const struct part *p)
{
    size_t n = 0;
    for (; p; p = p->parent)
        n = p->n > n ? p->n : n;
    return n;
}

/* How many tokens are loaded for a part. */
static size_t n_loaded(const struct part *p)
{
    size_t n = 0;
    for (; p; p = p->parent)
        n += p->n - p->from;
    return n;
}

struct part *saved_find(struct saved *s, const int32_t *tok, size_t n, int64_t n_ctx, bool whole, size_t *common)
{
    struct part *best = NULL;
    *common = 0;
    compare(s, tok, n);
    for (int i = 0; i < s->n; i++) {
        struct part *p = s->parts[i];
        bool is_there = !is_lost(s, p) && !p->is_put_off && longest(p) <= (size_t)n_ctx;
        bool fits = (p->common == p->n && p->n < n) || (!whole && can_cut(s, p, p->common < n ? p->common : n - 1));
        if (!is_there || !fits)
            continue;
        if (p->common > *common || (best && p->common == *common && n_loaded(p) < n_loaded(best))) {
            *common = p->common;
            best = p;
        }
    }
    return best;
}

/* *at: the part that could not be loaded, or at which it was given up. */
static enum load load_chain(struct saved *s, struct part *last, pf_session *session, struct part **at)
{
    for (struct part *p = NULL; p != last;) {
        struct part *next = last;
        while (next->parent != p)
            next = next->parent;
        *at = p = next;
        enum load load = p->path && !wait_for(s, p->path) ? LOAD_FAILED : part_load(p, session, s->aside);
        if (load != LOAD_DONE)
            return load;
        p->wait_s = p->again = 0;
    }
    return LOAD_DONE;
}

static void put_off(struct part *p, double took)
{
    p->wait_s = p->wait_s > 0 ? 2 * p->wait_s : LEAST_WAIT_S;
    p->wait_s = p->wait_s < MOST_WAIT_S ? p->wait_s : MOST_WAIT_S;
    p->again = seconds() + p->wait_s + WAITS_PER_TRY * took;
}

bool saved_load(struct saved *s, struct part *p, pf_session *session)
{
    use(s, p);
    while (p) {
        struct part *at;
        double begin = seconds();
        enum load load = load_chain(s, p, session, &at);
        if (load == LOAD_DONE)
            return true;
        if (!aside_goes_on(s->aside))
            return false;
        p = at->parent;
        pf_session_rewind(session, 0);
        if (load == LOAD_WRONG)
            forget_from(s, at);
        else
            put_off(at, seconds() - begin);
    }
    return false;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

/* Where a conversation goes on from what is kept: behind the first `at` tokens up to a part's end, of which some are
 * the part's own. */
struct place {
    struct part *part;               /* NULL: nowhere */
    size_t       at;
};

static struct place up(struct place b)
{
    return (struct place){ b.part->parent, b.part->from };
}

/* Whether a part may go on within p, where the tokens begin to differ: what is past that place stays with it. */
static bool is_worth_cutting(const struct part *p, size_t n)
{
    return p->common > p->from &&
           (p->common == n || p->n - p->common <= (p->common - p->from) / SHARED_PER_PAST);
}

/* The last place that the tokens begin with: the end of a part, or, with `cuts`, one within. */
static struct place place_in(struct saved *s, const int32_t *tok, size_t n, bool cuts)
{
    struct place best = { NULL, 0 };
    compare(s, tok, n);
    for (int i = 0; i < s->n; i++) {
        struct part *p = s->parts[i];
        bool is_better = p->common > best.at || (best.part && p->common == best.at && p->n < best.part->n);
        if (is_better && (p->common == p->n || (cuts && is_worth_cutting(p, n))))
            best = (struct place){ p, p->common };
    }
    return best;
}

static struct place beginning_of(struct saved *s, const pf_session *session)
{
    const int32_t *tok = pf_session_tokens(session);
    size_t n = (size_t)pf_session_pos(session);
    struct place b = place_in(s, tok, n, true);
    if (!b.part || b.at == b.part->n)
        return b;
    struct pf_saved saved = b.part->saved;
    return pf_saved_cut(session, &saved, (int64_t)b.at) == PF_OK ? b : place_in(s, tok, n, false);
}

/* What the new part replaces. What it continues is not among that: it does. */
static void replace_beginnings(struct saved *s, struct part *made)
{
    s->written = made;
    for (int i = 0; i < s->n; i++) {
        struct part *p = s->parts[i];
        p->replaced = p != made && !p->is_shared && p->n_children == 0 && p->common == p->n;
    }
}

/* When the last part is written: what it replaces goes, or else it goes itself. */
static void settle(struct saved *s)
{
    const bool failed = behind_failed(s->behind);
    for (int i = s->n; s->written && i-- > 0;)
        if (failed ? s->parts[i] == s->written : s->parts[i]->replaced)
            forget(s, i);
    s->written = NULL;
}

/* The last place up to b before which all parts could be loaded when that was tried last. */
static struct place last_sound(struct place b)
{
    struct place sound = b;
    for (; b.part; b = up(b))
        if (b.part->wait_s > 0)
            sound = up(b);
    return sound;
}

/* What a new part of a conversation of n tokens continues: something long, and not the last of too many. */
static struct place worth_continuing(struct place b, size_t n)
{
    int depth = 0;
    for (struct part *p = b.part; p; p = p->parent)
        depth++;
    for (; b.part && (b.at - b.part->from < 2 * (n - b.at) || depth >= MOST_DEPTH); depth--)
        b = up(b);
    return b;
}

/* A part of what is behind b, with data; where the session cannot go on from what was saved, as with windows that lie
 * elsewhere, of what is behind a place before it. Where that leaves no room, of the whole sequence, since each part has
 * a state and windows of its own. */
static enum put make(const struct saved *s, struct place b, const pf_session *session, struct part **made)
{
    for (;;) {
        uint64_t before = 0;
        for (const struct part *p = b.part; p; p = p->parent)
            before += p->bytes;
        struct part *p = part_new(b.part, b.at, session);
        struct part_limits l = { .key = s->key, .most = s->most > before ? s->most - before : 0,
                                 .token_bytes = s->token_bytes, .beside_bytes = s->beside_bytes };
        pf_status st = part_save(p, session, &l, s->aside);
        if (st == PF_OK) {
            *made = p;
            return PUT_DONE;
        }
        part_free(p);
        if (!aside_goes_on(s->aside))
            return PUT_GIVEN_UP;
        if ((st != PF_EINVAL && st != PF_ECONTEXT) || !b.part)
            return st == PF_ECONTEXT ? PUT_NO_ROOM : st == PF_EUNSUPPORTED ? PUT_NEVER : PUT_FAILED;
        b = st == PF_EINVAL ? up(b) : (struct place){ NULL, 0 };
    }
}

/* Whether all n tokens are kept up to b, and could be loaded when that was tried last; or a part has them that cannot
 * be put anew, since others continue it. */
static bool is_kept(struct place b, size_t n)
{
    return b.part && b.at == n && (last_sound(b).part == b.part || (b.part->n == n && b.part->n_children > 0));
}

enum put saved_put(struct saved *s, const pf_session *session, bool is_shared)
{
    size_t n = (size_t)pf_session_pos(session);
    if (!wait_for(s, NULL))
        return PUT_GIVEN_UP;
    settle(s);
    struct part *p;
    struct place b = beginning_of(s, session);
    if (is_kept(b, n)) {
        b.part->is_shared = b.part->is_shared || (is_shared && b.part->n == n);
        use(s, b.part);
        return PUT_DONE;
    }
    enum put put = make(s, worth_continuing(last_sound(b), n), session, &p);
    if (put != PUT_DONE)
        return put;
    compare(s, pf_session_tokens(session), n);       /* again: somebody may have looked for others meanwhile */
    p->common = n;
    p->is_shared = is_shared;
    add_anew(s, p);
    use(s, p);
    replace_beginnings(s, p);
    make_room(s, p);
    if (s->folder) {
        p->path = part_path(p, s->folder, s->key);
        behind_write(s->behind, p->path, &p->data);
    } else {
        settle(s);
    }
    return PUT_DONE;
}

bool saved_is_busy(struct saved *s)
{
    return behind_is_busy(s->behind);
}

/* ---- The folder -------------------------------------------------------------------------------------------------- */

/* The part that p continues, among those before it. */
static struct part *parent_of(const struct saved *s, const struct part *p)
{
    for (int i = 0; i < s->n; i++)
        if (s->parts[i]->id == p->parent_id && s->parts[i]->from < p->from && p->from <= s->parts[i]->n)
            return s->parts[i];
    return NULL;
}

static int by_beginning(const void *a, const void *b)
{
    const struct part *const *p = a, *const *q = b;
    return (*p)->from < (*q)->from ? -1 : (*p)->from > (*q)->from;
}

/* Finds what each of n parts continues. One that continues what is not there any more is removed, if these are `all`
 * that there are: otherwise that may be among the others, and its file stays. */
static void link_parts(struct saved *s, struct part **parts, int n, bool all)
{
    qsort(parts, (size_t)n, sizeof *parts, by_beginning);
    for (int i = 0; i < n; i++) {
        struct part *p = parts[i];
        p->parent = parent_of(s, p);
        if (!p->parent && p->parent_id) {
            if (all)
                unlink(p->path);
            part_free(p);
            continue;
        }
        s->n_used = p->used > s->n_used ? p->used : s->n_used;
        add(s, p);
    }
}

/* What a server that was killed while it wrote a part has left. */
static bool is_left(const char *name)
{
    const size_t n = strlen(name), n_beside = sizeof BEHIND_BESIDE - 1;
    return n > n_beside && strcmp(name + n - n_beside, BEHIND_BESIDE) == 0 && part_made_name(name, n - n_beside);
}

/* A file that bears a part's name: whether it could be read. One that is damaged is removed. */
static bool take_up(const struct saved *s, const char *path, struct part **parts, int *n)
{
    enum found found = part_read(path, s->key, &parts[*n]);
    *n += found == FOUND_PART;
    if (found == FOUND_DAMAGED)
        unlink(path);
    return found != FOUND_UNREADABLE;
}

static bool read_folder(struct saved *s)
{
    DIR *d;
    struct part *parts[MOST_PARTS];
    struct dirent *f;
    int n = 0;
    bool all = true;
    if (mkdir(s->folder, 0700) != 0 && errno != EEXIST)
        return false;
    if (access(s->folder, W_OK | X_OK) != 0 || !(d = opendir(s->folder)))
        return false;
    while (errno = 0, (f = readdir(d))) {
        struct buf path = { 0 };
        buf_printf(&path, "%s/%s", s->folder, f->d_name);
        if (is_left(f->d_name))
            behind_remove_left(path.p);
        else if (part_is_name(f->d_name))
            all = n < MOST_PARTS && take_up(s, path.p, parts, &n) && all;
        buf_free(&path);
    }
    all = all && errno == 0;
    closedir(d);
    link_parts(s, parts, n, all);
    make_room(s, NULL);
    return true;
}

struct saved *saved_open(const char *folder, uint64_t most, uint64_t key)
{
    struct saved *s = xrealloc(NULL, 1, sizeof *s);
    *s = (struct saved){ .folder = folder ? xstrdup(folder) : NULL, .most = most, .key = key };
    s->behind = behind_open();
    if (!folder || read_folder(s))
        return s;
    int error = errno;
    saved_close(s);
    errno = error;
    return NULL;
}

void saved_set_aside(struct saved *s, struct aside *a)
{
    s->aside = a;
}

void saved_expect(struct saved *s, const pf_model *m, uint64_t token_bytes)
{
    s->m = m;
    s->token_bytes = token_bytes;
}

uint64_t saved_most(const struct saved *s)
{
    return s->most;
}

bool saved_has_room(struct saved *s, const pf_session *session)
{
    size_t n = (size_t)pf_session_pos(session);
    uint64_t taken = s->total + s->beside_bytes;
    if (s->token_bytes == 0 || s->n >= MOST_PARTS || taken >= s->most)
        return false;
    return n - worth_continuing(last_sound(beginning_of(s, session)), n).at <= (s->most - taken) / s->token_bytes;
}

void saved_close(struct saved *s)
{
    wait_for(s, NULL);
    settle(s);
    behind_close(s->behind);
    while (s->n > 0)                         /* the files stay */
        part_free(s->parts[--s->n]);
    free(s->folder);
    free(s);
}

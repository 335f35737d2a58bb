/* Drafts change no bit: whatever is drafted, right or wrong, and wherever a session goes meanwhile, its logits are what
 * they are without drafts, and so is what is sampled from them. Prices are made up so that as much as possible is
 * drafted; gate.c tests what becomes of real ones.
 *
 * usage: drafts MODEL.gguf [N_STEPS [TOKENS]]
 *        TOKENS: with the GPU, which is an emulated one where this file is linked with it, so many tokens straight on;
 *        its bits are the CPU's. 77: the model's architecture is not one that pfmoe has, or there is no GPU */
#include <stdlib.h>
#include <string.h>

#include "cheap_drafts.h"
#include "check.h"
#include "kernels/sim/sim.h"
#include "memory_file.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"

enum { N = 330, N_CTX = 2048, N_BATCH = 24, N_DRAFT = 11, PROMPT = 40 };

static const char *path;
static int32_t  tokens[N + 1];
static float   *want;                    /* [N][n_vocab] */
static size_t   n_vocab;
static int      n_steps = 80;
static unsigned state = 4711;            /* of random numbers */

static unsigned any(unsigned n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* The text itself, with a mistake now and then; sometimes nothing, sometimes what is no token. */
static size_t guess(void *ctx, const int32_t *tok, size_t n, int32_t *out, size_t cap)
{
    size_t n_out = any(8) == 0 ? 0 : 1 + any((unsigned)cap);
    (void)ctx, (void)tok;
    for (size_t i = 0; i < n_out; i++) {
        int32_t right = tokens[n + i < N ? n + i : N];
        out[i] = any(6) ? right : any(20) ? (int32_t)any((unsigned)n_vocab) : -1;
    }
    return n_out;
}

static pf_session *open_session(pf_model *m, enum pf_draft draft)
{
    pf_session *s;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    o.n_batch = N_BATCH;
    o.draft = draft;
    o.draft_max = N_DRAFT;
    o.draft_fn = guess;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

static bool same(const float *a, int64_t pos)
{
    return a && memcmp(a, want + (size_t)pos * n_vocab, n_vocab * sizeof *a) == 0;
}

/* Appends n tokens of the text, one by one; false once bits differ. */
static bool go_on(pf_session *s, int n, const char *what)
{
    for (int i = 0; i < n && pf_session_pos(s) < N; i++) {
        int64_t pos = pf_session_pos(s);
        make_cheap(s);
        CHECK(pf_session_eval(s, &tokens[pos], 1, 0) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_pos(s) == pos + 1);
        if (!same(pf_session_logits(s), pos)) {
            CHECK(false, "%s: other bits at %d", what, (int)pos);
            return false;
        }
    }
    return true;
}

static void make_want(pf_model *m)
{
    pf_session *s = open_session(m, PF_DRAFT_OFF);
    want = realloc(want, N * n_vocab * sizeof *want);
    CHECK(pf_session_eval(s, tokens, N, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < N; i++)
        memcpy(want + i * n_vocab, pf_session_logits_at(s, i), n_vocab * sizeof *want);
    pf_session_close(&s);
}

static void test_straight(pf_model *m, int n)
{
    struct pf_stats before, after;
    pf_session *s = open_session(m, PF_DRAFT_GIVEN);
    pf_stats_get(m, &before);
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    n = n < N - PROMPT ? n : N - PROMPT;
    go_on(s, n, "straight on");
    pf_stats_get(m, &after);
    uint64_t drafted = after.n_drafted - before.n_drafted, accepted = after.n_accepted - before.n_accepted;
    CHECK(drafted > accepted && accepted > (uint64_t)n / 4, "%d drafted, %d right", (int)drafted, (int)accepted);
    CHECK(after.n_steps - before.n_steps + accepted == (uint64_t)n + (PROMPT + N_BATCH - 1) / N_BATCH, "%d steps",
          (int)(after.n_steps - before.n_steps));
    pf_session_close(&s);
}

/* Going back, pieces, saving, loading and copying in the middle of what was drafted. */
static void walk(pf_session *s, pf_session *other)
{
    struct file f = { 0 };
    int64_t pos = pf_session_pos(s);
    unsigned what = any(8);
    int n = 1 + (int)any(30);
    if (pos >= N - 40 || what == 0) {
        CHECK(pf_session_rewind(s, pos > 60 && any(4) ? pos - any(20) : PROMPT) == PF_OK, "%s", pf_last_error());
    } else if (what == 1) {
        CHECK(pf_session_eval(s, tokens + pos, (size_t)n, 0) == PF_OK && same(pf_session_logits(s), pos + n - 1),
              "a piece of %d after %d", n, (int)pos);
    } else if (what == 2) {
        CHECK(pf_session_sync(s, tokens, (size_t)(pos + n), NULL) == PF_OK && same(pf_session_logits(s), pos + n - 1),
              "sync to %d", (int)pos + n);
    } else if (what == 3) {
        CHECK(pf_session_save(s, write_file, &f) == PF_OK && pf_session_load(other, read_file, &f) == PF_OK, "%s",
              pf_last_error());
        CHECK(pf_session_pos(other) == pos);
        go_on(other, 5, "loaded");
        CHECK(pf_session_copy(other, s, pos - any(2), NULL, NULL) == PF_OK, "%s", pf_last_error());
        go_on(other, 5, "copied");
    } else if (what == 4) {
        pf_session_cancel(s);
        make_cheap(s);
        CHECK(pf_session_eval(s, &tokens[pos], 1, 0) == PF_ECANCEL && pf_session_pos(s) == pos);
    } else {
        go_on(s, n, "walking");
    }
    free(f.data);
}

static void test_walk(pf_model *m, enum pf_draft draft)
{
    pf_session *s = open_session(m, draft), *other = open_session(m, PF_DRAFT_GIVEN);
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    int n = draft == PF_DRAFT_MODEL ? n_steps / 8 : n_steps;         /* which costs as many steps of its own */
    for (int i = 0; i < n && check_n_failed == 0; i++)
        walk(s, other);
    pf_session_close(&s);
    pf_session_close(&other);
}

/* Sessions with and without drafts in steps together, from different places of the text. */
static void test_together(pf_model *m)
{
    enum { SESSIONS = 3 };
    pf_session *s[SESSIONS];
    struct pf_batch_part parts[SESSIONS];
    for (int k = 0; k < SESSIONS; k++) {
        s[k] = open_session(m, k == 1 ? PF_DRAFT_OFF : PF_DRAFT_GIVEN);
        CHECK(pf_session_eval(s[k], tokens, (size_t)(PROMPT + 3 * k), 0) == PF_OK, "%s", pf_last_error());
    }
    for (int i = 0; i < 60 && check_n_failed == 0; i++) {
        for (int k = 0; k < SESSIONS; k++) {
            make_cheap(s[k]);
            parts[k] = (struct pf_batch_part){ .session = s[k], .tok = &tokens[pf_session_pos(s[k])], .n = 1 };
        }
        CHECK(pf_batch_eval(parts, SESSIONS) == PF_OK, "%s", pf_last_error());
        for (int k = 0; k < SESSIONS; k++)
            CHECK(same(pf_session_logits(s[k]), pf_session_pos(s[k]) - 1), "session %d at %d", k,
                  (int)pf_session_pos(s[k]));
    }
    for (int k = 0; k < SESSIONS; k++)
        pf_session_close(&s[k]);
}

/* Single tokens with drafts beside another session's prompt, which comes in slices, some with logits of all rows, until
 * it is through; the last slice does not fit the step. */
static void test_beside(pf_model *m)
{
    enum { SLICE = 7, STEPS = 30 };
    pf_session *s[2] = { open_session(m, PF_DRAFT_GIVEN), open_session(m, PF_DRAFT_GIVEN) };
    CHECK(pf_session_eval(s[0], tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < STEPS && check_n_failed == 0; i++) {
        int64_t at[2] = { pf_session_pos(s[0]), pf_session_pos(s[1]) };
        size_t n = i + 1 == STEPS ? N_BATCH : SLICE;
        struct pf_batch_part parts[2] = { { .session = s[1], .tok = &tokens[at[1]], .n = n,
                                            .flags = i % 3 ? 0 : PF_LOGITS_ALL },
                                          { .session = s[0], .tok = &tokens[at[0]], .n = 1 } };
        make_cheap(s[0]);
        CHECK(pf_batch_eval(parts, 2) == PF_OK, "%s", pf_last_error());
        CHECK(same(pf_session_logits(s[0]), at[0]) && same(pf_session_logits(s[1]), at[1] + (int64_t)n - 1),
              "beside a slice: %d and %d", (int)at[0], (int)at[1]);
        for (size_t k = 0; i % 3 == 0 && k < n; k++)
            CHECK(same(pf_session_logits_at(s[1], k), at[1] + (int64_t)k), "row %d of a slice", (int)k);
    }
    uint64_t drafted, accepted;
    pf_session_drafts(s[0], &drafted, &accepted);
    CHECK(accepted > STEPS / 4, "%d drafted, %d right", (int)drafted, (int)accepted);
    pf_session_close(&s[0]);
    pf_session_close(&s[1]);
}

/* What is sampled: n tokens after the prompt. */
static void sample(pf_model *m, enum pf_draft draft, float temp, int32_t *out, int n)
{
    pf_session *s = open_session(m, draft);
    struct pf_sampler sp;
    pf_sampler_init(&sp, 42);
    sp.temp = temp;
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < n; i++) {
        CHECK(pf_sample(&sp, s, &out[i]) == PF_OK, "%s", pf_last_error());
        make_cheap(s);
        CHECK(pf_session_eval(s, &out[i], 1, 0) == PF_OK, "%s", pf_last_error());
    }
    pf_session_close(&s);
}

/* A model that drafts for itself is right about all of the n tokens that are sampled at temperature 0. */
static void check_second(const struct pf_stats *before, const struct pf_stats *after, int n)
{
    uint64_t drafted = after->n_drafted - before->n_drafted, accepted = after->n_accepted - before->n_accepted;
    CHECK(accepted > (uint64_t)n / 2 && drafted - accepted <= N_DRAFT, "%d drafted, %d right", (int)drafted,
          (int)accepted);
}

static void test_sampling(pf_model *m)
{
    enum { MOST = 48 };
    int32_t off[MOST], lookup[MOST], given[MOST];
    for (float temp = 0; temp <= 1; temp++) {
        sample(m, PF_DRAFT_OFF, temp, off, MOST);
        sample(m, PF_DRAFT_LOOKUP, temp, lookup, MOST);
        sample(m, PF_DRAFT_GIVEN, temp, given, MOST);
        CHECK(memcmp(off, lookup, sizeof off) == 0 && memcmp(off, given, sizeof off) == 0, "at temperature %g",
              (double)temp);
        for (enum pf_draft draft = m->nextn ? PF_DRAFT_MTP : PF_DRAFT_MODEL; draft <= PF_DRAFT_MODEL; draft++) {
            struct pf_stats before, after;
            pf_stats_get(m, &before);
            sample(m, draft, temp, given, MOST);
            pf_stats_get(m, &after);
            CHECK(memcmp(off, given, sizeof off) == 0, "drafts %d, at temperature %g", (int)draft, (double)temp);
            if (draft == PF_DRAFT_MODEL && temp == 0)
                check_second(&before, &after, MOST);
        }
    }
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

static pf_session *follower_of(const pf_session *s)
{
    const struct pf_drafter *d = s->sources[0].drafter;
    return d->ops->own ? d->ops->own(d) : NULL;
}

/* What drafts are made with is saved with a session and goes on where it was, so that no model reads the text again;
 * a session that has no such thing, or another, passes over it, and one that has gets along without. */
static void test_saved(pf_model *m, enum pf_draft draft)
{
    struct file f = { 0 }, plain = { 0 };
    struct pf_saved since = { 0 };
    pf_session *s = open_session(m, draft), *other = open_session(m, draft), *given = open_session(m, PF_DRAFT_GIVEN);
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(given, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_save(given, write_file, &plain) == PF_OK, "%s", pf_last_error());
    for (int part = 0; part < 3 && check_n_failed == 0; part++) {
        size_t begin = f.n;
        CHECK(pf_session_save_more(s, &since, write_file, &f) == PF_OK, "%s", pf_last_error());
        f.at = begin;
        CHECK((part ? pf_session_load_more : pf_session_load)(given, read_file, &f) == PF_OK && f.at == f.n, "%s",
              pf_last_error());
        f.at = begin;
        CHECK((part ? pf_session_load_more : pf_session_load)(other, read_file, &f) == PF_OK && f.at == f.n, "%s",
              pf_last_error());
        const pf_session *own = follower_of(s), *loaded = follower_of(other);
        CHECK(own && loaded && own->pos > PROMPT / 2 && loaded->pos == own->pos && loaded->computed == own->computed,
              "%d", (int)loaded->pos);
        go_on(s, 30, "saved");
    }
    go_on(other, 20, "loaded");
    go_on(given, 20, "loaded without");
    CHECK(pf_session_load(other, read_file, &plain) == PF_OK && follower_of(other)->pos == 0, "%s", pf_last_error());
    go_on(other, 20, "loaded from one without");
    for (size_t i = f.n - 16 - 8; i > f.n / 2; i -= i > f.n - 600 ? 8 : f.n / 128) { /* lengths of pieces and others */
        f.data[i + 5] ^= 64;
        f.at = 0;
        CHECK(pf_session_load(other, read_file, &f) == PF_OK, "%s", pf_last_error());
        pf_status st = pf_session_load_more(other, read_file, &f);
        st = st == PF_OK ? pf_session_load_more(other, read_file, &f) : st;
        CHECK(st < 0 && pf_session_pos(other) == 0 && follower_of(other)->pos == 0, "byte %zu: %d", i + 5, (int)st);
        f.data[i + 5] ^= 64;
    }
    free(f.data);
    free(plain.data);
    pf_session_close(&s);
    pf_session_close(&other);
    pf_session_close(&given);
}

/* What drafts are made with is copied with a session, up to where the copy ends. */
static void test_copied(pf_model *m, enum pf_draft draft)
{
    pf_session *s = open_session(m, draft), *other = open_session(m, draft);
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    go_on(s, 30, "to be copied");
    for (int back = 0; back < PROMPT; back += 1 + 3 * back) {
        int64_t n = pf_session_pos(s) - back, own = follower_of(s)->pos < n ? follower_of(s)->pos : n;
        CHECK(pf_session_copy(other, s, n, NULL, NULL) == PF_OK && follower_of(other)->pos == own, "%d of %d: %s",
              (int)follower_of(other)->pos, (int)own, pf_last_error());
        go_on(other, 20, "copied");
    }
    go_on(s, 20, "after copies");
    pf_session_close(&s);
    pf_session_close(&other);
}

/* Experts shared with a device; lost on the way, if at all. */
static void test_device(bool lose)
{
    struct pf_sim sim = { .memory_bytes = 256 << 20 };
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = &sim };
    struct pf_model_opts o;
    struct pf_stats stats;
    pf_model *m;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.streaming = true;
    if (pf_model_open_with(&m, path, &o, &setup) < 0) {
        CHECK(false, "%s", pf_last_error());
        return;
    }
    pf_session *s = open_session(m, PF_DRAFT_GIVEN);
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    go_on(s, 40, "device");
    sim.lose_at = lose ? sim.n_ops + 40 : 0;
    go_on(s, 120, "device");
    CHECK(pf_session_rewind(s, 100) == PF_OK, "%s", pf_last_error());
    go_on(s, 40, "device, back and on");
    pf_stats_get(m, &stats);
    CHECK(stats.device_lost == lose);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* All weights through a few slots. */
static void test_streamed(void)
{
    static struct pf_residency_setup none;
    struct pf_model_opts o;
    pf_model *m;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.streaming = true;
    o.device = -1;
    o.nextn = true;
    o.draft_path = path;
    if (pf_model_open_with(&m, path, &o, &none) < 0) {
        CHECK(false, "%s", pf_last_error());
        return;
    }
    for (int i = 0; i < 2; i++) {
        pf_session *s = open_session(m, i == 0 ? PF_DRAFT_GIVEN : m->nextn ? PF_DRAFT_MTP : PF_DRAFT_MODEL);
        CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
        go_on(s, i == 0 ? 100 : 20, "streamed");
        pf_session_close(&s);
    }
    pf_model_close(&m);
}

/* False: there is none such, and *status says why. */
static bool open_model(pf_model **m, int device, int *status)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = device;
    o.nextn = true;
    o.draft_path = path;
    pf_status st = pf_model_open(m, path, &o);
    *status = st == PF_EUNSUPPORTED ? 77 : 1;
    if (st < 0)
        printf("%s\n", pf_last_error());
    return st == PF_OK;
}

/* Drafts of another session on the GPU; a few, since an emulated one is slow. */
static void test_follower(pf_model *m)
{
    pf_session *s = open_session(m, m->nextn ? PF_DRAFT_MTP : PF_DRAFT_MODEL);
    CHECK(pf_session_eval(s, tokens, PROMPT, 0) == PF_OK, "%s", pf_last_error());
    go_on(s, 6, "followed");
    CHECK(s->n_drafted > 0);
    pf_session_close(&s);
}

static int run_on_gpu(int n_straight)
{
    pf_model *m;
    int status;
    if (!open_model(&m, 0, &status))
        return status;
    bool is_gpu = strcmp(pf_model_info(m)->backend, "cpu") != 0;
    if (is_gpu) {
        test_straight(m, n_straight);
        test_walk(m, PF_DRAFT_GIVEN);
        test_follower(m);
    }
    pf_model_close(&m);
    return is_gpu ? check_status() : 77;
}

int main(int argc, char **argv)
{
    pf_model *m;
    int status;
    if (argc < 2)
        return 2;
    path = argv[1];
    n_steps = argc > 2 ? atoi(argv[2]) : n_steps;
    if (!open_model(&m, -1, &status))
        return status;
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    for (unsigned i = 0; i <= N; i++)
        tokens[i] = (int32_t)((i % 97 + i / 150) * 40503u % n_vocab);        /* repeats itself, with changes */
    make_want(m);
    if (argc > 3) {
        pf_model_close(&m);
        status = run_on_gpu(atoi(argv[3]));
        free(want);
        return status;
    }
    test_straight(m, N);
    test_walk(m, PF_DRAFT_GIVEN);
    test_walk(m, PF_DRAFT_LOOKUP);
    test_walk(m, PF_DRAFT_MODEL);
    if (m->nextn) {
        test_walk(m, PF_DRAFT_MTP);
        test_walk(m, PF_DRAFT_AUTO);
        test_saved(m, PF_DRAFT_MTP);
        test_copied(m, PF_DRAFT_MTP);
    }
    test_saved(m, PF_DRAFT_MODEL);
    test_copied(m, PF_DRAFT_MODEL);
    test_together(m);
    test_beside(m);
    test_sampling(m);
    pf_model_close(&m);
    test_streamed();
    test_device(false);
    test_device(true);
    free(want);
    return check_status();
}

/* Several sequences in a step: each has the bits that it has alone, whoever else is in the step, however prompts and
 * single tokens are mixed, with batches of one session smaller than another's; where one is cancelled
 * in the middle, its sequence is as before.
 *
 * usage: batches MODEL.gguf cpu|streamed|device|shared|cut|cuda|cuda-shared LENGTH ROUNDS
 *        streamed: in less than half of the memory that the weights take; device, shared, cut: with a simulated device
 *        that has all of the model, shares the experts, or has some layers, and that is lost half-way in a second run;
 *        cuda, cuda-shared: with the GPU, which is an emulated one where this file is linked with it. Each sequence has
 *        up to LENGTH tokens. 77: the model's architecture is unknown, or there is no GPU */
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "kernels/sim/sim.h"
#include "little_ram.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"

enum { N = 9, MOST_LENGTH = 700 };

static const char *path, *how;
static int      length, n_rounds;
static size_t   n_vocab;
static int32_t  tokens[N][MOST_LENGTH];
static float   *want[N];                 /* [length][n_vocab] */
static uint64_t seed = 1;

static int up_to(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

static bool is(const char *name)
{
    return strcmp(how, name) == 0;
}

/* ---- Models and sessions ----------------------------------------------------------------------------------------- */

static struct pf_session_opts opts_of(int i)
{
    static const int batches[N] = { 512, 7, 64, 1, 33, 200 };
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = length;
    o.n_batch = batches[i];
    return o;
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

static bool simulates(void)
{
    return is("device") || is("shared") || is("cut");
}

static pf_model *open_model(struct pf_sim *sim)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    struct pf_residency_setup setup = { .device = simulates() ? open_device : NULL, .device_ctx = sim };
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = is("cuda") || is("cuda-shared") ? 0 : -1;
    o.streaming = is("streamed") || is("shared") || is("cuda-shared");
    o.ram_bytes = is("streamed") ? little_ram(path, o) : 0;
    pf_status st = setup.device ? pf_model_open_with(&m, path, &o, &setup) : pf_model_open(&m, path, &o);
    CHECK(st == PF_OK, "%s", pf_last_error());
    if (st < 0)
        exit(check_status());
    CHECK(is("cpu") || is("streamed") || is("cut") || strcmp(pf_model_info(m)->backend, "cpu") != 0,
          "no device takes part");
    return m;
}

/* Memory of a simulated device in which some layers find room, but not all. */
static uint64_t cutting_memory(void)
{
    for (uint64_t memory = 256 << 20; memory > 1 << 16; memory -= memory / 16) {
        struct pf_sim sim = { .memory_bytes = memory };
        pf_model *m = open_model(&sim);
        bool cuts = strcmp(pf_model_info(m)->backend, "cpu") != 0 &&
                    pf_model_info(m)->n_gpu_layers < pf_model_info(m)->n_layers;
        pf_model_close(&m);
        if (cuts)
            return memory;
    }
    CHECK(false, "no size of memory cuts the model");
    return 0;
}

static pf_session *open_session(pf_model *m, int i)
{
    pf_session *s = NULL;
    struct pf_session_opts o = opts_of(i);
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

static void make_want(void)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = -1;
    pf_status st = pf_model_open(&m, path, &o);
    if (st < 0) {
        CHECK(st == PF_EUNSUPPORTED, "%s", pf_last_error());
        exit(check_status() ? 1 : 77);
    }
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    for (int i = 0; i < N; i++) {
        pf_session *s = open_session(m, i);
        for (int j = 0; j < length; j++)
            tokens[i][j] = (int32_t)((unsigned)(j * N + i) * 2654435761u % n_vocab);
        want[i] = malloc((size_t)length * n_vocab * sizeof *want[i]);
        CHECK(pf_session_eval(s, tokens[i], (size_t)length, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
        for (int j = 0; j < length; j++)
            memcpy(want[i] + (size_t)j * n_vocab, pf_session_logits_at(s, (size_t)j), n_vocab * sizeof *want[i]);
        pf_session_close(&s);
    }
    pf_model_close(&m);
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

static struct pf_batch_part part(pf_session *s, const int32_t *tok, size_t n)
{
    return (struct pf_batch_part){ .session = s, .tok = tok, .n = n };
}

struct batch {
    struct pf_batch_part parts[N];
    int seq[N];
    int n;
};

/* Some of the sessions, in any order, each with one token or with several. */
static struct batch random_batch(pf_session *const s[N])
{
    struct batch b = { .n = 0 };
    int from = up_to(N);
    for (int k = 0; k < N; k++) {
        int i = (from + 5 * k) % N, left = length - (int)pf_session_pos(s[i]);
        if (left == 0 || up_to(4) == 0)
            continue;
        int n = up_to(3) ? 1 : 1 + up_to(length / 3);
        n = n < left ? n : left;
        b.seq[b.n] = i;
        b.parts[b.n++] = (struct pf_batch_part){ .session = s[i], .tok = tokens[i] + pf_session_pos(s[i]),
                                                 .n = (size_t)n, .flags = up_to(3) ? 0 : PF_LOGITS_ALL };
    }
    return b;
}

static bool same(const float *logits, int i, int64_t pos)
{
    return logits && memcmp(logits, want[i] + (size_t)pos * n_vocab, n_vocab * sizeof *logits) == 0;
}

static bool has_logits(const struct batch *b, int k)
{
    const struct pf_batch_part *p = &b->parts[k];
    int i = b->seq[k];
    int64_t end = pf_session_pos(p->session), first = end - (int64_t)p->n;
    bool ok = same(pf_session_logits(p->session), i, end - 1);
    for (size_t j = 0; p->flags && j < p->n; j++)
        ok = ok && same(pf_session_logits_at(p->session, j), i, first + (int64_t)j);
    CHECK(ok, "%s: other bits of sequence %d after %d of %d tokens, in a batch of %d", how, i, (int)p->n, (int)end,
          b->n);
    return ok;
}

static bool run(struct batch *b)
{
    bool ok = b->n == 0 || pf_batch_eval(b->parts, (size_t)b->n) == PF_OK;
    CHECK(ok, "%s: %s", how, pf_last_error());
    for (int k = 0; ok && k < b->n; k++)
        ok = has_logits(b, k);
    return ok;
}

/* One of the sessions is cancelled: its part leaves no trace, the others are evaluated. */
static void run_cancelled(struct batch *b, int k)
{
    pf_session *s = b->parts[k].session;
    int64_t pos = pf_session_pos(s);
    pf_status st = pf_batch_eval(b->parts, (size_t)b->n);
    CHECK(st == PF_ECANCEL && b->parts[k].status == st, "%s: %d, %s", how, st,
          st < 0 ? pf_last_error() : "it went well");
    CHECK(pf_session_pos(s) == pos && !pf_session_logits(s) &&
          memcmp(pf_session_tokens(s), tokens[b->seq[k]], (size_t)pos * sizeof(int32_t)) == 0,
          "%s: sequence %d is at %d, not %d", how, b->seq[k], (int)pf_session_pos(s), (int)pos);
    for (int i = 0; i < b->n; i++)
        if (i != k)
            CHECK(b->parts[i].status == PF_OK && has_logits(b, i), "%s: part %d: %d", how, i, b->parts[i].status);
    struct batch again = { .parts = { b->parts[k] }, .seq = { b->seq[k] }, .n = 1 };
    run(&again);
}

static void cancel_late(void *ctx, const struct pf_stage_data *d)
{
    pf_session **s = ctx;                        /* cleared: the others' steps are not to cancel it again */
    if (*s && d->layer >= (*s)->m->n_layer - 2) {
        pf_session_cancel(*s);
        *s = NULL;
    }
}

/* Cancels one of the sessions before the step, or, where there are experts to look at, in its last layers. */
static void fail_once(pf_model *m, struct batch *b)
{
    int k = up_to(b->n);
    pf_session *s = b->parts[k].session;
    struct pf_trace_opts late = { .stages = 1u << PF_STAGE_GATE, .fn = cancel_late, .ctx = &s };
    bool in_step = m->n_moe > 0 && m->layers[m->n_layer - 2].is_moe && up_to(2);
    if (in_step)
        CHECK(pf_trace_set(m, &late) == PF_OK, "%s", pf_last_error());
    else
        pf_session_cancel(s);
    run_cancelled(b, k);
    if (in_step)
        CHECK(pf_trace_set(m, NULL) == PF_OK, "%s", pf_last_error());
}

static void test_rounds(pf_model *m, pf_session *s[N])
{
    int n_together = 0;
    for (int round = 0; round < n_rounds; round++) {
        struct batch b = random_batch(s);
        n_together += b.n > 1;
        if (b.n > 0 && up_to(4) == 0)
            fail_once(m, &b);
        else if (!run(&b))
            return;
        int i = up_to(N);
        if (up_to(6) == 0 || pf_session_pos(s[i]) == length)
            CHECK(pf_session_rewind(s[i], up_to((int)pf_session_pos(s[i]) + 1)) == PF_OK, "%s", pf_last_error());
    }
    CHECK(n_together > n_rounds / 4, "%d of %d batches had several sequences", n_together, n_rounds);
}

/* Token by token together, as a server decodes: nothing is allocated. */
static void test_decode(pf_session *s[N])
{
    struct pf_mem_stats before, after;
    struct batch b = { .n = N };
    int n_steps = length / 4 < 12 ? length / 4 : 12;
    for (int i = 0; i < N; i++)
        CHECK(pf_session_sync(s[i], tokens[i], (size_t)(length - n_steps - i % 3), NULL) == PF_OK, "%s",
              pf_last_error());
    for (int step = 0; step < n_steps - 3; step++) {
        for (int i = 0; i < N; i++) {
            b.seq[i] = i;
            b.parts[i] = part(s[i], tokens[i] + pf_session_pos(s[i]), 1);
        }
        pf_mem_stats_get(&before);
        bool ok = run(&b);
        pf_mem_stats_get(&after);
        CHECK(!is("cpu") || before.n_calls == after.n_calls, "%d allocations in a step",
              (int)(after.n_calls - before.n_calls));
        if (!ok)
            return;
    }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(pf_status expected, const char *says, struct pf_batch_part *parts, size_t n)
{
    pf_status st = pf_batch_eval(parts, n);
    CHECK(st == expected && strstr(pf_last_error(), says), "%d: %s", st, pf_last_error());
}

static void test_refusals(pf_model *m)
{
    static struct pf_batch_part many[PF_MAX_BATCH_PARTS + 1];
    pf_session *a = open_session(m, 0), *b = open_session(m, 1);
    int32_t bad = (int32_t)n_vocab;
    CHECK(pf_session_eval(a, tokens[0], 3, 0) == PF_OK && pf_session_eval(b, tokens[1], 2, 0) == PF_OK);
    struct pf_batch_part good = part(a, tokens[0] + 3, 1);
    refuse(PF_EINVAL, "0 parts", &good, 0);
    refuse(PF_EINVAL, "parts; 1 to", many, PF_MAX_BATCH_PARTS + 1);
    refuse(PF_EINVAL, "part 1: it has no session", (struct pf_batch_part[]){ good, part(NULL, tokens[0], 1) }, 2);
    refuse(PF_EINVAL, "part 1: its session is that of part 0", (struct pf_batch_part[]){ good, good }, 2);
    refuse(PF_EINVAL, "part 1: there are no tokens", (struct pf_batch_part[]){ good, part(b, tokens[1], 0) }, 2);
    refuse(PF_EINVAL, "part 1: token 0 is", (struct pf_batch_part[]){ good, part(b, &bad, 1) }, 2);
    refuse(PF_ECONTEXT, "part 0: ",
           (struct pf_batch_part[]){ part(a, tokens[0], MOST_LENGTH), part(b, tokens[1], 1) }, 2);
    CHECK(pf_session_pos(a) == 3 && same(pf_session_logits(a), 0, 2) && same(pf_session_logits(b), 1, 1),
          "refusals change nothing");

    struct pf_batch_part all[2] = { part(a, tokens[0] + 3, 1), part(b, tokens[1] + 2, 1) };
    all[0].flags = all[1].flags = PF_LOGITS_ALL;
    struct pf_mem_stats before, after;
    pf_mem_stats_get(&before);
    for (uint64_t n = 1; n <= 2; n++) {
        pf_session *whole = n == 1 ? b : a;
        pf_mem_fail_nth(n);
        refuse(PF_ENOMEM, n == 1 ? "part 0: no memory" : "part 1: no memory", all, 2);
        pf_mem_fail_nth(0);
        CHECK(all[n - 1].status == PF_ENOMEM && all[2 - n].status == PF_OK, "allocation %d", (int)n);
        CHECK(same(pf_session_logits_at(whole, 0), n == 1, n == 1 ? 2 : 3), "allocation %d", (int)n);
        CHECK(pf_session_rewind(whole, pf_session_pos(whole) - 1) == PF_OK, "%s", pf_last_error());
        pf_mem_stats_get(&after);
        CHECK(after.n_live == before.n_live, "allocation %d", (int)n);
    }
    CHECK(pf_batch_eval(all, 2) == PF_OK && same(pf_session_logits_at(b, 0), 1, 2), "%s", pf_last_error());
    pf_session_close(&a);
    pf_session_close(&b);
}

static void test_other_model(pf_model *m)
{
    struct pf_sim sim = { 0 };
    pf_model *other = open_model(&sim);
    pf_session *a = open_session(m, 0), *b = open_session(other, 1);
    refuse(PF_EINVAL, "part 1: its session is of another model",
           (struct pf_batch_part[]){ part(a, tokens[0], 1), part(b, tokens[1], 1) }, 2);
    pf_session_close(&a);
    pf_session_close(&b);
    pf_model_close(&other);
}

static void test_all(struct pf_sim *sim)
{
    pf_session *s[N];
    pf_model *m = open_model(sim);
    for (int i = 0; i < N; i++)
        s[i] = open_session(m, i);
    if (is("cut"))
        CHECK(s[0]->units[1].backend, "the first session is not cut");
    seed = 1;
    test_rounds(m, s);
    test_decode(s);
    for (int i = 0; i < N; i++)
        pf_session_close(&s[i]);
    if (is("cpu")) {
        test_refusals(m);
        test_other_model(m);
    }
    struct pf_stats stats;
    pf_stats_get(m, &stats);
    CHECK(stats.device_lost == (sim->lose_at > 0), "the device was %slost", stats.device_lost ? "" : "not ");
    CHECK(!is("streamed") || stats.disk_bytes_read > 0, "nothing was read from the drive");
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    path = argv[1];
    how = argv[2];
    length = atoi(argv[3]);
    n_rounds = atoi(argv[4]);
    struct pf_device devices[2];
    if ((is("cuda") || is("cuda-shared")) && pf_devices(devices, 2) < 2) {
        printf("skipped: this machine has no GPU that CUDA can use\n");
        return 77;
    }
    make_want();
    struct pf_sim sim = { .memory_bytes = is("cut") ? cutting_memory() : 0, .again_every = 3 };
    test_all(&sim);
    if (simulates()) {
        sim.lose_at = sim.n_ops / 2;
        sim.n_ops = sim.n_steps = 0;
        test_all(&sim);
    }
    return check_status();
}

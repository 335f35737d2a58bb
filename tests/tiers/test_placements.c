/* Same bits wherever the weights live: one text, evaluated as a prompt and token by token, with every policy, several
 * budgets, thread counts and engines, gives the logits that the wholly mapped model gives. Then with every read of the
 * drive failing in turn: the step fails with one sentence, the sequence stays, and the next try gives those bits again.
 *
 * usage: test_placements MODEL.gguf [FAULTS]     FAULTS: so many of the reads fail, about; default 60 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "at_once.h"
#include "base/pf_mem.h"
#include "check.h"
#include "expected.h"
#include "moe/place/placement.h"

enum { N_PROMPT = 20, N_DECODE = 4, N_TOKENS = N_PROMPT + N_DECODE, N_CTX = 64, MAX_THREADS = 3 };

static const char *path;
static int32_t tokens[N_TOKENS];
static float  *expected;                     /* [N_DECODE + 1][n_vocab] after the prompt and after each token */
static size_t  n_vocab;
static uint64_t n_faults = 60;

static size_t piece_at(int i)
{
    return i == 0 ? 0 : (size_t)(N_PROMPT + i - 1);
}

/* Evaluates piece i: the prompt, or one token; on failure *n_failed counts, and it is tried again. */
static bool eval_piece(pf_session *s, int i, int *n_failed)
{
    size_t from = piece_at(i), n = piece_at(i + 1) - from;
    pf_status st = PF_EIO;
    for (int try = 0; try < 3 && st < 0; try++) {
        st = pf_session_eval(s, tokens + from, n, 0);
        *n_failed += st < 0;
        CHECK(st == PF_OK || (st == PF_EIO && pf_session_pos(s) == (int64_t)from), "%d: %s", st, pf_last_error());
    }
    CHECK(st == PF_OK, "%s", pf_last_error());
    return st == PF_OK;
}

static void run(pf_model *m, const char *name, int *n_failed)
{
    pf_session *s = open_session(m, N_CTX);
    for (int i = 0; s && i <= N_DECODE && eval_piece(s, i, n_failed); i++)
        CHECK(memcmp(pf_session_logits(s), expected + (size_t)i * n_vocab, n_vocab * sizeof(float)) == 0,
              "%s: other bits after piece %d", name, i);
    pf_session_close(&s);
}

static bool plans(uint64_t ram_bytes, bool streaming, struct pf_plan *plan)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.ram_bytes = ram_bytes;
    o.streaming = streaming;
    o.n_threads = MAX_THREADS;           /* scratch grows with them */
    o.device = -1;
    o.speeds = (struct pf_speeds){ 1e12, 3e10, 5e10, 5e9 };
    return pf_model_plan(path, &o, NULL, plan) == PF_OK;
}

/* The least memory that the model runs in. */
static uint64_t least_ram(void)
{
    struct pf_plan plan;
    uint64_t lo = 1, hi = (uint64_t)1 << 30;
    CHECK(plans(hi, false, &plan) && plan.resident, "a gigabyte is enough for everything");
    while (lo + 1 < hi) {
        uint64_t mid = (lo + hi) / 2;
        *(plans(mid, false, &plan) ? &hi : &lo) = mid;
    }
    return hi;
}

static pf_model *open_with(uint64_t ram_bytes, int n_threads, const struct pf_residency_setup *setup)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.ram_bytes = ram_bytes;
    o.streaming = true;
    o.n_threads = n_threads;
    CHECK(pf_model_open_with(&m, path, &o, setup) == PF_OK, "%s", pf_last_error());
    return m;
}

static void test_matrix(uint64_t least, uint64_t most)
{
    static pf_io_open_fn *const engines[] = { pf_io_best_open, pf_io_pread_open, pf_io_sim_open };
    for (int policy = 0; pf_evict_at(policy); policy++)
        for (int share = 0; share < 4; share++)
            for (int threads = 1; threads <= MAX_THREADS; threads += 2) {
                struct pf_io_sim sim = { .seed = 3 };
                struct pf_residency_setup setup = { .io = engines[(policy + share) % 3], .io_ctx = &sim,
                                                    .policy = pf_evict_at(policy), .stall_ns = 20000000000u };
                struct pf_stats stats;
                char name[64];
                int n_failed = 0;
                pf_model *m = open_with(least + (most - least) * (uint64_t)share / 3, threads, &setup);
                if (!m)
                    return;
                snprintf(name, sizeof name, "%s, budget %d of 3, %d threads", setup.policy->name, share, threads);
                run(m, name, &n_failed);
                run(m, name, &n_failed);
                pf_stats_get(m, &stats);
                CHECK(stats.disk_bytes_read > 0 && n_failed == 0, "%s: nothing was read", name);
                pf_model_close(&m);
            }
}

static struct pf_evict_ops watched;             /* a policy that counts walks through the model */
static const pf_evict *one_class;
static int at_layer, n_walks;

static pf_status watched_open(pf_evict **out, const struct pf_evict_shape *shape)
{
    PF_TRY(pf_evict_nextuse.open(out, shape));
    (*out)->ops = &watched;
    one_class = one_class ? one_class : *out;
    return PF_OK;
}

static void watched_enter(pf_evict *p, int layer)
{
    n_walks += p == one_class && layer <= at_layer;
    at_layer = p == one_class ? layer : at_layer;
    pf_evict_nextuse.enter(p, layer);
}

/* A step comes to each layer once, however many rounds the layer's slabs take to find room. */
static void test_walk(uint64_t least)
{
    struct pf_residency_setup setup = { .io = pf_io_pread_open, .policy = &watched, .stall_ns = 20000000000u };
    int n_failed = 0;
    watched = pf_evict_nextuse;
    watched.open = watched_open;
    watched.enter = watched_enter;
    pf_model *m = open_with(least, 1, &setup);
    at_layer = -1;
    run(m, "watched", &n_failed);
    pf_model_close(&m);
    CHECK(n_walks == N_DECODE, "%d walks began after the first, not %d", n_walks, N_DECODE);
}

static void test_preload(uint64_t most)
{
    pf_model *m = open_with(most, 1, NULL);
    int layers[] = { 0 }, n_failed = 0;
    bool there = false;
    for (int i = 0; i < 3 && !there; i++) {      /* the kernel may take pages of a mapped file at any time */
        CHECK(pf_model_preload(m, layers, 1, NULL, NULL) == PF_OK, "%s", pf_last_error());
        there = pf_model_is_resident(m, 0);
    }
    CHECK(there, "layer 0 was preloaded");
    CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK, "%s", pf_last_error());
    run(m, "preloaded", &n_failed);
    pf_model_close(&m);
}

/* errno EIO fails a step; EAGAIN, and with 0 a read that is empty or lost in part, must not be noticed. */
static void test_faults(uint64_t least, int fail_errno)
{
    struct pf_io_sim sim = { .seed = 3 };
    struct pf_residency_setup setup = { .io = pf_io_sim_open, .io_ctx = &sim, .policy = &pf_evict_nextuse,
                                        .stall_ns = 20000000000u };
    int n_failed = 0, n_seen = 0;
    pf_model *m = open_with(least, 1, &setup);
    run(m, "before the faults", &n_failed);
    pf_model_close(&m);
    uint64_t n_reads = sim.n_reads, every = n_reads > n_faults ? n_reads / n_faults : 1;
    for (uint64_t i = 1; i <= n_reads; i += every) {
        struct pf_mem_stats before, after;
        sim = (struct pf_io_sim){ .seed = i, .short_every = 5 + i % 7, .late_at = i + 3, .late_ns = 100000 };
        if (fail_errno)
            sim.fail_at = i, sim.fail_n = 1, sim.fail_errno = fail_errno;
        else
            *(i % 2 ? &sim.corrupt_at : &sim.lost_at) = i;
        pf_mem_stats_get(&before);
        n_failed = 0;
        m = open_with(least, 1, &setup);
        run(m, "with faults", &n_failed);
        pf_model_close(&m);
        pf_mem_stats_get(&after);
        CHECK(before.n_live == after.n_live, "read %d: memory is left behind", (int)i);
        CHECK(n_failed <= 1, "read %d: %d failures", (int)i, n_failed);
        n_seen += n_failed;
    }
    CHECK(fail_errno == EIO ? n_seen > 0 : n_seen == 0, "%d failures were seen", n_seen);
}

static void test_refusals(uint64_t least)
{
    struct pf_plan plan;
    struct pf_model_opts o;
    pf_model *m = NULL;
    pf_model_opts_init(&o);
    o.n_threads = MAX_THREADS;
    o.ram_bytes = least - 1;
    CHECK(pf_model_open(&m, path, &o) == PF_ENOMEM && !m, "too little memory");
    printf("%s\n", pf_last_error());
    o.ram_bytes = least;
    o.no_nvme = true;
    CHECK(pf_model_open(&m, path, &o) == PF_ENOMEM && !m, "no drive");
    printf("%s\n", pf_last_error());
    CHECK(plans(least, false, &plan) && !plan.resident && plan.tok_s > 0, "a plan for the least memory");
    CHECK(plan.tiers[PF_TIER_DISK].bytes + plan.tiers[PF_TIER_RAM].bytes > 0, "bytes somewhere");
}

int main(int argc, char **argv)
{
    struct pf_plan plan;
    if (argc < 2)
        return 2;
    path = argv[1];
    n_faults = argc > 2 ? strtoull(argv[2], NULL, 10) : n_faults;
    expected = expected_logits(path, tokens, N_TOKENS, piece_at, N_DECODE + 1, &n_vocab);
    uint64_t least = least_ram();
    CHECK(plans((uint64_t)1 << 30, true, &plan), "%s", pf_last_error());
    uint64_t most = least + plan.slot_bytes;
    AT_ONCE(test_matrix(least, most));
    AT_ONCE(test_faults(least, EIO));
    AT_ONCE(test_faults(least, EAGAIN));
    AT_ONCE(test_faults(least, 0));
    await_parts();
    test_walk(least);
    test_preload(most);
    test_refusals(least);
    free(expected);
    return check_status();
}

/* Same bits however a model without experts is cut: one text, evaluated as a prompt, in a piece of a few rows and token
 * by token, with the first layers on the simulated device and the others on the CPU, gives the logits that the CPU
 * alone gives; for every cut that some size of memory leads to, over saving and loading, going back and long contexts,
 * with layers that come from the drive, with allocations that fail, and with the device lost at every one of its
 * operations, also while a long prompt is to leave a checkpoint on its way. Layers of the CPU visit the device in
 * prompts, which fails in each of these ways, too.
 *
 * usage: test_cut MODEL.gguf [STRIDE]     STRIDE: each so manyth cut and fault is tried, default 1 */
#include <stdlib.h>
#include <string.h>

#include "backend/team.h"
#include "base/pf_mem.h"
#include "check.h"
#include "kernels/sim/sim.h"
#include "memory_file.h"
#include "moe/session/session.h"
#include "moe/place/among.h"
#include "moe/place/cut.h"

enum { N_PROMPT = 40, N_FEW = 5, N_DECODE = 6, N_PIECES = 2 + N_DECODE, N_TOKENS = N_PROMPT + N_FEW + N_DECODE,
       N_LONG = 100, N_CTX = 128, MAX_CUTS = 32 };

static const char *path;
static int32_t tokens[N_LONG];
static float  *expected;                     /* [N_LONG][n_vocab] after each token */
static size_t  n_vocab;
static int     step = 1;                     /* each so manyth cut and fault is tried */

static struct cut {
    struct pf_cut what;
    uint64_t      memory_bytes;              /* memory of the device that leads to this cut */
} cuts[MAX_CUTS];
static int n_cuts;

static size_t piece_at(int i)
{
    return i == 0 ? 0 : i == 1 ? N_PROMPT : (size_t)(N_PROMPT + N_FEW + i - 2);
}

static size_t piece_size(int i)
{
    return i == 0 ? N_PROMPT : i == 1 ? N_FEW : 1;
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

/* sim NULL: on the CPU alone; n_batch 0: nobody says how many rows sessions will have. */
static pf_model *open_for_rows(struct pf_sim *sim, int n_threads, bool streaming, int n_batch)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    struct pf_residency_setup setup = { .device = sim ? open_device : NULL, .device_ctx = sim };
    pf_model_opts_init(&o);
    o.device = -1;
    o.n_threads = n_threads;
    o.streaming = streaming;
    o.n_batch = n_batch;
    return pf_model_open_with(&m, path, &o, &setup) == PF_OK ? m : NULL;
}

static pf_model *open_model(struct pf_sim *sim, int n_threads, bool streaming)
{
    return open_for_rows(sim, n_threads, streaming, 0);
}

static pf_status open_session(pf_session **out, pf_model *m)
{
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = N_CTX;
    return pf_session_open(out, m, &so);
}

static bool same(const float *logits, size_t at, const char *name)
{
    bool ok = logits && memcmp(logits, expected + at * n_vocab, n_vocab * sizeof *logits) == 0;
    CHECK(ok, "%s: other bits after token %d", name, (int)at);
    return ok;
}

static void run(pf_session *s, int from, int to, const char *name)
{
    for (int i = from; s && i < to; i++) {
        if (pf_session_eval(s, tokens + piece_at(i), piece_size(i), 0) < 0) {
            CHECK(false, "%s, piece %d: %s", name, i, pf_last_error());
            return;
        }
        if (!same(pf_session_logits(s), piece_at(i) + piece_size(i) - 1, name))
            return;
    }
}

static void make_expected(void)
{
    pf_session *s = NULL;
    pf_model *m = open_model(NULL, 2, false);
    if (!m || open_session(&s, m) < 0) {
        CHECK(false, "%s", pf_last_error());
        exit(check_status());
    }
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    expected = malloc(N_LONG * n_vocab * sizeof *expected);
    for (int i = 0; i < N_LONG; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    CHECK(pf_session_eval(s, tokens, N_LONG, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < N_LONG; i++)
        memcpy(expected + i * n_vocab, pf_session_logits_at(s, i), n_vocab * sizeof *expected);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* ---- The cut ----------------------------------------------------------------------------------------------------- */

static void test_cut(void)
{
    static const uint64_t layers[] = { 100, 100, 50 };
    const struct pf_cut_sizes z = { .fixed = 10, .output = 150, .outside = 400, .layers = layers, .n_layers = 3 };
    static const struct { uint64_t room; int n_layers; bool output, whole; } rows[] = {
        { 9, 0, false, false }, { 109, 0, false, false }, { 110, 1, false, false }, { 159, 1, false, false },
        { 160, 0, true, false }, { 260, 1, true, false }, { 409, 2, true, false }, { 410, 3, true, false },
        { 659, 3, true, false }, { 660, 3, true, true }, { UINT64_MAX, 3, true, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pf_cut c = pf_cut_make(&z, rows[i].room);
        CHECK(c.n_layers == rows[i].n_layers && c.output == rows[i].output && c.whole == rows[i].whole,
              "room for %d bytes: %d layers, output %d, whole %d", (int)rows[i].room, c.n_layers, c.output, c.whole);
    }
}

/* Bytes that card k has of a cut. */
static uint64_t on_card(const struct pf_cut_sizes *z, const struct pf_cut *c, int k)
{
    int first, end;
    pf_cut_card(c, k, &first, &end);
    uint64_t bytes = first < end ? z->fixed : 0;
    for (int il = first; il < end; il++)
        bytes += z->layers[il];
    bytes += k == 0 && c->whole ? z->first : 0;
    return bytes + (k == c->n_more && c->output ? z->output : 0);
}

/* Nothing is larger than its card, every layer has one, and a whole model is on as few as it takes layers of each. */
static void test_deal(void)
{
    static const uint64_t layers[] = { 100000, 100000, 50000, 200000, 100000 };
    const struct pf_cut_sizes z = { .fixed = 10000, .output = 150000, .outside = 400000, .first = 250000,
                                    .layers = layers, .n_layers = 5 };
    int n_whole = 0, n_part = 0;
    for (uint64_t a = 0; a <= 900000; a += 50000)
        for (uint64_t b = 0; b <= 900000; b += 50000) {
            const uint64_t room[] = { a, b, 400000 };
            struct pf_cut c = pf_cut_deal(&z, room, 3);
            n_whole += c.whole;
            n_part += !c.whole && c.n_layers > 0;
            for (int k = 0; k <= c.n_more; k++) {
                int first, end;
                pf_cut_card(&c, k, &first, &end);
                CHECK(on_card(&z, &c, k) <= room[k], "%d and %d: card %d is too full", (int)a, (int)b, k);
                CHECK(!c.whole || first < end, "%d and %d: card %d has no layer", (int)a, (int)b, k);
            }
            CHECK(!c.whole || c.n_layers == z.n_layers, "%d and %d: %d layers", (int)a, (int)b, c.n_layers);
        }
    CHECK(n_whole > 0 && n_part > 0, "%d times everything, %d times a part", n_whole, n_part);
    struct pf_cut even = pf_cut_deal(&z, (uint64_t[]){ 900000, 900000 }, 2);
    CHECK(even.whole && even.n_more == 1 && even.first[1] == 3, "the second card begins at layer %d", even.first[1]);
}

/* Every expert has one card, every card one at least that it has room for, and cards with room enough have as many. */
static void test_deal_experts(void)
{
    enum { N = 10 };
    int n_dealt = 0;
    for (uint64_t a = 0; a <= N + 1; a++)
        for (uint64_t b = 0; b <= N + 1; b++)
            for (uint64_t c = 0; c <= N + 1; c++) {
                const uint64_t room[] = { a, b, c };
                int first[4] = { 0 };
                bool dealt = pf_among_deal(N, room, 3, first), can = a > 0 && b > 0 && c > 0 && a + b + c >= N;
                CHECK(dealt == can, "room for %d, %d and %d: %d", (int)a, (int)b, (int)c, dealt);
                first[3] = N;
                for (int k = 0; dealt && k < 3; k++) {
                    int n = first[k + 1] - first[k];
                    CHECK(n > 0 && (uint64_t)n <= room[k], "room for %d, %d and %d: card %d has %d", (int)a, (int)b,
                          (int)c, k, n);
                    CHECK(a < 4 || b < 4 || c < 4 || n == 3 || n == 4, "card %d of three has %d", k, n);
                }
                n_dealt += dealt;
            }
    CHECK(n_dealt > 0, "nothing was dealt");
}

/* Every unit has one card, and every card one at least, or it is said that one has none. */
static void test_bounds(void)
{
    const int first[] = { 0, PF_TEAM_SHARES / 8, PF_TEAM_SHARES / 2 };
    int bounds[4], n_divided = 0;
    for (int n = 0; n < 40; n++) {
        bool all = pf_team_bounds(first, 3, n, bounds), found = bounds[0] == 0 && bounds[3] == n;
        for (int k = 0; k < 3; k++)
            found &= all ? bounds[k] < bounds[k + 1] : bounds[k] <= bounds[k + 1];
        CHECK(found, "%d units: from %d, %d and %d on", n, bounds[0], bounds[1], bounds[2]);
        CHECK(all == (n >= 8), "%d units: all cards have some: %d", n, all);
        n_divided += all;
    }
    CHECK(n_divided > 0, "nothing was divided");
}

/* All that sizes of memory lead to, from nothing to the whole model. */
static void find_cuts(void)
{
    enum { STEP = 64 << 10 };
    int seen = 0;
    for (uint64_t memory = STEP; n_cuts < MAX_CUTS && (n_cuts == 0 || !cuts[n_cuts - 1].what.whole);
         memory += STEP + memory / 128) {
        struct pf_sim sim = { .memory_bytes = memory };
        pf_model *m = open_model(&sim, 1, false);
        CHECK(m, "%s", pf_last_error());
        if (!m)
            return;
        const struct pf_cut *c = &((struct pf_placement *)m->place)->cut;
        bool on_device = m->backend != m->cpu;
        if (on_device && (n_cuts == 0 || memcmp(c, &cuts[n_cuts - 1].what, sizeof *c) != 0)) {
            for (int n = 0; n_cuts > 0 && cuts[n_cuts - 1].what.visits && !c->visits && n < c->n_layers; n++)
                seen |= 1 << n;          /* the last layers take no more room than their visits */
            cuts[n_cuts++] = (struct cut){ *c, memory };
            seen |= 1 << c->n_layers;
        }
        if (on_device && c->whole)
            CHECK((seen | 1) == (2 << m->n_layer) - 1, "of %d layers only these numbers were seen on the device: %x",
                  m->n_layer, seen);
        pf_model_close(&m);
    }
    CHECK(n_cuts > 0 && cuts[n_cuts - 1].what.whole, "%d cuts and the model is not whole", n_cuts);
}

/* ---- Same bits --------------------------------------------------------------------------------------------------- */

/* Opens, runs everything, closes; checks the bits, and that nothing is left behind. */
static void check_run(const char *name, struct pf_sim *sim, int n_threads, bool streaming, struct pf_stats *stats)
{
    struct pf_mem_stats before, after;
    pf_session *s = NULL;
    pf_mem_stats_get(&before);
    memset(stats, 0, sizeof *stats);
    pf_model *m = open_model(sim, n_threads, streaming);
    CHECK(m, "%s: %s", name, pf_last_error());
    if (!m)
        return;
    if (open_session(&s, m) < 0)
        CHECK(open_session(&s, m) == PF_OK, "%s, again: %s", name, pf_last_error());
    run(s, 0, N_PIECES, name);
    pf_stats_get(m, stats);
    pf_session_close(&s);
    pf_model_close(&m);
    pf_mem_stats_get(&after);
    CHECK(before.n_live == after.n_live, "%s: memory is left behind", name);
}

static void test_every_cut(void)
{
    struct pf_stats stats;
    for (int i = 0; i < n_cuts; i += step)
        for (int n_threads = 1; n_threads < 4; n_threads += 2) {
            struct pf_sim sim = { .memory_bytes = cuts[i].memory_bytes };
            char name[96];
            snprintf(name, sizeof name, "%d layers%s, %d threads", cuts[i].what.n_layers,
                     cuts[i].what.output ? " and the output" : "", n_threads);
            check_run(name, &sim, n_threads, false, &stats);
            CHECK(!stats.device_lost, "%s: the device was lost", name);
            CHECK(sim.n_ops > 0, "%s: the device did nothing", name);
            CHECK((stats.stream_bytes > 0) == cuts[i].what.visits, "%s: %d bytes of layers that visit the device", name,
                  (int)stats.stream_bytes);
        }
}

/* A step that was only recorded left the rows as they were handed over. */
static void test_begun_again(void)
{
    uint64_t n_steps = 0;
    for (int i = 0; i < n_cuts; i += step) {
        struct pf_sim sim = { .memory_bytes = cuts[i].memory_bytes, .again_every = 3 };
        struct pf_stats stats;
        check_run("every third step is begun again", &sim, 1, false, &stats);
        n_steps += sim.n_steps;
    }
    CHECK(n_steps > 0, "no step was begun");
}

/* Layers that memory does not hold come from the drive. */
static void test_streaming(void)
{
    for (int i = 0; i < n_cuts; i += step) {
        struct pf_sim sim = { .memory_bytes = cuts[i].memory_bytes };
        struct pf_stats stats;
        check_run("layers from the drive", &sim, 2, true, &stats);
        CHECK(stats.slab_hits + stats.slab_misses > 0, "cut %d: no layer came through the store", i);
    }
}

static void test_all_logits_and_going_back(pf_session *s, const char *name)
{
    CHECK(pf_session_rewind(s, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(s, tokens, N_PROMPT, PF_LOGITS_ALL) == PF_OK, "%s: %s", name, pf_last_error());
    for (size_t i = 0; i < N_PROMPT && same(pf_session_logits_at(s, i), i, name); i++)
        ;
    run(s, 1, N_PIECES, name);
    for (int64_t back = N_TOKENS - 1; back > 0; back -= 23) {
        CHECK(pf_session_rewind(s, back) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_eval(s, tokens + back, (size_t)(N_TOKENS - back), 0) == PF_OK, "%s: %s", name,
              pf_last_error());
        same(pf_session_logits(s), N_TOKENS - 1, name);
    }
}

/* A sequence is copied into another session, if that one has the same layers on the device, and goes on there. */
static void test_copying(const pf_session *s, pf_model *m, const char *name)
{
    pf_session *other = NULL;
    CHECK(open_session(&other, m) == PF_OK, "%s: %s", name, pf_last_error());
    pf_status st = pf_session_copy(other, s, N_TOKENS - 5, NULL, NULL);
    CHECK(st == PF_OK || (st == PF_EINVAL && pf_session_pos(other) == 0), "%s: %s", name, pf_last_error());
    CHECK(pf_session_rewind(other, pf_session_computed(other)) == PF_OK, "%s", pf_last_error());
    size_t pos = (size_t)pf_session_pos(other);
    CHECK(pf_session_eval(other, tokens + pos, N_TOKENS - pos, 0) == PF_OK, "%s: %s", name, pf_last_error());
    same(pf_session_logits(other), N_TOKENS - 1, name);
    pf_session_close(&other);
}

/* A session saved under one cut is loaded under another and by the CPU alone, which saves the same bytes. */
static void test_saving(void)
{
    struct file first = { 0 };
    for (int i = -1; i < n_cuts; i += step) {
        struct pf_sim sim = { .memory_bytes = i < 0 ? 0 : cuts[i].memory_bytes };
        struct file f = { 0 };
        pf_session *s = NULL;
        pf_model *m = open_model(i < 0 ? NULL : &sim, 2, false);
        char name[64];
        snprintf(name, sizeof name, "cut %d, saved and loaded", i);
        CHECK(m && open_session(&s, m) == PF_OK, "%s", pf_last_error());
        run(s, 0, 4, name);
        CHECK(pf_session_save(s, write_file, &f) == PF_OK, "%s: %s", name, pf_last_error());
        if (i < 0)
            first = f;
        CHECK(f.n == first.n && memcmp(f.data, first.data, f.n) == 0, "%s: other bytes", name);
        run(s, 4, N_PIECES, name);
        first.at = 0;
        CHECK(pf_session_load(s, read_file, &first) == PF_OK, "%s: %s", name, pf_last_error());
        run(s, 4, N_PIECES, name);
        test_all_logits_and_going_back(s, name);
        test_copying(s, m, name);
        pf_session_close(&s);
        pf_model_close(&m);
        if (i >= 0)
            free(f.data);
    }
    free(first.data);
}

/* A context for which the device has no room: its keys and values lie in main memory, or it has fewer layers. Layers
 * visit it all the same, if it has room for one's keys and values. */
static void test_long_context(void)
{
    static const int64_t n_ctx[] = { 4096, 32768 };
    int n_other = 0;
    for (int i = 0; i < 2 * n_cuts; i += step) {
        const struct cut *cut = &cuts[i / 2];
        struct pf_sim sim = { .memory_bytes = cut->memory_bytes };
        struct pf_session_opts so;
        struct pf_stats stats;
        pf_session *s = NULL;
        pf_model *m = open_model(&sim, 2, false);
        pf_session_opts_init(&so);
        so.n_ctx = n_ctx[i % 2];
        CHECK(m && pf_session_open(&s, m, &so) == PF_OK, "a long context in cut %d: %s", i / 2, pf_last_error());
        n_other += s && (s->units[0].end < cut->what.n_layers ||
                           pf_kv_far_bytes(m, &s->opts, 0, m->n_layer) > 0);
        run(s, 0, N_PIECES, "a long context");
        pf_stats_get(m, &stats);
        CHECK((stats.stream_bytes > 0) == cut->what.visits, "a long context in cut %d: %d bytes of layers that visit",
              i / 2, (int)stats.stream_bytes);
        pf_session_close(&s);
        pf_model_close(&m);
    }
    CHECK(n_other > 0, "no context was too long for all the layers that a cut has");
}

/* A session with steps of 512 or of 2,048 rows. Where nobody has said so before, one of 2,048 rows has fewer if the
 * device has no room for them beside as many layers; where it was said, the device keeps room. */
static void check_rows(const struct cut *cut, int said, int rows, int *n_fewer, int *n_said)
{
    struct pf_sim sim = { .memory_bytes = cut->memory_bytes * (said ? 4 : 1) };
    struct pf_session_opts so;
    struct pf_stats stats;
    pf_session *s = NULL;
    pf_model *m = open_for_rows(&sim, 2, false, said);
    char name[96];
    snprintf(name, sizeof name, "%d rows a step, %d said, in %d bytes", rows, said, (int)sim.memory_bytes);
    pf_session_opts_init(&so);
    so.n_ctx = 2048;
    so.n_batch = rows;
    CHECK(m && pf_session_open(&s, m, &so) == PF_OK, "%s: %s", name, pf_last_error());
    if (s) {
        bool on_device = m->backend != m->cpu;
        int n_layers = ((struct pf_placement *)m->place)->cut.n_layers;
        CHECK(on_device || said, "%s: the device is not used", name);
        CHECK(s->units[0].end == n_layers || !on_device, "%s: %d of %d layers", name, s->units[0].end, n_layers);
        CHECK(s->opts.n_batch == rows || !said, "%s: only %d rows", name, s->opts.n_batch);
        *n_fewer += s->opts.n_batch < rows;
        *n_said += said == rows && on_device;
        run(s, 0, N_PIECES, name);
        pf_stats_get(m, &stats);
        CHECK(!stats.device_lost, "%s: the device was lost", name);
    }
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_many_rows(void)
{
    int n_fewer = 0, n_said = 0;
    for (int i = n_cuts - 1; i >= 0; i -= step)
        for (int said = 0; said <= 2048; said += 2048)
            for (int rows = 512; rows <= 2048; rows *= 4)
                check_rows(&cuts[i], said, rows, &n_fewer, &n_said);
    CHECK(n_fewer > 0 && n_said > 0, "%d sessions had fewer rows, %d as many as was said", n_fewer, n_said);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void test_refusals(int cut)
{
    struct pf_sim sim = { .memory_bytes = cuts[cut].memory_bytes };
    struct pf_stats stats;
    char name[64];
    check_run("counting", &sim, 2, false, &stats);
    uint64_t n_allocs = sim.n_allocs;
    for (uint64_t i = 1; i <= n_allocs; i += (uint64_t)step) {
        sim = (struct pf_sim){ .memory_bytes = cuts[cut].memory_bytes, .fail_alloc = i };
        snprintf(name, sizeof name, "cut %d, allocation %d fails", cut, (int)i);
        check_run(name, &sim, 2, false, &stats);
    }
}

/* What was learned decides; what nobody knows is tried; and what was too slow is tried again some day. */
static void test_prices(int cut)
{
    enum { LAYERS = 10, ROW_NS = 1000 };
    struct pf_sim sim = { .memory_bytes = cuts[cut].memory_bytes };
    pf_model *m = open_model(&sim, 1, false);
    struct pf_visits *v = m ? ((struct pf_placement *)m->place)->visits : NULL;
    CHECK((v != NULL) == cuts[cut].what.visits, "%s", pf_last_error());
    if (v) {
        CHECK(!pf_visits_pay(v, 31, LAYERS) && pf_visits_pay(v, 32, LAYERS), "nothing is known");
        pf_visits_learn(v, 512, LAYERS, 512 * LAYERS * ROW_NS);
        CHECK(!pf_visits_pay(v, 64, LAYERS) && pf_visits_pay(v, 128, LAYERS), "the CPU is not known");
        pf_visits_learn_cpu(v, 16, LAYERS, 1);
        pf_visits_learn_cpu(v, 64, LAYERS, 64 * LAYERS * 2 * ROW_NS);
        CHECK(pf_visits_pay(v, 64, LAYERS), "the card takes half of the CPU's time");
        pf_visits_learn_cpu(v, 64, LAYERS, 64 * LAYERS * ROW_NS);
        int n_refused = 0;
        while (n_refused < 100 && !pf_visits_pay(v, 512, LAYERS))
            n_refused++;
        CHECK(n_refused > 0 && n_refused < 100, "the card takes as long as the CPU: refused %d times", n_refused);
        pf_visits_end(v);
        CHECK(!pf_visits_pay(v, 512, LAYERS), "it was the end");
    }
    pf_model_close(&m);
}

/* Copies for visits that cannot be begun, or fail under way: the CPU computes what is left of the step. */
static void test_copies(int cut)
{
    struct pf_sim sim = { .memory_bytes = cuts[cut].memory_bytes };
    struct pf_stats stats;
    check_run("counting", &sim, 2, false, &stats);
    for (uint64_t i = 1, n = sim.n_fetches; i <= n; i++)
        for (int is_broken = 0; is_broken < 2; is_broken++) {
            char name[64];
            sim = (struct pf_sim){ .memory_bytes = cuts[cut].memory_bytes, .refuse_fetch = is_broken ? 0 : i,
                                   .break_every = is_broken ? i : 0 };
            snprintf(name, sizeof name, "cut %d, copy %d %s", cut, (int)i, is_broken ? "breaks" : "is refused");
            check_run(name, &sim, 2, false, &stats);
            CHECK(!stats.device_lost && sim.n_fetches <= i + 1, "%s: %d copies, the device lost: %d", name,
                  (int)sim.n_fetches, stats.device_lost);
        }
}

static void test_loss(int cut)
{
    struct pf_sim sim = { .memory_bytes = cuts[cut].memory_bytes };
    struct pf_stats stats;
    check_run("counting", &sim, 2, false, &stats);
    uint64_t n_ops = sim.n_ops, every = 1 + n_ops * (uint64_t)step / 25, n_lost = 0;
    for (uint64_t i = 1; i <= n_ops; i += every) {
        char name[64];
        sim = (struct pf_sim){ .memory_bytes = cuts[cut].memory_bytes, .lose_at = i };
        snprintf(name, sizeof name, "cut %d, lost at operation %d", cut, (int)i);
        check_run(name, &sim, 2, false, &stats);
        n_lost += stats.device_lost;
    }
    CHECK(n_lost == (n_ops + every - 1) / every, "the device was lost %d times", (int)n_lost);
}

/* A prompt of three batches, then the same with another end: a checkpoint lies 32 tokens before the end, in both units'
 * memory, or in the CPU's if the device is lost before or behind it. */
static void run_long(struct pf_sim *sim, const char *name)
{
    struct pf_session_opts so;
    pf_session *s = NULL;
    size_t reused = 0;
    pf_model *m = open_model(sim, 2, false);
    pf_session_opts_init(&so);
    so.n_ctx = N_CTX;
    so.n_batch = 40;
    CHECK(m && pf_session_open(&s, m, &so) == PF_OK, "%s: %s", name, pf_last_error());
    CHECK(pf_session_eval(s, tokens, N_LONG, 0) == PF_OK, "%s: %s", name, pf_last_error());
    same(pf_session_logits(s), N_LONG - 1, name);
    CHECK(pf_session_rewind(s, N_LONG - 2) == PF_OK, "%s: %s", name, pf_last_error());
    CHECK(pf_session_sync(s, tokens, N_LONG - 1, &reused) == PF_OK, "%s: %s", name, pf_last_error());
    CHECK(reused + 32 >= N_LONG, "%s: %zu of %d tokens are taken up again", name, reused, N_LONG);
    same(pf_session_logits(s), N_LONG - 2, name);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_long_prompt(int cut)
{
    struct pf_sim sim = { .memory_bytes = cuts[cut].memory_bytes };
    run_long(&sim, "a long prompt");
    uint64_t n_ops = sim.n_ops, every = 1 + n_ops * (uint64_t)step / 25;
    for (uint64_t i = 1; i <= n_ops; i += every) {
        char name[64];
        sim = (struct pf_sim){ .memory_bytes = cuts[cut].memory_bytes, .lose_at = i };
        snprintf(name, sizeof name, "a long prompt, lost at operation %d", (int)i);
        run_long(&sim, name);
    }
}

/* Two sessions: one notices, the other follows it to the CPU, or is closed as it is. */
static void test_loss_of_two(int cut)
{
    for (int go_on = 0; go_on < 2; go_on++) {
        struct pf_sim sim = { .memory_bytes = cuts[cut].memory_bytes + (8u << 20) };
        struct pf_mem_stats before, after;
        struct pf_stats stats;
        pf_session *a = NULL, *b = NULL;
        pf_mem_stats_get(&before);
        pf_model *m = open_model(&sim, 2, false);
        CHECK(m && open_session(&a, m) == PF_OK && open_session(&b, m) == PF_OK, "%s", pf_last_error());
        run(a, 0, 3, "the first of two");
        run(b, 0, 2, "the second of two");
        sim.lose_at = sim.n_ops + 5;
        run(a, 3, N_PIECES, "the first of two, its device lost");
        pf_stats_get(m, &stats);
        CHECK(stats.device_lost && stats.weight_bytes_read < UINT64_MAX / 2, "the device was not lost");
        if (go_on)
            run(b, 2, N_PIECES, "the second of two, its device lost");
        pf_session_close(&a);
        pf_session_close(&b);
        pf_model_close(&m);
        pf_mem_stats_get(&after);
        CHECK(before.n_live == after.n_live, "memory of two sessions is left behind");
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3)
        return 2;
    path = argv[1];
    step = argc > 2 ? atoi(argv[2]) : 1;
    if (step < 1)
        return 2;
    make_expected();
    test_cut();
    test_deal();
    test_deal_experts();
    test_bounds();
    find_cuts();
    for (int i = 0; i < n_cuts; i++)
        printf("%d layers%s in %llu bytes\n", cuts[i].what.n_layers, cuts[i].what.output ? " and the output" : "",
               (unsigned long long)cuts[i].memory_bytes);
    test_every_cut();
    test_begun_again();
    test_streaming();
    test_saving();
    test_long_context();
    test_many_rows();
    test_refusals(n_cuts / 2);
    test_prices(n_cuts / 2);
    test_copies(n_cuts / 2);
    test_loss(n_cuts / 2);
    test_loss_of_two(n_cuts / 2);
    test_long_prompt(n_cuts / 2);
    test_long_prompt(n_cuts - 1);
    test_loss(0);
    free(expected);
    return check_status();
}

/* Keys and values for which the device has no room lie in main memory, and no bit knows: one text, as a prompt in
 * pieces, a few rows at a time and token by token, over going back, several sequences in a step, and saving and loading
 * between sessions that have other positions far. The simulated device is lost at its operations, and its allocations
 * and copies fail; it also has so little memory that the session has to find out itself.
 *
 * usage: test_far MODEL.gguf device|shared|cuda|cuda-shared [brief|batch]
 *        device, shared: simulated; cuda: with the GPU, which is an emulated one where this file is linked with
 *        it; shared: the CPU has experts, or in a model without experts layers, which visit the device.
 *        batch: brief, but for several sequences. 77: there is no GPU */
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "kernels/sim/sim.h"
#include "memory_file.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"

enum { CHUNK = 256, N_PROMPT = 3 * CHUNK + 40, N_FEW = 6, N_ONE = 3, N_TOKENS = N_PROMPT + N_FEW + N_ONE, N_BATCH = 150,
       N_CTX = 4 * CHUNK + 100, AGAIN = CHUNK + 100 /* where the session goes back to */ };

static const char *path, *how;
static bool    brief;
static int32_t tokens[N_TOKENS];
static float  *expected;                     /* [N_TOKENS][n_vocab] after each token, where at_end says so */
static size_t  n_vocab;

static bool is(const char *name)
{
    return strcmp(how, name) == 0;
}

static bool simulates(void)
{
    return is("device") || is("shared");
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

/* sim NULL: on the CPU alone, or with the GPU that is meant. */
static pf_model *open_model(struct pf_sim *sim, bool on_cpu)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    struct pf_residency_setup setup = { .device = sim ? open_device : NULL, .device_ctx = sim };
    pf_model_opts_init(&o);
    o.device = !on_cpu && !simulates() ? 0 : -1;
    o.n_threads = 2;
    o.streaming = !on_cpu && (is("shared") || is("cuda-shared"));
    pf_status st = sim ? pf_model_open_with(&m, path, &o, &setup) : pf_model_open(&m, path, &o);
    CHECK(st == PF_OK, "%s", pf_last_error());
    if (st < 0)
        exit(check_status());
    return m;
}

static pf_session *open_session(pf_model *m, int64_t n_near)
{
    pf_session *s = NULL;
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = N_CTX;
    so.n_batch = N_BATCH;
    so.n_near = n_near;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s", pf_last_error());
    if (!s)
        exit(check_status());
    return s;
}

static bool has_far(const pf_session *s)
{
    bool far = false;
    for (int il = 0; il < s->m->n_layer; il++)
        far |= s->kv[il].far != NULL;
    return far;
}

static bool shares_experts(const pf_model *m)
{
    return m->n_expert > 0 && strstr(how, "shared");
}

static void same(const pf_session *s, const char *name)
{
    size_t last = (size_t)pf_session_pos(s) - 1;
    const float *logits = pf_session_logits(s);
    CHECK(logits && memcmp(logits, expected + last * n_vocab, n_vocab * sizeof *logits) == 0,
          "%s: other bits after token %d", name, (int)last);
}

static void eval(pf_session *s, size_t n, const char *name)
{
    size_t from = (size_t)pf_session_pos(s);
    CHECK(pf_session_eval(s, tokens + from, n, 0) == PF_OK, "%s, from token %d: %s", name, (int)from, pf_last_error());
    if (pf_session_logits(s))
        same(s, name);
}

static void rest(pf_session *s, const char *name)
{
    size_t pos = (size_t)pf_session_pos(s);
    if (pos < N_PROMPT)
        eval(s, N_PROMPT - pos, name);
    eval(s, N_FEW, name);
    for (int i = 0; i < N_ONE; i++)
        eval(s, 1, name);
}

static void go_back(pf_session *s, int64_t pos, const char *name)
{
    CHECK(pf_session_rewind(s, pos) == PF_OK, "%s: %s", name, pf_last_error());
}

static void make_expected(void)
{
    pf_model *m = open_model(NULL, true);
    pf_session *s = open_session(m, 0);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    expected = malloc(N_TOKENS * n_vocab * sizeof *expected);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    CHECK(pf_session_eval(s, tokens, N_TOKENS, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < N_TOKENS; i++)
        memcpy(expected + i * n_vocab, pf_session_logits_at(s, i), n_vocab * sizeof *expected);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* ---- One sequence ------------------------------------------------------------------------------------------------ */

static void test_near(pf_model *m, int64_t n_near)
{
    char name[64];
    snprintf(name, sizeof name, "%d near", (int)n_near);
    pf_session *s = open_session(m, n_near);
    CHECK(has_far(s) == (m->backend != m->cpu && n_near <= N_CTX / CHUNK * CHUNK), "%s", name);
    rest(s, name);
    go_back(s, AGAIN, name);
    eval(s, 2, name);
    go_back(s, CHUNK - 3, name);
    for (int i = 0; i < 5; i++)
        eval(s, 1, name);
    pf_session_close(&s);
}

static void test_one(void)
{
    /* With 2 * CHUNK near and more there is a stage. */
    static const int64_t near[] = { 2 * CHUNK, CHUNK, 3 * CHUNK + 5, 1, N_CTX };
    struct pf_stats stats;
    struct pf_sim sim = { .memory_bytes = 0 };
    pf_model *m = open_model(simulates() ? &sim : NULL, false);
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        if (i == 0 || (!brief && (simulates() || i % 3 == 0)))
            test_near(m, near[i]);
    pf_stats_get(m, &stats);
    CHECK(m->n_expert > 0 || !strstr(how, "shared") || stats.stream_bytes > 0,
          "no layer of the CPU has visited the device");
    CHECK(simulates() || (stats.far_cpu_bytes > 0) == shares_experts(m), "the CPU has attended to %d far bytes",
          (int)stats.far_cpu_bytes);
    pf_model_close(&m);
}

/* Bytes that a step of a token at position pos >= 1 is said to read from afar. The token before it is not counted: a
 * recurrent model evaluates with it all rows since a checkpoint. */
static uint64_t far_bytes_at(pf_session *s, int64_t pos)
{
    struct pf_stats stats;
    go_back(s, pos - 1, "to be counted");
    eval(s, 1, "to be counted");
    pf_stats_reset(s->m);
    eval(s, 1, "to be counted");
    pf_stats_get(s->m, &stats);
    return stats.far_bytes;
}

static void test_counted(void)
{
    struct pf_sim sim = { .memory_bytes = 0 };
    pf_model *m = open_model(simulates() ? &sim : NULL, false);
    pf_session *s = open_session(m, CHUNK);
    eval(s, N_PROMPT, "to be counted");
    uint64_t whole = 0, one = far_bytes_at(s, 2 * CHUNK - 1), two = far_bytes_at(s, 2 * CHUNK);
    for (int il = 0; il < m->n_layer; il++)
        whole += s->kv[il].k_far + s->kv[il].v_far;
    CHECK(far_bytes_at(s, CHUNK - 1) == 0 && one == whole / (N_CTX / CHUNK) && two == 2 * one,
          "%d bytes of one chunk, %d of two; the context has %d", (int)one, (int)two, (int)whole);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Steps that a device may record and replay, over the end of a chunk, and again after going back. */
static void test_repeated(void)
{
    enum { ROWS = 16 };
    struct pf_sim sim = { .memory_bytes = 0 };
    pf_model *m = open_model(simulates() ? &sim : NULL, false);
    pf_session *s = open_session(m, 2 * CHUNK);
    for (int from = 3 * CHUNK - 70; from > 3 * CHUNK - (brief ? 75 : 80); from -= 5) {
        if (pf_session_pos(s) > from)
            go_back(s, from, "repeated");
        eval(s, (size_t)(from - pf_session_pos(s)) + 1, "repeated");
        for (int pos = from + 1; pos + ROWS <= N_TOKENS && pf_session_pos(s) == pos; pos += ROWS)
            eval(s, ROWS, "repeated");
    }
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Steps of few rows whose far chunks CPU and device share; how they do changes with what they are said to take. */
static void share_out(struct pf_sim *sim, const char *name)
{
    static const size_t steps[] = { 1, 1, 1, 2, 4 };
    struct pf_stats stats;
    pf_model *m = open_model(sim, false);
    pf_session *s = open_session(m, 1);
    eval(s, N_PROMPT, name);
    pf_stats_reset(m);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        eval(s, steps[i], name);
    go_back(s, N_PROMPT, name);
    while (pf_session_pos(s) < N_TOKENS)
        eval(s, 1, name);
    pf_stats_get(m, &stats);
    bool shares = shares_experts(m) && (!sim || sim->attend_floats >= 1 << 20);
    CHECK((stats.far_cpu_bytes > 0) == shares && stats.far_cpu_bytes < stats.far_bytes && m->backend != m->cpu,
          "%s: the CPU has attended to %d of %d bytes", name, (int)stats.far_cpu_bytes, (int)stats.far_bytes);
    CHECK(!sim || (sim->n_attended > 0) == shares, "%s: the device has had %d layers", name, (int)sim->n_attended);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_shared_out(void)
{
    struct pf_sim sims[] = {
        { .attend_floats = 1 << 20, .attended = { 4000, 4000 } },
        { .attend_floats = 1 << 20, .attended = { 4, 4000000 } },        /* the CPU does most */
        { .attend_floats = 1 << 20, .attended = { 4000000, 4 } },        /* the device does most */
        { .attend_floats = 1 << 20, .attended = { 0, 0 } },              /* nobody knows */
        { .attend_floats = 8 },                                       /* no room for a chunk */
    };
    char name[64];
    if (!simulates())
        share_out(NULL, "shared out");
    for (int i = 0; simulates() && i < (int)(sizeof sims / sizeof *sims); i++) {
        snprintf(name, sizeof name, "shared out, case %d", i);
        share_out(&sims[i], name);
    }
}

/* Steps that end with a chunk: no numbers of earlier ones come to their last place. */
static void test_aligned(void)
{
    static const int ends[] = { 100, 256, 300, 512, 640, 768, 790 };
    struct pf_sim sim = { .memory_bytes = 0 };
    pf_model *m = open_model(simulates() ? &sim : NULL, false);
    pf_session *s = open_session(m, 2 * CHUNK);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        eval(s, (size_t)(ends[i] - pf_session_pos(s)), "aligned");
    go_back(s, 600, "aligned");
    eval(s, 168, "aligned");
    eval(s, 5, "aligned");
    pf_session_close(&s);
    pf_model_close(&m);
}

/* ---- Saved and loaded -------------------------------------------------------------------------------------------- */

static void load(pf_session *s, struct file *f, const char *name)
{
    f->at = 0;
    CHECK(pf_session_load(s, read_file, f) == PF_OK && pf_session_computed(s) == N_PROMPT, "%s: %s", name,
          pf_last_error());
    rest(s, name);
    pf_session_close(&s);
}

static void test_saved(void)
{
    struct pf_sim sim = { .memory_bytes = 0 };
    struct file files[2] = { { 0 }, { 0 } };
    pf_model *m = open_model(simulates() ? &sim : NULL, false), *cpu = open_model(NULL, true);
    for (int i = 0; i < 2; i++) {
        pf_session *s = open_session(m, i ? N_CTX : CHUNK);
        eval(s, N_PROMPT, "to be saved");
        CHECK(pf_session_save(s, write_file, &files[i]) == PF_OK, "%s", pf_last_error());
        pf_session_close(&s);
    }
    CHECK(files[0].n == files[1].n && memcmp(files[0].data, files[1].data, files[0].n) == 0,
          "what is saved depends on where it was");
    load(open_session(m, 2 * CHUNK), &files[1], "near to far");
    load(open_session(m, N_CTX), &files[0], "far to near");
    load(open_session(cpu, 0), &files[0], "far to the CPU");
    free(files[0].data);
    free(files[1].data);
    pf_model_close(&m);
    pf_model_close(&cpu);
}

/* A copied sequence goes on with the same bits, whatever of its positions is near in either session. */
static void test_copied(void)
{
    static const int64_t near[] = { CHUNK, N_CTX, 2 * CHUNK };
    enum { N_NEAR = sizeof near / sizeof *near };
    struct pf_sim sim = { .memory_bytes = 0 };
    pf_model *m = open_model(simulates() ? &sim : NULL, false);
    for (int i = 0; i < N_NEAR * N_NEAR; i++) {
        char name[64];
        snprintf(name, sizeof name, "copied from %d near to %d", (int)near[i / N_NEAR], (int)near[i % N_NEAR]);
        pf_session *a = open_session(m, near[i / N_NEAR]), *b = open_session(m, near[i % N_NEAR]);
        eval(a, N_PROMPT, name);
        CHECK(pf_session_copy(b, a, N_PROMPT, NULL, NULL) == PF_OK && pf_session_computed(b) == N_PROMPT, "%s: %s",
              name, pf_last_error());
        rest(b, name);
        rest(a, name);
        pf_session_close(&a);
        pf_session_close(&b);
    }
    pf_model_close(&m);
}

/* ---- Several sequences ------------------------------------------------------------------------------------------- */

/* A step in which sequence i has rows[i] rows. */
static void step_together(struct pf_batch_part *parts, int n, const size_t *rows, const char *name)
{
    for (int i = 0; i < n; i++) {
        parts[i].tok = tokens + pf_session_pos(parts[i].session);
        parts[i].n = rows[i];
    }
    CHECK(pf_batch_eval(parts, (size_t)n) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < n; i++)
        same(parts[i].session, name);
}

/* Some are all near, some have far chunks for the CPU, one gets its first on the way. */
static void test_batch(void)
{
    enum { N = 4, STEPS = 14 };
    static const int64_t near[N] = { CHUNK, N_CTX, 2 * CHUNK, CHUNK };
    static const size_t before[N] = { 2 * CHUNK + 7, 3 * CHUNK, 3 * CHUNK + 1, 2 * CHUNK - 18 };
    static const size_t more[STEPS][N] = {
        { 20, 12, 2, 12 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 2, 1, 3, 1 }, { 2, 1, 3, 1 },
        { 2, 1, 3, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 },
        { 8, 1, 4, 1 }, { 1, 1, 1, 1 }
    };
    struct pf_sim sim = { .memory_bytes = 0, .attend_floats = 1 << 20, .attended = { 4000, 4000 } };
    struct pf_batch_part parts[N];
    struct pf_stats stats;
    pf_model *m = open_model(simulates() ? &sim : NULL, false);
    for (int i = 0; i < N; i++) {
        parts[i] = (struct pf_batch_part){ .session = open_session(m, near[i]) };
        eval(parts[i].session, before[i], "before others come");
    }
    pf_stats_reset(m);
    for (size_t k = 0; k < STEPS; k++)
        step_together(parts, N, more[k], "together");
    pf_stats_get(m, &stats);
    CHECK((stats.far_cpu_bytes > 0) == shares_experts(m) && stats.far_cpu_bytes < stats.far_bytes,
          "together the CPU has attended to %d of %d bytes", (int)stats.far_cpu_bytes, (int)stats.far_bytes);
    for (int i = 0; i < N; i++)
        pf_session_close(&parts[i].session);
    pf_model_close(&m);
}

/* ---- Little memory, and failures of the simulated device --------------------------------------------------------- */

/* All that a session like the one that is planned for and the weights take of the device's memory; *states: of it,
 * recurrent states. */
static uint64_t usual_bytes(uint64_t *states)
{
    struct pf_sim sim = { .memory_bytes = 0 };
    struct pf_session_opts so;
    pf_session *s = NULL;
    pf_model *m = open_model(&sim, false);
    pf_session_opts_init(&so);
    so.n_batch = PF_DEFAULT_BATCH;
    CHECK(pf_session_open(&s, m, &so) == PF_OK && m->backend != m->cpu, "%s", pf_last_error());
    uint64_t used = ((uint64_t)1 << 30) - m->backend->ops->room(m->backend);
    *states = pf_states_bytes(m, 0, m->n_layer, &s->opts);
    pf_session_close(&s);
    pf_model_close(&m);
    return used;
}

/* A context that is much too long for what is left beside the weights. */
static void test_little_memory(void)
{
    uint64_t states;
    struct pf_sim sim = { .memory_bytes = usual_bytes(&states) + PF_NEAR_SPARE_BYTES };
    struct pf_session_opts so;
    pf_session *s = NULL;
    pf_model *m = open_model(&sim, false);
    pf_session_opts_init(&so);
    so.n_ctx = 512 * CHUNK;
    so.n_batch = N_BATCH;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s", pf_last_error());
    CHECK(m->backend != m->cpu && s && has_far(s), "on %s", m->backend->ops->name);
    rest(s, "little memory");
    pf_session_close(&s);
    pf_model_close(&m);
}

static int64_t near_positions(const pf_session *s)
{
    return s->opts.n_near > 0 && s->opts.n_near < s->opts.n_ctx ? s->opts.n_near : s->opts.n_ctx;
}

/* Sessions that together are too long for the device open beside each other, whether the first would have room for all
 * of its own or not, and one step has the bits of each. fair: the first one, which may stay alone, is not
 * the one that has little near. */
static void with_many(uint64_t memory_bytes, int n_chunks, int n_batch, int n_steps, bool fair)
{
    enum { N = 4 };
    struct pf_sim sim = { .memory_bytes = memory_bytes, .attend_floats = 1 << 20 };
    struct pf_batch_part parts[N] = { { 0 } };
    struct pf_session_opts so;
    pf_model *m = open_model(&sim, false);
    pf_session_opts_init(&so);
    so.n_ctx = n_chunks * CHUNK;
    so.n_batch = n_batch;
    so.n_sessions = N;
    for (int i = 0; i < N; i++) {
        CHECK(pf_session_open(&parts[i].session, m, &so) == PF_OK, "session %d of %d chunks in %llu bytes: %s", i,
              n_chunks, (unsigned long long)memory_bytes, pf_last_error());
        if (!parts[i].session)
            exit(check_status());
        CHECK(!fair || near_positions(parts[i].session) <= 4 * near_positions(parts[0].session),
              "in %llu bytes session %d has %d positions near, the first %d", (unsigned long long)memory_bytes, i,
              (int)near_positions(parts[i].session), (int)near_positions(parts[0].session));
        if (n_steps > 0)
            eval(parts[i].session, (size_t)(2 * CHUNK + 100 * i), "of many");
    }
    CHECK(m->backend != m->cpu, "on %s", m->backend->ops->name);
    for (int k = 0; k < n_steps; k++)
        step_together(parts, N, (const size_t[N]){ 1, 1, 1, 1 }, "of many");
    for (int i = 0; i < N; i++)
        pf_session_close(&parts[i].session);
    pf_model_close(&m);
}

static void test_many_in_little_memory(void)
{
    uint64_t states, least = usual_bytes(&states) + PF_NEAR_SPARE_BYTES + 8 * states;
    with_many(least, 512, N_BATCH, 3, false);
    for (int i = 6; i < 60; i++)         /* sessions share the buffers of so many rows; windows' rings are their own */
        with_many(least + ((uint64_t)i << 21), 64, 2048, 0, i >= 14);
    for (int i = 40; i < 100; i++)       /* the last ones, which have little near, want a larger stage than the first */
        with_many(least + ((uint64_t)i << 16), 13, 1024, 0, false);
}

static void run_with(struct pf_sim *sim, const char *name)
{
    sim->attend_floats = 1 << 20;
    pf_model *m = open_model(sim, false);
    pf_session *s = open_session(m, 2 * CHUNK);
    rest(s, name);
    go_back(s, AGAIN, name);
    eval(s, 40, name);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_failures(void)
{
    enum { RUNS = 12 };
    struct pf_sim sim = { .memory_bytes = 0 };
    char name[64];
    run_with(&sim, "counting");
    uint64_t n_ops = sim.n_ops, n_allocs = sim.n_allocs, n_fetches = sim.n_fetches;
    for (uint64_t i = 1; i <= n_ops; i += n_ops / RUNS) {
        sim = (struct pf_sim){ .lose_at = i };
        snprintf(name, sizeof name, "lost at operation %d", (int)i);
        run_with(&sim, name);
    }
    for (uint64_t i = 1; i <= 3; i++) {
        sim = (struct pf_sim){ .break_every = i };
        snprintf(name, sizeof name, "every copy %d breaks", (int)i);
        run_with(&sim, name);
    }
    for (uint64_t i = 1; i <= n_fetches; i += n_fetches / RUNS + 1) {
        sim = (struct pf_sim){ .refuse_fetch = i };
        snprintf(name, sizeof name, "copy %d cannot begin", (int)i);
        run_with(&sim, name);
    }
    for (uint64_t i = n_allocs > RUNS ? n_allocs - RUNS : 1; i <= n_allocs; i++) {
        sim = (struct pf_sim){ .fail_alloc = i };
        snprintf(name, sizeof name, "allocation %d fails", (int)i);
        run_with(&sim, name);
    }
}

int main(int argc, char **argv)
{
    struct pf_device gpu[2];
    if (argc < 3) {
        fprintf(stderr, "usage: test_far MODEL.gguf device|shared|cuda|cuda-shared [brief|batch]\n");
        return 2;
    }
    path = argv[1];
    how = argv[2];
    brief = argc > 3;
    if (!simulates() && pf_devices(gpu, 2) < 2)
        return 77;
    make_expected();
    test_one();
    if (!brief || is("cuda"))
        test_repeated();
    if (!brief) {
        test_shared_out();
        test_aligned();
        test_counted();
        test_saved();
        test_copied();
    }
    if (!brief || strcmp(argv[3], "batch") == 0)
        test_batch();
    if (simulates() && !brief) {
        test_little_memory();
        test_many_in_little_memory();
        test_failures();
    }
    free(expected);
    return check_status();
}

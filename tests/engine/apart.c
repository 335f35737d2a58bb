/* A part of a batch that fails, fails alone: the other parts have the bits that they have alone, and its own sequence
 * is as before and goes on. Parts fail by an embedding that is not a number, by being cancelled, and because the N-th
 * allocation, the N-th read of the drive or the N-th operation of a simulated device fails.
 *
 * usage: apart MODEL.gguf DIRECTORY cpu|streamed|shared [EVERY]      every EVERY'th N */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "check.h"
#include "gguf/gguf.h"
#include "kernels/sim/sim.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"
#include "tiers/io.h"

enum { N = 4, LENGTH = 24, PROMPT = 14, BAD = 0 };           /* BAD: the token whose embedding is not a number */

static char     path[512];
static uint64_t every = 1;
static size_t   n_vocab;
static int32_t  tokens[N][LENGTH];
static float   *want[N];                 /* [LENGTH][n_vocab] */
static enum pf_draft drafts = PF_DRAFT_OFF;

/* ---- Models and sessions ----------------------------------------------------------------------------------------- */

static void copy_model(const char *from)
{
    pf_gguf *g = NULL;
    char buffer[65536], nan[64];
    FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
    CHECK(in && out && pf_gguf_open(&g, from, 0) == PF_OK, "%s", from);
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, in)) > 0;)
        fwrite(buffer, 1, got, out);
    memset(nan, 0xff, sizeof nan);           /* "not a number" as a scale and as a float of any length */
    fseek(out, (long)pf_gguf_tensor(g, "token_embd.weight")->offset, SEEK_SET);
    fwrite(nan, 1, sizeof nan, out);
    pf_gguf_close(&g);
    fclose(in);
    fclose(out);
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

/* With the drive of io, or the device of sim, or neither. */
static pf_model *open_model(struct pf_io_sim *io, struct pf_sim *sim)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    struct pf_residency_setup setup = { .io = io ? pf_io_sim_open : NULL, .io_ctx = io, .policy = pf_evict_at(0),
                                        .stall_ns = 20000000000u,
                                        .device = sim ? open_device : NULL, .device_ctx = sim };
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = -1;
    o.streaming = io || sim;
    o.ram_bytes = io ? 24 << 20 : 0;
    CHECK(pf_model_open_with(&m, path, &o, &setup) == PF_OK, "%s", pf_last_error());
    if (!m)
        exit(check_status());
    return m;
}

static size_t draft_same(void *ctx, const int32_t *tok, size_t n, int32_t *out, size_t most)
{
    (void)ctx;
    for (size_t i = 0; i < most && i < 2; i++)
        out[i] = i == 0 ? tok[n - 1] : BAD;              /* drafts that are bad are not the answer's */
    return most < 2 ? most : 2;
}

static void open_sessions(pf_model *m, pf_session *s[N])
{
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = LENGTH;
    o.draft = drafts;
    o.draft_fn = drafts == PF_DRAFT_GIVEN ? draft_same : NULL;
    for (int i = 0; i < N; i++) {
        o.n_batch = i == 1 ? 5 : 512;
        CHECK(pf_session_open(&s[i], m, &o) == PF_OK, "%s", pf_last_error());
    }
}

static void close_sessions(pf_session *s[N])
{
    for (int i = 0; i < N; i++)
        pf_session_close(&s[i]);
}

static void make_want(void)
{
    pf_session *s[N];
    pf_model *m = open_model(NULL, NULL);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    open_sessions(m, s);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < LENGTH; j++)
            tokens[i][j] = 1 + (int32_t)((unsigned)(j * N + i) * 2654435761u % (n_vocab - 1));
        want[i] = malloc(LENGTH * n_vocab * sizeof *want[i]);
        CHECK(pf_session_eval(s[i], tokens[i], LENGTH, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
        for (int j = 0; j < LENGTH; j++)
            memcpy(want[i] + (size_t)j * n_vocab, pf_session_logits_at(s[i], (size_t)j), n_vocab * sizeof *want[i]);
    }
    close_sessions(s);
    pf_model_close(&m);
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

/* n tokens of each session; `bad`, if it is one of them, gets a last one whose embedding is not a number. */
static void fill(struct pf_batch_part parts[N], pf_session *const s[N], size_t n, unsigned flags, int bad)
{
    static int32_t spoilt[LENGTH];
    for (int i = 0; i < N; i++)
        parts[i] = (struct pf_batch_part){ .session = s[i], .tok = tokens[i] + pf_session_pos(s[i]), .n = n,
                                           .flags = flags };
    if (bad < 0)
        return;
    memcpy(spoilt, parts[bad].tok, n * sizeof *spoilt);
    spoilt[n - 1] = BAD;
    parts[bad].tok = spoilt;
}

static bool has_bits(const struct pf_batch_part *p, int i)
{
    int64_t end = pf_session_pos(p->session);
    const float *logits = pf_session_logits(p->session);
    return logits && memcmp(logits, want[i] + (size_t)(end - 1) * n_vocab, n_vocab * sizeof *logits) == 0;
}

/* Evaluates; a part is whole and right, or its session is where it was. Returns how many parts failed; all of them are
 * made good then. */
static int run(struct pf_batch_part parts[N], const char *name)
{
    int64_t before[N];
    pf_status first = PF_OK;
    int n_failed = 0;
    for (int i = 0; i < N; i++)
        before[i] = pf_session_pos(parts[i].session);
    pf_status st = pf_batch_eval(parts, N);
    for (int i = 0; i < N; i++) {
        struct pf_batch_part *p = &parts[i];
        bool failed = p->status < 0;
        first = first < 0 ? first : p->status;
        n_failed += failed;
        CHECK(pf_session_pos(p->session) == before[i] + (failed ? 0 : (int64_t)p->n), "%s: sequence %d is at %d", name,
              i, (int)pf_session_pos(p->session));
        CHECK(failed || has_bits(p, i), "%s: other bits of sequence %d", name, i);
    }
    CHECK(st == first, "%s: the batch gives %d, its first failure is %d", name, st, first);
    for (int i = 0; i < N; i++) {
        pf_session *s = parts[i].session;
        int64_t pos = pf_session_pos(s);
        if (parts[i].status == PF_OK)
            continue;
        for (int k = 0; k < 4 && (st = pf_session_eval(s, tokens[i] + pos, parts[i].n, 0)) == PF_EIO; k++)
            ;                            /* the drive may fail a few times yet */
        CHECK(st == PF_OK && has_bits(&parts[i], i), "%s: sequence %d does not go on: %s", name, i, pf_last_error());
    }
    return n_failed;
}

/* ---- Faults that belong to one part ------------------------------------------------------------------------------ */

static void test_own_faults(void)
{
    pf_session *s[N];
    pf_model *m = open_model(NULL, NULL);
    open_sessions(m, s);
    for (int bad = 0; bad < N; bad++)
        for (size_t n = PROMPT; n > 0; n = n > 1 ? 1 : 0) {
            struct pf_batch_part parts[N];
            if (n > 1)
                for (int i = 0; i < N; i++)
                    pf_session_rewind(s[i], bad % 2);
            fill(parts, s, n, 0, bad);
            CHECK(run(parts, "not a number") == 1 && parts[bad].status == PF_ENUMERIC && parts[bad].why &&
                  strstr(parts[bad].why, "is not finite"), "%d", parts[bad].status);
            fill(parts, s, 1, 0, -1);
            pf_session_cancel(s[bad]);
            CHECK(run(parts, "cancelled") == 1 && parts[bad].status == PF_ECANCEL, "%d", parts[bad].status);
        }
    close_sessions(s);
    pf_model_close(&m);
}

/* Each allocation in turn, until there are no more. */
static void test_allocations(void)
{
    pf_session *s[N];
    pf_model *m = open_model(NULL, NULL);
    uint64_t n = 1;
    open_sessions(m, s);
    for (bool failed = true; failed; n++) {
        struct pf_batch_part parts[N];
        char name[64];
        for (int i = 0; i < N; i++)
            pf_session_rewind(s[i], 0);
        fill(parts, s, PROMPT, PF_LOGITS_ALL, -1);
        pf_mem_fail_nth(n);
        snprintf(name, sizeof name, "allocation %d failing", (int)n);
        int n_failed = run(parts, name);
        pf_mem_fail_nth(0);
        failed = n_failed > 0;
        CHECK(n_failed <= 1, "%s: %d parts failed", name, n_failed);
    }
    CHECK(n == N + 2, "%d allocations", (int)n - 2);
    close_sessions(s);
    pf_model_close(&m);
}

/* ---- Faults of the drive and of a device ------------------------------------------------------------------------- */

/* A prompt and a token of all sessions; returns how many parts failed. */
static int walk(struct pf_io_sim *io, struct pf_sim *sim, const char *name)
{
    pf_session *s[N];
    struct pf_batch_part parts[N];
    pf_model *m = open_model(io, sim);
    open_sessions(m, s);
    fill(parts, s, PROMPT, 0, -1);
    int n_failed = run(parts, name);
    fill(parts, s, 1, 0, -1);
    n_failed += run(parts, name);
    close_sessions(s);
    pf_model_close(&m);
    return n_failed;
}

static void test_reads(void)
{
    struct pf_io_sim whole = { 0 };
    int n_alone = 0;
    CHECK(walk(&whole, NULL, "no fault") == 0 && whole.n_reads > 0, "%d reads", (int)whole.n_reads);
    for (uint64_t at = 1; at <= whole.n_reads; at += every) {
        struct pf_io_sim io = { .seed = at, .fail_at = at, .fail_n = 4 + at % 5, .fail_errno = EIO };
        char name[64];
        snprintf(name, sizeof name, "reads from %d on failing", (int)at);
        int n = walk(&io, NULL, name);
        n_alone += n > 0 && n < N;
    }
    printf("%d times some parts failed and others did not\n", n_alone);
}

static void test_device(void)
{
    struct pf_sim whole = { 0 };
    CHECK(walk(NULL, &whole, "no fault") == 0 && whole.n_ops > 0);
    for (uint64_t at = 1; at <= whole.n_ops; at += every) {
        struct pf_sim sim = { .lose_at = at };
        char name[64];
        snprintf(name, sizeof name, "the device is lost at operation %d", (int)at);
        CHECK(walk(NULL, &sim, name) == 0, "%s: parts failed, where the CPU goes on", name);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    snprintf(path, sizeof path, "%s/apart-%d.gguf", argv[2], (int)getpid());
    every = argc > 4 ? (uint64_t)atoll(argv[4]) : 1;
    copy_model(argv[1]);
    make_want();
    if (strcmp(argv[3], "streamed") == 0) {
        test_reads();
    } else if (strcmp(argv[3], "shared") == 0) {
        test_device();
    } else {
        test_own_faults();
        test_allocations();
        drafts = PF_DRAFT_GIVEN;
        test_own_faults();
    }
    unlink(path);
    for (int i = 0; i < N; i++)
        free(want[i]);
    return check_status();
}

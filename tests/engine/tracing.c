/* Watching changes no bit, sees what was computed with, and what it saw can be put back: every stage is checked against
 * the others, counts against a recount, and a recorded routing trace against the run it was recorded from. And in the
 * middle of a step, which watching can stop, another thread can do what waits for no step.
 *
 * usage: tracing MODEL.gguf FOLDER */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pf_mem.h"
#include "check.h"
#include "kernels/sim/sim.h"
#include "memory_file.h"
#include "moe/place/placement.h"

enum { N_PROMPT = 40, N_DECODE = 6, N_TOKENS = N_PROMPT + N_DECODE, N_CTX = 64, MAX_EXPERTS = 512, MAX_LAYERS = 64,
       MAX_USED = 16 };

static const char *path;
static char trace_path[512];
static int32_t tokens[N_TOKENS];

struct way {
    const char *name;
    int         n_threads, n_batch;
    uint32_t    isa;
    bool        streaming, device;       /* device: a simulated one, which shares experts with the CPU when streaming */
};
static const struct way ways[] = {
    { "one thread", 1, 16, PF_ISA_ALL, false, false },
    { "three threads, whole prompt", 3, 64, PF_ISA_ALL, false, false },
    { "scalar", 2, 7, PF_ISA_SCALAR, false, false },
    { "streaming", 2, 16, PF_ISA_ALL, true, false },
    { "a device", 2, 16, PF_ISA_ALL, false, true },
    { "a device that shares", 2, 16, PF_ISA_ALL, true, true },
};

struct run {
    pf_model   *m;
    pf_session *s;
};

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

static bool open_run(struct run *r, const struct way *w, const char *routing)
{
    struct pf_model_opts mo;
    struct pf_session_opts so;
    static struct pf_sim sim;
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = &sim };
    sim = (struct pf_sim){ .memory_bytes = (uint64_t)1 << 30 };
    *r = (struct run){ 0 };
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    mo.device = -1;
    mo.n_threads = w->n_threads;
    mo.isa = w->isa;
    mo.streaming = w->streaming;
    mo.routing = routing;
    so.n_ctx = N_CTX;
    so.n_batch = w->n_batch;
    bool ok = pf_model_open_with(&r->m, path, &mo, w->device ? &setup : NULL) == PF_OK &&
              pf_session_open(&r->s, r->m, &so) == PF_OK;
    CHECK(ok, "%s: %s", w->name, pf_last_error());
    CHECK(!ok || strcmp(pf_model_info(r->m)->backend, w->device ? "sim" : "cpu") == 0, "%s: it runs on %s", w->name,
          pf_model_info(r->m)->backend);
    for (int i = 0; ok && i < N_TOKENS; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % (unsigned)pf_model_info(r->m)->n_vocab);
    return ok;
}

static void close_run(struct run *r)
{
    pf_session_close(&r->s);
    pf_model_close(&r->m);
}

/* Logits after the prompt and after each token, to be freed. */
static float *logits_of(struct run *r)
{
    size_t n_vocab = (size_t)pf_model_info(r->m)->n_vocab;
    float *all = calloc((N_DECODE + 1) * n_vocab, sizeof *all);
    for (int i = 0; i <= N_DECODE; i++) {
        pf_status st = i == 0 ? pf_session_eval(r->s, tokens, N_PROMPT, 0) :
                       pf_session_eval(r->s, tokens + N_PROMPT + i - 1, 1, 0);
        CHECK(st == PF_OK, "%s", pf_last_error());
        if (st == PF_OK)
            memcpy(all + (size_t)i * n_vocab, pf_session_logits(r->s), n_vocab * sizeof *all);
    }
    return all;
}

static void compare(struct run *r, const float *expected, const char *what)
{
    float *found = logits_of(r);
    CHECK(memcmp(found, expected, (N_DECODE + 1) * (size_t)pf_model_info(r->m)->n_vocab * sizeof *found) == 0,
          "%s: other bits", what);
    free(found);
}

/* ---- What the stages say of each other --------------------------------------------------------------------------- */

struct seen {
    const struct pf_model *m;
    uint64_t hash, counts[MAX_LAYERS][MAX_EXPERTS];
    int      calls[PF_N_STAGES];
    /* of the present token and layer */
    float    probs[MAX_EXPERTS], scores[MAX_EXPERTS], weights[MAX_USED], *sum;
    int32_t  picks[MAX_USED];
};

/* Adds to a hash of all stages seen that does not depend on the order of layers and tokens. */
static void add_to_hash(struct seen *z, const struct pf_stage_data *d)
{
    uint64_t h = 14695981039346656037u ^ (uint64_t)d->stage ^ (uint64_t)d->layer << 8 ^ (uint64_t)d->pos << 20 ^
                 (uint64_t)(d->pick + 1) << 40;
    const uint8_t *p = d->picks ? (const uint8_t *)d->picks : (const uint8_t *)d->values;
    for (size_t i = 0; i < (size_t)d->n * 4; i++)
        h = (h ^ p[i]) * 1099511628211u;
    z->hash += h * h;
}

static void check_picks(struct seen *z, const struct pf_stage_data *d)
{
    const int32_t *table = z->m->layers[d->layer].moe.table;
    memcpy(z->picks, d->picks, (size_t)d->n * sizeof *d->picks);
    CHECK(!table || memcmp(d->picks, table + tokens[d->pos] * d->n, (size_t)d->n * sizeof *table) == 0,
          "layer %d, token %d: not the picks of its table", d->layer, (int)d->pos);
    for (int i = 0; i < d->n; i++) {
        bool best = true;
        z->counts[d->layer][d->picks[i]]++;
        for (int x = 0; !table && x < z->m->n_expert; x++) {
            bool earlier = false;
            for (int j = 0; j <= i; j++)
                earlier |= d->picks[j] == x;
            best &= earlier || z->scores[x] <= z->scores[d->picks[i]];
        }
        CHECK(best, "layer %d, token %d: pick %d is not the best of the rest", d->layer, (int)d->pos, i);
    }
    for (int i = 0; i < z->m->n_embd; i++)
        z->sum[i] = 0;
}

static void see(void *ctx, const struct pf_stage_data *d)
{
    struct seen *z = ctx;
    z->calls[d->stage]++;
    add_to_hash(z, d);
    switch (d->stage) {
    case PF_STAGE_PROBABILITIES: memcpy(z->probs, d->values, (size_t)d->n * sizeof *d->values); break;
    case PF_STAGE_SCORES:        memcpy(z->scores, d->values, (size_t)d->n * sizeof *d->values); break;
    case PF_STAGE_PICKS:         check_picks(z, d); break;
    case PF_STAGE_WEIGHTS:       memcpy(z->weights, d->values, (size_t)d->n * sizeof *d->values); break;
    case PF_STAGE_GATE:
        CHECK(d->n == z->m->n_ff_expert && d->expert == z->picks[d->pick], "gate of another expert");
        break;
    case PF_STAGE_DOWN:
        for (int i = 0; i < d->n; i++)
            z->sum[i] = fmaf(z->m->arch->weigh_input ? 1.0f : z->weights[d->pick], d->values[i], z->sum[i]);
        break;
    case PF_STAGE_SUM:
        CHECK(memcmp(z->sum, d->values, (size_t)d->n * sizeof *z->sum) == 0, "layer %d, token %d: another sum",
              d->layer, (int)d->pos);
        break;
    default: break;
    }
}

static void check_counts(const struct run *r, const struct seen *z, const char *what)
{
    for (int il = 0; il < r->m->n_layer; il++) {
        uint64_t counts[MAX_EXPERTS], n_tokens;
        int n;
        CHECK(pf_trace_counts(r->m, il, counts, MAX_EXPERTS, &n, &n_tokens) == PF_OK, "%s", pf_last_error());
        CHECK(n == (r->m->layers[il].is_moe ? r->m->n_expert : 0) && n_tokens == N_TOKENS, "%s: layer %d: %d experts",
              what, il, n);
        CHECK(memcmp(counts, z->counts[il], (size_t)n * sizeof *counts) == 0,
              "%s: layer %d: counts are not those of the calls", what, il);
    }
}

static uint64_t watch(const struct way *w, const float *expected, unsigned stages)
{
    struct run r;
    struct seen *z = calloc(1, sizeof *z);
    if (!open_run(&r, w, NULL))
        return 0;
    z->m = r.m;
    z->sum = calloc((size_t)r.m->n_embd, sizeof *z->sum);
    struct pf_trace_opts o = { .stages = stages, .fn = see, .ctx = z, .counts = true };
    CHECK(pf_trace_set(r.m, &o) == PF_OK, "%s", pf_last_error());
    compare(&r, expected, w->name);
    check_counts(&r, z, w->name);
    int n_rows = N_TOKENS * r.m->n_moe;
    for (int s = 0; s < PF_N_STAGES; s++) {
        bool of_pick = s >= PF_STAGE_GATE && s <= PF_STAGE_DOWN;
        int n = !(stages & 1u << s) ? 0 : of_pick ? n_rows * r.m->n_used : n_rows;
        CHECK(z->calls[s] == n, "%s: stage %d came %d times, not %d", w->name, s, z->calls[s], n);
    }
    uint64_t hash = z->hash;
    close_run(&r);
    free(z->sum);
    free(z);
    return hash;
}

/* ---- Traces ------------------------------------------------------------------------------------------------------ */

static void record(const float *expected)
{
    struct run r;
    if (!open_run(&r, &ways[1], NULL))
        return;
    struct pf_trace_opts o = { .record = trace_path };
    CHECK(pf_trace_set(r.m, &o) == PF_OK, "%s", pf_last_error());
    compare(&r, expected, "recorded");
    CHECK(pf_trace_set(r.m, NULL) == PF_OK, "%s", pf_last_error());
    close_run(&r);
}

static void inject(const float *expected)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct run r;
        if (!open_run(&r, &ways[i], trace_path))
            return;
        compare(&r, expected, "injected");
        close_run(&r);
    }
}

/* Token t of the trace picks experts t, t + 1, ..: so the counts are known, also when every stage is watched. */
static void inject_made_up(unsigned stages)
{
    struct run r;
    struct seen *z = calloc(1, sizeof *z);
    pf_trace_writer *writer = NULL;
    if (!open_run(&r, &ways[0], NULL))
        return;
    int n_used = r.m->n_used, n_expert = r.m->n_expert, n_moe = r.m->n_moe;
    struct pf_trace_shape shape = { n_moe, n_expert, n_used, 1 };
    close_run(&r);
    CHECK(pf_trace_writer_open(&writer, trace_path, &shape) == PF_OK, "%s", pf_last_error());
    for (int t = 0; writer && t < 5; t++) {
        for (int layer = 0; layer < n_moe; layer++) {
            int32_t picks[MAX_USED];
            float weights[MAX_USED];
            for (int i = 0; i < n_used; i++) {
                picks[i] = (t + i) % n_expert;
                weights[i] = 1.0f / (float)n_used;
            }
            pf_trace_writer_put(writer, layer, 1, picks, weights);
        }
        CHECK(pf_trace_writer_append(writer, 1) == PF_OK, "%s", pf_last_error());
    }
    CHECK(pf_trace_writer_close(&writer) == PF_OK, "%s", pf_last_error());
    if (!open_run(&r, &ways[2], trace_path))
        return;
    for (int p = 0; p < N_TOKENS; p++)
        for (int il = 0; il < r.m->n_layer; il++)
            for (int i = 0; r.m->layers[il].is_moe && i < n_used; i++)
                z->counts[il][(p % 5 + i) % n_expert]++;
    struct seen *ignored = calloc(1, sizeof *ignored);
    ignored->m = r.m;
    ignored->sum = calloc((size_t)r.m->n_embd, sizeof(float));
    struct pf_trace_opts o = { .counts = true, .stages = stages, .fn = see, .ctx = ignored };
    CHECK(pf_trace_set(r.m, &o) == PF_OK, "%s", pf_last_error());
    free(logits_of(&r));
    check_counts(&r, z, "made up");
    close_run(&r);
    free(ignored->sum);
    free(ignored);
    free(z);
}

/* Keys and values that a trace's picks made are nobody's who has the router, and the other way round. */
static void saved_apart(void)
{
    struct run with, without;
    struct file made = { 0 }, routed = { 0 };
    if (!open_run(&with, &ways[0], trace_path) || !open_run(&without, &ways[0], NULL))
        return;
    free(logits_of(&with));
    free(logits_of(&without));
    CHECK(pf_session_save(with.s, write_file, &made) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_save(without.s, write_file, &routed) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_load(without.s, read_file, &made) == PF_EINVAL, "the router's session took what a trace made");
    CHECK(pf_session_load(with.s, read_file, &routed) == PF_EINVAL, "a trace's session took what the router made");
    made.at = 0;
    CHECK(pf_session_load(with.s, read_file, &made) == PF_OK, "%s", pf_last_error());
    free(made.data);
    free(routed.data);
    close_run(&with);
    close_run(&without);
}

/* A thread of its own that reads samples of all weights while a step stands still. */
struct identifier {
    pf_model *m;
    pthread_t thread;
    bool      began, ended;
};

static void *identify(void *ctx)
{
    struct identifier *who = ctx;
    CHECK(pf_model_identify(who->m) == PF_OK, "%s", pf_last_error());
    return NULL;
}

static void stop_for(void *ctx, const struct pf_stage_data *d)
{
    enum { MOST_S = 20 };
    struct identifier *who = ctx;
    struct timespec end;
    (void)d;
    if (who->began)
        return;
    who->began = pthread_create(&who->thread, NULL, identify, who) == 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += MOST_S;
    who->ended = pthread_timedjoin_np(who->thread, NULL, &end) == 0;
}

static void identified_meanwhile(const float *expected)
{
    struct run r;
    if (!open_run(&r, &ways[0], NULL))
        return;
    struct identifier who = { .m = r.m };
    struct pf_trace_opts o = { .stages = 1u << PF_STAGE_LOGITS, .fn = stop_for, .ctx = &who };
    CHECK(pf_trace_set(r.m, &o) == PF_OK, "%s", pf_last_error());
    float *logits = logits_of(&r);
    CHECK(who.ended, "the first to ask what model this is waits for a step");
    if (who.began && !who.ended)
        pthread_join(who.thread, NULL);
    CHECK(memcmp(logits, expected, (size_t)r.m->n_vocab * sizeof *expected) == 0, "other logits");
    free(logits);
    close_run(&r);
}

static void refuse_trace(const char *what, const void *bytes, size_t n)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    FILE *f = fopen(trace_path, "wb");
    fwrite(bytes, 1, n, f);
    fclose(f);
    pf_model_opts_init(&o);
    o.device = -1;
    o.routing = trace_path;
    CHECK(pf_model_open(&m, path, &o) == PF_EFORMAT && !m, "%s", what);
    printf("%s\n", pf_last_error());
}

static void refusals(void)
{
    struct run r;
    if (!open_run(&r, &ways[0], NULL))
        return;
    uint32_t header[6] = { 0, 0, (uint32_t)r.m->n_moe, (uint32_t)r.m->n_expert, (uint32_t)r.m->n_used, 0 };
    size_t token_bytes = (size_t)r.m->n_moe * (size_t)r.m->n_used * PF_TRACE_PICK_BYTES;
    uint8_t *file = calloc(1, sizeof header + token_bytes);
    memcpy(header, "PFTRACE1", 8);
    memcpy(file, header, sizeof header);
    refuse_trace("no token", file, sizeof header + token_bytes - 1);
    if (r.m->n_used > 1)
        refuse_trace("an expert twice", file, sizeof header + token_bytes);
    memset(file + sizeof header + 2, 0xff, 4);
    refuse_trace("a weight that is NaN", file, sizeof header + token_bytes);
    header[3]++;
    memcpy(file, header, sizeof header);
    memset(file + sizeof header, 0, token_bytes);
    refuse_trace("another model's", file, sizeof header + token_bytes);
    free(file);

    struct pf_trace_opts o = { .stages = 1 };
    CHECK(pf_trace_set(r.m, &o) == PF_EINVAL, "no function");
    o = (struct pf_trace_opts){ .stages = 1u << PF_N_STAGES, .fn = see };
    CHECK(pf_trace_set(r.m, &o) == PF_EINVAL, "no such stage");
    o = (struct pf_trace_opts){ .record = "/no/such/folder/x.trace" };
    CHECK(pf_trace_set(r.m, &o) == PF_EIO, "a folder that is not there");
    printf("%s\n", pf_last_error());
    o = (struct pf_trace_opts){ .record = "/dev/full" };
    CHECK(pf_trace_set(r.m, &o) == PF_EIO, "a full disk");
    free(logits_of(&r));                     /* still works */
    close_run(&r);
}

int main(int argc, char **argv)
{
    struct run r;
    struct pf_mem_stats before, after;
    unsigned all = (1u << PF_N_STAGES) - 1, some = 1u << PF_STAGE_PICKS | 1u << PF_STAGE_WEIGHTS;
    if (argc != 3)
        return 2;
    path = argv[1];
    snprintf(trace_path, sizeof trace_path, "%s/tracing-%s.trace", argv[2],
             strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    pf_mem_stats_get(&before);
    if (!open_run(&r, &ways[0], NULL))
        return check_status();
    float *expected = logits_of(&r);
    close_run(&r);

    uint64_t seen_all = watch(&ways[0], expected, all), seen_some = watch(&ways[0], expected, some);
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
        CHECK(watch(&ways[i], expected, all) == seen_all, "%s: other values were seen", ways[i].name);
        CHECK(watch(&ways[i], expected, some) == seen_some, "%s: other picks were seen", ways[i].name);
    }
    record(expected);
    inject(expected);
    inject_made_up(0);
    inject_made_up(1u << PF_STAGE_UP);
    saved_apart();
    identified_meanwhile(expected);
    refusals();
    remove(trace_path);
    free(expected);
    pf_mem_stats_get(&after);
    CHECK(before.n_live == after.n_live, "memory is left behind");
    return check_status();
}

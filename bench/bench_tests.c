/* One test of pfmoe-bench: sessions, warm-up, repetitions, and the limits that the machine sets, measured beside them.
 *
 *     session   | depth tokens, once ...... | n_prompt tokens at once | n_gen, one by one |
 *                                           ^ the clock starts                            ^ and stops; back to depth
 *
 * Tokens of the depth are evaluated once and gone back to; where a session cannot go back so far without evaluating
 * anything, they are evaluated again, outside the clock and the counters. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "roofline.h"

/* Drafts that are right with probability p: the tokens to come, or others. */
struct simulated {
    const int32_t *tok;
    int            n;
    double         p;
};

/* A test with what it runs in. tok: [n_sequences][depth + n_prompt + n_gen]. */
struct running {
    const struct test *t;
    pf_model   *m;
    pf_session *s[MAX_SEQUENCES];
    struct simulated sim[MAX_SEQUENCES];
    struct pf_session_opts opts;
    int32_t    *tok;
    double      expert_bytes;        /* of the routed experts that one token reads */
};

static int fail(const char *what)
{
    complain("%s: %s", what, pf_last_error());
    return EXIT_FAILED;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

bool on_gpu(const struct pf_model_info *info)
{
    return strcmp(info->backend, "cpu") != 0;
}

void test_name(const struct test *t, char name[MAX_NAME])
{
    int n = 0;
    if (t->chunk)
        n += snprintf(name, MAX_NAME, "ppl%d", t->chunk);
    if (t->n_prompt)
        n += snprintf(name, MAX_NAME, "pp%d", t->n_prompt);
    if (t->n_gen)
        n += snprintf(name + n, (size_t)(MAX_NAME - n), "%stg%d", n ? "+" : "", t->n_gen);
    if (t->n_sequences > 1)
        n += snprintf(name + n, (size_t)(MAX_NAME - n), "x%d", t->n_sequences);
    if (t->depth)
        snprintf(name + n, (size_t)(MAX_NAME - n), " @ d%d", t->depth);
}

static int positions(const struct test *t)
{
    return t->chunk + t->depth + t->n_prompt + t->n_gen;
}

bool test_fits(const struct test *t, const struct pf_model_info *info)
{
    char name[MAX_NAME];
    test_name(t, name);
    if (positions(t) > info->n_ctx_train) {
        complain("%s needs a context of %d tokens; the model's has %lld", name, positions(t),
                 (long long)info->n_ctx_train);
        return false;
    }
    return true;
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

/* Ids that look arbitrary but are the same in every run. */
static void make_tokens(int32_t *tok, int n, int64_t n_vocab)
{
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        tok[i] = (int32_t)(x % (uint64_t)n_vocab);
    }
}

/* The text over and over. An exit status. */
static int take_text(int32_t *tok, int n, const pf_model *m, const char *path)
{
    struct text text;
    int status = text_read(&text, m, path);
    if (status == EXIT_DONE && text.n == 0) {
        complain("there is no text in %s", path);
        status = EXIT_FAILED;
    }
    for (int i = 0; status == EXIT_DONE && i < n; i++)
        tok[i] = text.tok[(size_t)i % text.n];
    free(text.tok);
    return status;
}

/* A wrong token is another one that there is: what comes next in the text. The same position is right or wrong whenever
 * it is drafted. */
static size_t simulate(void *ctx, const int32_t *tok, size_t n, int32_t *out, size_t cap)
{
    const struct simulated *s = ctx;
    size_t n_out = 0;
    (void)tok;
    for (size_t i = n; n_out < cap && i + 1 < (size_t)s->n; i++) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        out[n_out++] = s->tok[i + ((h ^ h >> 13) * 0x1p-32 >= s->p)];
    }
    return n_out;
}

static void close_sessions(struct running *r)
{
    for (int k = 0; k < r->t->n_sequences; k++)
        pf_session_close(&r->s[k]);
    free(r->tok);
}

static int open_sessions(struct running *r, const struct bench *o)
{
    const struct test *t = r->t;
    int n = positions(t) * t->n_sequences;
    pf_session_opts_init(&r->opts);
    r->opts.n_ctx = positions(t);
    r->opts.n_sessions = t->n_sequences;
    r->opts.n_batch = t->n_batch;
    r->opts.kv_type = t->kv;
    opts_shared_session(&o->shared, &r->opts);
    if (o->draft_sim >= 0)
        r->opts.draft = PF_DRAFT_GIVEN;
    r->opts.draft_fn = simulate;
    r->tok = malloc((size_t)n * sizeof *r->tok);
    if (!r->tok) {
        complain("no memory for %d tokens", n);
        return EXIT_FAILED;
    }
    make_tokens(r->tok, n, pf_model_info(r->m)->n_vocab);
    if (o->draft_replay) {
        int status = take_text(r->tok, n, r->m, o->draft_replay);
        if (status != EXIT_DONE)
            return status;
    }
    for (int k = 0; k < t->n_sequences; k++) {
        r->sim[k] = (struct simulated){ r->tok + (size_t)k * (size_t)positions(t), positions(t), o->draft_sim };
        r->opts.draft_ctx = &r->sim[k];
        if (pf_session_open(&r->s[k], r->m, &r->opts) < 0)
            return fail("cannot open a session");
    }
    return EXIT_DONE;
}

/* Brings a session to the test's depth; *again: tokens were evaluated for that. */
static pf_status go_to_depth(const struct running *r, int k, bool *again)
{
    int depth = r->t->depth;
    pf_session *s = r->s[k];
    if (pf_session_pos(s) >= depth) {
        pf_status st = pf_session_rewind(s, depth);
        if (st < 0 || pf_session_computed(s) == depth)
            return st;
    }
    *again = true;
    pf_status st = pf_session_rewind(s, 0);
    return st < 0 ? st : pf_session_eval(s, r->tok + (size_t)k * (size_t)positions(r->t), (size_t)depth, 0);
}

static double seconds_of(const struct running *r, int n_gen)
{
    const struct test *t = r->t;
    struct pf_batch_part parts[MAX_SEQUENCES];
    for (int k = 0; k < t->n_sequences; k++)
        parts[k] = (struct pf_batch_part){ .session = r->s[k], .n = (size_t)t->n_prompt,
                                           .tok = r->tok + (size_t)k * (size_t)positions(t) + t->depth };
    double begin = now();
    if (t->n_prompt && pf_batch_eval(parts, (size_t)t->n_sequences) < 0)
        return -1;
    for (int k = 0; k < t->n_sequences; k++) {
        parts[k].tok += t->n_prompt;
        parts[k].n = 1;
    }
    for (int i = 0; i < n_gen; i++) {
        if (pf_batch_eval(parts, (size_t)t->n_sequences) < 0)
            return -1;
        for (int k = 0; k < t->n_sequences; k++)
            parts[k].tok++;
    }
    return now() - begin;
}

/* Once, behind the test's depth; seconds, or negative on failure. */
static double run_once(const struct running *r, int n_gen)
{
    bool again = false;
    for (int k = 0; k < r->t->n_sequences; k++)
        if (go_to_depth(r, k, &again) < 0)
            return -1;
    if (again)
        pf_stats_reset(r->m);
    return seconds_of(r, n_gen);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

/* Whether experts are dealt out between GPU and CPU. */
static bool shares(const struct pf_model_info *info)
{
    return on_gpu(info) && info->n_experts > 0 && info->gpu_bytes_per_token < info->bytes_per_token;
}

/* How many times the bytes of one token a step of so many sequences reads, of all weights and of routed experts, if
 * routing is random: of the n_experts of a layer, s sequences that pick k each pick n (1 - (1 - k / n)^s). */
static double expert_growth(const struct pf_model_info *info, int sequences)
{
    double k = (double)info->n_experts_used, n = (double)info->n_experts;
    return n > 0 ? n / k * (1 - pow(1 - k / n, sequences)) : 1;
}

/* Keys and values are each sequence's own. */
static double step_growth(const struct running *r, double kv_bytes)
{
    const struct pf_model_info *info = pf_model_info(r->m);
    double one = (double)info->bytes_per_token + kv_bytes;
    return 1 + (r->expert_bytes * (expert_growth(info, r->t->n_sequences) - 1) +
                kv_bytes * (r->t->n_sequences - 1)) / one;
}

/* Keys and values that a token at pos goes over; 0 for a position that there is none of. */
static double kv_bytes_at(const struct running *r, int64_t pos)
{
    uint64_t bytes;
    return pf_session_read_bytes(r->m, &r->opts, pos, &bytes) == PF_OK ? (double)bytes : 0;
}

/* Bytes of keys and values for each token of a test: a prompt goes over them once for each of its batches, at least.
 * In long runs of decoding some positions stand for those around them. */
static double kv_bytes_per_token(const struct running *r)
{
    enum { MOST_POSITIONS = 256 };
    const struct test *t = r->t;
    double bytes = 0;
    for (int done = 0; done < t->n_prompt;) {
        done = done + t->n_batch < t->n_prompt ? done + t->n_batch : t->n_prompt;
        bytes += kv_bytes_at(r, t->depth + done - 1);
    }
    int stride = (t->n_gen + MOST_POSITIONS - 1) / MOST_POSITIONS;
    for (int i = 0; i < t->n_gen; i += stride) {
        int width = i + stride < t->n_gen ? stride : t->n_gen - i;
        bytes += width * kv_bytes_at(r, t->depth + t->n_prompt + i + width / 2);
    }
    return bytes / (t->n_prompt + t->n_gen);
}

/* Where attention is computed, its keys and values are read: by the GPU in its layers, in the others by the CPU. Bytes
 * of them, and those that are far from the GPU, of one sequence. */
static struct token_work work_of(const struct running *r, double kv_bytes, double far_bytes)
{
    const struct pf_model_info *info = pf_model_info(r->m);
    double by_gpu = info->n_layers ? (double)info->n_gpu_layers / (double)info->n_layers : 0;
    bool apart = info->gpu_bytes_per_token < info->bytes_per_token;      /* experts are part of rest_bytes */
    struct token_work w = { .gpu_bytes = (double)info->gpu_bytes_per_token,
                            .rest_bytes = (double)(info->bytes_per_token - info->gpu_bytes_per_token),
                            .shared = shares(info) };
    *(apart ? &w.rest_bytes : &w.gpu_bytes) += r->expert_bytes * (expert_growth(info, r->t->n_sequences) - 1);
    if (w.shared)
        by_gpu = 1;
    w.gpu_bytes += by_gpu * kv_bytes * r->t->n_sequences;
    w.rest_bytes += (1 - by_gpu) * kv_bytes * r->t->n_sequences;
    w.far_bytes = far_bytes * r->t->n_sequences;
    w.gpu_bytes -= w.far_bytes;
    return w;
}

/* The limit that the row ran against: 0 if it is not known, as where the drive took part, for a prompt with decoding
 * behind it, or for a prompt that was computed from where its weights lie. A prompt whose experts crossed PCIe could
 * not be faster than that. */
static double limit_of(const struct running *r, const struct rates *rates, const struct pf_stats *s,
                       const struct row *row)
{
    const double MOST_HANDOFF_NS = 10000;        /* slower hand-offs must not lower the limit */
    double handoff = (double)s->handoff_p50_ns < MOST_HANDOFF_NS ? (double)s->handoff_p50_ns : MOST_HANDOFF_NS;
    struct token_work w = work_of(r, row->kv_bytes_per_token, row->far_bytes_per_token);
    if (s->disk_bytes_read > 0 || (r->t->n_prompt && r->t->n_gen))
        return 0;
    if (r->t->n_prompt)
        return s->stream_bytes ? rates->pcie * (double)report_tokens(s) / (double)s->stream_bytes : 0;
    w.held = row->held;
    w.handoffs_ns = handoff * (double)pf_model_info(r->m)->n_expert_layers;
    return r->t->n_sequences * roofline_tok_s(rates, &w);
}

/* The median of each rate. */
static struct rates median_rates(const struct rates *all, int n)
{
    double v[4][MAX_REPS];
    for (int i = 0; i < n; i++) {
        v[0][i] = all[i].vram;
        v[1][i] = all[i].ram;
        v[2][i] = all[i].pcie;
        v[3][i] = all[i].joint;
    }
    return (struct rates){ median(v[0], n), median(v[1], n), median(v[2], n), median(v[3], n) };
}

/* Bytes of the routed experts that one token reads. */
static double token_expert_bytes(const char *path)
{
    struct pf_file_info f;
    if (pf_file_inspect(path, 0, &f) < 0 || f.n_experts == 0)
        return 0;
    return (double)f.expert_bytes * (double)f.n_experts_used / (double)f.n_experts;
}

/* ---- The row ----------------------------------------------------------------------------------------------------- */

static void fill_test(struct row *row, const struct test *t)
{
    test_name(t, row->test);
    row->sequences = t->n_sequences;
    row->depth = t->depth;
    row->n_prompt = t->n_prompt;
    row->n_gen = t->n_gen;
    row->n_batch = t->n_batch;
}

static void fill_samples(struct row *row)
{
    double sorted[MAX_REPS], sum = 0, squares = 0;
    int n = row->n_samples;
    for (int i = 0; i < n; i++)
        sum += sorted[i] = row->samples[i];
    for (int i = 0; i < n; i++)
        squares += (row->samples[i] - sum / n) * (row->samples[i] - sum / n);
    row->tok_s = median(sorted, n);
    row->tok_s_min = sorted[0];
    row->tok_s_max = sorted[n - 1];
    row->tok_s_stddev = n > 1 ? sqrt(squares / (n - 1)) : 0;
}

static void fill_rates(struct row *row, const struct running *r, const struct rates *rates)
{
    const struct pf_model_info *info = pf_model_info(r->m);
    struct pf_stats *s = &row->stats;
    pf_stats_get(r->m, s);
    double n = (double)report_tokens(s), wanted = (double)(s->vram_hits + s->slab_hits + s->slab_misses);
    row->machine_gb_s = (on_gpu(info) ? rates->vram : rates->ram) * 1e-9;
    row->kv_bytes_per_token = kv_bytes_per_token(r);
    row->far_bytes_per_token = (double)s->far_bytes / n;
    row->bytes_per_token = (double)s->weight_bytes_read / n + row->kv_bytes_per_token;
    row->gb_s = row->tok_s * row->bytes_per_token * 1e-9;
    row->bandwidth_share = row->machine_gb_s > 0 ? row->gb_s / row->machine_gb_s : 0;
    row->held = shares(info) && wanted > 0 ? (double)s->vram_hits / wanted : 0;
    row->ram_gb_s = rates->ram * 1e-9;
    row->pcie_gb_s = rates->pcie * 1e-9;
    row->joint_gb_s = rates->joint * 1e-9;
    row->most_together = row->sequences / step_growth(r, row->kv_bytes_per_token);
    row->n_experts = (int)info->n_experts;
    row->picks = row->sequences * (int)info->n_experts_used;
    row->expected_picks = (double)info->n_experts_used * expert_growth(info, row->sequences);
    row->roofline_tok_s = limit_of(r, rates, s, row);
    row->roofline_share = row->roofline_tok_s > 0 ? row->tok_s / row->roofline_tok_s : 0;
    row->launches = (double)s->n_launches / n;
    row->handoff_p50_us = (double)s->handoff_p50_ns * 1e-3;
    row->handoff_p95_us = (double)s->handoff_p95_ns * 1e-3;
}

static int repeat(const struct running *r, struct membw *bw, const struct bench *o, struct row *row)
{
    enum { WARM_UP = 16 };
    const struct test *t = r->t;
    const struct pf_model_info *info = pf_model_info(r->m);
    struct rates rates[MAX_REPS], typical;
    if (run_once(r, t->n_gen < WARM_UP ? t->n_gen : WARM_UP) < 0)
        return fail("warm-up failed");
    pf_stats_get(r->m, &row->stats);
    bool far = row->stats.far_bytes > 0;
    pf_stats_reset(r->m);
    for (int i = 0; i < o->reps; i++) {
        if (o->progress)
            fprintf(stderr, "%s: run %d of %d\n", row->test, i + 1, (int)o->reps);
        rates_measure(&rates[i], bw, row->threads, on_gpu(info) ? o->gpus.v[0] : -1,
                      far || info->gpu_bytes_per_token < info->bytes_per_token, far || shares(info));
        double seconds = run_once(r, t->n_gen);
        if (seconds < 0)
            return fail("evaluation failed");
        row->samples[row->n_samples++] = (t->n_prompt + t->n_gen) * t->n_sequences / seconds;
    }
    fill_samples(row);
    typical = median_rates(rates, (int)o->reps);
    fill_rates(row, r, &typical);
    return EXIT_DONE;
}

/* Loads what a GPU wants to have in memory before the first token. */
static int load(pf_model *m)
{
    if (on_gpu(pf_model_info(m)) && (pf_model_preload(m, NULL, 0, NULL, NULL) < 0 || pf_model_measure(m) < 0))
        return fail("cannot load the weights");
    return EXIT_DONE;
}

/* A row names what computed. Where a GPU was lost on the way, the CPU went on, and the time is neither's. */
static int check_unchanged(const pf_model *m, const struct pf_model_info *begun_on)
{
    if (pf_model_info(m) == begun_on)
        return EXIT_DONE;
    complain("the GPU was lost while the test ran");
    return EXIT_FAILED;
}

int test_run(const struct test *t, pf_model *m, const char *path, struct membw *bw, const struct bench *o,
             struct row *row)
{
    if (t->chunk)
        return perplexity_run(t, m, o, row);
    const struct pf_model_info *begun_on = pf_model_info(m);
    struct running r = { .t = t, .m = m, .expert_bytes = token_expert_bytes(path) };
    fill_test(row, t);
    if (o->progress)
        fprintf(stderr, "%s: %s\n", row->test, t->depth ? "the depth, then a run to warm up" : "a run to warm up");
    int status = open_sessions(&r, o);
    if (!status)
        status = load(m);
    if (!status)
        status = repeat(&r, bw, o, row);
    if (!status)
        status = check_unchanged(m, begun_on);
    close_sessions(&r);
    return status;
}

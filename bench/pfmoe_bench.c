/* pfmoe-bench: prompt and decode speed, each beside what this machine's memory allows, measured in the same run.
 *
 * A row is one test (ppN: a prompt of N tokens; tgN: N tokens decoded one by one) with one thread count. Each repetition
 * first measures the read bandwidth, then runs the test; medians are reported, with minimum and maximum. One run of each
 * test before that is not counted. */
#define _GNU_SOURCE
#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/opts.h"
#include "membw.h"
#include "pfmoe.h"

enum { MAX_LIST = 16, MAX_REPS = 100, MAX_OPTIONS = 64 };

enum output { OUT_TABLE, OUT_MD, OUT_CSV, OUT_JSON, OUT_JSONL };
static const char *const output_names[] = { "table", "md", "csv", "json", "jsonl" };

struct list {
    int n, v[MAX_LIST];
};

struct bench {
    struct settings shared;      /* what pfmoe-run has too: options about experts and reports */
    const char *model;
    struct list prompts, decodes, threads;
    int         reps, n_batch, gpu, vram_mb, ram_mb, slots;
    bool        streaming;
    const char *replay;          /* a routing trace instead of a model */
    enum output output;
};

struct row {
    char   test[16], model[128], backend[16], isa[24];
    int    threads;
    double tok_s, tok_s_min, tok_s_max, bytes_per_token, gb_s, machine_gb_s;
    struct pf_stats stats;
};

static int fail(const char *what)
{
    fprintf(stderr, "pfmoe-bench: %s: %s\n", what, pf_last_error());
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

/* ---- Running ---------------------------------------------------------------------------------------------------- */

/* Ids that look arbitrary but are the same in every run. */
static void make_tokens(int32_t *tok, int n, int64_t n_vocab)
{
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        tok[i] = (int32_t)(x % (uint64_t)n_vocab);
    }
}

/* One run from an empty context; seconds, or negative on failure. */
static double run_once(pf_session *s, const int32_t *tok, int n, bool decode)
{
    if (pf_session_rewind(s, 0) < 0)
        return -1;
    double begin = now();
    for (int i = 0; i < n; i += decode ? 1 : n)
        if (pf_session_eval(s, tok + i, decode ? 1 : (size_t)n, 0) < 0)
            return -1;
    return now() - begin;
}

static int run_test(pf_model *m, pf_session *s, struct membw *bw, const struct bench *o, int n, bool decode, struct row *row)
{
    double rates[MAX_REPS], machine[MAX_REPS];
    int32_t *tok = malloc((size_t)n * sizeof *tok);
    struct pf_stats stats;
    if (!tok)
        return EXIT_FAILED;
    make_tokens(tok, n, pf_model_info(m)->n_vocab);
    if (run_once(s, tok, decode && n > 16 ? 16 : n, decode) < 0) {
        free(tok);
        return fail("warm-up failed");
    }
    pf_stats_reset(m);
    for (int r = 0; r < o->reps; r++) {
        machine[r] = strcmp(row->backend, "cpu") == 0 ? membw_read(bw, row->threads) : pf_gpu_bandwidth(o->gpu) / 1e9;
        double seconds = run_once(s, tok, n, decode);
        if (seconds < 0) {
            free(tok);
            return fail("evaluation failed");
        }
        rates[r] = n / seconds;
    }
    free(tok);
    pf_stats_get(m, &stats);
    row->tok_s = median(rates, o->reps);
    row->tok_s_min = rates[0];
    row->tok_s_max = rates[o->reps - 1];
    row->machine_gb_s = median(machine, o->reps);
    row->bytes_per_token = (double)stats.weight_bytes_read / (double)stats.n_tokens;
    row->gb_s = row->tok_s * row->bytes_per_token / 1e9;
    row->stats = stats;
    snprintf(row->test, sizeof row->test, "%s%d", decode ? "tg" : "pp", n);
    return 0;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

/* Where experts were shared between the GPU and the CPU: how. */
static void print_sharing(FILE *f, const struct row *r)
{
    const struct pf_stats *s = &r->stats;
    double tokens = s->n_tokens ? (double)s->n_tokens : 1, ns = s->transfer_ns ? (double)s->transfer_ns : 1;
    if (s->n_transfers + s->vram_hits == 0)
        return;
    fprintf(f, "%s: a token: %.2f experts in VRAM, %.2f transfers, %.1f MB sent; %.0f%% of copying hidden, %.1f%% too late; "
            "hand-off %.1f us, p95 %.1f; GPU busy %.0f%%\n", r->test,
            (double)s->vram_hits / tokens, (double)s->n_transfers / tokens, (double)s->transfer_bytes / tokens / 1e6,
            100 * (double)s->transfer_hidden_ns / ns, s->n_transfers ? 100 * (double)s->n_fallbacks / (double)s->n_transfers : 0,
            (double)s->handoff_p50_ns / 1e3, (double)s->handoff_p95_ns / 1e3, 100 * (double)s->gpu_busy_ns / ((double)s->step_ns + 1));
}

static cJSON *row_json(const struct row *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "test", r->test);
    cJSON_AddStringToObject(o, "model", r->model);
    cJSON_AddStringToObject(o, "backend", r->backend);
    cJSON_AddStringToObject(o, "isa", r->isa);
    cJSON_AddNumberToObject(o, "threads", r->threads);
    cJSON_AddNumberToObject(o, "tok_s", r->tok_s);
    cJSON_AddNumberToObject(o, "tok_s_min", r->tok_s_min);
    cJSON_AddNumberToObject(o, "tok_s_max", r->tok_s_max);
    cJSON_AddNumberToObject(o, "bytes_per_token", r->bytes_per_token);
    cJSON_AddNumberToObject(o, "gb_s", r->gb_s);
    cJSON_AddNumberToObject(o, "machine_gb_s", r->machine_gb_s);
    cJSON_AddNumberToObject(o, "bandwidth_share", r->gb_s / r->machine_gb_s);
    return o;
}

static void print_json(const struct row *rows, int n, bool lines)
{
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(all, row_json(&rows[i]));
    for (int i = 0; lines && i < n; i++) {
        char *text = cJSON_PrintUnformatted(cJSON_GetArrayItem(all, i));
        puts(text);
        cJSON_free(text);
    }
    if (!lines) {
        char *text = cJSON_Print(all);
        puts(text);
        cJSON_free(text);
    }
    cJSON_Delete(all);
}

static void print_rows(const struct row *rows, int n, enum output out)
{
    static const char *const heads[] = {
        [OUT_TABLE] = "test      threads     tok/s       min       max   MB/token    GB/s  machine  share",
        [OUT_MD] = "| test | threads | tok/s | min | max | MB/token | GB/s | machine GB/s | share |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        [OUT_CSV] = "test,model,backend,isa,threads,tok_s,tok_s_min,tok_s_max,bytes_per_token,gb_s,machine_gb_s,bandwidth_share",
    };
    if (out == OUT_JSON || out == OUT_JSONL) {
        print_json(rows, n, out == OUT_JSONL);
        return;
    }
    if (out != OUT_CSV)
        printf("%s, %s (%s)\n\n", rows[0].model, rows[0].backend, rows[0].isa);
    puts(heads[out]);
    for (int i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        double mb = r->bytes_per_token / 1e6, share = r->gb_s / r->machine_gb_s;
        if (out == OUT_TABLE)
            printf("%-9s %7d %9.2f %9.2f %9.2f %10.1f %7.2f %8.2f %5.0f%%\n", r->test, r->threads, r->tok_s, r->tok_s_min,
                   r->tok_s_max, mb, r->gb_s, r->machine_gb_s, 100 * share);
        else if (out == OUT_MD)
            printf("| %s | %d | %.2f | %.2f | %.2f | %.1f | %.2f | %.2f | %.0f%% |\n", r->test, r->threads, r->tok_s,
                   r->tok_s_min, r->tok_s_max, mb, r->gb_s, r->machine_gb_s, 100 * share);
        else
            printf("%s,\"%s\",%s,%s,%d,%.3f,%.3f,%.3f,%.0f,%.3f,%.3f,%.4f\n", r->test, r->model, r->backend, r->isa, r->threads,
                   r->tok_s, r->tok_s_min, r->tok_s_max, r->bytes_per_token, r->gb_s, r->machine_gb_s, share);
    }
}

/* ---- Command line ----------------------------------------------------------------------------------------------- */

static void usage(FILE *out)
{
    fputs("usage: pfmoe-bench -m MODEL.gguf [options]\n"
          "Prompt and decode speed, beside the memory bandwidth measured in the same run.\n\n"
          "  -m, --model FILE      the model\n"
          "  -p, --prompt N[,N]    prompt lengths (default 512; 0: none)\n"
          "  -n, --gen N[,N]       tokens to decode (default 128; 0: none)\n"
          "  -t, --threads N[,N]   computing threads (default: one per core)\n"
          "  -g, --gpu N           the GPU to use (default 0); -1: the CPU\n"
          "      --vram-mb N       take no more than so much of its memory (default 0: what is free)\n"
          "  -b, --batch N         rows evaluated at once in a prompt (default 512)\n"
          "  -r, --repetitions N   counted runs of each test (default 5)\n"
          "  -o, --output FORM     table, md, csv, json, jsonl (default table)\n"
          "      --ram-mb N        memory for the model (default: what the system can spare)\n"
          "      --streaming       do not hold the whole model in memory, even if it fits\n"
          "      --replay TRACE    hits of every replacement policy on a routing trace, beside the best possible\n"
          "      --slots N         experts in memory in a replay (default: half of them)\n"
          "  -h, --help\n", out);
    if (out == stdout)
        opts_shared_help();
}

static bool parse_int(const char *text, int min, int max, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    *out = (int)v;
    return *end == 0 && end != text && v >= min && v <= max;
}

static bool parse_list(char *text, int min, struct list *out)
{
    out->n = 0;
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        if (out->n == MAX_LIST || !parse_int(part, min, 1 << 20, &out->v[out->n]))
            return false;
        out->n += out->v[out->n] > 0;
    }
    return true;
}

static bool parse_output(const char *text, enum output *out)
{
    for (size_t i = 0; i < sizeof output_names / sizeof *output_names; i++)
        if (strcmp(text, output_names[i]) == 0) {
            *out = (enum output)i;
            return true;
        }
    return false;
}

/* Adds the options of pfmoe-run behind the n that are there, with codes from `code` on. */
static void add_shared(struct option *options, int n, int code)
{
    const char *name, *arg;
    for (int i = 0; n < MAX_OPTIONS - 1 && opts_shared(i, &name, &arg); i++)
        options[n++] = (struct option){ name, arg ? required_argument : no_argument, 0, code + i };
    options[n] = (struct option){ 0 };
}

static int parse(int argc, char **argv, struct bench *o)
{
    enum { RAM_MB = 256, STREAMING, REPLAY, SLOTS, SHARED };
    struct option options[MAX_OPTIONS] = {
        { "ram-mb", required_argument, 0, RAM_MB }, { "streaming", no_argument, 0, STREAMING },
        { "replay", required_argument, 0, REPLAY }, { "slots", required_argument, 0, SLOTS },
        { "model", required_argument, 0, 'm' },   { "prompt", required_argument, 0, 'p' }, { "gen", required_argument, 0, 'n' },
        { "threads", required_argument, 0, 't' }, { "gpu", required_argument, 0, 'g' }, { "vram-mb", required_argument, 0, 'V' }, { "batch", required_argument, 0, 'b' },
        { "repetitions", required_argument, 0, 'r' }, { "output", required_argument, 0, 'o' }, { "help", no_argument, 0, 'h' },
    };
    const char *why = NULL;
    int n_own = 0;
    while (options[n_own].name)
        n_own++;
    add_shared(options, n_own, SHARED);
    opts_shared_begin(&o->shared);
    for (int c; (c = getopt_long(argc, argv, "m:p:n:t:g:b:r:o:h", options, NULL)) != -1;) {
        bool ok = true;
        switch (c) {
        case 'm': o->model = optarg; break;
        case 'p': ok = parse_list(optarg, 0, &o->prompts); break;
        case 'n': ok = parse_list(optarg, 0, &o->decodes); break;
        case 't': ok = parse_list(optarg, 1, &o->threads); break;
        case 'g': ok = parse_int(optarg, -1, 63, &o->gpu); break;
        case 'V': ok = parse_int(optarg, 0, 1 << 24, &o->vram_mb); break;
        case 'b': ok = parse_int(optarg, 1, 8192, &o->n_batch); break;
        case 'r': ok = parse_int(optarg, 1, MAX_REPS, &o->reps); break;
        case 'o': ok = parse_output(optarg, &o->output); break;
        case RAM_MB: ok = parse_int(optarg, 1, 1 << 30, &o->ram_mb); break;
        case STREAMING: o->streaming = true; break;
        case REPLAY: o->replay = optarg; break;
        case SLOTS: ok = parse_int(optarg, 1, 1 << 30, &o->slots); break;
        case 'h': usage(stdout); exit(0);
        case '?': usage(stderr); return EXIT_USAGE;
        default:  ok = opts_shared_set(&o->shared, c - SHARED, optarg, &why); break;
        }
        if (!ok && why) {
            fprintf(stderr, "pfmoe-bench: --%s: %s\n", options[n_own + c - SHARED].name, why);
            return EXIT_USAGE;
        }
        if (!ok) {
            fprintf(stderr, "pfmoe-bench: %s is not a value that its option takes\n", optarg);
            return EXIT_USAGE;
        }
    }
    if ((!o->model && !o->replay) || optind < argc) {
        usage(stderr);
        return EXIT_USAGE;
    }
    return 0;
}

static int largest(const struct list *a, int at_least)
{
    for (int i = 0; i < a->n; i++)
        at_least = a->v[i] > at_least ? a->v[i] : at_least;
    return at_least;
}

static int complain_of(const char *why)
{
    fprintf(stderr, "pfmoe-bench: %s\n", why);
    return EXIT_FAILED;
}

/* All tests with one thread count; appends to rows. */
static int run_threads(const struct bench *o, int threads, struct membw *bw, struct row *rows, int *n_rows)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    struct pf_model_opts mo;
    struct pf_session_opts so;
    const char *why;
    int status = 0;
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    mo.n_threads = threads;
    mo.device = o->gpu;
    mo.vram_bytes = (uint64_t)o->vram_mb * 1000000;
    mo.ram_bytes = (uint64_t)o->ram_mb * 1000000;
    mo.streaming = o->streaming;
    opts_shared_model(&o->shared, &mo);
    so.n_ctx = largest(&o->prompts, largest(&o->decodes, 1));
    so.n_batch = o->n_batch;
    if (pf_model_open(&m, o->model, &mo) < 0)
        return fail("cannot open the model");
    if (!report_begin(&o->shared.report, m, &why))
        status = complain_of(why);
    if (!status && pf_session_open(&s, m, &so) < 0)
        status = fail("cannot open a session");
    if (!status && strcmp(pf_model_info(m)->backend, "cpu") != 0 && pf_model_preload(m, NULL, 0, NULL, NULL) < 0)
        status = fail("cannot load the weights");
    for (int i = 0; !status && i < o->prompts.n + o->decodes.n; i++) {
        bool decode = i >= o->prompts.n;
        int n = decode ? o->decodes.v[i - o->prompts.n] : o->prompts.v[i];
        struct row *r = &rows[*n_rows];
        const struct pf_model_info *info = pf_model_info(m);
        *r = (struct row){ .threads = info->n_threads };
        int used = snprintf(r->backend, sizeof r->backend, "%s", info->backend);
        if (info->n_gpu_layers > 0 && info->n_gpu_layers < info->n_layers)
            snprintf(r->backend + used, sizeof r->backend - (size_t)used, " %d/%d", info->n_gpu_layers, (int)info->n_layers);
        snprintf(r->model, sizeof r->model, "%s", info->name[0] ? info->name : o->model);
        snprintf(r->isa, sizeof r->isa, "%s", info->isa);
        status = run_test(m, s, bw, o, n, decode, r);
        if (!status)
            print_sharing(stderr, r);
        *n_rows += !status;
    }
    double machine_bytes_s = *n_rows ? rows[*n_rows - 1].machine_gb_s * 1e9 : 0;
    if (!status && !report_end(&o->shared.report, m, machine_bytes_s, &why))
        status = complain_of(why);
    pf_session_close(&s);
    pf_model_close(&m);
    return status;
}

static int replay(const struct bench *o)
{
    struct pf_replay rows[MAX_LIST];
    int n = 0;
    if (pf_trace_replay(o->replay, o->slots, rows, MAX_LIST, &n) < 0)
        return fail("cannot replay");
    printf("%llu tokens, %llu experts in memory\n\npolicy          uses        hits  share\n",
           (unsigned long long)rows[0].n_tokens, (unsigned long long)rows[0].n_slots);
    for (int i = 0; i < n && i < MAX_LIST; i++)
        printf("%-9s %10llu  %10llu  %4.1f%%\n", rows[i].policy, (unsigned long long)rows[i].n_uses,
               (unsigned long long)rows[i].n_hits, rows[i].n_uses ? 100.0 * (double)rows[i].n_hits / (double)rows[i].n_uses : 0);
    return 0;
}

int main(int argc, char **argv)
{
    static struct row rows[MAX_LIST * 2 * MAX_LIST];
    struct bench o = { .prompts = { 1, { 512 } }, .decodes = { 1, { 128 } }, .reps = 5, .n_batch = 512 };
    struct pf_device cpu;
    int n_rows = 0, status = parse(argc, argv, &o);
    if (status)
        return status;
    if (o.replay)
        return replay(&o);
    if (o.threads.n == 0) {
        pf_devices(&cpu, 1);
        o.threads = (struct list){ 1, { cpu.n_units } };
    }
    struct membw *bw = membw_open((size_t)512 << 20);
    if (!bw) {
        fputs("pfmoe-bench: no memory to measure the bandwidth with\n", stderr);
        return EXIT_FAILED;
    }
    for (int i = 0; !status && i < o.threads.n; i++)
        status = run_threads(&o, o.threads.v[i], bw, rows, &n_rows);
    membw_close(bw);
    if (n_rows)
        print_rows(rows, n_rows, o.output);
    return status;
}

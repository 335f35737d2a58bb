/* pfmoe-bench: prompt and decode speed, each beside what this machine allows, measured in the same run.
 *
 * A row is one test (ppN: a prompt of N tokens; tgN: N tokens decoded one by one; tgNxS: by S sequences together, whose
 * tokens are counted together) with one thread count and one budget of the GPU's memory.
 *
 * Each repetition first measures how fast memory is (roofline.h), then runs the test; medians are reported, with
 * minimum and maximum. One run of each test before that is not counted. Each row of csv, json and jsonl names the
 * commit, day, CPU, GPU and driver it was measured with, so that it can be judged away from its file; a table names
 * them once, in its first line. */
#define _GNU_SOURCE
#include <cjson/cJSON.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "program/opts.h"
#include "program/stack.h"
#include "commit.h"
#include "membw.h"
#include "pfmoe.h"
#include "roofline.h"

enum { MAX_LIST = 16, MAX_SEQUENCES = 64, MAX_REPS = 100, MAX_OPTIONS = 64 };

enum output { OUT_TABLE, OUT_MD, OUT_CSV, OUT_JSON, OUT_JSONL };
static const char *const output_names[] = { "table", "md", "csv", "json", "jsonl" };

struct list {
    int n, v[MAX_LIST];
};

struct bench {
    struct settings shared;      /* options that pfmoe-run has, too: experts and reports */
    const char *model;
    struct list prompts, decodes, sequences, threads, vram_mb;
    int         reps, n_batch, gpu, ram_mb, slots;
    bool        streaming;
    const char *replay;          /* a routing trace instead of a model */
    enum output output;
};

struct row {
    char   test[16], model[128], backend[16], isa[24];
    char   date[16], cpu[96], gpu[64], driver[48];           /* gpu and driver: "" where no GPU computed */
    int    threads, vram_mb, sequences;
    double tok_s, tok_s_min, tok_s_max, bytes_per_token, gb_s, machine_gb_s, bandwidth_share;
    double held, ram_gb_s, pcie_gb_s, joint_gb_s, roofline_tok_s, roofline_share;
    double most_together;        /* how many times the tok/s of one sequence so many can have, by their bytes */
    double launches, handoff_p50_us, handoff_p95_us;
    struct pf_stats stats;
};

/* A row in CSV and JSON: test, model, backend, isa, threads, vram_mb, sequences, these
 * numbers, commit, date, cpu, gpu, driver. */
static const struct {
    const char *name;
    size_t      offset;
    int         digits;
} numbers[] = {
#define NUMBER(name, digits) { #name, offsetof(struct row, name), digits }
    NUMBER(tok_s, 3), NUMBER(tok_s_min, 3), NUMBER(tok_s_max, 3), NUMBER(bytes_per_token, 0), NUMBER(gb_s, 3),
    NUMBER(machine_gb_s, 3), NUMBER(bandwidth_share, 4), NUMBER(held, 4), NUMBER(ram_gb_s, 3), NUMBER(pcie_gb_s, 3),
    NUMBER(joint_gb_s, 3), NUMBER(roofline_tok_s, 3), NUMBER(roofline_share, 4), NUMBER(most_together, 3),
    NUMBER(launches, 1),
    NUMBER(handoff_p50_us, 2),
    NUMBER(handoff_p95_us, 2),
#undef NUMBER
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static double number_of(const struct row *r, int i)
{
    double v;
    memcpy(&v, (const char *)r + numbers[i].offset, sizeof v);
    return v;
}

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

/* A prompt, or tokens decoded one by one, in each of some sessions together. */
struct test {
    pf_session *s[MAX_SEQUENCES];
    int         n_sequences, n;              /* tokens of each */
    bool        decode;
    int32_t    *tok;                         /* [n_sequences][n] */
};

/* The first n tokens of each from an empty context; seconds, or negative on failure. */
static double run_once(const struct test *t, int n)
{
    struct pf_batch_part parts[MAX_SEQUENCES];
    for (int k = 0; k < t->n_sequences; k++) {
        parts[k] = (struct pf_batch_part){ t->s[k], t->tok + (size_t)k * (size_t)t->n, t->decode ? 1 : (size_t)n, 0 };
        if (pf_session_rewind(t->s[k], 0) < 0)
            return -1;
    }
    double begin = now();
    for (int i = 0; i < n; i += t->decode ? 1 : n) {
        if (pf_batch_eval(parts, (size_t)t->n_sequences) < 0)
            return -1;
        for (int k = 0; k < t->n_sequences; k++)
            parts[k].tok++;
    }
    return now() - begin;
}

/* Today in UTC, this machine's CPU and, unless it is negative, the GPU of that number. */
static void describe_machine(struct row *row, int gpu)
{
    enum { MOST = 65 };                                      /* the CPU and as many GPUs as -g takes */
    static struct pf_device devices[MOST];
    time_t t = time(NULL);
    int n = pf_devices(devices, MOST);
    strftime(row->date, sizeof row->date, "%Y-%m-%d", gmtime(&t));
    snprintf(row->cpu, sizeof row->cpu, "%s, %d cores", devices[0].name, devices[0].n_units);
    if (gpu < 0 || gpu + 1 >= n)
        return;
    snprintf(row->gpu, sizeof row->gpu, "%s", devices[gpu + 1].name);
    snprintf(row->driver, sizeof row->driver, "%s", devices[gpu + 1].driver);
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

static bool on_gpu(const struct pf_model_info *info)
{
    return strcmp(info->backend, "cpu") != 0;
}

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

static double step_growth(const struct pf_model_info *info, double expert_bytes, int sequences)
{
    return 1 + expert_bytes / (double)info->bytes_per_token * (expert_growth(info, sequences) - 1);
}

/* The limit that the row ran against: 0 if it is not known, as where the drive took part, or for a prompt that was
 * computed from where its weights lie. A prompt whose experts crossed PCIe could not be faster than that. */
static double limit_of(const struct pf_model_info *info, const struct rates *rates, const struct pf_stats *s,
                       const struct test *t, double expert_bytes, double held)
{
    const double MOST_HANDOFF_NS = 10000;        /* slower hand-offs must not lower the limit */
    double handoff = (double)s->handoff_p50_ns < MOST_HANDOFF_NS ? (double)s->handoff_p50_ns : MOST_HANDOFF_NS;
    struct token_work w = { .gpu_bytes = (double)info->gpu_bytes_per_token,
                            .rest_bytes = (double)(info->bytes_per_token - info->gpu_bytes_per_token),
                            .shared = shares(info), .held = held,
                            .handoffs_ns = handoff * (double)info->n_expert_layers };
    if (s->disk_bytes_read > 0)
        return 0;
    if (!t->decode)
        return s->stream_bytes ? rates->pcie * (double)s->n_tokens / (double)s->stream_bytes : 0;
    bool apart = info->gpu_bytes_per_token < info->bytes_per_token;      /* experts are part of rest_bytes */
    *(apart ? &w.rest_bytes : &w.gpu_bytes) += expert_bytes * (expert_growth(info, t->n_sequences) - 1);
    return t->n_sequences * roofline_tok_s(rates, &w);
}

static void fill_row(struct row *row, const struct pf_model_info *info, const struct rates *rates,
                     const struct pf_stats *s, const struct test *t, double expert_bytes)
{
    double n = (double)s->n_tokens, wanted = (double)(s->vram_hits + s->slab_hits + s->slab_misses);
    row->stats = *s;
    row->machine_gb_s = (on_gpu(info) ? rates->vram : rates->ram) * 1e-9;
    row->bytes_per_token = (double)s->weight_bytes_read / n;
    row->gb_s = row->tok_s * row->bytes_per_token * 1e-9;
    row->bandwidth_share = row->machine_gb_s > 0 ? row->gb_s / row->machine_gb_s : 0;
    row->held = shares(info) && wanted > 0 ? (double)s->vram_hits / wanted : 0;
    row->ram_gb_s = rates->ram * 1e-9;
    row->pcie_gb_s = rates->pcie * 1e-9;
    row->joint_gb_s = rates->joint * 1e-9;
    row->sequences = t->n_sequences;
    row->most_together = t->n_sequences / step_growth(info, expert_bytes, t->n_sequences);
    row->roofline_tok_s = limit_of(info, rates, s, t, expert_bytes, row->held);
    row->roofline_share = row->roofline_tok_s > 0 ? row->tok_s / row->roofline_tok_s : 0;
    row->launches = (double)s->n_launches / n;
    row->handoff_p50_us = (double)s->handoff_p50_ns * 1e-3;
    row->handoff_p95_us = (double)s->handoff_p95_ns * 1e-3;
}

/* Runs the test often enough, and says what came of it. */
static int run_test(pf_model *m, const struct test *t, struct membw *bw, const struct bench *o, double expert_bytes,
                    struct row *row)
{
    const struct pf_model_info *info = pf_model_info(m);
    double tok_s[MAX_REPS];
    struct rates rates[MAX_REPS], typical;
    struct pf_stats stats;
    make_tokens(t->tok, t->n * t->n_sequences, info->n_vocab);
    if (run_once(t, t->decode && t->n > 16 ? 16 : t->n) < 0)
        return fail("warm-up failed");
    pf_stats_reset(m);
    for (int r = 0; r < o->reps; r++) {
        rates_measure(&rates[r], bw, row->threads, on_gpu(info) ? o->gpu : -1,
                      info->gpu_bytes_per_token < info->bytes_per_token, shares(info));
        double seconds = run_once(t, t->n);
        if (seconds < 0)
            return fail("evaluation failed");
        tok_s[r] = t->n * t->n_sequences / seconds;
    }
    pf_stats_get(m, &stats);
    row->tok_s = median(tok_s, o->reps);
    row->tok_s_min = tok_s[0];
    row->tok_s_max = tok_s[o->reps - 1];
    typical = median_rates(rates, o->reps);
    fill_row(row, info, &typical, &stats, t, expert_bytes);
    int used = snprintf(row->test, sizeof row->test, "%s%d", t->decode ? "tg" : "pp", t->n);
    if (t->n_sequences > 1)
        snprintf(row->test + used, sizeof row->test - (size_t)used, "x%d", t->n_sequences);
    return 0;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

/* For the eye: the rates measured beside a row with a GPU, and what its experts did. */
static void print_gpu(FILE *f, const struct row *r)
{
    if (strncmp(r->backend, "cpu", 3) == 0)
        return;
    fprintf(f, "%s, %d threads", r->test, r->threads);
    if (r->vram_mb)
        fprintf(f, ", %d MB of the GPU's memory", r->vram_mb);
    fprintf(f, ": GB/s of the GPU's memory %.0f", r->machine_gb_s);
    if (r->ram_gb_s > 0)
        fprintf(f, ", main memory %.1f", r->ram_gb_s);
    if (r->pcie_gb_s > 0)
        fprintf(f, ", copies to the GPU %.1f, both at once %.1f", r->pcie_gb_s, r->joint_gb_s);
    putc('\n', f);
    report_experts(f, &r->stats);
}

/* For the eye: what sequences that decode together can gain. */
static void print_together(FILE *f, const struct row *r, const struct pf_model_info *info)
{
    if (r->sequences == 1)
        return;
    fprintf(f, "%s: by the bytes of a step, at most %.2f times the tok/s of one sequence", r->test, r->most_together);
    if (info->n_experts > 0)
        fprintf(f, "; %d picks of %d experts fall on %.1f, if routing is random",
                r->sequences * (int)info->n_experts_used, (int)info->n_experts,
                (double)info->n_experts_used * expert_growth(info, r->sequences));
    putc('\n', f);
}

static cJSON *row_json(const struct row *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "test", r->test);
    cJSON_AddStringToObject(o, "model", r->model);
    cJSON_AddStringToObject(o, "backend", r->backend);
    cJSON_AddStringToObject(o, "isa", r->isa);
    cJSON_AddNumberToObject(o, "threads", r->threads);
    cJSON_AddNumberToObject(o, "vram_mb", r->vram_mb);
    cJSON_AddNumberToObject(o, "sequences", r->sequences);
    for (int i = 0; i < N_NUMBERS; i++)
        cJSON_AddNumberToObject(o, numbers[i].name, number_of(r, i));
    cJSON_AddStringToObject(o, "commit", PF_COMMIT);
    cJSON_AddStringToObject(o, "date", r->date);
    cJSON_AddStringToObject(o, "cpu", r->cpu);
    cJSON_AddStringToObject(o, "gpu", r->gpu);
    cJSON_AddStringToObject(o, "driver", r->driver);
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

/* A field in quotes, behind a comma; quotes inside it are doubled. */
static void print_csv_text(const char *text)
{
    fputs(",\"", stdout);
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_csv(const struct row *rows, int n)
{
    printf("test,model,backend,isa,threads,vram_mb,sequences");
    for (int k = 0; k < N_NUMBERS; k++)
        printf(",%s", numbers[k].name);
    puts(",commit,date,cpu,gpu,driver");
    for (int i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        fputs(r->test, stdout);
        print_csv_text(r->model);
        printf(",%s,%s,%d,%d,%d", r->backend, r->isa, r->threads, r->vram_mb, r->sequences);
        for (int k = 0; k < N_NUMBERS; k++)
            printf(",%.*f", numbers[k].digits, number_of(r, k));
        printf(",%s,%s", PF_COMMIT, r->date);
        print_csv_text(r->cpu);
        print_csv_text(r->gpu);
        print_csv_text(r->driver);
        putchar('\n');
    }
}

static void print_table(const struct row *rows, int n, bool md)
{
    static const char *const heads[] = {
        "test      threads     VRAM     tok/s       min       max   MB/token    GB/s  machine  share"
        "  roofline  reached",
        "| test | threads | VRAM MB | tok/s | min | max | MB/token | GB/s | machine GB/s | share"
        " | roofline tok/s | reached |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    };
    static const char *const forms[] = {
        "%-9s %7d %8s %9.2f %9.2f %9.2f %10.1f %7.2f %8.2f %5.0f%% %9s %7.0f%%\n",
        "| %s | %d | %s | %.2f | %.2f | %.2f | %.1f | %.2f | %.2f | %.0f%% | %s | %.0f%% |\n",
    };
    const struct row *first = &rows[0];
    printf("%s, %s (%s); commit %s, %s; %s%s%s%s%s\n\n%s\n", first->model, first->backend, first->isa, PF_COMMIT,
           first->date, first->cpu, first->gpu[0] ? "; " : "", first->gpu, first->driver[0] ? ", driver " : "",
           first->driver, heads[md]);
    for (int i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        char vram[16] = "-", roofline[24] = "-";
        if (r->vram_mb > 0)
            snprintf(vram, sizeof vram, "%d", r->vram_mb);
        if (r->roofline_tok_s > 0)
            snprintf(roofline, sizeof roofline, "%.2f", r->roofline_tok_s);
        printf(forms[md], r->test, r->threads, vram, r->tok_s, r->tok_s_min, r->tok_s_max, r->bytes_per_token * 1e-6,
               r->gb_s, r->machine_gb_s, 100 * r->bandwidth_share, roofline, 100 * r->roofline_share);
    }
}

static void print_rows(const struct row *rows, int n, enum output out)
{
    if (out == OUT_JSON || out == OUT_JSONL)
        print_json(rows, n, out == OUT_JSONL);
    else if (out == OUT_CSV)
        print_csv(rows, n);
    else
        print_table(rows, n, out == OUT_MD);
}

/* ---- Command line ----------------------------------------------------------------------------------------------- */

static void usage(void)
{
    fputs("usage: pfmoe-bench -m MODEL.gguf [options]\n"
          "Prompt and decode speed, beside the memory bandwidth measured in the same run.\n\n"
          "  -m, --model FILE      the model\n"
          "  -p, --prompt N[,N]    prompt lengths (default 512; 0: none)\n"
          "  -n, --gen N[,N]       tokens to decode (default 128; 0: none)\n"
          "  -s, --sequences N[,N] sequences that decode together, token by token (default 1); N is 64 at most\n"
          "  -t, --threads N[,N]   computing threads (default: one per core)\n"
          "  -g, --gpu N           the GPU to use (default 0); -1: the CPU\n"
          "      --vram-mb N[,N]   take no more than so much of its memory (default 0: what is free)\n"
          "  -b, --batch N         rows evaluated at once in a prompt (default 512)\n"
          "  -r, --repetitions N   counted runs of each test (default 5)\n"
          "  -o, --output FORM     table, md, csv, json, jsonl (default table)\n"
          "      --ram-mb N        memory for the model (default: what the system can spare)\n"
          "      --streaming       do not hold the whole model in memory, even if it fits\n"
          "      --replay TRACE    hits of every replacement policy on a routing trace, beside the best possible\n"
          "      --slots N         experts in memory in a replay (default: half of them)\n"
          "  -h, --help\n", stdout);
    opts_shared_help();
}

static bool parse_int(const char *text, int min, int max, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    *out = (int)v;
    return *end == 0 && end != text && v >= min && v <= max;
}

static bool parse_list(const char *text, int min, struct list *out)
{
    char part[16];
    out->n = 0;
    for (int n; *text; text += text[n] == ',' ? n + 1 : n) {
        if (sscanf(text, "%15[^,]%n", part, &n) != 1 || out->n == MAX_LIST ||
            !parse_int(part, min, 1 << 20, &out->v[out->n]))
            return false;
        out->n += out->v[out->n] > 0;
    }
    return true;
}

static int largest(const struct list *a, int at_least)
{
    for (int i = 0; i < a->n; i++)
        at_least = a->v[i] > at_least ? a->v[i] : at_least;
    return at_least;
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

static const char *name_of(const struct option *options, int code)
{
    while (options->val != code)
        options++;
    return options->name;
}

static void parse(int argc, char **argv, struct bench *o)
{
    enum { RAM_MB = 256, VRAM_MB, STREAMING, REPLAY, SLOTS, SHARED };
    struct option options[MAX_OPTIONS] = {
        { "ram-mb", required_argument, 0, RAM_MB }, { "streaming", no_argument, 0, STREAMING },
        { "replay", required_argument, 0, REPLAY }, { "slots", required_argument, 0, SLOTS },
        { "model", required_argument, 0, 'm' },   { "prompt", required_argument, 0, 'p' },
        { "gen", required_argument, 0, 'n' },     { "threads", required_argument, 0, 't' },
        { "sequences", required_argument, 0, 's' },
        { "gpu", required_argument, 0, 'g' },     { "vram-mb", required_argument, 0, VRAM_MB },
        { "batch", required_argument, 0, 'b' },   { "repetitions", required_argument, 0, 'r' },
        { "output", required_argument, 0, 'o' },  { "help", no_argument, 0, 'h' },
    };
    int n_own = 0;
    while (options[n_own].name)
        n_own++;
    add_shared(options, n_own, SHARED);
    opts_shared_begin(&o->shared);
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":m:p:n:s:t:g:b:r:o:h", options, NULL)) != -1;) {
        const char *why = "not a value that it takes (see --help)";
        bool ok = true;
        switch (c) {
        case 'm': o->model = optarg; break;
        case 'p': ok = parse_list(optarg, 0, &o->prompts); break;
        case 'n': ok = parse_list(optarg, 0, &o->decodes); break;
        case 's': ok = parse_list(optarg, 1, &o->sequences) && largest(&o->sequences, 1) <= MAX_SEQUENCES; break;
        case 't': ok = parse_list(optarg, 1, &o->threads); break;
        case 'g': ok = parse_int(optarg, -1, 63, &o->gpu); break;
        case VRAM_MB: ok = parse_list(optarg, 0, &o->vram_mb); break;
        case 'b': ok = parse_int(optarg, 1, 8192, &o->n_batch); break;
        case 'r': ok = parse_int(optarg, 1, MAX_REPS, &o->reps); break;
        case 'o': ok = parse_output(optarg, &o->output); break;
        case RAM_MB: ok = parse_int(optarg, 1, 1 << 30, &o->ram_mb); break;
        case STREAMING: o->streaming = true; break;
        case REPLAY: o->replay = optarg; break;
        case SLOTS: ok = parse_int(optarg, 1, 1 << 30, &o->slots); break;
        case 'h': usage(); exit(EXIT_DONE);
        case '?':
        case ':': die_of_option(c, argv);
        default:  ok = opts_shared_set(&o->shared, c - SHARED, optarg, &why); break;
        }
        if (!ok)
            die(EXIT_USAGE, "--%s %s: %s", name_of(options, c), optarg, why);
    }
    if (optind < argc)
        die(EXIT_USAGE, "\"%s\" is not expected (see --help)", argv[optind]);
    if (!o->model && !o->replay)
        die(EXIT_USAGE, "a model is needed: -m FILE, or --replay TRACE (see --help)");
}

static int complain_of(const char *why)
{
    complain("%s", why);
    return EXIT_FAILED;
}

/* The name comes from the file, and goes into tables, a field of CSV and JSON. */
static void name_model(struct row *r, const char *name)
{
    struct buf clean = { 0 };
    buf_add_clean(&clean, name, strlen(name));
    for (char *p = clean.p; p && (p = strpbrk(p, "\"\n\t"));)
        *p = *p == '"' ? '\'' : ' ';
    snprintf(r->model, sizeof r->model, "%.*s", (int)pf_utf8_complete(buf_text(&clean), clean.n < 127 ? clean.n : 127),
             buf_text(&clean));
    buf_free(&clean);
}

/* Tests are numbered: prompts, then tokens to decode by the first number of sequences, by the second ... */
static int n_tests(const struct bench *o)
{
    return o->prompts.n + o->decodes.n * o->sequences.n;
}

static struct test test_at(const struct bench *o, int i)
{
    int j = i - o->prompts.n;
    if (j < 0)
        return (struct test){ .n_sequences = 1, .n = o->prompts.v[i] };
    return (struct test){ .n_sequences = o->sequences.v[j / o->decodes.n], .n = o->decodes.v[j % o->decodes.n],
                          .decode = true };
}

static void close_test(struct test *t)
{
    for (int k = 0; k < t->n_sequences; k++)
        pf_session_close(&t->s[k]);
    free(t->tok);
}

static int open_test(struct test *t, pf_model *m, const struct bench *o)
{
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = largest(&o->prompts, largest(&o->decodes, 1));
    so.n_batch = o->n_batch;
    t->tok = malloc((size_t)t->n * (size_t)t->n_sequences * sizeof *t->tok);
    for (int k = 0; k < t->n_sequences; k++)
        if (pf_session_open(&t->s[k], m, &so) < 0)
            return fail("cannot open a session");
    return t->tok ? 0 : EXIT_FAILED;
}

static struct row row_of(pf_model *m, const struct bench *o, int vram_mb)
{
    const struct pf_model_info *info = pf_model_info(m);
    struct row r = { .threads = info->n_threads, .vram_mb = vram_mb };
    int used = snprintf(r.backend, sizeof r.backend, "%s", info->backend);
    if (info->n_gpu_layers > 0 && info->n_gpu_layers < info->n_layers)
        snprintf(r.backend + used, sizeof r.backend - (size_t)used, " %d/%d", info->n_gpu_layers, (int)info->n_layers);
    name_model(&r, info->name[0] ? info->name : o->model);
    snprintf(r.isa, sizeof r.isa, "%s", info->isa);
    describe_machine(&r, on_gpu(info) ? o->gpu : -1);
    return r;
}

/* Bytes of the routed experts that one token reads. */
static double token_expert_bytes(const struct bench *o)
{
    struct pf_file_info f;
    if (pf_file_inspect(o->model, 0, &f) < 0 || f.n_experts == 0)
        return 0;
    return (double)f.expert_bytes * (double)f.n_experts_used / (double)f.n_experts;
}

/* Loads what a GPU wants to have in memory before the first token. */
static int load(pf_model *m)
{
    if (on_gpu(pf_model_info(m)) && (pf_model_preload(m, NULL, 0, NULL, NULL) < 0 || pf_model_measure(m) < 0))
        return fail("cannot load the weights");
    return 0;
}

/* Test number i, in sessions of its own. */
static int run_numbered(pf_model *m, const struct bench *o, int i, int vram_mb, struct membw *bw, struct row *row)
{
    struct test t = test_at(o, i);
    int status = open_test(&t, m, o);
    if (!status)
        status = load(m);
    *row = row_of(m, o, vram_mb);
    if (!status)
        status = run_test(m, &t, bw, o, token_expert_bytes(o), row);
    if (!status) {
        print_gpu(stderr, row);
        print_together(stderr, row, pf_model_info(m));
    }
    close_test(&t);
    return status;
}

/* All tests with one thread count and one budget; appends to rows. */
static int run_model(const struct bench *o, int threads, int vram_mb, struct membw *bw, struct row *rows, int *n_rows)
{
    pf_model *m = NULL;
    struct pf_model_opts mo;
    const char *why;
    int status = 0;
    pf_model_opts_init(&mo);
    mo.n_threads = threads;
    mo.device = o->gpu;
    mo.vram_bytes = (uint64_t)vram_mb * 1000000;
    mo.ram_bytes = (uint64_t)o->ram_mb * 1000000;
    mo.streaming = o->streaming;
    opts_shared_model(&o->shared, &mo);
    if (pf_model_open(&m, o->model, &mo) < 0)
        return fail("cannot open the model");
    if (!report_begin(&o->shared.report, m, &why))
        status = complain_of(why);
    for (int i = 0; !status && i < n_tests(o); i++) {
        status = run_numbered(m, o, i, vram_mb, bw, &rows[*n_rows]);
        *n_rows += !status;
    }
    const struct row *last = *n_rows ? &rows[*n_rows - 1] : NULL;
    struct report_limits limits = { last ? last->machine_gb_s * 1e9 : 0, last ? last->roofline_tok_s : 0 };
    if (!status && !report_end(&o->shared.report, m, &limits, &why))
        status = complain_of(why);
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
               (unsigned long long)rows[i].n_hits,
               rows[i].n_uses ? 100.0 * (double)rows[i].n_hits / (double)rows[i].n_uses : 0);
    return 0;
}

/* Every thread count with every budget of the GPU's memory. */
static int run_all(const struct bench *o, struct membw *bw, struct row *rows, int *n_rows)
{
    int status = 0;
    for (int v = 0; !status && v < o->vram_mb.n; v++)
        for (int i = 0; !status && i < o->threads.n; i++)
            status = run_model(o, o->threads.v[i], o->vram_mb.v[v], bw, rows, n_rows);
    return status;
}

/* For measuring main memory: an eighth of what the model may have. */
static size_t spare_memory(const struct bench *o)
{
    struct pf_model_opts mo;
    struct pf_plan plan;
    pf_model_opts_init(&mo);
    mo.device = -1;
    mo.ram_bytes = (uint64_t)o->ram_mb * 1000000;
    mo.speeds = (struct pf_speeds){ 1, 1, 1, 1 };            /* nothing is to be measured */
    return pf_model_plan(o->model, &mo, NULL, &plan) == PF_OK ? (size_t)(plan.ram_budget_bytes / 8) : (size_t)64 << 20;
}

static int start(int argc, char **argv)
{
    struct bench o = { .prompts = { 1, { 512 } }, .decodes = { 1, { 128 } }, .reps = 5, .n_batch = 512 };
    struct pf_device cpu;
    int n_rows = 0, status = EXIT_FAILED;
    parse(argc, argv, &o);
    if (o.replay)
        return replay(&o);
    if (o.threads.n == 0) {
        pf_devices(&cpu, 1);
        o.threads = (struct list){ 1, { cpu.n_units } };
    }
    if (o.vram_mb.n == 0)
        o.vram_mb = (struct list){ 1, { 0 } };
    if (o.sequences.n == 0)
        o.sequences = (struct list){ 1, { 1 } };
    struct row *rows = calloc((size_t)(o.vram_mb.n * o.threads.n * n_tests(&o)) + 1, sizeof *rows);
    struct membw *bw = membw_open(spare_memory(&o));
    if (rows && bw)
        status = run_all(&o, bw, rows, &n_rows);
    else
        complain("no memory to measure the bandwidth with");
    membw_close(bw);
    if (n_rows)
        print_rows(rows, n_rows, o.output);
    free(rows);
    return status;
}

int main(int argc, char **argv)
{
    return stack_run(start, argc, argv);
}

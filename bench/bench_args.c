/* The command line of pfmoe-bench: its own options by getopt, and shared ones by program/opts.h. */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { MAX_OPTIONS = 64 };

static const char *const output_names[] = { "table", "md", "csv", "json", "jsonl" };

static void usage(void)
{
    fputs("usage: pfmoe-bench -m MODEL.gguf [options]\n"
          "Prompt and decode speed, beside the memory bandwidth measured in the same run.\n\n"
          "  -m, --model FILE      the model; may be given up to 16 times\n"
          "  -p, --prompt N[,N]    prompt lengths (default 512; 0: none)\n"
          "  -n, --gen N[,N]       tokens to decode (default 128; 0: none)\n"
          "      --pg P,G          a prompt of P tokens, then G tokens decoded, as one test (or -pg); may be given up\n"
          "                        to 16 times\n"
          "  -d, --depth N[,N]     tokens that are there before a test begins (default 0)\n"
          "  -s, --sequences N[,N] sequences that decode together, token by token (default 1); N is 64 at most\n"
          "  -t, --threads N[,N]   computing threads (default: one per core)\n"
          "  -g, --gpus N[,N]      the GPUs to use together (default 0 alone); -1: the CPU\n"
          "      --layout HOW      auto, or layers: divide the model even if the first GPU has room for it\n"
          "      --vram-mb N[,N]   take no more than so much memory of each (default 0: what is free)\n"
          "  -b, --batch N[,N]     rows evaluated at once in a prompt (default 512)\n"
          "      --kv TYPE[,TYPE]  types of keys and values: i16, f32, q8_0 (default i16)\n"
          "  -r, --repetitions N   counted runs of each test (default 5)\n"
          "  -o, --output FORM     table, md, csv, json, jsonl (default table)\n"
          "      --perplexity FILE the perplexity of the text in FILE instead of speed: chunks of --ctx tokens, the\n"
          "                        second half of each counted\n"
          "  -c, --ctx N           tokens of a chunk (default 512)\n"
          "      --progress        say on standard error which run is under way\n"
          "      --ram-mb N        memory for the model (default: what the system can spare)\n"
          "      --streaming       do not hold the whole model in memory, even if it fits\n"
          "      --draft-sim P     decode with drafts of which each is right with probability P\n"
          "      --draft-replay FILE  evaluate the text in FILE, from its start again at its end, instead of random\n"
          "                        tokens: drafts are as good as they are with such text\n"
          "      --replay TRACE    hits of every replacement policy on a routing trace, beside the best possible\n"
          "      --slots N         experts in memory in a replay (default: half of them)\n"
          "  -h, --help\n", stdout);
    opts_shared_help();
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static bool parse_int(const char *text, int min, int max, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    *out = (int)v;
    return *end == 0 && end != text && v >= min && v <= max;
}

/* A number from 0 to 1. */
static bool parse_share(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return *end == 0 && end != text && *out >= 0 && *out <= 1;
}

/* The next word of a list with commas between, into part; false at the end, or if it is longer. */
static bool next_word(const char **text, char *part, size_t cap)
{
    size_t n = strcspn(*text, ",");
    if (!**text || n >= cap)
        return false;
    memcpy(part, *text, n);
    part[n] = 0;
    *text += (*text)[n] == ',' ? n + 1 : n;
    return true;
}

/* Whole numbers from min to max. */
static bool parse_list(const char *text, int min, int max, struct list *out)
{
    char part[16];
    for (out->n = 0; next_word(&text, part, sizeof part); out->n++)
        if (out->n == MAX_LIST || !parse_int(part, min, max, &out->v[out->n]))
            return false;
    return out->n > 0 && !*text;
}

/* As parse_list, for sizes of tests: a 0 stands for no test. */
static bool parse_sizes(const char *text, struct list *out)
{
    int n = 0;
    if (!parse_list(text, 0, MAX_TOKENS, out))
        return false;
    for (int i = 0; i < out->n; i++)
        if (out->v[i] > 0)
            out->v[n++] = out->v[i];
    out->n = n;
    return true;
}

static bool parse_both(const char *text, struct bench *o)
{
    struct list two;
    if (o->both_prompts.n == MAX_LIST || !parse_list(text, 1, MAX_TOKENS, &two) || two.n != 2)
        return false;
    o->both_prompts.v[o->both_prompts.n++] = two.v[0];
    o->both_decodes.v[o->both_decodes.n++] = two.v[1];
    return true;
}

static bool parse_kv(const char *text, struct list *out)
{
    static const struct {
        const char *name;
        enum pf_kv_type type;
    } types[] = { { "i16", PF_KV_I16 }, { "f32", PF_KV_F32 }, { "q8_0", PF_KV_Q8_0 } };
    char part[16];
    for (out->n = 0; out->n < MAX_LIST && next_word(&text, part, sizeof part); out->n++) {
        size_t i = 0;
        while (i < sizeof types / sizeof *types && strcmp(part, types[i].name) != 0)
            i++;
        if (i == sizeof types / sizeof *types)
            return false;
        out->v[out->n] = (int)types[i].type;
    }
    return out->n > 0 && !*text;
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

/* -1 stands alone. */
static bool parse_gpus(const char *text, struct list *out)
{
    enum { MAX_GPU = 63 };
    bool fine = parse_list(text, -1, MAX_GPU, out) && out->n <= PF_MAX_GPUS;
    for (int i = 0; fine && out->n > 1 && i < out->n; i++)
        fine = out->v[i] >= 0;
    return fine;
}

static bool parse_layout(const char *text, bool *by_layers)
{
    *by_layers = strcmp(text, "layers") == 0;
    return *by_layers || strcmp(text, "auto") == 0;
}

static bool add_model(const char *path, struct names *out)
{
    if (out->n == MAX_LIST)
        return false;
    out->v[out->n++] = path;
    return true;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

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

/* -pg is how other engines' benches spell --pg; getopt would take it for -p. */
static void spell_out(int argc, char **argv)
{
    static char both[] = "--pg";
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "-pg") == 0)
            argv[i] = both;
}

enum { RAM_MB = 256, LAYOUT, VRAM_MB, STREAMING, REPLAY, SLOTS, BOTH, KV_TYPE, PROGRESS, DRAFT_SIM, DRAFT_REPLAY,
       PERPLEXITY, SHARED };

/* False: the value is not one that the option takes. */
static bool set(struct bench *o, int c, char **argv, const char **why)
{
    enum { MAX_MB = 1 << 30, MAX_ROWS = 8192 };
    switch (c) {
    case 'm': return add_model(optarg, &o->models);
    case 'p': return parse_sizes(optarg, &o->prompts);
    case 'n': return parse_sizes(optarg, &o->decodes);
    case 'd': return parse_list(optarg, 0, MAX_TOKENS, &o->depths);
    case 's': return parse_list(optarg, 1, MAX_SEQUENCES, &o->sequences);
    case 't': return parse_list(optarg, 1, PF_MAX_THREADS, &o->threads);
    case 'g': return parse_gpus(optarg, &o->gpus);
    case LAYOUT: return parse_layout(optarg, &o->by_layers);
    case 'b': return parse_list(optarg, 1, MAX_ROWS, &o->n_batch);
    case 'r': return parse_int(optarg, 1, MAX_REPS, &o->reps);
    case 'o': return parse_output(optarg, &o->output);
    case BOTH: return parse_both(optarg, o);
    case KV_TYPE: return parse_kv(optarg, &o->kv);
    case VRAM_MB: return parse_list(optarg, 0, MAX_MB, &o->vram_mb);
    case RAM_MB: return parse_int(optarg, 1, MAX_MB, &o->ram_mb);
    case SLOTS: return parse_int(optarg, 1, MAX_MB, &o->slots);
    case REPLAY: o->replay = optarg; return true;
    case PERPLEXITY: o->perplexity = optarg; return true;
    case 'c': return parse_int(optarg, 4, MAX_TOKENS, &o->n_ctx);
    case STREAMING: return o->streaming = true;
    case DRAFT_REPLAY: o->draft_replay = optarg; return true;
    case DRAFT_SIM: return parse_share(optarg, &o->draft_sim);
    case PROGRESS: return o->progress = true;
    case 'h': usage(); exit(EXIT_DONE);
    case '?':
    case ':': die_of_option(c, argv);
    default:  return opts_shared_set(&o->shared, c - SHARED, optarg, why);
    }
}

/* Lists that nobody gave hold their defaults. */
static void fill_in(struct bench *o)
{
    struct pf_device cpu;
    pf_devices(&cpu, 1);
    struct {
        struct list *at;
        int value;
    } defaults[] = { { &o->depths, 0 }, { &o->sequences, 1 }, { &o->threads, cpu.n_units }, { &o->vram_mb, 0 },
                     { &o->gpus, 0 }, { &o->n_batch, 512 }, { &o->kv, PF_KV_I16 } };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (defaults[i].at->n == 0)
            *defaults[i].at = (struct list){ 1, { defaults[i].value } };
}

void bench_read_args(struct bench *o, int argc, char **argv)
{
    struct option options[MAX_OPTIONS] = {
        { "ram-mb", required_argument, 0, RAM_MB }, { "streaming", no_argument, 0, STREAMING },
        { "replay", required_argument, 0, REPLAY }, { "slots", required_argument, 0, SLOTS },
        { "model", required_argument, 0, 'm' },     { "prompt", required_argument, 0, 'p' },
        { "gen", required_argument, 0, 'n' },       { "threads", required_argument, 0, 't' },
        { "sequences", required_argument, 0, 's' }, { "depth", required_argument, 0, 'd' },
        { "pg", required_argument, 0, BOTH },       { "kv", required_argument, 0, KV_TYPE },
        { "gpus", required_argument, 0, 'g' },      { "gpu", required_argument, 0, 'g' },
        { "layout", required_argument, 0, LAYOUT },       { "vram-mb", required_argument, 0, VRAM_MB },
        { "batch", required_argument, 0, 'b' },     { "repetitions", required_argument, 0, 'r' },
        { "output", required_argument, 0, 'o' },    { "progress", no_argument, 0, PROGRESS },
        { "draft-sim", required_argument, 0, DRAFT_SIM }, { "help", no_argument, 0, 'h' },
        { "draft-replay", required_argument, 0, DRAFT_REPLAY },
        { "perplexity", required_argument, 0, PERPLEXITY }, { "ctx", required_argument, 0, 'c' },
    };
    int n_own = 0;
    while (options[n_own].name)
        n_own++;
    *o = (struct bench){ .prompts = { 1, { 512 } }, .decodes = { 1, { 128 } }, .reps = 5, .draft_sim = -1,
                         .n_ctx = 512 };
    add_shared(options, n_own, SHARED);
    opts_shared_begin(&o->shared);
    spell_out(argc, argv);
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":m:p:n:d:s:t:g:b:r:o:c:h", options, NULL)) != -1;) {
        const char *why = "not a value that it takes (see --help)";
        if (!set(o, c, argv, &why))
            die(EXIT_USAGE, "--%s %s: %s", name_of(options, c), optarg, why);
    }
    if (optind < argc)
        die(EXIT_USAGE, "\"%s\" is not expected (see --help)", argv[optind]);
    if (o->models.n == 0 && !o->replay)
        die(EXIT_USAGE, "a model is needed: -m FILE, or --replay TRACE (see --help)");
    if (o->perplexity)
        o->depths.n = 0;
    fill_in(o);
}

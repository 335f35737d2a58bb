/* The table of options, and the parser, help and manual made from it. See opts.h. */
#define _GNU_SOURCE
#include "program/opt_row.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pfmoe.h"
#include "program/foreign.h"
#include "program/io/term.h"

#define AT(member) offsetof(struct settings, member)
enum { ACT_HELP = 1, ACT_VERSION, ACT_MAN };        /* values of `at` for ACTION */

static const char *const group_titles[] = {
    [GROUP_WHAT] = "What to do", [GROUP_SERVER] = "The server", [GROUP_TALK] = "The conversation",
    [GROUP_ANSWER] = "The answer", [GROUP_MACHINE] = "The machine",
    [GROUP_EXPERTS] = "Experts between CPU and GPU (no bit of an answer depends on these)",
    [GROUP_DRAFT] = "Drafts: tokens guessed ahead (no bit of an answer depends on these)",
    [GROUP_LORA] = "Adapters", [GROUP_REPORT] = "Looking inside", [GROUP_CHECK] = "Checking (kept stable)",
    [GROUP_HELP] = "Help",
};

static const struct opt table[] = {
    { GROUP_WHAT, 'm', "model", TEXT, "FILE", AT(model), 0, 0, "PFMOE_MODEL", false,
      "the GGUF file to run (of a split model the first); without it the bundled model. A file without a flag in front "
      "is one, too" },
    { GROUP_WHAT, 0, "hf", TEXT, "NAME", AT(hf), 0, 0, NULL, false,
      "(or -hf) the model owner/repo[:QUANT] of Hugging Face, or of the hub at HF_ENDPOINT: from the hub's cache "
      "folder, fetched into it where it is not there. QUANT may be a file of the repository; without it Q4_K_M is "
      "looked for first" },
    { GROUP_WHAT, 'p', "prompt", TEXT, "TEXT", AT(prompt), 0, 0, NULL, false,
      "answer TEXT and end: the answer alone goes to standard output. TEXT is a user's message, put through the "
      "model's chat template where it has one" },
    { GROUP_WHAT, 'f', "file", TEXT, "FILE", AT(file), 0, 0, NULL, false,
      "as -p, the text being in FILE (- is standard input). Standard input that is no terminal is read without a "
      "flag too" },
    { GROUP_WHAT, 0, "raw", FLAG, NULL, AT(raw), 0, 0, NULL, false,
      "complete the text as it is, without a chat template" },
    { GROUP_WHAT, 0, "info", TEXT, "FILE", AT(info), 0, 0, NULL, false,
      "print what a GGUF file holds and what running it would take" },
    { GROUP_WHAT, 0, "verify", FLAG, NULL, AT(verify), 0, 0, NULL, false, "with --info: read and check every weight" },
    { GROUP_WHAT, 0, "plan", FLAG, NULL, AT(plan), 0, 0, NULL, false,
      "print what of the model would live where, and what that allows; no weight is read" },
    { GROUP_WHAT, 0, "card", TEXT, "NAME", AT(card), 0, 0, NULL, false,
      "with --plan: for a machine with this card, such as \"RTX 4070\" or \"4060 Ti 16\", in this one's place" },

    { GROUP_TALK, 0, "system", TEXT, "TEXT", AT(system), 0, 0, "PFMOE_SYSTEM", false, "the system message" },
    { GROUP_TALK, 0, "template", TEXT, "NAME|FILE", AT(template), 0, 0, "PFMOE_TEMPLATE", false,
      "a built-in chat template, or a Jinja file, instead of the model's own" },
    { GROUP_TALK, 0, "reasoning-effort", TEXT, "LEVEL", AT(reasoning_effort), 0, 0, NULL, false,
      "low, medium or high, for models whose template knows it" },
    { GROUP_TALK, 0, "no-think", FLAG, NULL, AT(no_think), 0, 0, NULL, false,
      "ask the template to leave reasoning out, where it can" },

    { GROUP_ANSWER, 'n', "tokens", WHOLE, "N", AT(n_predict), -1, INT32_MAX, NULL, true,
      "end after N tokens (default: no limit; -1: none either)" },
    { GROUP_ANSWER, 0, "stop", STOPS, "STRING", AT(stops), 0, 0, NULL, false,
      "end before STRING would appear in the answer; may be given up to 16 times" },
    { GROUP_ANSWER, 0, "json-schema", TEXT, "FILE", AT(json_schema), 0, 0, NULL, false,
      "hold the answer to JSON that fulfils the schema in FILE; {} is any JSON" },
    { GROUP_ANSWER, 0, "grammar", TEXT, "FILE", AT(grammar), 0, 0, NULL, false,
      "hold the answer to the GBNF grammar in FILE" },
    { GROUP_ANSWER, 0, "ignore-eos", FLAG, NULL, AT(ignore_eos), 0, 0, NULL, false,
      "go on after the model's end-of-answer token" },
    { GROUP_ANSWER, 0, "temp", REAL, "T", AT(temp), 0, 100, NULL, true,
      "temperature; 0 always takes the likeliest token" },
    { GROUP_ANSWER, 0, "top-k", WHOLE, "N", AT(top_k), 0, INT32_MAX, NULL, true,
      "choose among the N likeliest tokens; 0: all" },
    { GROUP_ANSWER, 0, "top-p", REAL, "P", AT(top_p), 0, 1, NULL, true,
      "choose among the likeliest that make up the share P; 1: all" },
    { GROUP_ANSWER, 0, "min-p", REAL, "P", AT(min_p), 0, 1, NULL, true,
      "leave out tokens less likely than P times the likeliest; 0: none" },
    { GROUP_ANSWER, 0, "repeat-penalty", REAL, "X", AT(repeat_penalty), 0.01, 100, NULL, true,
      "weaken tokens already there; 1: off" },
    { GROUP_ANSWER, 0, "presence-penalty", REAL, "X", AT(presence_penalty), -100, 100, NULL, true,
      "subtract X from tokens already there; 0: off" },
    { GROUP_ANSWER, 0, "frequency-penalty", REAL, "X", AT(frequency_penalty), -100, 100, NULL, true,
      "subtract X for each time a token is there; 0: off" },
    { GROUP_ANSWER, 0, "penalty-last-n", WHOLE, "N", AT(penalty_last_n), -1, INT32_MAX, NULL, true,
      "how many tokens back penalties look (default 64; -1: to the start)" },
    { GROUP_ANSWER, 0, "seed", WHOLE, "N", AT(seed), 0, 9e15, NULL, true,
      "same seed, same answer (default: another every time)" },

    { GROUP_MACHINE, 'c', "ctx", WHOLE, "N", AT(n_ctx), 1, 1 << 30, "PFMOE_CTX", false,
      "context in tokens (default: the model's own, as far as memory allows)" },
    { GROUP_MACHINE, 't', "threads", WHOLE, "N", AT(n_threads), 1, 1024, "PFMOE_THREADS", false,
      "computing threads (default: one a core)" },
    { GROUP_MACHINE, 0, "vram-mb", WHOLE, "N", AT(vram_mb), 0, 1 << 30, "PFMOE_VRAM_MB", false,
      "the GPU's memory to use, in MB of 1e6 bytes (default: what is free)" },
    { GROUP_MACHINE, 0, "ram-mb", WHOLE, "N", AT(ram_mb), 0, 1 << 30, "PFMOE_RAM_MB", false,
      "memory to use, in MB of 1e6 bytes (default: what the system can spare)" },
    { GROUP_MACHINE, 0, "streaming", FLAG, NULL, AT(streaming), 0, 0, NULL, false,
      "never hold the whole model in memory, even if it fits" },
    { GROUP_MACHINE, 0, "no-nvme", FLAG, NULL, AT(no_nvme), 0, 0, NULL, false,
      "do not read weights from the drive while running: fail if memory is too small" },
    { GROUP_MACHINE, 0, "vram-gb-s", REAL, "X", AT(vram_gb_s), 0, 1e5, NULL, false,
      "with --plan: how fast the GPU reads its memory, in GB/s (default: 500 is assumed)" },
    { GROUP_MACHINE, 0, "pcie-gb-s", REAL, "X", AT(pcie_gb_s), 0, 1e5, NULL, false,
      "with --plan: how fast it is to copy to the GPU (default: 20 is assumed)" },
    { GROUP_MACHINE, 0, "ram-gb-s", REAL, "X", AT(ram_gb_s), 0, 1e5, NULL, false,
      "with --plan: how fast main memory is read (default: it is measured)" },
    { GROUP_MACHINE, 0, "drive-gb-s", REAL, "X", AT(disk_gb_s), 0, 1e5, NULL, false,
      "with --plan: how fast the drive is read (default: it is measured on the model's file)" },
    { GROUP_MACHINE, 0, "kv", CHOICE, "i16|f32|q8_0", AT(kv), 0, 0, "PFMOE_KV", false,
      "type of keys and values in memory (default i16)" },
    { GROUP_MACHINE, 0, "isa", CHOICE, "scalar|avx2|avx512|vnni", AT(isa), 0, 0, "PFMOE_ISA", false,
      "use no instructions above this level, to look for a fault; all levels give the same bits" },

    { GROUP_EXPERTS, 0, "postfetch", CHOICE, "0|1", AT(postfetch), 0, 0, "PFMOE_POSTFETCH_ENABLE", false,
      "bring an expert's down matrix to the GPU while the CPU computes its gate and up (default 1)" },
    { GROUP_EXPERTS, 0, "postfetch-force-cpu", CHOICE, "0|1", AT(force_cpu), 0, 0, "PFMOE_POSTFETCH_FORCE_CPU", false,
      "compute no expert on the GPU (default 0)" },
    { GROUP_EXPERTS, 0, "postfetch-block-on-miss", CHOICE, "auto|0|1", AT(block_on_miss), 0, 0,
      "PFMOE_POSTFETCH_BLOCK_ON_MISS", false,
      "when a matrix has not arrived: 1 wait for it, 0 let the CPU go on, auto what takes less time (default)" },
    { GROUP_EXPERTS, 0, "postfetch-max-transfers", WHOLE, "N", AT(max_transfers), 1, 1024,
      "PFMOE_POSTFETCH_MAX_TRANSFERS", false, "transfers under way at once (default 8)" },
    { GROUP_EXPERTS, 0, "postfetch-scratchpad-mb", WHOLE, "N", AT(scratchpad_mb), 0, 1 << 20,
      "PFMOE_POSTFETCH_SCRATCHPAD_MB", false,
      "GPU memory for transfers, in MB of 1e6 bytes (default 0: sized from the model)" },
    { GROUP_EXPERTS, 0, "postfetch-dedicated-streams", CHOICE, "0|1", AT(dedicated_streams), 0, 0,
      "PFMOE_POSTFETCH_USE_DEDICATED_STREAMS", false, "0: copies and computing take turns on one stream (default 1)" },
    { GROUP_EXPERTS, 0, "postfetch-cpu-limit", WHOLE, "auto|N", AT(cpu_limit), 0, 1 << 16, "PFMOE_POSTFETCH_CPU_LIMIT",
      false, "experts of a layer whose gate and up the CPU takes, the rest going to the GPU (default auto)" },
    { GROUP_EXPERTS, 0, "postfetch-debug", CHOICE, "0|1", AT(postfetch_debug), 0, 0, "PFMOE_POSTFETCH_DEBUG", false,
      "a line on standard error for each transfer (default 0)" },

    { GROUP_DRAFT, 0, "draft", CHOICE, "off|auto|lookup", AT(draft), 0, 0, "PFMOE_DRAFT", false,
      "guess tokens ahead and evaluate them together, while that is faster: lookup takes what followed where the "
      "newest tokens stood before, auto whatever pays (default)" },
    { GROUP_DRAFT, 0, "draft-max", WHOLE, "N", AT(draft_max), 1, PF_MAX_DRAFT, "PFMOE_DRAFT_MAX", false,
      "guess at most N tokens at once (default 16)" },

    { GROUP_LORA, 0, "lora", LORAS, "FILE[=SCALE]", AT(loras), 0, 0, NULL, false,
      "add a LoRA adapter in a GGUF file, times SCALE (default 1); may be given up to 16 times" },

    { GROUP_REPORT, 0, "stats", FLAG, NULL, AT(report.stats), 0, 0, NULL, false,
      "at the end print speed, hits of every tier, transfers and what limited them" },
    { GROUP_REPORT, 0, "routing", TEXT, "TRACE", AT(report.routing), 0, 0, NULL, false,
      "take the picks and weights of a recorded trace instead of the router's, token by token: for measurements" },
    { GROUP_REPORT, 0, "expert-trace-stats", CHOICE, "0|1", AT(report.trace_stats), 0, 0, "PFMOE_EXPERT_TRACE_STATS",
      false, "at the end print a table of which experts each layer picked (default 0)" },
    { GROUP_REPORT, 0, "expert-trace-output", TRACE_FILE, "FILE", AT(report.trace_output), 0, 0,
      "PFMOE_EXPERT_TRACE_OUTPUT", false,
      "write it to FILE; the name's ending says how: .json or .csv (counts), .svg (a heat map), .trace (every pick, "
      "for --routing)" },
    { GROUP_REPORT, 0, "expert-trace-logging", CHOICE, "0|1", AT(report.trace_logging), 0, 0,
      "PFMOE_EXPERT_TRACE_LOGGING", false, "print the picks of every token and layer (default 0)" },
    { GROUP_REPORT, 0, "expert-trace-verbose", CHOICE, "0|1", AT(report.trace_verbose), 0, 0,
      "PFMOE_EXPERT_TRACE_VERBOSE", false,
      "and the range of every stage's values; the CPU computes the experts then (default 0)" },
    { GROUP_REPORT, 0, "timeline", TEXT, "FILE", AT(report.timeline), 0, 0, "PFMOE_TIMELINE", false,
      "at the end write to FILE what each part of the machine was at, layer by layer, for chrome://tracing or "
      "Perfetto" },

    { GROUP_CHECK, 0, "score", TEXT, "TOKENS", AT(score), 0, 0, NULL, false,
      "evaluate the token ids in the file TOKENS, separated by commas or blanks; no tokenizer is needed" },
    { GROUP_CHECK, 0, "logits", TEXT, "OUT", AT(logits), 0, 0, NULL, false,
      "with --score: where the logits of every position go, as little-endian float32 without a header" },
    { GROUP_CHECK, 0, "step", FLAG, NULL, AT(step), 0, 0, NULL, false, "with --score: one token at a time" },
    { GROUP_CHECK, 0, "chunk", CHUNKS, "N[,N...]", AT(chunks), 0, 0, NULL, false,
      "with --score: chunks of these sizes in turn" },
    { GROUP_CHECK, 0, "tokenize", TEXT, "FILE", AT(tokenize), 0, 0, NULL, false,
      "with -m: the ids of each line's text or hex; a JSON object a line, in and out" },
    { GROUP_CHECK, 0, "detokenize", TEXT, "FILE", AT(detokenize), 0, 0, NULL, false,
      "with -m: the bytes of each line's ids" },
    { GROUP_CHECK, 0, "splits", TEXT, "PRE FILE", AT(splits), 0, 0, NULL, false,
      "cut each line's text as the pre-tokenizer PRE does; no model is needed" },
    { GROUP_CHECK, 0, "render", TEXT, "FILE", AT(render), 0, 0, NULL, false,
      "render chat templates over the contexts in FILE" },
    { GROUP_CHECK, 0, "parse", TEXT, "FAMILY FILE", AT(parse), 0, 0, NULL, false,
      "take the reply in each line apart as models of FAMILY write it: content, reasoning, calls of tools" },
    { GROUP_CHECK, 0, "pieces", WHOLE, "SEED", AT(pieces), 0, INT32_MAX, NULL, false,
      "with --parse: in pieces of random lengths" },

    { GROUP_HELP, 'h', "help", ACTION, NULL, ACT_HELP, 0, 0, NULL, false, "print this and end" },
    { GROUP_HELP, 0, "version", ACTION, NULL, ACT_VERSION, 0, 0, NULL, false, "print the version and end" },
    { GROUP_HIDDEN, 0, "help-man", ACTION, NULL, ACT_MAN, 0, 0, NULL, false, "" },
};

enum { N_OPTS = sizeof table / sizeof *table, MOST_OPTS = N_OPTS + 32, LONG_BASE = 256 };

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

static const struct opts_program pfmoe_run = {
    .name = "pfmoe-run",
    .usage = "usage: pfmoe-run [MODEL.gguf | -hf NAME] [options]      chat\n"
             "       pfmoe-run [MODEL.gguf | -hf NAME] -p TEXT | -f FILE   one answer\n"
             "       pfmoe-run --info FILE [--verify]                what a file holds\n"
             "       pfmoe-run pull NAME | rm NAME | list            models by their names on the hub (see --hf)\n\n"
             "Runs a mixture-of-experts (or dense) language model from a GGUF file. With no text given and\n"
             "standard input a terminal it is a chat; /help there lists its commands.",
    .operands = "a text goes after -p",
};
static const struct opts_program *program = &pfmoe_run;      /* the one that runs: set before anything is read */

/* Row i of the running program's table, its own rows being the last; NULL: it does not take row i. */
static const struct opt *row(int i)
{
    if (i >= N_OPTS)
        return &program->own[i - N_OPTS];
    return !program->takes || program->takes(&table[i]) ? &table[i] : NULL;
}

static int n_rows(void)
{
    return N_OPTS + program->n_own;
}

static void defaults(struct settings *s)
{
    *s = (struct settings){
        .n_predict = UNSET, .temp = UNSET, .top_p = UNSET, .min_p = UNSET, .top_k = UNSET, .seed = UNSET,
        .pieces = UNSET,
        .repeat_penalty = 1, .penalty_last_n = 64, .kv = KV_I16, .isa = ISA_VNNI,
        .postfetch = 1, .block_on_miss = CHOSE_AUTO, .max_transfers = 8, .dedicated_streams = 1, .cpu_limit = UNSET,
        .draft = DRAFT_AUTO, .draft_max = 16,
    };
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static char why_not[256];

static bool refuse(const char *fmt, const struct opt *o, const char *value)
{
    char expected[80];
    snprintf(expected, sizeof expected, fmt, o->min, o->max);
    snprintf(why_not, sizeof why_not, "\"%.80s\" is not %s", value, expected);
    return false;
}

static bool parse_whole(const struct opt *o, const char *value, int64_t *out)
{
    bool may_be_auto = strncmp(o->arg, "auto|", 5) == 0;
    char *end;
    if (may_be_auto && strcmp(value, "auto") == 0) {
        *out = UNSET;
        return true;
    }
    errno = 0;
    long long v = strtoll(value, &end, 10);
    if (end == value || *end || errno || (double)v < o->min || (double)v > o->max)
        return refuse(may_be_auto ? "auto or a whole number from %.0f to %.0f" : "a whole number from %.0f to %.0f", o,
                      value);
    *out = v;
    return true;
}

static bool parse_real(const struct opt *o, const char *value, double *out)
{
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end || !isfinite(v) || v < o->min || v > o->max)
        return refuse("a number from %g to %g", o, value);
    *out = v;
    return true;
}

static bool parse_choice(const struct opt *o, const char *value, int *out)
{
    size_t n = strlen(value);
    const char *p = o->arg;
    for (int i = 0; n > 0; i++) {
        const char *bar = strchrnul(p, '|');
        if ((size_t)(bar - p) == n && memcmp(p, value, n) == 0) {
            *out = i;
            return true;
        }
        if (!*bar)
            break;
        p = bar + 1;
    }
    snprintf(why_not, sizeof why_not, "\"%.80s\" is none of %s", value, o->arg);
    return false;
}

static bool parse_trace_file(const char *value, const char **out)
{
    *out = value;
    snprintf(why_not, sizeof why_not, "\"%.80s\" ends in none of .json, .csv, .svg, .trace", value);
    return report_form_is_known(value);
}

/* FILE, or FILE=SCALE where what follows the last = is a number. */
static bool parse_lora(const char *value, struct lora_list *out)
{
    const char *equals = strrchr(value, '=');
    char *end = NULL;
    double scale = equals ? strtod(equals + 1, &end) : 1;
    bool has_scale = equals && end != equals + 1 && !*end;
    if (out->n == MAX_LORAS || !*value || (has_scale && (equals == value || !isfinite(scale)))) {
        snprintf(why_not, sizeof why_not, "\"%.80s\" is not FILE or FILE=SCALE, or there are more than %d", value,
                 MAX_LORAS);
        return false;
    }
    out->v[out->n].path = has_scale ? strndup(value, (size_t)(equals - value)) : value;    /* never freed */
    out->v[out->n].scale = has_scale ? (float)scale : 1;
    return out->v[out->n++].path != NULL;
}

static bool parse_chunks(const char *value, struct chunk_list *out)
{
    out->n = 0;
    for (const char *p = value;; p++) {   /* over the comma */
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || v < 1 || v > INT32_MAX || out->n == MAX_CHUNKS) {
            snprintf(why_not, sizeof why_not, "\"%.80s\" is not a list of 1 to %d whole numbers from 1 on", value,
                     MAX_CHUNKS);
            return false;
        }
        out->v[out->n++] = (int)v;
        p = end;
        if (!*p)
            return true;
    }
}

static bool parse_stop(const char *value, struct stop_list *out)
{
    if (!*value || out->n == MAX_STOPS) {
        snprintf(why_not, sizeof why_not, *value ? "there are more than %d" : "a stop string cannot be empty",
                 MAX_STOPS);
        return false;
    }
    out->v[out->n++] = value;
    return true;
}

static bool parse_value(const struct opt *o, struct settings *s, const char *value)
{
    void *at = (char *)s + o->at;
    switch (o->kind) {
    case FLAG:   *(bool *)at = true; return true;
    case TEXT:   *(const char **)at = value; return true;
    case WHOLE:  return parse_whole(o, value, at);
    case REAL:   return parse_real(o, value, at);
    case CHOICE: return parse_choice(o, value, at);
    case TRACE_FILE: return parse_trace_file(value, at);
    case LORAS:  return parse_lora(value, at);
    case CHUNKS: return parse_chunks(value, at);
    case STOPS:  return parse_stop(value, at);
    case ACTION: break;
    }
    return true;
}

bool opts_set(struct settings *s, const char *name, const char *value, const char **why)
{
    *why = why_not;
    for (const struct opt *o = table; o < table + N_OPTS; o++)
        if (o->live && strcmp(o->name, name) == 0)
            return parse_value(o, s, value);
    snprintf(why_not, sizeof why_not, "there is no setting \"%.80s\"; /set alone lists them", name);
    return false;
}

void opts_list(const struct settings *s, struct buf *out)
{
    for (const struct opt *o = table; o < table + N_OPTS; o++) {
        if (!o->live)
            continue;
        const void *at = (const char *)s + o->at;
        double v = o->kind == REAL ? *(const double *)at : (double)*(const int64_t *)at;
        char value[32] = "-";
        if (v != UNSET || o->min < 0)
            snprintf(value, sizeof value, o->kind == REAL ? "%.6g" : "%.0f", v);
        buf_printf(out, "  %-18s %-10s %s\n", o->name, value, o->help);
    }
}

/* ---- Help -------------------------------------------------------------------------------------------------------- */

/* The other name of a variable, into out; "" if it has none. */
static void alias_of(const char *env, char *out, size_t cap)
{
    bool has = strncmp(env, "PFMOE_POSTFETCH_", 16) == 0 || strncmp(env, "PFMOE_EXPERT_TRACE_", 19) == 0;
    snprintf(out, cap, "%s%s", has ? "LLAMA_" : "", has ? env + 6 : "");
}

static void flag_text(const struct opt *o, char *out, size_t cap)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(out, cap, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

/* Prints text with lines of at most `width`, each after the first indented. */
static void print_wrapped(const char *text, int indent, int width)
{
    int column = indent;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (column + n > width && column > indent) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        printf("%s%.*s", column > indent ? " " : "", n, p);
        column += n + (column > indent);
        p += n;
        p += strspn(p, " ");
    }
    putchar('\n');
}

static void print_group(int g)
{
    enum { INDENT = 28, WIDTH = 100 };
    bool titled = false;
    for (int i = 0; i < n_rows(); i++) {
        const struct opt *o = row(i);
        char flag[80], help[512];
        if (!o || o->group != g)
            continue;
        if (!titled)
            printf("\n%s:\n", group_titles[g]);
        titled = true;
        flag_text(o, flag, sizeof flag);
        snprintf(help, sizeof help, "%s%s%s%s", o->help, o->env ? " [" : "", o->env ? o->env : "", o->env ? "]" : "");
        if (strlen(flag) > INDENT - 4)
            printf("  %s\n%*s", flag, INDENT, "");
        else
            printf("  %-*s", INDENT - 2, flag);
        print_wrapped(help, INDENT, WIDTH);
    }
}

static void print_help(void)
{
    puts(program->usage);
    for (int g = GROUP_WHAT; g < GROUP_HIDDEN; g++)
        print_group(g);
    puts("\nA name in brackets is an environment variable that sets the same; the flag wins. PFMOE_POSTFETCH_ and\n"
         "PFMOE_EXPERT_TRACE_ may be written with LLAMA_ in the place of PFMOE_ too.\n"
         "Sampling that nobody sets is what the model's file recommends, else temp 0.8, top-k 40, top-p 0.95, "
         "min-p 0.05.\n"
         "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

static void print_roff(const char *text)
{
    for (const char *p = text; *p; p++)
        if (*p == '-' || *p == '\\')
            printf(*p == '-' ? "\\-" : "\\e");
        else
            putchar(*p);
}

/* The manual page's list of options. */
static void print_variables(const struct opt *o)
{
    char alias[80];
    if (!o->env)
        return;
    alias_of(o->env, alias, sizeof alias);
    printf("Environment variable: \\fB%s\\fR", o->env);
    printf(*alias ? " or \\fB%s\\fR.\n" : ".\n", alias);
}

static void print_man(void)
{
    for (int g = GROUP_WHAT; g < GROUP_HIDDEN; g++) {
        bool titled = false;
        for (int i = 0; i < n_rows(); i++) {
            const struct opt *o = row(i);
            if (!o || o->group != g)
                continue;
            if (!titled)
                printf(".SS %s\n", group_titles[g]);
            titled = true;
            printf(".TP\n");
            if (o->letter)
                printf("\\fB\\-%c\\fR, ", o->letter);
            printf("\\fB\\-\\-");
            print_roff(o->name);
            printf("\\fR");
            if (o->arg)
                printf(" \\fI%s\\fR", o->arg);
            putchar('\n');
            print_roff(o->help);
            printf(".\n");
            print_variables(o);
        }
    }
}

static void act(size_t what)
{
    if (what == ACT_HELP)
        print_help();
    else if (what == ACT_VERSION)
        printf("%s %s\n", program->name, pf_version());
    else
        print_man();
    out_close();
    exit(EXIT_DONE);
}

/* ---- Reading the command line ------------------------------------------------------------------------------------ */

static void read_variable(struct settings *s, const struct opt *o, const char *name)
{
    const char *value = getenv(name);
    if (value && *value && !parse_value(o, s, value))
        die(EXIT_USAGE, "%s: %s", name, why_not);
}

/* A variable's own name is read last: it wins over its alias. */
static void read_variables(struct settings *s, const struct opt *o)
{
    char alias[80];
    if (!o->env)
        return;
    alias_of(o->env, alias, sizeof alias);
    if (*alias)
        read_variable(s, o, alias);
    read_variable(s, o, o->env);
}

static void read_environment(struct settings *s)
{
    for (int i = 0; i < n_rows(); i++)
        if (row(i))
            read_variables(s, row(i));
}

static const struct opt *by_code(int code)
{
    for (int i = 0; i < n_rows(); i++)
        if (row(i) && (code == LONG_BASE + i || (row(i)->letter && code == row(i)->letter)))
            return row(i);
    return NULL;
}

static void check_together(const struct settings *s)
{
    const struct { const char *flag, *value; } modes[] = {
        { "--info", s->info },         { "--score", s->score },   { "--tokenize", s->tokenize },
        { "--detokenize", s->detokenize },
        { "--splits", s->splits },     { "--render", s->render }, { "--parse", s->parse },
        { "-p", s->prompt },           { "-f", s->file },
    };
    const char *first = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (modes[i].value && first)
            die(EXIT_USAGE, "%s and %s exclude each other", first, modes[i].flag);
        first = modes[i].value ? modes[i].flag : first;
    }
    if (s->json_schema && s->grammar)
        die(EXIT_USAGE, "--json-schema and --grammar exclude each other");
    if (s->score && !s->logits)
        die(EXIT_USAGE, "--score needs --logits OUT");
    if (!s->score && (s->logits || s->step || s->chunks.n))
        die(EXIT_USAGE, "--logits, --step and --chunk belong to --score");
    if (s->step && s->chunks.n)
        die(EXIT_USAGE, "--step and --chunk exclude each other");
    if (s->verify && !s->info)
        die(EXIT_USAGE, "--verify belongs to --info");
    if (s->plan && first)
        die(EXIT_USAGE, "--plan and %s exclude each other", first);
    if (s->card && !s->plan)
        die(EXIT_USAGE, "--card belongs to --plan");
    if (s->splits && !s->operand)
        die(EXIT_USAGE, "--splits needs two words: the pre-tokenizer's name and a file");
    if (s->parse && !s->operand)
        die(EXIT_USAGE, "--parse needs two words: the family's name and a file");
    if (s->pieces != UNSET && !s->parse)
        die(EXIT_USAGE, "--pieces belongs to --parse");
    if ((s->tokenize || s->detokenize || s->score) && !s->model)
        die(EXIT_USAGE, "%s needs -m MODEL", first);
}

/* getopt's two lists of the program's options. */
static void list_options(struct option *longs, char *letters)
{
    *letters++ = ':';
    for (int i = 0; i < n_rows(); i++) {
        const struct opt *o = row(i);
        if (!o)
            continue;
        bool has_arg = o->kind != FLAG && o->kind != ACTION;
        *longs++ = (struct option){ o->name, has_arg ? required_argument : no_argument, NULL, LONG_BASE + i };
        if (o->letter)
            *letters++ = o->letter;
        if (o->letter && has_arg)
            *letters++ = ':';
    }
    *longs = (struct option){ 0 };
    *letters = 0;
}

/* pull NAME, rm NAME, list; or the model's file. */
static void read_words(struct settings *s, int argc, char **argv)
{
    static const char *const words[] = { "pull", "list", "rm" };
    const char *word = optind < argc ? argv[optind] : "";
    size_t n = strlen(word);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0) {
            s->models = argv[optind++];
            s->models_name = optind < argc ? argv[optind++] : NULL;
            return;
        }
    if ((n > 5 && strcmp(word + n - 5, ".gguf") == 0) || (n > 0 && access(word, R_OK) == 0))
        s->model = argv[optind++];
}

void opts_read_of(const struct opts_program *p, struct settings *s, int argc, char **argv)
{
    struct option longs[MOST_OPTS + 1];
    char letters[2 * MOST_OPTS + 2];
    program = p;
    list_options(longs, letters);
    defaults(s);
    read_environment(s);
    opterr = 0;
    foreign_options(argc, argv, longs, letters);
    for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        const struct opt *o = by_code(c);
        if (!o)
            die_of_option(c, argv);
        if (o->kind == ACTION)
            act(o->at);
        if (!parse_value(o, s, optarg))
            die(EXIT_USAGE, "--%s: %s", o->name, why_not);
    }
    if ((s->splits || s->parse) && optind < argc)
        s->operand = argv[optind++];
    if (program == &pfmoe_run)
        read_words(s, argc, argv);
    if (optind < argc)
        die(EXIT_USAGE, "\"%s\" is not expected; %s", argv[optind], program->operands);
}

void opts_read(struct settings *s, int argc, char **argv)
{
    opts_read_of(&pfmoe_run, s, argc, argv);
    check_together(s);
}

/* ---- What the bench shares --------------------------------------------------------------------------------------- */

static const struct opt *shared_row(int i)
{
    for (const struct opt *o = table; o < table + N_OPTS; o++)
        if (o->group >= GROUP_EXPERTS && o->group <= GROUP_REPORT && i-- == 0)
            return o;
    return NULL;
}

bool opts_shared(int i, const char **name, const char **arg)
{
    const struct opt *o = shared_row(i);
    if (!o)
        return false;
    *name = o->name;
    *arg = o->arg;
    return true;
}

void opts_shared_begin(struct settings *s)
{
    defaults(s);
    for (int i = 0; shared_row(i); i++)
        read_variables(s, shared_row(i));
}

bool opts_shared_set(struct settings *s, int i, const char *value, const char **why)
{
    *why = why_not;
    return parse_value(shared_row(i), s, value);
}

void opts_shared_help(void)
{
    for (int g = GROUP_EXPERTS; g <= GROUP_REPORT; g++)
        print_group(g);
}

void opts_shared_session(const struct settings *s, struct pf_session_opts *o)
{
    static const enum pf_draft drafts[] = { [DRAFT_OFF] = PF_DRAFT_OFF, [DRAFT_AUTO] = PF_DRAFT_AUTO,
                                            [DRAFT_LOOKUP] = PF_DRAFT_LOOKUP };
    o->draft = drafts[s->draft];
    o->draft_max = (int)s->draft_max;
}

void opts_shared_model(const struct settings *s, struct pf_model_opts *o)
{
    static const int block[] = { [CHOSE_AUTO] = PF_AUTO, [CHOSE_0] = 0, [CHOSE_1] = 1 };
    o->postfetch = (struct pf_postfetch_opts){
        .enable = s->postfetch, .force_cpu = s->force_cpu, .block_on_miss = block[s->block_on_miss],
        .max_transfers = (int)s->max_transfers, .scratchpad_mb = (uint32_t)s->scratchpad_mb,
        .dedicated_streams = s->dedicated_streams, .cpu_limit = s->cpu_limit == UNSET ? PF_AUTO : (int)s->cpu_limit,
        .debug = s->postfetch_debug,
    };
    o->adapters = s->loras.v;
    o->n_adapters = s->loras.n;
    report_model_opts(&s->report, o);
}

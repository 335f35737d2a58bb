/* The command line of pfmoe-bench: its own options beside those that it shares with pfmoe-run (program/opt_row.h). */
#include "bench.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "program/opt_row.h"

#define AT(member) offsetof(struct bench, member)

enum { MAX_MB = 1 << 30, MAX_ROWS = 8192, MAX_GPU = 63 };

static const struct opt rows[] = {
    { GROUP_WHAT, 'm', "model", TEXTS, "FILE", AT(models), 0, 0, NULL, false,
      "the model; may be given up to 16 times" },
    { GROUP_WHAT, 'p', "prompt", WHOLES, "N[,N...]", AT(prompts), 0, MAX_TOKENS, NULL, false,
      "prompt lengths (default 512; 0: none)" },
    { GROUP_WHAT, 'n', "gen", WHOLES, "N[,N...]", AT(decodes), 0, MAX_TOKENS, NULL, false,
      "tokens to decode (default 128; 0: none)" },
    { GROUP_WHAT, 0, "pg", PAIRS, "P,G", AT(both), 1, MAX_TOKENS, NULL, false,
      "(or -pg) a prompt of P tokens, then G tokens decoded, as one test; may be given several times" },
    { GROUP_WHAT, 'd', "depth", WHOLES, "N[,N...]", AT(depths), 0, MAX_TOKENS, NULL, false,
      "tokens that are there before a test begins (default 0)" },
    { GROUP_WHAT, 's', "sequences", WHOLES, "N[,N...]", AT(sequences), 1, MAX_SEQUENCES, NULL, false,
      "sequences that decode together, token by token (default 1)" },
    { GROUP_WHAT, 'r', "repetitions", WHOLE, "N", AT(reps), 1, MAX_REPS, NULL, false,
      "counted runs of each test (default 5)" },
    { GROUP_WHAT, 'o', "output", CHOICE, "table|md|csv|json|jsonl", AT(output), 0, 0, NULL, false,
      "the form of the rows (default table)" },
    { GROUP_WHAT, 0, "progress", FLAG, NULL, AT(progress), 0, 0, NULL, false,
      "say on standard error which run is under way" },
    { GROUP_WHAT, 0, "perplexity", TEXT, "FILE", AT(perplexity), 0, 0, NULL, false,
      "the perplexity of the text in FILE instead of speed: chunks of --ctx tokens, the second half of each counted" },
    { GROUP_WHAT, 'c', "ctx", WHOLE, "N", AT(n_ctx), 4, MAX_TOKENS, NULL, false, "tokens of a chunk (default 512)" },
    { GROUP_WHAT, 0, "replay", TEXT, "TRACE", AT(replay), 0, 0, NULL, false,
      "hits of every replacement policy on a routing trace, beside the best possible" },
    { GROUP_WHAT, 0, "slots", WHOLE, "N", AT(slots), 1, MAX_MB, NULL, false,
      "experts in memory in a replay (default: half of them)" },

    { GROUP_MACHINE, 't', "threads", WHOLES, "N[,N...]", AT(threads), 1, PF_MAX_THREADS, NULL, false,
      "computing threads (default: one per core)" },
    { GROUP_MACHINE, 'g', "gpus", WHOLES, "N[,N...]", AT(gpus), -1, MAX_GPU, NULL, false,
      "the GPUs to use together (default 0 alone); -1: the CPU" },
    { GROUP_MACHINE, 0, "layout", CHOICE, "auto|layers|experts|rows", AT(layout), 0, 0, NULL, false,
      "layers, experts, rows: divide the model so even if the first GPU has room for it (default auto)" },
    { GROUP_MACHINE, 0, "vram-mb", WHOLES, "N[,N...]", AT(vram_mb), 0, MAX_MB, NULL, false,
      "take no more than so much memory of each, in MB of 1e6 bytes (default 0: what is free)" },
    { GROUP_MACHINE, 0, "ram-mb", WHOLE, "N", AT(ram_mb), 1, MAX_MB, NULL, false,
      "memory for the model (default: what the system can spare)" },
    { GROUP_MACHINE, 0, "streaming", FLAG, NULL, AT(streaming), 0, 0, NULL, false,
      "do not hold the whole model in memory, even if it fits" },
    { GROUP_MACHINE, 'b', "batch", WHOLES, "N[,N...]", AT(n_batch), 1, MAX_ROWS, NULL, false,
      "rows evaluated at once in a prompt (default 512)" },
    { GROUP_MACHINE, 0, "kv", CHOICES, "i16|f32|q8_0", AT(kv), 0, 0, NULL, false,
      "types of keys and values, with commas between (default i16)" },

    { GROUP_DRAFT, 0, "draft-sim", REAL, "P", AT(draft_sim), 0, 1, NULL, false,
      "decode with drafts of which each is right with probability P" },
    { GROUP_DRAFT, 0, "draft-replay", TEXT, "FILE", AT(draft_replay), 0, 0, NULL, false,
      "evaluate the text in FILE, from its start again at its end, instead of random tokens: drafts are as good as "
      "they are with such text" },
};

/* Whether the bench has an option of pfmoe-run's table. */
static bool takes(const struct opt *o)
{
    return strcmp(o->name, "isa") == 0 || (o->group >= GROUP_EXPERTS && o->group <= GROUP_REPORT) ||
           o->group >= GROUP_HELP;
}

static void print_more(void)
{
    puts("\nA name in brackets is an environment variable that sets the same; the flag wins.\n"
         "A row for each combination of the lists. Exit status: 0 done, 1 failed, 2 wrong usage.");
}

static const struct opts_program program = {
    .name = "pfmoe-bench",
    .usage = "usage: pfmoe-bench [-m] MODEL.gguf [options]\n\n"
             "Prompt and decode speed, beside the memory bandwidth measured in the same run.",
    .operands = "beside options pfmoe-bench takes one model's file (see --help)",
    .takes = takes, .own = rows, .n_own = sizeof rows / sizeof *rows, .words = AT(word), .n_words = 1,
    .more = print_more,
};

/* A 0 stands for no test. */
static void drop_zeros(struct whole_list *sizes)
{
    int n = 0;
    for (int i = 0; i < sizes->n; i++)
        if (sizes->v[i] > 0)
            sizes->v[n++] = sizes->v[i];
    sizes->n = n;
}

/* Lists that nobody gave hold their defaults. */
static void fill_in(struct bench *o)
{
    struct pf_device cpu;
    pf_devices(&cpu, 1);
    struct {
        struct whole_list *at;
        int value;
    } defaults[] = { { &o->depths, 0 }, { &o->sequences, 1 }, { &o->threads, cpu.n_units }, { &o->vram_mb, 0 },
                     { &o->gpus, 0 }, { &o->n_batch, 512 }, { &o->kv, KV_I16 } };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (defaults[i].at->n == 0)
            *defaults[i].at = (struct whole_list){ 1, { defaults[i].value } };
}

/* A word without -m is a model if it looks like one's file, or is a file. */
static void take_word(struct bench *o)
{
    const char *word = o->word;
    size_t n = word ? strlen(word) : 0;
    if (!word)
        return;
    if ((n <= 5 || strcmp(word + n - 5, ".gguf") != 0) && access(word, R_OK) != 0)
        die(EXIT_USAGE, "\"%s\" is not expected; %s", word, program.operands);
    if (o->models.n == MAX_TEXTS)
        die(EXIT_USAGE, "there are more than %d models", (int)MAX_TEXTS);
    o->models.v[o->models.n++] = word;
}

void bench_read_args(struct bench *o, int argc, char **argv)
{
    *o = (struct bench){ .prompts = { 1, { 512 } }, .decodes = { 1, { 128 } }, .reps = 5, .draft_sim = -1,
                         .n_ctx = 512 };
    opts_read_of(&program, &o->shared, argc, argv);
    take_word(o);
    if (o->models.n == 0 && !o->replay)
        die(EXIT_USAGE, "a model is needed: -m FILE, or --replay TRACE (see --help)");
    opts_check_gpus(&o->gpus);
    drop_zeros(&o->prompts);
    drop_zeros(&o->decodes);
    if (!o->replay && !o->perplexity && o->prompts.n + o->decodes.n + o->both.n == 0)
        die(EXIT_USAGE, "-p 0 and -n 0 leave nothing to measure");
    if (o->perplexity)
        o->depths.n = 0;
    fill_in(o);
}

/* pfmoe-run's table of options, and the values that hold when nobody sets one. opt_row.h says what a row means. */
#include "program/opt_parts.h"

#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct settings, member)

const char *const opt_group_titles[] = {
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
      "flag too, and added to the text of -p" },
    { GROUP_WHAT, 0, "json", FLAG, NULL, AT(json), 0, 0, NULL, false,
      "print the one answer as a JSON object: text, reasoning, why it ended, seed, tokens, seconds" },
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
    { GROUP_TALK, 0, "load", TEXT, "FILE", AT(load), 0, 0, NULL, false,
      "go on with the chat that /save or /keep wrote to FILE: with its model, where none is named, its settings, where "
      "no option sets them, and the keys and values that were kept" },
    { GROUP_TALK, 0, "template", TEXT, "NAME|FILE", AT(template), 0, 0, "PFMOE_TEMPLATE", false,
      "a built-in chat template, or a Jinja file, instead of the model's own" },
    { GROUP_TALK, 0, "reasoning-effort", TEXT, "LEVEL", AT(reasoning_effort), 0, 0, NULL, false,
      "low, medium or high, for models whose template knows it" },
    { GROUP_TALK, 0, "think", CHOICE, "auto|on|off", AT(think), 0, 0, NULL, true,
      "ask the template for reasoning, or to leave it out, where it can (auto: its own way; --no-think is off)" },

    { GROUP_ANSWER, 'n', "tokens", WHOLE, "N", AT(n_predict), -1, INT32_MAX, NULL, true,
      "end after N tokens (default: no limit; -1: none either)" },
    { GROUP_ANSWER, 0, "stop", TEXTS, "STRING", AT(stops), 0, 0, NULL, false,
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
    { GROUP_MACHINE, 't', "threads", WHOLE, "N", AT(n_threads), 1, PF_MAX_THREADS, "PFMOE_THREADS", false,
      "computing threads (default: one a core)" },
    { GROUP_MACHINE, 0, "gpus", WHOLES, "N[,N...]", AT(gpus), -1, 63, "PFMOE_GPUS", false,
      "the GPUs to use together, the first being 0 (default: 0 alone); -1: the CPU" },
    { GROUP_MACHINE, 0, "vram-mb", WHOLES, "N[,N...]", AT(vram_mb), 0, 1 << 30, "PFMOE_VRAM_MB", false,
      "the GPU's memory to use, in MB of 1e6 bytes; of several GPUs each one's, or one number for all (default: what "
      "is free)" },
    { GROUP_MACHINE, 0, "layout", CHOICE, "auto|layers|experts|rows", AT(layout), 0, 0, "PFMOE_LAYOUT", false,
      "how several GPUs divide a model: layers gives each some of the layers, experts some of every layer's experts, "
      "rows some rows of every matrix; auto (default) takes what decodes fastest by measured "
      "prices, or the first one alone. No bit of an answer depends on it" },
    { GROUP_MACHINE, 0, "hosts", TEXT, "HOST[:PORT][,HOST...]", AT(hosts), 0, 0, "PFMOE_HOSTS", false,
      "run the model by several processes, each with some of its layers (--layout rows: with rows of all of them), its "
      "own copy of the file and a GPU: one at each HOST, which may be named several times. The others find the first "
      "at PORT (default 7700), by NVIDIA's NCCL, which has to be installed. All are started with the same hosts; "
      "started by mpirun or srun, the first will do" },
    { GROUP_MACHINE, 0, "rank", WHOLE, "K", AT(rank), 0, PF_MAX_GPUS - 1, "PFMOE_RANK", false,
      "which of --hosts this process is, the first being 0 (default: what mpirun or srun says). Rank 0 answers, the "
      "others compute for it until it ends" },
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
      "with --plan: how fast the drive is read (default: it is measured on the model's file, unless that has holes)" },
    { GROUP_MACHINE, 0, "kv", CHOICE, "i16|f32|q8_0", AT(kv), 0, 0, "PFMOE_KV", false,
      "type of keys and values in memory (default i16)" },
    { GROUP_MACHINE, 0, "isa", CHOICE, "scalar|avx2|avxvnni|avx512|vnni|vbmi|amx", AT(isa), 0, 0, "PFMOE_ISA", false,
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

    { GROUP_DRAFT, 0, "draft", TEXT, "off|auto|lookup|mtp|FILE", AT(draft), 0, 0, "PFMOE_DRAFT", false,
      "guess tokens ahead and evaluate them together, while that is faster: lookup takes what followed where the "
      "newest tokens stood before, mtp asks the model's own layer that guesses ahead, FILE is a smaller model of "
      "the same tokens, auto takes whatever the model has and pays (default)" },
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
    { GROUP_CHECK, 0, "chunk", WHOLES, "N[,N...]", AT(chunks), 1, INT32_MAX, NULL, false,
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

enum { N_OPTS = sizeof table / sizeof *table };
_Static_assert(N_OPTS + MOST_OWN_ROWS <= MOST_ROWS, "rows do not fit");

const struct opt *opt_row(const struct opts_program *program, int i)
{
    if (i >= N_OPTS)
        return &program->own[i - N_OPTS];
    return !program->takes || program->takes(&table[i]) ? &table[i] : NULL;
}

const struct opt *opt_of_run(int i)
{
    return i < N_OPTS ? &table[i] : NULL;
}

int opt_n_rows(const struct opts_program *program)
{
    return N_OPTS + program->n_own;
}

void opt_defaults(struct settings *s)
{
    *s = (struct settings){
        .n_predict = UNSET, .temp = UNSET, .top_p = UNSET, .min_p = UNSET, .top_k = UNSET, .seed = UNSET,
        .pieces = UNSET, .rank = UNSET,
        .repeat_penalty = 1, .penalty_last_n = 64, .kv = KV_I16, .isa = ISA_AMX,
        .postfetch = 1, .block_on_miss = CHOSE_AUTO, .max_transfers = 8, .dedicated_streams = 1, .cpu_limit = UNSET,
        .draft = "auto", .draft_max = 16,
    };
}

void opt_alias(const char *env, char *out, size_t cap)
{
    bool has = strncmp(env, "PFMOE_POSTFETCH_", 16) == 0 || strncmp(env, "PFMOE_EXPERT_TRACE_", 19) == 0;
    snprintf(out, cap, "%s%s", has ? "LLAMA_" : "", has ? env + 6 : "");
}

/* See foreign.h. */
#define _GNU_SOURCE
#include "program/foreign.h"

#include <string.h>

#include "program/io/buf.h"

#define GPU_LAYERS "the GPU takes what fits it without being told; --vram-mb N says how much memory that may be, " \
                   "--gpus -1 leaves it out"
#define PLACES     "experts go where there is room without being told; --plan shows where"
#define KV_TYPE    "--kv says of which type keys and values are"
#define FLASH      "attention never keeps its scores; there is nothing to switch on"

#define CHAT       "without a text (-p, -f) it is a chat"
#define ONCE       "with a text (-p, -f) it is one answer; --raw completes the text without a chat template"
#define SYSTEM     "--system takes the text: --system \"$(cat FILE)\""
#define BATCH      "how much of a prompt is evaluated at once is chosen for you; no bit of an answer depends on it"

static const struct {
    const char *foreign, *ours;          /* ours: if the program has it */
    const char *instead;                 /* else, unless NULL, what there is in place of such an option */
} spellings[] = {
    { "-hf", "--hf", 0 }, { "-hfr", "--hf", 0 }, { "--hf-repo", "--hf", 0 },
    { "--temperature", "--temp", 0 }, { "--ctx-size", "--ctx", 0 }, { "--n-ctx", "--ctx", 0 },
    { "--n-predict", "--tokens", 0 }, { "--predict", "--tokens", 0 }, { "--max-tokens", "--tokens", 0 },
    { "-sys", "--system", 0 }, { "--system-prompt", "--system", 0 },
    { "--repetition-penalty", "--repeat-penalty", 0 },
    { "--no-think", "--think=off", 0 }, { "-s", "--seed", 0 },
    { "-r", "--stop", 0 }, { "--reverse-prompt", "--stop", 0 },
    { "--chat-template", "--template", 0 }, { "--chat-template-file", "--template", 0 },
    { "--max-model-len", "--ctx", 0 }, { "--context-length", "--ctx", 0 }, { "--max-new-tokens", "--tokens", 0 },
    { "--repeat-last-n", "--penalty-last-n", 0 }, { "--grammar-file", "--grammar", 0 },
    { "--json-schema-file", "--json-schema", 0 }, { "--hf-token", 0, "HF_TOKEN in the environment is the token" },
    { "-cnv", 0, CHAT }, { "--conversation", 0, CHAT }, { "-i", 0, CHAT }, { "--interactive", 0, CHAT },
    { "-no-cnv", 0, ONCE }, { "-st", 0, ONCE }, { "--single-turn", 0, ONCE },
    { "-sysf", 0, SYSTEM }, { "--system-prompt-file", 0, SYSTEM },
    { "--jinja", 0, "the model's own template is always used, and --template takes another one" },
    { "-b", "--batch", BATCH }, { "--batch-size", "--batch", BATCH }, { "-ub", "--batch", BATCH },
    { "--ubatch-size", "--batch", BATCH }, { "-pg", "--pg", 0 }, { "--gpu", "--gpus", 0 },
    { "-tb", 0, "-t says how many threads compute, prompts too" },
    { "--threads-batch", 0, "-t says how many threads compute, prompts too" },
    { "--reasoning-budget", 0, "--think off asks the template to leave reasoning out" },
    { "-ngl", 0, GPU_LAYERS }, { "--gpu-layers", 0, GPU_LAYERS }, { "--n-gpu-layers", 0, GPU_LAYERS },
    { "-ncmoe", 0, PLACES }, { "--n-cpu-moe", 0, PLACES }, { "--cpu-moe", 0, PLACES },
    { "-ot", 0, PLACES }, { "--override-tensor", 0, PLACES },
    { "-ctk", 0, KV_TYPE }, { "-ctv", 0, KV_TYPE }, { "--cache-type-k", 0, KV_TYPE }, { "--cache-type-v", 0, KV_TYPE },
    { "-fa", 0, FLASH }, { "--flash-attn", 0, FLASH },
    { "--mlock", 0, "--ram-mb says how much memory the model may have" },
    { "--no-mmap", 0, "--streaming keeps the model out of the page cache" },
};

/* Whether the word after this one is its value. */
static bool takes_value(const char *word, const struct option *longs, const char *letters)
{
    if (word[0] != '-' || strchr(word, '='))
        return false;
    if (word[1] != '-') {
        const char *letter = word[1] && !word[2] ? strchr(letters, word[1]) : NULL;
        return letter && letter[1] == ':';
    }
    for (; longs->name; longs++)
        if (strcmp(longs->name, word + 2) == 0)
            return longs->has_arg == required_argument;
    return false;
}

/* Whether the program has the long option that `ours` spells, with or without a value. */
static bool has(const struct option *longs, const char *ours)
{
    size_t n = ours ? strcspn(ours + 2, "=") : 0;
    for (; ours && longs->name; longs++)
        if (strlen(longs->name) == n && memcmp(longs->name, ours + 2, n) == 0)
            return true;
    return false;
}

static void translate(char **word, const struct option *longs)
{
    const char *equals = strchr(*word, '=');
    size_t n = equals ? (size_t)(equals - *word) : strlen(*word);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (strlen(spellings[i].foreign) != n || strncmp(*word, spellings[i].foreign, n) != 0)
            continue;
        if (has(longs, spellings[i].ours)) {
            struct buf ours = { 0 };
            buf_printf(&ours, "%s%s", spellings[i].ours, equals ? equals : "");
            *word = ours.p;                      /* never freed */
        } else if (spellings[i].instead) {
            die(EXIT_USAGE, "there is no %s: %s", spellings[i].foreign, spellings[i].instead);
        }
        return;
    }
}

/* Whether a word is the letter of an option that the program has. */
static bool is_own_letter(const char *word, const char *letters)
{
    return word[0] == '-' && word[1] && !word[2] && word[1] != ':' && strchr(letters, word[1]);
}

void foreign_options(int argc, char **argv, const struct option *longs, const char *letters)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!is_own_letter(argv[i], letters))
            translate(&argv[i], longs);
        i += takes_value(argv[i], longs, letters);
    }
}

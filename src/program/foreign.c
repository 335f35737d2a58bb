/* See foreign.h. */
#define _GNU_SOURCE
#include "program/foreign.h"

#include <string.h>

#include "program/io/buf.h"

#define GPU_LAYERS "the GPU takes what fits it without being told; --vram-mb N says how much memory that may be"
#define PLACES     "experts go where there is room without being told; --plan shows where"
#define KV_TYPE    "--kv says of which type keys and values are"
#define FLASH      "attention never keeps its scores; there is nothing to switch on"

static const struct {
    const char *foreign, *ours;          /* ours NULL: there is no such option, and instead says what there is */
    const char *instead;
} spellings[] = {
    { "-hf", "--hf", 0 }, { "-hfr", "--hf", 0 }, { "--hf-repo", "--hf", 0 },
    { "--temperature", "--temp", 0 }, { "--ctx-size", "--ctx", 0 }, { "--n-ctx", "--ctx", 0 },
    { "--n-predict", "--tokens", 0 }, { "--predict", "--tokens", 0 }, { "--max-tokens", "--tokens", 0 },
    { "-sys", "--system", 0 }, { "--system-prompt", "--system", 0 },
    { "--repetition-penalty", "--repeat-penalty", 0 },
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

static void translate(char **word)
{
    const char *equals = strchr(*word, '=');
    size_t n = equals ? (size_t)(equals - *word) : strlen(*word);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (strlen(spellings[i].foreign) != n || strncmp(*word, spellings[i].foreign, n) != 0)
            continue;
        if (!spellings[i].ours)
            die(EXIT_USAGE, "there is no %s: %s", spellings[i].foreign, spellings[i].instead);
        struct buf ours = { 0 };
        buf_printf(&ours, "%s%s", spellings[i].ours, equals ? equals : "");
        *word = ours.p;                          /* never freed */
        return;
    }
}

void foreign_options(int argc, char **argv, const struct option *longs, const char *letters)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        translate(&argv[i]);
        i += takes_value(argv[i], longs, letters);
    }
}

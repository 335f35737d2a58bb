/* See fill.h. */
#include "serve/fill.h"

#include <string.h>

/* Marks in the order in which they come: in front of one text, in front of the other, behind both. */
struct marks {
    const char *first, *second, *last;
    bool        suffix_is_first;         /* the suffix is the one text, what it follows the other */
};

/* Of Qwen and Granite 4; StarCoder and Granite 3; Granite's first; DeepSeek; GLM; Seed-Coder; Codestral. */
static const struct marks known[] = {
    { "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false },
    { "<fim_prefix>", "<fim_suffix>", "<fim_middle>", false },
    { "<fim-prefix>", "<fim-suffix>", "<fim-middle>", false },
    { "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false },
    { "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", false },
    { "<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", true },
    { "[SUFFIX]", "[PREFIX]", "", true },
};

static bool has(const pf_model *m, const char *mark)
{
    return !*mark || pf_token_find(m, mark, strlen(mark)) >= 0;
}

bool fill_between(const pf_model *m, const char *suffix, struct buf *text)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct marks *k = &known[i];
        if (!has(m, k->first) || !has(m, k->second) || !has(m, k->last))
            continue;
        struct buf whole = { 0 };
        buf_puts(&whole, k->first);
        buf_puts(&whole, k->suffix_is_first ? suffix : buf_text(text));
        buf_puts(&whole, k->second);
        buf_puts(&whole, k->suffix_is_first ? buf_text(text) : suffix);
        buf_puts(&whole, k->last);
        buf_free(text);
        *text = whole;
        return true;
    }
    return false;
}

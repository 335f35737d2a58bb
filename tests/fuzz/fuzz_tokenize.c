/* Any bytes as a text: tokenized by four small vocabularies and cut by the pre-tokenizers.
 *
 * The first byte chooses flags and a pre-tokenizer. Invariants: counting and storing agree; tokens of byte-level
 * BPE give the text back, each ill-formed byte as U+FFFD, where the vocabulary does not normalise; those of SPM give
 * it back exactly; chunks are not empty and cover the text; what pf_utf8_complete cuts off is the beginning of one
 * character. */
#define _GNU_SOURCE
#include <assert.h>

#include "../text/tiny_vocab.h"
#include "base/pf_mem.h"
#include "fuzz.h"
#include "pfmoe.h"
#include "text/norm.h"

static pf_vocab *bpe, *normalising, *by_id, *spm, *gemma;

static pf_vocab *open_one(struct gguf *f)
{
    pf_vocab *v;
    if (open_vocab(f, &v) < 0 || !v)
        abort();
    gguf_free(f);
    return v;
}

static void open_all(void)
{
    struct gguf f = { 0 };
    put_tiny_bpe(&f, "gpt-4o", true);
    bpe = open_one(&f);
    put_tiny_bpe(&f, "qwen2", true);
    normalising = open_one(&f);
    put_tiny_bpe(&f, "kimi-k2", false);
    by_id = open_one(&f);
    put_tiny_words(&f, "llama", false);
    spm = open_one(&f);
    put_tiny_words(&f, "gemma4", false);
    gemma = open_one(&f);
}

/* Tokenizes, checks, and gives the tokens' bytes (with control tokens) back in memory to be freed with free. */
static char *there_and_back(const pf_vocab *v, const char *text, size_t len, unsigned flags, size_t *n_back)
{
    size_t n = 0, again = 0, need = 0;
    pf_status st = pf_vocab_tokenize(v, text, len, flags, NULL, 0, &n);
    assert(st == (n ? PF_ESPACE : PF_OK));
    int32_t *ids = malloc(n * sizeof *ids + 1);
    st = pf_vocab_tokenize(v, text, len, flags, ids, n, &again);
    assert(st == PF_OK && again == n);
    (void)pf_vocab_detokenize(v, ids, n, PF_DETOK_SPECIAL, NULL, 0, &need);
    char *back = malloc(need + 1);
    st = pf_vocab_detokenize(v, ids, n, PF_DETOK_SPECIAL, back, need, n_back);
    assert(st == PF_OK && *n_back == need);
    free(ids);
    return back;
}

static void check_chunks(const char *pre, const char *text, size_t len)
{
    size_t n, last = 0, *ends = malloc(len * sizeof *ends + 1);
    pf_status st = pf_pretokenize(pre, text, len, ends, len, &n);
    assert(st == PF_OK && n <= len);
    for (size_t i = 0; i < n; last = ends[i++])
        assert(ends[i] > last);
    assert(last == len);
    free(ends);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const pres[] = {
        "gpt-4o", "llama-bpe", "qwen2", "qwen35", "deepseek-v3", "deepseek-llm", "deepseek-coder", "gpt-2",
        "starcoder", "kimi-k2", "tekken", "exaone-moe", "seed-coder", "afmoe", "tiny_aya", "youtu", "laguna",
        "spark2_5", "minicpm5", "falcon", "default",
    };
    if (!bpe)
        open_all();
    if (size < 1)
        return 0;
    unsigned flags = data[0] & 1 ? PF_TOK_PARSE_SPECIAL : 0;
    const char *pre = pres[(data[0] >> 1) % (sizeof pres / sizeof *pres)], *text = (const char *)data + 1;
    size_t len = size - 1, n, n_want;
    char *want, *back;
    pf_status st = pf_normalise(text, len, false, &want, &n_want);
    assert(st == PF_OK);
    const pf_vocab *exact[] = { bpe, by_id };
    for (int i = 0; i < 2; i++) {
        back = there_and_back(exact[i], text, len, flags, &n);
        assert(n == n_want && memcmp(back, want ? want : text, n) == 0);
        free(back);
    }
    pf_free(want);
    free(there_and_back(normalising, text, len, flags, &n));
    free(there_and_back(gemma, text, len, flags | PF_TOK_ADD_SPECIAL, &n));
    back = there_and_back(spm, text, len, 0, &n);
    /* U+2581 comes back as the space that it stands for. */
    if (!memmem(text, len, "\xE2\x96\x81", 3))
        assert(n == len && memcmp(back, text, n) == 0);
    free(back);
    check_chunks(pre, text, len);
    size_t whole = pf_utf8_complete(text, len);
    assert(whole <= len && len - whole <= 3 && (whole == len || pf_utf8_complete(text + whole, len - whole) == 0));
    return 0;
}

/* Tokenizers on small vocabularies of our own: fixed answers, random texts against a naive merge, special tokens,
 * streaming UTF-8, normalisation, malformed vocabularies, every allocation failing in turn, and long runs (a
 * quadratic step would run into the test's time limit).
 *
 * usage: test_tokenize [brief]      runs an eighth as long, for sanitizers, which time says nothing with */
#include "tiny_vocab.h"

#include "base/pf_mem.h"
#include "pfmoe.h"
#include "text/norm.h"
#include "text/recent.h"

static int failed;
#define CHECK(cond)                                                         \
    do {                                                                    \
        if (!(cond)) {                                                      \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #cond);               \
            failed++;                                                       \
        }                                                                   \
    } while (0)

enum { MANY = 2 << 20 };
static int32_t ids[MANY];
static char bytes[4 * MANY];

static pf_vocab *must_open(struct gguf *f)
{
    pf_vocab *v;
    if (open_vocab(f, &v) < 0 || !v) {
        printf("a vocabulary does not open: %s\n", pf_last_error());
        exit(1);
    }
    gguf_free(f);
    return v;
}

static bool tokens_are(const pf_vocab *v, const char *text, unsigned flags, const int32_t *want, size_t n_want)
{
    size_t n;
    if (pf_vocab_tokenize(v, text, strlen(text), flags, ids, MANY, &n) < 0)
        return false;
    bool same = n == n_want && memcmp(ids, want, n * sizeof *ids) == 0;
    if (!same) {
        printf("\"%s\":", text);
        for (size_t i = 0; i < n; i++)
            printf(" %d", ids[i]);
        printf("\n");
    }
    return same;
}
#define TOKENS(v, text, flags, ...) \
    CHECK(tokens_are(v, text, flags, (const int32_t[]){ __VA_ARGS__ }, sizeof((const int32_t[]){ __VA_ARGS__ }) / 4))

/* ---- UTF-8 and normalisation -------------------------------------------------------------------------------- */

static void test_utf8_complete(void)
{
    static const struct { const char *text; size_t n, want; } cases[] = {
        { "", 0, 0 }, { "a", 1, 1 }, { "a\xC3", 2, 1 }, { "a\xC3\xA9", 3, 3 }, { "\xE4\xBD", 2, 0 },
        { "\xE4\xBD\xA0", 3, 3 }, { "\xE4", 1, 0 }, { "x\xF0\x9F\x98", 4, 1 }, { "\xF0\x9F\x98\x80", 4, 4 },
        { "\xF0\x9F", 2, 0 }, { "\xF0", 1, 0 }, { "\xE0\x80", 2, 2 }, { "\xE0\xA0", 2, 0 }, { "\xED\xA0", 2, 2 },
        { "\xED\x9F", 2, 0 }, { "\xF0\x80", 2, 2 }, { "\xF4\x90", 2, 2 }, { "\xF4\x8F", 2, 0 }, { "\xF5", 1, 1 },
        { "\xC0", 1, 1 }, { "\xC1", 1, 1 }, { "\x80", 1, 1 }, { "\x80\x80\x80\x80", 4, 4 }, { "\xFF", 1, 1 },
        { "\xF4\x90\x80", 3, 3 }, { "\xC3\xC3", 2, 1 }, { "a\xE4\xBD\xA0\xE5", 5, 4 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(pf_utf8_complete(cases[i].text, cases[i].n) == cases[i].want);
}

static void check_normal(const char *text, size_t n, bool nfc, const char *want, size_t n_want)
{
    char *out;
    size_t got;
    CHECK(pf_normalise(text, n, nfc, &out, &got) == PF_OK);
    CHECK(got == n_want && memcmp(out ? out : text, want, got) == 0);
    pf_free(out);
}
#define NORMAL(text, nfc, want) check_normal(text, sizeof(text) - 1, nfc, want, sizeof(want) - 1)

static void test_normalise(void)
{
    NORMAL("plain", true, "plain");
    NORMAL("e\xCC\x81", true, "\xC3\xA9");
    NORMAL("e\xCC\x81", false, "e\xCC\x81");
    NORMAL("a\xFF\xC0\xAFz", false, "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
    NORMAL("a\0b\xFF", true, "a\0b\xEF\xBF\xBD");
    NORMAL("q\xCC\x87\xCC\xA3", true, "q\xCC\xA3\xCC\x87");                              /* marks change places */
    NORMAL("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", true, "\xEA\xB0\x81");     /* Hangul letters to a syllable */
    NORMAL("\xE2\x84\xAB", true, "\xC3\x85");                                 /* the Angstrom sign is an A with ring */
    NORMAL("\xE1\xBE\x82", true, "\xE1\xBE\x82");                                        /* decomposes into four */
    NORMAL("\xF0\x9D\x85\x9E", true, "\xF0\x9D\x85\x97\xF0\x9D\x85\xA5");                /* a composition exclusion */

    /* Half a million marks in the worst order, above and below in turn. */
    enum { PAIRS = 1 << 18 };
    static char marks[4 * PAIRS];
    char *out;
    size_t n;
    for (size_t i = 0; i < PAIRS; i++)
        memcpy(marks + 4 * i, "\xCC\x87\xCC\xA3", 4);
    CHECK(pf_normalise(marks, sizeof marks, true, &out, &n) == PF_OK);
    CHECK(out && n == sizeof marks && memcmp(out, "\xCC\xA3\xCC\xA3", 4) == 0);
    pf_free(out);
}

/* ---- A naive merge ------------------------------------------------------------------------------------------ */

static uint64_t rng = 88172645463325252u;
static uint32_t below(uint32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)((rng >> 32) * n >> 32);
}

/* A vocabulary's rank for merging two neighbours: lower ranks merge first; UINT32_MAX: never. */
typedef uint32_t pair_fn(const char *left, size_t n_left, size_t n_right);

static uint32_t rank_of(const char *left, size_t n_left, size_t n_right)
{
    for (int i = 0; i < N_TINY_MERGES; i++) {
        char parts[16];
        size_t n, k = tiny_parts(i, parts, &n);
        if (k == n_left && n == n_left + n_right && memcmp(parts, left, n) == 0)
            return (uint32_t)i;
    }
    return UINT32_MAX;
}

static const pf_vocab *text_vocab;           /* the vocabulary that id_of and score_of ask */

static uint32_t id_of(const char *left, size_t n_left, size_t n_right)
{
    int32_t id = pf_vocab_find(text_vocab, left, n_left + n_right);
    return id < 0 ? UINT32_MAX : (uint32_t)id;
}

static uint32_t score_of(const char *left, size_t n_left, size_t n_right)
{
    int32_t id = pf_vocab_find(text_vocab, left, n_left + n_right);
    return id < SPM_FIRST_WORD ? UINT32_MAX : (uint32_t)((id * 7) % 13);
}

enum { VERY_LONG = 17000 };                  /* more than merge.c sorts in a heap */

/* Lengths of the symbols that the chunk becomes. */
static size_t naive_merge(const char *chunk, size_t *len, size_t n, pair_fn *pair)
{
    static uint32_t keys[VERY_LONG];
    for (size_t i = 0, at = 0; i < n; at += len[i++])
        keys[i] = i + 1 < n ? pair(chunk + at, len[i], len[i + 1]) : UINT32_MAX;
    for (;;) {
        size_t best = 0, at = 0;
        for (size_t i = 1; i < n; i++)
            best = keys[i] < keys[best] ? i : best;
        if (keys[best] == UINT32_MAX)
            return n;
        for (size_t i = 0; i < best; i++)
            at += len[i];
        len[best] += len[best + 1];
        n--;
        memmove(len + best + 1, len + best + 2, (n - best - 1) * sizeof *len);
        memmove(keys + best + 1, keys + best + 2, (n - best - 1) * sizeof *keys);
        keys[best] = best + 1 < n ? pair(chunk + at, len[best], len[best + 1]) : UINT32_MAX;
        if (best > 0)
            keys[best - 1] = pair(chunk + at - len[best - 1], len[best - 1], len[best]);
    }
}

/* The library's tokens have exactly these lengths, and give the text back. */
static bool same_cuts(const pf_vocab *v, const char *text, size_t n_text, const char *merged, const size_t *len,
    size_t n)
{
    size_t got, at = 0;
    if (pf_vocab_tokenize(v, text, n_text, 0, ids, MANY, &got) < 0 || got != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t k;
        const char *piece = pf_vocab_piece(v, ids[i], false, &k);
        if (k != len[i] || memcmp(piece, merged + at, k) != 0)
            return false;
        at += k;
    }
    return true;
}

/* Random texts that are one chunk: letters for byte-level (a mapped byte each), letters and spaces for the others. */
static void test_random_merges(const pf_vocab *v, const char *letters, bool prefix, pair_fn *pair)
{
    static char text[VERY_LONG];
    static size_t len[VERY_LONG];
    for (int round = 0; round < 402; round++) {
        size_t n = 0, n_text = round >= 400 ? VERY_LONG - 1 : 1 + below(round % 4 ? 30 : 299);
        if (prefix)
            text[n++] = ' ';
        for (; n < n_text + prefix; n++)
            text[n] = letters[below((uint32_t)strlen(letters))];
        for (size_t i = 0; i < n; i++)
            len[i] = 1;
        size_t n_syms = naive_merge(text, len, n, pair);
        if (!same_cuts(v, text + prefix, n - prefix, text, len, n_syms)) {
            printf("differs from the naive merge: \"%.*s\"\n", (int)(n < 300 ? n : 300), text);
            failed++;
            return;
        }
    }
}

/* ---- Byte-level BPE ----------------------------------------------------------------------------------------- */

static void test_bpe(void)
{
    struct gguf f = { 0 };
    put_tiny_bpe(&f, "gpt-2", true);
    put_int(&f, "tokenizer.ggml.bos_token_id", 7);
    put_int(&f, "tokenizer.ggml.eos_token_id", 99999);
    put_bool(&f, "tokenizer.ggml.add_bos_token", true);
    put_bool(&f, "tokenizer.ggml.add_eos_token", true);
    pf_vocab *v = must_open(&f);
    int32_t end = pf_vocab_find(v, "<|end|>", 7), think = pf_vocab_find(v, "<think>", 7);
    int32_t he = pf_vocab_find(v, "he", 2), hello = pf_vocab_find(v, "hello", 5);
    int32_t space_hello = pf_vocab_find(v, " hello", 6);
    CHECK(he == BPE_FIRST_MERGE && hello > he && space_hello > hello && think == end + 1 &&
        think + 1 == pf_vocab_size(v));
    CHECK(pf_vocab_find(v, "", 0) == -1 && pf_vocab_find(v, "nothing", 7) == -1);
    CHECK(pf_vocab_special(v, PF_SPECIAL_BOS) == 7 && pf_vocab_special(v, PF_SPECIAL_EOS) == -1);
    CHECK(pf_vocab_is_end(v, end) && !pf_vocab_is_end(v, think) && !pf_vocab_is_end(v, -1) &&
          !pf_vocab_is_end(v, 1 << 30));
    TOKENS(v, "hello hello", 0, hello, space_hello);
    TOKENS(v, "he\xFF", PF_TOK_ADD_SPECIAL, 7, he, 0xEF, 0xBF, 0xBD);
    TOKENS(v, "he<|end|>he", PF_TOK_PARSE_SPECIAL, he, end, he);
    TOKENS(v, "<|end|>", 0, '<', '|', 'e', 'n', 'd', '|', '>');
    TOKENS(v, "he<think><think", 0, he, think, '<', 't', 'h', 'i', 'n', 'k');
    TOKENS(v, "\xE4\xBD\xA0", 0, pf_vocab_find(v, "\xE4\xBD\xA0", 3));
    size_t n;
    CHECK(pf_vocab_tokenize(v, "", 0, PF_TOK_ADD_SPECIAL, ids, 1, &n) == PF_OK && n == 1 && ids[0] == 7);
    ids[1] = -5;
    CHECK(pf_vocab_tokenize(v, "hello hello he", 14, 0, ids, 1, &n) == PF_ESPACE && n == 4 && ids[0] == hello &&
        ids[1] == -5);
    CHECK(pf_vocab_tokenize(v, "hello", 5, 0, NULL, 0, &n) == PF_ESPACE && n == 1);
    CHECK(pf_vocab_detokenize(v, (int32_t[]){ end, hello, think }, 3, 0, bytes, 100, &n) == PF_OK && n == 12 &&
          memcmp(bytes, "hello<think>", 12) == 0);
    CHECK(pf_vocab_detokenize(v, (int32_t[]){ end, hello }, 2, PF_DETOK_SPECIAL, bytes, 9, &n) == PF_ESPACE &&
        n == 12 &&
          memcmp(bytes, "<|end|>he", 9) == 0);
    CHECK(pf_vocab_detokenize(v, (int32_t[]){ 100000 }, 1, 0, bytes, 9, &n) == PF_EINVAL);
    test_random_merges(v, "helo", false, rank_of);
    pf_vocab_close(&v);
}

static void test_rank_by_id(void)
{
    struct gguf f = { 0 };
    put_tiny_bpe(&f, "kimi-k2", false);
    pf_vocab *v = must_open(&f);
    text_vocab = v;
    test_random_merges(v, "helo", false, id_of);
    pf_vocab_close(&v);
}

/* Characters that are joined only by NFC, for a pre-tokenizer whose models use it. */
static void test_nfc(void)
{
    struct gguf f = { 0 };
    put_tiny_bpe(&f, "qwen2", true);
    pf_vocab *v = must_open(&f);
    TOKENS(v, "e\xCC\x81", 0, pf_vocab_find(v, "\xC3\xA9", 2));
    pf_vocab_close(&v);
}

/* ---- SPM and gemma4 ----------------------------------------------------------------------------------------- */

static void test_spm(void)
{
    struct gguf f = { 0 };
    put_tiny_words(&f, "llama", false);
    pf_vocab *v = must_open(&f);
    int32_t space_hello = pf_vocab_find(v, " hello", 6), a = pf_vocab_find(v, " a", 2);
    CHECK(space_hello > SPM_FIRST_WORD && a > space_hello);
    CHECK(pf_vocab_special(v, PF_SPECIAL_BOS) == 1 && pf_vocab_special(v, PF_SPECIAL_UNK) == 0 &&
          pf_vocab_is_end(v, 2));
    TOKENS(v, "hello", PF_TOK_ADD_SPECIAL, 1, space_hello);
    TOKENS(v, "a</s>a", PF_TOK_PARSE_SPECIAL, a, 2, a);
    TOKENS(v, "a\xFFz", 0, a, 3 + 0xFF, 3 + 'z');
    size_t n;
    CHECK(pf_vocab_detokenize(v, (int32_t[]){ 1, space_hello, a, 3 + 0xE4 }, 4, 0, bytes, 100, &n) == PF_OK && n == 8 &&
          memcmp(bytes, "hello a\xE4", 8) == 0);
    text_vocab = v;
    test_random_merges(v, "helo a", true, score_of);
    pf_vocab_close(&v);
    put_tiny_words(&f, "llama", true);
    text_vocab = v = must_open(&f);
    test_random_merges(v, "helo a", true, score_of);
    pf_vocab_close(&v);
}

static void test_gemma(void)
{
    struct gguf f = { 0 };
    put_tiny_words(&f, "gemma4", false);
    pf_vocab *v = must_open(&f);
    int32_t hello = pf_vocab_find(v, "hello", 5), space_hello = pf_vocab_find(v, " hello", 6);
    int32_t newline = pf_vocab_find(v, "\n", 1), newlines = pf_vocab_find(v, "\n\n", 2);
    TOKENS(v, "hello hello", PF_TOK_ADD_SPECIAL, 1, hello, space_hello);
    TOKENS(v, "a\n\n\xE4\xBD\xA0z", 0, pf_vocab_find(v, "a", 1), newlines, pf_vocab_find(v, "\xE4\xBD\xA0", 3),
        3 + 'z');
    TOKENS(v, "\n\n\n", 0, newline, newline, newline);
    size_t n;
    CHECK(pf_vocab_detokenize(v, (int32_t[]){ space_hello, hello }, 2, 0, bytes, 100, &n) == PF_OK && n == 11);
    pf_vocab_close(&v);
}

/* Phi-3's special tokens take the white space after them along. */
static void test_strip(void)
{
    struct gguf f = { 0 };
    put_str(&f, "general.name", "My Phi-3 mini");
    put_tiny_words(&f, "llama", false);
    pf_vocab *v = must_open(&f);
    TOKENS(v, "</s> \n\ta", PF_TOK_PARSE_SPECIAL, 2, pf_vocab_find(v, " a", 2));
    TOKENS(v, "<s>\na", PF_TOK_PARSE_SPECIAL, 1, pf_vocab_find(v, " ", 1), pf_vocab_find(v, "\n", 1),
        pf_vocab_find(v, "a", 1));
    pf_vocab_close(&v);
}

/* ---- Malformed vocabularies --------------------------------------------------------------------------------- */

static void refused(struct gguf *f, pf_status want, const char *word)
{
    pf_vocab *v;
    pf_status st = open_vocab(f, &v);
    if (st != want || v || !strstr(pf_last_error(), word)) {
        printf("expected %s about %s, got %s: %s\n", pf_strstatus(want), word, pf_strstatus(st), pf_last_error());
        failed++;
    }
    pf_vocab_close(&v);
    gguf_free(f);
}

static void test_malformed(void)
{
    static const char *const two[] = { "a", "b" }, *const merge[] = { "a", "b c" };
    struct gguf f = { 0 };
    pf_vocab *v;
    CHECK(open_vocab(&f, &v) == PF_OK && !v);
    put_str(&f, "tokenizer.ggml.model", "none");
    CHECK(open_vocab(&f, &v) == PF_OK && !v);
    gguf_free(&f);
    put_str(&f, "tokenizer.ggml.model", "bert");
    refused(&f, PF_EUNSUPPORTED, "bert");
    put_int(&f, "tokenizer.ggml.model", 3);
    refused(&f, PF_EFORMAT, "tokenizer.ggml.model");
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_str(&f, "tokenizer.ggml.pre", "no-such-thing");
    refused(&f, PF_EUNSUPPORTED, "no-such-thing");
    put_str(&f, "tokenizer.ggml.model", "llama");
    refused(&f, PF_EFORMAT, "tokens is missing");
    put_str(&f, "tokenizer.ggml.model", "llama");
    put_int(&f, "tokenizer.ggml.tokens", 3);
    refused(&f, PF_EFORMAT, "not an array of strings");
    put_str(&f, "tokenizer.ggml.model", "llama");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_U32, 1);
    put_u32(&f, 1);
    refused(&f, PF_EFORMAT, "not an array of strings");
    put_str(&f, "tokenizer.ggml.model", "llama");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, 0);
    refused(&f, PF_EFORMAT, "tokenizer.ggml.tokens");
    for (int bad = 0; bad < 6; bad++) {
        static const struct { const char *key; enum pf_gguf_type elem; uint64_t n; const char *word; } cases[] = {
            { "tokenizer.ggml.scores", PF_GGUF_F32, 1, "scores" }, { "tokenizer.ggml.scores", PF_GGUF_U32, 2,
            "scores" },
            { "tokenizer.ggml.token_type", PF_GGUF_I32, 1, "token_type" },
            { "tokenizer.ggml.token_type", PF_GGUF_F32, 2, "token_type" },
            { "tokenizer.ggml.merges", PF_GGUF_F32, 2, "merges" }, { "tokenizer.ggml.eos_token_ids", PF_GGUF_F32, 2,
            "eos_token_ids" },
        };
        put_str(&f, "tokenizer.ggml.model", bad == 4 ? "gpt2" : "llama");
        put_strs(&f, "tokenizer.ggml.tokens", two, 2);
        put_array(&f, cases[bad].key, cases[bad].elem, cases[bad].n);
        for (uint64_t i = 0; i < cases[bad].n; i++)
            put_u32(&f, 0);
        refused(&f, PF_EFORMAT, cases[bad].word);
    }
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_strs(&f, "tokenizer.ggml.tokens", two, 2);
    refused(&f, PF_EFORMAT, "merges is missing");
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_strs(&f, "tokenizer.ggml.tokens", two, 2);
    put_strs(&f, "tokenizer.ggml.merges", merge, 2);
    refused(&f, PF_EFORMAT, "merges[0] has no space");
}

/* Odd but loadable: empty and repeated texts, ids out of range, merges of texts that are no tokens, missing byte
 * tokens. */
static void test_odd(void)
{
    static const char *const tokens[] = { "", "a", "a", "abc", "" };
    static const char *const merges[] = { "a b", "ab c", "x ", " y z", "a b" };
    struct gguf f = { 0 };
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_strs(&f, "tokenizer.ggml.tokens", tokens, 5);
    put_strs(&f, "tokenizer.ggml.merges", merges, 5);
    put_int(&f, "tokenizer.ggml.bos_token_id", 0xFFFFFFFF);
    put_array(&f, "tokenizer.ggml.eos_token_ids", PF_GGUF_I32, 3);
    put_u32(&f, 3);
    put_u32(&f, 0x80000000);
    put_u32(&f, 77);
    pf_vocab *v = must_open(&f);
    TOKENS(v, "abca", 0, 3, 1);
    TOKENS(v, "abq", 0, 1);
    CHECK(pf_vocab_find(v, "[EMPTY_4]", 9) == 4 && pf_vocab_find(v, "ab", 2) == -1);
    CHECK(pf_vocab_special(v, PF_SPECIAL_BOS) == -1 && pf_vocab_is_end(v, 3) && !pf_vocab_is_end(v, 1));
    pf_vocab_close(&v);
    static const char *const words[] = { "\xE2\x96\x81", "a" };
    put_str(&f, "tokenizer.ggml.model", "llama");
    put_strs(&f, "tokenizer.ggml.tokens", words, 2);
    v = must_open(&f);
    TOKENS(v, "az", 0, 0, 1, 0);
    pf_vocab_close(&v);
}

/* ---- Memory and time ---------------------------------------------------------------------------------------- */

static uint64_t n_live(void)
{
    struct pf_mem_stats s;
    pf_mem_stats_get(&s);
    return s.n_live;
}

/* Fails the first, second, ... allocation of opening and of tokenizing until one goes through; nothing may stay
 * behind. */
static void test_no_memory(struct gguf *f)
{
    static char text[2000];
    char path[] = "/tmp/pfmoe-test-XXXXXX";
    pf_gguf *g;
    pf_vocab *v = NULL;
    uint64_t before, n;
    size_t n_tok;
    gguf_write(f, path);
    gguf_free(f);
    CHECK(pf_gguf_open(&g, path, PF_GGUF_VOCAB_ONLY) == PF_OK);
    unlink(path);
    before = n_live();
    for (n = 1; !v; n++) {
        pf_mem_fail_nth(n);
        pf_status st = pf_vocab_open(&v, g);
        pf_mem_fail_nth(0);
        CHECK(st == (v ? PF_OK : PF_ENOMEM) && (v || n_live() == before));
    }
    before = n_live();
    memset(text, 'l', sizeof text);
    memcpy(text, "e\xCC\x81\xFF hello", 10);
    for (n = 1;; n++) {
        pf_mem_fail_nth(n);
        pf_status st = pf_vocab_tokenize(v, text, sizeof text, 0, ids, MANY, &n_tok);
        pf_mem_fail_nth(0);
        CHECK((st == PF_OK || st == PF_ENOMEM) && n_live() == before);
        if (st != PF_ENOMEM)
            break;
    }
    pf_vocab_close(&v);
    pf_gguf_close(&g);
}

/* ---- Texts that come again ---------------------------------------------------------------------------------- */

static pf_vocab *open_kind(int kind)
{
    struct gguf f = { 0 };
    if (kind == 0)
        put_tiny_bpe(&f, "qwen2", true);
    else
        put_tiny_words(&f, kind == 1 ? "llama" : "gemma4", false);
    return must_open(&f);
}

/* Messages that come again and again, some of them changed by a byte, with a marker between them: their ids are those
 * that a vocabulary gives which has seen nothing yet. */
static void test_again(int kind)
{
    enum { LEN = 3000, TEXTS = 40, CAP = 2 * LEN };
    static char text[TEXTS][LEN];
    static int32_t want[CAP];
    pf_vocab *v = open_kind(kind);
    size_t n, n_want;
    for (int i = 0; i < TEXTS; i++) {
        memcpy(text[i], text[i ? i - 1 : 0], LEN);
        for (size_t k = i % 3 ? (size_t)below(LEN) : 0, end = i % 3 ? k + 1 : LEN; k < end; k++)
            text[i][k] = "hel o\xC3\xA9"[below(7)];
        memcpy(text[i] + 1000 + below(1000), "<|end|>", 7);
        pf_vocab *fresh = open_kind(kind);
        CHECK(pf_vocab_tokenize(fresh, text[i], LEN, PF_TOK_PARSE_SPECIAL, want, CAP, &n_want) == PF_OK);
        pf_vocab_close(&fresh);
        for (int again = 0; again < 3; again++) {
            size_t cap = again < 2 ? CAP : (size_t)below((int)n_want);
            ids[cap] = -5;
            pf_status st = pf_vocab_tokenize(v, text[i], LEN, PF_TOK_PARSE_SPECIAL, ids, cap, &n);
            CHECK(st == (again < 2 ? PF_OK : PF_ESPACE) && n == n_want && ids[cap] == -5);
            CHECK(memcmp(ids, want, (n < cap ? n : cap) * sizeof *ids) == 0);
        }
        CHECK(pf_vocab_tokenize(v, text[i], LEN, PF_TOK_PARSE_SPECIAL, NULL, 0, &n) == PF_ESPACE && n == n_want);
    }
    pf_vocab_close(&v);
}

/* What is kept of many texts has a bound. */
static void test_many(void)
{
    enum { LEN = 20000, TEXTS = 600 };
    static char text[LEN];
    struct pf_mem_stats before, after;
    pf_vocab *v = open_kind(0);
    size_t n;
    memset(text, 'h', sizeof text);
    pf_mem_stats_get(&before);
    for (int i = 0; i < TEXTS; i++) {
        memcpy(text, &i, sizeof i);
        CHECK(pf_vocab_tokenize(v, text, LEN, 0, ids, MANY, &n) == PF_OK);
    }
    pf_mem_stats_get(&after);
    CHECK(after.bytes_live[PF_MEM_TEXT] - before.bytes_live[PF_MEM_TEXT] <= PF_RECENT_BYTES + (1 << 20));
    pf_vocab_close(&v);
}

static void fill(char *text, size_t n, const char *unit)
{
    size_t k = strlen(unit);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % k];
}

static const char *const units[] = {
    "a", "A", " ", "\n", "1", ".", "'", "l", "h", "\xC3\xA9", "\xCC\x81", "\xE4\xBD\xA0", "\xE3\x80\x80",
    "e\xCC\x81", "\xFF", " a", "a ",
    "hello ", "\xCC\x87\xCC\xA3", "\r\n", " \n", "aA", "/", "<|end|>", "<|en",
};
enum { N_UNITS = sizeof units / sizeof *units, LONG = 1 << 20 };
static char long_text[LONG];

static void test_long(struct gguf *f, size_t len)
{
    pf_vocab *v = must_open(f);
    size_t n, need;
    for (size_t i = 0; i <= N_UNITS; i++) {
        if (i < N_UNITS)
            fill(long_text, len, units[i]);
        for (size_t k = 0; i == N_UNITS && k < len; k++)
            long_text[k] = (char)below(256);
        pf_status st = pf_vocab_tokenize(v, long_text, len, PF_TOK_PARSE_SPECIAL, ids, MANY, &n);
        CHECK(st == PF_OK || st == PF_ESPACE);
        n = n < MANY ? n : MANY;
        CHECK(pf_vocab_detokenize(v, ids, n, PF_DETOK_SPECIAL, bytes, sizeof bytes, &need) == PF_OK);
    }
    pf_vocab_close(&v);
}

static void test_long_chunks(size_t len)
{
    static const char *const pres[] = {
        "gpt-4o", "llama4", "llama-bpe", "glm4", "qwen2", "hunyuan", "bailingmoe", "qwen35", "deepseek-v3",
        "deepseek-llm", "deepseek-coder", "gpt-2", "mpt", "refact", "kimi-k2", "tekken", "exaone-moe", "seed-coder",
        "afmoe", "tiny_aya", "youtu", "laguna", "spark2_5", "minicpm5", "falcon", "default",
    };
    size_t n;
    for (size_t p = 0; p < sizeof pres / sizeof *pres; p++)
        for (size_t i = 0; i < N_UNITS; i++) {
            fill(long_text, len, units[i]);
            long_text[len - 1] = 'x';        /* so that a pattern anchored at the end fails late */
            pf_status st = pf_pretokenize(pres[p], long_text, len, NULL, 0, &n);
            CHECK(st == PF_ESPACE && n > 0 && n <= len);
        }
    CHECK(pf_pretokenize("nonsense", "a", 1, NULL, 0, &n) == PF_EUNSUPPORTED);
    CHECK(pf_pretokenize("qwen2", "", 0, NULL, 0, &n) == PF_OK && n == 0);
}

int main(int argc, char **argv)
{
    uint64_t before = n_live();
    size_t len = argc > 1 && strcmp(argv[1], "brief") == 0 ? LONG / 8 : LONG;
    struct gguf f = { 0 };
    test_utf8_complete();
    test_normalise();
    test_bpe();
    test_rank_by_id();
    test_nfc();
    test_spm();
    test_gemma();
    test_strip();
    test_malformed();
    test_odd();
    put_tiny_bpe(&f, "qwen2", true);
    test_no_memory(&f);
    put_tiny_words(&f, "llama", false);
    test_no_memory(&f);
    put_tiny_words(&f, "gemma4", false);
    test_no_memory(&f);
    for (int kind = 0; kind < 3; kind++)
        test_again(kind);
    test_many();
    put_tiny_bpe(&f, "qwen2", true);
    test_long(&f, len);
    put_tiny_bpe(&f, "kimi-k2", false);
    test_long(&f, len / 8);
    put_tiny_words(&f, "llama", false);
    test_long(&f, len);
    put_tiny_words(&f, "llama", true);
    test_long(&f, len / 8);
    put_tiny_words(&f, "gemma4", false);
    test_long(&f, len);
    test_long_chunks(len / 16);
    CHECK(n_live() == before);
    printf("%d checks failed\n", failed);
    return failed != 0;
}

/* A second opinion on the pre-tokenizers: the published regular expressions, run by PCRE2, against pf_pretokenize, on
 * random strings from an alphabet of awkward characters. Deterministic. Arguments: the number of strings for each
 * pattern; "all" to draw from all of Unicode too, as far as PCRE2 knows it: utf8proc may have a newer version.
 *
 * Two things are spelled out for PCRE2: \s is Unicode's White_Space (PCRE2 adds U+180E), and Han is the script property
 * (PCRE2 means script extensions). Where the library follows llama.cpp's reading of a pattern the pattern here is that
 * reading: without case (tiny_aya, youtu), without White_Space in a range (deepseek-coder). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pfmoe.h"
#include "text/utf8.h"

#define WS "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define S   "[" WS "]"
#define C   "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define END "|" S "+(?![^" WS "])|" S "+"
#define NL  "|" S "*[\\r\\n]+" END
#define OTHER " ?[^" WS "\\p{L}\\p{N}]+"
#define U   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define L   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define UX  "(?:(?!\\p{sc:Han})" U ")"
#define LX  "(?:(?!\\p{sc:Han})" L ")"
#define LED "[^\\r\\n\\p{L}\\p{N}]?"
#define GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" OTHER END
#define C_ASCII_ALONE "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define LLAMA3(digits) LLAMA3_C(C, digits)
#define LLAMA3_C(c, digits) c "|" LED "\\p{L}+|" digits "|" OTHER "[\\r\\n]*" NL
#define O200K(c, digits) LED U "*" L "+" c "|" LED U "+" L "*" c "|" digits "|" OTHER "[\\r\\n/]*" NL
#define PUNCT_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define HAN_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define C_ASCII C_ASCII_ALONE "?"
#define UNCASED(digits) LED "[\\p{L}\\p{M}]+" C_ASCII "|" digits "|" OTHER "[\\r\\n/]*" NL
#define EAST_ASIAN "(?:(?!" S ")[\\x{800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}])+"
#define YOUTU "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|" \
    "[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}" \
    "\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" HAN_KANA
#define DEEPSEEK3 PUNCT_WORD "| ?[\\p{P}\\p{S}]+[\\r\\n]*" NL
#define FROM_RIGHT "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"
#define UNSPACED "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}" \
    "\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}" \
    "\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+"

static const struct {
    const char *pre;
    const char *passes[5];
} cases[] = {
    { "gpt-4o", { O200K(C "?", "\\p{N}{1,3}") } },
    { "tekken", { O200K("", "\\p{N}") } },
    { "llama-bpe", { LLAMA3("\\p{N}{1,3}") } },
    { "qwen2", { LLAMA3("\\p{N}") } },
    { "minicpm5", { "\\p{N}{1,3}", LLAMA3_C(C_ASCII_ALONE, "\\p{N}+") } },
    { "laguna", { "[^\\n]+|[\\n]+", LLAMA3_C(C_ASCII_ALONE, "\\p{N}") } },
    { "qwen35", { C "|" LED "[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" NL } },
    { "seed-coder", { C "|" LED "\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}\\r\\n]+" NL } },
    { "bailingmoe",
      { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]++[\\r\\n]*|" S
                      "*[\\r\\n]" END } },
    { "exaone-moe",
      { C "|" LED "(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|" OTHER "[\\r\\n/]?|" S "*[\\r\\n]" END } },
    { "deepseek-v3", { "\\p{N}{1,3}", HAN_KANA, DEEPSEEK3 } },
    { "spark2_5", { "\\p{N}{1,3}", HAN_KANA, PUNCT_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]" END, "\\p{N}" } },
    { "afmoe", { FROM_RIGHT, UNSPACED, DEEPSEEK3 } },
    { "gpt-2", { GPT2 } },
    { "starcoder", { "\\p{N}", GPT2 } },
    { "falcon", { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" } },
    { "default", { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
    { "tiny_aya", { FROM_RIGHT, UNCASED("\\p{N}{1,3}") } },
    { "youtu", { YOUTU, UNCASED("\\p{N}") } },
    { "deepseek-coder", { "[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", EAST_ASIAN, "\\p{N}" } },
    { "kimi-k2",
      { "[\\p{sc:Han}]+|" LED UX "*" LX "+" C "?|" LED UX "+" LX "*" C "?|\\p{N}{1,3}|" OTHER "[\\r\\n]*" NL } },
};

/* Characters drawn from: each class, near misses of every range, what folds to ASCII, space of every kind, ill-formed
 * bytes. */
static const uint32_t alphabet[] = {
    'a', 's', 't', 'e', 'l', 'v', 'r', 'd', 'm', 'S', 'T', 'E', 'L', 'R', 'Z', '\'', '\'', '\'', ' ', ' ', ' ', ' ',
    '\n', '\r', '\t', '\v', '/', '/', '.', '!', '$', '+', '^', '`', '~', '|', '<', '_', '-', '0', '1', '5', '9', 0,
    0x7F, 0x80, 0x85, 0xA0, 0xAA, 0xAD, 0xB2, 0xB5, 0xBD, 0xC9, 0xE9, 0x130, 0x131, 0x17F, 0x1C5, 0x1C6, 0x2B0, 0x300,
    0x301, 0x308, 0x345, 0x3A3, 0x3C2, 0x41D, 0x434, 0x488, 0x5D0, 0x5E9, 0x64B, 0x660, 0x6DD, 0x915, 0x93E, 0x94D,
    0x966, 0xE01, 0xE31, 0xE3F, 0xE40, 0x1100, 0x1680, 0x16EE, 0x180E, 0x1E9E, 0x2003, 0x200B, 0x200D, 0x2014, 0x2019,
    0x2028, 0x202F, 0x205F, 0x20AC, 0x212A, 0x2167, 0x2170, 0x24B6, 0x2581, 0x2E80, 0x3000, 0x3001, 0x3005, 0x3007,
    0x3021, 0x3031, 0x303B, 0x3042, 0x30A2, 0x30FB, 0x30FC, 0x3105, 0x3400, 0x4DC0, 0x4E00, 0x4F60, 0x9FA5, 0x9FA6,
    0x9FFF, 0xA9E0, 0xAC00, 0xD7FB, 0xE000, 0xF900, 0xFA6E, 0xFE0F, 0xFEFF, 0xFF01, 0xFF21, 0xFF65, 0xFF11, 0xFFFD,
    0xFFFE, 0x10400, 0x10428, 0x1D400, 0x1F600, 0x1F3FD, 0x20000, 0x2A6E0, 0x30000, 0xE0100, 0x10FFFF,
};
enum { N_ALPHABET = sizeof alphabet / sizeof *alphabet, MAX_CHARS = 48 };

static uint64_t rng = 0x123456789ABCDEF;
static uint32_t below(uint32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)((rng >> 32) * n >> 32);
}

static pcre2_code *unassigned;       /* NULL: draw from the alphabet only */

static uint32_t random_character(pcre2_match_data *md)
{
    uint32_t cp = unassigned && below(2) ? below(below(2) ? 0x110000 : 0x3000) : alphabet[below(N_ALPHABET)];
    char text[4];
    if (cp >= 0xD800 && cp <= 0xDFFF)
        return 'x';
    return unassigned && pcre2_match(unassigned, (PCRE2_SPTR)text, pf_utf8_put(text, cp), 0, 0, md, NULL) > 0
               ? 'x' : cp;
}

/* Half of the strings are drawn from few different characters, so that runs and repetitions come up. */
static size_t random_text(char *out, pcre2_match_data *md)
{
    uint32_t few[4], n_chars = 1 + below(MAX_CHARS);
    bool repeat = below(2);
    size_t n = 0;
    for (int i = 0; i < 4; i++)
        few[i] = random_character(md);
    for (uint32_t i = 0; i < n_chars; i++)
        n += pf_utf8_put(out + n, repeat ? few[below(4)] : random_character(md));
    return n;
}

struct ends {
    size_t at[4 * MAX_CHARS + 1];
    size_t n;
};

/* Cuts every chunk of *in once more. */
static void run_pass(const pcre2_code *code, pcre2_match_data *md, const char *text, const struct ends *in,
    struct ends *out)
{
    out->n = 0;
    for (size_t i = 0, from = 0; i < in->n; from = in->at[i++]) {
        size_t n = in->at[i] - from, done = 0;
        const char *chunk = text + from;
        while (done < n && pcre2_match(code, (PCRE2_SPTR)chunk, n, done, 0, md, NULL) > 0) {
            const PCRE2_SIZE *m = pcre2_get_ovector_pointer(md);
            if (m[0] > done)
                out->at[out->n++] = from + m[0];
            out->at[out->n++] = from + m[1];
            done = m[1];
        }
        if (done < n)
            out->at[out->n++] = from + n;
    }
}

static pcre2_code *compile(const char *pattern)
{
    int error;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at,
        NULL);
    if (!code) {
        printf("pattern %s: error %d at %zu\n", pattern, error, at);
        exit(1);
    }
    return code;
}

static bool same(const char *pre, const char *text, size_t len, const struct ends *want)
{
    static struct ends got;
    if (pf_pretokenize(pre, text, len, got.at, 4 * MAX_CHARS + 1, &got.n) < 0)
        return false;
    return got.n == want->n && memcmp(got.at, want->at, got.n * sizeof *got.at) == 0;
}

int main(int argc, char **argv)
{
    int n_strings = argc > 1 ? atoi(argv[1]) : 4000, failed = 0;
    pcre2_match_data *md = pcre2_match_data_create(8, NULL);
    if (argc > 2 && strcmp(argv[2], "all") == 0)
        unassigned = compile("\\p{Cn}");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        pcre2_code *codes[5] = { 0 };
        int bad = 0;
        for (int p = 0; p < 5 && cases[c].passes[p]; p++)
            codes[p] = compile(cases[c].passes[p]);
        for (int i = 0; i < n_strings; i++) {
            static char text[4 * MAX_CHARS];
            static struct ends a, b;
            size_t len = random_text(text, md);
            a = (struct ends){ .at = { len }, .n = 1 };
            for (int p = 0; p < 5 && codes[p]; p++) {
                run_pass(codes[p], md, text, &a, &b);
                a = b;
            }
            if (same(cases[c].pre, text, len, &a))
                continue;
            if (bad++ < 3) {
                printf("%s differs:", cases[c].pre);
                for (size_t k = 0, l; k < len; k += l) {
                    uint32_t cp;
                    l = pf_utf8_next(text + k, len - k, &cp);
                    printf(" %X", cp);
                }
                printf("\n");
            }
        }
        for (int p = 0; p < 5; p++)
            pcre2_code_free(codes[p]);
        printf("%-14s %d of %d strings\n", cases[c].pre, n_strings - bad, n_strings);
        failed += bad;
    }
    pcre2_code_free(unassigned);
    pcre2_match_data_free(md);
    return failed != 0;
}

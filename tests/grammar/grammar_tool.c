/* Grammars from the outside, for tests in other languages and for timing:
 *
 *     grammar_tool VOCAB walks LANGUAGE SEED N      each line of standard input is a grammar: N outputs of random
 * tokens in
 *                                                   hexadecimal, "unfinished" for those that found no end, or one line
 *                                                   "refused: sentence"
 *     grammar_tool VOCAB accepts LANGUAGE           each line is a grammar and texts, with a tab before each: a line
 *                                                   yes, no or refused for each text
 *     grammar_tool VOCAB bench LANGUAGE GRAMMAR     the file's grammar; each line is a text: the time that masks took
 * along
 *                                                   it, every one made, and the time to ask whether a token may follow
 *
 * VOCAB is a GGUF file, or - for a small vocabulary; LANGUAGE schema, gbnf or regex. */
#define _GNU_SOURCE                      /* getline */
#include <stdio.h>
#include <time.h>

#include "json_vocab.h"

static struct pf_tokens *tokens;

static void die(const char *what)
{
    printf("%s: %s\n", what, pf_last_error());
    exit(2);
}

static pf_language_fn *language_of(const char *name)
{
    return strcmp(name, "gbnf") == 0 ? pf_gbnf_rules : strcmp(name, "regex") == 0 ? pf_regex_rules : pf_schema_rules;
}

static pf_vocab *open_vocab_of(const char *path)
{
    pf_gguf *g = NULL;
    pf_vocab *v = NULL;
    if (strcmp(path, "-") == 0)
        return open_json_vocab();
    if (pf_gguf_open(&g, path, PF_GGUF_VOCAB_ONLY) < 0 || pf_vocab_open(&v, g) < 0 || !v)
        die(path);
    pf_gguf_close(&g);
    return v;
}

/* ---- Walks ------------------------------------------------------------------------------------------------------- */

/* A token that ends something, if there is one that may follow: a way out of a long walk. */
static int32_t closing_token(const uint64_t *mask, uint64_t *state)
{
    static const char *const closing[] = { "\"", "}", "]", "\"}", "\"]" };
    unsigned first = next_number(state) % 5;
    for (unsigned k = 0; k < 5; k++) {
        const char *text = closing[(first + k) % 5];
        int32_t id = pf_vocab_find(tokens->vocab, text, strlen(text));
        if (id >= 0 && (mask[id / 64] >> id % 64 & 1))
            return id;
    }
    return -1;
}

static int32_t next_token(pf_matcher *mt, int i, uint64_t *state)
{
    const uint64_t *mask;
    int32_t tok = -1;
    if (pf_matcher_mask(mt, &mask) < 0)
        die("a mask");
    if (pf_matcher_may_end(mt) && (i > 40 || next_number(state) % 4 == 0))
        return tokens->ends[0];
    if (i > 40 || next_number(state) % 8 == 0)
        tok = closing_token(mask, state);
    return tok >= 0 ? tok : any_token(mask, (int32_t)tokens->n_vocab, state);
}

static void print_walk(const pf_grammar *g, uint64_t *state)
{
    pf_matcher *mt;
    bool ended = false;
    char out[1 << 16];
    size_t at = 0;
    if (pf_matcher_open(&mt, g) < 0) {
        printf("refused: %s\n", pf_last_error());
        return;
    }
    for (int i = 0; i < 3000 && !ended; i++) {
        int32_t tok = next_token(mt, i, state);
        if (tok < 0 || pf_matcher_take(mt, tok) < 0)
            die("a walk with no way on");
        ended = pf_vocab_is_end(tokens->vocab, tok);
        size_t n;
        const char *text = pf_tokens_text(tokens, tok, &n);
        for (size_t k = 0; k < n && !ended && at + 3 < sizeof out; k++)
            at += (size_t)sprintf(out + at, "%02x", (unsigned char)text[k]);
    }
    printf("%.*s\n", ended ? (int)at : 10, ended ? out : "unfinished");
    pf_matcher_close(&mt);
}

static void walks(pf_language_fn *language, uint64_t seed, int n)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t len; (len = getline(&line, &cap, stdin)) >= 0;) {
        pf_grammar *g;
        len -= len > 0 && line[len - 1] == '\n';
        if (pf_grammar_compile(&g, tokens, language, line, (size_t)len) < 0) {
            printf("refused: %s\n", pf_last_error());
            continue;
        }
        for (int i = 0; i < n; i++)
            print_walk(g, &seed);
        pf_grammar_close(&g);
    }
    free(line);
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

static bool takes(const pf_grammar *g, const char *text, size_t len)
{
    pf_matcher *mt;
    if (pf_matcher_open(&mt, g) < 0)
        die("a matcher");
    bool yes = pf_matcher_take_text(mt, text, len) == PF_OK && pf_matcher_may_end(mt);
    pf_matcher_close(&mt);
    return yes;
}

static void accepts(pf_language_fn *language)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t len; (len = getline(&line, &cap, stdin)) >= 0;) {
        pf_grammar *g = NULL;
        len -= len > 0 && line[len - 1] == '\n';
        char *end = line + len, *tab = memchr(line, '\t', (size_t)len);
        pf_status st = tab ? pf_grammar_compile(&g, tokens, language, line, (size_t)(tab - line)) : PF_OK;
        for (char *text = tab, *next; text; text = next) {
            text++;
            next = memchr(text, '\t', (size_t)(end - text));
            if (st < 0)
                printf("refused: %s\n", pf_last_error());
            else
                puts(takes(g, text, (size_t)((next ? next : end) - text)) ? "yes" : "no");
        }
        pf_grammar_close(&g);
    }
    free(line);
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

enum { MAX_TIMES = 1 << 20 };
static double mask_us[MAX_TIMES], fits_us[MAX_TIMES];

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, double *v, size_t n)
{
    double sum = 0;
    qsort(v, n, sizeof *v, by_size);
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    if (n)
        printf("%-28s mean %8.2f us, median %8.2f, 99%% %8.2f, most %8.2f\n", name, sum / (double)n, v[n / 2],
               v[n * 99 / 100], v[n - 1]);
}

static size_t bench_text(const pf_grammar *g, const char *text, size_t len, size_t n)
{
    static int32_t ids[1 << 16];
    size_t n_ids;
    pf_matcher *mt;
    if (pf_vocab_tokenize(tokens->vocab, text, len, 0, ids, 1 << 16, &n_ids) < 0 || pf_matcher_open(&mt, g) < 0)
        die("a text");
    for (size_t i = 0; i < n_ids && n < MAX_TIMES; i++, n++) {
        const uint64_t *mask;
        bool fits;
        double begin = now_us();
        if (pf_matcher_mask(mt, &mask) < 0)
            die("a mask");
        double middle = now_us();
        if (pf_matcher_fits(mt, ids[i], &fits) < 0)
            die("a token");
        mask_us[n] = middle - begin;
        fits_us[n] = now_us() - middle;
        if (pf_matcher_take(mt, ids[i]) < 0) {
            printf("token %zu of \"%.60s\" does not fit\n", i, text);
            break;
        }
    }
    pf_matcher_close(&mt);
    return n;
}

static void bench(pf_language_fn *language, const char *path)
{
    static char grammar[1 << 20];
    FILE *f = fopen(path, "rb");
    size_t len = f ? fread(grammar, 1, sizeof grammar, f) : 0, n = 0, cap = 0;
    char *line = NULL;
    pf_grammar *g;
    double begin = now_us();
    if (f)
        fclose(f);
    if (pf_grammar_compile(&g, tokens, language, grammar, len) < 0)
        die(path);
    printf("compiled in %.0f us; %zu tokens, %zu nodes\n", now_us() - begin, tokens->n_vocab, tokens->n_nodes);
    for (ssize_t k; (k = getline(&line, &cap, stdin)) >= 0;)
        n = bench_text(g, line, (size_t)(k - (k > 0 && line[k - 1] == '\n')), n);
    printf("%zu tokens\n", n);
    print_times("a mask for every token", mask_us, n);
    print_times("asking of one token", fits_us, n);
    free(line);
    pf_grammar_close(&g);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        printf("usage: grammar_tool VOCAB walks|accepts|bench LANGUAGE ...\n");
        return 2;
    }
    pf_vocab *v = open_vocab_of(argv[1]);
    double begin = now_us();
    if (pf_tokens_open(&tokens, v) < 0)
        die("tokens");
    double made = now_us() - begin;
    pf_language_fn *language = language_of(argv[3]);
    if (strcmp(argv[2], "walks") == 0 && argc == 6)
        walks(language, strtoull(argv[4], NULL, 10), atoi(argv[5]));
    else if (strcmp(argv[2], "accepts") == 0)
        accepts(language);
    else if (argc == 5) {
        printf("trie of the vocabulary in %.0f us\n", made);
        bench(language, argv[4]);
    }
    pf_tokens_close(&tokens);
    pf_vocab_close(&v);
    return 0;
}

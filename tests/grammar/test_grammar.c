/* Grammars and matchers: what tables of GBNF grammars and regular expressions accept and refuse, byte by byte and by
 * tokens; masks against asking of each token; sentences; bounds; the N-th allocation failing. */
#include <string.h>
#include <time.h>

#include "base/pf_mem.h"
#include "check.h"
#include "json_vocab.h"

enum { MAX_TEXTS = 24 };
struct accepts {
    pf_language_fn *language;
    const char *grammar;
    const char *yes[MAX_TEXTS], *no[MAX_TEXTS];
};

#define GBNF pf_gbnf_rules
#define REGEX pf_regex_rules

static const struct accepts tables[] = {
    { GBNF, "root ::= \"abc\"", { "abc" }, { "", "ab", "abcd", "abd" } },
    { GBNF, "root ::= \"a\" | \"ab\" | b\nb ::= [0-9]+", { "a", "ab", "1", "123" }, { "", "b", "1a" } },
    { GBNF, "# a comment\nroot ::= # another\n  x y |\n  y x # and one\nx ::= \"x\"\ny ::= (\"y\"\n | \"z\")",
      { "xy", "xz", "yx", "zx" }, { "xx", "x", "yy" } },
    { GBNF, "root ::= [^a-c\\]]{2,3}", { "dd", "d你é", "[[" }, { "d", "dddd", "a", "d]" } },
    { GBNF, "root ::= \"\\x41\\u00e9\\U0001F600\\n\\\"\"", { "Aé😀\n\"" }, { "A", "Aé" } },
    { GBNF, "root ::= .{,2}", { "", "a", "é你", "😀" }, { "abc", "\xFF", "\xC3" } },
    { GBNF, "root ::= (\"a\" \"b\"?){2}", { "aa", "aba", "aab", "abab" }, { "a", "ab", "aaa" } },
    { GBNF, "root ::= \"a\"{3}", { "aaa" }, { "aa", "aaaa" } },
    { GBNF, "root ::= \"a\"{2,}", { "aa", "aaaaaaaa" }, { "a", "" } },
    { GBNF, "root ::= (\"ab\" | \"c\"){5,7} \"d\"?", { "ccccc", "ababababab", "abcabccccd" }, { "cccc", "cccccccc" } },
    { GBNF, "root ::= ", { "" }, { "a" } },
    /* recursion: in the middle, to the right, to the left, through others, through rules that match nothing */
    { GBNF, "root ::= \"(\" root \")\" root | ", { "", "()", "(())()", "((()))" }, { ")", "(", "())" } },
    { GBNF, "root ::= \"a\" root | \"b\"", { "b", "ab", "aaaaaaaab" }, { "a", "ba" } },
    { GBNF, "root ::= root \"a\" | \"b\"", { "b", "ba", "baaaaaa" }, { "", "a", "bb" } },
    { GBNF, "root ::= root \"+\" t | t\nt ::= t \"*\" f | f\nf ::= \"(\" root \")\" | [a-z]",
      { "a", "a+a", "a*b+c", "(a+b)*c", "((a))" }, { "", "a+", "+a", "(a", "a)" } },
    { GBNF, "root ::= a \"x\" | \"r\"\na ::= b \"y\" | \"s\"\nb ::= root \"z\" | \"t\"",
      { "r", "sx", "tyx", "rzyx", "rzyxzyx" }, { "s", "rx", "rzx" } },
    { GBNF, "root ::= n root \"a\" | \"b\"\nn ::= \"c\"?", { "b", "ba", "cba", "ccbaa" }, { "c", "ca", "ab", "cb" } },
    { GBNF, "root ::= root root | \"a\"", { "a", "aa", "aaaaaa" }, { "", "b" } },
    { GBNF, "root ::= root root root | root root | \"a\" | ", { "", "a", "aaaaaa" }, { "b" } },
    { GBNF,
      "root ::= a a a\na ::= b?\nb ::= \"x\" a \"y\" | \"x\"", { "", "x", "xxy", "xyxyxy", "xxx" }, { "y", "xyy" } },
    { GBNF, "root ::= \"a\" | dead\ndead ::= \"b\" dead", { "a" }, { "b", "bb" } },
    { REGEX, "abc|d*", { "abc", "", "ddd" }, { "ab", "abcd" } },
    { REGEX, "^(a|b)+?c{2,3}$", { "acc", "abaccc" }, { "cc", "ac", "acccc" } },
    { REGEX, "[\\w.]+@\\d\\.[^\\W\\d]", { "a.b@1.c" }, { "@1.c", "a@1.1" } },
    { REGEX, "\\x41\\u00e9\\u{1F600}\\ud83d\\ude00[\\-\\]]\\/", { "Aé😀😀-/", "Aé😀😀]/" }, { "A" } },
    { REGEX, "(?:a(?<n>b)c)?.", { "abcd", "x", "abcé" }, { "", "\n", "abc\r" } },
    { REGEX, "\\s\\S\\D", { " a-", "\xC2\xA0" "aé" }, { "aaa", " a1" } },
    { REGEX, "^a|b$", { "a", "b" }, { "ab" } },
};

static struct pf_tokens *tokens;

static pf_matcher *matcher_of(pf_grammar **g, pf_language_fn *language, const char *grammar)
{
    pf_matcher *mt = NULL;
    if (pf_grammar_compile(g, tokens, language, grammar, strlen(grammar)) < 0 || pf_matcher_open(&mt, *g) < 0) {
        CHECK(false, "%s: %s", grammar, pf_last_error());
        exit(1);
    }
    return mt;
}

static bool accepts(const pf_grammar *g, const char *text)
{
    pf_matcher *mt;
    if (pf_matcher_open(&mt, g) < 0)
        return false;
    bool yes = pf_matcher_take_text(mt, text, strlen(text)) == PF_OK && pf_matcher_may_end(mt);
    pf_matcher_close(&mt);
    return yes;
}

/* The mask is what asking of each token gives. */
static void check_mask(pf_matcher *mt, const char *grammar, const char *where)
{
    const uint64_t *mask;
    int wrong = 0, n_ends = 0;
    CHECK(pf_matcher_mask(mt, &mask) == PF_OK, "%s: %s", grammar, pf_last_error());
    for (int32_t i = 0; i < N_JSON_VOCAB; i++) {
        bool fits, in_mask = mask[i / 64] >> i % 64 & 1;
        if (pf_matcher_fits(mt, i, &fits) < 0 || fits != in_mask)
            wrong++;
        n_ends += in_mask && i >= JSON_VOCAB_END;
    }
    CHECK(wrong == 0, "%s after \"%s\": %d tokens", grammar, where, wrong);
    CHECK(n_ends == pf_matcher_may_end(mt), "%s after \"%s\"", grammar, where);
}

static void check_table(const struct accepts *c)
{
    pf_grammar *g;
    pf_matcher *mt = matcher_of(&g, c->language, c->grammar);
    pf_matcher_close(&mt);
    for (int i = 0; i < MAX_TEXTS && c->yes[i]; i++) {
        CHECK(accepts(g, c->yes[i]), "%s: \"%s\"", c->grammar, c->yes[i]);
        CHECK(pf_matcher_open(&mt, g) == PF_OK);
        for (size_t k = 0; k <= strlen(c->yes[i]); k++) {
            check_mask(mt, c->grammar, c->yes[i]);
            pf_matcher_take_text(mt, c->yes[i] + k, k < strlen(c->yes[i]));
        }
        pf_matcher_close(&mt);
    }
    for (int i = 0; i < MAX_TEXTS && c->no[i]; i++)
        CHECK(!accepts(g, c->no[i]), "%s: \"%s\"", c->grammar, c->no[i]);
    pf_grammar_close(&g);
}

/* Outputs made of tokens that may follow: there is always one, and what a walk gives is accepted as a text, too. */
static void check_walks(const struct accepts *c)
{
    pf_grammar *g;
    pf_matcher *mt = matcher_of(&g, c->language, c->grammar);
    uint64_t state = 1;
    for (int walk = 0; walk < 20; walk++) {
        char text[4096];
        size_t n = 0, k;
        const uint64_t *mask;
        pf_matcher_close(&mt);
        CHECK(pf_matcher_open(&mt, g) == PF_OK);
        for (int i = 0; i < 40; i++) {
            CHECK(pf_matcher_mask(mt, &mask) == PF_OK);
            int32_t tok = any_token(mask, N_JSON_VOCAB, &state);
            CHECK(tok >= 0 && pf_matcher_take(mt, tok) == PF_OK, "%s: token %d", c->grammar, tok);
            if (tok < 0 || tok >= JSON_VOCAB_END)
                break;
            const char *piece = pf_tokens_text(tokens, tok, &k);
            memcpy(text + n, piece, k);
            n += k;
        }
        text[n] = 0;
        CHECK(!pf_matcher_may_end(mt) || strlen(text) != n || accepts(g, text), "%s: \"%s\"", c->grammar, text);
    }
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
}

static void check_end(void)
{
    pf_grammar *g;
    pf_matcher *mt = matcher_of(&g, GBNF, "root ::= \"a\" \"b\"?");
    const uint64_t *mask;
    CHECK(!pf_matcher_may_end(mt) && pf_matcher_take(mt, JSON_VOCAB_END) == PF_EINVAL);
    CHECK(pf_matcher_take(mt, JSON_VOCAB_CONTROL) == PF_EINVAL && pf_matcher_take(mt, -1) == PF_EINVAL);
    CHECK(pf_matcher_take(mt, N_JSON_VOCAB) == PF_EINVAL);
    CHECK(pf_matcher_take(mt, 'b') == PF_EINVAL && pf_matcher_take(mt, 'a') == PF_OK);
    CHECK(pf_matcher_may_end(mt) && !pf_matcher_must_end(mt));
    CHECK(pf_matcher_take(mt, 'b') == PF_OK && pf_matcher_must_end(mt));
    CHECK(pf_matcher_take_text(mt, "x", 1) == PF_EINVAL && pf_matcher_take_text(mt, "", 0) == PF_OK);
    CHECK(pf_matcher_take(mt, JSON_VOCAB_END) == PF_OK && pf_matcher_must_end(mt) && pf_matcher_may_end(mt));
    CHECK(pf_matcher_take(mt, JSON_VOCAB_END) == PF_EINVAL && pf_matcher_take(mt, 'a') == PF_EINVAL);
    CHECK(pf_matcher_mask(mt, &mask) == PF_OK);
    for (int32_t i = 0; i < N_JSON_VOCAB; i++)
        CHECK(!(mask[i / 64] >> i % 64 & 1));
    pf_matcher_close(&mt);
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
    pf_grammar_close(&g);
}

/* ---- Sentences --------------------------------------------------------------------------------------------------- */

static const struct {
    pf_language_fn *language;
    const char *grammar, *sentence;
} refused[] = {
    { GBNF, "", "no rule \"root\"" },
    { GBNF, "a ::= \"b\"", "no rule \"root\"" },
    { GBNF, "root ::= a", "no rule \"a\"" },
    { GBNF, "root ::= \"a", "line 1, column 12: the closing \" is missing" },
    { GBNF, "root ::= [a", "closing ] is missing" },
    { GBNF, "root ::= (\"a\"\n", "line 2, column 1: the closing ) is missing" },
    { GBNF, "root ::= \"a\")", "no ( to this )" },
    { GBNF, "root ::= \"\\q\"", "this escape is not known" },
    { GBNF, "root ::= \"\\x4\"", "hexadecimal digit is missing" },
    { GBNF, "root ::= \"\\UFFFFFFFF\"", "no character's" },
    { GBNF, "root ::= [z-a]", "end is below its begin" },
    { GBNF, "root ::= \"a\"{3,2}", "above its largest" },
    { GBNF, "root ::= \"a\"{}", "{m,n}" },
    { GBNF, "root ::= \"a\"**", "wants brackets" },
    { GBNF, "root ::= <think>", "tokens cannot be named" },
    { GBNF, "root ::= \"\xFF\"", "not UTF-8" },
    { GBNF, "root := \"a\"", "::= must follow" },
    { GBNF, "root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: there is a rule of this name" },
    { GBNF, "root ::= root", "matches no text" },
    { GBNF, "root ::= \"a\" root", "matches no text" },
    { GBNF, "root ::= \"a\"{1000000}", "more than 262144 states" },
    { GBNF, "root ::= (.{1000}){1000} [^a]{1000000}", "more than 262144 states" },
    { REGEX, "a(", "closing ) is missing" },
    { REGEX, "a)", "no ( to this )" },
    { REGEX, "*a", "nothing to repeat" },
    { REGEX, "a**", "wants brackets" },
    { REGEX, "[a", "closing ] is missing" },
    { REGEX, "(?=a)b", "ahead or behind" },
    { REGEX, "(?<!a)b", "ahead or behind" },
    { REGEX, "(a)\\1", "references" },
    { REGEX, "\\bword", "\\b and \\p are not supported" },
    { REGEX, "\\p{L}", "\\b and \\p are not supported" },
    { REGEX, "a^b", "at the ends" },
    { REGEX, "(^a|b)c", "at the ends" },
    { REGEX, "\\ud800", "half a surrogate pair" },
    { REGEX, "a{2", "{m,n}" },
    { REGEX, "[^\\s\\S]", "matches no text" },
};

static void check_sentences(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        pf_grammar *g;
        pf_status st = pf_grammar_compile(&g, tokens, refused[i].language, refused[i].grammar,
                                          strlen(refused[i].grammar));
        CHECK(st < 0 && !g && strstr(pf_last_error(), refused[i].sentence), "%s: %d, %s", refused[i].grammar, st,
              st < 0 ? pf_last_error() : "accepted");
        pf_grammar_close(&g);
    }
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Compiling and a walk through the grammar take a bounded time, whatever comes of it. */
static void check_bounded(const char *name, pf_language_fn *language, const char *grammar, size_t n)
{
    pf_grammar *g;
    pf_matcher *mt = NULL;
    uint64_t state = 7;
    double begin = seconds(), worst = 0;
    pf_status st = pf_grammar_compile(&g, tokens, language, grammar, n);
    double compiled = seconds() - begin;
    if (st == PF_OK)
        st = pf_matcher_open(&mt, g);
    for (int i = 0; i < 30 && st == PF_OK; i++) {
        const uint64_t *mask;
        double t = seconds();
        st = pf_matcher_mask(mt, &mask);
        int32_t tok = st == PF_OK ? any_token(mask, JSON_VOCAB_END, &state) : -1;
        if (tok >= 0)
            st = pf_matcher_take(mt, tok);
        t = seconds() - t;
        worst = t > worst ? t : worst;
        if (tok < 0)
            break;
    }
    printf("%-60s %6.3f s to compile, %6.3f s the slowest step: %s\n", name, compiled, worst,
           st == PF_OK ? "fine" : pf_last_error());
    CHECK(compiled < 5 && worst < 5, "%s", name);
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
}

static const char *const hostile[] = {
    "root ::= (\"a\"?){20000}",
    "root ::= ((((\"a\"?){50})?){50})*",
    "root ::= root root root | root root | [a-z \"]? | \"a\" root",
    "root ::= \"[\" root \"]\" | \"{\" root root \"}\" | .",
    "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"a\" | \"b\" | ",
};

static void check_hostile(void)
{
    enum { MANY = 20000 };
    char *text = malloc(MANY * 40 + 100);
    size_t n;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        check_bounded(hostile[i], GBNF, hostile[i], strlen(hostile[i]));
    n = (size_t)sprintf(text, "root ::= a0\n");
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n, "a%d ::= a%d a%d | \"\"\n", i, i + 1, i + 1);
    n += (size_t)sprintf(text + n, "a%d ::= \"x\"\n", MANY);
    check_bounded("doubling, 20000 rules", GBNF, text, n);
    n = (size_t)sprintf(text, "root ::= a0\n");
    for (int i = 0; i < 300; i++)
        n += (size_t)sprintf(text + n, "a%d ::= a%d \"x\" | \"y\"\n", i, (i + 1) % 300);
    check_bounded("a left circle of 300", GBNF, text, n);
    n = (size_t)sprintf(text, "root ::= a0\n");
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n, "a%d ::= a%d \"x\" | \"y\"\n", i, (i + 1) % MANY);
    check_bounded("a left circle of 20000", GBNF, text, n);
    n = (size_t)sprintf(text, "root ::= ");
    memset(text + n, '(', MANY);
    check_bounded("brackets", GBNF, text, n + MANY);
    free(text);
}

/* A long output by a grammar that is ever more ambiguous comes to its end in an error, and takes a bounded time until
 * then, not that time for each of its tokens. */
static void check_long_output(const char *grammar)
{
    enum { TOKENS = 3000 };
    pf_grammar *g;
    pf_matcher *mt;
    uint64_t state = 7;
    int n = 0;
    double begin = seconds();
    CHECK(pf_grammar_compile(&g, tokens, GBNF, grammar, strlen(grammar)) == PF_OK && pf_matcher_open(&mt, g) == PF_OK);
    pf_status st = PF_OK;
    for (; n < TOKENS && st == PF_OK && seconds() - begin < 5; n++) {
        const uint64_t *mask;
        st = pf_matcher_mask(mt, &mask);
        if (st == PF_OK)
            st = pf_matcher_take(mt, any_token(mask, JSON_VOCAB_END, &state));
    }
    printf("%-60s %6.3f s for %d tokens\n", grammar, seconds() - begin, n);
    CHECK(st == PF_EUNSUPPORTED && n > 10 && seconds() - begin < 3, "%s: %d", grammar, st);
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
}

/* A constant of more bytes than a runner has positions, in one text; one that does not follow changes nothing. */
static void check_long_constant(void)
{
    enum { N = 100000 };
    static char schema[N + 32], text[N + 2];
    pf_grammar *g;
    uint64_t seed = 3;
    text[0] = text[N - 1] = '"';
    for (int i = 1; i < N - 1; i++)
        text[i] = (char)('a' + next_number(&seed) % 26);
    snprintf(schema, sizeof schema, "{\"const\":%s}", text);
    pf_matcher *mt = matcher_of(&g, pf_schema_rules, schema);
    if (!mt)
        return;
    CHECK(pf_matcher_take_text(mt, text, 3) == PF_OK);
    text[N] = 'x';
    CHECK(pf_matcher_take_text(mt, text + 3, N - 2) == PF_EINVAL, "a constant goes on behind its end");
    CHECK(pf_matcher_take_text(mt, text + 3, N - 3) == PF_OK && pf_matcher_must_end(mt), "a long constant: %s",
          pf_last_error());
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
}

/* Many alternatives that begin alike are not too ambiguous. */
static void check_alternatives(void)
{
    enum { N = 500 };
    static const char output[] = "[{\"name\": \"x\", \"k499\": \"y\"}, {\"name\": \"\", \"k7\": \"\"}]";
    char *text = malloc(N * 200);
    pf_grammar *g;
    pf_matcher *mt;
    size_t n = (size_t)sprintf(text, "{\"type\":\"array\",\"items\":{\"anyOf\":[false");
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(text + n, ",{\"properties\":{\"name\":{\"type\":\"string\"},\"k%d\":{\"type\":"
                             "\"string\"}},\"required\":[\"name\",\"k%d\"],\"additionalProperties\":false}", i, i);
    n += (size_t)sprintf(text + n, "]}}");
    CHECK(pf_grammar_compile(&g, tokens, pf_schema_rules, text, n) == PF_OK && pf_matcher_open(&mt, g) == PF_OK);
    for (const char *p = output; *p; p++) {
        const uint64_t *mask;
        CHECK(pf_matcher_mask(mt, &mask) == PF_OK && pf_matcher_take_text(mt, p, 1) == PF_OK, "%s: %s", p,
              pf_last_error());
    }
    CHECK(pf_matcher_must_end(mt));
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
    free(text);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static uint64_t n_live(void)
{
    struct pf_mem_stats s;
    pf_mem_stats_get(&s);
    return s.n_live;
}

/* Everything from compiling to a mask, with each allocation in turn failing. */
static void check_allocations(pf_language_fn *language, const char *grammar, const char *text)
{
    uint64_t before = n_live();
    pf_status st = PF_ENOMEM;
    for (uint64_t n = 1; st == PF_ENOMEM; n++) {
        pf_grammar *g = NULL;
        pf_matcher *mt = NULL;
        const uint64_t *mask;
        pf_mem_fail_nth(n);
        st = pf_grammar_compile(&g, tokens, language, grammar, strlen(grammar));
        if (st == PF_OK)
            st = pf_matcher_open(&mt, g);
        for (size_t i = 0; text[i] && st == PF_OK; i++) {
            st = pf_matcher_mask(mt, &mask);
            if (st == PF_OK)
                st = pf_matcher_take_text(mt, text + i, 1);
        }
        pf_mem_fail_nth(0);
        if (st == PF_ENOMEM && mt) {         /* what failed once succeeds now: nothing was left in disorder */
            CHECK(pf_matcher_mask(mt, &mask) == PF_OK, "%s", pf_last_error());
            if (n % 16 == 0)
                check_mask(mt, grammar, "a failure");
        }
        pf_matcher_close(&mt);
        pf_grammar_close(&g);
        CHECK(st == PF_OK || st == PF_ENOMEM, "%s: %s", grammar, pf_last_error());
        CHECK(n_live() == before, "%s: %llu", grammar, (unsigned long long)n);
    }
}

static void check_tokens(const pf_vocab *v)
{
    struct pf_tokens *t = NULL;
    uint64_t before = n_live();
    for (uint64_t n = 1; !t; n++) {
        pf_mem_fail_nth(n);
        pf_status st = pf_tokens_open(&t, v);
        pf_mem_fail_nth(0);
        CHECK(st == (t ? PF_OK : PF_ENOMEM) && (t || n_live() == before));
    }
    size_t n;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        CHECK(t->nodes[i].skip > i && t->nodes[i].id <= t->nodes[i + 1].id);
    const char *mark = pf_tokens_text(t, JSON_VOCAB_THINK, &n);
    CHECK(n == 8 && mark[0] == (char)PF_TOKEN_MARK && memcmp(mark + 1, "<think>", 7) == 0);
    CHECK(t->n_ends == 1 && t->n_marks == 2 && t->n_ids == JSON_VOCAB_END - 1 + 2);
    pf_tokens_close(&t);
}

/* Schemas whose parts come together in ever more ways, or lead into one another without end. */
static void check_hostile_schemas(void)
{
    static const char *const schemas[] = {
        "{\"$ref\":\"#\"}",
        "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}",
        "{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}]}",
        "{\"type\":\"object\",\"maxProperties\":100000,\"additionalProperties\":true}",
        "{\"type\":\"array\",\"minItems\":1000000000}",
        "{\"type\":\"string\",\"pattern\":\"^(a|aa|aaa){500}$\",\"maxLength\":900}",
        "{\"type\":\"string\",\"pattern\":\"c.{11}\",\"allOf\":[{\"pattern\":\".*a.{12}\"},{\"pattern\":\"b.{13}\"}]}",
    };
    enum { PAIRS = 30, CHAIN = 3000, VALUES = 110000 };
    char *text = malloc(VALUES * 10);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        check_bounded(schemas[i], pf_schema_rules, schemas[i], strlen(schemas[i]));
    size_t n = (size_t)sprintf(text, "{\"allOf\":[true");
    for (int i = 0; i < PAIRS; i++)
        n += (size_t)sprintf(text + n, ",{\"anyOf\":[{\"maxLength\":%d},{\"maximum\":%d}]}", i, i);
    n += (size_t)sprintf(text + n, "]}");
    check_bounded("2^30 alternatives", pf_schema_rules, text, n);
    n = (size_t)sprintf(text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < CHAIN; i++)
        n += (size_t)sprintf(text + n, "\"%d\":{\"$ref\":\"#/$defs/%d\"},", i, i + 1);
    n += (size_t)sprintf(text + n, "\"%d\":{}}}", CHAIN);
    check_bounded("3000 references", pf_schema_rules, text, n);
    n = (size_t)sprintf(text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < CHAIN; i++)
        n += (size_t)sprintf(text + n, "\"%d\":{\"items\":{\"$ref\":\"#/$defs/%d\"}},", i, i + 1);
    n += (size_t)sprintf(text + n, "\"%d\":{}}}", CHAIN);
    check_bounded("3000 arrays", pf_schema_rules, text, n);
    n = (size_t)sprintf(text, "{\"enum\":[\"\"");
    for (int i = 0; i < VALUES; i++)
        n += (size_t)sprintf(text + n, ",\"%d\"", i);
    n += (size_t)sprintf(text + n, "]}");
    check_bounded("110000 values", pf_schema_rules, text, n);
    free(text);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* "PREFIX0","PREFIX1", ... */
static size_t put_texts(char *text, const char *prefix, int n)
{
    size_t at = 0;
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s\"%s%d\"", i ? "," : "", prefix, i);
    return at;
}

/* Schemas of n values, in which each could be compared with each. */
static size_t two_enums(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"allOf\":[{\"enum\":[");
    at += put_texts(text + at, "a", n);
    at += (size_t)sprintf(text + at, "]},{\"enum\":[");
    at += put_texts(text + at, "b", n);
    return at + (size_t)sprintf(text + at, "]},true,{\"maxLength\":0}]}");
}

static size_t one_enum(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"enum\":[");
    at += put_texts(text + at, "", n);
    return at + (size_t)sprintf(text + at, "]}");
}

static size_t enum_and_consts(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"enum\":[");
    at += put_texts(text + at, "", n);
    at += (size_t)sprintf(text + at, "],\"anyOf\":[");
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s{\"const\":\"%d\"}", i ? "," : "", i);
    return at + (size_t)sprintf(text + at, "]}");
}

static size_t equal_values(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"const\":-1,\"enum\":[");
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s[1]", i ? "," : "");
    return at + (size_t)sprintf(text + at, "]}");
}

static size_t notes_of_alternatives(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"$defs\":{\"a\":{\"const\":1");
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, ",\"x-%d\":1", i);
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s{\"$ref\":\"#/$defs/a\"}", i ? "," : "}},\"anyOf\":[true,");
    return at + (size_t)sprintf(text + at, "]}");
}

static size_t two_objects(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"oneOf\":[");
    for (int k = 0; k < 2; k++) {
        at += (size_t)sprintf(text + at, "%s{\"required\":[", k ? "," : "");
        at += put_texts(text + at, "", n);
        at += (size_t)sprintf(text + at, "],\"type\":\"object\",\"properties\":{");
        for (int i = 0; i < n; i++)
            at += (size_t)sprintf(text + at, "%s\"%d\":{\"const\":%d}", i ? "," : "", i, i + 1 < n ? 0 : k);
        at += (size_t)sprintf(text + at, "}}");
    }
    return at + (size_t)sprintf(text + at, "]}");
}

static size_t names_of_enum(char *text, int n)
{
    size_t at = (size_t)sprintf(text, "{\"propertyNames\":{\"enum\":[");
    at += put_texts(text + at, "b", n);
    at += (size_t)sprintf(text + at, "]},\"required\":[");
    at += put_texts(text + at, "a", n);
    return at + (size_t)sprintf(text + at, "]}");
}

/* With four times the values a schema takes four times the work, as it is counted. */
static void check_work(void)
{
    static const struct { const char *name; size_t (*make)(char *, int); } makers[] = {
        { "one enum", one_enum }, { "two enums", two_enums }, { "an enum and consts", enum_and_consts },
        { "equal values", equal_values }, { "a schema with notes, and many references to it", notes_of_alternatives },
        { "two objects that exclude each other", two_objects }, { "names of an enum", names_of_enum },
    };
    enum { FEW = 600, TIMES = 4 };
    char *text = malloc(FEW * TIMES * 100);
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        uint64_t work[2];
        for (int k = 0; k < 2; k++) {
            struct pf_rules r = { 0 };
            int32_t root;
            size_t n = makers[i].make(text, k ? FEW * TIMES : FEW);
            CHECK(pf_schema_rules(&r, text, n, &root) == PF_OK, "%s: %s", makers[i].name, pf_last_error());
            work[k] = r.work;
            pf_rules_free(&r);
        }
        printf("%s: work %llu, with four times the values %llu\n", makers[i].name, (unsigned long long)work[0],
               (unsigned long long)work[1]);
        CHECK(work[0] > FEW && work[1] < (TIMES + 1) * work[0], "%s", makers[i].name);
    }
    free(text);
}

static size_t bytes_of(const char *grammar)
{
    pf_grammar *g;
    if (pf_grammar_compile(&g, tokens, GBNF, grammar, strlen(grammar)) < 0) {
        CHECK(false, "%s", pf_last_error());
        return 0;
    }
    size_t bytes = pf_grammar_bytes(g);
    pf_grammar_close(&g);
    return bytes;
}

/* A short text may be a large grammar. */
static void check_bytes(void)
{
    size_t one = bytes_of("root ::= [a-z]"), many = bytes_of("root ::= [a-z]{20000}");
    CHECK(one > 0 && one < 4096, "a grammar of one letter takes %zu bytes", one);
    CHECK(many > 20000 * sizeof(int32_t), "one of 20000 letters takes %zu bytes", many);
}

int main(void)
{
    static const char *const schema =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\","
        "\"items\":{\"type\":\"number\",\"minimum\":1.5}},"
        "\"b\":{\"anyOf\":[{\"pattern\":\"^x+$\",\"maxLength\":3},{\"$ref\":\"#\"}]}},"
        "\"additionalProperties\":{\"enum\":[1,2]}}";
    pf_vocab *v = open_json_vocab();
    check_tokens(v);
    if (pf_tokens_open(&tokens, v) < 0)
        return 1;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        check_table(&tables[i]);
        check_walks(&tables[i]);
    }
    check_end();
    check_sentences();
    check_hostile();
    check_long_output("root ::= root root root | root root | [a-z \"]? | \"a\" root");
    check_long_output("root ::= root root root root | root root | .");
    check_long_constant();
    check_alternatives();
    check_bytes();
    check_hostile_schemas();
    check_work();
    check_allocations(GBNF, "root ::= root \"+\" t | t\nt ::= \"(\" root \")\" | [a-z]{1,9} .", "((ab+cd+ee");
    check_allocations(pf_schema_rules, schema, "{\"a\": [1.5,");
    check_allocations(REGEX, "^(?:a[^b]|\\d{3,9})+$", "aa123");
    pf_tokens_close(&tokens);
    pf_vocab_close(&v);
    return check_status();
}

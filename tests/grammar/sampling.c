/* Sampling held to a grammar, on a model: what comes matches, the same seed gives the same, and a call that fails
 * changes nothing. usage: sampling MODEL.gguf */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pfmoe.h"

enum { MAX_ANSWER = 200, MAX_BYTES = 4096 };

static pf_model *m;
static pf_session *s;

static void fail(const char *what)
{
    printf("%s: %s\n", what, pf_last_error());
    exit(1);
}

static void prompt(const char *text)
{
    int32_t tok[256];
    size_t n;
    if (pf_tokenize(m, text, strlen(text), PF_TOK_ADD_SPECIAL, tok, 256, &n) < 0 ||
        pf_session_sync(s, tok, n, NULL) < 0)
        fail("the prompt");
}

/* An answer to the prompt; *ended: it came to an end token. */
static size_t answer(const pf_grammar *g, float temp, uint64_t seed, char *out, bool *ended)
{
    struct pf_sampler sp;
    pf_matcher *mt;
    size_t n = 0, need;
    pf_sampler_init(&sp, seed);
    sp.temp = temp;
    *ended = false;
    prompt("Once upon a time");
    if (pf_matcher_open(&mt, g) < 0)
        fail("a matcher");
    for (int i = 0; i < MAX_ANSWER && !*ended; i++) {
        int32_t tok;
        if (pf_sample_matching(&sp, s, mt, &tok) < 0 || pf_matcher_take(mt, tok) < 0)
            fail("a token");
        *ended = pf_token_is_end(m, tok);
        if (!*ended && pf_detokenize(m, &tok, 1, PF_DETOK_CONTINUE, out + n, MAX_BYTES - n, &need) == PF_OK)
            n += need;
        if (!*ended && pf_session_eval(s, &tok, 1, 0) < 0)
            fail("a step");
    }
    CHECK(!*ended || pf_matcher_must_end(mt));
    pf_matcher_close(&mt);
    return n;
}

static pf_grammar *gbnf(const char *text)
{
    pf_grammar *g;
    if (pf_grammar_gbnf(&g, m, text, strlen(text)) < 0)
        fail(text);
    return g;
}

static void check_answers(void)
{
    static char first[MAX_BYTES], second[MAX_BYTES];
    pf_grammar *g = gbnf("root ::= \"{ \" word (\", \" word){2,4} \" }\"\nword ::= [A-Z] [a-z]{1,6} | [0-9]{2}");
    for (uint64_t seed = 0; seed < 6; seed++) {
        bool ended, again;
        size_t n = answer(g, seed ? 1.0f : 0.0f, seed, first, &ended);
        pf_matcher *mt;
        CHECK(ended && n > 4 && first[0] == '{' && first[n - 1] == '}', "%.*s", (int)n, first);
        CHECK(pf_matcher_open(&mt, g) == PF_OK && pf_matcher_take_text(mt, first, n) == PF_OK);
        CHECK(pf_matcher_must_end(mt));
        pf_matcher_close(&mt);
        size_t n_again = answer(g, seed ? 1.0f : 0.0f, seed, second, &again);
        CHECK(again && n == n_again && memcmp(first, second, n) == 0, "seed %d", (int)seed);
    }
    pf_grammar_close(&g);
}

/* Where the grammar allows everything, sampling is pf_sample. */
static void check_free(void)
{
    pf_grammar *g = gbnf("root ::= .*");
    pf_matcher *mt;
    struct pf_sampler a, b;
    pf_sampler_init(&a, 3);
    b = a;
    prompt("Once upon a time");
    CHECK(pf_matcher_open(&mt, g) == PF_OK);
    for (int i = 0; i < 30; i++) {
        int32_t x = -1, y = -1;
        CHECK(pf_sample(&a, s, &x) == PF_OK && pf_sample_matching(&b, s, mt, &y) == PF_OK && x == y);
        CHECK(pf_matcher_take(mt, y) == PF_OK && memcmp(&a, &b, sizeof a) == 0);
        if (pf_token_is_end(m, x) || pf_session_eval(s, &x, 1, 0) < 0)
            break;
    }
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
}

static void check_failures(void)
{
    pf_grammar *g = gbnf("root ::= \"a\"");
    pf_matcher *mt;
    struct pf_sampler sp, before;
    int32_t tok = 77;
    pf_sampler_init(&sp, 3);
    before = sp;
    prompt("Once upon a time");
    CHECK(pf_matcher_open(&mt, g) == PF_OK && pf_matcher_take_text(mt, "a", 1) == PF_OK);
    CHECK(pf_sample_matching(&sp, s, mt, &tok) == PF_OK && pf_token_is_end(m, tok));
    CHECK(pf_matcher_take(mt, tok) == PF_OK);
    before = sp;
    tok = 77;
    CHECK(pf_sample_matching(&sp, s, mt, &tok) == PF_EINVAL && tok == 77 && memcmp(&sp, &before, sizeof sp) == 0);
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
    CHECK(pf_grammar_regex(&g, m, "(", 1) == PF_EINVAL && !g);
}

int main(int argc, char **argv)
{
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = 512;
    if (argc != 2 || pf_model_open(&m, argv[1], NULL) < 0 || pf_session_open(&s, m, &o) < 0)
        fail("opening");
    check_answers();
    check_free();
    check_failures();
    pf_session_close(&s);
    pf_model_close(&m);
    return check_status();
}

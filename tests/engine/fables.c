/* The bundled model, asked in its own words: greedy answers must be the texts in tests/golden/fables.json.
 *
 * usage: fables MODEL.gguf GOLDEN.json */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pfmoe.h"

enum { MAX_MESSAGES = 32, MAX_TEXT = 1 << 16 };

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)n + 1);
    if (fread(text, 1, (size_t)n, f) != (size_t)n)
        text[0] = 0;
    fclose(f);
    return text;
}

/* Greedy reply to the conversation so far, or, with goes_on, the rest of its last message, into out. */
static void reply(pf_model *m, pf_session *s, const struct pf_message *msgs, size_t n_msgs, bool goes_on, char *out)
{
    static char prompt[MAX_TEXT];
    static int32_t tok[MAX_TEXT];
    struct pf_sampler sp;
    struct pf_chat_opts o;
    size_t n, len = 0, piece;
    int32_t next;
    pf_chat_opts_init(&o);
    o.continue_last = goes_on;
    pf_sampler_init(&sp, 0);
    sp.temp = 0;
    out[0] = 0;
    CHECK(pf_chat_render(m, msgs, n_msgs, &o, prompt, sizeof prompt, &n) == PF_OK, "%s", pf_last_error());
    CHECK(pf_tokenize(m, prompt, n, PF_TOK_PARSE_SPECIAL, tok, MAX_TEXT, &n) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_sync(s, tok, n, NULL) == PF_OK, "%s", pf_last_error());
    unsigned flags = goes_on ? PF_DETOK_CONTINUE : 0;
    while (pf_sample(&sp, s, &next) == PF_OK && !pf_token_is_end(m, next) && pf_session_pos(s) < pf_session_n_ctx(s)) {
        CHECK(pf_detokenize(m, &next, 1, flags, out + len, MAX_TEXT - 1 - len, &piece) == PF_OK, "%s", pf_last_error());
        len += piece;
        out[len] = 0;
        CHECK(pf_session_eval(s, &next, 1, 0) == PF_OK, "%s", pf_last_error());
    }
}

/* What the model said before it was cut off at a word is gone on with as if it had not been. */
static void go_on(pf_model *m, pf_session *s, struct pf_message *msgs, size_t n, const char *expected)
{
    static char begun[MAX_TEXT], rest[MAX_TEXT];
    const char *cut = strchr(expected + strlen(expected) / 2, ' ');
    if (!cut)
        return;
    snprintf(begun, sizeof begun, "%.*s", (int)(cut - expected), expected);
    msgs[n - 1].content = begun;
    reply(m, s, msgs, n, true, rest);
    CHECK(strcmp(rest, cut) == 0, "after \"%s\" it goes on \"%s\", expected \"%s\"", begun, rest, cut);
    msgs[n - 1].content = expected;
}

/* A template that says nothing needs no room. */
static void check_empty_render(const pf_model *m)
{
    struct pf_chat_opts o;
    size_t n = 1;
    pf_chat_opts_init(&o);
    o.template_text = "{# nothing #}";
    CHECK(pf_chat_render(m, NULL, 0, &o, NULL, 0, &n) == PF_OK && n == 0, "%s", pf_last_error());
}

static const char *text_of(const cJSON *o, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(o, key));
}

/* exchanges: [{"user": ..., "assistant": ...}, ...] */
static void converse(pf_model *m, pf_session *s, const cJSON *exchanges)
{
    static char answer[MAX_TEXT];
    struct pf_message msgs[MAX_MESSAGES];
    size_t n = 0;
    const cJSON *exchange;
    cJSON_ArrayForEach(exchange, exchanges)
    {
        const char *user = text_of(exchange, "user"), *expected = text_of(exchange, "assistant");
        msgs[n++] = (struct pf_message){ .role = "user", .content = user };
        reply(m, s, msgs, n, false, answer);
        CHECK(strcmp(answer, expected) == 0, "after \"%s\" the model says \"%s\", expected \"%s\"", user, answer,
              expected);
        msgs[n++] = (struct pf_message){ .role = "assistant", .content = expected };
        go_on(m, s, msgs, n, expected);
    }
}

int main(int argc, char **argv)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    struct pf_session_opts o;
    if (argc != 3)
        return 2;
    char *text = read_file(argv[2]);
    cJSON *golden = text ? cJSON_Parse(text) : NULL;
    pf_session_opts_init(&o);
    o.n_ctx = 4096;
    if (!golden || pf_model_open(&m, argv[1], NULL) < 0 || pf_session_open(&s, m, &o) < 0) {
        printf("cannot begin: %s\n", pf_last_error());
        return 1;
    }
    const cJSON *conversation;
    int n = 0;
    cJSON_ArrayForEach(conversation, cJSON_GetObjectItem(golden, "conversations"))
    {
        converse(m, s, conversation);
        n++;
    }
    CHECK(n > 0);
    check_empty_render(m);
    printf("%d conversations\n", n);
    pf_session_close(&s);
    pf_model_close(&m);
    cJSON_Delete(golden);
    free(text);
    return check_status();
}

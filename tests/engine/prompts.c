/* Prompts that somebody made to be long: a chat template that prints without end is stopped by the length of the
 * context, and honest ones are not. And what takes long before a prompt is evaluated can be cancelled.
 *
 * usage: prompts MODEL.gguf */
#include <string.h>

#include "check.h"
#include "pfmoe.h"

static const struct pf_message question = { .role = "user", .content = "Tell me a fable." };

static pf_status render(const pf_model *m, const char *template_text, int64_t n_ctx, char *out, size_t cap, size_t *n)
{
    struct pf_chat_opts o;
    pf_chat_opts_init(&o);
    o.template_text = template_text;
    o.n_ctx = n_ctx;
    *n = 0;
    return pf_chat_render(m, &question, 1, &o, out, cap, n);
}

static void check_length(const pf_model *m)
{
    static const char endless[] = "{% for i in range(100000) %}{{ 'aaaaaaaaaaaaaaaa' * 40 }}{% endfor %}";
    static char out[100 * PF_CHAT_TOKEN_BYTES];
    size_t n;
    CHECK(render(m, NULL, 100, out, sizeof out, &n) == PF_OK && n > 0, "%s", pf_last_error());
    CHECK(render(m, endless, 100, out, sizeof out, &n) == PF_ECONTEXT, "%zu bytes", n);
    CHECK(strstr(pf_last_error(), "25600 bytes") && strstr(pf_last_error(), "100 positions"), "%s", pf_last_error());
    CHECK(render(m, "{{ 'a' * 25600 }}", 100, out, sizeof out, &n) == PF_OK && n == sizeof out, "%s", pf_last_error());
    CHECK(render(m, "{{ 'a' * 25601 }}", 100, out, sizeof out, &n) == PF_ECONTEXT, "%zu bytes", n);
    CHECK(render(m, "{{ 'a' * 25601 }}", 0, out, sizeof out, &n) == PF_ESPACE && n == 25601, "%zu bytes", n);
}

/* Says so from the n-th time on that it is asked. */
struct asked {
    int n, at;
};

static bool cancelled(void *ctx)
{
    struct asked *a = ctx;
    return ++a->n >= a->at;
}

static void check_cancel(const char *path)
{
    static const char slow[] = "{% for i in range(1000) %}{% for j in range(5000) %}{% endfor %}{% endfor %}";
    enum { TEXT = 4 << 20 };
    static char text[TEXT];
    static int32_t tok[TEXT];
    struct asked asked = { 0, INT32_MAX };
    struct pf_model_opts o;
    pf_model *m;
    size_t n, n_whole;
    pf_model_opts_init(&o);
    o.cancel = cancelled;
    o.cancel_ctx = &asked;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    const int n_open = asked.n;
    CHECK(n_open > 0);
    for (int at = 1; at <= n_open; at++) {
        pf_model *none = m;
        asked = (struct asked){ 0, at };
        CHECK(pf_model_open(&none, path, &o) == PF_ECANCEL && !none, "asked for the %d. time", at);
    }
    for (size_t i = 0; i < TEXT; i++)
        text[i] = "once upon a time "[i % 17];
    asked = (struct asked){ 0, 3 };
    CHECK(pf_tokenize(m, text, TEXT, 0, tok, TEXT, &n) == PF_ECANCEL && asked.n == 3, "asked %d times", asked.n);
    asked = (struct asked){ 0, 3 };
    memset(text, 'a', TEXT);                 /* one piece */
    CHECK(pf_tokenize(m, text, TEXT, 0, tok, TEXT, &n) == PF_ECANCEL && asked.n == 3, "asked %d times", asked.n);
    asked = (struct asked){ 0, INT32_MAX };
    CHECK(pf_tokenize(m, text, TEXT, 0, tok, TEXT, &n_whole) == PF_OK && n_whole > 0, "%s", pf_last_error());
    asked = (struct asked){ 0, 3 };
    CHECK(render(m, slow, 0, NULL, 0, &n) == PF_ECANCEL && asked.n == 3, "asked %d times", asked.n);
    asked = (struct asked){ 0, 1 };
    CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_ECANCEL, "%s", pf_last_error());
    asked = (struct asked){ 0, INT32_MAX };
    CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK, "%s", pf_last_error());
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    pf_model *m;
    struct pf_model_opts o;
    if (argc != 2)
        return 2;
    pf_model_opts_init(&o);
    o.vocab_only = true;
    if (pf_model_open(&m, argv[1], &o) < 0) {
        printf("cannot begin: %s\n", pf_last_error());
        return 1;
    }
    check_length(m);
    pf_model_close(&m);
    check_cancel(argv[1]);
    return check_status();
}

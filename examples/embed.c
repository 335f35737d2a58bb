/* The smallest whole program on libpfmoe: opens a model, asks it one thing, prints the answer as it comes.
 *
 *     cc embed.c $(pkg-config --cflags --libs pfmoe) -o embed
 *     ./embed model.gguf "Tell me a fable about a fox."
 */
#include <stdio.h>
#include <stdlib.h>

#include <pfmoe.h>

static int fail(void)
{
    fprintf(stderr, "embed: %s\n", pf_last_error());
    return 1;
}

/* The conversation as tokens, by the model's own chat template; NULL on failure. */
static int32_t *prompt_tokens(const pf_model *m, const char *question, size_t *n)
{
    struct pf_message msg = { .role = "user", .content = question };
    size_t len = 0;
    pf_chat_render(m, &msg, 1, NULL, NULL, 0, &len);          /* asks for the size */
    char *text = malloc(len ? len : 1);
    int32_t *tok = malloc((len + 1) * sizeof *tok);            /* a token has at least one byte */
    pf_status st = pf_chat_render(m, &msg, 1, NULL, text, len, &len);
    if (st == PF_OK)
        st = pf_tokenize(m, text, len, PF_TOK_PARSE_SPECIAL, tok, len + 1, n);
    free(text);
    if (st == PF_OK)
        return tok;
    free(tok);
    return NULL;
}

/* Prints until the model ends its reply or the context is full. A token may be part of a character; stdout joins
 * them. */
static int answer(pf_model *m, pf_session *s)
{
    struct pf_sampler sampler;
    pf_sampler_init(&sampler, 1);
    sampler.temp = 0;
    while (pf_session_pos(s) < pf_session_n_ctx(s)) {
        int32_t tok;
        char piece[512];
        size_t n;
        if (pf_sample(&sampler, s, &tok) < 0)
            return fail();
        if (pf_token_is_end(m, tok))
            break;
        if (pf_detokenize(m, &tok, 1, 0, piece, sizeof piece, &n) < 0)
            return fail();
        fwrite(piece, 1, n, stdout);
        fflush(stdout);
        if (pf_session_eval(s, &tok, 1, 0) < 0)
            return fail();
    }
    putchar('\n');
    return 0;
}

int main(int argc, char **argv)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    int32_t *tok = NULL;
    size_t n;
    int status = 1;
    if (argc != 3) {
        fprintf(stderr, "usage: embed MODEL.gguf QUESTION\n");
        return 2;
    }
    if (pf_model_open(&m, argv[1], NULL) < 0 || pf_session_open(&s, m, NULL) < 0)
        status = fail();
    else if ((tok = prompt_tokens(m, argv[2], &n)) == NULL || pf_session_sync(s, tok, n, NULL) < 0)
        status = fail();
    else
        status = answer(m, s);
    free(tok);
    pf_session_close(&s);
    pf_model_close(&m);
    return status;
}

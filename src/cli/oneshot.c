/* One text, one answer: the answer alone on standard output, everything else on standard error. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/engine.h"
#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"

static void show_answer(void *ctx, enum part part, const char *text, size_t n)
{
    (void)ctx;
    if (part != PART_ANSWER)
        return;
    out_write(text, n);
    out_flush();
}

static void read_text(const struct settings *s, struct buf *text)
{
    const char *path = s->file ? s->file : "-";
    const char *name = s->prompt ? "-p" : strcmp(path, "-") == 0 ? "standard input" : path;
    if (s->prompt)
        buf_puts(text, s->prompt);
    else if (!buf_read_file(text, path))
        die(EXIT_FAILED, "cannot read %s: %s", name, strerror(errno));
    if (memchr(buf_text(text), 0, text->n) && !s->raw)
        die(EXIT_FAILED, "%s: the text holds a zero byte", name);
    if (!s->raw && text->n && text->p[text->n - 1] == '\n')
        text->p[--text->n] = 0;
    if (text->n == 0)
        die(EXIT_FAILED, "%s: the text to answer is empty", name);
}

static void make_prompt(struct engine *e, struct buf *text, struct tokens *tok)
{
    const struct settings *s = e->s;
    struct pf_message msgs[] = { { .role = "system", .content = s->system },
                                 { .role = "user", .content = buf_text(text) } };
    struct buf prompt = { 0 };
    size_t skip = s->system == NULL;
    bool raw = s->raw || !e->has_template;
    if (raw && !s->raw)
        note("The model has no chat template that works; completing the text as it is "
             "(--template chooses a built-in one).");
    pf_status st = raw ? engine_raw_prompt(e, text, tok) : engine_chat_prompt(e, msgs + skip, 2 - skip, &prompt, tok);
    if (st < 0)
        die_failed(NULL);
    if (!raw) {
        buf_free(text);
        *text = prompt;
    }
    if (tok->n == 0)
        die(EXIT_FAILED, "the prompt is empty");
    if (tok->n > (size_t)pf_session_n_ctx(e->session))
        die(EXIT_FAILED, "the prompt is %zu tokens long, the context holds %lld (-c makes it larger)", tok->n,
            (long long)pf_session_n_ctx(e->session));
}

int mode_oneshot(const struct settings *settings)
{
    struct settings s = *settings;
    struct engine e;
    struct buf text = { 0 };
    struct tokens tok = { 0 };
    struct outcome o;
    read_text(&s, &text);
    engine_open(&e, &s, show_answer, NULL);
    make_prompt(&e, &text, &tok);
    pf_status st = engine_answer(&e, s.raw || !e.has_template ? NULL : &text, &tok, &o);
    if (e.reply.answer.n && e.reply.answer.p[e.reply.answer.n - 1] != '\n')
        out_puts("\n");
    out_flush();
    if (st < 0)
        die_failed(NULL);
    if (o.ending == END_LENGTH)
        note("The answer was cut after %zu tokens (-n).", o.n_answer);
    if (o.ending == END_CONTEXT)
        note("The answer was cut: the context of %lld tokens is full (-c makes it larger).",
             (long long)pf_session_n_ctx(e.session));
    if (e.reply.answer.n == 0 && e.reply.reasoning.n)
        note("The model was still reasoning; there is no answer yet.");
    engine_close(&e);
    buf_free(&text);
    free(tok.p);
    return EXIT_DONE;
}

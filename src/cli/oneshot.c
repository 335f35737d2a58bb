/* One text, one answer: the answer alone on standard output, everything else on standard error. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/engine.h"
#include "cli/page.h"
#include "program/json.h"
#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"

static void show_nothing(void *ctx, enum part part, const char *text, size_t n)
{
    (void)ctx;
    (void)part;
    (void)text;
    (void)n;
}

/* A text that is completed need not be prose. */
static void show_as_it_is(void *ctx, enum part part, const char *text, size_t n)
{
    (void)ctx;
    (void)part;
    out_write(text, n);
    out_flush();
}

static void show_answer(void *ctx, enum part part, const char *text, size_t n)
{
    if (part == PART_ANSWER)
        page_show(ctx, text, n);
}

static void strip_newline(struct buf *text)
{
    if (text->n && text->p[text->n - 1] == '\n')
        text->p[--text->n] = 0;
}

/* A pipe that somebody forgot to close would keep the program waiting without a word. */
static void wait_for_input(void)
{
    enum { LONG_MS = 3000 };
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    if (poll(&in, 1, LONG_MS) == 0)
        note("(standard input is read, too, and nothing has come yet; < /dev/null leaves it out)");
}

/* Adds what is on standard input to the text of -p, a blank line between. */
static void add_input(struct buf *text)
{
    struct buf input = { 0 };
    struct stat st;
    if (isatty(STDIN_FILENO) || fstat(STDIN_FILENO, &st) != 0)
        return;
    wait_for_input();
    if (!buf_read_file(&input, "-"))
        die(EXIT_FAILED, "cannot read standard input: %s", strerror(errno));
    if (input.n)
        buf_puts(text, text->n ? "\n\n" : "");
    buf_add(text, buf_text(&input), input.n);
    buf_free(&input);
}

static void read_text(const struct settings *s, struct buf *text)
{
    const char *path = s->file ? s->file : "-";
    const char *name = s->prompt ? "-p" : strcmp(path, "-") == 0 ? "standard input" : path;
    if (!s->prompt && !s->file)
        load_need_file(s);               /* nobody types a text first to hear of that */
    if (s->prompt) {
        buf_puts(text, s->prompt);
        add_input(text);
    } else if (!buf_read_file(text, path)) {
        die(EXIT_FAILED, "cannot read %s: %s", name, strerror(errno));
    }
    if (memchr(buf_text(text), 0, text->n) && !s->raw)
        die(EXIT_FAILED, "%s: the text holds a zero byte", name);
    if (!s->raw)
        strip_newline(text);
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

/* ---- The answer as JSON ------------------------------------------------------------------------------------------ */

static void put_text(struct buf *out, const char *name, const char *text, size_t n)
{
    buf_printf(out, "\"%s\": ", name);
    json_quote(out, text, n, false);
}

static void print_json(const struct engine *e, const struct outcome *o)
{
    static const char *const endings[] = { [END_OF_ANSWER] = "end", [END_STOP_STRING] = "stop", [END_LENGTH] = "length",
                                           [END_CONTEXT] = "context", [END_INTERRUPTED] = "interrupted" };
    const struct pf_model_info *info = pf_model_info(e->m);
    size_t n_evaluated = o->n_prompt - o->n_reused;
    struct buf out = { 0 };
    buf_puts(&out, "{");
    put_text(&out, "text", buf_text(&e->reply.answer), e->reply.answer.n);
    buf_puts(&out, ", ");
    put_text(&out, "reasoning", buf_text(&e->reply.reasoning), e->reply.reasoning.n);
    buf_puts(&out, ", ");
    put_text(&out, "model", info->name, strlen(info->name));
    buf_printf(&out, ", \"ending\": \"%s\", \"seed\": %" PRIu64, endings[o->ending], e->seed);
    buf_printf(&out, ", \"tokens\": {\"prompt\": %zu, \"known\": %zu, \"answer\": %zu}", o->n_prompt, o->n_reused,
               o->n_answer);
    buf_printf(&out, ", \"seconds\": {\"prompt\": %.6f, \"first_token\": %.6f, \"answer\": %.6f}", o->prompt_seconds,
               o->first_seconds, o->answer_seconds);
    buf_printf(&out, ", \"tok_s\": {\"prompt\": %.3f, \"answer\": %.3f}}\n", per_second(n_evaluated, o->prompt_seconds),
               per_second(o->n_answer, o->answer_seconds));
    out_write(out.p, out.n);
    buf_free(&out);
}

/* ---- The mode ---------------------------------------------------------------------------------------------------- */

static void tell_ending(const struct engine *e, const struct outcome *o)
{
    if (o->ending == END_LENGTH)
        note("The answer was cut after %zu tokens (-n).", o->n_answer);
    if (o->ending == END_CONTEXT)
        note("The answer was cut: the context of %lld tokens is full (-c makes it larger).",
             (long long)pf_session_n_ctx(e->session));
    if (e->reply.answer.n == 0 && e->reply.reasoning.n)
        note("The model was still reasoning; there is no answer yet.");
}

int mode_oneshot(const struct settings *settings)
{
    struct settings s = *settings;
    struct engine e;
    struct buf text = { 0 };
    struct tokens tok = { 0 };
    struct outcome o;
    struct page page = { 0 };
    read_text(&s, &text);
    show_fn *show = s.json ? show_nothing : s.raw ? show_as_it_is : show_answer;
    engine_open(&e, &s, show, &page);
    make_prompt(&e, &text, &tok);
    load_weights(e.m);
    if (show == show_answer)
        page_show_begin(&page, true, STYLE_PLAIN);
    pf_status st = engine_answer(&e, s.raw || !e.has_template ? NULL : &text, &tok, &o);
    if (show == show_answer)
        page_show_end(&page);
    if (s.json && st == PF_OK)
        print_json(&e, &o);
    else if (!s.json && e.reply.answer.n && e.reply.answer.p[e.reply.answer.n - 1] != '\n')
        out_puts("\n");
    out_flush();
    if (st < 0)
        die_failed(NULL);
    tell_ending(&e, &o);
    engine_close(&e);
    buf_free(&text);
    free(tok.p);
    return EXIT_DONE;
}

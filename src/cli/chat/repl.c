/* The chat: reads a message or a command, answers, until the person leaves. See chat.h. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/chat.h"
#include "cli/chat/complete.h"
#include "cli/chat/line.h"
#include "cli/modes.h"
#include "program/load.h"
#include "program/io/term.h"

/* ---- Reading a message ------------------------------------------------------------------------------------------- */

static const char quotes[] = "\"\"\"";

static bool ends_with(const struct buf *b, const char *end)
{
    size_t n = strlen(end);
    return b->n >= n && memcmp(b->p + b->n - n, end, n) == 0;
}

/* Reads lines until the message is whole. */
static enum line_result read_message(struct buf *message)
{
    struct buf line = { 0 };
    enum line_result r = line_read("> ", message);
    bool quoted = r == LINE_TEXT && strncmp(buf_text(message), quotes, 3) == 0;
    if (quoted)
        buf_drop(message, 3);
    while (r == LINE_TEXT && (quoted ? !ends_with(message, quotes) : ends_with(message, "\\"))) {
        if (!quoted)
            message->p[--message->n] = 0;
        r = line_read(". ", &line);
        if (r == LINE_TEXT) {
            buf_puts(message, "\n");
            buf_add(message, buf_text(&line), line.n);
        }
    }
    if (r == LINE_TEXT && quoted)
        message->p[message->n -= 3] = 0;
    buf_free(&line);
    return r;
}

static void take_message(struct chat *c, struct buf *message)
{
    const char *text = buf_text(message);
    c->interrupts = 0;
    if (text[strspn(text, " \t\n")] == 0)
        return;
    line_remember(text);
    if (text[0] == '/' && (isalpha((unsigned char)text[1]) || text[1] == '?'))
        command_run(c, message->p);
    else
        chat_send(c, text);
}

static void take_interrupt(struct chat *c)
{
    if (++c->interrupts >= 2)
        c->leave = true;
    else
        note("(Ctrl-C once more, Ctrl-D or /quit leaves)");
}

/* ---- The chat ---------------------------------------------------------------------------------------------------- */

void chat_need_template(const struct engine *e)
{
    struct buf names = { 0 };
    if (e->has_template)
        return;
    for (int i = 0; pf_chat_builtin(i); i++)
        buf_printf(&names, "%s%s", i ? ", " : "", pf_chat_builtin(i));
    die(EXIT_FAILED,
        "%s has no chat template that works: choose one with --template (%s, or a file), or complete a text "
        "with --raw -p TEXT",
        load_path(e->s), buf_text(&names));
}

static void greet(const struct chat *c)
{
    const struct pf_model_info *info = pf_model_info(c->e.m);
    note("%s (%s), context %" PRId64 ". /help lists the commands.", info->name[0] ? info->name : load_path(&c->s),
         info->architecture, pf_session_n_ctx(c->e.session));
}

static void begin(struct chat *c)
{
    char *load = c->s.load ? path_of(c->s.load) : NULL;
    if (load)
        chat_load_first(c, load);
    engine_open(&c->e, &c->s, chat_show, c);
    chat_need_template(&c->e);
    load_weights(c->e.m);
    if (c->s.system)
        convo_system(&c->convo, c->s.system);
    line_open(complete);
    greet(c);
    if (load)
        chat_begin_loaded(c, load);
    free(load);
}

int mode_chat(const struct settings *s)
{
    struct chat c = { .s = *s, .shown = -1 };
    struct buf message = { 0 };
    begin(&c);
    while (!c.leave) {
        enum line_result r = read_message(&message);
        if (r == LINE_TEXT)
            take_message(&c, &message);
        else if (r == LINE_INTERRUPT)
            take_interrupt(&c);
        else if (r == LINE_END)
            c.leave = true;
    }
    line_close();
    convo_free(&c.convo);
    buf_free(&c.attached);
    free(c.taken_back);
    engine_close(&c.e);
    buf_free(&message);
    return EXIT_DONE;
}

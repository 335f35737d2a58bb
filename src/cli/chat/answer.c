/* Answering: the conversation's prompt, and the answer shown as it comes. See chat.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/chat.h"
#include "program/io/term.h"

/* ---- Showing ----------------------------------------------------------------------------------------------------- */

/* Between reasoning and answer: style where there is colour, else words. */
static void begin_part(struct chat *c, enum part part)
{
    if (c->shown >= 0)
        page_show_end(&c->page);
    if (c->shown == PART_REASONING)
        out_puts("\n\n");
    if (!term_out_color() && (part == PART_REASONING || c->shown == PART_REASONING))
        out_puts(part == PART_REASONING ? "[reasoning]\n" : "[answer]\n");
    page_show_begin(&c->page, part == PART_ANSWER, part == PART_REASONING ? STYLE_DIM : STYLE_PLAIN);
    c->shown = (int)part;
}

void chat_show(void *ctx, enum part part, const char *text, size_t n)
{
    struct chat *c = ctx;
    if (part == PART_REASONING && !term_out_is_tty())
        return;
    if (c->shown != (int)part)
        begin_part(c, part);
    page_show(&c->page, text, n);
}

static void note_stopped(struct chat *c)
{
    c->interrupts = 1;
    note("(stopped; Ctrl-C once more leaves)");
}

static void end_answer(struct chat *c)
{
    if (c->shown >= 0)
        page_show_end(&c->page);
    out_puts("\n");
    out_flush();
    if (c->last.ending == END_LENGTH)
        note("(cut after %zu tokens, as set by -n or /set tokens)", c->last.n_answer);
    else if (c->last.ending == END_CONTEXT)
        note("(cut: the context of %" PRId64 " tokens is full)", pf_session_n_ctx(c->e.session));
    else if (c->last.ending == END_INTERRUPTED)
        note_stopped(c);
}

/* ---- Answering --------------------------------------------------------------------------------------------------- */

/* Whoever says that something was stopped does so after this: the Ctrl-C that answers goes to the prompt. */
static void end_watch(void)
{
    interrupt_watch(NULL, INT32_MAX);
    interrupt_forget();
}

/* The prompt for the conversation as it stands. When it leaves too little room for an answer, the oldest turns are left
 * out. */
static pf_status render_prompt(struct chat *c, struct buf *text, struct tokens *tok, size_t *n_dropped)
{
    size_t n_ctx = (size_t)pf_session_n_ctx(c->e.session), room = n_ctx / 4 < 512 ? n_ctx / 4 : 512;
    for (;; ++*n_dropped) {
        size_t n;
        struct pf_message *msgs = convo_view(&c->convo, &n);
        pf_status st = engine_chat_prompt(&c->e, msgs, n, text, tok);
        free(msgs);
        bool fits = st == PF_OK && tok->n + room <= n_ctx;
        if ((st != PF_OK && st != PF_ECONTEXT) || fits || !convo_drop_oldest(&c->convo))
            return st;
    }
}

/* False, after saying why and with the watch ended, if there is no prompt that the context holds. */
static bool make_prompt(struct chat *c, struct buf *text, struct tokens *tok)
{
    size_t n_ctx = (size_t)pf_session_n_ctx(c->e.session), n_dropped = 0;
    pf_status st = render_prompt(c, text, tok, &n_dropped);
    bool made = st == PF_OK && tok->n > 0 && tok->n < n_ctx;
    if (!made)
        end_watch();
    if (st == PF_ECANCEL)
        note_stopped(c);
    else if (st < 0)
        complain("%s", pf_last_error());
    if (st < 0)
        return false;
    if (n_dropped)
        note("(the context of %zu tokens is full: the model no longer sees the oldest %zu turn%s)", n_ctx, n_dropped,
             n_dropped == 1 ? "" : "s");
    if (tok->n >= n_ctx)
        complain("the message makes a prompt of %zu tokens, the context holds %zu (-c makes it larger)", tok->n, n_ctx);
    else if (tok->n == 0)
        complain("the chat template made an empty prompt");
    return made;
}

static bool run_answer(struct chat *c, const struct buf *text, const struct tokens *tok)
{
    c->shown = -1;
    pf_status st = engine_answer(&c->e, text, tok, &c->last);
    end_watch();
    c->answered = true;
    end_answer(c);
    if (st < 0)
        complain("%s", pf_last_error());
    return st == PF_OK;
}

bool chat_answer(struct chat *c)
{
    struct buf text = { 0 };
    struct tokens tok = { 0 };
    size_t first = c->convo.first;
    interrupt_watch(c->e.session, 2);
    bool ok = make_prompt(c, &text, &tok) && run_answer(c, &text, &tok) &&
              (c->e.reply.answer.n > 0 || c->last.ending != END_INTERRUPTED);
    if (ok)
        convo_add(&c->convo, "assistant", buf_text(&c->e.reply.answer), buf_text(&c->e.reply.reasoning));
    else
        c->convo.first = first;
    buf_free(&text);
    free(tok.p);
    return ok;
}

void chat_take_back(struct chat *c)
{
    free(c->taken_back);
    c->taken_back = xstrdup(c->convo.msgs[c->convo.n - 1].content);
    convo_pop(&c->convo);
}

void chat_send(struct chat *c, const char *text)
{
    struct buf message = { 0 };
    buf_puts(&message, text);
    if (c->attached.n)
        buf_puts(&message, message.n ? "\n\n" : "");
    buf_add(&message, buf_text(&c->attached), c->attached.n);
    convo_add(&c->convo, "user", buf_text(&message), NULL);
    buf_free(&message);
    if (chat_answer(c)) {
        buf_clear(&c->attached);
        return;
    }
    chat_take_back(c);
    note("(the message was taken back; the arrow up brings it to the prompt, /edit to an editor)");
}

/* ---- What was said before ---------------------------------------------------------------------------------------- */

static void show_message(const struct pf_message *m)
{
    struct buf clean = { 0 };
    struct page page = { 0 };
    bool asked = strcmp(m->role, "user") == 0;
    buf_puts(&clean, asked ? "> " : "");
    (term_out_is_tty() ? buf_add_clean : buf_add_utf8)(&clean, m->content, strlen(m->content));
    page_show_begin(&page, !asked, asked ? STYLE_DIM : STYLE_PLAIN);
    page_show(&page, buf_text(&clean), clean.n);
    page_show_end(&page);
    out_puts("\n");
    buf_free(&clean);
}

void chat_show_last(const struct chat *c)
{
    size_t first = c->convo.n >= 2 && convo_last_is(&c->convo, "assistant") ? c->convo.n - 2 : c->convo.n;
    for (size_t i = first; i < c->convo.n; i++)
        show_message(&c->convo.msgs[i]);
    out_flush();
}

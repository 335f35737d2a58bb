/* The chat: reads a message or a command, answers, until the person leaves.
 *
 *     line.c -> a message -> convo (what was said) -> engine (prompt, answer) -> shown as it comes -> convo
 *
 * The session holds no knowledge of the conversation: each prompt is rendered whole, and the engine keeps what its
 * beginning has in common with the last one. Ctrl-C counts in `interrupts`: one stops an answer or is warned about, the
 * next leaves; any message in between starts anew. */
#define _GNU_SOURCE
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/convo.h"
#include "cli/engine.h"
#include "cli/line.h"
#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"
#include "program/io/userfile.h"

struct chat {
    struct settings s;
    struct engine   e;
    struct convo    convo;
    struct outcome  last;
    bool     answered;           /* last holds something */
    int      interrupts;
    int      shown;              /* the part being shown, -1: none yet */
    bool     leave;
};

/* ---- Showing ----------------------------------------------------------------------------------------------------- */

/* Between reasoning and answer: style where there is colour, else words. */
static void begin_part(struct chat *c, enum part part)
{
    if (c->shown == PART_REASONING)
        out_puts("\n\n");
    if (!term_out_color() && (part == PART_REASONING || c->shown == PART_REASONING))
        out_puts(part == PART_REASONING ? "[reasoning]\n" : "[answer]\n");
    out_style(part == PART_REASONING ? STYLE_DIM : STYLE_PLAIN);
    c->shown = (int)part;
}

static void show_text(void *ctx, enum part part, const char *text, size_t n)
{
    struct chat *c = ctx;
    if (part == PART_REASONING && !term_out_is_tty())
        return;
    if (c->shown != (int)part)
        begin_part(c, part);
    out_write(text, n);
    out_flush();
}

static void note_stopped(struct chat *c)
{
    c->interrupts = 1;
    note("(stopped; Ctrl-C once more leaves)");
}

static void end_answer(struct chat *c)
{
    out_style(STYLE_PLAIN);
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

/* Answers the user's message that ends the conversation. False if nothing came of it; the conversation is as it was. */
static bool answer(struct chat *c)
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

/* ---- Commands ---------------------------------------------------------------------------------------------------- */

static void cmd_help(struct chat *c, char *arg);

static void cmd_reset(struct chat *c, char *arg)
{
    (void)arg;
    convo_clear(&c->convo);
    note("(a new conversation)");
}

static void cmd_system(struct chat *c, char *arg)
{
    if (*arg)
        convo_system(&c->convo, strcmp(arg, "-") == 0 ? "" : arg);
    note(c->convo.system ? "(system message: %s)" : "(no system message)", c->convo.system);
}

static void cmd_stats(struct chat *c, char *arg)
{
    const struct pf_model_info *info = pf_model_info(c->e.m);
    const struct outcome *o = &c->last;
    struct pf_stats st;
    (void)arg;
    pf_stats_get(c->e.m, &st);
    note("model     %s, %s, %s, %d threads", info->name, info->architecture, info->isa, info->n_threads);
    note("context   %" PRId64 " of %" PRId64 " tokens, %zu messages", pf_session_pos(c->e.session),
         pf_session_n_ctx(c->e.session), c->convo.n);
    if (c->answered) {
        note("prompt    %zu tokens, %zu of them known from before, %.1f tok/s", o->n_prompt, o->n_reused,
             per_second(o->n_prompt - o->n_reused, o->prompt_seconds));
        note("answer    %zu tokens, %.1f tok/s, seed %" PRIu64, o->n_answer, per_second(o->n_answer, o->answer_seconds),
             c->e.seed);
    }
    if (st.step_ns)
        note("in all    %" PRIu64 " tokens in %.1f s, %.1f GB of weights read, %.1f GB/s", report_tokens(&st),
             (double)st.step_ns * 1e-9, (double)st.weight_bytes_read * 1e-9,
             (double)st.weight_bytes_read / (double)st.step_ns);
}

static void save_to(struct chat *c, const char *path, bool replace)
{
    struct buf why = { 0 };
    if (convo_save(&c->convo, path, replace, &why))
        note("(saved %zu messages to %s)", c->convo.n, path);
    else
        complain("%s; nothing is saved, the conversation goes on", buf_text(&why));
    buf_free(&why);
}

/* Whether a file may be replaced. Nothing but a clear yes is one. */
static bool may_replace(const char *path)
{
    struct buf said = { 0 };
    if (!term_out_is_tty() && !term_err_is_tty()) {
        complain("%s is there already; /save! %s replaces it", path, path);
        return false;
    }
    note("(%s is there already)", path);
    bool yes = line_read("replace it? (y/n) ", &said) == LINE_TEXT &&
               (strcmp(buf_text(&said), "y") == 0 || strcmp(buf_text(&said), "yes") == 0);
    if (!yes)
        note("(nothing is saved, %s is as it was)", path);
    buf_free(&said);
    return yes;
}

static void cmd_save(struct chat *c, char *arg)
{
    bool ask = c->convo.n > 0 && userfile_is_there(arg);
    if (!*arg)
        note("(/save FILE)");
    else if (!ask || may_replace(arg))
        save_to(c, arg, ask);
}

static void cmd_replace(struct chat *c, char *arg)
{
    if (!*arg)
        note("(/save! FILE)");
    else
        save_to(c, arg, true);
}

static void cmd_load(struct chat *c, char *arg)
{
    struct buf why = { 0 };
    if (!*arg)
        note("(/load FILE)");
    else if (convo_load(&c->convo, arg, &why))
        note("(%zu messages from %s)", c->convo.n, arg);
    else
        complain("%s; the conversation is as it was", buf_text(&why));
    buf_free(&why);
}

static void cmd_regen(struct chat *c, char *arg)
{
    (void)arg;
    if (!convo_last_is(&c->convo, "assistant") || c->convo.n < 2) {
        note("(there is no answer to make again)");
        return;
    }
    char *content = xstrdup(c->convo.msgs[c->convo.n - 1].content);
    const char *old = c->convo.msgs[c->convo.n - 1].reasoning;
    char *reasoning = old ? xstrdup(old) : NULL;
    convo_pop(&c->convo);
    if (!answer(c)) {
        convo_add(&c->convo, "assistant", content, reasoning);
        note("(the earlier answer stands)");
    }
    free(content);
    free(reasoning);
}

static void cmd_undo(struct chat *c, char *arg)
{
    (void)arg;
    if (c->convo.n == 0) {
        note("(there is nothing to take back)");
        return;
    }
    if (convo_last_is(&c->convo, "assistant"))
        convo_pop(&c->convo);
    if (convo_last_is(&c->convo, "user"))
        convo_pop(&c->convo);
    note("(the last turn is taken back; %zu messages are left)", c->convo.n);
}

static void list_settings(const struct chat *c)
{
    struct settings now = c->s;
    struct buf out = { 0 };
    now.temp = (double)c->e.sampler.temp;
    now.top_p = (double)c->e.sampler.top_p;
    now.min_p = (double)c->e.sampler.min_p;
    now.top_k = c->e.sampler.top_k;
    opts_list(&now, &out);
    note("%.*s", (int)(out.n ? out.n - 1 : 0), buf_text(&out));
    buf_free(&out);
}

static void cmd_set(struct chat *c, char *arg)
{
    const char *why;
    char *value = arg + strcspn(arg, " \t=");
    if (!*arg) {
        list_settings(c);
        return;
    }
    if (*value)
        *value++ = 0;
    value += strspn(value, " \t=");
    if (!opts_set(&c->s, arg, value, &why)) {
        complain("%s: %s", arg, why);
        return;
    }
    engine_sampling(&c->e, strcmp(arg, "seed") == 0);
    note("(%s is %s)", arg, value);
}

static void cmd_quit(struct chat *c, char *arg)
{
    (void)arg;
    c->leave = true;
}

static const struct command {
    const char *name, *arg, *help;
    void (*run)(struct chat *c, char *arg);
} commands[] = {
    { "help", "", "this list", cmd_help },
    { "reset", "", "begin a new conversation", cmd_reset },
    { "system", "[TEXT]", "show or set the system message (- removes it)", cmd_system },
    { "stats", "", "speed, context and totals", cmd_stats },
    { "save", "FILE", "write the conversation to FILE; asks before it replaces one", cmd_save },
    { "save!", "FILE", "the same without asking", cmd_replace },
    { "load", "FILE", "go on with the conversation in FILE", cmd_load },
    { "regen", "", "answer the last message again", cmd_regen },
    { "undo", "", "take back the last message and its answer", cmd_undo },
    { "set", "[NAME VALUE]", "show or change sampling and length", cmd_set },
    { "quit", "", "leave (also Ctrl-D)", cmd_quit },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void cmd_help(struct chat *c, char *arg)
{
    (void)c;
    (void)arg;
    for (int i = 0; i < N_COMMANDS; i++)
        note("  /%s %-*s  %s", commands[i].name, 18 - (int)strlen(commands[i].name), commands[i].arg, commands[i].help);
    note("A line that ends in \\ goes on in the next; \"\"\" begins and ends a message of many lines; "
         "pasted lines are one\nmessage. Ctrl-C stops an answer.");
}

/* line: "/name argument". */
static void run_command(struct chat *c, char *line)
{
    size_t n = strcspn(line + 1, " \t\n");
    char *arg = line + 1 + n;
    arg += strspn(arg, " \t\n");
    for (char *end = arg + strlen(arg); end > arg && isspace((unsigned char)end[-1]);)
        *--end = 0;
    for (int i = 0; i < N_COMMANDS; i++)
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, line + 1, n) == 0) {
            commands[i].run(c, arg);
            return;
        }
    complain("there is no command %.*s; /help lists them", (int)n + 1, line);
}

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
    if (text[0] == '/' && isalpha((unsigned char)text[1])) {
        run_command(c, message->p);
        return;
    }
    convo_add(&c->convo, "user", text, NULL);
    if (!answer(c)) {
        convo_pop(&c->convo);
        note("(the message was taken back; the arrow up brings it to the prompt)");
    }
}

static void take_interrupt(struct chat *c)
{
    if (++c->interrupts >= 2)
        c->leave = true;
    else
        note("(Ctrl-C once more, Ctrl-D or /quit leaves)");
}

/* ---- The chat ---------------------------------------------------------------------------------------------------- */

static void need_template(const struct engine *e)
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

int mode_chat(const struct settings *s)
{
    struct chat c = { .s = *s, .shown = -1 };
    struct buf message = { 0 };
    engine_open(&c.e, &c.s, show_text, &c);
    need_template(&c.e);
    load_weights(c.e.m);
    convo_system(&c.convo, s->system);
    line_open();
    const struct pf_model_info *info = pf_model_info(c.e.m);
    note("%s (%s), context %" PRId64 ". /help lists the commands.", info->name[0] ? info->name : load_path(s),
         info->architecture, pf_session_n_ctx(c.e.session));
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
    engine_close(&c.e);
    buf_free(&message);
    return EXIT_DONE;
}

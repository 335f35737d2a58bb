/* Commands of a chat, which begin with /. See chat.h. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/chat.h"
#include "program/io/term.h"

static void cmd_help(struct chat *c, char *arg);

static void cmd_reset(struct chat *c, char *arg)
{
    (void)arg;
    convo_clear(&c->convo);
    buf_clear(&c->attached);
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
        note("prompt    %zu tokens, %zu of them known from before, %.1f tok/s, first token after %.2f s", o->n_prompt,
             o->n_reused, per_second(o->n_prompt - o->n_reused, o->prompt_seconds), o->first_seconds);
        note("answer    %zu tokens, %.1f tok/s, seed %" PRIu64, o->n_answer, per_second(o->n_answer, o->answer_seconds),
             c->e.seed);
    }
    if (st.step_ns)
        note("in all    %" PRIu64 " tokens in %.1f s, %.1f GB of weights read, %.1f GB/s", report_tokens(&st),
             (double)st.step_ns * 1e-9, (double)st.weight_bytes_read * 1e-9,
             (double)st.weight_bytes_read / (double)st.step_ns);
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
    if (!chat_answer(c)) {
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
        chat_take_back(c);
    note("(the last turn is taken back, %zu messages are left; /edit begins with what it asked)", c->convo.n);
}

/* The settings with what the model's file recommends in the place of what nobody set. */
static struct settings in_use(const struct chat *c)
{
    struct settings now = c->s;
    now.temp = (double)c->e.sampler.temp;
    now.top_p = (double)c->e.sampler.top_p;
    now.min_p = (double)c->e.sampler.min_p;
    now.top_k = c->e.sampler.top_k;
    return now;
}

static void list_settings(const struct chat *c)
{
    struct settings now = in_use(c);
    struct buf out = { 0 };
    opts_list(&now, &out);
    note("%.*s", (int)(out.n ? out.n - 1 : 0), buf_text(&out));
    buf_free(&out);
}

static void show_setting(const struct chat *c, const char *name)
{
    char value[32];
    struct settings now = in_use(c);
    opts_get(&now, name, value, sizeof value);
    note(strcmp(value, "-") == 0 ? "(%s is not set)" : "(%s is %s)", name, value);
}

/* "think" and "nothink" alone are switches, as in other chats. */
static void spell_out(char **name, char **value)
{
    static char think[] = "think", on[] = "on", off[] = "off";
    bool yes = strcmp(*name, "think") == 0, no = strcmp(*name, "nothink") == 0 || strcmp(*name, "no-think") == 0;
    if (**value || !(yes || no))
        return;
    *name = think;
    *value = yes ? on : off;
}

static void cmd_set(struct chat *c, char *arg)
{
    const char *why, *known = NULL, *choices;
    char *value = arg + strcspn(arg, " \t=");
    if (!*arg) {
        list_settings(c);
        return;
    }
    if (*value)
        *value++ = 0;
    value += strspn(value, " \t=");
    spell_out(&arg, &value);
    for (int i = 0; opts_live(i, &known, &choices) && strcmp(known, arg) != 0; i++)
        known = NULL;
    if (!(known && !*value) && !opts_set(&c->s, arg, value, &why)) {
        complain("%s: %s", arg, why);
        return;
    }
    if (*value)
        engine_sampling(&c->e, strcmp(arg, "seed") == 0);
    show_setting(c, arg);
}

static void cmd_quit(struct chat *c, char *arg)
{
    (void)arg;
    c->leave = true;
}

static const struct command {
    const char *name, *alias, *arg, *help;
    void (*run)(struct chat *c, char *arg);
} commands[] = {
    { "help", "?", "", "this list", cmd_help },
    { "reset", "clear", "", "begin a new conversation", cmd_reset },
    { "system", NULL, "[TEXT]", "show or set the system message (- removes it)", cmd_system },
    { "set", NULL, "[NAME [VALUE]]", "show or change settings; - undoes; /set think, nothink", cmd_set },
    { "read", NULL, "FILE", "put what is in FILE behind the next message", cmd_read },
    { "edit", NULL, "[TEXT]", "write with $EDITOR; begins with what was taken back", cmd_edit },
    { "regen", "retry", "", "answer the last message again", cmd_regen },
    { "undo", NULL, "", "take back the last message and its answer", cmd_undo },
    { "save", NULL, "FILE", "write chat and settings to FILE; asks before replacing one", cmd_save },
    { "save!", NULL, "FILE", "the same without asking", cmd_save_over },
    { "keep", NULL, "FILE", "save, and keys and values to FILE.kv: /load is faster then", cmd_keep },
    { "keep!", NULL, "FILE", "the same without asking", cmd_keep_over },
    { "load", NULL, "FILE", "go on with FILE: its model, settings, keys and values", cmd_load },
    { "stats", NULL, "", "speed, context and totals", cmd_stats },
    { "quit", "bye exit", "", "leave (also Ctrl-D)", cmd_quit },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Finds word i = 0, 1, .. of a list with blanks between; NULL past the last. */
static const char *word_of(const char *list, int i, size_t *n)
{
    for (const char *p = list ? list : ""; *p; p += *n + (p[*n] == ' ')) {
        *n = strcspn(p, " ");
        if (i-- == 0)
            return p;
    }
    return NULL;
}

static bool is_called(const struct command *k, const char *name, size_t n)
{
    size_t len;
    const char *word;
    if (strlen(k->name) == n && memcmp(k->name, name, n) == 0)
        return true;
    for (int i = 0; (word = word_of(k->alias, i, &len)); i++)
        if (len == n && memcmp(word, name, n) == 0)
            return true;
    return false;
}

const char *command_name(int i, const char **arg)
{
    if (i >= N_COMMANDS)
        return NULL;
    *arg = commands[i].arg;
    return commands[i].name;
}

static void cmd_help(struct chat *c, char *arg)
{
    (void)c;
    (void)arg;
    for (int i = 0; i < N_COMMANDS; i++) {
        const struct command *k = &commands[i];
        struct buf left = { 0 };
        size_t n;
        const char *word;
        buf_printf(&left, "/%s", k->name);
        for (int w = 0; (word = word_of(k->alias, w, &n)); w++)
            buf_printf(&left, " /%.*s", (int)n, word);
        buf_printf(&left, " %s", k->arg);
        note("  %-19s %s", left.p, k->help);
        buf_free(&left);
    }
    note("Tab completes commands and paths. A line that ends in \\ goes on in the next; \"\"\"\n"
         "begins and ends a message of many lines; pasted lines are one message. Ctrl-C\n"
         "stops an answer, Ctrl-Z the program (fg goes on).");
}

void command_run(struct chat *c, char *line)
{
    size_t n = strcspn(line + 1, " \t\n");
    char *arg = line + 1 + n;
    arg += strspn(arg, " \t\n");
    for (char *end = arg + strlen(arg); end > arg && isspace((unsigned char)end[-1]);)
        *--end = 0;
    for (int i = 0; i < N_COMMANDS; i++)
        if (is_called(&commands[i], line + 1, n)) {
            commands[i].run(c, arg);
            return;
        }
    complain("there is no command %.*s; /help lists them", (int)n + 1, line);
}

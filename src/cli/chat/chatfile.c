/* Chats in files: /save, /keep and /load. See chat.h.
 *
 *     FILE     the conversation, the model's path and the settings (convo.h), JSON
 *     FILE.kv  the session's keys and values (pf_session_save), where /keep wrote them: whole each time, since a
 *              person's files are replaced and never added to (userfile.h)
 *
 * A load brings the model first, then the settings, then keys and values; what of these cannot be had is told, and the
 * conversation goes on without. Keys and values need not be of the very conversation: the session keeps what both begin
 * with. No file that holds something is replaced unasked. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/chat/chat.h"
#include "cli/chat/line.h"
#include "program/load.h"
#include "program/io/term.h"
#include "program/io/userfile.h"

static char *kv_path(const char *path)
{
    struct buf name = { 0 };
    buf_printf(&name, "%s.kv", path);
    return name.p;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

/* What the conversation is made with, as it is now. */
static void note_made(struct chat *c)
{
    struct made_with *made = &c->convo.made;
    const char *name, *choices;
    free(made->model);
    made->model = realpath(load_path(&c->s), NULL);
    made->n = 0;
    for (int i = 0; made->n < MOST_SETTINGS && opts_live(i, &name, &choices); i++)
        if (opts_get(&c->s, name, made->settings[made->n].value, SETTING_BYTES))
            snprintf(made->settings[made->n++].name, SETTING_BYTES, "%s", name);
}

static bool save_to(struct chat *c, const char *path, bool replace)
{
    struct buf why = { 0 };
    note_made(c);
    bool ok = convo_save(&c->convo, path, replace, &why);
    if (ok)
        note("(saved %zu messages to %s)", c->convo.n, path);
    else
        complain("%s; nothing is saved, the conversation goes on", buf_text(&why));
    buf_free(&why);
    return ok;
}

static bool put(void *ctx, const void *data, size_t bytes)
{
    return fwrite(data, 1, bytes, ctx) == bytes;
}

static bool fill_kv(void *session, FILE *f)
{
    errno = 0;
    return pf_session_save(session, put, f) == PF_OK;
}

static void keep_to(struct chat *c, const char *path, bool replace)
{
    struct buf why = { 0 };
    struct stat st = { 0 };
    if (userfile_write(path, USERFILE_PRIVATE | (replace ? 0 : USERFILE_UNASKED), fill_kv, c->e.session, &why)) {
        stat(path, &st);
        note("(and keys and values of %" PRId64 " tokens, %.1f MB, to %s)", pf_session_pos(c->e.session),
             (double)st.st_size * 1e-6, path);
    } else {
        complain("%s; the conversation is saved without keys and values", buf_text(&why));
    }
    buf_free(&why);
}

/* Whether a file may be replaced. Nothing but a clear yes is one. */
static bool may_replace(const char *path)
{
    struct buf said = { 0 };
    if (!term_out_is_tty() && !term_err_is_tty()) {
        complain("%s is there already; /save! and /keep! replace it", path);
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

/* Saves the conversation, and with `keys` keys and values, after asking about each file that would be replaced. */
static void save(struct chat *c, const char *arg, bool keys, bool over)
{
    char *path = path_of(arg), *kv = kv_path(path);
    bool has_kv = keys && pf_session_pos(c->e.session) > 0;
    bool ask = !over && c->convo.n > 0 && userfile_is_there(path);
    bool ask_kv = !over && c->convo.n > 0 && has_kv && userfile_is_there(kv);
    if (!*arg)
        note(keys ? "(/keep FILE)" : "(/save FILE)");
    else if ((!ask || may_replace(path)) && (!ask_kv || may_replace(kv)) && save_to(c, path, over || ask) && has_kv)
        keep_to(c, kv, over || ask_kv);
    free(path);
    free(kv);
}

void cmd_save(struct chat *c, char *arg)
{
    save(c, arg, false, false);
}

void cmd_save_over(struct chat *c, char *arg)
{
    save(c, arg, false, true);
}

void cmd_keep(struct chat *c, char *arg)
{
    save(c, arg, true, false);
}

void cmd_keep_over(struct chat *c, char *arg)
{
    save(c, arg, true, true);
}

/* ---- Loading: the model ------------------------------------------------------------------------------------------ */

static bool same_file(const char *a, const char *b)
{
    struct stat sa, sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

static bool is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Why another model cannot be opened in this one's place; NULL: as far as can be known before, it can be. This one
 * is closed first, since memory seldom has room for both. */
static const char *against(const struct chat *c, const char *model)
{
    const struct settings *s = &c->s;
    struct settings other = *s;
    struct pf_model_opts o;
    struct pf_session_opts so;
    struct pf_plan plan;
    if (!is_regular(model))
        return "there is no such file";
    if (s->hosts)
        return "several processes keep the model that they began with (--hosts)";
    if (s->loras.n || s->template || s->grammar || s->json_schema || s->report.routing || s->report.trace_output ||
        s->report.timeline)
        return "the options of this one (--lora, --template, --grammar, --json-schema, --routing, a trace's or a "
               "timeline's file) are not for it";
    other.model = model;
    load_model_opts(&other, &o);
    load_session_opts(&other, s->n_ctx, &so);
    o.log = NULL;
    o.speeds = (struct pf_speeds){ 1e9, 1e9, 1e9, 1e9 };       /* so that nothing is measured */
    return pf_model_plan(model, &o, &so, &plan) == PF_OK ? NULL : pf_last_error();
}

/* Why the model in `path` could not take this one's place, which is open again then; NULL: it has. */
static const char *exchange(struct chat *c, const char *path, struct buf *why)
{
    const char *before = c->s.model;
    engine_close(&c->e);
    c->answered = false;
    c->s.model = path;
    const char *failed = engine_change(&c->e, &c->s, chat_show, c);
    if (!failed)
        return NULL;
    buf_printf(why, "%s", failed);
    c->s.model = before;
    engine_open(&c->e, &c->s, chat_show, c);
    load_weights(c->e.m);
    return buf_text(why);
}

/* Brings the model that the conversation was saved with. */
static void change_model(struct chat *c)
{
    struct buf text = { 0 };
    if (!c->convo.made.model || same_file(c->convo.made.model, load_path(&c->s)))
        return;
    char *model = xstrdup(c->convo.made.model);
    const char *why = against(c, model);
    if (!why)
        why = exchange(c, model, &text);
    if (why) {
        note("(it was saved with %s: %s; the model stays)", model, why);
        free(model);
    } else {
        note("(model: %s)", model);              /* its path is kept like argv's words, for the program's life */
    }
    buf_free(&text);
}

/* ---- Loading: settings, keys and values -------------------------------------------------------------------------- */

/* The saved value of a setting; NULL: its default, which is not saved. */
static const char *saved_value(const struct made_with *made, const char *name)
{
    for (int i = 0; i < made->n; i++)
        if (strcmp(made->settings[i].name, name) == 0)
            return made->settings[i].value;
    return NULL;
}

/* Makes the settings what they were when the conversation was saved; `unset` only: those that nobody gave on the
 * command line, of which no others are set yet. */
static void take_settings(struct chat *c, bool unset)
{
    struct buf said = { 0 };
    const char *name, *choices, *why;
    for (int i = 0; opts_live(i, &name, &choices); i++) {
        char now[SETTING_BYTES];
        bool is_set = opts_get(&c->s, name, now, sizeof now);
        const char *value = saved_value(&c->convo.made, name);
        if (!value && is_set)
            value = "-";
        if (!value || (is_set && unset))
            continue;
        if (opts_set(&c->s, name, value, &why))
            buf_printf(&said, "%s%s %s", said.n ? ", " : "", name, value);
        else
            note("(%s stays as it is: %s)", name, why);
    }
    if (said.n)
        note("(settings: %s)", said.p);
    buf_free(&said);
}

static bool get(void *ctx, void *data, size_t bytes)
{
    return fread(data, 1, bytes, ctx) == bytes;
}

static void take_keys(struct chat *c, const char *path)
{
    char *kv = kv_path(path);
    FILE *f = is_regular(kv) ? fopen(kv, "re") : NULL;
    if (f && pf_session_load(c->e.session, get, f) == PF_OK)
        note("(keys and values of %" PRId64 " tokens from %s)", pf_session_pos(c->e.session), kv);
    else if (f)
        note("(the keys and values in %s are of no use: %s)", kv, pf_last_error());
    if (f)
        fclose(f);
    free(kv);
}

static void tell_loaded(const struct chat *c, const char *path)
{
    note("(%zu messages from %s)", c->convo.n, path);
    chat_show_last(c);
}

void cmd_load(struct chat *c, char *arg)
{
    struct buf why = { 0 };
    char *path = path_of(arg);
    if (!*arg) {
        note("(/load FILE)");
    } else if (convo_load(&c->convo, path, &why)) {
        change_model(c);
        take_settings(c, false);
        engine_sampling(&c->e, true);
        take_keys(c, path);
        tell_loaded(c, path);
    } else {
        complain("%s; the conversation is as it was", buf_text(&why));
    }
    buf_free(&why);
    free(path);
}

void chat_load_first(struct chat *c, const char *path)
{
    struct buf why = { 0 };
    if (!convo_load(&c->convo, path, &why))
        die(EXIT_FAILED, "--load: %s", buf_text(&why));
    const char *model = c->convo.made.model;
    if (model && !c->s.model && !is_regular(model))
        die(EXIT_FAILED, "--load %s: it was saved with the model %s, which is not there; -m names another", path,
            model);
    if (model && !c->s.model)
        c->s.model = xstrdup(model);             /* as argv's words, for the program's life */
    buf_free(&why);
}

void chat_begin_loaded(struct chat *c, const char *path)
{
    take_settings(c, true);
    engine_sampling(&c->e, true);
    take_keys(c, path);
    tell_loaded(c, path);
}

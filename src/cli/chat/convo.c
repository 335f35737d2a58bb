/* See convo.h. */
#define _GNU_SOURCE
#include "cli/chat/convo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "program/json.h"
#include "program/io/userfile.h"

void convo_system(struct convo *c, const char *text)
{
    free(c->system);
    c->system = text && *text ? xstrdup(text) : NULL;
}

void convo_add(struct convo *c, const char *role, const char *content, const char *reasoning)
{
    c->msgs = xrealloc(c->msgs, c->n + 1, sizeof *c->msgs);
    c->msgs[c->n++] = (struct pf_message){ .role = xstrdup(role), .content = xstrdup(content),
                                           .reasoning = reasoning && *reasoning ? xstrdup(reasoning) : NULL };
}

static void free_text(const char *text)
{
    free((char *)(uintptr_t)text);           /* pf_message has const strings; these are ours */
}

void convo_pop(struct convo *c)
{
    struct pf_message *m = &c->msgs[--c->n];
    free_text(m->role);
    free_text(m->content);
    free_text(m->reasoning);
    if (c->first >= c->n)
        c->first = 0;
}

bool convo_last_is(const struct convo *c, const char *role)
{
    return c->n > 0 && strcmp(c->msgs[c->n - 1].role, role) == 0;
}

void convo_clear(struct convo *c)
{
    while (c->n)
        convo_pop(c);
    c->first = 0;
}

void convo_free(struct convo *c)
{
    convo_clear(c);
    free(c->msgs);
    free(c->system);
    free(c->made.model);
    *c = (struct convo){ 0 };
}

bool convo_drop_oldest(struct convo *c)
{
    for (size_t i = c->first + 1; i < c->n; i++)
        if (strcmp(c->msgs[i].role, "user") == 0) {
            c->first = i;
            return true;
        }
    return false;
}

struct pf_message *convo_view(const struct convo *c, size_t *n)
{
    struct pf_message *view = xrealloc(NULL, c->n + 1, sizeof *view);
    *n = 0;
    if (c->system)
        view[(*n)++] = (struct pf_message){ .role = "system", .content = c->system };
    for (size_t i = c->first; i < c->n; i++) {
        view[*n] = c->msgs[i];
        view[(*n)++].reasoning = NULL;
    }
    return view;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static void put_member(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, "\"%s\": ", key);
    json_quote(out, value, strlen(value), false);
}

static void put_made(const struct made_with *made, struct buf *out)
{
    if (made->model) {
        buf_puts(out, ",\n ");
        put_member(out, "model", made->model);
    }
    buf_puts(out, ",\n \"settings\": {");
    for (int i = 0; i < made->n; i++) {
        buf_puts(out, i ? ", " : "");
        put_member(out, made->settings[i].name, made->settings[i].value);
    }
    buf_puts(out, "}");
}

static void write_out(const struct convo *c, struct buf *out)
{
    buf_puts(out, "{\"pfmoe_chat\": 1");
    put_made(&c->made, out);
    if (c->system) {
        buf_puts(out, ",\n ");
        put_member(out, "system", c->system);
    }
    buf_puts(out, ",\n \"messages\": [");
    for (size_t i = 0; i < c->n; i++) {
        buf_puts(out, i ? ",\n  {" : "\n  {");
        put_member(out, "role", c->msgs[i].role);
        buf_puts(out, ", ");
        put_member(out, "content", c->msgs[i].content);
        if (c->msgs[i].reasoning) {
            buf_puts(out, ", ");
            put_member(out, "reasoning", c->msgs[i].reasoning);
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "]}\n");
}

static bool fill(void *ctx, FILE *f)
{
    const struct buf *text = ctx;
    return fwrite(text->p, 1, text->n, f) == text->n;
}

bool convo_save(const struct convo *c, const char *path, bool replace, struct buf *why)
{
    struct stat st;
    struct buf text = { 0 };
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        buf_printf(why, "%s is not a regular file", path);
        return false;
    }
    if (c->n == 0 && userfile_is_there(path)) {
        buf_printf(why, "the conversation is empty, and %s is not", path);
        return false;
    }
    write_out(c, &text);
    bool ok = userfile_write(path, USERFILE_PRIVATE | (replace ? 0 : USERFILE_UNASKED), fill, &text, why);
    buf_free(&text);
    return ok;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

enum { MOST_BYTES = 256 << 20 };         /* the largest saved chat that is read: no context is as long */

static bool known_role(const struct buf *role)
{
    return strcmp(buf_text(role), "user") == 0 || strcmp(buf_text(role), "assistant") == 0;
}

/* A member of v as a C string: bytes that such a string cannot hold become U+FFFD, as do those that are no UTF-8. */
static void get_text(struct json v, const char *name, struct buf *out)
{
    struct buf raw = { 0 };
    json_string(json_get(v, name), &raw);
    buf_add_utf8(out, buf_text(&raw), raw.n);
    buf_free(&raw);
}

static bool read_message(struct convo *c, struct json v)
{
    struct buf role = { 0 }, content = { 0 }, reasoning = { 0 };
    get_text(v, "role", &role);
    get_text(v, "content", &content);
    get_text(v, "reasoning", &reasoning);
    bool ok = known_role(&role) && json_is(json_get(v, "content"), '"');
    if (ok)
        convo_add(c, buf_text(&role), buf_text(&content), buf_text(&reasoning));
    buf_free(&role);
    buf_free(&content);
    buf_free(&reasoning);
    return ok;
}

/* A string of a JSON text into out; false if it is none, or too long. */
static bool short_text(struct json v, char out[SETTING_BYTES])
{
    struct buf text = { 0 };
    json_string(v, &text);
    bool ok = json_is(v, '"') && text.n < SETTING_BYTES && !memchr(buf_text(&text), 0, text.n);
    snprintf(out, SETTING_BYTES, "%s", ok ? buf_text(&text) : "");
    buf_free(&text);
    return ok;
}

/* Settings that make no sense are left out: a chat is of use without them. */
static void read_made(struct made_with *made, struct json root)
{
    struct json settings = json_get(root, "settings"), name;
    struct buf model = { 0 };
    get_text(root, "model", &model);
    made->model = model.n ? xstrdup(buf_text(&model)) : NULL;
    buf_free(&model);
    if (!json_is(settings, '{'))
        return;
    for (struct json v = json_next_member(settings, (struct json){ 0 }, &name); v.p && made->n < MOST_SETTINGS;
         v = json_next_member(settings, v, &name))
        made->n += short_text(name, made->settings[made->n].name) && short_text(v, made->settings[made->n].value);
}

static bool read_in(struct convo *c, struct json root)
{
    struct json list = json_get(root, "messages");
    struct buf system = { 0 };
    read_made(&c->made, root);
    get_text(root, "system", &system);
    convo_system(c, buf_text(&system));
    buf_free(&system);
    if (!json_get(root, "pfmoe_chat").p || !json_is(list, '['))
        return false;
    for (struct json v = json_next(list, (struct json){ 0 }); v.p; v = json_next(list, v))
        if (!read_message(c, v))
            return false;
    return true;
}

/* Reading a pipe could wait for ever, and memory that runs out would take the conversation along. */
static bool read_chat(const char *path, struct buf *text, struct buf *why)
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES)) {
        buf_printf(why, "%s %s", path,
                   S_ISREG(st.st_mode) ? "is larger than a saved chat can be" : "is not a regular file");
        return false;
    }
    if (!exists || !buf_read_file(text, path)) {
        buf_printf(why, "cannot read %s: %s", path, strerror(errno));
        return false;
    }
    return true;
}

bool convo_load(struct convo *c, const char *path, struct buf *why)
{
    struct buf text = { 0 };
    struct convo loaded = { 0 };
    size_t where = 0;
    bool have = read_chat(path, &text, why), is_json = have && json_valid(buf_text(&text), text.n, &where);
    bool ok = is_json && read_in(&loaded, json_value(text.p, text.n));
    if (have && !is_json)
        buf_printf(why, "%s is not JSON (offset %zu)", path, where);
    else if (have && !ok)
        buf_printf(why, "%s is not a saved chat", path);
    buf_free(&text);
    convo_free(ok ? c : &loaded);
    if (ok)
        *c = loaded;
    return ok;
}

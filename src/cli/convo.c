/* See convo.h. */
#define _GNU_SOURCE
#include "convo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

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

static void write_out(const struct convo *c, struct buf *out)
{
    buf_puts(out, "{\"pfmoe_chat\": 1");
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

static bool write_whole(int fd, const struct buf *text)
{
    for (size_t done = 0; done < text->n;) {
        ssize_t n = write(fd, text->p + done, text->n - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return fsync(fd) == 0;
}

/* Writes text under a temporary name beside path, then puts it in its place. errno says what failed. */
static bool replace_file(const char *path, const struct buf *text)
{
    struct buf temporary = { 0 };
    buf_printf(&temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary.p, O_CLOEXEC);
    bool ok = fd >= 0 && write_whole(fd, text);
    int error = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        error = errno;
    }
    if (ok && rename(temporary.p, path) != 0) {
        ok = false;
        error = errno;
    }
    if (!ok && fd >= 0)
        unlink(temporary.p);
    buf_free(&temporary);
    errno = error;
    return ok;
}

bool convo_save(const struct convo *c, const char *path, struct buf *why)
{
    struct stat st;
    struct buf text = { 0 };
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        buf_printf(why, "%s is not a regular file", path);
        return false;
    }
    write_out(c, &text);
    bool ok = replace_file(path, &text);
    if (!ok)
        buf_printf(why, "cannot save to %s: %s", path, strerror(errno));
    buf_free(&text);
    return ok;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static bool known_role(const struct buf *role)
{
    return strcmp(buf_text(role), "user") == 0 || strcmp(buf_text(role), "assistant") == 0;
}

static bool read_message(struct convo *c, struct json v)
{
    struct buf role = { 0 }, content = { 0 }, reasoning = { 0 };
    json_string(json_get(v, "role"), &role);
    json_string(json_get(v, "content"), &content);
    json_string(json_get(v, "reasoning"), &reasoning);
    bool ok = known_role(&role) && json_is(json_get(v, "content"), '"');
    if (ok)
        convo_add(c, buf_text(&role), buf_text(&content), buf_text(&reasoning));
    buf_free(&role);
    buf_free(&content);
    buf_free(&reasoning);
    return ok;
}

static bool read_in(struct convo *c, struct json root)
{
    struct json list = json_get(root, "messages");
    struct buf system = { 0 };
    json_string(json_get(root, "system"), &system);
    convo_system(c, buf_text(&system));
    buf_free(&system);
    if (!json_get(root, "pfmoe_chat").p || !json_is(list, '['))
        return false;
    for (struct json v = json_next(list, (struct json){ 0 }); v.p; v = json_next(list, v))
        if (!read_message(c, v))
            return false;
    return true;
}

bool convo_load(struct convo *c, const char *path, struct buf *why)
{
    struct buf text = { 0 };
    struct convo loaded = { 0 };
    size_t where = 0;
    bool ok = buf_read_file(&text, path);
    if (!ok)
        buf_printf(why, "cannot read %s: %s", path, strerror(errno));
    else if (!(ok = json_valid(buf_text(&text), text.n, &where)))
        buf_printf(why, "%s is not JSON (offset %zu)", path, where);
    else if (!(ok = read_in(&loaded, json_value(text.p, text.n))))
        buf_printf(why, "%s is not a saved chat", path);
    buf_free(&text);
    if (!ok) {
        convo_free(&loaded);
        return false;
    }
    convo_free(c);
    *c = loaded;
    return true;
}

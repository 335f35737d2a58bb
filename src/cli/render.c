/* --render: chat templates over recorded contexts. The file is either
 *     {"template": FILE, "now": TIME, "renders": [{"context": {...}}, ...]}                              or
 *     {"now": TIME, "contexts": {NAME: {...}, ...}, "cases": [{"template": TEXT, "context": NAME}, ...]}
 * FILE is looked for beside the file, then in the folder above. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "program/json.h"
#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"

static void read_template(const char *path, const char *name, struct buf *out)
{
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path + 1) : 0;
    static const char *const above[] = { "", "../" };
    for (size_t i = 0; i < 2; i++) {
        struct buf at = { 0 };
        buf_printf(&at, "%.*s%s%s", n, path, above[i], name);
        bool ok = buf_read_file(out, at.p);
        buf_free(&at);
        if (ok)
            return;
    }
    die(EXIT_FAILED, "%s: its template %s cannot be read: %s", path, name, strerror(errno));
}

/* Seconds since 1970 of "2026-11-21T10:30:00", or -1. */
static int64_t parse_now(struct json v)
{
    struct buf text = { 0 };
    struct tm tm = { 0 };
    json_string(v, &text);
    const char *end = strptime(buf_text(&text), "%Y-%m-%dT%H:%M:%S", &tm);
    buf_free(&text);
    return end ? (int64_t)timegm(&tm) : -1;
}

static void render_one(const struct buf *tmpl, struct json context, int64_t now)
{
    struct buf text = { 0 }, line = { 0 };
    size_t need = 0;
    buf_reserve(&text, 1 << 16);
    pf_status st = pf_template_render(buf_text(tmpl), tmpl->n, context.p, context.n, now, text.p, text.cap, &need);
    if (st == PF_ESPACE) {
        buf_reserve(&text, need);
        st = pf_template_render(buf_text(tmpl), tmpl->n, context.p, context.n, now, text.p, text.cap, &need);
    }
    buf_puts(&line, st < 0 ? "{\"error\":" : "{\"output\":");
    json_quote(&line, st < 0 ? pf_last_error() : text.p, st < 0 ? strlen(pf_last_error()) : need, true);
    buf_puts(&line, "}\n");
    out_write(line.p, line.n);
    buf_free(&text);
    buf_free(&line);
}

static void render_golden(const char *path, struct json root)
{
    struct buf name = { 0 }, tmpl = { 0 };
    struct json list = json_get(root, "renders");
    json_string(json_get(root, "template"), &name);
    read_template(path, buf_text(&name), &tmpl);
    for (struct json v = json_next(list, (struct json){ 0 }); v.p; v = json_next(list, v))
        render_one(&tmpl, json_get(v, "context"), parse_now(json_get(root, "now")));
    buf_free(&name);
    buf_free(&tmpl);
}

static void render_cases(struct json root)
{
    struct json list = json_get(root, "cases"), contexts = json_get(root, "contexts");
    struct buf name = { 0 }, tmpl = { 0 };
    for (struct json v = json_next(list, (struct json){ 0 }); v.p; v = json_next(list, v)) {
        struct json context = json_get(v, "context");
        buf_clear(&name);
        buf_clear(&tmpl);
        json_string(context, &name);
        json_string(json_get(v, "template"), &tmpl);
        render_one(&tmpl, json_is(context, '"') ? json_get(contexts, buf_text(&name)) : context,
                   parse_now(json_get(root, "now")));
    }
    buf_free(&name);
    buf_free(&tmpl);
}

int mode_render(const struct settings *s)
{
    struct buf file = { 0 };
    size_t where;
    if (!buf_read_file(&file, s->render))
        die(EXIT_FAILED, "cannot read %s: %s", s->render, strerror(errno));
    if (!json_valid(buf_text(&file), file.n, &where))
        die(EXIT_FAILED, "%s: not JSON (offset %zu)", s->render, where);
    struct json root = json_value(file.p, file.n);
    if (json_get(root, "cases").p)
        render_cases(root);
    else if (json_get(root, "renders").p)
        render_golden(s->render, root);
    else
        die(EXIT_FAILED, "%s has neither \"renders\" nor \"cases\"", s->render);
    buf_free(&file);
    return EXIT_DONE;
}

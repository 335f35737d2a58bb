/* See fields.h. */
#include "serve/api/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fail(struct reader *r, const char *fmt, va_list args)
{
    vsnprintf(r->why, sizeof r->why, fmt, args);
    return false;
}

bool read_fail(struct reader *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail(r, fmt, args);
    va_end(args);
    return false;
}

/* Goes down to a member of the value at the path; returns where the path ended before. */
static size_t enter(struct reader *r, const char *member)
{
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof r->path - n, "%s%s", n && member[0] != '[' ? "." : "", member);
    return n;
}

bool read_fail_at(struct reader *r, const char *member, const char *fmt, ...)
{
    va_list args;
    enter(r, member);
    va_start(args, fmt);
    fail(r, fmt, args);
    va_end(args);
    return false;
}

bool read_wrong_kind(struct reader *r, const char *kind)
{
    return read_fail_at(r, "type", "\"%.40s\" is not supported: models are given text here, no pictures, sound or "
                        "documents", kind);
}

const char *read_text(struct reader *r, struct json string, size_t *n)
{
    struct buf raw = { 0 }, text = { 0 };
    json_string(string, &raw);
    buf_add_utf8(&text, buf_text(&raw), raw.n);
    char *copy = arena_text(r->arena, buf_text(&text), text.n);
    if (n)
        *n = text.n;
    buf_free(&raw);
    buf_free(&text);
    return copy;
}

/* A number is copied, since the text that holds it goes on after it. */
bool read_real(struct json v, double *out)
{
    char text[64];
    if (!json_is(v, '0') || v.n >= sizeof text)
        return false;
    memcpy(text, v.p, v.n);
    text[v.n] = 0;
    *out = strtod(text, NULL);
    return isfinite(*out);
}

static bool read_number(struct reader *r, struct json v, const struct field *f, void *at)
{
    double x;
    bool whole = f->kind == FIELD_WHOLE;
    if (!read_real(v, &x) || (whole && x != floor(x)))
        return read_fail(r, "must be a %s", whole ? "whole number" : "number");
    if (x < f->min || x > f->max)
        return read_fail(r, "must be from %.15g to %.15g", f->min, f->max);
    int64_t exact;
    if (!whole)
        *(double *)at = x;
    else
        *(int64_t *)at = json_int(v, &exact) ? exact : (int64_t)x;
    return true;
}

static bool read_string(struct reader *r, struct json v, const struct field *f, const char **at)
{
    size_t n;
    if (!json_is(v, '"'))
        return read_fail(r, "must be a string");
    *at = read_text(r, v, &n);
    if (f->max > 0 && (double)n > f->max)
        return read_fail(r, "must be at most %.0f bytes long", f->max);
    return true;
}

static bool read_value(struct reader *r, struct json v, const struct field *f, void *to)
{
    void *at = (char *)to + f->at;
    switch (f->kind) {
    case FIELD_BOOL:
        if (!json_is(v, 't') && !json_is(v, 'f'))
            return read_fail(r, "must be true or false");
        *(bool *)at = json_true(v);
        return true;
    case FIELD_WHOLE:
    case FIELD_REAL:
        return read_number(r, v, f, at);
    case FIELD_TEXT:
        return read_string(r, v, f, at);
    case FIELD_RAW:
        *(struct json *)at = v;
        return true;
    case FIELD_BY:
        break;
    }
    return f->fn(r, v, at);
}

static bool is_named(struct json name, const char *wanted)
{
    size_t n = strlen(wanted);
    if (!memchr(name.p, '\\', name.n))
        return name.n == n + 2 && memcmp(name.p + 1, wanted, n) == 0;
    struct buf text = { 0 };
    json_string(name, &text);
    bool same = text.n == n && memcmp(text.p, wanted, n) == 0;
    buf_free(&text);
    return same;
}

bool read_fields(struct reader *r, struct json object, const struct field *table, void *to)
{
    struct json name, v = { 0 };
    if (!json_is(object, '{'))
        return read_fail(r, "must be an object");
    while ((v = json_next_member(object, v, &name)).p) {
        const struct field *f = table;
        while (f->name && !is_named(name, f->name))
            f++;
        if (!f->name || json_is(v, 'n'))
            continue;
        size_t before = enter(r, f->name);
        if (!read_value(r, v, f, to))
            return false;
        r->path[before] = 0;
    }
    return true;
}

bool read_elements(struct reader *r, struct json array, size_t most, field_fn *fn, void *to)
{
    struct json v = { 0 };
    if (!json_is(array, '['))
        return read_fail(r, "must be an array");
    for (size_t i = 0; (v = json_next(array, v)).p; i++) {
        char index[32];
        if (i == most)
            return read_fail(r, "has more than %zu elements", most);
        snprintf(index, sizeof index, "[%zu]", i);
        size_t before = enter(r, index);
        if (!fn(r, v, to))
            return false;
        r->path[before] = 0;
    }
    return true;
}

/* The options that a running chat may change: those rows of pfmoe-run's table that are live. One thread. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "program/opt_parts.h"

/* Live row i; NULL past the last. */
static const struct opt *live_row(int i)
{
    const struct opt *o;
    for (int k = 0; (o = opt_of_run(k)); k++)
        if (o->live && i-- == 0)
            break;
    return o;
}

static const struct opt *live_by_name(const char *name)
{
    const struct opt *o;
    for (int i = 0; (o = live_row(i)); i++)
        if (strcmp(o->name, name) == 0)
            break;
    return o;
}

static void set_default(const struct opt *o, struct settings *s)
{
    struct settings fresh;
    opt_defaults(&fresh);
    memcpy((char *)s + o->at, (char *)&fresh + o->at, o->kind == CHOICE ? sizeof(int) : sizeof(int64_t));
}

/* The value as opts_set takes it; "-" for a number that nobody gave. */
static void value_text(const struct opt *o, const struct settings *s, char *out, size_t cap)
{
    const void *at = (const char *)s + o->at;
    if (o->kind == CHOICE) {
        const char *p = o->arg;
        for (int i = *(const int *)at; i > 0; i--)
            p = strchr(p, '|') + 1;
        snprintf(out, cap, "%.*s", (int)strcspn(p, "|"), p);
        return;
    }
    double v = o->kind == REAL ? *(const double *)at : (double)*(const int64_t *)at;
    bool given = v != UNSET || o->min < 0;
    snprintf(out, cap, !given ? "-" : o->kind == REAL ? "%.6g" : "%.0f", v);
}

bool opts_set(struct settings *s, const char *name, const char *value, const char **why)
{
    static char unknown[128];
    const struct opt *o = live_by_name(name);
    *why = unknown;
    if (!o)
        snprintf(unknown, sizeof unknown, "there is no setting \"%.80s\"; /set alone lists them", name);
    if (!o || strcmp(value, "-") != 0)
        return o && opt_parse(o, s, value, why);
    set_default(o, s);
    return true;
}

bool opts_live(int i, const char **name, const char **arg)
{
    const struct opt *o = live_row(i);
    if (!o)
        return false;
    *name = o->name;
    *arg = o->kind == CHOICE ? o->arg : "";
    return true;
}

bool opts_get(const struct settings *s, const char *name, char *value, size_t cap)
{
    char usual[32];
    struct settings fresh;
    opt_defaults(&fresh);
    value_text(live_by_name(name), s, value, cap);
    value_text(live_by_name(name), &fresh, usual, sizeof usual);
    return strcmp(value, usual) != 0;
}

void opts_list(const struct settings *s, struct buf *out)
{
    enum { INDENT = 29, WIDTH = 79 };
    const struct opt *o;
    for (int i = 0; (o = live_row(i)); i++) {
        char value[32];
        value_text(o, s, value, sizeof value);
        buf_printf(out, "  %-18s %-7s ", o->name, value);
        opt_add_wrapped(out, o->help, INDENT, WIDTH);
    }
}

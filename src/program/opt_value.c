/* The value of an option, from text: as its row says, or why not. */
#define _GNU_SOURCE
#include "program/opt_parts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why_not[256];

static bool refuse(const char *fmt, const struct opt *o, const char *value)
{
    char expected[80];
    snprintf(expected, sizeof expected, fmt, o->min, o->max);
    snprintf(why_not, sizeof why_not, "\"%.80s\" is not %s", value, expected);
    return false;
}

static bool parse_whole(const struct opt *o, const char *value, int64_t *out)
{
    bool may_be_auto = strncmp(o->arg, "auto|", 5) == 0;
    char *end;
    if (may_be_auto && strcmp(value, "auto") == 0) {
        *out = UNSET;
        return true;
    }
    errno = 0;
    long long v = strtoll(value, &end, 10);
    if (end == value || *end || errno || (double)v < o->min || (double)v > o->max)
        return refuse(may_be_auto ? "auto or a whole number from %.0f to %.0f" : "a whole number from %.0f to %.0f", o,
                      value);
    *out = v;
    return true;
}

static bool parse_real(const struct opt *o, const char *value, double *out)
{
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end || !isfinite(v) || v < o->min || v > o->max)
        return refuse("a number from %g to %g", o, value);
    *out = v;
    return true;
}

static bool parse_choice(const struct opt *o, const char *value, int *out)
{
    size_t n = strlen(value);
    const char *p = o->arg;
    for (int i = 0; n > 0; i++) {
        const char *bar = strchrnul(p, '|');
        if ((size_t)(bar - p) == n && memcmp(p, value, n) == 0) {
            *out = i;
            return true;
        }
        if (!*bar)
            break;
        p = bar + 1;
    }
    snprintf(why_not, sizeof why_not, "\"%.80s\" is none of %s", value, o->arg);
    return false;
}

static bool parse_trace_file(const char *value, const char **out)
{
    *out = value;
    snprintf(why_not, sizeof why_not, "\"%.80s\" ends in none of .json, .csv, .svg, .trace", value);
    return report_form_of(value) != REPORT_NONE;
}

/* FILE, or FILE=SCALE where what follows the last = is a number. */
static bool parse_lora(const char *value, struct lora_list *out)
{
    const char *equals = strrchr(value, '=');
    char *end = NULL;
    double scale = equals ? strtod(equals + 1, &end) : 1;
    bool has_scale = equals && end != equals + 1 && !*end;
    if (out->n == MAX_LORAS || !*value || (has_scale && (equals == value || !isfinite(scale)))) {
        snprintf(why_not, sizeof why_not, "\"%.80s\" is not FILE or FILE=SCALE, or there are more than %d", value,
                 MAX_LORAS);
        return false;
    }
    out->v[out->n].path = has_scale ? strndup(value, (size_t)(equals - value)) : value;    /* never freed */
    out->v[out->n].scale = has_scale ? (float)scale : 1;
    return out->v[out->n++].path != NULL;
}

/* The next of the words that stand in text with commas between, into part; false if it is too long for that. */
static bool next_word(const char **text, char part[16])
{
    size_t n = strcspn(*text, ",");
    snprintf(part, 16, "%.*s", (int)n, *text);
    *text += n + ((*text)[n] == ',');
    return n < 16;
}

static bool parse_wholes(const struct opt *o, const char *value, struct whole_list *out)
{
    struct opt one = *o;
    char part[16];
    int64_t v;
    out->n = 0;
    one.arg = "N";
    for (bool more = true; more;) {
        more = strchr(value, ',') != NULL;
        if (!next_word(&value, part) || !parse_whole(&one, part, &v))
            return refuse("a list of whole numbers from %.0f to %.0f", o, part);
        if (out->n == MAX_WHOLES) {
            snprintf(why_not, sizeof why_not, "there are more than %d", MAX_WHOLES);
            return false;
        }
        out->v[out->n++] = (int)v;
    }
    return true;
}

static bool parse_pair(const struct opt *o, const char *value, struct whole_list *out)
{
    struct whole_list two;
    if (!parse_wholes(o, value, &two) || two.n != 2 || out->n + 2 > MAX_WHOLES)
        return refuse("two whole numbers from %.0f to %.0f, or there are too many pairs", o, value);
    out->v[out->n++] = two.v[0];
    out->v[out->n++] = two.v[1];
    return true;
}

static bool parse_choices(const struct opt *o, const char *value, struct whole_list *out)
{
    char part[16];
    out->n = 0;
    for (bool more = true; more && out->n < MAX_WHOLES;) {
        more = strchr(value, ',') != NULL;
        next_word(&value, part);
        if (!parse_choice(o, part, &out->v[out->n++]))
            return false;
    }
    return true;
}

static bool parse_text(const char *value, struct text_list *out)
{
    if (!*value || out->n == MAX_TEXTS) {
        snprintf(why_not, sizeof why_not, *value ? "there are more than %d" : "it cannot be empty", MAX_TEXTS);
        return false;
    }
    out->v[out->n++] = value;
    return true;
}

bool opt_parse(const struct opt *o, struct settings *s, const char *value, const char **why)
{
    *why = why_not;
    void *at = (char *)s + o->at;
    switch (o->kind) {
    case FLAG:   *(bool *)at = true; return true;
    case TEXT:   *(const char **)at = value; return true;
    case WHOLE:  return parse_whole(o, value, at);
    case REAL:   return parse_real(o, value, at);
    case CHOICE: return parse_choice(o, value, at);
    case TRACE_FILE: return parse_trace_file(value, at);
    case LORAS:  return parse_lora(value, at);
    case WHOLES:  return parse_wholes(o, value, at);
    case PAIRS:   return parse_pair(o, value, at);
    case CHOICES: return parse_choices(o, value, at);
    case TEXTS:   return parse_text(value, at);
    case ACTION: break;
    }
    return true;
}

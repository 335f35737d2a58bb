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
    return report_form_is_known(value);
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

static bool parse_chunks(const char *value, struct chunk_list *out)
{
    out->n = 0;
    for (const char *p = value;; p++) {   /* over the comma */
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || v < 1 || v > INT32_MAX || out->n == MAX_CHUNKS) {
            snprintf(why_not, sizeof why_not, "\"%.80s\" is not a list of 1 to %d whole numbers from 1 on", value,
                     MAX_CHUNKS);
            return false;
        }
        out->v[out->n++] = (int)v;
        p = end;
        if (!*p)
            return true;
    }
}

static bool parse_numbers(const struct opt *o, const char *value, struct number_list *out)
{
    out->n = 0;
    for (const char *p = value;; p++) {   /* over the comma */
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || errno || (double)v < o->min || (double)v > o->max ||
            out->n == PF_MAX_GPUS) {
            snprintf(why_not, sizeof why_not, "\"%.80s\" is not a list of 1 to %d whole numbers from %.0f to %.0f",
                     value, (int)PF_MAX_GPUS, o->min, o->max);
            return false;
        }
        out->v[out->n++] = v;
        p = end;
        if (!*p)
            return true;
    }
}

static bool parse_stop(const char *value, struct stop_list *out)
{
    if (!*value || out->n == MAX_STOPS) {
        snprintf(why_not, sizeof why_not, *value ? "there are more than %d" : "a stop string cannot be empty",
                 MAX_STOPS);
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
    case CHUNKS: return parse_chunks(value, at);
    case STOPS:  return parse_stop(value, at);
    case NUMBERS: return parse_numbers(o, value, at);
    case ACTION: break;
    }
    return true;
}

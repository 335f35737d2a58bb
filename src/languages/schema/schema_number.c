/* JSON Schema: numbers in a range, digit by digit. See schema.h.
 *
 * A number is read against both bounds at once: as long as its digits are those of a bound it is tight there, and the
 * bound's next digit limits its own; once it differs the bound is kept. A number with as many digits before the point
 * as a bound is compared like that, one with more or fewer is above or below at once.
 *
 * Numbers between bounds have no exponent and at most 15 digits, so that no two of them are the same double: a
 * validator that computes with doubles sees what was compared here. Bounds are the shortest decimals of their doubles.
 * */
#include "languages/schema/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/pf_status.h"

enum { MAX_DIGITS = 15, MAX_INTEGER = 19, MAX_MODULUS = 100 };

/* 0 or above; digits[0 .. n_whole) before the point, the others after it. */
struct decimal {
    char digits[64];
    int  n_whole, n;
};

struct bound {
    bool   set, excluded, negative;
    double value;
    struct decimal size;                 /* without its sign */
};

/* What a number, its sign left out, lies between. */
struct range {
    struct bound lo, hi;                 /* lo is always set */
    int modulus;                         /* 1: any */
    int max_whole, max_fraction;         /* digits */
};

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* From the shortest form of a double: digits, a point, an exponent. false: too large or too small to write out. */
static bool read_decimal(const char *text, struct decimal *out)
{
    char digits[40];
    int n = 0, point = -1;
    const char *p = text + (*text == '-');
    for (; (*p >= '0' && *p <= '9') || *p == '.'; p++) {
        if (*p == '.')
            point = n;
        else if (n < 30)
            digits[n++] = *p;
    }
    point = point < 0 ? n : point;
    if (*p == 'e')
        point += atoi(p + 1);
    if (point > 20 || point < -20)
        return false;
    *out = (struct decimal){ 0 };
    for (int i = point < 0 ? point : 0; i < n || i < point; i++) {
        char d = i >= 0 && i < n ? digits[i] : '0';
        if (i < point && d == '0' && out->n == 0)
            continue;                    /* a leading zero */
        out->n_whole += i < point;
        out->digits[out->n++] = d;
    }
    return true;
}

static pf_status make_bound(const struct pf_schema *s, const struct pf_jval *schema, const char *keyword,
                            const struct pf_jval *v, bool excluded, struct bound *out)
{
    char text[PF_JFLOAT_BYTES + 8];
    if ((v->kind != PF_JV_INT && v->kind != PF_JV_FLOAT && v->kind != PF_JV_BIG) || !isfinite(pf_jdouble(v)))
        return pf_schema_fail(s, PF_EINVAL, schema, keyword, "is not a number");
    *out = (struct bound){ .set = true, .excluded = excluded, .value = pf_jdouble(v) };
    out->negative = out->value < 0;
    if (v->kind == PF_JV_INT)
        snprintf(text, sizeof text, "%lld", (long long)v->i);
    else
        text[pf_jfloat_text(out->value, text)] = 0;
    if (!read_decimal(text, &out->size))
        return pf_schema_fail(s, PF_EUNSUPPORTED, schema, keyword, "is too large or too small");
    return PF_OK;
}

/* The narrower of two bounds of one side: upper or lower. */
static bool is_narrower(const struct bound *a, const struct bound *b, bool upper)
{
    if (!b->set || a->value == b->value)
        return !b->set || a->excluded;
    return upper == (a->value < b->value);
}

static pf_status bounds_of(const struct pf_schema *s, const struct pf_conjunction *c, struct bound *lo,
                           struct bound *hi)
{
    static const struct {
        const char *keyword;
        bool upper, excluded;
    } keywords[] = { { "minimum", false, false }, { "exclusiveMinimum", false, true }, { "maximum", true, false },
                     { "exclusiveMaximum", true, true } };
    *lo = *hi = (struct bound){ 0 };
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < 4; k++) {
            const struct pf_jval *v = pf_schema_get(s, c->v[i].schema, keywords[k].keyword);
            struct bound b, *side = keywords[k].upper ? hi : lo;
            if (!v)
                continue;
            PF_TRY(make_bound(s, c->v[i].schema, keywords[k].keyword, v, keywords[k].excluded, &b));
            if (is_narrower(&b, side, keywords[k].upper))
                *side = b;
        }
    return PF_OK;
}

static int common(int a, int b)
{
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static pf_status modulus_of(const struct pf_schema *s, const struct pf_conjunction *c, int *modulus, bool *any)
{
    *modulus = 1;
    *any = false;
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *v = pf_schema_get(s, c->v[i].schema, "multipleOf");
        if (!v)
            continue;
        double d = pf_jis_num(v) && v->kind != PF_JV_BOOL ? pf_jdouble(v) : 0;
        if (d != floor(d) || d < 1 || d > MAX_MODULUS)
            return pf_schema_fail(s, PF_EUNSUPPORTED, c->v[i].schema, "multipleOf", "is supported for 1 to 100, whole");
        *any = true;
        *modulus = *modulus / common(*modulus, (int)d) * (int)d;
        if (*modulus > MAX_MODULUS)
            return pf_schema_fail(s, PF_EUNSUPPORTED, c->v[i].schema, "multipleOf",
                                  "comes to more than 100 with others");
    }
    return PF_OK;
}

/* ---- Digits ------------------------------------------------------------------------------------------------------ */

/* Where in a number: which bounds it is tight at, and its rest. */
struct digit_state {
    bool lo, hi;
    int  rest;
};

struct digits {
    struct pf_rules *r;
    const struct range *g;
    int n_whole;                         /* digits before the point of the numbers that are being written */
    int32_t now[4 * MAX_MODULUS], next[4 * MAX_MODULUS];   /* states of r, by digit_state; -1: none */
};

static int slot(struct digit_state at)
{
    return (at.rest * 2 + at.hi) * 2 + at.lo;
}

/* The bound's digit at place i, counted from the point: -1 is the one before it. */
static int digit_at(const struct decimal *d, int i)
{
    int k = d->n_whole + i;
    return k >= 0 && k < d->n ? d->digits[k] - '0' : 0;
}

/* Whether the bound has a digit other than 0 at place i or later. */
static bool goes_on(const struct decimal *d, int i)
{
    for (int k = d->n_whole + i < 0 ? 0 : d->n_whole + i; k < d->n; k++)
        if (d->digits[k] != '0')
            return true;
    return false;
}

static bool may_end(const struct range *g, struct digit_state at, int i)
{
    if (at.rest != 0)
        return false;
    if (at.lo && (goes_on(&g->lo.size, i) || g->lo.excluded))
        return false;
    return !at.hi || goes_on(&g->hi.size, i) || !g->hi.excluded;
}

/* One more digit, at place i: from the states of now to those of next. */
static void digit(struct digits *d, int i, int least)
{
    for (int k = 0; k < 4 * MAX_MODULUS; k++)
        d->next[k] = -1;
    for (int k = 0; k < 4 * d->g->modulus; k++) {
        struct digit_state at = { .lo = k & 1, .hi = k >> 1 & 1, .rest = k >> 2 };
        for (int c = least; c <= 9 && d->now[k] >= 0; c++) {
            int lo = digit_at(&d->g->lo.size, i), hi = digit_at(&d->g->hi.size, i);
            if ((at.lo && c < lo) || (at.hi && c > hi))
                continue;
            struct digit_state to = { .lo = at.lo && c == lo, .hi = at.hi && c == hi,
                                      .rest = (at.rest * 10 + c) % d->g->modulus };
            if (d->next[slot(to)] < 0)
                d->next[slot(to)] = pf_rules_state(d->r);
            pf_rules_bytes(d->r, d->now[k], (uint8_t)('0' + c), (uint8_t)('0' + c), d->next[slot(to)]);
        }
    }
    memcpy(d->now, d->next, sizeof d->now);
}

static void endings(struct digits *d, int i, int32_t to)
{
    for (int k = 0; k < 4 * d->g->modulus; k++) {
        struct digit_state at = { .lo = k & 1, .hi = k >> 1 & 1, .rest = k >> 2 };
        if (d->now[k] >= 0 && may_end(d->g, at, i))
            pf_rules_empty(d->r, d->now[k], to);
    }
}

/* Numbers with n digits before the point. */
static void of_length(struct pf_rules *r, const struct range *g, int n, int32_t from, int32_t to)
{
    struct digits d = { .r = r, .g = g, .n_whole = n };
    int n_lo = g->lo.size.n_whole > 1 ? g->lo.size.n_whole : 1, n_hi = g->hi.size.n_whole > 1 ? g->hi.size.n_whole : 1;
    if (n < n_lo || (g->hi.set && n > n_hi))
        return;
    for (int k = 0; k < 4 * MAX_MODULUS; k++)
        d.now[k] = -1;
    d.now[slot((struct digit_state){ .lo = n == n_lo, .hi = g->hi.set && n == n_hi })] = from;
    for (int i = -n; i < 0; i++)
        digit(&d, i, i == -n && n > 1);
    endings(&d, 0, to);
    int n_fraction = g->max_fraction < MAX_DIGITS - n ? g->max_fraction : MAX_DIGITS - n;
    for (int k = 0; k < 4 * g->modulus && n_fraction > 0; k++)
        if (d.now[k] >= 0) {
            int32_t after = pf_rules_state(r);
            pf_rules_bytes(r, d.now[k], '.', '.', after);
            d.now[k] = after;
        }
    for (int i = 0; i < n_fraction && r->status == PF_OK; i++) {
        digit(&d, i, 0);
        endings(&d, i + 1, to);
    }
}

static void of_range(struct pf_rules *r, const struct range *g, int32_t from, int32_t to)
{
    for (int n = 1; n <= g->max_whole && r->status == PF_OK; n++) {
        int32_t begin = pf_rules_state(r);           /* so that tight states of lengths do not mix */
        pf_rules_empty(r, from, begin);
        of_length(r, g, n, begin, to);
    }
}

pf_status pf_schema_number(struct pf_schema *s, const struct pf_conjunction *c, bool whole, int32_t from, int32_t to)
{
    static const struct bound zero = { .set = true }, above_zero = { .set = true, .excluded = true };
    struct bound lo, hi;
    struct range g;
    bool is_multiple;
    PF_TRY(bounds_of(s, c, &lo, &hi));
    PF_TRY(modulus_of(s, c, &g.modulus, &is_multiple));
    whole = whole || is_multiple;
    if (!lo.set && !hi.set && g.modulus == 1) {
        pf_rules_call(s->r, from, whole ? s->integer : s->number, to);
        return s->r->status;
    }
    g.max_whole = whole ? MAX_INTEGER : MAX_DIGITS;
    g.max_fraction = whole ? 0 : MAX_DIGITS;
    if (!hi.set || hi.value >= 0) {
        g.lo = lo.set && lo.value >= 0 ? lo : zero;
        g.hi = hi;
        of_range(s->r, &g, from, to);
    }
    if (!lo.set || lo.value < 0) {
        int32_t minus = pf_rules_state(s->r);
        pf_rules_text(s->r, from, "-", 1, minus);
        g.lo = hi.set && hi.value < 0 ? hi : above_zero;
        g.hi = lo;
        of_range(s->r, &g, minus, to);
    }
    return s->r->status;
}

pf_status pf_schema_number_fits(const struct pf_schema *s, const struct pf_conjunction *c, const struct pf_jval *v,
                                bool *fits)
{
    struct bound lo, hi;
    int modulus;
    bool is_multiple;
    double d = pf_jdouble(v);
    PF_TRY(bounds_of(s, c, &lo, &hi));
    PF_TRY(modulus_of(s, c, &modulus, &is_multiple));
    *fits = (!lo.set || d > lo.value || (d == lo.value && !lo.excluded)) &&
            (!hi.set || d < hi.value || (d == hi.value && !hi.excluded)) && (!is_multiple || fmod(d, modulus) == 0);
    return PF_OK;
}

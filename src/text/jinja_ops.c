/* Operators, comparisons, indexing and slicing of values, as Python has them. */
#define _GNU_SOURCE                 /* memmem */
#include "text/jinja.h"

#include <math.h>
#include <stdio.h>

static pf_status undefined(const struct pf_jrun *r, const struct pf_jval *v)
{
    return pf_jfail(r, "'%.*s' is undefined", (int)(v->s.n < 100 ? v->s.n : 100), v->s.p);
}

static pf_status bad_operands(const struct pf_jrun *r, unsigned op, const struct pf_jval *a, const struct pf_jval *b)
{
    if (a->kind == PF_JV_UNDEF || b->kind == PF_JV_UNDEF)
        return undefined(r, a->kind == PF_JV_UNDEF ? a : b);
    char text[3] = { (char)(op & 0xFF), (char)(op >> 8), 0 };
    return pf_jfail(r, "'%s' does not work on %s and %s", text, pf_jtype(a), pf_jtype(b));
}

/* ---- Arithmetic ---- */

static pf_status int_pow(struct pf_jrun *r, int64_t base, int64_t exp, struct pf_jval *out)
{
    int64_t result = 1;
    for (; exp > 0; exp >>= 1) {
        if ((exp & 1) && __builtin_mul_overflow(result, base, &result))
            return pf_jfail(r, "an integer does not fit 64 bits");
        if (exp > 1 && __builtin_mul_overflow(base, base, &base))
            return pf_jfail(r, "an integer does not fit 64 bits");
    }
    *out = pf_jint(result);
    return PF_OK;
}

static pf_status int_op(struct pf_jrun *r, unsigned op, int64_t x, int64_t y, struct pf_jval *out)
{
    int64_t z = 0;
    bool over = false;
    if (op == '%' || op == PF_JOP('/', '/')) {
        over = x == INT64_MIN && y == -1;
        if (!over) {
            bool adjust = x % y != 0 && (x % y < 0) != (y < 0);
            z = op == '%' ? x % y + (adjust ? y : 0) : x / y - adjust;
        }
    } else {
        over = op == '+' ? __builtin_add_overflow(x, y, &z)
             : op == '-' ? __builtin_sub_overflow(x, y, &z) : __builtin_mul_overflow(x, y, &z);
    }
    *out = pf_jint(z);
    return over ? pf_jfail(r, "an integer does not fit 64 bits") : PF_OK;
}

static double float_op(unsigned op, double x, double y)
{
    double rem;
    switch (op) {
    case '+':
        return x + y;
    case '-':
        return x - y;
    case '*':
        return x * y;
    case '/':
        return x / y;
    case PF_JOP('*', '*'):
        return pow(x, y);
    default:
        rem = fmod(x, y);
        if (rem != 0 && (rem < 0) != (y < 0))
            rem += y;
        return op == '%' ? rem : floor((x - rem) / y + 0.5);
    }
}

static pf_status numeric(struct pf_jrun *r, unsigned op, const struct pf_jval *a, const struct pf_jval *b,
                         struct pf_jval *out)
{
    bool divides = op == '/' || op == '%' || op == PF_JOP('/', '/');
    if (divides && pf_jdouble(b) == 0)
        return pf_jfail(r, "division by zero");
    bool ints = pf_jis_int(a) && pf_jis_int(b);
    if (ints && op == PF_JOP('*', '*') && pf_jint_of(b) >= 0)
        return int_pow(r, pf_jint_of(a), pf_jint_of(b), out);
    if (ints && op != '/' && op != PF_JOP('*', '*'))
        return int_op(r, op, pf_jint_of(a), pf_jint_of(b), out);
    *out = pf_jfloat(float_op(op, pf_jdouble(a), pf_jdouble(b)));
    return PF_OK;
}

/* ---- Strings and lists ---- */

/* When a is the newest thing in the arena it grows in place: a chain of n additions copies n pieces, not n^2. */
pf_status pf_jconcat(struct pf_jrun *r, struct pf_jstr a, struct pf_jstr b, struct pf_jval *out)
{
    if (a.n > PF_JMAX_OUTPUT || b.n > PF_JMAX_OUTPUT - a.n)
        return pf_jfail(r, "a string is longer than %d MiB", (int)PF_JMAX_OUTPUT >> 20);
    PF_TRY(pf_jsteps(r, b.n / 64));
    struct pf_jarena *arena = &r->arena;
    if (a.n && a.p + a.n == arena->at && (size_t)(arena->end - arena->at) >= b.n) {
        memcpy(pf_jarena_text(arena, b.n), b.p, b.n);
        *out = pf_jstring(a.p, a.n + b.n);
        return PF_OK;
    }
    PF_TRY(pf_jsteps(r, a.n / 64));
    char *p = pf_jarena_text(arena, a.n + b.n);
    if (!p)
        return pf_jarena_fail(arena, r->line);
    memcpy(p, a.p, a.n);
    memcpy(p + a.n, b.p, b.n);
    *out = pf_jstring(p, a.n + b.n);
    return PF_OK;
}

static pf_status concat_lists(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jlist_new(r, a->list->n + b->list->n, &l));
    for (size_t i = 0; i < a->list->n; i++)
        PF_TRY(pf_jlist_push(r, l, a->list->v[i]));
    for (size_t i = 0; i < b->list->n; i++)
        PF_TRY(pf_jlist_push(r, l, b->list->v[i]));
    *out = (struct pf_jval){ .kind = a->kind, .list = l };
    return PF_OK;
}

static pf_status repeat(struct pf_jrun *r, const struct pf_jval *v, int64_t times, struct pf_jval *out)
{
    size_t n = v->kind == PF_JV_STR ? v->s.n : v->list->n;
    uint64_t count = times > 0 && n ? (uint64_t)times : 0;
    if (count > PF_JMAX_OUTPUT || n * count > PF_JMAX_OUTPUT)
        return pf_jfail(r, "repeating %s %lld times makes it too long", pf_jtype(v), (long long)times);
    if (v->kind == PF_JV_STR) {
        size_t mark = r->n_out;
        PF_TRY(pf_jsteps(r, count));
        for (uint64_t i = 0; i < count; i++)
            PF_TRY(pf_jput(r, v->s.p, n));
        return pf_jtake(r, mark, out);
    }
    struct pf_jlist *l;
    PF_TRY(pf_jlist_new(r, n * count, &l));
    for (uint64_t i = 0; i < n * count; i++)
        PF_TRY(pf_jlist_push(r, l, v->list->v[i % n]));
    *out = (struct pf_jval){ .kind = v->kind, .list = l };
    return PF_OK;
}

/* ---- The % of strings ---- */

struct format {
    struct pf_jval *v;              /* values that are left to print */
    size_t n;
};

static pf_status format_number(struct pf_jrun *r, const char *flags, int width, int precision, char type,
                               const struct pf_jval *v)
{
    char spec[32], buf[512];
    if (!pf_jis_num(v))
        return pf_jfail(r, "'%%%c' needs a number, not %s", type, pf_jtype(v));
    bool whole = strchr("diuxXo", type) != NULL;
    double f = pf_jdouble(v);
    int n;
    if (whole && !pf_jis_int(v) && !(fabs(f) < 9e18))
        return pf_jfail(r, "an integer does not fit 64 bits");
    snprintf(spec, sizeof spec, "%%%s*.*%s%c", flags, whole ? "ll" : "", type == 'u' ? 'd' : type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (whole)
        n = snprintf(buf, sizeof buf, spec, width, precision, pf_jis_int(v) ? (long long)pf_jint_of(v) : (long long)f);
    else
        n = snprintf(buf, sizeof buf, spec, width, precision < 0 ? 6 : precision, f);
#pragma GCC diagnostic pop
    if (n < 0 || n >= (int)sizeof buf)
        return pf_jfail(r, "a formatted number is too long");
    for (char *p = buf; *p; p++)
        *p = *p == ',' ? '.' : *p;      /* a decimal comma can only be the locale's */
    return pf_jput(r, buf, (size_t)n);
}

static pf_status pad(struct pf_jrun *r, int64_t n)
{
    for (; n > 0; n--)
        PF_TRY(pf_jput(r, " ", 1));
    return PF_OK;
}

static pf_status format_text(struct pf_jrun *r, const char *flags, int width, int precision, char type,
                             const struct pf_jval *v)
{
    struct pf_jval text;
    size_t mark = r->n_out;
    PF_TRY(type == 'r' ? pf_jrepr(r, v, 0) : pf_jprint(r, v));
    PF_TRY(pf_jtake(r, mark, &text));
    struct pf_jstr s = { text.s.p, 0 };
    for (int i = 0; s.n < text.s.n && (precision < 0 || i < precision); i++)
        s.n += pf_ju8_len(s.p + s.n, s.p + text.s.n);
    int64_t gap = width - (int64_t)pf_ju8_count(s);
    bool left = strchr(flags, '-') != NULL;
    PF_TRY(pad(r, left ? 0 : gap));
    PF_TRY(pf_jput(r, s.p, s.n));
    return pad(r, left ? gap : 0);
}

static const char *format_count(const char *p, const char *end, int *out)
{
    for (*out = 0; p < end && *p >= '0' && *p <= '9'; p++)
        *out = *out < 1000 ? *out * 10 + (*p - '0') : *out;
    return p;
}

/* One conversion after its '%'; returns where the text goes on in *at. */
static pf_status format_one(struct pf_jrun *r, const char **at, const char *end, struct format *args)
{
    char flags[8] = "";
    size_t n_flags = 0;
    int width, precision = -1;
    const char *p = *at;
    for (; p < end && *p && strchr("-+ 0#", *p); p++)
        if (n_flags < sizeof flags - 1 && !strchr(flags, *p))
            flags[n_flags++] = *p;
    p = format_count(p, end, &width);
    if (p < end && *p == '.')
        p = format_count(p + 1, end, &precision);
    if (width > 400 || precision > 100)
        return pf_jfail(r, "a width in a format is too large");
    char type = p < end ? *p : 0;
    *at = p + 1;
    if (type == '%')
        return pf_jputs(r, "%");
    if (!type || !strchr("srdiuxXoeEfFgG", type))
        return pf_jfail(r, "a format that is not known");
    if (!args->n)
        return pf_jfail(r, "a format has more conversions than values");
    args->n--;
    const struct pf_jval *v = args->v++;
    return type == 's' || type == 'r' ? format_text(r, flags, width, precision, type, v)
                                      : format_number(r, flags, width, precision, type, v);
}

static pf_status format(struct pf_jrun *r, struct pf_jstr s, const struct pf_jval *v, struct pf_jval *out)
{
    struct pf_jval one = *v;
    struct format args = { &one, 1 };
    if (v->kind == PF_JV_TUPLE)
        args = (struct format){ v->list->v, v->list->n };
    size_t mark = r->n_out;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        const char *next = memchr(p, '%', (size_t)(end - p));
        if (!next)
            next = end;
        PF_TRY(pf_jput(r, p, (size_t)(next - p)));
        p = next + 1;
        if (next < end)
            PF_TRY(format_one(r, &p, end, &args));
    }
    if (args.n && v->kind != PF_JV_DICT)
        return pf_jfail(r, "a format has fewer conversions than values");
    return pf_jtake(r, mark, out);
}

pf_status pf_jbinary(struct pf_jrun *r, unsigned op, const struct pf_jval *a, const struct pf_jval *b,
                     struct pf_jval *out)
{
    if (op == '~') {
        struct pf_jval x, y;
        PF_TRY(pf_jtext(r, a, &x));
        PF_TRY(pf_jtext(r, b, &y));
        return pf_jconcat(r, x.s, y.s, out);
    }
    if (pf_jis_num(a) && pf_jis_num(b))
        return numeric(r, op, a, b, out);
    if (op == '+' && a->kind == PF_JV_STR && b->kind == PF_JV_STR)
        return pf_jconcat(r, a->s, b->s, out);
    if (op == '+' && pf_jis_list(a) && a->kind == b->kind)
        return concat_lists(r, a, b, out);
    if (op == '*' && (a->kind == PF_JV_STR || pf_jis_list(a)) && pf_jis_int(b))
        return repeat(r, a, pf_jint_of(b), out);
    if (op == '*' && (b->kind == PF_JV_STR || pf_jis_list(b)) && pf_jis_int(a))
        return repeat(r, b, pf_jint_of(a), out);
    if (op == '%' && a->kind == PF_JV_STR)
        return format(r, a->s, b, out);
    return bad_operands(r, op, a, b);
}

/* ---- Comparisons ---- */

static pf_status contains(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval *in, bool *out)
{
    *out = false;
    switch (in->kind) {
    case PF_JV_STR:
        if (v->kind != PF_JV_STR)
            return v->kind == PF_JV_UNDEF ? undefined(r, v)
                                          : pf_jfail(r, "'in' a string needs a string, not %s", pf_jtype(v));
        *out = v->s.n == 0 || (in->s.n && memmem(in->s.p, in->s.n, v->s.p, v->s.n));
        return pf_jsteps(r, in->s.n / 64);
    case PF_JV_LIST:
    case PF_JV_TUPLE:
        for (size_t i = 0; !*out && i < in->list->n; i++)
            PF_TRY(pf_jequal(r, &in->list->v[i], v, out));
        return PF_OK;
    case PF_JV_DICT: {
        struct pf_jval *found;
        PF_TRY(pf_jdict_find(r, in->dict, v, &found));
        *out = found != NULL;
        return PF_OK;
    }
    case PF_JV_UNDEF:
        return PF_OK;
    default:
        return pf_jfail(r, "'in' does not work on %s", pf_jtype(in));
    }
}

pf_status pf_jcompare(struct pf_jrun *r, unsigned op, const struct pf_jval *a, const struct pf_jval *b, bool *out)
{
    int cmp;
    switch (op) {
    case PF_JOP('=', '='):
        return pf_jequal(r, a, b, out);
    case PF_JOP('!', '='):
        PF_TRY(pf_jequal(r, a, b, out));
        *out = !*out;
        return PF_OK;
    case PF_JOP_IN:
        return contains(r, a, b, out);
    case PF_JOP_NOT_IN:
        PF_TRY(contains(r, a, b, out));
        *out = !*out;
        return PF_OK;
    default:
        break;
    }
    if (a->kind == PF_JV_UNDEF || b->kind == PF_JV_UNDEF)
        return undefined(r, a->kind == PF_JV_UNDEF ? a : b);
    PF_TRY(pf_jorder(r, a, b, &cmp));
    if (cmp == 2)
        *out = false;
    else
        *out = op == '<' ? cmp < 0 : op == '>' ? cmp > 0 : op == PF_JOP('<', '=') ? cmp <= 0 : cmp >= 0;
    return PF_OK;
}

/* ---- Parts of values ---- */

/* Negative positions count from the end; false outside. */
static bool position(int64_t at, size_t n, size_t *out)
{
    if (at < 0)
        at += (int64_t)n;
    *out = (size_t)at;
    return at >= 0 && at < (int64_t)n;
}

static pf_status index_string(struct pf_jrun *r, struct pf_jstr s, int64_t at, struct pf_jval *out)
{
    size_t i;
    PF_TRY(pf_jsteps(r, s.n / 8));
    if (!position(at, pf_ju8_count(s), &i))
        return PF_OK;
    const char *p = s.p, *end = s.p + s.n;
    while (i--)
        p += pf_ju8_len(p, end);
    *out = pf_jstring(p, pf_ju8_len(p, end));
    return PF_OK;
}

pf_status pf_jindex(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval *at, struct pf_jval *out)
{
    size_t i;
    struct pf_jval *found;
    *out = pf_jundef(at->kind == PF_JV_STR ? at->s : (struct pf_jstr){ "element", 7 });
    if (v->kind == PF_JV_UNDEF)
        return undefined(r, v);
    if (v->kind == PF_JV_DICT || v->kind == PF_JV_NAMESPACE) {
        if (at->kind == PF_JV_LIST || at->kind == PF_JV_DICT)
            return PF_OK;
        PF_TRY(pf_jdict_find(r, v->dict, at, &found));
        if (found)
            *out = *found;
    } else if (pf_jis_int(at) && pf_jis_list(v)) {
        if (position(pf_jint_of(at), v->list->n, &i))
            *out = v->list->v[i];
    } else if (pf_jis_int(at) && v->kind == PF_JV_STR) {
        return index_string(r, v->s, pf_jint_of(at), out);
    } else if (at->kind == PF_JV_STR && v->kind == PF_JV_LOOP) {
        return pf_jattr(r, v, at->s, 0, out);
    }
    return PF_OK;
}

/* Start, stop and step of a slice over n elements, as Python clamps them. */
static pf_status slice_bounds(struct pf_jrun *r, const struct pf_jval part[3], int64_t n, int64_t b[3])
{
    for (int i = 0; i < 3; i++)
        if (part[i].kind == PF_JV_UNDEF)
            return undefined(r, &part[i]);
        else if (part[i].kind != PF_JV_MISSING && part[i].kind != PF_JV_NONE && !pf_jis_int(&part[i]))
            return pf_jfail(r, "a slice needs integers, not %s", pf_jtype(&part[i]));
    b[2] = pf_jis_int(&part[2]) ? pf_jint_of(&part[2]) : 1;
    if (b[2] == 0)
        return pf_jfail(r, "the step of a slice is zero");
    b[2] = b[2] > n + 1 ? n + 1 : b[2] < -n - 1 ? -n - 1 : b[2];
    bool back = b[2] < 0;
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        if (!pf_jis_int(&part[i])) {
            b[i] = (i == 0) == back ? high : low;
            continue;
        }
        int64_t at = pf_jint_of(&part[i]);
        at = at < 0 ? (at < -n ? low : at + n) : at;
        b[i] = at < low ? low : at > high ? high : at;
    }
    return PF_OK;
}

static pf_status slice_string(struct pf_jrun *r, struct pf_jstr s, const struct pf_jval part[3], struct pf_jval *out)
{
    int64_t b[3], i = 0;
    PF_TRY(pf_jsteps(r, s.n / 8));
    PF_TRY(slice_bounds(r, part, (int64_t)pf_ju8_count(s), b));
    const char *end = s.p + s.n, *p = s.p, *from = p;
    if (b[2] == 1) {
        for (; i < b[1] && p < end; i++, p += pf_ju8_len(p, end))
            if (i == b[0])
                from = p;
        *out = b[0] < b[1] ? pf_jstring(from, (size_t)(p - from)) : pf_jstring("", 0);
        return PF_OK;
    }
    struct pf_jval chars = { .kind = PF_JV_STR, .s = s };
    struct pf_jlist *l;
    size_t mark = r->n_out;
    PF_TRY(pf_jiter(r, &chars, &l));
    for (i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2])
        PF_TRY(pf_jput(r, l->v[i].s.p, l->v[i].s.n));
    return pf_jtake(r, mark, out);
}

pf_status pf_jslice(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval part[3], struct pf_jval *out)
{
    int64_t b[3];
    struct pf_jlist *l;
    if (v->kind == PF_JV_UNDEF)
        return undefined(r, v);
    if (v->kind == PF_JV_STR)
        return slice_string(r, v->s, part, out);
    if (!pf_jis_list(v))
        return pf_jfail(r, "%s cannot be sliced", pf_jtype(v));
    PF_TRY(slice_bounds(r, part, (int64_t)v->list->n, b));
    PF_TRY(pf_jlist_new(r, 0, &l));
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2])
        PF_TRY(pf_jlist_push(r, l, v->list->v[i]));
    *out = (struct pf_jval){ .kind = v->kind, .list = l };
    return PF_OK;
}

static struct pf_jval loop_attr(const struct pf_jloop *l, struct pf_jstr name)
{
    int64_t n = (int64_t)l->items->n, at = (int64_t)l->at;
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        { "index0", at }, { "index", at + 1 }, { "length", n }, { "revindex", n - at }, { "revindex0", n - at - 1 },
        { "depth", 1 }, { "depth0", 0 },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (pf_jstr_is(name, counts[i].name))
            return pf_jint(counts[i].value);
    if (pf_jstr_is(name, "first"))
        return pf_jbool(at == 0);
    if (pf_jstr_is(name, "last"))
        return pf_jbool(at == n - 1);
    if (pf_jstr_is(name, "previtem") && at > 0)
        return l->items->v[at - 1];
    if (pf_jstr_is(name, "nextitem") && at + 1 < n)
        return l->items->v[at + 1];
    return pf_jundef(name);
}

pf_status pf_jattr(struct pf_jrun *r, const struct pf_jval *v, struct pf_jstr name, uint32_t hash, struct pf_jval *out)
{
    *out = pf_jundef(name);
    PF_TRY(pf_jsteps(r, name.n / 64));
    if (v->kind == PF_JV_UNDEF)
        return undefined(r, v);
    if (v->kind == PF_JV_LOOP) {
        *out = loop_attr(v->loop, name);
    } else if (v->kind == PF_JV_DICT || v->kind == PF_JV_NAMESPACE) {
        struct pf_jval *found = pf_jdict_str(v->dict, name, hash);
        if (found)
            *out = *found;
    }
    return PF_OK;
}

static bool is_digits(struct pf_jstr s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
    return s.n > 0;
}

pf_status pf_jattr_path(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval *path, struct pf_jval *out)
{
    if (path->kind != PF_JV_STR)
        return pf_jindex(r, v, path, out);
    *out = *v;
    for (const char *p = path->s.p, *end = p + path->s.n; p <= end;) {
        const char *dot = p < end ? memchr(p, '.', (size_t)(end - p)) : NULL;
        struct pf_jstr part = { p, (size_t)((dot ? dot : end) - p) };
        struct pf_jval key, from = *out;
        PF_TRY(pf_jsteps(r, 1 + part.n / 16));
        if (!is_digits(part) || !pf_jnum_parse(part, &key))
            key = pf_jstring(part.p, part.n);
        PF_TRY(pf_jindex(r, &from, &key, out));
        if (!dot)
            break;
        p = dot + 1;
    }
    return PF_OK;
}

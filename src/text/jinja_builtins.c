/* Filters, tests and global functions, as tables; each row names its parameters, so that they can be given by name. */
#include "text/jinja.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

static bool missing(const struct pf_jval *v)
{
    return v->kind == PF_JV_MISSING;
}

/* Calls a method of strings on what the input prints as. */
static pf_status as_method(struct pf_jrun *r, const char *name, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval v[4] = { { .kind = PF_JV_MISSING } };
    struct pf_jargs args = { .v = v, .n = 0 };
    for (size_t i = 0; i < a->n && i < 4 && !missing(&a->v[i]); i++)
        v[args.n++] = a->v[i];
    PF_TRY(pf_jtext(r, &a->v[0], &v[0]));
    return pf_jcall_fn(r, pf_jfn_find(PF_JT_STR, (struct pf_jstr){ name, strlen(name) }), &args, out);
}

/* ---- Filters on text ---- */

static pf_status filter_upper(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "upper", a, out);
}

static pf_status filter_lower(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "lower", a, out);
}

static pf_status filter_capitalize(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "capitalize", a, out);
}

/* Not the method: here words end at blanks, hyphens and opening brackets only. */
static pf_status filter_title(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval text, word;
    PF_TRY(pf_jtext(r, &a->v[0], &text));
    size_t mark = r->n_out;
    for (const char *p = text.s.p, *end = p + text.s.n; p < end;) {
        const char *stop = p;
        while (stop < end && !(*stop && strchr(" \t\n\r\v\f-({[<", *stop)))
            stop++;
        if (stop == p) {
            PF_TRY(pf_jput(r, p++, 1));
            continue;
        }
        word = pf_jstring(p, (size_t)(stop - p));
        PF_TRY(as_method(r, "capitalize", &(struct pf_jargs){ .v = &word, .n = 1 }, &word));
        PF_TRY(pf_jput(r, word.s.p, word.s.n));
        p = stop;
    }
    return pf_jtake(r, mark, out);
}

static pf_status filter_trim(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "strip", a, out);
}

static pf_status filter_replace(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "replace", a, out);
}

static pf_status filter_string(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return pf_jtext(r, &a->v[0], out);
}

static pf_status filter_escape(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    static const char from[] = "&<>'\"", *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    struct pf_jval text;
    PF_TRY(pf_jtext(r, &a->v[0], &text));
    size_t mark = r->n_out;
    for (size_t i = 0; i < text.s.n; i++) {
        const char *c = text.s.p[i] ? strchr(from, text.s.p[i]) : NULL;
        PF_TRY(c ? pf_jputs(r, to[c - from]) : pf_jput(r, &text.s.p[i], 1));
    }
    PF_TRY(pf_jsteps(r, text.s.n / 8));
    return pf_jtake(r, mark, out);
}

/* Each line but the first gets blanks (or a text) in front, empty lines only when asked. */
static pf_status filter_indent(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval text, by = a->v[1];
    int64_t width = 4;
    if (by.kind != PF_JV_STR) {
        struct pf_jval blank = pf_jstring(" ", 1), times;
        PF_TRY(pf_jwant_int(r, &by, "indent()", 4, &width));
        times = pf_jint(width);
        PF_TRY(pf_jbinary(r, '*', &blank, &times, &by));
    }
    PF_TRY(pf_jtext(r, &a->v[0], &text));
    size_t mark = r->n_out;
    const char *p = text.s.p, *end = p + text.s.n;
    for (bool first = true; first || p < end; first = false) {
        const char *eol = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        const char *stop = eol ? eol + 1 : end;
        bool blank = p == (eol ? eol : end);
        if (first ? pf_jtruth(&a->v[2]) : !blank || pf_jtruth(&a->v[3]))
            PF_TRY(pf_jput(r, by.s.p, by.s.n));
        PF_TRY(pf_jput(r, p, (size_t)(stop - p)));
        PF_TRY(pf_jsteps(r, 1));
        p = stop;
    }
    return pf_jtake(r, mark, out);
}

static pf_status filter_join(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    struct pf_jval sep = pf_jstring("", 0), item;
    if (!missing(&a->v[1]))
        PF_TRY(pf_jtext(r, &a->v[1], &sep));
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    size_t mark = r->n_out;
    for (size_t i = 0; i < l->n; i++) {
        item = l->v[i];
        if (!missing(&a->v[2]))
            PF_TRY(pf_jattr_path(r, &l->v[i], &a->v[2], &item));
        if (i)
            PF_TRY(pf_jput(r, sep.s.p, sep.s.n));
        PF_TRY(pf_jprint(r, &item));
    }
    return pf_jtake(r, mark, out);
}

/* ---- JSON ---- */

static pf_status filter_tojson(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    const struct pf_jval *ascii = &a->v[1], *indent = &a->v[2], *seps = &a->v[3], *sort = &a->v[4];
    struct pf_jjson_style s = { .ascii = pf_jtruth(ascii), .sort_keys = pf_jtruth(sort), .comma = { ", ", 2 },
                                .colon = { ": ", 2 } };
    if (!missing(indent) && indent->kind != PF_JV_NONE) {
        PF_TRY(pf_jwant_int(r, indent, "tojson(indent)", 0, &s.indent));
        s.indented = true;
        s.indent = s.indent < 0 ? 0 : s.indent > 100 ? 100 : s.indent;
        s.comma.n = 1;
    }
    if (!missing(seps) && seps->kind != PF_JV_NONE) {
        const struct pf_jval *v = pf_jis_list(seps) && seps->list->n == 2 ? seps->list->v : NULL;
        if (!v || v[0].kind != PF_JV_STR || v[1].kind != PF_JV_STR)
            return pf_jfail(r, "tojson(separators) needs two strings");
        s.comma = v[0].s;
        s.colon = v[1].s;
    }
    size_t mark = r->n_out;
    PF_TRY(pf_jjson_write(r, &a->v[0], &s, 0));
    return pf_jtake(r, mark, out);
}

static pf_status filter_from_json(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    if (a->v[0].kind != PF_JV_STR)
        return pf_jfail(r, "from_json needs a string, not %s", pf_jtype(&a->v[0]));
    return pf_jjson_read(r, a->v[0].s.p, a->v[0].s.n, out);
}

/* ---- Numbers ---- */

static pf_status filter_abs(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    static const struct pf_jval zero = { .kind = PF_JV_INT };
    const struct pf_jval *v = &a->v[0];
    if (!pf_jis_num(v))
        return pf_jfail(r, "abs needs a number, not %s", pf_jtype(v));
    if (!pf_jis_int(v)) {
        *out = pf_jfloat(fabs(pf_jdouble(v)));
        return PF_OK;
    }
    return pf_jbinary(r, pf_jint_of(v) < 0 ? '-' : '+', &zero, v, out);
}

/* A string's number, without white space around it. */
static bool number_in(const struct pf_jval *v, struct pf_jval *out)
{
    return v->kind == PF_JV_STR && pf_jnum_parse(pf_jstrip(v->s, NULL, PF_JSTRIP_LEFT | PF_JSTRIP_RIGHT), out);
}

static pf_status filter_int(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval v = a->v[0];
    bool is = pf_jis_num(&v) || number_in(&a->v[0], &v);
    PF_TRY(pf_jsteps(r, a->v[0].kind == PF_JV_STR ? a->v[0].s.n / 64 : 0));
    if (is && (pf_jis_int(&v) || v.kind == PF_JV_BIG))
        *out = v.kind == PF_JV_BOOL ? pf_jint(v.b) : v;
    else if (is && fabs(v.f) < 9.2e18)
        *out = pf_jint((int64_t)v.f);
    else
        *out = missing(&a->v[1]) ? pf_jint(0) : a->v[1];
    return PF_OK;
}

static pf_status filter_float(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval v = a->v[0];
    PF_TRY(pf_jsteps(r, v.kind == PF_JV_STR ? v.s.n / 64 : 0));
    if (pf_jis_num(&v) || number_in(&a->v[0], &v))
        *out = pf_jfloat(pf_jdouble(&v));
    else
        *out = missing(&a->v[1]) ? pf_jfloat(0) : a->v[1];
    return PF_OK;
}

static pf_status filter_round(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    int64_t digits;
    const struct pf_jval *how = &a->v[2];
    if (!pf_jis_num(&a->v[0]))
        return pf_jfail(r, "round needs a number, not %s", pf_jtype(&a->v[0]));
    PF_TRY(pf_jwant_int(r, &a->v[1], "round()", 0, &digits));
    digits = digits < -300 ? -300 : digits > 300 ? 300 : digits;
    double f = pf_jdouble(&a->v[0]), scale = pow(10, (double)digits);
    bool rounds_up = how->kind == PF_JV_STR && pf_jstr_is(how->s, "ceil");
    bool rounds_down = how->kind == PF_JV_STR && pf_jstr_is(how->s, "floor");
    if (rounds_up || rounds_down) {
        *out = pf_jfloat((rounds_up ? ceil(f * scale) : floor(f * scale)) / scale);
    } else if (pf_jis_int(&a->v[0]) && (digits >= 0 || fabs(f) < 1e15)) {
        *out = pf_jint(digits >= 0 ? pf_jint_of(&a->v[0]) : digits < -18 ? 0 : (int64_t)(rint(f * scale) / scale));
    } else if (digits < 0 || digits > 20 || fabs(f) > 1e22) {
        *out = pf_jfloat(digits < 0 ? rint(f * scale) / scale : f);
    } else {
        /* Printing rounds the exact binary value, to even on ties, which is what Python does. */
        char buf[64];
        int n = snprintf(buf, sizeof buf, "%.*f", (int)digits, f);
        for (int i = 0; i < n; i++)
            buf[i] = buf[i] == ',' ? '.' : buf[i];
        pf_jnum_parse((struct pf_jstr){ buf, (size_t)n }, out);
        *out = pf_jfloat(pf_jdouble(out));
    }
    return PF_OK;
}

/* ---- Filters on lists ---- */

static pf_status filter_length(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    const struct pf_jval *v = &a->v[0];
    if (v->kind == PF_JV_STR) {
        *out = pf_jint((int64_t)pf_ju8_count(v->s));
        return pf_jsteps(r, v->s.n / 16);
    }
    if (!pf_jis_list(v) && v->kind != PF_JV_DICT && v->kind != PF_JV_UNDEF)
        return pf_jfail(r, "%s has no length", pf_jtype(v));
    *out = pf_jint(pf_jis_list(v) ? (int64_t)v->list->n : v->kind == PF_JV_DICT ? (int64_t)v->dict->n : 0);
    return PF_OK;
}

static pf_status copy_list(struct pf_jrun *r, const struct pf_jval *v, struct pf_jlist **out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jiter(r, v, &l));
    PF_TRY(pf_jlist_new(r, l->n, out));
    for (size_t i = 0; i < l->n; i++)
        PF_TRY(pf_jlist_push(r, *out, l->v[i]));
    return PF_OK;
}

static pf_status filter_list(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(copy_list(r, &a->v[0], &l));
    *out = pf_jlistval(l);
    return PF_OK;
}

static pf_status filter_first(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    *out = l->n ? l->v[0] : pf_jundef((struct pf_jstr){ "the first element", 17 });
    return PF_OK;
}

static pf_status filter_last(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    *out = l->n ? l->v[l->n - 1] : pf_jundef((struct pf_jstr){ "the last element", 16 });
    return PF_OK;
}

static pf_status filter_reverse(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    static const struct pf_jval back[3] = { [2] = { .kind = PF_JV_INT, .i = -1 } };
    struct pf_jlist *l;
    if (a->v[0].kind == PF_JV_STR)
        return pf_jslice(r, &a->v[0], back, out);
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    struct pf_jval v = pf_jlistval(l);
    return pf_jslice(r, &v, back, out);
}

static pf_status filter_items(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jargs self = { .v = a->v, .n = 1 };
    if (a->v[0].kind == PF_JV_UNDEF)
        return filter_list(r, a, out);
    if (a->v[0].kind != PF_JV_DICT)
        return pf_jfail(r, "items needs a dict, not %s", pf_jtype(&a->v[0]));
    return pf_jcall_fn(r, pf_jfn_find(PF_JT_DICT, (struct pf_jstr){ "items", 5 }), &self, out);
}

static pf_status filter_sum(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    struct pf_jval item, sum = missing(&a->v[2]) ? pf_jint(0) : a->v[2];
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    for (size_t i = 0; i < l->n; i++) {
        item = l->v[i];
        if (!missing(&a->v[1]) && a->v[1].kind != PF_JV_NONE)
            PF_TRY(pf_jattr_path(r, &l->v[i], &a->v[1], &item));
        struct pf_jval left = sum;
        PF_TRY(pf_jbinary(r, '+', &left, &item, &sum));
    }
    *out = sum;
    return PF_OK;
}

/* ---- Order ---- */

/* The sort key of an element: itself or an attribute; strings in lower case unless case counts. */
static pf_status sort_key(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval *attr, bool case_counts,
                          struct pf_jval *out)
{
    struct pf_jval key = *v;
    if (attr && !missing(attr) && attr->kind != PF_JV_NONE)
        PF_TRY(pf_jattr_path(r, v, attr, &key));
    if (!case_counts && key.kind == PF_JV_STR)
        return pf_jcase(r, key.s, false, out);
    *out = key;
    return PF_OK;
}

struct keyed {
    struct pf_jval key, val;
};

static pf_status make_keyed(struct pf_jrun *r, const struct pf_jlist *l, const struct pf_jval *attr, bool case_counts,
                            struct keyed **out)
{
    void *p;
    PF_TRY(pf_jalloc(r, l->n * sizeof **out, &p));
    *out = p;
    for (size_t i = 0; i < l->n; i++) {
        (*out)[i].val = l->v[i];
        PF_TRY(sort_key(r, &l->v[i], attr, case_counts, &(*out)[i].key));
    }
    return PF_OK;
}

/* Merges v[lo..mid) and v[mid..hi) into to[lo..hi); equal keys keep their order. */
static pf_status merge(struct pf_jrun *r, const struct keyed *v, struct keyed *to, size_t lo, size_t mid, size_t hi,
                       bool down)
{
    size_t i = lo, j = mid;
    while (i < mid || j < hi) {
        int cmp = j >= hi ? -1 : 1;
        if (i < mid && j < hi) {
            PF_TRY(pf_jorder(r, &v[i].key, &v[j].key, &cmp));
            cmp = down ? -cmp : cmp;
        }
        *to++ = cmp <= 0 ? v[i++] : v[j++];
    }
    return PF_OK;
}

/* A stable sort: runs of 1, 2, 4 ... are merged. The result is in *v. */
static pf_status sort_keyed(struct pf_jrun *r, struct keyed **v, size_t n, bool down)
{
    void *p;
    PF_TRY(pf_jalloc(r, n * sizeof **v, &p));
    struct keyed *from = *v, *to = p;
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * run) {
            size_t mid = lo + run < n ? lo + run : n, hi = mid + run < n ? mid + run : n;
            PF_TRY(merge(r, from, to + lo, lo, mid, hi, down));
        }
        struct keyed *t = from;
        from = to;
        to = t;
    }
    *v = from;
    return PF_OK;
}

static pf_status sorted(struct pf_jrun *r, const struct pf_jlist *l, const struct pf_jval *attr, bool case_counts,
                        bool down, struct pf_jval *out)
{
    struct keyed *v;
    struct pf_jlist *result;
    PF_TRY(make_keyed(r, l, attr, case_counts, &v));
    PF_TRY(sort_keyed(r, &v, l->n, down));
    PF_TRY(pf_jlist_new(r, l->n, &result));
    for (size_t i = 0; i < l->n; i++)
        PF_TRY(pf_jlist_push(r, result, v[i].val));
    *out = pf_jlistval(result);
    return PF_OK;
}

static pf_status filter_sort(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    return sorted(r, l, &a->v[3], pf_jtruth(&a->v[2]), pf_jtruth(&a->v[1]), out);
}

static pf_status filter_dictsort(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval items;
    bool by_value = a->v[2].kind == PF_JV_STR && pf_jstr_is(a->v[2].s, "value");
    struct pf_jval part = pf_jint(by_value);
    PF_TRY(filter_items(r, a, &items));
    return sorted(r, items.list, &part, pf_jtruth(&a->v[1]), pf_jtruth(&a->v[3]), out);
}

static pf_status extreme(struct pf_jrun *r, const struct pf_jargs *a, int wanted, struct pf_jval *out)
{
    struct pf_jlist *l;
    struct keyed *v;
    size_t best = 0;
    int cmp;
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    *out = pf_jundef((struct pf_jstr){ "an element of an empty list", 27 });
    if (!l->n)
        return PF_OK;
    PF_TRY(make_keyed(r, l, &a->v[2], pf_jtruth(&a->v[1]), &v));
    for (size_t i = 1; i < l->n; i++) {
        PF_TRY(pf_jorder(r, &v[i].key, &v[best].key, &cmp));
        if (cmp == 2 ? false : wanted < 0 ? cmp < 0 : cmp > 0)
            best = i;
    }
    *out = v[best].val;
    return PF_OK;
}

static pf_status filter_min(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return extreme(r, a, -1, out);
}

static pf_status filter_max(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return extreme(r, a, 1, out);
}

static pf_status filter_unique(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l, *result;
    struct pf_jdict *seen;
    struct pf_jval key, *found;
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    PF_TRY(pf_jlist_new(r, 0, &result));
    PF_TRY(pf_jdict_new(r, &seen));
    for (size_t i = 0; i < l->n; i++) {
        PF_TRY(sort_key(r, &l->v[i], &a->v[2], pf_jtruth(&a->v[1]), &key));
        PF_TRY(pf_jdict_find(r, seen, &key, &found));
        if (found)
            continue;
        PF_TRY(pf_jdict_set(r, seen, key, pf_jnone()));
        PF_TRY(pf_jlist_push(r, result, l->v[i]));
    }
    *out = pf_jlistval(result);
    return PF_OK;
}

/* ---- Filters that apply filters and tests ---- */

static pf_status find_fn(const struct pf_jrun *r, enum pf_jtable table, const struct pf_jval *name,
                         const struct pf_jfn **out)
{
    *out = name->kind == PF_JV_STR ? pf_jfn_find(table, name->s) : NULL;
    if (*out)
        return PF_OK;
    if (name->kind != PF_JV_STR)
        return pf_jfail(r, "the name of a filter or test must be a string, not %s", pf_jtype(name));
    return pf_jfail(r, "there is no %s '%.*s'", table == PF_JT_TEST ? "test" : "filter",
                    (int)(name->s.n < 60 ? name->s.n : 60), name->s.p);
}

/* fn(v, the arguments from number `from` on) */
static pf_status apply(struct pf_jrun *r, const struct pf_jfn *fn, const struct pf_jval *v, const struct pf_jargs *a,
                       size_t from, struct pf_jval *out)
{
    struct pf_jval args[PF_JMAX_ARGS + 1];
    struct pf_jargs call = { .v = args, .n = 1, .kw = a->kw, .n_kw = a->n_kw };
    args[0] = *v;
    for (size_t i = from; i < a->n; i++)
        args[call.n++] = a->v[i];
    return pf_jcall_fn(r, fn, &call, out);
}

static const struct pf_jval *named(const struct pf_jargs *a, const char *name)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (pf_jstr_is(a->kw[i].name, name))
            return &a->kw[i].v;
    return NULL;
}

/* map(attribute='a', default=x) or map('filter', arguments ...) */
static pf_status filter_map(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l, *result;
    struct pf_jval v;
    const struct pf_jval *attr = named(a, "attribute"), *absent = named(a, "default");
    const struct pf_jfn *fn = NULL;
    if (!attr && a->n < 2)
        return pf_jfail(r, "map() needs a filter or attribute=");
    if (!attr)
        PF_TRY(find_fn(r, PF_JT_FILTER, &a->v[1], &fn));
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    PF_TRY(pf_jlist_new(r, l->n, &result));
    *out = pf_jlistval(result);
    for (size_t i = 0, n = l->n; i < n; i++) {
        PF_TRY(attr ? pf_jattr_path(r, &l->v[i], attr, &v) : apply(r, fn, &l->v[i], a, 2, &v));
        if (attr && absent && v.kind == PF_JV_UNDEF)
            v = *absent;
        PF_TRY(pf_jlist_push(r, result, v));
    }
    return PF_OK;
}

/* The elements that pass a test, or whose attribute does; without a test: that are true. */
static pf_status choose(struct pf_jrun *r, const struct pf_jargs *a, bool by_attr, bool wanted, struct pf_jval *out)
{
    struct pf_jlist *l, *result;
    struct pf_jval v, is;
    size_t at = by_attr ? 2 : 1;
    const struct pf_jfn *fn = NULL;
    if (a->n < at)
        return pf_jfail(r, "the filter needs the name of an attribute");
    if (a->n > at)
        PF_TRY(find_fn(r, PF_JT_TEST, &a->v[at], &fn));
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    PF_TRY(pf_jlist_new(r, 0, &result));
    for (size_t i = 0; i < l->n; i++) {
        v = l->v[i];
        if (by_attr)
            PF_TRY(pf_jattr_path(r, &l->v[i], &a->v[1], &v));
        is = v;
        if (fn)
            PF_TRY(apply(r, fn, &v, a, at + 1, &is));
        if (pf_jtruth(&is) == wanted)
            PF_TRY(pf_jlist_push(r, result, l->v[i]));
    }
    *out = pf_jlistval(result);
    return PF_OK;
}

static pf_status filter_select(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return choose(r, a, false, true, out);
}

static pf_status filter_reject(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return choose(r, a, false, false, out);
}

static pf_status filter_selectattr(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return choose(r, a, true, true, out);
}

static pf_status filter_rejectattr(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return choose(r, a, true, false, out);
}

/* ---- The rest ---- */

static pf_status filter_default(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    (void)r;
    bool absent = a->v[0].kind == PF_JV_UNDEF || (pf_jtruth(&a->v[2]) && !pf_jtruth(&a->v[0]));
    *out = !absent ? a->v[0] : missing(&a->v[1]) ? pf_jstring("", 0) : a->v[1];
    return PF_OK;
}

static pf_status filter_attr(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    if (a->v[1].kind != PF_JV_STR)
        return pf_jfail(r, "attr needs the name of an attribute");
    return pf_jindex(r, &a->v[0], &a->v[1], out);
}

const struct pf_jfn pf_jfilters[] = {
    { "abs", "value", 1, filter_abs },
    { "attr", "value name", 2, filter_attr },
    { "capitalize", "value", 1, filter_capitalize },
    { "count", "value", 1, filter_length },
    { "d", "value default_value boolean", 1, filter_default },
    { "default", "value default_value boolean", 1, filter_default },
    { "dictsort", "value case_sensitive by reverse", 1, filter_dictsort },
    { "e", "value", 1, filter_escape },
    { "escape", "value", 1, filter_escape },
    { "first", "value", 1, filter_first },
    { "float", "value default", 1, filter_float },
    { "from_json", "value", 1, filter_from_json },
    { "indent", "value width first blank", 1, filter_indent },
    { "int", "value default", 1, filter_int },
    { "items", "value", 1, filter_items },
    { "join", "value d attribute", 1, filter_join },
    { "last", "value", 1, filter_last },
    { "length", "value", 1, filter_length },
    { "list", "value", 1, filter_list },
    { "lower", "value", 1, filter_lower },
    { "map", NULL, 0, filter_map },
    { "max", "value case_sensitive attribute", 1, filter_max },
    { "min", "value case_sensitive attribute", 1, filter_min },
    { "reject", NULL, 0, filter_reject },
    { "rejectattr", NULL, 0, filter_rejectattr },
    { "replace", "value old new count", 3, filter_replace },
    { "reverse", "value", 1, filter_reverse },
    { "round", "value precision method", 1, filter_round },
    { "safe", "value", 1, filter_string },
    { "select", NULL, 0, filter_select },
    { "selectattr", NULL, 0, filter_selectattr },
    { "sort", "value reverse case_sensitive attribute", 1, filter_sort },
    { "string", "value", 1, filter_string },
    { "sum", "value attribute start", 1, filter_sum },
    { "title", "value", 1, filter_title },
    { "tojson", "value ensure_ascii indent separators sort_keys", 1, filter_tojson },
    { "trim", "value chars", 1, filter_trim },
    { "unique", "value case_sensitive attribute", 1, filter_unique },
    { "upper", "value", 1, filter_upper },
    { NULL, NULL, 0, NULL },
};

/* ---- Tests ---- */

/* Tests that look only at what a value is. */
#define TEST_KIND(name, condition)                                                              \
    static pf_status name(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)     \
    {                                                                                           \
        const struct pf_jval *v = &a->v[0];                                                     \
        (void)r;                                                                                \
        *out = pf_jbool(condition);                                                             \
        return PF_OK;                                                                           \
    }
TEST_KIND(test_defined, v->kind != PF_JV_UNDEF)
TEST_KIND(test_undefined, v->kind == PF_JV_UNDEF)
TEST_KIND(test_none, v->kind == PF_JV_NONE)
TEST_KIND(test_boolean, v->kind == PF_JV_BOOL)
TEST_KIND(test_true, v->kind == PF_JV_BOOL && v->b)
TEST_KIND(test_false, v->kind == PF_JV_BOOL && !v->b)
TEST_KIND(test_integer, v->kind == PF_JV_INT || v->kind == PF_JV_BIG)
TEST_KIND(test_float, v->kind == PF_JV_FLOAT)
TEST_KIND(test_number, pf_jis_num(v))
TEST_KIND(test_string, v->kind == PF_JV_STR)
TEST_KIND(test_mapping, v->kind == PF_JV_DICT)
TEST_KIND(test_sequence, v->kind == PF_JV_STR || v->kind == PF_JV_DICT || v->kind == PF_JV_UNDEF || pf_jis_list(v))
TEST_KIND(test_callable, v->kind == PF_JV_MACRO || v->kind == PF_JV_FUNC || v->kind == PF_JV_BOUND)

static pf_status test_divisible(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    static const struct pf_jval zero = { .kind = PF_JV_INT };
    struct pf_jval rem;
    bool is;
    PF_TRY(pf_jbinary(r, '%', &a->v[0], &a->v[1], &rem));
    PF_TRY(pf_jequal(r, &rem, &zero, &is));
    *out = pf_jbool(is);
    return PF_OK;
}

static pf_status test_even(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval v[2] = { a->v[0], pf_jint(2) };
    return test_divisible(r, &(struct pf_jargs){ .v = v, .n = 2 }, out);
}

static pf_status test_odd(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(test_even(r, a, out));
    out->b = !out->b;
    return PF_OK;
}

static pf_status compare(struct pf_jrun *r, unsigned op, const struct pf_jargs *a, struct pf_jval *out)
{
    bool is;
    PF_TRY(pf_jcompare(r, op, &a->v[0], &a->v[1], &is));
    *out = pf_jbool(is);
    return PF_OK;
}

#define TEST_COMPARE(name, op)                                                                  \
    static pf_status name(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)     \
    {                                                                                           \
        return compare(r, op, a, out);                                                          \
    }
TEST_COMPARE(test_eq, PF_JOP('=', '='))
TEST_COMPARE(test_ne, PF_JOP('!', '='))
TEST_COMPARE(test_lt, '<')
TEST_COMPARE(test_le, PF_JOP('<', '='))
TEST_COMPARE(test_gt, '>')
TEST_COMPARE(test_ge, PF_JOP('>', '='))
TEST_COMPARE(test_in, PF_JOP_IN)

/* Identity: the same object, or an equal value of a kind that has no identity to speak of. */
static pf_status test_sameas(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    bool is;
    const struct pf_jval *x = &a->v[0], *y = &a->v[1];
    PF_TRY(pf_jequal(r, x, y, &is));
    if (x->kind == PF_JV_LIST || x->kind == PF_JV_TUPLE || x->kind == PF_JV_DICT)
        is = is && x->list == y->list;
    *out = pf_jbool(is && x->kind == y->kind);
    return PF_OK;
}

static pf_status test_upper(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "isupper", a, out);
}

static pf_status test_lower(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return as_method(r, "islower", a, out);
}

const struct pf_jfn pf_jtests[] = {
    { "!=", "value other", 2, test_ne },
    { "<", "value other", 2, test_lt },
    { "<=", "value other", 2, test_le },
    { "==", "value other", 2, test_eq },
    { ">", "value other", 2, test_gt },
    { ">=", "value other", 2, test_ge },
    { "boolean", "value", 1, test_boolean },
    { "callable", "value", 1, test_callable },
    { "defined", "value", 1, test_defined },
    { "divisibleby", "value num", 2, test_divisible },
    { "eq", "value other", 2, test_eq },
    { "equalto", "value other", 2, test_eq },
    { "even", "value", 1, test_even },
    { "false", "value", 1, test_false },
    { "float", "value", 1, test_float },
    { "ge", "value other", 2, test_ge },
    { "greaterthan", "value other", 2, test_gt },
    { "gt", "value other", 2, test_gt },
    { "in", "value seq", 2, test_in },
    { "integer", "value", 1, test_integer },
    { "iterable", "value", 1, test_sequence },
    { "le", "value other", 2, test_le },
    { "lessthan", "value other", 2, test_lt },
    { "lower", "value", 1, test_lower },
    { "lt", "value other", 2, test_lt },
    { "mapping", "value", 1, test_mapping },
    { "ne", "value other", 2, test_ne },
    { "none", "value", 1, test_none },
    { "number", "value", 1, test_number },
    { "odd", "value", 1, test_odd },
    { "sameas", "value other", 2, test_sameas },
    { "sequence", "value", 1, test_sequence },
    { "string", "value", 1, test_string },
    { "true", "value", 1, test_true },
    { "undefined", "value", 1, test_undefined },
    { "upper", "value", 1, test_upper },
    { NULL, NULL, 0, NULL },
};

/* ---- Global functions ---- */

static pf_status global_range(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    int64_t start, stop, step;
    struct pf_jlist *l;
    PF_TRY(pf_jwant_int(r, &a->v[0], "range()", 0, &start));
    PF_TRY(pf_jwant_int(r, &a->v[1], "range()", 0, &stop));
    PF_TRY(pf_jwant_int(r, &a->v[2], "range()", 1, &step));
    if (missing(&a->v[1])) {
        stop = start;
        start = 0;
    }
    if (step == 0)
        return pf_jfail(r, "range(): the step is zero");
    PF_TRY(pf_jlist_new(r, 0, &l));
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (l->n == PF_JMAX_RANGE)
            return pf_jfail(r, "range() of more than %d numbers", (int)PF_JMAX_RANGE);
        PF_TRY(pf_jlist_push(r, l, pf_jint(i)));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    *out = pf_jlistval(l);
    return PF_OK;
}

/* namespace(d, a=1) and dict(d, a=1): a copy of a dict and more keys. */
static pf_status make_dict(struct pf_jrun *r, const struct pf_jargs *a, enum pf_jkind kind, struct pf_jval *out)
{
    struct pf_jdict *d;
    PF_TRY(pf_jdict_new(r, &d));
    if (a->n > 1 || (a->n && a->v[0].kind != PF_JV_DICT))
        return pf_jfail(r, "a %s is made from one dict and named values", kind == PF_JV_DICT ? "dict" : "namespace");
    for (size_t i = 0; a->n && i < a->v[0].dict->n; i++)
        PF_TRY(pf_jdict_set(r, d, a->v[0].dict->v[i].key, a->v[0].dict->v[i].val));
    for (size_t i = 0; i < a->n_kw; i++)
        PF_TRY(pf_jdict_set(r, d, pf_jstring(a->kw[i].name.p, a->kw[i].name.n), a->kw[i].v));
    *out = (struct pf_jval){ .kind = kind, .dict = d };
    return PF_OK;
}

static pf_status global_namespace(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return make_dict(r, a, PF_JV_NAMESPACE, out);
}

static pf_status global_dict(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return make_dict(r, a, PF_JV_DICT, out);
}

/* The one failure whose message is not ours: the template's, exactly. */
static pf_status global_raise(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval text;
    (void)out;
    PF_TRY(pf_jtext(r, &a->v[0], &text));
    return pf_fail(PF_ETEMPLATE, "%.*s", (int)(text.s.n < 4096 ? text.s.n : 4096), text.s.p);
}

static const char *const months[] = { "January", "February", "March", "April", "May", "June", "July", "August",
                                      "September", "October", "November", "December" };
static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };

static pf_status put_time(struct pf_jrun *r, const struct tm *t, const char *fmt, size_t n);

/* One conversion of strftime, in the C locale; an unknown one is printed as it stands. */
static pf_status put_time_part(struct pf_jrun *r, const struct tm *t, char c, bool pad)
{
    char buf[32];
    int hour = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    const struct {
        char c;
        int width, value;
    } numbers[] = {
        { 'Y', 1, t->tm_year + 1900 }, { 'm', 2, t->tm_mon + 1 }, { 'd', 2, t->tm_mday }, { 'H', 2, t->tm_hour },
        { 'M', 2, t->tm_min }, { 'S', 2, t->tm_sec }, { 'I', 2, hour }, { 'j', 3, t->tm_yday + 1 },
        { 'y', 2, (t->tm_year + 1900) % 100 }, { 'w', 1, t->tm_wday }, { 'u', 1, t->tm_wday ? t->tm_wday : 7 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].c == c) {
            snprintf(buf, sizeof buf, "%0*d", pad ? numbers[i].width : 1, numbers[i].value);
            return pf_jputs(r, buf);
        }
    switch (c) {
    case 'B':
        return pf_jputs(r, months[t->tm_mon]);
    case 'b':
    case 'h':
        return pf_jput(r, months[t->tm_mon], 3);
    case 'A':
        return pf_jputs(r, days[t->tm_wday]);
    case 'a':
        return pf_jput(r, days[t->tm_wday], 3);
    case 'e':
        return pf_jput(r, buf, (size_t)snprintf(buf, sizeof buf, "%2d", t->tm_mday));
    case 'p':
        return pf_jputs(r, t->tm_hour < 12 ? "AM" : "PM");
    case 'F':
        return put_time(r, t, "%Y-%m-%d", 8);
    case 'T':
        return put_time(r, t, "%H:%M:%S", 8);
    case 'R':
        return put_time(r, t, "%H:%M", 5);
    case 'D':
    case 'x':
        return put_time(r, t, "%m/%d/%y", 8);
    case 'X':
        return put_time(r, t, "%H:%M:%S", 8);
    case 'c':
        return put_time(r, t, "%a %b %e %H:%M:%S %Y", 20);
    case 'Z':
    case 'z':
        return PF_OK;                   /* the time is told without its zone */
    case 'n':
        return pf_jputs(r, "\n");
    case 't':
        return pf_jputs(r, "\t");
    case '%':
        return pf_jputs(r, "%");
    default:
        return pf_jput(r, (char[]){ '%', c }, 2);
    }
}

static pf_status put_time(struct pf_jrun *r, const struct tm *t, const char *fmt, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fmt[i] != '%' || i + 1 == n) {
            PF_TRY(pf_jput(r, &fmt[i], 1));
            continue;
        }
        bool pad = fmt[++i] != '-';
        if (!pad && i + 1 < n)
            i++;
        PF_TRY(put_time_part(r, t, fmt[i], pad));
    }
    return pf_jsteps(r, n / 8);
}

static pf_status global_strftime_now(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct tm t;
    time_t now = r->now < 0 ? time(NULL) : (time_t)r->now;
    if (a->v[0].kind != PF_JV_STR)
        return pf_jfail(r, "strftime_now() needs a string, not %s", pf_jtype(&a->v[0]));
    if (!(r->now < 0 ? localtime_r(&now, &t) : gmtime_r(&now, &t)))
        return pf_jfail(r, "strftime_now(): the time is out of range");
    size_t mark = r->n_out;
    PF_TRY(put_time(r, &t, a->v[0].s.p, a->v[0].s.n));
    return pf_jtake(r, mark, out);
}

const struct pf_jfn pf_jglobals[] = {
    { "dict", NULL, 0, global_dict },
    { "namespace", NULL, 0, global_namespace },
    { "raise_exception", "message", 1, global_raise },
    { "range", "start stop step", 1, global_range },
    { "strftime_now", "format", 1, global_strftime_now },
    { NULL, NULL, 0, NULL },
};

const struct pf_jfn *pf_jfn_find(enum pf_jtable table, struct pf_jstr name)
{
    static const struct pf_jfn *const tables[PF_JT_N] = {
        [PF_JT_FILTER] = pf_jfilters,    [PF_JT_TEST] = pf_jtests,        [PF_JT_GLOBAL] = pf_jglobals,
        [PF_JT_STR] = pf_jstr_methods,   [PF_JT_DICT] = pf_jdict_methods, [PF_JT_LIST] = pf_jlist_methods,
        [PF_JT_LOOP] = pf_jloop_methods,
    };
    for (const struct pf_jfn *fn = tables[table]; fn->name; fn++)
        if (pf_jstr_is(name, fn->name))
            return fn;
    return NULL;
}

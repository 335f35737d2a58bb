/* Methods of strings, dicts, lists and the loop, as tables. Case is mapped letter for letter (and the sharp s to SS);
 * other letters that would become two stay one. Only lists can be changed, by append and pop. */
#define _GNU_SOURCE                 /* memmem */
#include "text/jinja.h"

#include <assert.h>
#include <utf8proc.h>

static pf_status want_str(const struct pf_jrun *r, const struct pf_jval *v, const char *what)
{
    return v->kind == PF_JV_STR ? PF_OK : pf_jfail(r, "%s needs a string, not %s", what, pf_jtype(v));
}

static bool given(const struct pf_jval *v)
{
    return v->kind != PF_JV_MISSING && v->kind != PF_JV_NONE;
}

static const char *find(struct pf_jstr in, const char *from, struct pf_jstr what)
{
    size_t left = (size_t)(in.p + in.n - from);
    if (what.n == 0 || what.n > left)
        return what.n ? NULL : from;
    if (what.n == 1)
        return memchr(from, what.p[0], left);
    assert(what.p);
    return memmem(from, left, what.p, what.n);
}

static const char *find_last(struct pf_jstr in, struct pf_jstr what)
{
    if (what.n > in.n)
        return NULL;
    for (const char *p = in.p + in.n - what.n;; p--) {
        if (memcmp(p, what.p, what.n) == 0)
            return p;
        if (p == in.p)
            return NULL;
    }
}

/* ---- Case ---- */

static bool is_upper(uint32_t c)
{
    return utf8proc_isupper((int32_t)c);
}

static bool is_lower(uint32_t c)
{
    return utf8proc_islower((int32_t)c);
}

static bool is_letter(uint32_t c)
{
    utf8proc_category_t kind = utf8proc_category((int32_t)c);
    return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

static pf_status str_upper(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return pf_jcase(r, a->v[0].s, true, out);
}

static pf_status str_lower(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return pf_jcase(r, a->v[0].s, false, out);
}

/* The first letter of the text, or of each run of letters, large; the others small. */
static pf_status recase(struct pf_jrun *r, struct pf_jstr s, bool words, struct pf_jval *out)
{
    size_t mark = r->n_out;
    bool inside = false;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        char buf[4];
        uint32_t c;
        size_t len = pf_utf8_next(p, (size_t)(end - p), &c);
        if (pf_utf8_is_bad(len, c))
            PF_TRY(pf_jput(r, p, len));
        else
            PF_TRY(pf_jput(r, buf, pf_utf8_put(buf, (uint32_t)(inside ? utf8proc_tolower((int32_t)c)
                                                                      : utf8proc_totitle((int32_t)c)))));
        inside = !words || is_letter(c);
        p += len;
    }
    return pf_jtake(r, mark, out);
}

static pf_status str_capitalize(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return recase(r, a->v[0].s, false, out);
}

static pf_status str_title(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return recase(r, a->v[0].s, true, out);
}

/* ---- Stripping and looking ---- */

static pf_status strip(struct pf_jrun *r, const struct pf_jargs *a, int sides, struct pf_jval *out)
{
    PF_TRY(pf_jsteps(r, a->v[0].s.n / 64));
    if (given(&a->v[1])) {
        PF_TRY(want_str(r, &a->v[1], "strip()"));
        PF_TRY(pf_jsteps(r, (uint64_t)a->v[0].s.n * a->v[1].s.n / 64));
    }
    struct pf_jstr s = pf_jstrip(a->v[0].s, given(&a->v[1]) ? &a->v[1].s : NULL, sides);
    *out = pf_jstring(s.p, s.n);
    return PF_OK;
}

static pf_status str_strip(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return strip(r, a, PF_JSTRIP_LEFT | PF_JSTRIP_RIGHT, out);
}

static pf_status str_lstrip(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return strip(r, a, PF_JSTRIP_LEFT, out);
}

static pf_status str_rstrip(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return strip(r, a, PF_JSTRIP_RIGHT, out);
}

static bool has_affix(struct pf_jstr s, struct pf_jstr affix, bool at_end)
{
    return affix.n <= s.n && memcmp(at_end ? s.p + s.n - affix.n : s.p, affix.p, affix.n) == 0;
}

/* startswith and endswith take a string or a tuple of strings. */
static pf_status affix(struct pf_jrun *r, const struct pf_jargs *a, bool at_end, struct pf_jval *out)
{
    const struct pf_jval *v = &a->v[1];
    size_t n = 1;
    if (a->v[1].kind == PF_JV_TUPLE) {
        v = a->v[1].list->v;
        n = a->v[1].list->n;
    }
    bool has = false;
    for (size_t i = 0; !has && i < n; i++) {
        PF_TRY(want_str(r, &v[i], at_end ? "endswith()" : "startswith()"));
        PF_TRY(pf_jsteps(r, 1 + v[i].s.n / 64));
        has = has_affix(a->v[0].s, v[i].s, at_end);
    }
    *out = pf_jbool(has);
    return PF_OK;
}

static pf_status str_startswith(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return affix(r, a, false, out);
}

static pf_status str_endswith(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return affix(r, a, true, out);
}

static pf_status str_removeprefix(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(want_str(r, &a->v[1], "removeprefix()"));
    PF_TRY(pf_jsteps(r, a->v[1].s.n / 64));
    struct pf_jstr s = a->v[0].s;
    size_t n = has_affix(s, a->v[1].s, false) ? a->v[1].s.n : 0;
    *out = pf_jstring(s.p + n, s.n - n);
    return PF_OK;
}

static pf_status str_removesuffix(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(want_str(r, &a->v[1], "removesuffix()"));
    PF_TRY(pf_jsteps(r, a->v[1].s.n / 64));
    struct pf_jstr s = a->v[0].s;
    *out = pf_jstring(s.p, s.n - (has_affix(s, a->v[1].s, true) ? a->v[1].s.n : 0));
    return PF_OK;
}

/* The character offset of a match, or -1. */
static pf_status offset(struct pf_jrun *r, const struct pf_jargs *a, bool last, const char *name, struct pf_jval *out)
{
    PF_TRY(want_str(r, &a->v[1], name));
    PF_TRY(pf_jsteps(r, a->v[0].s.n / 8 + (last ? a->v[0].s.n / 64 * a->v[1].s.n : 0)));
    struct pf_jstr s = a->v[0].s;
    const char *p = last ? find_last(s, a->v[1].s) : find(s, s.p, a->v[1].s);
    *out = pf_jint(p ? (int64_t)pf_ju8_count((struct pf_jstr){ s.p, (size_t)(p - s.p) }) : -1);
    return PF_OK;
}

static pf_status str_find(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return offset(r, a, false, "find()", out);
}

static pf_status str_rfind(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return offset(r, a, true, "rfind()", out);
}

static pf_status str_index(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(offset(r, a, false, "index()", out));
    return out->i < 0 ? pf_jfail(r, "index(): the substring is not there") : PF_OK;
}

static pf_status str_count(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(want_str(r, &a->v[1], "count()"));
    struct pf_jstr s = a->v[0].s, what = a->v[1].s;
    PF_TRY(pf_jsteps(r, s.n / 8));
    int64_t n = what.n ? 0 : (int64_t)pf_ju8_count(s) + 1;
    for (const char *p = s.p; what.n && (p = find(s, p, what)); p += what.n)
        n++;
    *out = pf_jint(n);
    return PF_OK;
}

/* ---- Cutting and joining ---- */

static pf_status push_part(struct pf_jrun *r, struct pf_jlist *l, const char *from, const char *to)
{
    return pf_jlist_push(r, l, pf_jstring(from, (size_t)(to - from)));
}

/* At runs of white space; at most `max` cuts (negative: any number). */
static pf_status split_words(struct pf_jrun *r, struct pf_jstr s, int64_t max, struct pf_jlist *l)
{
    s = pf_jstrip(s, NULL, PF_JSTRIP_LEFT);
    const char *end = s.p + s.n;
    while (s.n) {
        const char *p = s.p;
        while (p < end && !pf_jspace(pf_ju8_decode(p, pf_ju8_len(p, end))))
            p += pf_ju8_len(p, end);
        if (max-- == 0)
            return push_part(r, l, s.p, end);
        PF_TRY(push_part(r, l, s.p, p));
        s = pf_jstrip((struct pf_jstr){ p, (size_t)(end - p) }, NULL, PF_JSTRIP_LEFT);
    }
    return PF_OK;
}

static pf_status str_split(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    int64_t max;
    struct pf_jstr s = a->v[0].s, sep;
    PF_TRY(pf_jwant_int(r, &a->v[2], "split()", -1, &max));
    PF_TRY(pf_jsteps(r, s.n / 16));
    PF_TRY(pf_jlist_new(r, 0, &l));
    *out = pf_jlistval(l);
    if (!given(&a->v[1]))
        return split_words(r, s, max, l);
    PF_TRY(want_str(r, &a->v[1], "split()"));
    sep = a->v[1].s;
    if (!sep.n)
        return pf_jfail(r, "split(): the separator is empty");
    const char *from = s.p;
    for (const char *p; max != 0 && (p = find(s, from, sep)); max--) {
        PF_TRY(push_part(r, l, from, p));
        from = p + sep.n;
    }
    return push_part(r, l, from, s.p + s.n);
}

/* The parts from the last to the first, then turned round. */
static pf_status str_rsplit(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    int64_t max;
    PF_TRY(pf_jwant_int(r, &a->v[2], "rsplit()", -1, &max));
    if (max < 0)
        return str_split(r, a, out);
    PF_TRY(want_str(r, &a->v[1], "rsplit()"));
    struct pf_jstr s = a->v[0].s, sep = a->v[1].s;
    if (!sep.n)
        return pf_jfail(r, "rsplit(): the separator is empty");
    PF_TRY(pf_jlist_new(r, 0, &l));
    PF_TRY(pf_jsteps(r, s.n / 64 * (1 + sep.n)));
    for (const char *p; max != 0 && (p = find_last(s, sep)); max--) {
        PF_TRY(push_part(r, l, p + sep.n, s.p + s.n));
        s.n = (size_t)(p - s.p);
    }
    PF_TRY(push_part(r, l, s.p, s.p + s.n));
    for (size_t i = 0, j = l->n - 1; i < j; i++, j--) {
        struct pf_jval t = l->v[i];
        l->v[i] = l->v[j];
        l->v[j] = t;
    }
    *out = pf_jlistval(l);
    return PF_OK;
}

static pf_status str_splitlines(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    struct pf_jstr s = a->v[0].s;
    PF_TRY(pf_jlist_new(r, 0, &l));
    PF_TRY(pf_jsteps(r, s.n / 16));
    for (const char *p = s.p, *end = s.p + s.n, *from = p; p < end; from = p) {
        while (p < end && *p != '\n' && *p != '\r')
            p++;
        const char *stop = p;
        p += p < end ? 1 + (*p == '\r' && p + 1 < end && p[1] == '\n') : 0;
        PF_TRY(push_part(r, l, from, pf_jtruth(&a->v[1]) ? p : stop));
    }
    *out = pf_jlistval(l);
    return PF_OK;
}

static pf_status three(struct pf_jrun *r, struct pf_jstr s, const char *at, size_t n, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jlist_new(r, 3, &l));
    PF_TRY(push_part(r, l, s.p, at));
    PF_TRY(push_part(r, l, at, at + n));
    PF_TRY(push_part(r, l, at + n, s.p + s.n));
    *out = (struct pf_jval){ .kind = PF_JV_TUPLE, .list = l };
    return PF_OK;
}

static pf_status str_partition(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(want_str(r, &a->v[1], "partition()"));
    struct pf_jstr s = a->v[0].s, sep = a->v[1].s;
    PF_TRY(pf_jsteps(r, s.n / 64));
    const char *p = find(s, s.p, sep);
    return p ? three(r, s, p, sep.n, out) : three(r, s, s.p + s.n, 0, out);
}

static pf_status str_rpartition(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(want_str(r, &a->v[1], "rpartition()"));
    struct pf_jstr s = a->v[0].s, sep = a->v[1].s;
    PF_TRY(pf_jsteps(r, s.n / 64 * (1 + sep.n)));
    const char *p = find_last(s, sep);
    return p ? three(r, s, p, sep.n, out) : three(r, s, s.p, 0, out);
}

static pf_status str_replace(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    int64_t max;
    PF_TRY(want_str(r, &a->v[1], "replace()"));
    PF_TRY(want_str(r, &a->v[2], "replace()"));
    PF_TRY(pf_jwant_int(r, &a->v[3], "replace()", -1, &max));
    struct pf_jstr s = a->v[0].s, old = a->v[1].s, by = a->v[2].s;
    PF_TRY(pf_jsteps(r, s.n / 64));
    size_t mark = r->n_out;
    const char *from = s.p, *end = s.p + s.n;
    for (const char *p = from; max != 0 && (p = find(s, p, old)); max--) {
        PF_TRY(pf_jsteps(r, 1));
        PF_TRY(pf_jput(r, from, (size_t)(p - from)));
        PF_TRY(pf_jput(r, by.p, by.n));
        from = p + old.n;
        if (!old.n && p == end)
            break;
        p = old.n ? from : p + pf_ju8_len(p, end);      /* an empty pattern matches between all characters */
    }
    PF_TRY(pf_jput(r, from, (size_t)(end - from)));
    return pf_jtake(r, mark, out);
}

static pf_status str_join(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    size_t mark = r->n_out;
    PF_TRY(pf_jiter(r, &a->v[1], &l));
    for (size_t i = 0; i < l->n; i++) {
        PF_TRY(want_str(r, &l->v[i], "join()"));
        if (i)
            PF_TRY(pf_jput(r, a->v[0].s.p, a->v[0].s.n));
        PF_TRY(pf_jput(r, l->v[i].s.p, l->v[i].s.n));
    }
    return pf_jtake(r, mark, out);
}

/* ---- Kinds of characters: true when there is one and all are of the kind ---- */

static bool is_digit(uint32_t c)
{
    return utf8proc_category((int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static bool is_alnum(uint32_t c)
{
    return is_digit(c) || is_letter(c);
}

static pf_status all_of(struct pf_jrun *r, struct pf_jstr s, bool (*is)(uint32_t), struct pf_jval *out)
{
    bool all = s.n > 0;
    PF_TRY(pf_jsteps(r, s.n / 8));
    for (const char *p = s.p, *end = s.p + s.n; all && p < end;) {
        uint32_t c;
        p += pf_utf8_next(p, (size_t)(end - p), &c);
        all = is(c);
    }
    *out = pf_jbool(all);
    return PF_OK;
}

static pf_status str_isdigit(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return all_of(r, a->v[0].s, is_digit, out);
}

static pf_status str_isalpha(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return all_of(r, a->v[0].s, is_letter, out);
}

static pf_status str_isalnum(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return all_of(r, a->v[0].s, is_alnum, out);
}

static pf_status str_isspace(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return all_of(r, a->v[0].s, pf_jspace, out);
}

/* At least one letter of the case, and none of the other. */
static pf_status cased(struct pf_jrun *r, struct pf_jstr s, bool upper, struct pf_jval *out)
{
    bool seen = false, other = false;
    PF_TRY(pf_jsteps(r, s.n / 8));
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        uint32_t c;
        p += pf_utf8_next(p, (size_t)(end - p), &c);
        seen |= upper ? is_upper(c) : is_lower(c);
        other |= upper ? is_lower(c) : is_upper(c);
    }
    *out = pf_jbool(seen && !other);
    return PF_OK;
}

static pf_status str_isupper(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return cased(r, a->v[0].s, true, out);
}

static pf_status str_islower(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    return cased(r, a->v[0].s, false, out);
}

const struct pf_jfn pf_jstr_methods[] = {
    { "capitalize", "self", 1, str_capitalize },
    { "count", "self sub", 2, str_count },
    { "endswith", "self suffix", 2, str_endswith },
    { "find", "self sub", 2, str_find },
    { "index", "self sub", 2, str_index },
    { "isalnum", "self", 1, str_isalnum },
    { "isalpha", "self", 1, str_isalpha },
    { "isdigit", "self", 1, str_isdigit },
    { "islower", "self", 1, str_islower },
    { "isspace", "self", 1, str_isspace },
    { "isupper", "self", 1, str_isupper },
    { "join", "self iterable", 2, str_join },
    { "lower", "self", 1, str_lower },
    { "lstrip", "self chars", 1, str_lstrip },
    { "partition", "self sep", 2, str_partition },
    { "removeprefix", "self prefix", 2, str_removeprefix },
    { "removesuffix", "self suffix", 2, str_removesuffix },
    { "replace", "self old new count", 3, str_replace },
    { "rfind", "self sub", 2, str_rfind },
    { "rpartition", "self sep", 2, str_rpartition },
    { "rsplit", "self sep maxsplit", 1, str_rsplit },
    { "rstrip", "self chars", 1, str_rstrip },
    { "split", "self sep maxsplit", 1, str_split },
    { "splitlines", "self keepends", 1, str_splitlines },
    { "startswith", "self prefix", 2, str_startswith },
    { "strip", "self chars", 1, str_strip },
    { "title", "self", 1, str_title },
    { "upper", "self", 1, str_upper },
    { NULL, NULL, 0, NULL },
};

/* ---- Dicts ---- */

static pf_status dict_items(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    const struct pf_jdict *d = a->v[0].dict;
    struct pf_jlist *l;
    struct pf_jval pair;
    PF_TRY(pf_jlist_new(r, d->n, &l));
    for (size_t i = 0; i < d->n; i++) {
        PF_TRY(pf_jpair(r, d->v[i].key, d->v[i].val, &pair));
        PF_TRY(pf_jlist_push(r, l, pair));
    }
    *out = pf_jlistval(l);
    return PF_OK;
}

static pf_status dict_keys(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jiter(r, &a->v[0], &l));
    *out = pf_jlistval(l);
    return PF_OK;
}

static pf_status dict_values(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    const struct pf_jdict *d = a->v[0].dict;
    struct pf_jlist *l;
    PF_TRY(pf_jlist_new(r, d->n, &l));
    for (size_t i = 0; i < d->n; i++)
        PF_TRY(pf_jlist_push(r, l, d->v[i].val));
    *out = pf_jlistval(l);
    return PF_OK;
}

static pf_status dict_get(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval *found;
    PF_TRY(pf_jdict_find(r, a->v[0].dict, &a->v[1], &found));
    *out = found ? *found : a->v[2].kind == PF_JV_MISSING ? pf_jnone() : a->v[2];
    return PF_OK;
}

const struct pf_jfn pf_jdict_methods[] = {
    { "get", "self key default", 2, dict_get },
    { "items", "self", 1, dict_items },
    { "keys", "self", 1, dict_keys },
    { "values", "self", 1, dict_values },
    { NULL, NULL, 0, NULL },
};

/* ---- Lists ---- */

static pf_status want_list(const struct pf_jrun *r, const struct pf_jval *v)
{
    return v->kind == PF_JV_LIST ? PF_OK : pf_jfail(r, "a tuple cannot be changed");
}

static pf_status list_append(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    PF_TRY(want_list(r, &a->v[0]));
    *out = pf_jnone();
    return pf_jlist_push(r, a->v[0].list, a->v[1]);
}

static pf_status list_pop(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    int64_t at;
    struct pf_jlist *l = a->v[0].list;
    PF_TRY(want_list(r, &a->v[0]));
    PF_TRY(pf_jwant_int(r, &a->v[1], "pop()", -1, &at));
    if (at < 0)
        at += (int64_t)l->n;
    if (at < 0 || at >= (int64_t)l->n)
        return pf_jfail(r, "pop(): the list has no such element");
    *out = l->v[at];
    l->n--;
    memmove(&l->v[at], &l->v[at + 1], (l->n - (size_t)at) * sizeof *l->v);
    return pf_jsteps(r, l->n / 8);
}

static pf_status list_count(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < a->v[0].list->n; i++) {
        bool eq;
        PF_TRY(pf_jequal(r, &a->v[0].list->v[i], &a->v[1], &eq));
        n += eq;
    }
    *out = pf_jint(n);
    return PF_OK;
}

static pf_status list_index(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    for (size_t i = 0; i < a->v[0].list->n; i++) {
        bool eq;
        PF_TRY(pf_jequal(r, &a->v[0].list->v[i], &a->v[1], &eq));
        if (eq) {
            *out = pf_jint((int64_t)i);
            return PF_OK;
        }
    }
    return pf_jfail(r, "index(): the element is not there");
}

const struct pf_jfn pf_jlist_methods[] = {
    { "append", "self x", 2, list_append },
    { "count", "self x", 2, list_count },
    { "index", "self x", 2, list_index },
    { "pop", "self i", 1, list_pop },
    { NULL, NULL, 0, NULL },
};

/* ---- The loop ---- */

static pf_status loop_cycle(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out)
{
    if (a->n < 2 || a->n_kw)
        return pf_jfail(r, "cycle() needs the values to go through");
    *out = a->v[1 + a->v[0].loop->at % (a->n - 1)];
    return PF_OK;
}

const struct pf_jfn pf_jloop_methods[] = {
    { "cycle", NULL, 0, loop_cycle },
    { NULL, NULL, 0, NULL },
};

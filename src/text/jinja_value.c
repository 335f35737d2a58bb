/* Values: the arena they live in, strings under construction, lists, dicts, equality and order, and printing as Python
 * prints. Numbers become text and text numbers without the process's locale having a say.
 *
 * Anything that walks a value counts steps for what it visits and, where it recurses, its depth: lists may contain
 * themselves (append) or grow exponentially when written out. */
#include "text/jinja.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/pf_mem.h"

/* ---- Arena ---- */

struct pf_jchunk {
    struct pf_jchunk *next;
};
enum { CHUNK_FIRST = 16 << 10, CHUNK_MOST = 4 << 20, ALIGN = 8 };

static char *arena_grow(struct pf_jarena *a, size_t bytes)
{
    size_t want = a->bytes < CHUNK_FIRST ? CHUNK_FIRST : a->bytes < CHUNK_MOST ? a->bytes : CHUNK_MOST;
    if (bytes > a->limit || a->bytes > a->limit - bytes) {
        a->over = true;
        return NULL;
    }
    if (want < bytes)
        want = bytes;
    struct pf_jchunk *c = pf_alloc(PF_MEM_TEXT, sizeof *c + want);
    if (!c)
        return NULL;
    c->next = a->chunks;
    a->chunks = c;
    a->bytes += want;
    a->at = (char *)(c + 1);
    a->end = a->at + want;
    return a->at;
}

char *pf_jarena_text(struct pf_jarena *a, size_t bytes)
{
    if ((!a->at || (size_t)(a->end - a->at) < bytes) && !arena_grow(a, bytes))
        return NULL;
    char *p = a->at;
    a->at += bytes;
    return p;
}

void *pf_jarena_alloc(struct pf_jarena *a, size_t bytes)
{
    size_t pad = (size_t)(-(uintptr_t)a->at & (ALIGN - 1));
    if (bytes > a->limit) {
        a->over = true;
        return NULL;
    }
    if (a->at && (size_t)(a->end - a->at) >= bytes + pad) {
        a->at += pad;
        return pf_jarena_text(a, bytes);
    }
    if (!arena_grow(a, bytes))
        return NULL;
    return pf_jarena_text(a, bytes);
}

void pf_jarena_free(struct pf_jarena *a)
{
    for (struct pf_jchunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        pf_free(c);
    }
    *a = (struct pf_jarena){ .limit = a->limit };
}

pf_status pf_jarena_fail(const struct pf_jarena *a, int line)
{
    if (a->over)
        return pf_jfail_at(line, "the values take more than %zu MiB of memory", a->limit >> 20);
    return pf_fail(PF_ENOMEM, "no memory for the chat template, at its line %d", line);
}

/* ---- Failing and counting ---- */

static pf_status vfail(int line, const char *fmt, va_list args)
{
    char text[512];
    vsnprintf(text, sizeof text, fmt, args);
    if (line == 0)
        return pf_fail(PF_ETEMPLATE, "chat template's context: %s", text);
    return pf_fail(PF_ETEMPLATE, "template line %d: %s", line, text);
}

pf_status pf_jfail_at(int line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    pf_status st = vfail(line, fmt, args);
    va_end(args);
    return st;
}

pf_status pf_jfail(const struct pf_jrun *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    pf_status st = vfail(r->line, fmt, args);
    va_end(args);
    return st;
}

pf_status pf_jsteps(struct pf_jrun *r, uint64_t n)
{
    enum { ASK_EVERY = 1 << 16 };
    r->steps += n;
    if (r->steps > PF_JMAX_STEPS)
        return pf_jfail(r, "the template takes more than %d steps", (int)PF_JMAX_STEPS);
    if (r->steps < r->ask_at)
        return PF_OK;
    r->ask_at = r->steps + ASK_EVERY;
    return pf_cancel_check(r->cancel);
}

static pf_status bytes_seen(struct pf_jrun *r, size_t n)
{
    return pf_jsteps(r, n / 64);
}

static pf_status too_deep(const struct pf_jrun *r)
{
    return pf_jfail(r, "a value is nested deeper than %d levels", (int)PF_JMAX_NEST);
}

pf_status pf_jalloc(struct pf_jrun *r, size_t bytes, void **out)
{
    *out = pf_jarena_alloc(&r->arena, bytes);
    return *out ? PF_OK : pf_jarena_fail(&r->arena, r->line);
}

/* ---- Output ---- */

static pf_status out_grow(struct pf_jrun *r, size_t need)
{
    size_t cap = r->out_cap ? 2 * r->out_cap : 4096;
    while (cap < need)
        cap *= 2;
    char *p = pf_realloc(PF_MEM_TEXT, r->out, cap);
    if (!p)
        return pf_fail(PF_ENOMEM, "no memory for the %zu bytes that a chat template prints", need);
    r->out = p;
    r->out_cap = cap;
    return PF_OK;
}

pf_status pf_jput(struct pf_jrun *r, const char *p, size_t n)
{
    if (n > PF_JMAX_OUTPUT || r->n_out > PF_JMAX_OUTPUT - n)
        return pf_jfail(r, "the output is longer than %d MiB", (int)PF_JMAX_OUTPUT >> 20);
    PF_TRY(pf_jsteps(r, 1 + n / 64));
    if (r->n_out + n > r->out_cap)
        PF_TRY(out_grow(r, r->n_out + n));
    if (n)
        memcpy(r->out + r->n_out, p, n);
    r->n_out += n;
    return PF_OK;
}

pf_status pf_jputs(struct pf_jrun *r, const char *s)
{
    return pf_jput(r, s, strlen(s));
}

pf_status pf_jtake(struct pf_jrun *r, size_t mark, struct pf_jval *out)
{
    size_t n = r->n_out - mark;
    char *p = pf_jarena_text(&r->arena, n);
    if (!p)
        return pf_jarena_fail(&r->arena, r->line);
    if (n)
        memcpy(p, r->out + mark, n);
    r->n_out = mark;
    *out = pf_jstring(p, n);
    return PF_OK;
}

/* ---- Lists ---- */

pf_status pf_jlist_new(struct pf_jrun *r, size_t cap, struct pf_jlist **out)
{
    void *l, *v;
    if (cap > PF_JMAX_ARENA / sizeof(struct pf_jval))
        return pf_jfail(r, "a list of %zu elements is too long", cap);
    PF_TRY(pf_jalloc(r, sizeof(struct pf_jlist), &l));
    PF_TRY(pf_jalloc(r, cap * sizeof(struct pf_jval), &v));
    *out = l;
    **out = (struct pf_jlist){ .v = v, .cap = cap };
    return PF_OK;
}

pf_status pf_jlist_push(struct pf_jrun *r, struct pf_jlist *l, struct pf_jval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        void *p;
        PF_TRY(pf_jalloc(r, cap * sizeof *l->v, &p));
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *l->v);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return pf_jsteps(r, 1);
}

pf_status pf_jpair(struct pf_jrun *r, struct pf_jval a, struct pf_jval b, struct pf_jval *out)
{
    struct pf_jlist *l;
    PF_TRY(pf_jlist_new(r, 2, &l));
    PF_TRY(pf_jlist_push(r, l, a));
    PF_TRY(pf_jlist_push(r, l, b));
    *out = (struct pf_jval){ .kind = PF_JV_TUPLE, .list = l };
    return PF_OK;
}

static pf_status iter_chars(struct pf_jrun *r, struct pf_jstr s, struct pf_jlist **out)
{
    PF_TRY(pf_jlist_new(r, pf_ju8_count(s), out));
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        size_t n = pf_ju8_len(p, end);
        PF_TRY(pf_jlist_push(r, *out, pf_jstring(p, n)));
        p += n;
    }
    return PF_OK;
}

pf_status pf_jiter(struct pf_jrun *r, const struct pf_jval *v, struct pf_jlist **out)
{
    switch (v->kind) {
    case PF_JV_LIST:
    case PF_JV_TUPLE:
        *out = v->list;
        return PF_OK;
    case PF_JV_UNDEF:
        return pf_jlist_new(r, 0, out);
    case PF_JV_STR:
        return iter_chars(r, v->s, out);
    case PF_JV_DICT:
        PF_TRY(pf_jlist_new(r, v->dict->n, out));
        for (size_t i = 0; i < v->dict->n; i++)
            PF_TRY(pf_jlist_push(r, *out, v->dict->v[i].key));
        return PF_OK;
    default:
        return pf_jfail(r, "%s cannot be iterated over", pf_jtype(v));
    }
}

/* ---- Dicts ---- */

enum { LINEAR = 8 };                /* entries that are searched without an index */

uint32_t pf_jhash_str(const struct pf_tmpl *t, struct pf_jstr s)
{
    return pf_hash_word(&t->hash_key, pf_hash_text(&t->hash_key, s.p, s.n));
}

/* Equal values have equal hashes: numbers by their value as a double. */
static pf_status hash_value(struct pf_jrun *r, const struct pf_jval *v, int depth, uint32_t *out)
{
    PF_TRY(pf_jsteps(r, 1));
    if (depth > PF_JMAX_NEST)
        return too_deep(r);
    if (v->kind == PF_JV_STR) {
        *out = pf_jhash_str(r->t, v->s);
        return bytes_seen(r, v->s.n);
    }
    if (pf_jis_num(v)) {
        double f = pf_jdouble(v) + 0.0;
        uint64_t bits;
        memcpy(&bits, &f, sizeof bits);
        *out = pf_hash_word(&r->t->hash_key, bits);
        return PF_OK;
    }
    if (v->kind == PF_JV_TUPLE) {
        uint32_t h = 11, one = 0;
        for (size_t i = 0; i < v->list->n; i++) {
            PF_TRY(hash_value(r, &v->list->v[i], depth + 1, &one));
            h = pf_hash_word(&r->t->hash_key, (uint64_t)h << 32 | one);
        }
        *out = h;
        return PF_OK;
    }
    if (v->kind != PF_JV_NONE && v->kind != PF_JV_UNDEF)
        return pf_jfail(r, "%s cannot be the key of a dict", pf_jtype(v));
    *out = 3;
    return PF_OK;
}

pf_status pf_jdict_new(struct pf_jrun *r, struct pf_jdict **out)
{
    void *p;
    PF_TRY(pf_jalloc(r, sizeof **out, &p));
    *out = p;
    return PF_OK;
}

static bool same_str(const struct pf_jval *v, struct pf_jstr s)
{
    return v->kind == PF_JV_STR && v->s.n == s.n && memcmp(v->s.p, s.p, s.n) == 0;
}

struct pf_jval *pf_jdict_str(const struct pf_jdict *d, struct pf_jstr key, uint32_t hash)
{
    if (!d->n_index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->v[i].hash == hash && same_str(&d->v[i].key, key))
                return &d->v[i].val;
        return NULL;
    }
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        struct pf_jentry *e = &d->v[d->index[at] - 1];
        if (e->hash == hash && same_str(&e->key, key))
            return &e->val;
    }
    return NULL;
}

static pf_status find_hashed(struct pf_jrun *r, const struct pf_jdict *d, const struct pf_jval *key, uint32_t hash,
                             struct pf_jval **out)
{
    bool eq = false;
    *out = NULL;
    size_t mask = d->n_index - 1;
    for (size_t i = d->n_index ? hash & mask : 0; d->n_index ? d->index[i] != 0 : i < d->n;
         i = d->n_index ? (i + 1) & mask : i + 1) {
        struct pf_jentry *e = &d->v[d->n_index ? d->index[i] - 1 : i];
        PF_TRY(pf_jsteps(r, 1));
        if (e->hash != hash)
            continue;
        PF_TRY(pf_jequal(r, &e->key, key, &eq));
        if (eq) {
            *out = &e->val;
            return PF_OK;
        }
    }
    return PF_OK;
}

pf_status pf_jdict_find(struct pf_jrun *r, const struct pf_jdict *d, const struct pf_jval *key, struct pf_jval **out)
{
    uint32_t hash = 0;
    PF_TRY(hash_value(r, key, 0, &hash));
    return find_hashed(r, d, key, hash, out);
}

static void index_put(struct pf_jdict *d, size_t entry)
{
    size_t at = d->v[entry].hash & (d->n_index - 1);
    while (d->index[at])
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)entry + 1;
}

static pf_status dict_grow(struct pf_jrun *r, struct pf_jdict *d)
{
    size_t cap = d->cap ? 2 * d->cap : 4;
    void *v, *index = NULL;
    PF_TRY(pf_jalloc(r, cap * sizeof *d->v, &v));
    if (cap > LINEAR)
        PF_TRY(pf_jalloc(r, 2 * cap * sizeof *d->index, &index));
    if (d->n)
        memcpy(v, d->v, d->n * sizeof *d->v);
    d->v = v;
    d->cap = cap;
    d->index = index;
    d->n_index = index ? 2 * cap : 0;
    for (size_t i = 0; index && i < d->n; i++)
        index_put(d, i);
    return PF_OK;
}

pf_status pf_jdict_set(struct pf_jrun *r, struct pf_jdict *d, struct pf_jval key, struct pf_jval val)
{
    uint32_t hash = 0;
    struct pf_jval *old;
    PF_TRY(hash_value(r, &key, 0, &hash));
    PF_TRY(find_hashed(r, d, &key, hash, &old));
    if (old) {
        *old = val;
        return PF_OK;
    }
    if (d->n == d->cap)
        PF_TRY(dict_grow(r, d));
    d->v[d->n++] = (struct pf_jentry){ .key = key, .val = val, .hash = hash };
    if (d->n_index)
        index_put(d, d->n - 1);
    return PF_OK;
}

/* ---- What a value is ---- */

bool pf_jtruth(const struct pf_jval *v)
{
    switch (v->kind) {
    case PF_JV_MISSING:
    case PF_JV_UNDEF:
    case PF_JV_NONE:
        return false;
    case PF_JV_BOOL:
        return v->b;
    case PF_JV_INT:
        return v->i != 0;
    case PF_JV_FLOAT:
        return v->f != 0;
    case PF_JV_STR:
        return v->s.n > 0;
    case PF_JV_LIST:
    case PF_JV_TUPLE:
        return v->list->n > 0;
    case PF_JV_DICT:
        return v->dict->n > 0;
    default:
        return true;
    }
}

const char *pf_jtype(const struct pf_jval *v)
{
    static const char *const names[] = {
        [PF_JV_MISSING] = "a missing argument", [PF_JV_UNDEF] = "an undefined value", [PF_JV_NONE] = "none",
        [PF_JV_BOOL] = "a boolean", [PF_JV_INT] = "an integer", [PF_JV_FLOAT] = "a float", [PF_JV_BIG] = "an integer",
        [PF_JV_STR] = "a string", [PF_JV_LIST] = "a list", [PF_JV_TUPLE] = "a tuple", [PF_JV_DICT] = "a dict",
        [PF_JV_NAMESPACE] = "a namespace", [PF_JV_MACRO] = "a macro", [PF_JV_FUNC] = "a function",
        [PF_JV_BOUND] = "a method", [PF_JV_LOOP] = "the loop",
    };
    return names[v->kind];
}

double pf_jdouble(const struct pf_jval *v)
{
    if (v->kind == PF_JV_BIG) {
        double f = 0;
        for (size_t i = 0; i < v->s.n; i++)
            f = v->s.p[i] == '-' ? f : f * 10 + (v->s.p[i] - '0');
        return v->s.p[0] == '-' ? -f : f;
    }
    return v->kind == PF_JV_FLOAT ? v->f : v->kind == PF_JV_BOOL ? v->b : (double)v->i;
}

pf_status pf_jwant_int(const struct pf_jrun *r, const struct pf_jval *v, const char *what, int64_t absent,
                       int64_t *out)
{
    *out = absent;
    if (v->kind == PF_JV_MISSING)
        return PF_OK;
    if (!pf_jis_int(v))
        return pf_jfail(r, "%s needs an integer, not %s", what, pf_jtype(v));
    *out = pf_jint_of(v);
    return PF_OK;
}

static pf_status equal_at(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, int depth, bool *eq);

static pf_status equal_lists(struct pf_jrun *r, const struct pf_jlist *a, const struct pf_jlist *b, int depth, bool *eq)
{
    *eq = a->n == b->n;
    for (size_t i = 0; *eq && i < a->n; i++)
        PF_TRY(equal_at(r, &a->v[i], &b->v[i], depth + 1, eq));
    return PF_OK;
}

static pf_status equal_dicts(struct pf_jrun *r, const struct pf_jdict *a, const struct pf_jdict *b, int depth, bool *eq)
{
    *eq = a->n == b->n;
    for (size_t i = 0; *eq && i < a->n; i++) {
        struct pf_jval *other;
        PF_TRY(find_hashed(r, b, &a->v[i].key, a->v[i].hash, &other));
        *eq = other != NULL;
        if (other)
            PF_TRY(equal_at(r, &a->v[i].val, other, depth + 1, eq));
    }
    return PF_OK;
}

static pf_status equal_at(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, int depth, bool *eq)
{
    PF_TRY(pf_jsteps(r, 1));
    if (depth > PF_JMAX_NEST)
        return too_deep(r);
    if (pf_jis_num(a) && pf_jis_num(b)) {
        *eq = pf_jis_int(a) && pf_jis_int(b) ? pf_jint_of(a) == pf_jint_of(b) : pf_jdouble(a) == pf_jdouble(b);
        return PF_OK;
    }
    *eq = false;
    if (a->kind != b->kind)
        return PF_OK;
    switch (a->kind) {
    case PF_JV_UNDEF:
    case PF_JV_NONE:
        *eq = true;
        return PF_OK;
    case PF_JV_STR:
        *eq = same_str(a, b->s);
        return bytes_seen(r, a->s.n);
    case PF_JV_LIST:
    case PF_JV_TUPLE:
        return equal_lists(r, a->list, b->list, depth, eq);
    case PF_JV_DICT:
        return equal_dicts(r, a->dict, b->dict, depth, eq);
    case PF_JV_NAMESPACE:
        *eq = a->dict == b->dict;
        return PF_OK;
    default:
        *eq = a->macro == b->macro;     /* the same function, method, macro or loop */
        return PF_OK;
    }
}

pf_status pf_jequal(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, bool *eq)
{
    return equal_at(r, a, b, 0, eq);
}

/* UTF-8 sorts by code point when its bytes are compared. */
static int order_strings(struct pf_jstr a, struct pf_jstr b)
{
    int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static pf_status order_at(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, int depth, int *cmp)
{
    PF_TRY(pf_jsteps(r, 1));
    if (depth > PF_JMAX_NEST)
        return too_deep(r);
    if (pf_jis_int(a) && pf_jis_int(b)) {
        *cmp = (pf_jint_of(a) > pf_jint_of(b)) - (pf_jint_of(a) < pf_jint_of(b));
        return PF_OK;
    }
    if (pf_jis_num(a) && pf_jis_num(b)) {
        double x = pf_jdouble(a), y = pf_jdouble(b);
        *cmp = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);    /* 2: neither less, equal nor greater */
        return PF_OK;
    }
    if (a->kind == PF_JV_STR && b->kind == PF_JV_STR) {
        *cmp = order_strings(a->s, b->s);
        return bytes_seen(r, a->s.n);
    }
    if (!pf_jis_list(a) || a->kind != b->kind)
        return pf_jfail(r, "%s and %s have no order", pf_jtype(a), pf_jtype(b));
    for (size_t i = 0; i < a->list->n && i < b->list->n; i++) {
        bool eq;
        PF_TRY(equal_at(r, &a->list->v[i], &b->list->v[i], depth + 1, &eq));
        if (!eq)
            return order_at(r, &a->list->v[i], &b->list->v[i], depth + 1, cmp);
    }
    *cmp = (a->list->n > b->list->n) - (a->list->n < b->list->n);
    return PF_OK;
}

pf_status pf_jorder(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, int *cmp)
{
    return order_at(r, a, b, 0, cmp);
}

/* ---- Numbers and text ---- */

/* digits * 10^exp10, through strtod in a form that has no decimal point and so no locale. */
static double scale10(const char *digits, int n, int exp10)
{
    char buf[48];
    snprintf(buf, sizeof buf, "%.*se%d", n, digits, exp10);
    return strtod(buf, NULL);
}

/* The fewest digits that read back as f > 0; returns how many, and the decimal exponent of the first. */
static int shortest(double f, char digits[20], int *exp10)
{
    for (int n = 1;; n++) {
        char buf[48];
        snprintf(buf, sizeof buf, "%.*e", n - 1, f);
        int m = 0;
        const char *p = buf;
        for (; *p && *p != 'e'; p++)
            if (*p >= '0' && *p <= '9')
                digits[m++] = *p;
        *exp10 = atoi(p + 1);
        if (n == 17 || scale10(digits, m, *exp10 - m + 1) == f)
            return m;
    }
}

size_t pf_jfloat_text(double f, char buf[PF_JFLOAT_BYTES])
{
    char digits[20];
    char *p = buf;
    int e = 0, n = 1;
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(buf, PF_JFLOAT_BYTES, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    if (signbit(f))
        *p++ = '-';
    digits[0] = '0';
    if (f != 0)
        n = shortest(fabs(f), digits, &e);
    if (e < -4 || e >= 16) {
        *p++ = digits[0];
        if (n > 1) {
            *p++ = '.';
            memcpy(p, digits + 1, (size_t)n - 1);
            p += n - 1;
        }
        return (size_t)(p - buf) + (size_t)snprintf(p, 8, "e%c%02d", e < 0 ? '-' : '+', abs(e));
    }
    for (int i = e < 0 ? e : 0; i < n || i <= e + 1; i++) {
        if (i == e + 1)
            *p++ = '.';
        *p++ = i >= 0 && i < n ? digits[i] : '0';
    }
    return (size_t)(p - buf);
}

enum { BIG_DIGITS = 64 };           /* longer integers become floats */

/* Passes digits; the first 40 significant ones are kept (a double needs 17), the rest only count in *exp10. */
static const char *take_digits(const char *p, const char *end, char kept[40], int *n, int64_t *exp10, bool fraction)
{
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        if (*n < 40 && (*n || *p != '0')) {
            kept[(*n)++] = *p;
            *exp10 -= fraction;
        } else {
            *exp10 += *n ? !fraction : -(int64_t)fraction;
        }
    }
    return p;
}

static void integer_value(struct pf_jstr s, struct pf_jval *out)
{
    bool neg = s.p[0] == '-';
    int64_t i = 0;
    for (size_t k = s.p[0] == '-' || s.p[0] == '+'; k < s.n; k++)
        if (__builtin_mul_overflow(i, 10, &i) || __builtin_sub_overflow(i, s.p[k] - '0', &i)) {
            *out = (struct pf_jval){ .kind = PF_JV_BIG, .s = s };
            return;
        }
    if (!neg && i == INT64_MIN)
        *out = (struct pf_jval){ .kind = PF_JV_BIG, .s = s };
    else
        *out = pf_jint(neg ? i : -i);
}

bool pf_jnum_parse(struct pf_jstr s, struct pf_jval *out)
{
    const char *p = s.p, *end = s.p + s.n;
    char kept[40];
    int n = 0;
    int64_t exp10 = 0, e = 0;
    bool neg = p < end && *p == '-';
    p += p < end && (*p == '-' || *p == '+');
    const char *whole = p;
    p = take_digits(p, end, kept, &n, &exp10, false);
    if (p == whole)
        return false;
    if (p == end && s.n <= BIG_DIGITS) {
        integer_value(s, out);
        return true;
    }
    if (p < end && *p == '.') {
        const char *part = ++p;
        p = take_digits(p, end, kept, &n, &exp10, true);
        if (p == part)
            return false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        bool down = ++p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        const char *exp = p;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            e = e < 100000000 ? e * 10 + (*p - '0') : e;
        if (p == exp)
            return false;
        e = down ? -e : e;
    }
    e += exp10;
    e = e > 100000 ? 100000 : e < -100000 ? -100000 : e;
    double f = n ? scale10(kept, n, (int)e) : 0;
    *out = pf_jfloat(neg ? -f : f);
    return p == end;
}

/* ---- UTF-8 ---- */

size_t pf_ju8_count(struct pf_jstr s)
{
    size_t n = 0;
    for (const char *p = s.p, *end = s.p + s.n; p < end; p += pf_ju8_len(p, end))
        n++;
    return n;
}

bool pf_jspace(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool strips(const char *p, size_t n, const struct pf_jstr *chars)
{
    if (!chars)
        return pf_jspace(pf_ju8_decode(p, n));
    for (const char *q = chars->p, *end = chars->p + chars->n; q < end; q += pf_ju8_len(q, end))
        if (pf_ju8_len(q, end) == n && memcmp(p, q, n) == 0)
            return true;
    return false;
}

struct pf_jstr pf_jstrip(struct pf_jstr s, const struct pf_jstr *chars, int sides)
{
    const char *p = s.p, *end = s.p + s.n;
    while ((sides & PF_JSTRIP_LEFT) && p < end && strips(p, pf_ju8_len(p, end), chars))
        p += pf_ju8_len(p, end);
    while ((sides & PF_JSTRIP_RIGHT) && p < end) {
        const char *last = end - 1;
        while (last > p && end - last < 4 && ((unsigned char)*last & 0xC0) == 0x80)
            last--;
        if (last + pf_ju8_len(last, end) != end)
            last = end - 1;
        if (!strips(last, (size_t)(end - last), chars))
            break;
        end = last;
    }
    return (struct pf_jstr){ p, (size_t)(end - p) };
}

pf_status pf_jcase(struct pf_jrun *r, struct pf_jstr s, bool upper, struct pf_jval *out)
{
    size_t mark = r->n_out;
    char buf[64];
    size_t n = 0;
    PF_TRY(bytes_seen(r, 4 * s.n));
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        uint32_t c;
        size_t len = pf_utf8_next(p, (size_t)(end - p), &c);
        if (n + 4 > sizeof buf) {
            PF_TRY(pf_jput(r, buf, n));
            n = 0;
        }
        if (pf_utf8_is_bad(len, c))
            buf[n++] = *p;
        else if (c == 0xDF && upper)
            buf[n++] = 'S', buf[n++] = 'S';
        else
            n += pf_utf8_put(buf + n, (uint32_t)(upper ? utf8proc_toupper((int32_t)c) : utf8proc_tolower((int32_t)c)));
        p += len;
    }
    PF_TRY(pf_jput(r, buf, n));
    return pf_jtake(r, mark, out);
}

/* ---- Printing ---- */

/* Characters that repr() writes as an escape: controls, separators, invisible ones. */
static bool printable(uint32_t c)
{
    return c >= 0x20 && c != 0x7F && !(c >= 0x80 && c <= 0xA0) && c != 0xAD && !(c > 0x20 && pf_jspace(c)) &&
           !(c >= 0x200B && c <= 0x200F) && !(c >= 0x202A && c <= 0x202E) && !(c >= 0x2060 && c <= 0x206F) &&
           !(c >= 0xD800 && c <= 0xF8FF) && c != 0xFEFF && !(c >= 0xFFF0 && c <= 0xFFFB) && (c & 0xFFFE) != 0xFFFE &&
           c < 0xE0000;
}

static pf_status repr_char(struct pf_jrun *r, const char *p, size_t n, char quote)
{
    char buf[16];
    uint32_t c = pf_ju8_decode(p, n);
    if (c == (uint32_t)quote || c == '\\')
        snprintf(buf, sizeof buf, "\\%c", (int)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(buf, sizeof buf, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (printable(c))
        return pf_jput(r, p, n);
    else
        snprintf(buf, sizeof buf, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    return pf_jputs(r, buf);
}

static pf_status repr_string(struct pf_jrun *r, struct pf_jstr s)
{
    char quote = s.n && memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'';
    PF_TRY(pf_jsteps(r, s.n / 8));
    PF_TRY(pf_jput(r, &quote, 1));
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        size_t n = pf_ju8_len(p, end);
        PF_TRY(repr_char(r, p, n, quote));
        p += n;
    }
    return pf_jput(r, &quote, 1);
}

static pf_status repr_list(struct pf_jrun *r, const struct pf_jval *v, int depth)
{
    bool tuple = v->kind == PF_JV_TUPLE;
    PF_TRY(pf_jputs(r, tuple ? "(" : "["));
    for (size_t i = 0; i < v->list->n; i++) {
        PF_TRY(pf_jputs(r, i ? ", " : ""));
        PF_TRY(pf_jrepr(r, &v->list->v[i], depth + 1));
    }
    return pf_jputs(r, tuple ? (v->list->n == 1 ? ",)" : ")") : "]");
}

static pf_status repr_dict(struct pf_jrun *r, const struct pf_jdict *d, int depth)
{
    PF_TRY(pf_jputs(r, "{"));
    for (size_t i = 0; i < d->n; i++) {
        PF_TRY(pf_jputs(r, i ? ", " : ""));
        PF_TRY(pf_jrepr(r, &d->v[i].key, depth + 1));
        PF_TRY(pf_jputs(r, ": "));
        PF_TRY(pf_jrepr(r, &d->v[i].val, depth + 1));
    }
    return pf_jputs(r, "}");
}

pf_status pf_jrepr(struct pf_jrun *r, const struct pf_jval *v, int depth)
{
    char buf[PF_JFLOAT_BYTES];
    PF_TRY(pf_jsteps(r, 1));
    if (depth > PF_JMAX_NEST)
        return too_deep(r);
    switch (v->kind) {
    case PF_JV_NONE:
        return pf_jputs(r, "None");
    case PF_JV_BOOL:
        return pf_jputs(r, v->b ? "True" : "False");
    case PF_JV_INT:
        return pf_jput(r, buf, (size_t)snprintf(buf, sizeof buf, "%lld", (long long)v->i));
    case PF_JV_FLOAT:
        return pf_jput(r, buf, pf_jfloat_text(v->f, buf));
    case PF_JV_BIG:
        return pf_jput(r, v->s.p, v->s.n);
    case PF_JV_STR:
        return repr_string(r, v->s);
    case PF_JV_LIST:
    case PF_JV_TUPLE:
        return repr_list(r, v, depth);
    case PF_JV_DICT:
    case PF_JV_NAMESPACE:
        return repr_dict(r, v->dict, depth);
    case PF_JV_UNDEF:
        return pf_jputs(r, "Undefined");
    default:
        PF_TRY(pf_jputs(r, "<"));
        PF_TRY(pf_jputs(r, pf_jtype(v)));
        return pf_jputs(r, ">");
    }
}

pf_status pf_jprint(struct pf_jrun *r, const struct pf_jval *v)
{
    if (v->kind == PF_JV_STR)
        return pf_jput(r, v->s.p, v->s.n);
    return v->kind == PF_JV_UNDEF ? PF_OK : pf_jrepr(r, v, 0);
}

pf_status pf_jtext(struct pf_jrun *r, const struct pf_jval *v, struct pf_jval *out)
{
    if (v->kind == PF_JV_STR) {
        *out = *v;
        return PF_OK;
    }
    size_t mark = r->n_out;
    PF_TRY(pf_jprint(r, v));
    return pf_jtake(r, mark, out);
}

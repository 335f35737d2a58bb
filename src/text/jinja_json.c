/* JSON in and out. The reader is strict, except that a string may hold bytes that are not UTF-8; 1 and 1.0 stay what
 * they are, integers beyond 64 bits keep their digits. The writer is Python's json.dumps. */
#include "text/jinja.h"

#include <math.h>
#include <stdio.h>

struct reader {
    struct pf_jrun *r;
    const char *start, *at, *end;
    int depth;
};

static pf_status bad(const struct reader *rd, const char *what)
{
    return pf_jfail(rd->r, "JSON at offset %zu: %s", (size_t)(rd->at - rd->start), what);
}

static void skip_space(struct reader *rd)
{
    while (rd->at < rd->end && (*rd->at == ' ' || *rd->at == '\n' || *rd->at == '\t' || *rd->at == '\r'))
        rd->at++;
}

static bool skip(struct reader *rd, char c)
{
    bool is = rd->at < rd->end && *rd->at == c;
    rd->at += is;
    return is;
}

/* The four hex digits after "\u", or -1. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t c = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char d = p[i] >= '0' && p[i] <= '9' ? p[i] - '0' : (char)((p[i] | 32) - 'a' + 10);
        if (d < 0 || d > 15 || ((p[i] < '0' || p[i] > '9') && d < 10))
            return -1;
        c = c << 4 | d;
    }
    return c;
}

/* After "\u": one code unit, or two when they are a surrogate pair. A lone surrogate becomes U+FFFD. */
static pf_status read_unicode(struct reader *rd, char **dst)
{
    int32_t c = hex4(rd->at, rd->end);
    if (c < 0)
        return bad(rd, "\\u needs four hex digits");
    rd->at += 4;
    if (c >= 0xD800 && c < 0xDC00 && rd->end - rd->at >= 2 && rd->at[0] == '\\' && rd->at[1] == 'u') {
        int32_t low = hex4(rd->at + 2, rd->end);
        if (low >= 0xDC00 && low < 0xE000) {
            rd->at += 6;
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    *dst += pf_utf8_put(*dst, c >= 0xD800 && c < 0xE000 ? 0xFFFD : (uint32_t)c);
    return PF_OK;
}

static pf_status read_escape(struct reader *rd, char **dst)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = rd->at < rd->end ? *rd->at : 0;
    const char *simple = c ? strchr(from, c) : NULL;
    if (!simple && c != 'u')
        return bad(rd, "unknown escape");
    rd->at++;
    if (!simple)
        return read_unicode(rd, dst);
    *(*dst)++ = to[simple - from];
    return PF_OK;
}

/* After the opening quote. Without escapes the string is borrowed from the text. */
static pf_status read_string(struct reader *rd, struct pf_jval *out)
{
    const char *from = rd->at, *p = from;
    while (p < rd->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    if (p < rd->end && *p == '"') {
        *out = pf_jstring(from, (size_t)(p - from));
        rd->at = p + 1;
        return PF_OK;
    }
    const char *close = p;
    while (close < rd->end && *close != '"')
        close += *close == '\\' && close + 1 < rd->end ? 2 : 1;
    char *text = pf_jarena_text(&rd->r->arena, (size_t)(close - from)), *dst = text;    /* an escape never grows */
    if (!text)
        return pf_jarena_fail(&rd->r->arena, rd->r->line);
    while (rd->at < rd->end && *rd->at != '"') {
        if ((unsigned char)*rd->at < 0x20)
            return bad(rd, "control character in a string");
        if (*rd->at != '\\') {
            *dst++ = *rd->at++;
            continue;
        }
        rd->at++;
        PF_TRY(read_escape(rd, &dst));
    }
    if (!skip(rd, '"'))
        return bad(rd, "a string is not closed");
    *out = pf_jstring(text, (size_t)(dst - text));
    return PF_OK;
}

static pf_status read_number(struct reader *rd, struct pf_jval *out)
{
    const char *p = rd->at;
    while (p < rd->end && ((*p >= '0' && *p <= '9') || *p == '-' || *p == '+' || *p == '.' || *p == 'e' || *p == 'E'))
        p++;
    const char *digit = rd->at + (*rd->at == '-');
    struct pf_jstr s = { rd->at, (size_t)(p - rd->at) };
    bool padded = digit + 1 < p && digit[0] == '0' && digit[1] >= '0' && digit[1] <= '9';
    if (padded || *rd->at == '+' || !pf_jnum_parse(s, out))
        return bad(rd, "not a number");
    rd->at = p;
    return PF_OK;
}

static pf_status read_value(struct reader *rd, struct pf_jval *out);

static pf_status read_array(struct reader *rd, struct pf_jval *out)
{
    struct pf_jlist *l;
    struct pf_jval v;
    PF_TRY(pf_jlist_new(rd->r, 0, &l));
    *out = pf_jlistval(l);
    skip_space(rd);
    if (skip(rd, ']'))
        return PF_OK;
    do {
        PF_TRY(read_value(rd, &v));
        PF_TRY(pf_jlist_push(rd->r, l, v));
    } while (skip(rd, ','));
    return skip(rd, ']') ? PF_OK : bad(rd, "',' or ']' is needed");
}

static pf_status read_object(struct reader *rd, struct pf_jval *out)
{
    struct pf_jdict *d;
    struct pf_jval key, v;
    PF_TRY(pf_jdict_new(rd->r, &d));
    *out = (struct pf_jval){ .kind = PF_JV_DICT, .dict = d };
    skip_space(rd);
    if (skip(rd, '}'))
        return PF_OK;
    do {
        skip_space(rd);
        if (!skip(rd, '"'))
            return bad(rd, "a key is needed");
        PF_TRY(read_string(rd, &key));
        skip_space(rd);
        if (!skip(rd, ':'))
            return bad(rd, "':' is needed");
        PF_TRY(read_value(rd, &v));
        PF_TRY(pf_jdict_set(rd->r, d, key, v));
    } while (skip(rd, ','));
    return skip(rd, '}') ? PF_OK : bad(rd, "',' or '}' is needed");
}

static pf_status read_word(struct reader *rd, struct pf_jval *out)
{
    static const struct {
        const char *text;
        struct pf_jval val;
    } words[] = {
        { "true", { .kind = PF_JV_BOOL, .b = true } },
        { "false", { .kind = PF_JV_BOOL, .b = false } },
        { "null", { .kind = PF_JV_NONE } },
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].text);
        if ((size_t)(rd->end - rd->at) >= n && memcmp(rd->at, words[i].text, n) == 0) {
            rd->at += n;
            *out = words[i].val;
            return PF_OK;
        }
    }
    return bad(rd, "a value is needed");
}

/* One value and the white space around it. */
static pf_status read_value(struct reader *rd, struct pf_jval *out)
{
    if (++rd->depth > PF_JMAX_NEST)
        return bad(rd, "nested too deep");
    skip_space(rd);
    char c = rd->at < rd->end ? *rd->at : 0;
    if (c == '-' || (c >= '0' && c <= '9'))
        PF_TRY(read_number(rd, out));
    else if (skip(rd, '"'))
        PF_TRY(read_string(rd, out));
    else if (skip(rd, '['))
        PF_TRY(read_array(rd, out));
    else if (skip(rd, '{'))
        PF_TRY(read_object(rd, out));
    else
        PF_TRY(read_word(rd, out));
    skip_space(rd);
    rd->depth--;
    return PF_OK;
}

pf_status pf_jjson_read(struct pf_jrun *r, const char *p, size_t n, struct pf_jval *out)
{
    struct reader rd = { .r = r, .start = p, .at = p, .end = p + n };
    PF_TRY(pf_jsteps(r, n / 64));
    PF_TRY(read_value(&rd, out));
    return rd.at == rd.end ? PF_OK : bad(&rd, "text after the value");
}

/* ---- Writing ---- */

static pf_status write_escaped(struct pf_jrun *r, uint32_t c)
{
    char buf[16];
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *simple = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (simple)
        snprintf(buf, sizeof buf, "\\%c", to[simple - from]);
    else if (c < 0x10000)
        snprintf(buf, sizeof buf, "\\u%04x", c);
    else
        snprintf(buf, sizeof buf, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
    return pf_jputs(r, buf);
}

static pf_status write_string(struct pf_jrun *r, struct pf_jstr s, bool ascii)
{
    PF_TRY(pf_jputs(r, "\""));
    const char *plain = s.p, *end = s.p + s.n;
    for (const char *p = s.p; p < end;) {
        unsigned char c = (unsigned char)*p;
        size_t n = pf_ju8_len(p, end);
        if (c < 0x20 || c == '"' || c == '\\' || (ascii && c >= 0x80)) {
            PF_TRY(pf_jput(r, plain, (size_t)(p - plain)));
            PF_TRY(write_escaped(r, pf_ju8_decode(p, n)));
            plain = p + n;
        }
        p += n;
    }
    PF_TRY(pf_jput(r, plain, (size_t)(end - plain)));
    return pf_jputs(r, "\"");
}

static pf_status write_newline(struct pf_jrun *r, const struct pf_jjson_style *s, int depth)
{
    static const char blanks[] = "                                ";
    if (!s->indented)
        return PF_OK;
    PF_TRY(pf_jputs(r, "\n"));
    for (int64_t n = s->indent * depth, part; n > 0; n -= part) {
        part = n < (int64_t)sizeof blanks - 1 ? n : (int64_t)sizeof blanks - 1;
        PF_TRY(pf_jput(r, blanks, (size_t)part));
    }
    return pf_jsteps(r, 1);
}

static pf_status write_separator(struct pf_jrun *r, const struct pf_jjson_style *s, bool first, int depth)
{
    if (!first)
        PF_TRY(pf_jput(r, s->comma.p, s->comma.n));
    return write_newline(r, s, depth);
}

static pf_status write_list(struct pf_jrun *r, const struct pf_jlist *l, const struct pf_jjson_style *s, int depth)
{
    if (!l->n)
        return pf_jputs(r, "[]");
    PF_TRY(pf_jputs(r, "["));
    for (size_t i = 0; i < l->n; i++) {
        PF_TRY(write_separator(r, s, i == 0, depth + 1));
        PF_TRY(pf_jjson_write(r, &l->v[i], s, depth + 1));
    }
    PF_TRY(write_newline(r, s, depth));
    return pf_jputs(r, "]");
}

static pf_status write_float(struct pf_jrun *r, double f)
{
    char buf[PF_JFLOAT_BYTES];
    if (isnan(f) || isinf(f))
        return pf_jputs(r, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    return pf_jput(r, buf, pf_jfloat_text(f, buf));
}

static pf_status write_scalar(struct pf_jrun *r, const struct pf_jval *v, bool ascii)
{
    switch (v->kind) {
    case PF_JV_NONE:
        return pf_jputs(r, "null");
    case PF_JV_BOOL:
        return pf_jputs(r, v->b ? "true" : "false");
    case PF_JV_INT:
    case PF_JV_BIG:
        return pf_jprint(r, v);
    case PF_JV_FLOAT:
        return write_float(r, v->f);
    case PF_JV_STR:
        return write_string(r, v->s, ascii);
    default:
        return pf_jfail(r, "%s cannot be written as JSON", pf_jtype(v));
    }
}

/* Keys that are no strings are written as the strings of their JSON forms. */
static pf_status write_key(struct pf_jrun *r, const struct pf_jval *key, bool ascii)
{
    if (key->kind == PF_JV_STR)
        return write_string(r, key->s, ascii);
    PF_TRY(pf_jputs(r, "\""));
    PF_TRY(write_scalar(r, key, ascii));
    return pf_jputs(r, "\"");
}

/* Entry numbers in the order of their keys: a merge of runs that doubles them each round. */
static pf_status sorted_entries(struct pf_jrun *r, const struct pf_jdict *d, size_t **out)
{
    void *a, *b;
    PF_TRY(pf_jalloc(r, d->n * sizeof(size_t), &a));
    PF_TRY(pf_jalloc(r, d->n * sizeof(size_t), &b));
    size_t *from = a, *to = b;
    for (size_t i = 0; i < d->n; i++)
        from[i] = i;
    for (size_t run = 1; run < d->n; run *= 2) {
        for (size_t lo = 0, k = 0; lo < d->n; lo += 2 * run) {
            size_t i = lo, mid = lo + run < d->n ? lo + run : d->n, j = mid, hi = mid + run < d->n ? mid + run : d->n;
            while (i < mid || j < hi) {
                int cmp = j >= hi ? -1 : 1;
                if (i < mid && j < hi)
                    PF_TRY(pf_jorder(r, &d->v[from[i]].key, &d->v[from[j]].key, &cmp));
                to[k++] = cmp <= 0 ? from[i++] : from[j++];
            }
        }
        size_t *t = from;
        from = to;
        to = t;
    }
    *out = from;
    return PF_OK;
}

static pf_status write_dict(struct pf_jrun *r, const struct pf_jdict *d, const struct pf_jjson_style *s, int depth)
{
    size_t *order = NULL;
    if (!d->n)
        return pf_jputs(r, "{}");
    if (s->sort_keys)
        PF_TRY(sorted_entries(r, d, &order));
    PF_TRY(pf_jputs(r, "{"));
    for (size_t i = 0; i < d->n; i++) {
        const struct pf_jentry *e = &d->v[order ? order[i] : i];
        PF_TRY(write_separator(r, s, i == 0, depth + 1));
        PF_TRY(write_key(r, &e->key, s->ascii));
        PF_TRY(pf_jput(r, s->colon.p, s->colon.n));
        PF_TRY(pf_jjson_write(r, &e->val, s, depth + 1));
    }
    PF_TRY(write_newline(r, s, depth));
    return pf_jputs(r, "}");
}

pf_status pf_jjson_write(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jjson_style *s, int depth)
{
    PF_TRY(pf_jsteps(r, 1));
    if (depth > PF_JMAX_NEST)
        return pf_jfail(r, "a value is nested deeper than %d levels", (int)PF_JMAX_NEST);
    if (pf_jis_list(v))
        return write_list(r, v->list, s, depth);
    if (v->kind == PF_JV_DICT)
        return write_dict(r, v->dict, s, depth);
    return write_scalar(r, v, s->ascii);
}

/* Regular expressions: the part of ECMA-262's that is regular.
 *
 *     alternatives a|b    groups ( ) (?: ) (?<name> )    . and classes [a-z] [^a-z]    * + ? {m} {m,} {m,n}, lazy ones
 * too
 *     \d \D \w \W \s \S    \t \n \v \f \r \0    \xHH \uHHHH \u{H...}    \ before punctuation
 *     ^ and $ at the ends of the expression, of its alternatives, or of a group that is all of it
 *
 * Refused: references to groups, looking ahead or behind, \b, \B, \p, \P, ^ and $ elsewhere. */
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "languages/languages.h"
#include "languages/pattern.h"

struct regex {
    struct pf_reader rd;
    struct pf_expr   x;
};

static pf_status choices(struct regex *g, int32_t *node);

/* ---- Characters -------------------------------------------------------------------------------------------------- */

static void add_chars(struct pf_expr *x, const struct pf_chars *v, size_t n, bool negated)
{
    uint32_t lo = 0;
    for (size_t i = 0; i < n; i++) {
        if (!negated)
            pf_expr_add_chars(x, v[i].lo, v[i].hi);
        else if (lo < v[i].lo)
            pf_expr_add_chars(x, lo, v[i].lo - 1);
        lo = v[i].hi + 1;
    }
    if (negated)
        pf_expr_add_chars(x, lo, PF_MAX_CODE_POINT);
}

/* \d and its kind; false: c is none of them. */
static bool add_class(struct pf_expr *x, char c)
{
    static const struct pf_chars digit[] = { { '0', '9' } };
    static const struct pf_chars word[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
    static const struct pf_chars space[] = { { '\t', '\r' }, { ' ', ' ' }, { 0xA0, 0xA0 }, { 0x1680, 0x1680 },
        { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F }, { 0x3000, 0x3000 },
        { 0xFEFF, 0xFEFF } };
    switch (c) {
    case 'd': case 'D': add_chars(x, digit, 1, c == 'D'); return true;
    case 'w': case 'W': add_chars(x, word, 4, c == 'W'); return true;
    case 's': case 'S': add_chars(x, space, 10, c == 'S'); return true;
    }
    return false;
}

static pf_status long_hex(struct pf_reader *rd, uint32_t *c)
{
    const char *close = memchr(rd->p, '}', (size_t)(rd->end - rd->p));
    rd->p++;
    if (!close || close == rd->p || close - rd->p > 6)
        return pf_reader_fail(rd, "\\u{...} wants one to six hexadecimal digits");
    PF_TRY(pf_reader_hex(rd, (int)(close - rd->p), c));
    rd->p++;
    return PF_OK;
}

/* After a backslash: a character. Two \u that are a surrogate pair are one. */
static pf_status escape(struct regex *g, uint32_t *c)
{
    static const char from[] = "tnvfr0", to[] = "\t\n\v\f\r";
    struct pf_reader *rd = &g->rd;
    char e = rd->p < rd->end ? *rd->p : 0;
    const char *known = e ? strchr(from, e) : NULL;
    if (e == 'u' && rd->end - rd->p > 1 && rd->p[1] == '{') {
        rd->p++;
        return long_hex(rd, c);
    }
    if (e == 'x' || e == 'u') {
        rd->p++;
        PF_TRY(pf_reader_hex(rd, e == 'x' ? 2 : 4, c));
        uint32_t low;
        if (*c >= 0xD800 && *c < 0xDC00 && rd->end - rd->p >= 6 && rd->p[0] == '\\' && rd->p[1] == 'u') {
            rd->p += 2;
            PF_TRY(pf_reader_hex(rd, 4, &low));
            *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
        }
        return *c > PF_MAX_CODE_POINT || (*c >= 0xD800 && *c < 0xE000) ? pf_reader_fail(rd, "half a surrogate pair")
                                                                       : PF_OK;
    }
    if (e == '0' && rd->end - rd->p > 1 && rd->p[1] >= '0' && rd->p[1] <= '9')
        return pf_reader_fail(rd, "octal numbers are not known");
    if (!known && ((e >= '0' && e <= '9') || (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || e == 0))
        return pf_reader_fail(rd, "this escape is not known (references, \\b and \\p are not supported)");
    if (!known)
        return pf_reader_char(rd, c);
    *c = (uint32_t)to[known - from];
    rd->p++;
    return PF_OK;
}

/* One end of a range within [ ], or a class such as \d, which is added at once. */
static pf_status class_char(void *ctx, uint32_t *c, bool *is_class)
{
    struct regex *g = ctx;
    struct pf_reader *rd = &g->rd;
    *is_class = false;
    if (rd->p == rd->end || *rd->p != '\\')
        return pf_reader_char(rd, c);
    rd->p++;
    if (rd->p < rd->end && *rd->p == 'b') {
        *c = '\b';
        rd->p++;
        return PF_OK;
    }
    *is_class = rd->p < rd->end && add_class(&g->x, *rd->p);
    if (!*is_class)
        return escape(g, c);
    rd->p++;
    return PF_OK;
}

/* ---- Structure --------------------------------------------------------------------------------------------------- */

static pf_status group(struct regex *g, int32_t *node)
{
    struct pf_reader *rd = &g->rd;
    if (rd->depth >= PF_GRAMMAR_MAX_NEST)
        return pf_reader_fail(rd, "groups are nested too deep");
    rd->depth++;
    rd->p++;
    if (rd->p < rd->end && *rd->p == '?') {
        const char *close = memchr(rd->p, '>', (size_t)(rd->end - rd->p));
        bool plain = rd->end - rd->p >= 2 && rd->p[1] == ':';
        bool named = rd->end - rd->p >= 3 && rd->p[1] == '<' && rd->p[2] != '=' && rd->p[2] != '!' && close;
        if (!plain && !named)
            return pf_reader_fail(rd, "looking ahead or behind is not supported");
        rd->p = plain ? rd->p + 2 : close + 1;
    }
    PF_TRY(choices(g, node));
    rd->depth--;
    if (rd->p == rd->end || *rd->p != ')')
        return pf_reader_fail(rd, "the closing ) is missing");
    rd->p++;
    return PF_OK;
}

static pf_status element(struct regex *g, int32_t *node)
{
    struct pf_reader *rd = &g->rd;
    size_t first = g->x.n_chars;
    uint32_t c;
    switch (*rd->p) {
    case '(': return group(g, node);
    case '[': return pf_expr_read_class(&g->x, rd, class_char, g, node);
    case '^': case '$':
        *node = pf_expr_node(&g->x, *rd->p++ == '^' ? PF_EXPR_BEGIN : PF_EXPR_END, -1);
        return PF_OK;
    case '.':
        rd->p++;
        pf_expr_add_chars(&g->x, '\n', '\n');
        pf_expr_add_chars(&g->x, '\r', '\r');
        pf_expr_add_chars(&g->x, 0x2028, 0x2029);
        *node = pf_expr_set(&g->x, first, true);
        return PF_OK;
    case '*': case '+': case '?': case '{':
        return pf_reader_fail(rd, "there is nothing to repeat");
    case '\\':
        rd->p++;
        if (rd->p < rd->end && add_class(&g->x, *rd->p)) {
            rd->p++;
            *node = pf_expr_set(&g->x, first, false);
            return PF_OK;
        }
        PF_TRY(escape(g, &c));
        break;
    default:
        PF_TRY(pf_reader_char(rd, &c));
    }
    pf_expr_add_chars(&g->x, c, c);
    *node = pf_expr_set(&g->x, first, false);
    return PF_OK;
}

static pf_status repetition(struct regex *g, int32_t *node)
{
    const struct pf_reader *rd = &g->rd;
    bool anchor = g->x.status == PF_OK && g->x.nodes[*node].kind >= PF_EXPR_BEGIN;
    if (anchor && rd->p < rd->end && *rd->p && strchr("*+?{", *rd->p))
        return pf_reader_fail(rd, "^ and $ cannot be repeated");
    return pf_expr_read_repetition(&g->x, &g->rd, true, node);
}

static pf_status choices(struct regex *g, int32_t *node)
{
    struct pf_reader *rd = &g->rd;
    int32_t last_choice = -1;
    *node = pf_expr_node(&g->x, PF_EXPR_ANY, -1);
    for (;;) {
        int32_t last = -1, part, all = pf_expr_node(&g->x, PF_EXPR_ALL, -1);
        while (rd->p < rd->end && *rd->p != '|' && *rd->p != ')') {
            PF_TRY(element(g, &part));
            PF_TRY(repetition(g, &part));
            pf_expr_append(&g->x, all, &last, part);
            PF_TRY(g->x.status);
        }
        pf_expr_append(&g->x, *node, &last_choice, all);
        if (rd->p == rd->end || *rd->p != '|')
            return g->x.status;
        rd->p++;
    }
}

/* ---- Anchors ----------------------------------------------------------------------------------------------------- */

static bool has_anchors(const struct pf_expr *x, int32_t node)
{
    bool has = x->nodes[node].kind >= PF_EXPR_BEGIN;
    for (int32_t part = x->nodes[node].child; part >= 0 && !has; part = x->nodes[part].next)
        has = has_anchors(x, part);
    return has;
}

static int32_t any_text(struct pf_expr *x)
{
    return pf_expr_repeat(x, pf_expr_set(x, x->n_chars, true), 0, PF_EXPR_MANY);
}

static pf_status anchor(struct regex *g, int32_t node, bool search);

/* Takes ^ and $ off the ends of a sequence; search: puts any text where there were none. */
static pf_status anchor_sequence(struct regex *g, int32_t all, bool search)
{
    struct pf_expr *x = &g->x;
    int32_t first = x->nodes[all].child, last = -1;
    bool begins = false, ends = false;
    for (; first >= 0 && x->nodes[first].kind == PF_EXPR_BEGIN; first = x->nodes[first].next)
        begins = true;
    for (int32_t part = first; part >= 0; part = x->nodes[part].next)
        if (x->nodes[part].kind != PF_EXPR_END)
            last = part;
    ends = last >= 0 ? x->nodes[last].next >= 0 : first >= 0;
    if (last >= 0)
        x->nodes[last].next = -1;
    first = last >= 0 ? first : -1;
    x->nodes[all].child = first;
    if (!begins && !ends && first >= 0 && first == last && x->nodes[first].kind == PF_EXPR_ANY && has_anchors(x, first))
        return anchor(g, first, search);
    if (has_anchors(x, all))
        PF_FAIL(PF_EUNSUPPORTED, "%s: ^ and $ are supported at the ends of an expression only", g->rd.what);
    if (search && !begins) {
        int32_t any = any_text(x);
        PF_TRY(x->status);
        x->nodes[any].next = first;
        x->nodes[all].child = any;
        last = last >= 0 ? last : any;
    }
    if (search && !ends)
        pf_expr_append(x, all, &last, any_text(x));
    return x->status;
}

static pf_status anchor(struct regex *g, int32_t node, bool search)
{
    for (int32_t all = g->x.nodes[node].child; all >= 0; all = g->x.nodes[all].next)
        PF_TRY(anchor_sequence(g, all, search));
    return PF_OK;
}

static pf_status read(struct regex *g, bool search, int32_t *node)
{
    if (g->rd.end - g->rd.p > PF_GRAMMAR_MAX_TEXT)
        PF_FAIL(PF_EINVAL, "%s is longer than %d bytes", g->rd.what, PF_GRAMMAR_MAX_TEXT);
    PF_TRY(choices(g, node));
    if (g->rd.p < g->rd.end)
        return pf_reader_fail(&g->rd, "there is no ( to this )");
    return anchor(g, *node, search);
}

static pf_status read_into(struct pf_rules *r, const char *text, size_t n, bool search, int32_t *rule)
{
    struct regex g = { .rd = { .text = text, .p = text, .end = text + n, .what = "the regular expression" } };
    int32_t node;
    pf_status st = read(&g, search, &node);
    if (st == PF_OK) {
        *rule = pf_rules_rule(r);
        if (r->status == PF_OK)
            pf_expr_emit(&g.x, node, r, r->rules[*rule].start, r->rules[*rule].final);
        st = r->status;
    }
    pf_expr_free(&g.x);
    return st;
}

pf_status pf_regex_read(struct pf_rules *r, const char *text, size_t n, bool search, int32_t *rule)
{
    r->whole_chars = true;
    return read_into(r, text, n, search, rule);
}

pf_status pf_regex_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root)
{
    return read_into(r, text, n, false, root);
}

/* See expr.h. */
#include "languages/expr.h"

#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "text/utf8.h"

/* ---- Trees ------------------------------------------------------------------------------------------------------- */

void pf_expr_free(struct pf_expr *x)
{
    pf_free(x->nodes);
    pf_free(x->chars);
    *x = (struct pf_expr){ 0 };
}

static void no_memory(struct pf_expr *x)
{
    x->status = x->status < 0 ? x->status : pf_fail(PF_ENOMEM, "no memory for a grammar");
}

int32_t pf_expr_node(struct pf_expr *x, enum pf_expr_kind kind, int32_t child)
{
    if (x->status < 0)
        return 0;
    if (!PF_GROW(x->nodes, x->node_cap, x->n_nodes)) {
        no_memory(x);
        return 0;
    }
    x->nodes[x->n_nodes] = (struct pf_node){ .kind = (uint8_t)kind, .child = child, .next = -1 };
    return (int32_t)x->n_nodes++;
}

void pf_expr_append(struct pf_expr *x, int32_t to, int32_t *last, int32_t node)
{
    if (x->status < 0)
        return;
    if (*last < 0)
        x->nodes[to].child = node;
    else
        x->nodes[*last].next = node;
    *last = node;
}

int32_t pf_expr_repeat(struct pf_expr *x, int32_t child, uint32_t min, uint32_t max)
{
    int32_t node = pf_expr_node(x, PF_EXPR_REPEAT, child);
    if (x->status == PF_OK) {
        x->nodes[node].min = min;
        x->nodes[node].max = max;
    }
    return node;
}

void pf_expr_add_chars(struct pf_expr *x, uint32_t lo, uint32_t hi)
{
    if (x->status < 0)
        return;
    if (!PF_GROW(x->chars, x->char_cap, x->n_chars))
        no_memory(x);
    else
        x->chars[x->n_chars++] = (struct pf_chars){ lo, hi };
}

static int by_lo(const void *a, const void *b)
{
    const struct pf_chars *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorts the ranges v[0 .. n) and joins those that touch. Returns how many are left. */
static size_t tidy(struct pf_chars *v, size_t n)
{
    size_t kept = 0;
    if (n > 1)
        qsort(v, n, sizeof *v, by_lo);
    for (size_t i = 0; i < n; i++) {
        if (kept && v[i].lo <= v[kept - 1].hi + 1)
            v[kept - 1].hi = v[i].hi > v[kept - 1].hi ? v[i].hi : v[kept - 1].hi;
        else
            v[kept++] = v[i];
    }
    return kept;
}

int32_t pf_expr_set(struct pf_expr *x, size_t first, bool negated)
{
    int32_t node = pf_expr_node(x, PF_EXPR_CHARS, -1);
    if (negated)
        pf_expr_add_chars(x, PF_MAX_CODE_POINT + 1, PF_MAX_CODE_POINT + 1);     /* room for one more; a stop */
    if (x->status < 0)
        return 0;
    struct pf_chars *v = x->chars + first;
    size_t n = x->n_chars - first, kept = 0;
    n = tidy(v, n);
    uint32_t lo = 0;
    for (size_t i = 0; negated && i < n; i++) {
        struct pf_chars range = v[i];
        if (lo < range.lo && lo <= PF_MAX_CODE_POINT)
            v[kept++] = (struct pf_chars){ lo, range.lo - 1 };
        lo = range.hi + 1;
    }
    n = negated ? kept : n;
    x->n_chars = first + n;
    x->nodes[node].first = (uint32_t)first;
    x->nodes[node].n = (uint32_t)n;
    return node;
}

/* ---- Trees to rules ---------------------------------------------------------------------------------------------- */

enum { COPIES = 4 };                     /* a part that is repeated more often becomes a rule, unless it is small */

/* A rule for what is repeated; -1: it is copied. */
static int32_t repeated_rule(const struct pf_expr *x, const struct pf_node *repeat, struct pf_rules *r)
{
    const struct pf_node *part = &x->nodes[repeat->child];
    uint32_t copies = repeat->max == PF_EXPR_MANY ? repeat->min + 1 : repeat->max;
    bool is_small = part->kind == PF_EXPR_RULE || (part->kind == PF_EXPR_CHARS && part->n && part->n <= 4 &&
                                                   x->chars[part->first + part->n - 1].hi < 0x80);
    if (copies <= COPIES || is_small || r->whole_chars)
        return -1;
    int32_t rule = pf_rules_rule(r);
    if (r->status == PF_OK)
        pf_expr_emit(x, repeat->child, r, r->rules[rule].start, r->rules[rule].final);
    return rule;
}

static void emit_repeat(const struct pf_expr *x, const struct pf_node *node, struct pf_rules *r, int32_t from,
                        int32_t to)
{
    int32_t rule = repeated_rule(x, node, r);
    uint32_t most = node->max == PF_EXPR_MANY ? node->min : node->max;
    for (uint32_t i = 0; i < most && r->status == PF_OK; i++) {
        int32_t next = pf_rules_state(r);
        if (i >= node->min)
            pf_rules_empty(r, from, to);
        if (rule >= 0)
            pf_rules_call(r, from, rule, next);
        else
            pf_expr_emit(x, node->child, r, from, next);
        from = next;
    }
    if (node->max == PF_EXPR_MANY) {
        int32_t loop = pf_rules_state(r);
        pf_rules_empty(r, from, loop);
        if (rule >= 0)
            pf_rules_call(r, loop, rule, loop);
        else
            pf_expr_emit(x, node->child, r, loop, loop);
        from = loop;
    }
    pf_rules_empty(r, from, to);
}

void pf_expr_emit(const struct pf_expr *x, int32_t at, struct pf_rules *r, int32_t from, int32_t to)
{
    const struct pf_node *node = &x->nodes[at];
    if (r->status < 0)
        return;
    switch (node->kind) {
    case PF_EXPR_CHARS:
        pf_rules_chars(r, from, x->chars + node->first, node->n, to);
        break;
    case PF_EXPR_RULE:
        pf_rules_call(r, from, node->rule, to);
        break;
    case PF_EXPR_ANY:
        for (int32_t part = node->child; part >= 0 && r->status == PF_OK; part = x->nodes[part].next)
            pf_expr_emit(x, part, r, from, to);
        break;
    case PF_EXPR_REPEAT:
        emit_repeat(x, node, r, from, to);
        break;
    default:
        for (int32_t part = node->child; part >= 0 && r->status == PF_OK; part = x->nodes[part].next) {
            int32_t next = x->nodes[part].next >= 0 ? pf_rules_state(r) : to;
            pf_expr_emit(x, part, r, from, next);
            from = next;
        }
        if (node->child < 0)
            pf_rules_empty(r, from, to);
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

pf_status pf_reader_fail(const struct pf_reader *rd, const char *why)
{
    size_t line = 1, column = 1;
    for (const char *p = rd->text; p < rd->p; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    PF_FAIL(PF_EINVAL, "%s, line %zu, column %zu: %s", rd->what, line, column, why);
}

static bool digits(struct pf_reader *rd, uint32_t *value)
{
    const char *begin = rd->p;
    *value = 0;
    for (; rd->p < rd->end && *rd->p >= '0' && *rd->p <= '9'; rd->p++)
        *value = *value > 100000000 ? *value : *value * 10 + (uint32_t)(*rd->p - '0');
    return rd->p > begin;
}

pf_status pf_reader_counts(struct pf_reader *rd, uint32_t *min, uint32_t *max)
{
    rd->p++;
    bool has_min = digits(rd, min), has_max;
    *max = *min;
    if (rd->p < rd->end && *rd->p == ',') {
        rd->p++;
        has_max = digits(rd, max);
        if (!has_max)
            *max = PF_EXPR_MANY;
        has_min = has_min || has_max;
    }
    if (!has_min || rd->p == rd->end || *rd->p != '}')
        return pf_reader_fail(rd, "a number of repetitions is {m}, {m,}, {m,n} or {,n}");
    if (*min > *max)
        return pf_reader_fail(rd, "a repetition's least number is above its largest");
    rd->p++;
    return PF_OK;
}

pf_status pf_reader_hex(struct pf_reader *rd, int n, uint32_t *value)
{
    *value = 0;
    for (; n > 0; n--, rd->p++) {
        char c = rd->p < rd->end ? *rd->p : 0;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                       : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) : 16;
        if (digit == 16)
            return pf_reader_fail(rd, "a hexadecimal digit is missing");
        *value = *value << 4 | digit;
    }
    if (*value > PF_MAX_CODE_POINT)
        return pf_reader_fail(rd, "the number is no character's");
    return PF_OK;
}

pf_status pf_reader_char(struct pf_reader *rd, uint32_t *c)
{
    if (rd->p == rd->end)
        return pf_reader_fail(rd, "the text ends too early");
    size_t n = pf_utf8_next(rd->p, (size_t)(rd->end - rd->p), c);
    if (pf_utf8_is_bad(n, *c))
        return pf_reader_fail(rd, "this is not UTF-8");
    rd->p += n;
    return PF_OK;
}

/* ---- What the languages share ------------------------------------------------------------------------------------ */

static bool at_repetition(const struct pf_reader *rd)
{
    return rd->p < rd->end && *rd->p && strchr("*+?{", *rd->p);
}

pf_status pf_expr_read_repetition(struct pf_expr *x, struct pf_reader *rd, bool lazy, int32_t *node)
{
    uint32_t min, max;
    if (!at_repetition(rd))
        return PF_OK;
    if (*rd->p == '{') {
        PF_TRY(pf_reader_counts(rd, &min, &max));
    } else {
        min = *rd->p == '+';
        max = *rd->p == '?' ? 1 : PF_EXPR_MANY;
        rd->p++;
    }
    rd->p += lazy && rd->p < rd->end && *rd->p == '?';
    *node = pf_expr_repeat(x, *node, min, max);
    return at_repetition(rd) ? pf_reader_fail(rd, "a repetition of a repetition wants brackets") : PF_OK;
}

/* One character, class or range. */
static pf_status read_range(struct pf_expr *x, struct pf_reader *rd, pf_class_char_fn *one, void *ctx)
{
    uint32_t lo, hi;
    bool is_class;
    PF_TRY(one(ctx, &lo, &is_class));
    if (is_class)
        return PF_OK;
    hi = lo;
    if (rd->end - rd->p >= 2 && rd->p[0] == '-' && rd->p[1] != ']') {
        rd->p++;
        PF_TRY(one(ctx, &hi, &is_class));
        if (is_class || hi < lo)
            return pf_reader_fail(rd, "a range's end is below its begin");
    }
    pf_expr_add_chars(x, lo, hi);
    return PF_OK;
}

pf_status pf_expr_read_class(struct pf_expr *x, struct pf_reader *rd, pf_class_char_fn *one, void *ctx, int32_t *node)
{
    size_t first = x->n_chars;
    rd->p++;
    bool negated = rd->p < rd->end && *rd->p == '^';
    rd->p += negated;
    while (rd->p < rd->end && *rd->p != ']')
        PF_TRY(read_range(x, rd, one, ctx));
    if (rd->p == rd->end)
        return pf_reader_fail(rd, "the closing ] is missing");
    rd->p++;
    *node = pf_expr_set(x, first, negated);
    return PF_OK;
}

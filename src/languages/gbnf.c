/* GBNF: rules by name, one of them "root".
 *
 *     rule      name ::= choices, to the end of the line; a line goes on after ::= and |, and within brackets
 *     choices   sequence | sequence ...
 *     element   "text"  [a-z]  [^a-z]  .  name  ( choices )      and after it  *  +  ?  {m}  {m,}  {m,n}
 *     escape    \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH       comment   # to the end of the line
 *
 * Not here: <token> and !<token>, which name tokens and not text. Recursion may be of any kind, to the left, too. */
#include <string.h>

#include "base/pf_hash.h"
#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "languages/expr.h"
#include "languages/languages.h"

struct name {
    const char *p;
    size_t  n;
    bool    defined;
    int32_t rule;
};

struct gbnf {
    struct pf_reader    rd;
    struct pf_rules    *r;
    struct pf_expr      x;           /* of the present rule */
    struct name        *names;
    uint32_t           *table;       /* open addressing; number of a name + 1 */
    size_t              n_names, name_cap, mask;
    struct pf_hash_key  key;
};

static pf_status choices(struct gbnf *g, int32_t *node);

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t word(const struct gbnf *g)
{
    size_t n = 0;
    while (g->rd.p + n < g->rd.end && is_word(g->rd.p[n]))
        n++;
    return n;
}

static bool table_grow(struct gbnf *g)
{
    size_t n_slots = g->mask ? 2 * (g->mask + 1) : 64;
    uint32_t *table = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < g->n_names; i++) {
        size_t h = pf_hash_text(&g->key, g->names[i].p, g->names[i].n) & (n_slots - 1);
        while (table[h])
            h = (h + 1) & (n_slots - 1);
        table[h] = (uint32_t)i + 1;
    }
    pf_free(g->table);
    g->table = table;
    g->mask = n_slots - 1;
    return true;
}

/* The name at the reader, n bytes; a new one gets a rule. */
static pf_status name_of(struct gbnf *g, size_t n, struct name **out)
{
    if (2 * (g->n_names + 1) > g->mask && !table_grow(g))
        PF_FAIL(PF_ENOMEM, "no memory for the names of a grammar");
    size_t h = pf_hash_text(&g->key, g->rd.p, n) & g->mask;
    for (; g->table[h]; h = (h + 1) & g->mask) {
        struct name *known = &g->names[g->table[h] - 1];
        if (known->n == n && memcmp(known->p, g->rd.p, n) == 0) {
            *out = known;
            return PF_OK;
        }
    }
    if (!PF_GROW(g->names, g->name_cap, g->n_names))
        PF_FAIL(PF_ENOMEM, "no memory for the names of a grammar");
    g->names[g->n_names] = (struct name){ .p = g->rd.p, .n = n, .rule = pf_rules_rule(g->r) };
    *out = &g->names[g->n_names];
    g->table[h] = (uint32_t)++g->n_names;
    return g->r->status;
}

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

static void skip(struct gbnf *g, bool lines)
{
    struct pf_reader *rd = &g->rd;
    while (rd->p < rd->end) {
        if (*rd->p == '#')
            while (rd->p < rd->end && *rd->p != '\n')
                rd->p++;
        else if (*rd->p == ' ' || *rd->p == '\t' || (lines && (*rd->p == '\n' || *rd->p == '\r')))
            rd->p++;
        else
            break;
    }
}

/* A character, perhaps escaped. */
static pf_status character(struct gbnf *g, uint32_t *c)
{
    static const char from[] = "nrt\\\"[]-^", to[] = "\n\r\t\\\"[]-^";
    struct pf_reader *rd = &g->rd;
    if (rd->p == rd->end || *rd->p != '\\')
        return pf_reader_char(rd, c);
    rd->p++;
    char e = rd->p < rd->end ? *rd->p : 0;
    const char *known = e ? strchr(from, e) : NULL;
    if (e == 'x' || e == 'u' || e == 'U') {
        rd->p++;
        return pf_reader_hex(rd, e == 'x' ? 2 : e == 'u' ? 4 : 8, c);
    }
    if (!known)
        return pf_reader_fail(rd, "this escape is not known");
    *c = (uint32_t)to[known - from];
    rd->p++;
    return PF_OK;
}

static int32_t one_char(struct gbnf *g, uint32_t c)
{
    size_t first = g->x.n_chars;
    pf_expr_add_chars(&g->x, c, c);
    return pf_expr_set(&g->x, first, false);
}

static pf_status literal(struct gbnf *g, int32_t *node)
{
    int32_t last = -1;
    *node = pf_expr_node(&g->x, PF_EXPR_ALL, -1);
    for (g->rd.p++; g->rd.p < g->rd.end && *g->rd.p != '"';) {
        uint32_t c;
        if (*g->rd.p == '\n')
            break;
        PF_TRY(character(g, &c));
        pf_expr_append(&g->x, *node, &last, one_char(g, c));
    }
    if (g->rd.p == g->rd.end || *g->rd.p != '"')
        return pf_reader_fail(&g->rd, "the closing \" is missing");
    g->rd.p++;
    return PF_OK;
}

static pf_status class_char(void *ctx, uint32_t *c, bool *is_class)
{
    *is_class = false;
    return character(ctx, c);
}

static pf_status group(struct gbnf *g, int32_t *node)
{
    if (g->rd.depth >= PF_GRAMMAR_MAX_NEST)
        return pf_reader_fail(&g->rd, "brackets are nested too deep");
    g->rd.depth++;
    g->rd.p++;
    PF_TRY(choices(g, node));
    g->rd.depth--;
    if (g->rd.p == g->rd.end || *g->rd.p != ')')
        return pf_reader_fail(&g->rd, "the closing ) is missing");
    g->rd.p++;
    return PF_OK;
}

static pf_status reference(struct gbnf *g, int32_t *node)
{
    struct name *name;
    size_t n = word(g);
    if (n == 0)
        return pf_reader_fail(&g->rd, *g->rd.p == '<' || *g->rd.p == '!' ? "tokens cannot be named, only text"
                                                                         : "this begins no element of a rule");
    PF_TRY(name_of(g, n, &name));
    g->rd.p += n;
    *node = pf_expr_node(&g->x, PF_EXPR_RULE, -1);
    if (g->x.status == PF_OK)
        g->x.nodes[*node].rule = name->rule;
    return PF_OK;
}

static pf_status element(struct gbnf *g, int32_t *node)
{
    switch (*g->rd.p) {
    case '"': return literal(g, node);
    case '[': return pf_expr_read_class(&g->x, &g->rd, class_char, g, node);
    case '(': return group(g, node);
    case '.':
        g->rd.p++;
        *node = pf_expr_set(&g->x, g->x.n_chars, true);
        return PF_OK;
    }
    return reference(g, node);
}

static bool sequence_goes_on(const struct gbnf *g)
{
    return g->rd.p < g->rd.end && *g->rd.p != '|' && *g->rd.p != ')' && *g->rd.p != '\n' && *g->rd.p != '\r';
}

static pf_status sequence(struct gbnf *g, int32_t *node)
{
    int32_t last = -1, part;
    *node = pf_expr_node(&g->x, PF_EXPR_ALL, -1);
    skip(g, g->rd.depth > 0);
    while (sequence_goes_on(g)) {
        PF_TRY(element(g, &part));
        PF_TRY(pf_expr_read_repetition(&g->x, &g->rd, false, &part));
        pf_expr_append(&g->x, *node, &last, part);
        PF_TRY(g->x.status);
        skip(g, g->rd.depth > 0);
    }
    return g->x.status;
}

static pf_status choices(struct gbnf *g, int32_t *node)
{
    int32_t last = -1, part;
    *node = pf_expr_node(&g->x, PF_EXPR_ANY, -1);
    for (;;) {
        PF_TRY(sequence(g, &part));
        pf_expr_append(&g->x, *node, &last, part);
        if (g->rd.p == g->rd.end || *g->rd.p != '|')
            return g->x.status;
        g->rd.p++;
        skip(g, true);
    }
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

static pf_status rule(struct gbnf *g)
{
    struct name *name;
    int32_t node;
    size_t n = word(g);
    if (n == 0)
        return pf_reader_fail(&g->rd, "a rule begins with its name");
    PF_TRY(name_of(g, n, &name));
    if (name->defined)
        return pf_reader_fail(&g->rd, "there is a rule of this name already");
    name->defined = true;
    int32_t number = name->rule;
    g->rd.p += n;
    skip(g, false);
    if (g->rd.end - g->rd.p < 3 || memcmp(g->rd.p, "::=", 3) != 0)
        return pf_reader_fail(&g->rd, "::= must follow the name of a rule");
    g->rd.p += 3;
    skip(g, true);
    g->x.n_nodes = g->x.n_chars = 0;
    PF_TRY(choices(g, &node));
    if (g->rd.p < g->rd.end && *g->rd.p == ')')
        return pf_reader_fail(&g->rd, "there is no ( to this )");
    pf_expr_emit(&g->x, node, g->r, g->r->rules[number].start, g->r->rules[number].final);
    return g->r->status;
}

static pf_status all_rules(struct gbnf *g, int32_t *root)
{
    struct name *name;
    for (skip(g, true); g->rd.p < g->rd.end; skip(g, true))
        PF_TRY(rule(g));
    for (size_t i = 0; i < g->n_names; i++)
        if (!g->names[i].defined)
            PF_FAIL(PF_EINVAL, "the grammar has no rule \"%.*s\"", (int)(g->names[i].n < 80 ? g->names[i].n : 80),
                    g->names[i].p);
    g->rd.p = "root";
    PF_TRY(name_of(g, 4, &name));
    if (!name->defined)
        PF_FAIL(PF_EINVAL, "the grammar has no rule \"root\"");
    *root = name->rule;
    return PF_OK;
}

pf_status pf_gbnf_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root)
{
    struct gbnf g = { .rd = { .text = text, .p = text, .end = text + n, .what = "the grammar" }, .r = r };
    if (n > PF_GRAMMAR_MAX_TEXT)
        PF_FAIL(PF_EINVAL, "a grammar of %zu bytes is too long; the limit is %d", n, PF_GRAMMAR_MAX_TEXT);
    pf_hash_key_draw(&g.key);
    pf_status st = all_rules(&g, root);
    pf_expr_free(&g.x);
    pf_free(g.names);
    pf_free(g.table);
    return st;
}

/* Tokens to tree: recursive descent, one function for each level of precedence (loosest first):
 *
 *     a if c else b | or | and | not | comparisons | + - | ~ | * / // % | ** | unary - + | .x [..] (..) |filter is-test
 *
 * Each level that can nest counts its depth, so that no source overflows the stack. Chains (a + b + c, elif,
 * statements) are loops. Names are numbered as they are met. The tree lives in the template's arena, tokens in a
 * temporary one. */
#include "text/jinja.h"

struct parser {
    struct pf_tmpl *t;
    const struct pf_jtok *tok;      /* the current one; never past END */
    int depth, n_loops;             /* nesting; enclosing for loops, for break and continue */
    uint32_t *index;                /* open addressing over t->names: number + 1 */
    size_t n_index;
    struct pf_jarena tmp;           /* tokens and index */
};

static pf_status parse_expr(struct parser *p, struct pf_jnode **out);
static pf_status parse_unary(struct parser *p, bool with_filter, struct pf_jnode **out);
static pf_status parse_body(struct parser *p, const char *const *ends, struct pf_jnode **out);

/* ---- Tokens ---- */

static bool is_op(const struct parser *p, unsigned op)
{
    return p->tok->kind == PF_JTOK_OP && p->tok->op == op;
}

static bool is_name(const struct parser *p, const char *word)
{
    return p->tok->kind == PF_JTOK_NAME && pf_jstr_is(p->tok->s, word);
}

static bool skip_op(struct parser *p, unsigned op)
{
    bool is = is_op(p, op);
    p->tok += is;
    return is;
}

static bool skip_name(struct parser *p, const char *word)
{
    bool is = is_name(p, word);
    p->tok += is;
    return is;
}

static pf_status unexpected(const struct parser *p, const char *wanted)
{
    const struct pf_jtok *t = p->tok;
    if (t->kind == PF_JTOK_END)
        return pf_jfail_at(t->line, "the template ends where %s is needed", wanted);
    int n = t->s.n < 40 ? (int)t->s.n : 40;
    return pf_jfail_at(t->line, "'%.*s' where %s is needed", n, t->s.p, wanted);
}

static pf_status expect_op(struct parser *p, unsigned op)
{
    char text[4] = { '\'', (char)op, '\'', 0 };
    return skip_op(p, op) ? PF_OK : unexpected(p, text);
}

static pf_status expect_kind(struct parser *p, enum pf_jtok_kind kind, const char *wanted)
{
    if (p->tok->kind != kind)
        return unexpected(p, wanted);
    p->tok++;
    return PF_OK;
}

static pf_status enter(struct parser *p)
{
    if (++p->depth > PF_JMAX_NEST)
        return pf_jfail_at(p->tok->line, "nested deeper than %d levels", PF_JMAX_NEST);
    return PF_OK;
}

/* ---- Nodes and names ---- */

static pf_status node(struct parser *p, enum pf_jnode_kind kind, struct pf_jnode **out)
{
    struct pf_jnode *n = pf_jarena_alloc(&p->t->arena, sizeof *n);
    if (!n)
        return pf_jarena_fail(&p->t->arena, p->tok->line);
    n->kind = kind;
    n->line = p->tok->line;
    *out = n;
    return PF_OK;
}

static pf_status index_grow(struct parser *p)
{
    size_t n = p->n_index ? 2 * p->n_index : 64;
    uint32_t *index = pf_jarena_alloc(&p->tmp, n * sizeof *index);
    struct pf_jname *names = pf_jarena_alloc(&p->t->arena, n / 2 * sizeof *names);
    if (!index || !names)
        return pf_jarena_fail(index ? &p->t->arena : &p->tmp, p->tok->line);
    if (p->t->n_names)
        memcpy(names, p->t->names, p->t->n_names * sizeof *names);
    for (size_t i = 0; i < p->t->n_names; i++) {
        size_t at = names[i].hash & (n - 1);
        while (index[at])
            at = (at + 1) & (n - 1);
        index[at] = (uint32_t)i + 1;
    }
    p->index = index;
    p->n_index = n;
    p->t->names = names;
    return PF_OK;
}

static pf_status intern(struct parser *p, struct pf_jstr s, int *out)
{
    if (2 * p->t->n_names >= p->n_index)
        PF_TRY(index_grow(p));
    uint32_t hash = pf_jhash_str(p->t, s);
    size_t at = hash & (p->n_index - 1);
    for (; p->index[at]; at = (at + 1) & (p->n_index - 1)) {
        const struct pf_jname *name = &p->t->names[p->index[at] - 1];
        if (name->s.n == s.n && memcmp(name->s.p, s.p, s.n) == 0) {
            *out = (int)p->index[at] - 1;
            return PF_OK;
        }
    }
    struct pf_jname *name = &p->t->names[p->t->n_names++];
    *name = (struct pf_jname){ .s = s, .hash = hash };
    for (int i = 0; i < PF_JT_N; i++)
        name->fn[i] = pf_jfn_find((enum pf_jtable)i, s);
    p->index[at] = (uint32_t)p->t->n_names;
    *out = (int)p->t->n_names - 1;
    return PF_OK;
}

static pf_status expect_name(struct parser *p, const char *wanted, int *out)
{
    struct pf_jstr s = p->tok->s;
    PF_TRY(expect_kind(p, PF_JTOK_NAME, wanted));
    return intern(p, s, out);
}

/* ---- Literals ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The n hex digits at s, or -1. */
static int64_t hex_number(const char *s, const char *end, int n)
{
    int64_t value = 0;
    if (end - s < n)
        return -1;
    for (int i = 0; i < n; i++) {
        int d = hex_digit(s[i]);
        if (d < 0)
            return -1;
        value = value << 4 | d;
    }
    return value <= 0x10FFFF ? value : -1;
}

/* The escape after the backslash at s[-1]: writes at *dst, returns the rest of s. Unknown escapes stay. */
static const char *unescape(const char *s, const char *end, char **dst)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *simple = *s ? strchr(from, *s) : NULL;
    if (simple) {
        *(*dst)++ = to[simple - from];
        return s + 1;
    }
    if (*s == '\n')
        return s + 1;
    if (*s >= '0' && *s <= '7') {
        uint32_t c = 0;
        for (int i = 0; i < 3 && s < end && *s >= '0' && *s <= '7'; i++)
            c = c * 8 + (uint32_t)(*s++ - '0');
        *dst += pf_utf8_put(*dst, c);
        return s;
    }
    int n = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    int64_t c = n ? hex_number(s + 1, end, n) : -1;
    if (c >= 0) {
        *dst += pf_utf8_put(*dst, (uint32_t)c);
        return s + 1 + n;
    }
    *(*dst)++ = '\\';
    *(*dst)++ = *s;
    return s + 1;
}

/* Adjacent strings are one. An escape is never shorter than what it stands for: \0 to \377 are at most two bytes. */
static pf_status parse_string(struct parser *p, struct pf_jnode **out)
{
    size_t cap = 0;
    for (const struct pf_jtok *t = p->tok; t->kind == PF_JTOK_STR; t++)
        cap += t->s.n;
    char *text = pf_jarena_text(&p->t->arena, cap + 1), *dst = text;
    if (!text)
        return pf_jarena_fail(&p->t->arena, p->tok->line);
    PF_TRY(node(p, PF_JN_CONST, out));
    for (; p->tok->kind == PF_JTOK_STR; p->tok++) {
        const char *s = p->tok->s.p, *end = s + p->tok->s.n;
        while (s < end)
            if (*s == '\\' && s + 1 < end)
                s = unescape(s + 1, end, &dst);
            else
                *dst++ = *s++;
    }
    (*out)->val = pf_jstring(text, (size_t)(dst - text));
    return PF_OK;
}

static pf_status parse_number(struct parser *p, struct pf_jnode **out)
{
    struct pf_jstr s = p->tok->s;
    char *text = pf_jarena_text(&p->t->arena, s.n);
    if (!text)
        return pf_jarena_fail(&p->t->arena, p->tok->line);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] != '_')
            text[n++] = s.p[i];
    PF_TRY(node(p, PF_JN_CONST, out));
    if (!pf_jnum_parse((struct pf_jstr){ text, n }, &(*out)->val))
        return unexpected(p, "a number");
    p->tok++;
    return PF_OK;
}

/* Expressions up to `close`, which is passed; a comma may follow the last. The list is a chain at *out. */
static pf_status parse_items(struct parser *p, unsigned close, struct pf_jnode **out)
{
    while (!skip_op(p, close)) {
        PF_TRY(parse_expr(p, out));
        out = &(*out)->next;
        if (!is_op(p, close))
            PF_TRY(expect_op(p, ','));
    }
    return PF_OK;
}

static pf_status parse_dict(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_DICT, out));
    out = &(*out)->a;
    while (!skip_op(p, '}')) {
        PF_TRY(parse_expr(p, out));
        PF_TRY(expect_op(p, ':'));
        PF_TRY(parse_expr(p, &(*out)->next));
        out = &(*out)->next->next;
        if (!is_op(p, '}'))
            PF_TRY(expect_op(p, ','));
    }
    return PF_OK;
}

/* After "(": an expression, or a tuple when there is a comma or nothing. */
static pf_status parse_paren(struct parser *p, struct pf_jnode **out)
{
    struct pf_jnode *first = NULL;
    if (!is_op(p, ')')) {
        PF_TRY(parse_expr(p, &first));
        if (skip_op(p, ')')) {
            *out = first;
            return PF_OK;
        }
        PF_TRY(expect_op(p, ','));
        PF_TRY(parse_items(p, ')', &first->next));
    } else {
        p->tok++;
    }
    PF_TRY(node(p, PF_JN_TUPLE, out));
    (*out)->a = first;
    return PF_OK;
}

static const struct word {
    const char *text;
    struct pf_jval val;
} constants[] = {
    { "true", { .kind = PF_JV_BOOL, .b = true } },   { "True", { .kind = PF_JV_BOOL, .b = true } },
    { "false", { .kind = PF_JV_BOOL, .b = false } }, { "False", { .kind = PF_JV_BOOL, .b = false } },
    { "none", { .kind = PF_JV_NONE } },              { "None", { .kind = PF_JV_NONE } },
};

static pf_status parse_word(struct parser *p, struct pf_jnode **out)
{
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (skip_name(p, constants[i].text)) {
            PF_TRY(node(p, PF_JN_CONST, out));
            (*out)->val = constants[i].val;
            return PF_OK;
        }
    PF_TRY(node(p, PF_JN_NAME, out));
    return expect_name(p, "a name", &(*out)->name);
}

static pf_status parse_primary(struct parser *p, struct pf_jnode **out)
{
    switch (p->tok->kind) {
    case PF_JTOK_NAME:
        return parse_word(p, out);
    case PF_JTOK_STR:
        return parse_string(p, out);
    case PF_JTOK_INT:
    case PF_JTOK_FLOAT:
        return parse_number(p, out);
    default:
        break;
    }
    if (skip_op(p, '('))
        return parse_paren(p, out);
    if (skip_op(p, '{'))
        return parse_dict(p, out);
    if (!skip_op(p, '['))
        return unexpected(p, "a value");
    PF_TRY(node(p, PF_JN_LIST, out));
    return parse_items(p, ']', &(*out)->a);
}

/* ---- Postfix ---- */

/* After "(": values and name=value, up to ")". */
static pf_status parse_args(struct parser *p, struct pf_jnode **out)
{
    int n = 0;
    bool named = false;
    while (!skip_op(p, ')')) {
        if (++n > PF_JMAX_ARGS)
            return pf_jfail_at(p->tok->line, "a call has more than %d arguments", PF_JMAX_ARGS);
        if (p->tok->kind == PF_JTOK_NAME && p->tok[1].kind == PF_JTOK_OP && p->tok[1].op == '=') {
            named = true;
            PF_TRY(node(p, PF_JN_KWARG, out));
            PF_TRY(expect_name(p, "a name", &(*out)->name));
            p->tok++;
            PF_TRY(parse_expr(p, &(*out)->a));
        } else if (named) {
            return pf_jfail_at(p->tok->line, "a plain argument after a named one");
        } else {
            PF_TRY(parse_expr(p, out));
        }
        out = &(*out)->next;
        if (!is_op(p, ')'))
            PF_TRY(expect_op(p, ','));
    }
    return PF_OK;
}

/* After "[": an index, or the parts of a slice. */
static pf_status parse_subscript(struct parser *p, struct pf_jnode *obj, struct pf_jnode **out)
{
    struct pf_jnode *part[3] = { NULL };
    int n = 0;
    for (;;) {
        if (!is_op(p, ':') && !is_op(p, ']'))
            PF_TRY(parse_expr(p, &part[n]));
        if (n == 2 || !skip_op(p, ':'))
            break;
        n++;
    }
    if (n == 0 && !part[0])
        return unexpected(p, "an index");
    PF_TRY(node(p, n ? PF_JN_SLICE : PF_JN_INDEX, out));
    PF_TRY(expect_op(p, ']'));
    (*out)->a = obj;
    (*out)->b = part[0];
    (*out)->c = part[1];
    (*out)->d = part[2];
    return PF_OK;
}

static pf_status parse_attribute(struct parser *p, struct pf_jnode *obj, struct pf_jnode **out)
{
    bool number = p->tok->kind == PF_JTOK_INT;
    PF_TRY(node(p, number ? PF_JN_INDEX : PF_JN_ATTR, out));
    (*out)->a = obj;
    return number ? parse_number(p, &(*out)->b) : expect_name(p, "an attribute's name", &(*out)->name);
}

static pf_status parse_call(struct parser *p, struct pf_jnode *callee, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_CALL, out));
    (*out)->a = callee;
    return parse_args(p, &(*out)->b);
}

static pf_status parse_postfix(struct parser *p, struct pf_jnode **at)
{
    for (;;) {
        struct pf_jnode *obj = *at;
        if (skip_op(p, '.'))
            PF_TRY(parse_attribute(p, obj, at));
        else if (skip_op(p, '['))
            PF_TRY(parse_subscript(p, obj, at));
        else if (skip_op(p, '('))
            PF_TRY(parse_call(p, obj, at));
        else
            return PF_OK;
    }
}

static pf_status parse_filter(struct parser *p, struct pf_jnode *input, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_FILTER, out));
    (*out)->a = input;
    PF_TRY(expect_name(p, "a filter's name", &(*out)->name));
    (*out)->fn = p->t->names[(*out)->name].fn[PF_JT_FILTER];
    return skip_op(p, '(') ? parse_args(p, &(*out)->b) : PF_OK;
}

/* Whether the current token begins the bare argument of a test, as in `is divisibleby 3`. */
static bool at_test_argument(const struct parser *p)
{
    static const char *const words[] = { "else", "or", "and", "is", "if", "not", "in" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_name(p, words[i]))
            return false;
    enum pf_jtok_kind k = p->tok->kind;
    return k == PF_JTOK_NAME || k == PF_JTOK_STR || k == PF_JTOK_INT || k == PF_JTOK_FLOAT || is_op(p, '[') ||
           is_op(p, '{');
}

static pf_status parse_test(struct parser *p, struct pf_jnode *input, struct pf_jnode **out)
{
    bool negated = skip_name(p, "not");
    struct pf_jnode *n = NULL;
    PF_TRY(node(p, PF_JN_TEST, &n));
    n->a = input;
    PF_TRY(expect_name(p, "a test's name", &n->name));
    n->fn = p->t->names[n->name].fn[PF_JT_TEST];
    if (skip_op(p, '(')) {
        PF_TRY(parse_args(p, &n->b));
    } else if (at_test_argument(p)) {
        PF_TRY(parse_primary(p, &n->b));
        PF_TRY(parse_postfix(p, &n->b));
    }
    *out = n;
    if (!negated)
        return PF_OK;
    PF_TRY(node(p, PF_JN_NOT, out));
    (*out)->a = n;
    return PF_OK;
}

static pf_status parse_filters(struct parser *p, struct pf_jnode **at)
{
    for (;;) {
        struct pf_jnode *input = *at;
        if (skip_op(p, '|'))
            PF_TRY(parse_filter(p, input, at));
        else if (skip_name(p, "is"))
            PF_TRY(parse_test(p, input, at));
        else if (skip_op(p, '('))
            PF_TRY(parse_call(p, input, at));
        else
            return PF_OK;
    }
}

/* ---- Operators ---- */

static pf_status parse_unary(struct parser *p, bool with_filter, struct pf_jnode **out)
{
    PF_TRY(enter(p));
    bool neg = is_op(p, '-');
    if (neg || is_op(p, '+')) {
        p->tok++;
        PF_TRY(node(p, neg ? PF_JN_NEG : PF_JN_POS, out));
        PF_TRY(parse_unary(p, false, &(*out)->a));
    } else {
        PF_TRY(parse_primary(p, out));
    }
    PF_TRY(parse_postfix(p, out));
    if (with_filter)
        PF_TRY(parse_filters(p, out));
    p->depth--;
    return PF_OK;
}

/* Left-associative levels, tightest first. */
static const struct {
    unsigned ops[4];
} levels[] = {
    { { PF_JOP('*', '*') } },
    { { '*', '/', PF_JOP('/', '/'), '%' } },
    { { '~' } },
    { { '+', '-' } },
};

static pf_status parse_binary(struct parser *p, int level, struct pf_jnode **out)
{
    if (level < 0)
        return parse_unary(p, true, out);
    PF_TRY(parse_binary(p, level - 1, out));
    for (;;) {
        unsigned op = 0;
        for (int i = 0; i < 4; i++)
            if (levels[level].ops[i] && is_op(p, levels[level].ops[i]))
                op = levels[level].ops[i];
        if (!op)
            return PF_OK;
        struct pf_jnode *left = *out;
        PF_TRY(node(p, PF_JN_BINARY, out));
        p->tok++;
        (*out)->op = op;
        (*out)->a = left;
        PF_TRY(parse_binary(p, level - 1, &(*out)->b));
    }
}

/* The comparison operator at the current token, which is passed, or 0. */
static unsigned skip_comparison(struct parser *p)
{
    static const unsigned ops[] = { PF_JOP('=', '='), PF_JOP('!', '='), PF_JOP('<', '='), PF_JOP('>', '='), '<', '>' };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (skip_op(p, ops[i]))
            return ops[i];
    if (skip_name(p, "in"))
        return PF_JOP_IN;
    if (is_name(p, "not") && p->tok[1].kind == PF_JTOK_NAME && pf_jstr_is(p->tok[1].s, "in")) {
        p->tok += 2;
        return PF_JOP_NOT_IN;
    }
    return 0;
}

static pf_status parse_compare(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(parse_binary(p, 3, out));
    unsigned op = skip_comparison(p);
    if (!op)
        return PF_OK;
    struct pf_jnode *first = *out;
    PF_TRY(node(p, PF_JN_COMPARE, out));
    (*out)->a = first;
    struct pf_jnode **next = &(*out)->b;
    for (; op; op = skip_comparison(p)) {
        PF_TRY(node(p, PF_JN_COMPARE, next));
        (*next)->op = op;
        PF_TRY(parse_binary(p, 3, &(*next)->a));
        next = &(*next)->next;
    }
    return PF_OK;
}

static pf_status parse_not(struct parser *p, struct pf_jnode **out)
{
    if (!skip_name(p, "not"))
        return parse_compare(p, out);
    PF_TRY(enter(p));
    PF_TRY(node(p, PF_JN_NOT, out));
    PF_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return PF_OK;
}

static pf_status parse_and(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(parse_not(p, out));
    while (skip_name(p, "and")) {
        struct pf_jnode *left = *out;
        PF_TRY(node(p, PF_JN_AND, out));
        (*out)->a = left;
        PF_TRY(parse_not(p, &(*out)->b));
    }
    return PF_OK;
}

static pf_status parse_or(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(parse_and(p, out));
    while (skip_name(p, "or")) {
        struct pf_jnode *left = *out;
        PF_TRY(node(p, PF_JN_OR, out));
        (*out)->a = left;
        PF_TRY(parse_and(p, &(*out)->b));
    }
    return PF_OK;
}

static pf_status parse_expr(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(enter(p));
    PF_TRY(parse_or(p, out));
    while (skip_name(p, "if")) {
        struct pf_jnode *then = *out;
        PF_TRY(node(p, PF_JN_COND, out));
        (*out)->b = then;
        PF_TRY(parse_or(p, &(*out)->a));
        if (skip_name(p, "else"))
            PF_TRY(parse_expr(p, &(*out)->c));
    }
    p->depth--;
    return PF_OK;
}

/* An expression, or a tuple without brackets: a, b */
static pf_status parse_open_tuple(struct parser *p, pf_status (*item)(struct parser *, struct pf_jnode **),
                                  struct pf_jnode **out)
{
    PF_TRY(item(p, out));
    if (!is_op(p, ','))
        return PF_OK;
    struct pf_jnode *first = *out, **next = &first->next;
    while (skip_op(p, ',') && p->tok->kind != PF_JTOK_BLOCK_END && p->tok->kind != PF_JTOK_VAR_END) {
        PF_TRY(item(p, next));
        next = &(*next)->next;
    }
    PF_TRY(node(p, PF_JN_TUPLE, out));
    (*out)->a = first;
    return PF_OK;
}

/* ---- Statements ---- */

static pf_status parse_target_name(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_NAME, out));
    return expect_name(p, "a variable's name", &(*out)->name);
}

/* name | name, name ... | (name, name ...) */
static pf_status parse_target(struct parser *p, struct pf_jnode **out)
{
    bool paren = skip_op(p, '(');
    PF_TRY(parse_open_tuple(p, parse_target_name, out));
    return paren ? expect_op(p, ')') : PF_OK;
}

static pf_status expect_block_end(struct parser *p)
{
    return expect_kind(p, PF_JTOK_BLOCK_END, "'%}'");
}

static pf_status parse_body_to(struct parser *p, const char *end, struct pf_jnode **out)
{
    const char *const ends[] = { end, NULL };
    PF_TRY(parse_body(p, ends, out));
    p->tok++;
    return expect_block_end(p);
}

static pf_status parse_if(struct parser *p, struct pf_jnode **out)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    PF_TRY(node(p, PF_JN_IF, out));
    for (;;) {
        struct pf_jnode *n = *out;
        PF_TRY(parse_open_tuple(p, parse_expr, &n->a));
        PF_TRY(expect_block_end(p));
        PF_TRY(parse_body(p, ends, &n->b));
        if (!skip_name(p, "elif"))
            break;
        n->flag = true;
        out = &n->c;
        PF_TRY(node(p, PF_JN_IF, out));
    }
    if (skip_name(p, "else")) {
        PF_TRY(expect_block_end(p));
        return parse_body_to(p, "endif", &(*out)->c);
    }
    p->tok++;
    return expect_block_end(p);
}

static pf_status parse_for(struct parser *p, struct pf_jnode **out)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct pf_jnode *n = NULL;
    PF_TRY(node(p, PF_JN_FOR, out));
    n = *out;
    PF_TRY(parse_target(p, &n->a));
    if (!skip_name(p, "in"))
        return unexpected(p, "'in'");
    PF_TRY(parse_open_tuple(p, parse_or, &n->b));
    if (skip_name(p, "if"))
        PF_TRY(parse_expr(p, &n->c));
    if (is_name(p, "recursive"))
        return pf_jfail_at(p->tok->line, "recursive loops are not supported");
    PF_TRY(expect_block_end(p));
    PF_TRY(intern(p, (struct pf_jstr){ "loop", 4 }, &n->name));
    p->n_loops++;
    PF_TRY(parse_body(p, ends, &n->d));
    p->n_loops--;
    bool has_else = is_name(p, "else");
    p->tok++;
    PF_TRY(expect_block_end(p));
    return has_else ? parse_body_to(p, "endfor", &n->e) : PF_OK;
}

/* {% filter f %} ... {% endfilter %}, and the filters of a block set: they work on what the body prints. */
static pf_status parse_capture(struct parser *p, const char *end, struct pf_jnode **out)
{
    struct pf_jnode *capture = NULL;
    PF_TRY(node(p, PF_JN_CAPTURE, &capture));
    *out = capture;
    while (skip_op(p, '|')) {
        struct pf_jnode *input = *out;
        PF_TRY(parse_filter(p, input, out));
    }
    PF_TRY(expect_block_end(p));
    return parse_body_to(p, end, &capture->b);
}

static pf_status parse_set(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_SET, out));
    struct pf_jnode *n = *out;
    PF_TRY(parse_target(p, &n->a));
    if (n->a->kind == PF_JN_NAME && skip_op(p, '.')) {
        struct pf_jnode *ns = n->a;
        PF_TRY(parse_attribute(p, ns, &n->a));
        if (n->a->kind != PF_JN_ATTR)
            return unexpected(p, "an attribute's name");
    }
    if (!skip_op(p, '='))
        return parse_capture(p, "endset", &n->b);
    PF_TRY(parse_open_tuple(p, parse_expr, &n->b));
    return expect_block_end(p);
}

static pf_status parse_filter_block(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_PRINT, out));
    /* The first filter stands without its "|"; the token before it, the word "filter", is passed already. */
    struct pf_jnode *capture = NULL;
    PF_TRY(node(p, PF_JN_CAPTURE, &capture));
    PF_TRY(parse_filter(p, capture, &(*out)->a));
    while (skip_op(p, '|')) {
        struct pf_jnode *input = (*out)->a;
        PF_TRY(parse_filter(p, input, &(*out)->a));
    }
    PF_TRY(expect_block_end(p));
    return parse_body_to(p, "endfilter", &capture->b);
}

static pf_status parse_macro(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_MACRO, out));
    struct pf_jnode *n = *out, **param = &n->a;
    PF_TRY(expect_name(p, "the macro's name", &n->name));
    PF_TRY(expect_op(p, '('));
    for (int i = 0; !skip_op(p, ')'); i++) {
        if (i == PF_JMAX_ARGS)
            return pf_jfail_at(p->tok->line, "a macro has more than %d parameters", PF_JMAX_ARGS);
        PF_TRY(node(p, PF_JN_KWARG, param));
        PF_TRY(expect_name(p, "a parameter's name", &(*param)->name));
        if (skip_op(p, '='))
            PF_TRY(parse_expr(p, &(*param)->a));
        param = &(*param)->next;
        if (!is_op(p, ')'))
            PF_TRY(expect_op(p, ','));
    }
    PF_TRY(expect_block_end(p));
    int n_loops = p->n_loops;
    p->n_loops = 0;
    PF_TRY(parse_body_to(p, "endmacro", &n->b));
    p->n_loops = n_loops;
    return PF_OK;
}

static pf_status parse_generation(struct parser *p, struct pf_jnode **out)
{
    PF_TRY(node(p, PF_JN_BLOCK, out));
    PF_TRY(expect_block_end(p));
    return parse_body_to(p, "endgeneration", &(*out)->b);
}

static pf_status parse_jump(struct parser *p, enum pf_jnode_kind kind, struct pf_jnode **out)
{
    if (!p->n_loops)
        return pf_jfail_at(p->tok->line, "break or continue outside a loop");
    PF_TRY(node(p, kind, out));
    return expect_block_end(p);
}

static pf_status parse_break(struct parser *p, struct pf_jnode **out)
{
    return parse_jump(p, PF_JN_BREAK, out);
}

static pf_status parse_continue(struct parser *p, struct pf_jnode **out)
{
    return parse_jump(p, PF_JN_CONTINUE, out);
}

static const struct {
    const char *word;
    pf_status (*parse)(struct parser *, struct pf_jnode **);
} statements[] = {
    { "if", parse_if },           { "for", parse_for },     { "set", parse_set },
    { "macro", parse_macro },     { "break", parse_break }, { "continue", parse_continue },
    { "filter", parse_filter_block }, { "generation", parse_generation },
};

static pf_status parse_statement(struct parser *p, struct pf_jnode **out)
{
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (skip_name(p, statements[i].word))
            return statements[i].parse(p, out);
    return unexpected(p, "a known statement");
}

static bool at_end_word(const struct parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (is_name(p, *ends))
            return true;
    return false;
}

static pf_status parse_piece(struct parser *p, struct pf_jnode **out)
{
    if (p->tok->kind == PF_JTOK_TEXT) {
        PF_TRY(node(p, PF_JN_TEXT, out));
        (*out)->val = pf_jstring(p->tok->s.p, p->tok->s.n);
        p->tok++;
        return PF_OK;
    }
    PF_TRY(expect_kind(p, PF_JTOK_VAR, "a tag"));
    PF_TRY(node(p, PF_JN_PRINT, out));
    PF_TRY(parse_open_tuple(p, parse_expr, &(*out)->a));
    return expect_kind(p, PF_JTOK_VAR_END, "'}}'");
}

/* Statements up to a tag that begins with one of the words, whose "{%" is passed; ends NULL: up to the text's end. */
static pf_status parse_body(struct parser *p, const char *const *ends, struct pf_jnode **out)
{
    int open_line = ends ? p->tok[-1].line : 1;
    PF_TRY(enter(p));
    for (; p->tok->kind != PF_JTOK_END; out = &(*out)->next) {
        if (p->tok->kind != PF_JTOK_BLOCK) {
            PF_TRY(parse_piece(p, out));
            continue;
        }
        p->tok++;
        if (ends && at_end_word(p, ends)) {
            p->depth--;
            return PF_OK;
        }
        PF_TRY(parse_statement(p, out));
    }
    if (ends) {
        while (ends[1])
            ends++;
        return pf_jfail_at(p->tok->line, "the template ends without the '%s' of the block at line %d", *ends,
                           open_line);
    }
    p->depth--;
    return PF_OK;
}

/* CRLF and CR become LF; one newline at the very end is dropped. */
static pf_status copy_text(struct pf_tmpl *t, const char *text, size_t len, struct pf_jstr *out)
{
    char *copy = pf_jarena_text(&t->arena, len + 1);
    if (!copy)
        return pf_jarena_fail(&t->arena, 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            i++;
    }
    if (n && copy[n - 1] == '\n')
        n--;
    *out = (struct pf_jstr){ copy, n };
    return PF_OK;
}

pf_status pf_jparse(struct pf_tmpl *t, const char *text, size_t len)
{
    struct parser p = { .t = t, .tmp = { .limit = PF_JMAX_ARENA } };
    struct pf_jstr source = { NULL, 0 };
    struct pf_jtok *tok;
    pf_status st = PF_OK;
    if (len > PF_JMAX_TEMPLATE)
        return pf_jfail_at(1, "the text of %zu bytes is longer than %d", len, (int)PF_JMAX_TEMPLATE);
    PF_TRY(copy_text(t, text, len, &source));
    PF_TRY_GOTO(st, pf_jlex(&p.tmp, source.p, source.n, &tok));
    p.tok = tok;
    PF_TRY_GOTO(st, parse_body(&p, NULL, &t->body));
fail:
    pf_jarena_free(&p.tmp);
    return st;
}

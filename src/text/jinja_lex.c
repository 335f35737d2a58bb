/* Template text to tokens. White space around tags is settled here, so that the parser never sees it:
 *
 *     text   {%-  and  -%}   take all white space on their side
 *            {%  {#          take blanks between the start of their line and themselves     ("+" inside keeps them)
 *            %}  #}          take one newline after themselves                              ("+" inside keeps it)
 *            {{  }}          take nothing
 *
 * Pure: text in, tokens in the caller's arena out; tokens point into the text. */
#include "text/jinja.h"

struct lexer {
    struct pf_jarena *arena;
    const char *at, *end;
    int line;
    bool line_start;                /* the text at `at` begins a line although no newline is in it */
    struct pf_jtok *v;
    size_t n, cap;
};

static pf_status push(struct lexer *lx, enum pf_jtok_kind kind, unsigned op, const char *p, size_t n)
{
    if (lx->n == lx->cap) {
        size_t cap = lx->cap ? 2 * lx->cap : 256;
        struct pf_jtok *v = pf_jarena_alloc(lx->arena, cap * sizeof *v);
        if (!v)
            return pf_jarena_fail(lx->arena, lx->line);
        if (lx->n)
            memcpy(v, lx->v, lx->n * sizeof *v);
        lx->v = v;
        lx->cap = cap;
    }
    lx->v[lx->n++] = (struct pf_jtok){ .kind = kind, .op = op, .line = lx->line, .s = { p, n } };
    return PF_OK;
}

static bool at_text(const struct lexer *lx, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(lx->end - lx->at) >= n && memcmp(lx->at, s, n) == 0;
}

static void advance(struct lexer *lx, const char *to)
{
    for (; lx->at < to; lx->at++)
        lx->line += *lx->at == '\n';
}

static void skip_space(struct lexer *lx)
{
    while (lx->at < lx->end) {
        size_t n = pf_ju8_len(lx->at, lx->end);
        if (!pf_jspace(pf_ju8_decode(lx->at, n)))
            return;
        advance(lx, lx->at + n);
    }
}

/* After the "%}", "#}" or "}}" at lx->at, with the sign before it already passed. */
static void close_tag(struct lexer *lx, char sign, bool is_var)
{
    advance(lx, lx->at + 2);
    lx->line_start = false;
    if (sign == '-') {
        const char *before = lx->at;
        skip_space(lx);
        lx->line_start = lx->at > before && lx->at[-1] == '\n';
    } else if (!is_var && sign != '+' && at_text(lx, "\n")) {
        advance(lx, lx->at + 1);
        lx->line_start = true;
    }
}

/* The text from p up to a tag whose sign is given. */
static pf_status push_text(struct lexer *lx, const char *p, const char *tag, char sign, bool is_var)
{
    struct pf_jstr s = { p, (size_t)(tag - p) };
    if (sign == '-') {
        s = pf_jstrip(s, NULL, PF_JSTRIP_RIGHT);
    } else if (sign != '+' && !is_var) {
        const char *from = tag;
        while (from > p && from[-1] != '\n')
            from--;
        bool whole_line = from > p || lx->line_start;
        if (whole_line && pf_jstrip((struct pf_jstr){ from, (size_t)(tag - from) }, NULL, PF_JSTRIP_LEFT).n == 0)
            s.n = (size_t)(from - p);
    }
    return s.n ? push(lx, PF_JTOK_TEXT, 0, s.p, s.n) : PF_OK;
}

static const char *find_tag(const char *p, const char *end)
{
    while (p < end && (p = memchr(p, '{', (size_t)(end - p)))) {
        if (end - p >= 2 && (p[1] == '{' || p[1] == '%' || p[1] == '#'))
            return p;
        p++;
    }
    return end;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) || (unsigned char)c >= 0x80;
}

static const char *digits(const char *p, const char *end)
{
    while (p < end && (is_digit(*p) || (*p == '_' && p + 1 < end && is_digit(p[1]))))
        p++;
    return p;
}

static pf_status lex_number(struct lexer *lx)
{
    const char *p = digits(lx->at, lx->end);
    bool is_float = false;
    if (p + 1 < lx->end && *p == '.' && is_digit(p[1])) {
        p = digits(p + 1, lx->end);
        is_float = true;
    }
    if (p < lx->end && (*p == 'e' || *p == 'E')) {
        const char *q = p + 1;
        q += q < lx->end && (*q == '+' || *q == '-');
        if (q < lx->end && is_digit(*q)) {
            p = digits(q, lx->end);
            is_float = true;
        }
    }
    PF_TRY(push(lx, is_float ? PF_JTOK_FLOAT : PF_JTOK_INT, 0, lx->at, (size_t)(p - lx->at)));
    lx->at = p;
    return PF_OK;
}

static pf_status lex_string(struct lexer *lx)
{
    const char *p = lx->at + 1;
    while (p < lx->end && *p != *lx->at)
        p += *p == '\\' && p + 1 < lx->end ? 2 : 1;
    if (p >= lx->end)
        return pf_jfail_at(lx->line, "a string is not closed");
    PF_TRY(push(lx, PF_JTOK_STR, 0, lx->at + 1, (size_t)(p - lx->at - 1)));
    advance(lx, p + 1);
    return PF_OK;
}

static pf_status lex_operator(struct lexer *lx)
{
    static const char *const pairs[] = { "==", "!=", "<=", ">=", "//", "**" };
    char c = *lx->at;
    unsigned op = PF_JOP(c, 0);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (at_text(lx, pairs[i]))
            op = PF_JOP(c, pairs[i][1]);
    if ((!c || !strchr("+-*/%~()[]{}<>=.:,|", c)) && op == PF_JOP(c, 0))
        return pf_jfail_at(lx->line, "unexpected character '%c' (byte %d)", c >= ' ' && c < 127 ? c : '?',
                           (unsigned char)c);
    size_t n = op == PF_JOP(c, 0) ? 1 : 2;
    PF_TRY(push(lx, PF_JTOK_OP, op, lx->at, n));
    lx->at += n;
    return PF_OK;
}

/* The inside of {{ }} or {% %}, up to and with its end. Inside brackets "}}" closes dicts. */
static pf_status lex_tag(struct lexer *lx, bool is_var)
{
    const char *close = is_var ? "}}" : "%}";
    int open_line = lx->line, n_open = 0;
    for (;;) {
        while (lx->at < lx->end && strchr(" \t\n\r\v\f", *lx->at) && *lx->at)
            advance(lx, lx->at + 1);
        if (lx->at >= lx->end)
            return pf_jfail_at(open_line, "the tag has no '%s'", close);
        char c = *lx->at, sign = c == '-' || (c == '+' && !is_var) ? c : 0;
        if (n_open == 0 && lx->end - lx->at >= 2 + (sign != 0) && memcmp(lx->at + (sign != 0), close, 2) == 0) {
            PF_TRY(push(lx, is_var ? PF_JTOK_VAR_END : PF_JTOK_BLOCK_END, 0, lx->at, 2));
            lx->at += sign != 0;
            close_tag(lx, sign, is_var);
            return PF_OK;
        }
        if (c == '(' || c == '[' || c == '{')
            n_open++;
        else if ((c == ')' || c == ']' || c == '}') && --n_open < 0)
            return pf_jfail_at(lx->line, "unexpected '%c'", c);
        if (is_digit(c)) {
            PF_TRY(lex_number(lx));
        } else if (is_word(c)) {
            const char *p = lx->at;
            while (p < lx->end && is_word(*p))
                p++;
            PF_TRY(push(lx, PF_JTOK_NAME, 0, lx->at, (size_t)(p - lx->at)));
            lx->at = p;
        } else if (c == '"' || c == '\'') {
            PF_TRY(lex_string(lx));
        } else {
            PF_TRY(lex_operator(lx));
        }
    }
}

static pf_status lex_comment(struct lexer *lx)
{
    for (const char *p = lx->at; p + 1 < lx->end; p++)
        if (p[0] == '#' && p[1] == '}') {
            char sign = p > lx->at && (p[-1] == '-' || p[-1] == '+') ? p[-1] : 0;
            advance(lx, p);
            close_tag(lx, sign, false);
            return PF_OK;
        }
    return pf_jfail_at(lx->line, "the comment has no '#}'");
}

/* Passes blanks, the word at *p and the end of the tag, whose sign it stores; false when something else is there. */
static bool match_bare_tag(const char **p, const char *end, const char *word, char *sign)
{
    const char *q = *p;
    while (q < end && (*q == ' ' || *q == '\t' || *q == '\n'))
        q++;
    size_t n = strlen(word);
    if ((size_t)(end - q) < n || memcmp(q, word, n) != 0)
        return false;
    q += n;
    while (q < end && (*q == ' ' || *q == '\t' || *q == '\n'))
        q++;
    *sign = q < end && (*q == '-' || *q == '+') ? *q++ : 0;
    if (end - q < 2 || q[0] != '%' || q[1] != '}')
        return false;
    *p = q;
    return true;
}

/* Past "{% raw %}": everything up to "{% endraw %}" is text. */
static pf_status lex_raw(struct lexer *lx, char sign)
{
    int open_line = lx->line;
    close_tag(lx, sign, true);      /* a newline after it stays */
    const char *from = lx->at;
    for (const char *p = from; (p = find_tag(p, lx->end)) < lx->end; p++) {
        const char *q = p + 2;
        char left = q < lx->end && (*q == '-' || *q == '+') ? *q++ : 0;
        if (p[1] != '%' || !match_bare_tag(&q, lx->end, "endraw", &sign))
            continue;
        PF_TRY(push_text(lx, from, p, left, false));
        advance(lx, q);
        close_tag(lx, sign, false);
        return PF_OK;
    }
    return pf_jfail_at(open_line, "'raw' has no 'endraw'");
}

pf_status pf_jlex(struct pf_jarena *arena, const char *text, size_t len, struct pf_jtok **out)
{
    struct lexer lx = { .arena = arena, .at = text, .end = text + len, .line = 1, .line_start = true };
    while (lx.at < lx.end) {
        const char *tag = find_tag(lx.at, lx.end);
        if (tag == lx.end) {
            PF_TRY(push(&lx, PF_JTOK_TEXT, 0, lx.at, (size_t)(tag - lx.at)));
            break;
        }
        char kind = tag[1], sign = tag + 2 < lx.end && (tag[2] == '-' || tag[2] == '+') ? tag[2] : 0;
        if (kind == '{' && sign == '+')
            sign = 0;
        PF_TRY(push_text(&lx, lx.at, tag, sign, kind == '{'));
        advance(&lx, tag + 2 + (sign != 0));
        const char *p = lx.at;
        if (kind == '#') {
            PF_TRY(lex_comment(&lx));
        } else if (kind == '%' && match_bare_tag(&p, lx.end, "raw", &sign)) {
            advance(&lx, p);
            PF_TRY(lex_raw(&lx, sign));
        } else {
            PF_TRY(push(&lx, kind == '{' ? PF_JTOK_VAR : PF_JTOK_BLOCK, 0, tag, 2));
            PF_TRY(lex_tag(&lx, kind == '{'));
        }
    }
    PF_TRY(push(&lx, PF_JTOK_END, 0, lx.end, 0));
    *out = lx.v;
    return PF_OK;
}

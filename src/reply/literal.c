/* See literal.h. One state for each place in the grammar; a stack of open brackets. */
#include "reply/literal.h"

#include <stdio.h>

#include "text/utf8.h"

enum { VALUE, STRING, RAW, ESCAPE, HEX, WORD, KEY, BARE_KEY, COLON, NEXT, DONE };
enum { HAS_SOME = 0x80 };

static const char raw_quote[] = "<|\"|>";

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_identifier(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '-' || (c & 0x80);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static struct pf_run *target(struct pf_literal *l)
{
    return l->in_key ? &l->key : l->out;
}

static char top(const struct pf_literal *l)
{
    return l->depth ? (char)(l->frames[l->depth - 1] & ~HAS_SOME) : 0;
}

/* An element of a list, or a key, begins: the comma in front of it waits with it. */
static void begin_element(struct pf_literal *l)
{
    l->key.n = 0;
    if (l->depth && (l->frames[l->depth - 1] & HAS_SOME))
        pf_run_puts(&l->key, ", ");
}

/* A value begins: now the comma and key in front of it are certain. */
static void begin_value(struct pf_literal *l)
{
    if (top(l) == ']')
        begin_element(l);
    pf_run_add(l->out, l->key.p, l->key.n);
    l->key.n = 0;
    if (l->depth)
        l->frames[l->depth - 1] |= HAS_SOME;
}

static void end_value(struct pf_literal *l)
{
    l->state = l->depth ? NEXT : DONE;
}

static void put_code(struct pf_literal *l, uint32_t c)
{
    char utf8[4];
    pf_json_escape(target(l), utf8, pf_utf8_put(utf8, c));
}

static void flush_surrogate(struct pf_literal *l)
{
    if (l->high)
        put_code(l, 0xFFFD);
    l->high = 0;
}

void pf_json_escape(struct pf_run *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t plain = i;
        while (plain < n && (unsigned char)s[plain] >= 0x20 && s[plain] != '"' && s[plain] != '\\')
            plain++;
        pf_run_add(out, s + i, plain - i);
        i = plain;
        if (i == n)
            return;
        static const char letters[] = "\"\"\\\\\nn\tt\rr\bb\ff";
        const char *known = NULL;
        for (const char *p = letters; *p && !known; p += 2)
            known = *p == s[i] ? p + 1 : NULL;
        char code[8];
        if (known)
            pf_run_add(out, (char[]){ '\\', *known }, 2);
        else
            pf_run_add(out, code, (size_t)snprintf(code, sizeof code, "\\u%04x", (unsigned char)s[i]));
        i++;
    }
}

void pf_json_unescape(struct pf_run *out, const char *s, size_t n)
{
    for (size_t i = 1; i + 1 < n; i++) {
        if (s[i] != '\\') {
            pf_run_add(out, s + i, 1);
            continue;
        }
        static const char letters[] = "n\nt\tr\rb\bf\f";
        const char *known = strchr(letters, s[++i]);
        if (s[i] == 'u') {                       /* only controls are written so */
            unsigned code = 0;
            sscanf(s + i + 1, "%4x", &code);
            pf_run_add(out, (char[]){ (char)code }, 1);
            i += 4;
        } else {
            pf_run_add(out, known ? known + 1 : s + i, 1);
        }
    }
}

/* ---- Strings ----------------------------------------------------------------------------------------------------- */

static void end_string(struct pf_literal *l)
{
    flush_surrogate(l);
    pf_run_puts(target(l), "\"");
    if (l->in_key)
        l->state = COLON;
    else
        end_value(l);
}

static void begin_string(struct pf_literal *l, char quote)
{
    l->quote = quote;
    l->state = STRING;
    if (!l->in_key)
        begin_value(l);
    pf_run_puts(target(l), "\"");
}

static size_t read_string(struct pf_literal *l, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] != l->quote && s[i] != '\\')
        i++;
    if (i)
        flush_surrogate(l);
    pf_json_escape(target(l), s, i);
    if (i == n)
        return n;
    if (s[i] == '\\')
        l->state = ESCAPE;
    else
        end_string(l);
    return i + 1;
}

/* Behind the first byte of Gemma's opening quote, and then in the string: bytes that may be the closing quote wait. */
static bool read_raw(struct pf_literal *l, char c, bool opening)
{
    enum { QUOTE = sizeof raw_quote - 1 };
    if (c == raw_quote[l->n_matched]) {
        if (++l->n_matched == QUOTE) {
            l->n_matched = 0;
            if (opening)
                l->quote = 1;
            else
                end_string(l);
        }
        return true;
    }
    if (opening)
        return false;
    pf_json_escape(target(l), raw_quote, (size_t)l->n_matched);
    l->n_matched = c == raw_quote[0];
    if (!l->n_matched)
        pf_json_escape(target(l), &c, 1);
    return true;
}

/* The byte behind a backslash. What is no escape stays as it is, backslash and all, as in Python. */
static void read_escape(struct pf_literal *l, char c)
{
    static const char letters[] = "n\nt\tr\rb\bf\fa\av\v\"\"''\\\\";
    l->state = STRING;
    if (c == 'u' || c == 'U' || c == 'x') {
        l->code = 0;
        l->n_digits = c == 'u' ? 4 : c == 'U' ? 8 : 2;
        l->state = HEX;
        return;
    }
    flush_surrogate(l);
    if (c == '\n')                               /* a line that goes on */
        return;
    if (c == '/' && !l->python) {
        pf_run_puts(target(l), "/");
        return;
    }
    for (const char *p = letters; *p; p += 2)
        if (*p == c) {
            pf_json_escape(target(l), p + 1, 1);
            return;
        }
    pf_run_puts(target(l), "\\\\");
    pf_json_escape(target(l), &c, 1);
}

static void end_hex(struct pf_literal *l)
{
    uint32_t c = l->code;
    l->state = STRING;
    if (l->high && c >= 0xDC00 && c < 0xE000) {
        c = 0x10000 + ((l->high - 0xD800) << 10) + (c - 0xDC00);
        l->high = 0;
    }
    flush_surrogate(l);
    if (c >= 0xD800 && c < 0xDC00)
        l->high = c;
    else
        put_code(l, (c >= 0xDC00 && c < 0xE000) || c > 0x10FFFF ? 0xFFFD : c);
}

static bool read_hex(struct pf_literal *l, char c)
{
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
                c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0)
        return false;
    l->code = l->code << 4 | (uint32_t)digit;
    if (--l->n_digits == 0)
        end_hex(l);
    return true;
}

/* ---- Numbers and words ------------------------------------------------------------------------------------------- */

/* A number that is read from s and written to w. */
struct number {
    const char *s, *end;
    char       *w;
};

static int copy_digits(struct number *d)
{
    int n = 0;
    for (; d->s < d->end && *d->s >= '0' && *d->s <= '9'; n++)
        *d->w++ = *d->s++;
    return n;
}

static bool copy_if(struct number *d, const char *set)
{
    bool is = d->s < d->end && strchr(set, *d->s) && *d->s;
    if (is)
        *d->w++ = *d->s++;
    return is;
}

/* Writes the JSON number that s is, with the liberties ".5", "5." and "+5" put right, to w, which has room for two
 * bytes more; its length, 0 if s is none. */
static int number(const char *s, int n, char *w)
{
    struct number d = { s, s + n, w };
    if (d.s < d.end && *d.s == '+')
        d.s++;
    else
        copy_if(&d, "-");
    char *first = d.w;
    int whole = copy_digits(&d), part = 0;
    if (whole > 1 && *first == '0')
        return 0;
    if (!whole)
        *d.w++ = '0';
    if (copy_if(&d, ".")) {
        part = copy_digits(&d);
        if (!part)
            *d.w++ = '0';
    }
    if (!whole && !part)
        return 0;
    if (copy_if(&d, "eE")) {
        copy_if(&d, "+-");
        if (!copy_digits(&d))
            return 0;
    }
    return d.s == d.end ? (int)(d.w - w) : 0;
}

static bool end_word(struct pf_literal *l)
{
    static const char *const words[][2] = { { "true", "true" },   { "True", "true" }, { "false", "false" },
                                            { "False", "false" }, { "null", "null" }, { "None", "null" } };
    char w[PF_LITERAL_WORD + 4];
    int n = number(l->word, l->n_word, w);
    for (size_t i = 0; !n && i < sizeof words / sizeof *words; i++)
        if (l->n_word == (int)strlen(words[i][0]) && memcmp(l->word, words[i][0], strlen(words[i][0])) == 0)
            n = snprintf(w, sizeof w, "%s", words[i][1]);
    if (!n)
        return false;
    begin_value(l);
    pf_run_add(l->out, w, (size_t)n);
    l->n_word = 0;
    end_value(l);
    return true;
}

static bool ends_word(char c)
{
    return is_space(c) || c == ',' || c == ']' || c == '}' || c == ')' || c == ';';
}

/* ---- Structure --------------------------------------------------------------------------------------------------- */

static bool open_frame(struct pf_literal *l, char closer)
{
    if (l->depth == PF_LITERAL_DEPTH)
        return false;
    begin_value(l);
    l->frames[l->depth++] = (uint8_t)closer;
    pf_run_puts(l->out, closer == ']' ? "[" : "{");
    l->state = closer == ']' ? VALUE : KEY;
    return true;
}

static bool close_frame(struct pf_literal *l, char c)
{
    if (top(l) != c)
        return false;
    pf_run_puts(l->out, c == ']' ? "]" : "}");
    l->depth--;
    end_value(l);
    return true;
}

static bool begin(struct pf_literal *l, char c)
{
    l->in_key = false;
    if (c == '"' || c == '\'') {
        begin_string(l, c);
    } else if (c == '<') {
        l->state = RAW;
        l->quote = 0;
        l->n_matched = 1;
    } else if (c == '{' || c == '[') {
        return open_frame(l, c == '{' ? '}' : ']');
    } else if (c == ']') {                       /* an empty list, or a comma too much */
        return close_frame(l, c);
    } else {
        l->word[0] = c;
        l->n_word = 1;
        l->state = WORD;
        return is_identifier(c) || c == '.' || c == '+';
    }
    return true;
}

static bool begin_key(struct pf_literal *l, char c)
{
    if (c == top(l))
        return close_frame(l, c);
    begin_element(l);
    l->in_key = true;
    if (c == '"' || c == '\'') {
        begin_string(l, c);
        return true;
    }
    l->state = BARE_KEY;
    pf_run_puts(&l->key, "\"");
    pf_run_add(&l->key, &c, 1);
    return is_identifier(c);
}

static bool end_key(struct pf_literal *l, char c)
{
    if (c != (top(l) == ')' ? '=' : ':'))
        return false;
    pf_run_puts(&l->key, ": ");
    l->in_key = false;
    l->state = VALUE;
    return true;
}

static bool read_bare_key(struct pf_literal *l, char c)
{
    if (is_space(c) || c == ':' || c == '=') {
        pf_run_puts(&l->key, "\"");
        l->state = COLON;
        return is_space(c) || end_key(l, c);
    }
    pf_run_add(&l->key, &c, 1);
    return is_identifier(c) || c == '.';
}

static bool read_next(struct pf_literal *l, char c)
{
    if (c != ',')
        return close_frame(l, c);
    l->state = top(l) == ']' ? VALUE : KEY;
    return true;
}

/* One byte outside of strings' plain text. *again: the state changed, and the byte belongs to the new one. */
static bool read_byte(struct pf_literal *l, char c, bool *again)
{
    bool opening = l->state == RAW && l->quote == 0;
    *again = false;
    switch (l->state) {
    case ESCAPE: read_escape(l, c); return true;
    case HEX:    return read_hex(l, c);
    case RAW:
        if (!read_raw(l, c, opening))
            return false;
        if (opening && l->quote) {
            begin_value(l);
            pf_run_puts(l->out, "\"");
        }
        return true;
    case WORD:
        if (ends_word(c)) {
            *again = true;
            return end_word(l);
        }
        if (l->n_word == PF_LITERAL_WORD)
            return false;
        l->word[l->n_word++] = c;
        return true;
    case BARE_KEY: return read_bare_key(l, c);
    default: break;
    }
    if (is_space(c))
        return true;
    return l->state == VALUE ? begin(l, c) : l->state == KEY ? begin_key(l, c) :
           l->state == COLON ? end_key(l, c) : read_next(l, c);
}

enum pf_literal_result pf_literal_feed(struct pf_literal *l, const char *s, size_t n, size_t *used)
{
    size_t i = 0;
    bool ok = true, again;
    while (i < n && ok && l->state != DONE) {
        if (l->state == STRING) {
            i += read_string(l, s + i, n - i);
        } else {
            ok = read_byte(l, s[i], &again);
            i += ok && !again;
        }
        ok &= l->key.n <= PF_LITERAL_KEY;
    }
    *used = i;
    return !ok ? PF_LITERAL_BAD : l->state == DONE ? PF_LITERAL_DONE : PF_LITERAL_MORE;
}

bool pf_literal_finish(struct pf_literal *l)
{
    return l->state == DONE || (l->state == WORD && l->depth == 0 && end_word(l));
}

void pf_literal_close(struct pf_literal *l)
{
    bool in_string = l->state == STRING || l->state == ESCAPE || l->state == HEX || (l->state == RAW && l->quote);
    if (in_string && !l->in_key)
        pf_run_puts(l->out, "\"");
    while (l->depth)
        pf_run_puts(l->out, (l->frames[--l->depth] & ~HAS_SOME) == ']' ? "]" : "}");
    l->state = DONE;
}

void pf_literal_init(struct pf_literal *l, struct pf_run *out, bool python)
{
    pf_literal_free(l);
    *l = (struct pf_literal){ .out = out, .python = python, .state = VALUE };
}

void pf_literal_init_call(struct pf_literal *l, struct pf_run *out)
{
    pf_literal_init(l, out, true);
    open_frame(l, ')');
}

void pf_literal_free(struct pf_literal *l)
{
    pf_run_free(&l->key);
}

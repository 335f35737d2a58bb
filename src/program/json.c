/* See json.h. */
#include "program/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 512 };

struct cursor {
    const char *p, *end;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(struct cursor *c)
{
    while (c->p < c->end && is_space(*c->p))
        c->p++;
}

static bool take(struct cursor *c, char ch)
{
    if (c->p >= c->end || *c->p != ch)
        return false;
    c->p++;
    return true;
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    int lower = c | 0x20;
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static bool check_string(struct cursor *c)
{
    if (!take(c, '"'))
        return false;
    while (c->p < c->end && *c->p != '"') {
        if ((unsigned char)*c->p < 0x20)
            return false;
        if (*c->p++ != '\\')
            continue;
        if (c->p >= c->end || !*c->p || !strchr("\"\\/bfnrtu", *c->p))
            return false;
        if (*c->p++ == 'u')
            for (int i = 0; i < 4; i++, c->p++)
                if (c->p >= c->end || hex_digit(*c->p) < 0)
                    return false;
    }
    return take(c, '"');
}

static bool digits(struct cursor *c)
{
    const char *from = c->p;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9')
        c->p++;
    return c->p > from;
}

static bool check_number(struct cursor *c)
{
    take(c, '-');
    if (!take(c, '0') && !digits(c))
        return false;
    if (take(c, '.') && !digits(c))
        return false;
    if (take(c, 'e') || take(c, 'E')) {
        if (!take(c, '+'))
            take(c, '-');
        return digits(c);
    }
    return true;
}

static bool check_word(struct cursor *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n) != 0)
        return false;
    c->p += n;
    return true;
}

static bool check_value(struct cursor *c, int depth);

static bool check_members(struct cursor *c, char close, int depth)
{
    skip_space(c);
    if (take(c, close))
        return true;
    do {
        skip_space(c);
        if (close == '}') {
            if (!check_string(c))
                return false;
            skip_space(c);
            if (!take(c, ':'))
                return false;
        }
        if (!check_value(c, depth + 1))
            return false;
        skip_space(c);
    } while (take(c, ','));
    return take(c, close);
}

static bool check_value(struct cursor *c, int depth)
{
    skip_space(c);
    if (c->p >= c->end || depth > MAX_DEPTH)
        return false;
    switch (*c->p) {
    case '{': c->p++; return check_members(c, '}', depth);
    case '[': c->p++; return check_members(c, ']', depth);
    case '"': return check_string(c);
    case 't': return check_word(c, "true");
    case 'f': return check_word(c, "false");
    case 'n': return check_word(c, "null");
    default:  return check_number(c);
    }
}

bool json_valid(const char *text, size_t n, size_t *where)
{
    struct cursor c = { text, text + n };
    bool ok = check_value(&c, 0);
    skip_space(&c);
    *where = (size_t)(c.p - text);
    return ok && c.p == c.end;
}

/* ---- Walking what was checked ------------------------------------------------------------------------------------ */

static bool ends_word(char c)
{
    return is_space(c) || c == ',' || c == ':' || c == ']' || c == '}';
}

/* Past a string: to the quote that an even number of backslashes is in front of. */
static void skip_string(struct cursor *c)
{
    const char *from = ++c->p, *quote, *slash;
    do {
        quote = memchr(c->p, '"', (size_t)(c->end - c->p));
        for (slash = quote; slash > from && slash[-1] == '\\';)
            slash--;
        c->p = from = quote + 1;
    } while ((quote - slash) % 2);
}

/* Past the value at p. Brackets are counted, strings stepped over: no recursion, no checks. Values inside of others are
 * gone over once for each value around them, so it is quick about what is long: strings. */
static void skip_value(struct cursor *c)
{
    int depth = 0;
    skip_space(c);
    do {
        char ch = *c->p;
        if (ch == '"') {
            skip_string(c);
        } else if (ch == '{' || ch == '[') {
            depth++;
            c->p++;
        } else if (ch == '}' || ch == ']') {
            depth--;
            c->p++;
        } else if (ends_word(ch)) {
            c->p++;
        } else {
            while (c->p < c->end && !ends_word(*c->p))
                c->p++;
        }
    } while (depth > 0);
}

static struct json value_at(struct cursor *c)
{
    skip_space(c);
    struct json v = { .p = c->p };
    skip_value(c);
    v.n = (size_t)(c->p - v.p);
    return v;
}

struct json json_value(const char *text, size_t n)
{
    struct cursor c = { text, text + n };
    return value_at(&c);
}

bool json_is(struct json v, char kind)
{
    return v.p && (kind == '0' ? *v.p == '-' || (*v.p >= '0' && *v.p <= '9') : *v.p == kind);
}

bool json_true(struct json v)
{
    return json_is(v, 't');
}

struct json json_next(struct json array, struct json previous)
{
    if (!json_is(array, '['))
        return (struct json){ 0 };
    struct cursor c = { previous.p ? previous.p + previous.n : array.p + 1, array.p + array.n };
    skip_space(&c);
    take(&c, ',');
    skip_space(&c);
    return *c.p == ']' ? (struct json){ 0 } : value_at(&c);
}

struct json json_next_member(struct json object, struct json previous, struct json *name)
{
    if (!json_is(object, '{'))
        return (struct json){ 0 };
    struct cursor c = { previous.p ? previous.p + previous.n : object.p + 1, object.p + object.n };
    skip_space(&c);
    take(&c, ',');
    skip_space(&c);
    if (*c.p == '}')
        return (struct json){ 0 };
    *name = value_at(&c);
    skip_space(&c);
    take(&c, ':');
    return value_at(&c);
}

struct json json_get(struct json v, const char *name)
{
    struct buf key = { 0 };
    struct json found = { 0 }, key_at;
    for (struct json m = json_next_member(v, found, &key_at); m.p; m = json_next_member(v, m, &key_at)) {
        buf_clear(&key);
        json_string(key_at, &key);
        if (key.n == strlen(name) && memcmp(buf_text(&key), name, key.n) == 0)
            found = m;
    }
    buf_free(&key);
    return found;
}

bool json_int(struct json v, int64_t *out)
{
    char text[32], *end;
    if (!json_is(v, '0') || v.n >= sizeof text)
        return false;
    memcpy(text, v.p, v.n);
    text[v.n] = 0;
    *out = strtoll(text, &end, 10);
    return *end == 0;
}

/* ---- Strings ----------------------------------------------------------------------------------------------------- */

static uint32_t hex4(const char *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 4 | (uint32_t)hex_digit(p[i]);
    return v;
}

static void put_utf8(struct buf *out, uint32_t c)
{
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3F));
    s[0] = (char)(lead[n] | c);
    buf_add(out, s, n);
}

/* p is at the four digits of a \u; returns past what was used. A surrogate without its half is U+FFFD. */
static const char *put_escape(struct buf *out, const char *p)
{
    uint32_t c = hex4(p);
    p += 4;
    if (c >= 0xD800 && c < 0xDC00 && p[0] == '\\' && p[1] == 'u') {
        uint32_t low = hex4(p + 2);
        if (low >= 0xDC00 && low < 0xE000) {
            put_utf8(out, 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00));
            return p + 6;
        }
    }
    put_utf8(out, c >= 0xD800 && c < 0xE000 ? 0xFFFD : c);
    return p;
}

void json_string(struct json v, struct buf *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (!json_is(v, '"'))
        return;
    buf_reserve(out, v.n);
    for (const char *p = v.p + 1, *end = v.p + v.n - 1; p < end;) {
        if (*p != '\\') {
            const char *slash = memchr(p, '\\', (size_t)(end - p)), *to = slash ? slash : end;
            buf_add(out, p, (size_t)(to - p));
            p = to;
        } else if (p[1] == 'u') {
            p = put_escape(out, p + 2);
        } else {
            buf_add(out, &values[strchr(names, p[1]) - names], 1);
            p += 2;
        }
    }
}

static void quote_ascii(struct buf *out, uint32_t c)
{
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    const char *at = c ? memchr(values, (int)c, sizeof values - 1) : NULL;
    if (at && c < 0x80)
        buf_add(out, (char[]){ '\\', names[at - values] }, 2);
    else if (c >= 0x20 && c < 0x7F)
        buf_add(out, (char[]){ (char)c }, 1);
    else if (c < 0x10000)
        buf_printf(out, "\\u%04x", c);
    else
        buf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
}

void json_quote(struct buf *out, const char *text, size_t n, bool only_ascii)
{
    buf_puts(out, "\"");
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence(text + i, n - i);
        uint32_t c = len ? utf8_code_point(text + i, len) : 0xFFFD;
        if (len > 1 && !only_ascii && !utf8_is_control(c))
            buf_add(out, text + i, len);
        else
            quote_ascii(out, c);
        i += len ? len : 1;
    }
    buf_puts(out, "\"");
}

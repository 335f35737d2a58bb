/* UTF-8: reading, writing, checking, and where a stream may be cut. See utf8.h. */
#include "text/utf8.h"

#include "pfmoe.h"

/* What follows from a lead byte: the sequence's length and the range of its second byte. The range keeps out overlong
 * forms (E0, F0), surrogates (ED) and numbers above U+10FFFF (F4). len 0: no lead byte. */
struct lead {
    unsigned len, lo, hi;
};

static struct lead lead_of(unsigned char b)
{
    if (b < 0x80)
        return (struct lead){ 1, 0, 0 };
    if (b < 0xC2 || b > 0xF4)
        return (struct lead){ 0, 0, 0 };
    if (b < 0xE0)
        return (struct lead){ 2, 0x80, 0xBF };
    if (b < 0xF0)
        return (struct lead){ 3, b == 0xE0 ? 0xA0 : 0x80, b == 0xED ? 0x9F : 0xBF };
    return (struct lead){ 4, b == 0xF0 ? 0x90 : 0x80, b == 0xF4 ? 0x8F : 0xBF };
}

size_t pf_utf8_next(const char *p, size_t n, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    struct lead lead = lead_of(s[0]);
    *cp = PF_UTF8_BAD;
    if (lead.len == 0 || lead.len > n || s[1] < lead.lo || s[1] > lead.hi)
        return 1;
    uint32_t value = s[0] & (0x7Fu >> lead.len);
    value = value << 6 | (s[1] & 0x3F);
    for (unsigned i = 2; i < lead.len; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 1;
        value = value << 6 | (s[i] & 0x3F);
    }
    *cp = value;
    return lead.len;
}

size_t pf_utf8_put(char *out, uint32_t cp)
{
    unsigned char *o = (unsigned char *)out;
    if (cp < 0x80) {
        o[0] = (unsigned char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, cp >>= 6)
        o[i] = 0x80 | (cp & 0x3F);
    o[0] = (unsigned char)(0xF00 >> len) | (unsigned char)cp;
    return len;
}

size_t pf_utf8_valid(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        size_t len = pf_utf8_next(p + i, n - i, &cp);
        if (pf_utf8_is_bad(len, cp))
            break;
        i += len;
    }
    return i;
}

size_t pf_utf8_complete(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    /* Only a lead byte among the last three can wait for more; the bytes between it and the end must fit it so far. */
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const unsigned char *p = s + len - back;
        if ((*p & 0xC0) == 0x80)
            continue;
        struct lead lead = lead_of(*p);
        bool waits = lead.len > back && (back < 2 || (p[1] >= lead.lo && p[1] <= lead.hi));
        return waits ? len - back : len;
    }
    return len;
}

/* Repair and NFC. See norm.h.
 *
 * NFC is: decompose every character, sort each run of combining marks by combining class, compose again. utf8proc
 * does the first and the last; its own sort takes quadratic time on long runs of marks, so it gets its input sorted
 * already. */
#include "text/norm.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "base/pf_mem.h"
#include "text/utf8.h"

enum { MAX_DECOMPOSED = 4 };             /* characters that one character becomes canonically, in any Unicode version */

/* Below U+0300 everything is NFC already, and nothing above is composed with what is below unless it is there itself.
 * */
static bool is_plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] >= 0xCC)
            return false;
    return true;
}

static pf_status repair(const char *text, size_t len, char **out, size_t *n)
{
    size_t start = pf_utf8_valid(text, len), bad = 0;
    uint32_t cp;
    for (size_t i = start, k; i < len; i += k) {
        k = pf_utf8_next(text + i, len - i, &cp);
        bad += pf_utf8_is_bad(k, cp);
    }
    if (!bad)
        return PF_OK;
    char *to = *out = pf_alloc(PF_MEM_TEXT, len + 2 * bad);
    if (!to)
        PF_FAIL(PF_ENOMEM, "no memory for a copy of %zu bytes of text", len);
    for (size_t i = 0, k; i < len; i += k) {
        k = pf_utf8_next(text + i, len - i, &cp);
        to += pf_utf8_put(to, cp);
    }
    *n = (size_t)(to - *out);
    return PF_OK;
}

static int class_of(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of n marks by combining class: by insertion when few, else by counting. tmp holds n. */
static void sort_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *tmp)
{
    if (n < 16) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t mark = marks[i];
            size_t at = i;
            for (; at > 0 && class_of(marks[at - 1]) > class_of(mark); at--)
                marks[at] = marks[at - 1];
            marks[at] = mark;
        }
        return;
    }
    size_t start[257] = { 0 };
    for (size_t i = 0; i < n; i++)
        start[class_of(marks[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        tmp[start[class_of(marks[i])]++] = marks[i];
    memcpy(marks, tmp, n * sizeof *marks);
}

/* tmp holds as many characters as cps. */
static void sort_all_marks(utf8proc_int32_t *cps, size_t n, utf8proc_int32_t *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && class_of(cps[end]) > 0)
            end++;
        sort_marks(cps + i, end - i, tmp);
        i = end > i ? end : i + 1;
    }
}

/* text is well-formed. Work space: the decomposed characters and as many again for sorting. */
static pf_status compose(const char *text, size_t len, char **out, size_t *n)
{
    size_t n_chars = 0, n_cps = 0;
    for (size_t i = 0; i < len; i++)
        n_chars += (text[i] & 0xC0) != 0x80;
    size_t cap = MAX_DECOMPOSED * n_chars;
    utf8proc_int32_t *cps = pf_alloc_array(PF_MEM_TEXT, 2 * cap, sizeof *cps);
    if (!cps)
        PF_FAIL(PF_ENOMEM, "no memory for the %zu characters of a text being normalised", n_chars);
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += pf_utf8_next(text + i, len - i, &cp);
        n_cps += (size_t)utf8proc_decompose_char((utf8proc_int32_t)cp, cps + n_cps, (utf8proc_ssize_t)(cap - n_cps),
                                                 UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
    }
    sort_all_marks(cps, n_cps, cps + cap);
    n_cps = (size_t)utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n_cps, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    *out = pf_alloc(PF_MEM_TEXT, 4 * n_cps);
    *n = 0;
    for (size_t i = 0; *out && i < n_cps; i++)
        *n += pf_utf8_put(*out + *n, (uint32_t)cps[i]);
    pf_free(cps);
    if (!*out)
        PF_FAIL(PF_ENOMEM, "no memory for a normalised copy of %zu characters", n_cps);
    return PF_OK;
}

pf_status pf_normalise(const char *text, size_t len, bool nfc, char **out, size_t *n)
{
    *out = NULL;
    *n = len;
    PF_TRY(repair(text, len, out, n));
    char *repaired = *out;
    if (!nfc || is_plain(repaired ? repaired : text, *n))
        return PF_OK;
    *out = NULL;
    pf_status st = compose(repaired ? repaired : text, *n, out, n);
    pf_free(repaired);
    return st;
}

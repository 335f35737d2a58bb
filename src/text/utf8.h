/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. Pure functions; any thread.
 *
 * A byte that belongs to no well-formed sequence is a character of its own, length 1, read as U+FFFD. So every byte
 * string is a row of characters, and walking over it can never get stuck or run past the end. pf_utf8_complete of
 * pfmoe.h has its body in utf8.c too. */
#ifndef PF_UTF8_H
#define PF_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PF_UTF8_BAD = 0xFFFD };

/* The character at p, of n > 0 bytes left: stores its code point and returns its length, 1 to 4. */
size_t pf_utf8_next(const char *p, size_t n, uint32_t *cp);

/* Whether the character just read from p with this length and code point was an ill-formed byte. */
static inline bool pf_utf8_is_bad(size_t len, uint32_t cp)
{
    return len == 1 && cp == PF_UTF8_BAD;
}

/* Writes at most 4 bytes; returns how many. */
size_t pf_utf8_put(char *out, uint32_t cp);

/* Length of the longest well-formed prefix. */
size_t pf_utf8_valid(const char *p, size_t n);

#endif

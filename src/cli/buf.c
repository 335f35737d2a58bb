/* See buf.h. */
#define _GNU_SOURCE
#include "buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *fmt, va_list args)
{
    fflush(stdout);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
}

void complain(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
}

void die(int status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
    exit(status);
}

void *xrealloc(void *p, size_t n, size_t size)
{
    void *grown = reallocarray(p, n ? n : 1, size);
    if (!grown)
        die(EXIT_FAILED, "out of memory");
    return grown;
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xrealloc(NULL, n, 1), s, n);
}

void buf_reserve(struct buf *b, size_t more)
{
    if (b->p && more < b->cap - b->n)
        return;
    b->cap = 2 * b->cap + more + 64;
    b->p = xrealloc(b->p, b->cap, 1);
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    buf_reserve(b, n);
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char *text;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0)
        die(EXIT_FAILED, "out of memory");
    buf_add(b, text, (size_t)n);
    free(text);
}

void buf_drop(struct buf *b, size_t n)
{
    if (n == 0)
        return;
    memmove(b->p, b->p + n, b->n - n + 1);
    b->n -= n;
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    if (b->p)
        b->p[0] = 0;
}

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){ 0 };
}

const char *buf_text(const struct buf *b)
{
    return b->p ? b->p : "";
}

bool buf_read_file(struct buf *b, const char *path)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!f)
        return false;
    size_t n;
    do {
        buf_reserve(b, 1 << 16);
        n = fread(b->p + b->n, 1, b->cap - b->n - 1, f);
        b->n += n;
        b->p[b->n] = 0;
    } while (n > 0);
    int error = ferror(f) ? errno : 0;
    if (f != stdin)
        fclose(f);
    errno = error;
    return error == 0;
}

size_t utf8_sequence(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0)
        return 0;
    if (u[0] < 0x80)
        return 1;
    size_t len = u[0] >= 0xC2 && u[0] < 0xE0 ? 2 : u[0] >= 0xE0 && u[0] < 0xF0 ? 3
               : u[0] >= 0xF0 && u[0] < 0xF5 ? 4 : 0;
    if (len == 0 || n < len)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    /* overlong, surrogate, beyond U+10FFFF */
    if ((u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xED && u[1] > 0x9F) || (u[0] == 0xF0 && u[1] < 0x90) ||
        (u[0] == 0xF4 && u[1] > 0x8F))
        return 0;
    return len;
}

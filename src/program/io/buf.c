/* See buf.h. */
#define _GNU_SOURCE
#include "program/io/buf.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die_of_memory(void) __attribute__((noreturn));

/* One message a write, so that messages of two programs on one terminal do not mix. */
static void say(const char *fmt, va_list args)
{
    struct buf line = { 0 };
    buf_add_clean(&line, program_invocation_short_name, strlen(program_invocation_short_name));
    buf_puts(&line, ": ");
    buf_vprintf_clean(&line, fmt, args);
    buf_puts(&line, "\n");
    fflush(stdout);
    fputs(line.p, stderr);
    buf_free(&line);
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

/* die needs memory; this does not. */
static void die_of_memory(void)
{
    fflush(stdout);
    fputs(program_invocation_short_name, stderr);
    fputs(": out of memory\n", stderr);
    exit(EXIT_FAILED);
}

void die_of_option(int refused, char **argv)
{
    const char *word = argv[optind - 1];
    int n = (int)strcspn(word, "=");
    bool is_letter = optopt > 0 && optopt < 256;
    char letter[] = { '-', (char)optopt, 0 };
    if (is_letter) {
        word = letter;
        n = 2;
    }
    if (refused == ':')
        die(EXIT_USAGE, "%.*s needs a value (see --help)", n, word);
    if (optopt && !is_letter)
        die(EXIT_USAGE, "%.*s takes no value (see --help)", n, word);
    die(EXIT_USAGE, "%.*s is not an option, or the beginning of more than one (see --help)", n, word);
}

void *xrealloc(void *p, size_t n, size_t size)
{
    void *grown = reallocarray(p, n ? n : 1, size);
    if (!grown)
        die_of_memory();
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
        die_of_memory();
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

uint32_t utf8_code_point(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c = n == 1 ? u[0] : u[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (u[i] & 0x3F);
    return c;
}

bool utf8_is_control(uint32_t c)
{
    bool c0 = c < 0x20 && c != '\n' && c != '\t', del_c1 = c >= 0x7F && c < 0xA0;
    bool bidi_mark = c == 0x061C || c == 0x200E || c == 0x200F;
    bool bidi_span = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
    return c0 || del_c1 || bidi_mark || bidi_span;
}

static void add_characters(struct buf *b, const char *text, size_t n, bool controls)
{
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence(text + i, n - i);
        bool bad = len == 0 || text[i] == 0 || (!controls && utf8_is_control(utf8_code_point(text + i, len)));
        buf_add(b, bad ? "\xEF\xBF\xBD" : text + i, bad ? 3 : len);
        i += len ? len : 1;
    }
}

void buf_add_utf8(struct buf *b, const char *text, size_t n)
{
    add_characters(b, text, n, true);
}

void buf_add_clean(struct buf *b, const char *text, size_t n)
{
    add_characters(b, text, n, false);
}

void buf_vprintf_clean(struct buf *b, const char *fmt, va_list args)
{
    char *text;
    int n = vasprintf(&text, fmt, args);
    if (n < 0)
        die_of_memory();
    buf_add_clean(b, text, (size_t)n);
    free(text);
}

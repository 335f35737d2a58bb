/* A growing run of bytes, and the few things that a program may do and the library may not: end with a message. */
#ifndef PF_PROGRAM_BUF_H
#define PF_PROGRAM_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit statuses of pfmoe-run. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* All zero is empty. p is followed by a 0 byte that n does not count, except while p is NULL. */
struct buf {
    char  *p;
    size_t n, cap;
};

/* Prints "pfmoe-run: ..." on stderr, clean (below), and ends the program. */
void die(int status, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Prints "pfmoe-run: ..." on stderr, clean. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Ends the program over what getopt_long refused, with opterr 0 and ':' in front of the letters: names the option. */
void die_of_option(int refused, char **argv) __attribute__((noreturn));

/* Allocate memory; where there is none left, the program ends. */
void *xrealloc(void *p, size_t n, size_t size);
char *xstrdup(const char *s);

void buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_drop(struct buf *b, size_t n);          /* removes the first n bytes */
void buf_clear(struct buf *b);                   /* keeps the memory */
void buf_free(struct buf *b);
/* The text, never NULL; borrowed until the next change. */
const char *buf_text(const struct buf *b);

/* Reads a whole file, "-" being standard input. False with errno set. */
bool buf_read_file(struct buf *b, const char *path);

/* Length of the well-formed UTF-8 sequence at s, 0 if there is none; and the character that such a sequence is. */
size_t utf8_sequence(const char *s, size_t n);
uint32_t utf8_code_point(const char *s, size_t n);

/* Whether a character does something to a terminal or to what is read on it, instead of being seen: C0 but newline and
 * tab, DEL, C1, and the marks, overrides and isolates of bidirectional text. */
bool utf8_is_control(uint32_t c);

/* Appends text with U+FFFD in the place of each byte that is no UTF-8 and of U+0000; `clean` in the place of each
 * control too. Text that came from a file, a model, the environment or the command line reaches a terminal through
 * buf_add_clean alone: the messages of die, complain and note (term.h), --info, the names in tables, and answers. */
void buf_add_utf8(struct buf *b, const char *text, size_t n);
void buf_add_clean(struct buf *b, const char *text, size_t n);
void buf_vprintf_clean(struct buf *b, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));

#endif

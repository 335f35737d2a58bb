/* A growing run of bytes, and the few things that a program may do and the library may not: end with a message. */
#ifndef PF_CLI_BUF_H
#define PF_CLI_BUF_H

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

/* Prints "pfmoe-run: ..." on stderr and ends the program. */
void die(int status, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Prints "pfmoe-run: ..." on stderr. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Memory; running out of it ends the program. */
void *xrealloc(void *p, size_t n, size_t size);
char *xstrdup(const char *s);

void buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_drop(struct buf *b, size_t n);          /* its first n bytes */
void buf_clear(struct buf *b);                   /* keeps the memory */
void buf_free(struct buf *b);
/* The text, never NULL; borrowed until the next change. */
const char *buf_text(const struct buf *b);

/* Reads a whole file, "-" being standard input. False with errno set. */
bool buf_read_file(struct buf *b, const char *path);

/* Length of the well-formed UTF-8 sequence at s, 0 if there is none. */
size_t utf8_sequence(const char *s, size_t n);

#endif

/* Checked writes to standard output. One that fails ends the program with a message and status 1, and one to a pipe
 * that nobody reads any more silently by SIGPIPE, after the handlers of exit(). */
#ifndef PF_PROGRAM_OUT_H
#define PF_PROGRAM_OUT_H

#include <stddef.h>

void out_write(const void *p, size_t n);
void out_puts(const char *s);
void out_flush(void);
void out_close(void);                             /* at the end: the last chance to see that the disk was full */

/* The first of the handlers of exit() to be registered, so that the others have done their work when it runs; SIGPIPE
 * is ignored until then. */
void out_leave(void);

#endif

/* See out.h. */
#include "program/io/out.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/io/buf.h"

static bool pipe_closed;                 /* nobody reads standard output any more */

static void cannot_write(void)
{
    int error = errno;
    pipe_closed = error == EPIPE;
    if (pipe_closed)
        exit(EXIT_FAILED);
    die(EXIT_FAILED, "cannot write to standard output: %s", strerror(error));
}

void out_write(const void *p, size_t n)
{
    if (n && fwrite(p, 1, n, stdout) != n)
        cannot_write();
}

void out_puts(const char *s)
{
    out_write(s, strlen(s));
}

void out_flush(void)
{
    if (fflush(stdout) != 0)
        cannot_write();
}

void out_close(void)
{
    if (ferror(stdout) || fclose(stdout) != 0)
        cannot_write();
}

void out_leave(void)
{
    if (!pipe_closed)
        return;
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

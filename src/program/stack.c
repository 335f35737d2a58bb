/* See stack.h. */
#include "program/stack.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

#include "program/io/buf.h"

enum { ENOUGH_BYTES = 2 << 20 };

struct call {
    int (*fn)(int argc, char **argv);
    int argc, status;
    char **argv;
};

static void *run(void *ctx)
{
    struct call *c = ctx;
    c->status = c->fn(c->argc, c->argv);
    return NULL;
}

int stack_run(int (*fn)(int argc, char **argv), int argc, char **argv)
{
    struct call c = { fn, argc, EXIT_FAILED, argv };
    struct rlimit limit;
    pthread_attr_t attr;
    pthread_t thread;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= ENOUGH_BYTES)
        return fn(argc, argv);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, ENOUGH_BYTES);
    int err = pthread_create(&thread, &attr, run, &c);
    if (err)
        die(EXIT_FAILED, "no thread with a stack that is large enough: %s", strerror(err));
    pthread_join(thread, NULL);
    return c.status;
}

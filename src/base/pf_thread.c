/* See pf_thread.h. */
#include "base/pf_thread.h"

int pf_thread_start(pthread_t *thread, void *(*fn)(void *), void *ctx)
{
    enum { STACK_BYTES = 2 << 20 };      /* the largest frame, attention's, is 100 KiB, with sanitizers more */
    pthread_attr_t attr;
    int err = pthread_attr_init(&attr);
    if (err)
        return err;
    err = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (!err)
        err = pthread_create(thread, &attr, fn, ctx);
    pthread_attr_destroy(&attr);
    return err;
}

/* Starting the library's own threads. */
#ifndef PF_THREAD_H
#define PF_THREAD_H

#include <pthread.h>

/* pthread_create with a stack that kernels fit in: by default a thread's stack is as large as the program's limit for
 * its first one, which may be next to nothing. The error number, 0 if none. */
int pf_thread_start(pthread_t *thread, void *(*fn)(void *), void *ctx);

#endif

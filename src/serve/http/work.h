/* A few threads that read requests, render and tokenize prompts, so that neither the http thread nor the scheduler
 * waits for that. Work is done in the order in which it came. */
#ifndef PF_SERVE_WORK_H
#define PF_SERVE_WORK_H

#include <stdbool.h>

void work_open(void);
/* From any thread. False: too much is waiting; fn will not be called. */
bool work_add(void (*fn)(void *ctx), void *ctx);
/* Ends the threads; what waits is done before. */
void work_close(void);

#endif

/* A few threads that read requests, render and tokenize prompts, so that neither the http thread nor the scheduler
 * waits for that. Work is done in the order in which it came, but long work has a thread of its own, for which no other
 * work waits, and which gives way where cores are short. */
#ifndef PF_SERVE_WORK_H
#define PF_SERVE_WORK_H

#include <stdbool.h>

void work_open(void);
enum work_kind { WORK_SHORT, WORK_LONG };
/* From any thread. False: too much is waiting; fn will not be called. */
bool work_add(enum work_kind kind, void (*fn)(void *ctx), void *ctx);
/* Ends the threads; what waits is done before. */
void work_close(void);

#endif

/* A few threads that read requests, render and tokenize prompts, so that neither the http thread nor the scheduler
 * waits for that. Clients take turns (turns.h), and the last free thread is for one that has none. Long work has a
 * thread of its own, for which no other work waits, and which gives way where cores are short. */
#ifndef PF_SERVE_WORK_H
#define PF_SERVE_WORK_H

#include "serve/http/turns.h"

void work_open(void);
enum work_kind { WORK_SHORT, WORK_LONG };
/* From any thread. Calls fn, or refused, where too much is waiting, for the last of the client that has most there. */
void work_add(enum work_kind kind, const struct client *who, void (*fn)(void *ctx), void (*refused)(void *ctx),
              void *ctx);
/* Ends the threads; what waits is done before. */
void work_close(void);

#endif

/* The journal: a line on standard error for each generation when it is over. It says when, who asked for what, and what
 * came of it in numbers; of texts it has nothing.
 *
 *     14:03:21 127.0.0.1 /v1/messages 1203 tokens (1180 kept) in 0.21 s, 245 in 5.12 s (47.9/s): stop
 *     14:03:30 127.0.0.1 /v1/chat/completions 400: messages[2].content: must be a string
 *
 * Any thread. Nobody is kept waiting by who does not read standard error: a line that would have to wait is left out,
 * and the next one that does not says how many were. */
#ifndef PF_SERVE_JOURNAL_H
#define PF_SERVE_JOURNAL_H

#include "serve/job.h"

/* Before any thread writes. Without `wanted` no line is written. */
void journal_open(bool wanted);
/* The job has its whole answer. */
void journal_answered(const struct job *j);
/* The job's client has gone. */
void journal_gone(const struct job *j);
/* The exchange got an error. */
void journal_failed(const struct exchange *x, const struct trouble *t);

#endif

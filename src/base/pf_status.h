/* Status codes inside the library: how a function says that it failed, and why.
 *
 * Every function that can fail returns pf_status (include/pfmoe.h). The first line that notices a failure of the
 * world (a bad file, no memory, a full context) sets code and message with PF_FAIL; everything above it forwards
 * the code with PF_TRY and adds nothing. The message is one sentence that names the field, the file and the offset
 * or the flag, holds no control characters, and belongs to the calling thread until that thread's next failure.
 *
 * asserts are for our own mistakes, statuses for the world. Thread-safe: the message is thread-local. */
#ifndef PF_STATUS_H
#define PF_STATUS_H

#include "pfmoe.h"

/* Stores the message for pf_last_error() and returns st, so that a failing line reads `return pf_fail(...)`. */
pf_status pf_fail(pf_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Return a failure from the current function. */
#define PF_FAIL(st, ...) return pf_fail((st), __VA_ARGS__)

/* Evaluate a call that returns pf_status; forward its failure. */
#define PF_TRY(call)                        \
    do {                                    \
        pf_status try_status_ = (call);     \
        if (try_status_ < 0)                \
            return try_status_;             \
    } while (0)

/* PF_TRY inside a function with one `fail:` label that cleans up; `st` is its local pf_status. */
#define PF_TRY_GOTO(st, call)               \
    do {                                    \
        (st) = (call);                      \
        if ((st) < 0)                       \
            goto fail;                      \
    } while (0)

#endif

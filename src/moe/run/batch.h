/* New tokens on their way into their sessions, several sessions at a time. Used by evaluate.c alone,
 * but for pf_forward, which batch.c calls. */
#ifndef PF_BATCH_H
#define PF_BATCH_H

#include "moe/session/step.h"

/* Tokens that are appended to a session. The caller sets the first three fields. */
struct pf_piece {
    struct pf_session *s;
    const int32_t     *tok;
    size_t             n;
    int64_t            first, end;           /* their positions */
    int64_t            stop;                 /* where steps must not go past next, since there is something to keep */
    bool               catches_up;           /* on the way to `first` */
    bool               keeps;                /* checkpoints are made */
    bool               done;
};

/* Appends each piece to its session, after what the session has to catch up with, and leaves logits of the last token,
 * or, where s->all_logits is not NULL, of all of them. Sessions are distinct and of one model, pieces at most
 * PF_MAX_BATCH_PARTS and not empty. On failure each sequence is as far as it came. */
pf_status pf_append(struct pf_piece *pieces, int n);

/* forward.c: runs a step. Reads and writes keys and values of the sessions, their `next`, and the model's buffers;
 * commits nothing. */
pf_status pf_forward(struct pf_step *t);

#endif

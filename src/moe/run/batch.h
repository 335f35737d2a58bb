/* New tokens on their way into their sessions, several sessions at a time. For the files of this
 * directory. */
#ifndef PF_BATCH_H
#define PF_BATCH_H

#include "moe/session/step.h"

/* Tokens that are appended to a session. The caller sets the fields in front of `first`, and the others to 0; or the
 * piece has failed already. */
struct pf_piece {
    struct pf_session *s;
    const int32_t     *tok;
    size_t             n;
    int                n_drafts;             /* so many of them, the last ones, are drafts: s->logits gets the logits of
                                                all of them */
    float             *logits;               /* [n][n_vocab] where those of all of them go; NULL: those of the last one
                                                go to s->logits */
    int64_t            first, end;           /* their positions */
    int64_t            stop;                 /* where steps must not go past next, since there is something to keep */
    bool               catches_up;           /* on the way to `first` */
    bool               keeps;                /* checkpoints are made */
    int64_t            kept_at;              /* where the last one was made on the way, or the way began */
    bool               one_by_one;           /* steps that were made at once have failed */
    bool               done;
    pf_status          status;               /* below 0: it failed, and s->why says why */
};

/* settle.c: makes the state what it is after the computed positions. With the step lock held. A failure can be tried
 * again, or is lost with its device. */
pf_status pf_settle(struct pf_session *s);
/* Goes over the last inputs of so many rows. */
pf_status pf_settle_rows(struct pf_session *s, int rows);

/* Appends each piece to its session, after what the session has to catch up with, and leaves logits. Sessions are
 * distinct and of one model, pieces at most PF_MAX_BATCH_PARTS and not empty. A piece that fails leaves its sequence as
 * far as it came, has its status, and does not keep the others from going on. */
void pf_append(struct pf_piece *pieces, int n);
/* The piece failed with st, for the reason that pf_last_error has. */
void pf_piece_fail(struct pf_piece *p, pf_status st);

/* evaluate.c: the session has no logits; its sequence ends at pos. */
void pf_drop_logits(struct pf_session *s);
void pf_go_back(struct pf_session *s, int64_t pos);

/* The part, which is checked, as a piece; its session has no logits any more. It may have failed. */
struct pf_piece pf_piece_of(const struct pf_batch_part *part);

/* ahead.c: whether drafts may be taken along; evaluates parts, which are checked. */
bool pf_ahead_suits(const struct pf_batch_part *parts, size_t n_parts);
void pf_ahead_eval(struct pf_batch_part *parts, size_t n_parts);

/* Makes a step and takes its time; commits nothing. With the step lock held. */
pf_status pf_step_make(struct pf_step *t, uint64_t *ns);

/* forward.c: runs a step. Reads and writes keys and values of the sessions, their `next`, and the model's buffers;
 * commits nothing. */
pf_status pf_forward(struct pf_step *t);
/* Whether the last step has left cards or processes at work: pf_step.follows. The step lock is held until they are not,
 * by the steps that follow, or, where the last of these failed with st, by close, which waits for them: if what they
 * did was bad, the session has computed nothing. Returns st, for the reason that pf_last_error has. */
bool      pf_forward_is_open(const struct pf_model *m);
pf_status pf_forward_close(struct pf_session *s, pf_status st);

#endif

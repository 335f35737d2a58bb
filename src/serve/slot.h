/* A slot: a session, the job that has it, and how far the choice is that it makes. The scheduler's thread alone.
 *
 *     slot_give -> slot_take_prefix -> slot_took, slice by slice of the prompt -> slot_took, token by token
 *                        ^                         next choice that no slot has <-'      `-> end, or slot_fail
 *                        `-------------------------------' */
#ifndef PF_SERVE_SLOT_H
#define PF_SERVE_SLOT_H

#include "serve/answer.h"

struct slot {
    const pf_model *m;
    const char *family;              /* of replies: pf_reply_family's word */
    pf_session *session;             /* NULL: not opened yet */
    struct job *job;                 /* NULL: free; the sequence stays, for the next prompt that begins like it */
    bool        answering;           /* the prompt is evaluated */
    bool        unsaved;             /* the sequence is not among the saved ones */
    bool        fresh;               /* nothing of the prompt was evaluated yet */
    size_t      n_done;              /* prompt tokens that the session has */
    int64_t     prompt_end;          /* positions of the last prompt */
    int         choice;
    int64_t     n_answer;            /* of this choice */
    int32_t     next;                /* sampled, to be evaluated */
    struct pf_sampler sampler;
    struct answer     answer;
    uint64_t    drafted, accepted;   /* by the session, as far as no job or this one's usage has them */
    uint64_t    used;
};

/* How many of the tokens the slot's sequence begins with. */
size_t slot_common(const struct slot *s, const int32_t *tok, size_t n);
/* Gives the job's next choice to a slot that is free and has a session. */
void slot_give(struct slot *s, struct job *j);
/* Makes the slot's sequence the other one's; if that fails, it is empty. */
void slot_copy(struct slot *s, const struct slot *from);
/* Makes a slot's sequence what the prompt begins with. At least the prompt's last token is left to evaluate. */
pf_status slot_take_prefix(struct slot *s);
/* n tokens of the prompt, or the answer's next one, were evaluated: samples where it can, tells, ends. */
void slot_took(struct slot *s, size_t n);

void slot_take_times(struct slot *s);            /* into the job's usage */
/* The job is over with an error; why: a sentence, NULL: the thread's last. */
void slot_fail(struct slot *s, pf_status st, const char *why);
/* The slot is free. A job that no slot has is counted and freed. */
void slot_leave(struct slot *s);

#endif

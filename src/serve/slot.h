/* A slot: a session, the job that has it, and how far the choice is that it makes. The scheduler's thread alone; of a
 * slot that is moved, work aside (cache/aside.h) looks at the goal and fills the session.
 *
 *     slot_give -> slot_take_prefix -> slot_took, slice by slice of the prompt -> slot_took, token by token
 *                        ^                         next choice that no slot has <-'      `-> end, or slot_fail
 *                        `-------------------------------'
 *
 * Between two steps a slot can be given to others: what it was doing waits (slot_park), and goes on in any slot
 * (slot_resume) whose sequence is made what it was, from what is saved of it or by evaluating it again: the bits are
 * the same. */
#ifndef PF_SERVE_SLOT_H
#define PF_SERVE_SLOT_H

#include "serve/answer.h"
#include "serve/cache/aside.h"

struct slot {
    const pf_model *m;
    const char *family;              /* of replies: pf_reply_family's word */
    pf_session *session;             /* NULL: not opened yet */
    struct job *job;                 /* NULL: free; the sequence stays, for the next prompt that begins like it */
    bool        answering;           /* the prompt is evaluated */
    bool        unsaved;             /* the sequence may not be among the saved ones, so long and no longer */
    bool        fresh;               /* nothing of the prompt was evaluated yet */
    size_t      n_done;              /* tokens of slot_wants that the session has */
    int32_t    *left;                /* the sequence that was left when the slot was given to others, until it is there
                                        again; else NULL. One token more than n_left: what comes next */
    size_t      n_left;
    size_t      n_reused;            /* tokens of the prompt that were there when the choice began */
    size_t      n_shared;            /* what others begin with, too: copied or kept when so much is evaluated, or at
                                        once, where more is; 0: nothing */
    int64_t     prompt_end;          /* positions of the sequence's last prompt; 0: not known */
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
/* How many of them need not be evaluated, since the sequence can go back so far. */
size_t slot_spares(const struct slot *s, const int32_t *tok, size_t n);
/* Gives the job's next choice to a slot that is free and has a session. */
void slot_give(struct slot *s, struct job *j);
/* Makes the slot's sequence the first n tokens of the other one's; if that fails, it is empty or what it was. Pauses
 * where work aside does, and can be given up there. */
void slot_copy(struct slot *s, const struct slot *from, size_t n, struct aside *a);
/* What the slot's sequence is to begin with once it goes on, and what comes next. */
struct prompt slot_goal(const struct slot *s);
/* What is evaluated before the answer begins or goes on. */
const int32_t *slot_wants(const struct slot *s, size_t *n);
/* Makes a slot's sequence what that begins with. At least a prompt's last token is left to evaluate. */
pf_status slot_take_prefix(struct slot *s);
/* n tokens of slot_wants, or the answer's next one, were evaluated: samples where it can, tells, ends. */
void slot_took(struct slot *s, size_t n);
/* A slice of slot_wants was broken off: the slot goes on from what the session has of it. */
void slot_broken_off(struct slot *s);

void slot_take_times(struct slot *s);            /* into the job's usage */
/* The job is over with an error; why: a sentence, NULL: the thread's last. */
void slot_fail(struct slot *s, pf_status st, const char *why);
/* The slot is free. A job that no slot has is counted and freed. */
void slot_leave(struct slot *s);

/* Frees a slot in the middle of a choice. What is returned is no slot, since it has no session: it goes to slot_resume,
 * or to slot_forget, where nobody waits for the job. */
struct slot *slot_park(struct slot *s);
void slot_resume(struct slot *s, struct slot *parked);
void slot_forget(struct slot *parked);

#endif

/* The scheduler: one thread that owns all sessions (slots) and makes their steps.
 *
 *     sched_add -> queue -> a free slot, the one whose sequence has most of the prompt -> prompt, slice by slice
 *                    ^                                                                 -> answer, token by token
 *                    `--------------- what the slot was doing, when another client claims it ---'
 *
 * Slots go to clients in turns (http/turns.h). Where none is free, who has none, or less than he would leave to others,
 * claims one that was somebody's for a turn: a second, and longer where it takes long to go on afterwards. What a slot
 * was doing then waits in the queue, at the head of its client's requests.
 *
 * Every round is one batch: each answering slot has its next token in it, and prompts their next slice, whose
 * length keeps the round within the bound on pauses; prompts take turns, so a short one does not wait for a long
 * one. The long slice of a prompt that is alone is broken off when another request comes. Tokens that a session has
 * drafted rightly are taken before, and need no batch. The choices of one request are made together, in slots that
 * nobody waits for, and those of one prompt take over what the first one evaluated. What slots lose is saved, and what
 * was saved is loaded, aside (cache/aside.h), in slices between two rounds; the slot has no part in rounds meanwhile.
 * No bit of an answer depends on what else is under way. A client's going is seen between two rounds, of one that waits
 * (twenty times a second at most) as of one that has a slot. A move for it is given up then: the slot has the sequence
 * that it had, or a kept one's beginning, or none. */
#ifndef PF_SERVE_SCHEDULER_H
#define PF_SERVE_SCHEDULER_H

#include "serve/job.h"
#include "serve/cache/saved.h"

struct sched_opts {
    pf_model *m;
    struct pf_session_opts session;
    const char *family;              /* of replies: pf_reply_family's word */
    int       n_slots;
    int       queue;                 /* jobs that may wait for a slot */
    int64_t   pause_ms;              /* how long a prompt's slice may stop the others */
    int64_t   most_pause_ms;         /* the same while the prompt has less than half of its speed alone */
};
struct sched;

/* The first session is opened here; PF_ENOMEM and the like if it cannot be. */
pf_status sched_open(struct sched **out, const struct sched_opts *o);
int64_t   sched_n_ctx(const struct sched *s);
/* Before anything is added. saved: conversations without a slot, the scheduler's own; NULL: they are forgotten.
 * outlive: they outlive the program, so what slots have is saved, too, when there is nothing else to do. */
void      sched_start(struct sched *s, struct saved *saved, bool outlive);

/* Takes the job. Where the queue is full, the client that has most in it loses the last of that, which is answered with
 * an error. */
void sched_add(struct sched *s, struct job *j);
/* Whether the last step failed because something could not be read, the drive or another process of the model, which
 * may need the server to be started again; *why: the sentence. From any thread. */
bool sched_ill(struct sched *s, struct buf *why);
/* Ends when all jobs are done. */
void sched_close(struct sched *s);

#endif

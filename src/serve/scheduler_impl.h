/* What the scheduler's files share: scheduler.c (slots, the thread), waiting.c (the queue, turns and claims), moves.c
 * (sequences on their way), choices.c (those of one job), beginnings.c (what several prompts begin with), rounds.c
 * (what a step evaluates). The queue, `alone` and what is ill are guarded by the lock; all else is the thread's
 * own, and that of the work aside in its slices: the keeper, and the slots that are moved. */
#ifndef PF_SERVE_SCHEDULER_IMPL_H
#define PF_SERVE_SCHEDULER_IMPL_H

#include <pthread.h>

#include "serve/keep.h"
#include "serve/pace.h"
#include "serve/scheduler.h"

/* How often who waits is asked whether its client has gone, each asking being a call of the system, and the drive
 * whether a file is written. */
#define ASKED_S 0.05

enum { LEAST_SHARED = 256 };             /* tokens: fewer are sooner evaluated again than kept */

/* A time that does not come. */
#define NEVER 2e9

/* What waits for a slot: a job, or what one was doing when its slot was given to others. */
struct waiting {
    struct queued turn;               /* first */
    struct job  *job;
    struct slot *parked;             /* NULL: not begun */
};

static inline struct waiting *waiting_of(struct queued *turn)
{
    return (struct waiting *)turn;
}

/* Whose a slot is, and since when its job goes on; since 0: the sequence is not back yet. */
struct place {
    struct party *client;            /* NULL: free */
    double        given, since, returns_s;       /* returns_s: what that took */
    double        loses_s;           /* to make again what was there when the choice began; 0: it will be kept */
    uint64_t      served;            /* its prompt's last slice */
    bool          moves;             /* its sequence is, or is to be, exchanged or copied aside: no steps meanwhile */
    struct {
        const struct slot *slot;     /* NULL: none */
        const struct job  *job;      /* that the slot has */
        size_t n_tok;                /* that it is to have */
    } awaits;                        /* what evaluates the beginning of this one's prompt, too */
    struct {
        const struct job *job;       /* the last; it is not awaited again */
        int n;
    } in_vain;                       /* waiting that brought nothing */
};

/* What is evaluated together. */
struct round {
    struct pf_batch_part parts[PF_MAX_BATCH_PARTS];
    struct slot         *of[PF_MAX_BATCH_PARTS];
    size_t n, rows, prompt_rows;
};

struct sched {
    struct sched_opts o;
    struct slot      *slots;
    struct place     *places;        /* [n_slots] */
    int               n_slots;       /* that there is memory for */
    struct keeper     keeper;
    bool              outlive;       /* sched_start */
    struct aside     *aside;
    struct {
        struct slot *slot;           /* NULL: nothing is moved now */
        const struct slot *from;     /* whose sequence it gets; NULL: what is kept */
        bool stays;                  /* its sequence is kept, and nothing else happens to it */
        bool is_shared;              /* that is what others begin with */
    } moved;
    uint64_t          n_slices;      /* of prompts: the clock of served */
    uint64_t          n_used;
    double            step_s;        /* of the last round, while others wait for it; else 0 */
    struct pace       pace;
    struct {
        double s;
        size_t rows;
    } took[2];                       /* the last slice of a prompt that was alone, the last round of several alone */
    size_t            lone_rows;     /* that such a slice may have; few after somebody has come (rounds.c) */
    pthread_t         thread;
    pthread_mutex_t   lock;
    pthread_cond_t    more;
    struct turns      turns;         /* of struct waiting and places */
    double            busy;          /* when there was work last */
    double            asked;         /* when who waits was asked last whether its client has gone */
    struct {
        const struct round *round;   /* NULL: there is none */
        const struct place *place;   /* of the one that is in it; NULL: there is a free slot beside it */
        double end;
        bool   broken_off, is_joined;        /* is_joined: somebody has come who is part of the next one */
    } alone;                         /* the round that is under way, of prompts alone, which may take long (rounds.c) */
    bool              ending;
    struct buf        ill;           /* sched_ill's sentence; the thread's own to change, with the lock */
};

/* ---- scheduler.c ------------------------------------------------------------------------------------------------- */

bool          sched_any_free(const struct sched *s);
bool          sched_is_queue_empty(struct sched *s);
struct place *sched_place_of(const struct sched *sched, const struct slot *s);

/* The free slot for a prompt, opened if need be. -1: none is free. */
int  sched_choose_slot(struct sched *sched, const struct prompt *q);
/* Gives a free slot to a job's next choice, or to one that was begun (parked, else NULL). */
void sched_give_slot(struct sched *sched, struct slot *s, struct job *j, struct slot *parked, struct party *client);
/* Ends what clients who have gone were served. What is moved for one is given up; its job is let go of when that has
 * ended. */
void sched_drop_gone(struct sched *sched);

/* ---- moves.c ----------------------------------------------------------------------------------------------------- */

/* The slot's own sequence is kept, and stays. Where others await more of it, the slot stops again when it has that. */
void sched_begin_keeping(struct sched *sched, struct slot *s);
/* The slot gets what another one's sequence has of its prompt, and that one makes no steps meanwhile, either; from
 * NULL: what is kept of it. */
void sched_begin_move(struct sched *sched, struct slot *s, const struct slot *from);
/* What the slot that was given is to go on from may be kept, and what it has be lost: its turn begins afterwards. What
 * is being kept since nothing was to be done can wait, unless the slot is to lose it now. */
void sched_move_if_needed(struct sched *sched, struct slot *s);
/* A slice of what is to be moved, which ends when a drive is waited for, since prompts can go on meanwhile. */
void sched_move_sequences(struct sched *sched);

/* ---- choices.c --------------------------------------------------------------------------------------------------- */

/* Whether a slot's prompt is the one that its job's next choice goes on from, and long enough to be shared; and the
 * prompt tokens that it evaluates before others take them over: where a sequence cannot be cut short, all but the last,
 * whose logits each choice needs for itself. */
bool   sched_leads(const struct slot *s);
size_t sched_n_led(const struct sched *sched, const struct slot *s);
/* Whether a slot stays where it is for other choices, which are to take over what it has. */
bool   sched_stays_for_choices(const struct sched *sched, const struct slot *s);
/* Whether a slot that is another job's now may make choices which go on from what this one has: then that is kept,
 * since it is of no use to them once an answer has begun. */
bool   sched_is_kept_for_choices(const struct sched *sched, const struct slot *s);
/* Slots that nobody waits for make the other choices of the jobs that run, one job's after the other's. */
void   sched_share_slots(struct sched *sched);

/* ---- beginnings.c ------------------------------------------------------------------------------------------------ */

/* How much of the prompt that a slot was given other conversations begin with, if that is more than is kept so that it
 * can be used; else 0. For sequences that cannot be cut short, of which no other prompt could use the beginning: the
 * second one that begins so keeps it for the next. */
size_t sched_shared(struct sched *sched, const struct slot *s);
/* Where it is to be kept of a slot that has n_done tokens of its prompt, of which so many are shared; 0: nowhere. */
size_t sched_keeps_at(const struct sched *sched, const struct slot *s, size_t shared);
/* Whether the prompt is evaluated up to where others part from it (n_shared), and waits until that is kept. */
bool   sched_has_parted(const struct slot *s);
/* Whether a slot has as much as it was to stop for (n_shared), which others await, or which is to be kept now. */
bool   sched_is_kept_for_others(const struct sched *sched, const struct slot *s);
/* A prompt that begins like another one which is being evaluated, or answered, waits until the other slot has what
 * both begin with, rather than to evaluate it, too. False: there is none. */
bool   sched_await_other(struct sched *sched, struct slot *s);
/* Begins to copy what a slot has to one that awaits it; false: none does that could have it now. */
bool   sched_hand_on(struct sched *sched);
/* With the lock, while a round of prompts alone is made: whether what waits would await one of its slots. */
bool   sched_would_await(struct sched *sched, const struct waiting *w);
/* Where the slot is to stop next, for those who wait, behind what it has now; 0: nowhere. */
size_t sched_next_shared(const struct sched *sched, const struct slot *s);
/* Begins to keep what later prompts begin with, and lets go on who need not wait any longer. What is not kept now,
 * since a file is still being written, is not waited for. */
void   sched_keep_for_others(struct sched *sched);

/* ---- waiting.c: those of the thread, unless they say so with the lock -------------------------------------------- */

/* With the lock: when a client may claim the place. NEVER: not before others come or go. */
double sched_claimed_at(const struct place *p, const struct party *client);
/* With the lock: breaks off a round of prompts alone for what waits, where a slot is free or can be claimed before it
 * is over, unless the round is what it would wait for then. */
void sched_break_off(struct sched *s, const struct waiting *w);
/* With the lock: places of slots that jobs have left are given back; turns begin where sequences are what they were. */
void sched_settle_places(struct sched *s);

bool sched_is_gone(const struct job *j);
/* What is to have a slot now, the caller's, and its client; a slot is free then, or nobody waits for the job any more.
 * NULL: nothing waits, or there is no slot for it. */
struct waiting *sched_take_next(struct sched *s, struct party **client);
/* A slot that was to be given to the client is not. */
void sched_give_back(struct sched *s, struct party *client);
/* Lets go of a job for which nobody waits. */
void sched_forget(struct waiting *w);
/* Every ASKED_S: lets go of requests in the queue, or parked until their next turn, whose clients have gone; and tells
 * those that still wait for the beginning of a stream that it will come. */
void sched_look_after(struct sched *s);

/* ---- rounds.c ---------------------------------------------------------------------------------------------------- */

/* Whether slot i takes part in the next round. What others are to take over waits for the move that is under way, and
 * for no other. */
bool sched_is_ready(const struct sched *sched, int i);
/* The most rows of a slice of a prompt that is alone: those of a step, or of several where cards divide the layers,
 * which have several steps under way at once if these come in one call. */
size_t sched_lone_rows(const struct sched *s);
/* Makes one step of all slots that are ready. */
void sched_round(struct sched *s);

#endif

/* See scheduler.h. The queue, the lone step and what is ill are guarded by the lock; all else is the thread's own, and
 * that of the work aside in its slices: the keeper, and the slots that are moved. */
#define _GNU_SOURCE
#include "serve/scheduler.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/keep.h"
#include "serve/metrics.h"

/* How long a slot is a request's before a client that has none may claim it, and how many times as long as it took to
 * make the sequence what it was, would take then, or takes who claims it: so no more than a fifth of the time goes into
 * changing. */
static const double TURN_S = 1, TURN_PER_RETURN = 4;

/* How often who waits is asked whether its client has gone, each asking being a call of the system, and the drive
 * whether a file is written. */
static const double ASKED_S = 0.05;

enum { STACK_BYTES = 4 << 20, LEAST_ROWS = 16, ALONE_ROWS = 512 };

/* What waits for a slot: a job, or what one was doing when its slot was given to others. */
struct waiting {
    struct queued turn;               /* first */
    struct job  *job;
    struct slot *parked;             /* NULL: not begun */
};

/* Whose a slot is, and since when its job goes on; since 0: the sequence is not back yet. */
struct place {
    struct party *client;            /* NULL: free */
    double        given, since, returns_s;       /* returns_s: what that took */
    double        loses_s;           /* to make again what was there when the choice began; 0: it will be kept */
    uint64_t      served;            /* its prompt's last slice */
    bool          moves;             /* its sequence is, or is to be, exchanged or copied aside: no steps meanwhile */
};

struct sched {
    struct sched_opts o;
    struct slot      *slots;
    struct place     *places;        /* [n_slots] */
    int               n_slots;       /* that there is memory for */
    struct keeper     keeper;
    struct aside     *aside;
    struct {
        struct slot *slot;           /* NULL: nothing is moved now */
        const struct slot *from;     /* whose sequence it gets; NULL: what is kept */
        bool stays;                  /* its sequence is kept, and nothing else happens to it */
    } moved;
    uint64_t          n_slices;      /* of prompts: the clock of served */
    uint64_t          n_used;
    double            step_s;        /* of the last round, while others wait for it; else 0 */
    double            row_s;         /* of a row in rounds of several, the dearest lately; 0: not known */
    double            lone_row_s;    /* of a row in the last step of a prompt that was alone; 0: not known */
    size_t            lone_rows;     /* that such a step may have */
    pthread_t         thread;
    pthread_mutex_t   lock;
    pthread_cond_t    more;
    struct turns      turns;         /* of struct waiting and places */
    double            asked;         /* when who waits was asked last whether its client has gone */
    struct {
        pf_session *session;         /* NULL: there is none */
        const struct place *place;   /* NULL: there is a free slot beside it */
        double end;                  /* of the step */
        bool   broken_off;
    } lone;                          /* begin_lone */
    bool              ending;
    struct buf        ill;           /* sched_ill's sentence; the thread's own to change, with the lock */
};

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* A slot's session, opened when it is first needed. False: there is no memory for it, and the slots end here. */
static bool open_slot(struct sched *sched, int i)
{
    struct slot *s = &sched->slots[i];
    if (s->session)
        return true;
    if (pf_session_open(&s->session, sched->o.m, &sched->o.session) == PF_OK)
        return true;
    complain("slot %d and those after it stay closed: %s", i + 1, pf_last_error());
    sched->n_slots = i;
    return false;
}

/* The free slot for a prompt: the one that saves most by what its sequence has of it, less what is lost of the sequence
 * (which may never be wanted again: it counts a quarter); else one without a sequence, else the one that was used
 * longest ago. -1: none is free. */
static int choose_slot(struct sched *sched, const struct prompt *q)
{
    int best = -1, oldest = -1;
    int64_t most = 0;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (s->job || (!s->session && !open_slot(sched, i)))
            continue;
        int64_t common = (int64_t)slot_common(s, q->tok, q->n_tok);
        int64_t worth = common - (pf_session_pos(s->session) - common) / 4;
        if (common > 0 && worth > most) {
            most = worth;
            best = i;
        }
        if (oldest < 0 || s->used < sched->slots[oldest].used)
            oldest = i;
    }
    return best >= 0 ? best : oldest;
}

/* ---- Sequences on their way -------------------------------------------------------------------------------------- */

static void keep_aside(void *ctx)
{
    struct sched *sched = ctx;
    keep_sequence(&sched->keeper, sched->moved.slot);
}

static void exchange_aside(void *ctx)
{
    struct sched *sched = ctx;
    struct prompt q = slot_goal(sched->moved.slot);
    keep_exchange(&sched->keeper, sched->moved.slot, &q);
}

static void copy_aside(void *ctx)
{
    struct sched *sched = ctx;
    struct slot *s = sched->moved.slot;
    struct prompt q = slot_goal(s);
    keep_lost(&sched->keeper, s, slot_common(s, q.tok, q.n_tok), true);
    slot_copy(s, sched->moved.from, sched->aside);
}

static struct place *place_of(const struct sched *sched, const struct slot *s)
{
    return &sched->places[s - sched->slots];
}

/* from: NULL, or a slot that makes no steps meanwhile, either. A free slot's own sequence is kept. */
static void begin_move(struct sched *sched, struct slot *s, const struct slot *from)
{
    sched->moved.slot = s;
    sched->moved.from = from;
    sched->moved.stays = !s->job;
    place_of(sched, s)->moves = true;
    place_of(sched, s)->since = 0;
    if (from)
        place_of(sched, from)->moves = true;
    aside_begin(sched->aside, sched->moved.stays ? keep_aside : from ? copy_aside : exchange_aside, sched);
}

/* What the slot that was given is to go on from may be kept, and what it has be lost: its turn begins afterwards. A
 * free slot may have got its job while its sequence is being kept. */
static void move_if_needed(struct sched *sched, struct slot *s)
{
    struct prompt q = slot_goal(s);
    struct place *p = place_of(sched, s);
    p->moves = sched->moved.slot == s || keep_would_exchange(&sched->keeper, s, &q);
    p->since = p->moves ? 0 : p->since;
}

static void end_move(struct sched *sched)
{
    struct slot *s = sched->moved.slot;
    if (sched->moved.from)
        place_of(sched, sched->moved.from)->moves = false;
    place_of(sched, s)->moves = false;
    sched->moved.slot = NULL;
    if (sched->moved.stays && s->job)
        move_if_needed(sched, s);
}

/* Begins with the slot that waits longest for it; false: none does. */
static bool begin_next_move(struct sched *sched)
{
    int next = -1;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->places[i].moves && (next < 0 || sched->places[i].given < sched->places[next].given))
            next = i;
    if (next >= 0)
        begin_move(sched, &sched->slots[next], NULL);
    return next >= 0;
}

/* A slot for a job's next choice, or for one that was begun. */
static void give_slot(struct sched *sched, struct slot *s, struct job *j, struct slot *parked, struct party *client)
{
    double now = now_s();
    s->used = ++sched->n_used;
    sched->places[s - sched->slots] = (struct place){ .client = client, .given = now, .since = parked ? 0 : now };
    if (parked)
        slot_resume(s, parked);
    else
        slot_give(s, j);
}

/* ---- The queue --------------------------------------------------------------------------------------------------- */

static struct waiting *waiting_of(struct queued *t)
{
    return (struct waiting *)t;
}

/* With the lock: when a client may claim the place. NEVER: not before others come or go. */
#define NEVER 2e9
static double claimed_at(const struct place *p, const struct party *client)
{
    if (!p->client || p->moves || p->since == 0 || !turns_before(client, p->client))
        return NEVER;
    double returns_s = p->returns_s > client->returns_s ? p->returns_s : client->returns_s;
    returns_s = p->loses_s > returns_s ? p->loses_s : returns_s;
    return p->since + (TURN_PER_RETURN * returns_s > TURN_S ? TURN_PER_RETURN * returns_s : TURN_S);
}

/* With the lock, for who waits: where a slot is free or can be claimed before the step is over. */
static void break_off(struct sched *s, const struct party *client)
{
    double now = now_s();
    if (!s->lone.session || s->lone.broken_off)
        return;
    double from = s->lone.place ? claimed_at(s->lone.place, client) : now;
    if (s->lone.end - (from > now ? from : now) < (double)s->o.pause_ms * 1e-3)
        return;
    s->lone.broken_off = true;
    pf_session_cancel(s->lone.session);
}

static bool is_gone(const struct job *j)
{
    return j->over || exchange_gone(j->x);
}

/* With the lock: takes the jobs out for which nobody waits, so that they keep nobody out; returns them, in a list.
 * begun: those, too, that were begun, by the scheduler's thread. */
static struct queued *take_gone(struct sched *s, bool begun)
{
    struct queued *gone = NULL, *next;
    for (struct queued *t = s->turns.first; t; t = next) {
        next = t->next;
        if ((waiting_of(t)->parked && !begun) || !is_gone(waiting_of(t)->job))
            continue;
        turns_leave(&s->turns, t);
        t->next = gone;
        gone = t;
    }
    return gone;
}

/* Lets go of a job for which nobody waits. */
static void forget(struct waiting *w)
{
    struct job *j = w->job;
    if (!j->over)
        atomic_fetch_add(&metrics.cancelled, 1);
    if (w->parked) {
        exchange_end(j->x);
        j->over = true;                  /* its other slots leave it, too */
        slot_forget(w->parked);
    } else {
        job_free(j);
    }
    free(w);
}

static void forget_all(struct queued *t)
{
    while (t) {
        struct queued *next = t->next;
        forget(waiting_of(t));
        t = next;
    }
}

static void refuse(struct waiting *w)
{
    job_fail(w->job, &(struct trouble){ .status = 503, .why = "too many requests wait (--queue)" });
    job_free(w->job);
    free(w);
}

void sched_add(struct sched *s, struct job *j)
{
    struct waiting *w = xrealloc(NULL, 1, sizeof *w), *last = NULL;
    *w = (struct waiting){ .job = j };
    j->since = now_s();
    pthread_mutex_lock(&s->lock);
    struct queued *gone = s->turns.n < s->o.queue ? NULL : take_gone(s, false);
    turns_wait(&s->turns, &w->turn, exchange_client(j->x), false);
    if (s->ending || s->turns.n > s->o.queue)
        last = s->ending ? w : waiting_of(turns_last(&s->turns));
    if (last != w) {
        atomic_fetch_add(&metrics.requests, 1);
        break_off(s, w->turn.client);
        pthread_cond_signal(&s->more);
    }
    if (last)
        turns_leave(&s->turns, &last->turn);
    atomic_store(&metrics.waiting, s->turns.n);
    pthread_mutex_unlock(&s->lock);
    forget_all(gone);
    if (last)
        refuse(last);
}

static bool any_running(const struct sched *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].job)
            return true;
    return false;
}

static bool any_free(const struct sched *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (!s->slots[i].job)
            return true;
    return false;
}

static bool is_queue_empty(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    bool empty = !s->turns.first;
    pthread_mutex_unlock(&s->lock);
    return empty;
}

static bool is_idle(struct sched *s)
{
    return is_queue_empty(s) && !any_running(s);
}

/* One after the other, while nobody waits for a slot or has one. Whether the next one is to wait for a file that is
 * still being written. */
static bool keep_when_idle(struct sched *s)
{
    if (!s->o.saved || !s->o.outlive || s->moved.slot || !is_idle(s))
        return false;
    int i = 0;
    while (i < s->n_slots && !(s->slots[i].session && s->slots[i].unsaved))
        i++;
    if (i < s->n_slots && saved_is_busy(s->o.saved))
        return true;
    if (i < s->n_slots)
        begin_move(s, &s->slots[i], NULL);
    return false;
}

static void keep_all(struct sched *s)
{
    for (int i = 0; i < s->n_slots && s->o.saved && s->o.outlive; i++) {
        if (!s->slots[i].session)
            continue;
        keep_sequence(&s->keeper, &s->slots[i]);
        keep_beginning(&s->keeper, &s->slots[i]);
    }
}

static bool has_work(const struct sched *s)
{
    return s->turns.first || any_running(s) || s->moved.slot;
}

/* With the lock: until something comes, or for a moment. */
static void wait_for_more(struct sched *s, bool for_a_moment)
{
    struct timespec end;
    if (!for_a_moment) {
        pthread_cond_wait(&s->more, &s->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    long ns = end.tv_nsec + (long)(ASKED_S * 1e9);
    end.tv_sec += ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&s->more, &s->lock, &end);
}

/* Waits until there is something to do; false: the end. */
static bool wait_for_work(struct sched *s)
{
    for (;;) {
        bool for_drive = keep_when_idle(s);
        pthread_mutex_lock(&s->lock);
        if (!has_work(s) && !s->ending)
            wait_for_more(s, for_drive);
        bool more = has_work(s), ends = s->ending;
        pthread_mutex_unlock(&s->lock);
        if (more || ends)
            return more;
    }
}

/* A sequence for which the cache has no room is evaluated again. What is new of it is no more than its turn has taken;
 * what it began with may have taken much longer. */
static double lost_by_claim(const struct sched *s, int i)
{
    const struct slot *slot = &s->slots[i];
    double row_s = s->lone_row_s > 0 ? s->lone_row_s : s->row_s;
    return pf_session_pos(slot->session) > s->keeper.most_tok ? (double)slot->n_reused * row_s : 0;
}

/* With the lock: places of slots that jobs have left are given back; turns begin where sequences are what they were. */
static void settle_places(struct sched *s)
{
    for (int i = 0; i < s->o.n_slots; i++) {
        struct place *p = &s->places[i];
        if (p->client && !s->slots[i].job) {
            turns_take_back(&s->turns, p->client);
            p->client = NULL;
        } else if (p->client && !p->moves && p->since == 0 && !s->slots[i].fresh && !s->slots[i].left) {
            p->since = now_s();
            p->returns_s = p->since - p->given;
        }
        if (p->client && !p->moves)
            p->loses_s = lost_by_claim(s, i);
    }
}

/* With the lock: the slot that a client may claim, of who has most slots the one whose sequence is the shortest. -1:
 * none. */
static int find_claimed(const struct sched *s, const struct party *client)
{
    int best = -1;
    double now = now_s();
    for (int i = 0; i < s->n_slots; i++) {
        const struct place *p = &s->places[i], *b = best < 0 ? NULL : &s->places[best];
        if (claimed_at(p, client) > now)
            continue;
        if (!b || turns_more(p->client, b->client) ||
            (!turns_more(b->client, p->client) &&
             pf_session_pos(s->slots[i].session) < pf_session_pos(s->slots[best].session)))
            best = i;
    }
    return best;
}

static bool can_claim(const void *sched, const struct party *client)
{
    return find_claimed(sched, client) >= 0;
}

/* With the lock: what a slot does waits from now on, ahead of its client's other requests. */
static void park(struct sched *s, int i)
{
    struct waiting *w = xrealloc(NULL, 1, sizeof *w);
    struct job *j = s->slots[i].job;
    struct place *p = &s->places[i];
    *w = (struct waiting){ .job = j, .parked = slot_park(&s->slots[i]) };
    turns_wait(&s->turns, &w->turn, exchange_client(j->x), true);
    w->turn.client->returns_s = p->returns_s;
    turns_take_back(&s->turns, p->client);
    p->client = NULL;
    atomic_fetch_add(&metrics.yielded, 1);
}

/* What is to have a slot now, and its client; a slot is free then, or nobody waits for the job any more. NULL: nothing
 * waits, or there is no slot for it. */
static struct waiting *take_next(struct sched *s, struct party **client)
{
    pthread_mutex_lock(&s->lock);
    settle_places(s);
    bool is_free = any_free(s);
    struct queued *t = turns_next(&s->turns, is_free ? NULL : can_claim, s);
    if (t && !is_free && !is_gone(waiting_of(t)->job))
        park(s, find_claimed(s, t->client));
    if (t)
        *client = turns_give(&s->turns, t);
    atomic_store(&metrics.waiting, s->turns.n);
    pthread_mutex_unlock(&s->lock);
    return t ? waiting_of(t) : NULL;
}

/* A slot that was to be given is not. */
static void give_back(struct sched *s, struct party *client)
{
    pthread_mutex_lock(&s->lock);
    turns_take_back(&s->turns, client);
    pthread_mutex_unlock(&s->lock);
}

/* What the slot is to go on from. */
static struct prompt wanted_of(const struct waiting *w)
{
    return w->parked ? slot_goal(w->parked) : *w->job->req.prompts;
}

static void fill_slots(struct sched *s)
{
    struct waiting *w;
    struct party *client;
    while ((w = take_next(s, &client))) {
        if (is_gone(w->job)) {
            give_back(s, client);
            forget(w);
            continue;
        }
        struct prompt q = wanted_of(w);
        int i = choose_slot(s, &q);
        if (i >= 0) {
            give_slot(s, &s->slots[i], w->job, w->parked, client);
            move_if_needed(s, &s->slots[i]);
            free(w);
            continue;
        }
        pthread_mutex_lock(&s->lock);        /* slots turned out to be fewer: back to the queue's head */
        turns_wait(&s->turns, &w->turn, exchange_client(w->job->x), true);
        turns_take_back(&s->turns, client);
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- Choices of one job together --------------------------------------------------------------------------------- */

/* Whether a slot's prompt is the one that its job's next choice goes on from, and long enough to be shared. */
static bool leads(const struct slot *s)
{
    const struct job *j = s->job;
    return j && !s->left && j->n_given < j->n_choices && job_prompt(j, s->choice) == job_prompt(j, j->n_given) &&
           job_prompt(j, s->choice)->n_tok >= WORTH_TOKENS;
}

/* Prompt tokens that a slot evaluates before others take them over: where a sequence cannot be cut short, all but the
 * last, whose logits each choice needs for itself. */
static size_t n_led(const struct sched *sched, const struct slot *s)
{
    return job_prompt(s->job, s->choice)->n_tok - !sched->keeper.cuts;
}

/* A slot that has evaluated the prompt of its job's next choice so that another one can take it over. *soon: there is
 * one that has to go on first. */
static struct slot *leader_of(const struct sched *sched, const struct job *j, bool *soon)
{
    struct slot *found = NULL;
    *soon = false;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (s->job != j || !leads(s))
            continue;
        if (s->answering ? sched->keeper.cuts : !s->fresh && s->n_done == n_led(sched, s))
            found = s;
        *soon = *soon || (!s->answering && s->n_done < n_led(sched, s));
    }
    *soon = *soon && !found;
    return found;
}

/* Gives a job's next choice to a free slot; false: there is none, or the choice is better given later. */
static bool give_another(struct sched *sched, struct job *j, struct party *client)
{
    bool soon;
    const struct slot *leader = leader_of(sched, j, &soon);
    const struct prompt *p = job_prompt(j, j->n_given);
    int i = soon ? -1 : choose_slot(sched, p);
    if (i < 0)
        return false;
    struct slot *s = &sched->slots[i];
    bool copies = leader && p->n_tok >= slot_common(s, p->tok, p->n_tok) + WORTH_TOKENS;
    if (copies && sched->moved.slot)
        return false;
    pthread_mutex_lock(&sched->lock);
    settle_places(sched);
    turns_give_more(client);
    pthread_mutex_unlock(&sched->lock);
    give_slot(sched, s, j, NULL, client);
    if (copies)
        begin_move(sched, s, leader);
    else
        move_if_needed(sched, s);
    return true;
}

/* Slots that nobody waits for make the other choices of the jobs that run, one job's after the other's. */
static void share_slots(struct sched *sched)
{
    bool waits = !is_queue_empty(sched), gave = !waits;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->slots[i].job)
            sched->slots[i].job->yields = waits;
    while (gave) {
        gave = false;
        for (int i = 0; i < sched->n_slots && any_free(sched); i++) {
            struct job *j = sched->slots[i].job;
            if (j && !j->over && j->n_given < j->n_choices)
                gave = give_another(sched, j, sched->places[i].client) || gave;
        }
    }
}

/* ---- Steps and moves --------------------------------------------------------------------------------------------- */

/* Whether other choices can take over a prompt of which the last token is left to evaluate: beyond it a sequence that
 * cannot be cut short is of no use to them. */
static bool is_awaited(const struct sched *sched, const struct slot *s)
{
    return !sched->keeper.cuts && leads(s) && !s->answering && !s->fresh && s->n_done == n_led(sched, s) &&
           any_free(sched);
}

static bool any_awaited(const struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++)
        if (is_awaited(sched, &sched->slots[i]))
            return true;
    return false;
}

/* Whether the slot takes part in the next round. What others are to take over waits for the move that is under way, and
 * for no other. */
static bool is_ready(const struct sched *sched, int i)
{
    const struct slot *s = &sched->slots[i];
    return s->job && !sched->places[i].moves && !(sched->moved.slot && is_awaited(sched, s));
}

/* A slice of what is to be moved, short enough not to be felt between two steps of the others, and long enough not to
 * take for ever where those are longer than the bound on pauses. */
static void move_sequences(struct sched *sched)
{
    double pause_s = 1e-3 * (double)sched->o.pause_ms;
    double left = (sched->step_s > pause_s ? sched->step_s : pause_s) / 4, end = now_s() + left;
    bool alone = true;
    for (int i = 0; i < sched->n_slots; i++)
        alone = alone && !is_ready(sched, i);
    while (left > 0 && (sched->moved.slot || (!any_awaited(sched) && begin_next_move(sched)))) {
        if (!aside_go_on(sched->aside, left, alone))
            return;
        end_move(sched);
        left = end - now_s();
    }
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* Requests in the queue, or parked until their next turn, whose clients have gone. */
static void drop_gone_waiting(struct sched *sched)
{
    double now = now_s();
    if (now - sched->asked < ASKED_S)
        return;
    sched->asked = now;
    pthread_mutex_lock(&sched->lock);
    struct queued *gone = take_gone(sched, true);
    atomic_store(&metrics.waiting, sched->turns.n);
    pthread_mutex_unlock(&sched->lock);
    forget_all(gone);
}

static void drop_gone_running(struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        bool is_moved = sched->moved.slot == s || (sched->moved.slot && sched->moved.from == s);
        if (!s->job || is_moved)         /* that is soon over */
            continue;
        struct job *j = s->job;
        if (!is_gone(j))
            continue;
        sched->places[i].moves = false;
        slot_take_times(s);
        if (!j->over) {
            atomic_fetch_add(&metrics.cancelled, 1);
            exchange_end(j->x);
        }
        j->over = true;
        slot_leave(s);
    }
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static size_t most_rows(const struct sched *s)
{
    return s->o.session.n_batch > 0 ? (size_t)s->o.session.n_batch : ALONE_ROWS;
}

/* As many rows as the bound on pauses allows. */
static size_t rows_of_a_pause(const struct sched *s)
{
    double rows = s->row_s > 0 ? (double)s->o.pause_ms * 1e-3 / s->row_s : 0;
    double most = (double)most_rows(s);
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > most ? (size_t)most : (size_t)rows;
}

/* What is evaluated together. */
struct round {
    struct pf_batch_part parts[PF_MAX_BATCH_PARTS];
    struct slot         *of[PF_MAX_BATCH_PARTS];
    size_t n, rows;
};

static void add_part(struct round *r, struct slot *s, const int32_t *tok, size_t n)
{
    r->parts[r->n] = (struct pf_batch_part){ .session = s->session, .tok = tok, .n = n };
    r->of[r->n++] = s;
    r->rows += n;
}

/* Whether the slot's sequence is to be evaluated further before it can answer. */
static bool is_behind(struct slot *s)
{
    if (!s->job || s->answering)
        return false;
    pf_status st = s->fresh ? slot_take_prefix(s) : PF_OK;
    if (st < 0)
        slot_fail(s, st, NULL);
    return st == PF_OK && !s->answering;
}

static bool is_sooner(const struct place *a, const struct place *b)
{
    const struct party *x = a->client, *y = b->client;
    return x == y ? a->served < b->served
                  : x->address == y->address ? x->served < y->served : x->address->served < y->address->served;
}

/* The slot whose prompt is to have the next slice: the address, there the client, there the slot that had one longest
 * ago. before: what has a slice of this round is passed over. -1: none. */
static int next_prompt(struct sched *sched, uint64_t before)
{
    int best = -1;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->places[i].served <= before && is_ready(sched, i) && is_behind(&sched->slots[i]) &&
            (best < 0 || is_sooner(&sched->places[i], &sched->places[best])))
            best = i;
    return best;
}

/* Slices of prompts, in turns, as long as rows are left. */
static void add_prompts(struct sched *sched, struct round *r, size_t rows)
{
    uint64_t before = sched->n_slices;
    for (int i; rows > 0 && (i = next_prompt(sched, before)) >= 0;) {
        struct slot *s = &sched->slots[i];
        struct place *p = &sched->places[i];
        size_t end, from = s->n_done;
        const int32_t *tok = slot_wants(s, &end);
        end = leads(s) && any_free(sched) && from < n_led(sched, s) ? n_led(sched, s) : end;
        size_t n = end - from < rows ? end - from : rows;
        add_part(r, s, tok + from, n);
        rows -= n;
        p->served = p->client->served = p->client->address->served = ++sched->n_slices;
    }
}

/* A prompt that is alone takes steps of as many rows as are fastest, which may take longer than others are to wait. So
 * one is broken off when somebody comes who has a slot, a free one or by claim, and the step does not end by itself
 * soon. What it has computed is lost; the steps after that are short at first and double, so that a prompt gets on
 * however often it is disturbed: what is lost is never more than what was done since the last time. The end is far away
 * as long as nobody knows how long such steps take. A step that is no longer than a pause is not broken off for a
 * claim. */
static void begin_lone(struct sched *s, const struct round *r)
{
    bool is_short = r->rows <= rows_of_a_pause(s), is_free = any_free(s);
    double takes = s->lone_row_s > 0 ? s->lone_row_s * (double)r->rows : NEVER / 2;
    pthread_mutex_lock(&s->lock);
    s->lone.session = is_short && !is_free ? NULL : r->parts[0].session;
    s->lone.place = is_free ? NULL : &s->places[r->of[0] - s->slots];
    s->lone.end = now_s() + takes;
    s->lone.broken_off = false;
    for (const struct queued *t = s->turns.first; t; t = t->next)
        break_off(s, t->client);
    pthread_mutex_unlock(&s->lock);
}

/* Whether somebody waits who may claim the slot of what is alone: its steps are to be short. */
static bool is_claimed(struct sched *s)
{
    bool is = false;
    pthread_mutex_lock(&s->lock);
    for (const struct queued *t = s->turns.first; t && !is; t = t->next)
        for (int i = 0; i < s->n_slots && !is; i++)
            is = s->slots[i].job && claimed_at(&s->places[i], t->client) < NEVER;
    pthread_mutex_unlock(&s->lock);
    return is;
}

static void end_lone(struct sched *s, const struct round *r, double row_s)
{
    pthread_mutex_lock(&s->lock);
    s->lone.session = NULL;
    pthread_mutex_unlock(&s->lock);
    if (s->lone.broken_off) {
        atomic_fetch_add(&metrics.broken_off, 1);
        s->lone_rows = rows_of_a_pause(s);
    } else if (r->parts[0].status == PF_OK) {
        s->lone_row_s = 4 * r->rows > most_rows(s) ? row_s : s->lone_row_s;      /* a row of few takes longer */
        s->lone_rows = 2 * s->lone_rows < most_rows(s) ? 2 * s->lone_rows : most_rows(s);
    }
}

/* Reading weights or another process may fail for good: steps say whether they can still be made. */
static void take_health(struct sched *s, const struct round *r)
{
    const char *why = NULL;
    bool fine = false;
    for (size_t i = 0; i < r->n; i++) {
        why = r->parts[i].status == PF_EIO ? r->parts[i].why : why;
        fine = fine || r->parts[i].status == PF_OK;
    }
    if (fine ? s->ill.n == 0 : !why)
        return;
    pthread_mutex_lock(&s->lock);
    buf_clear(&s->ill);
    buf_puts(&s->ill, fine ? "" : why);
    pthread_mutex_unlock(&s->lock);
}

bool sched_ill(struct sched *s, struct buf *why)
{
    pthread_mutex_lock(&s->lock);
    buf_add(why, buf_text(&s->ill), s->ill.n);
    pthread_mutex_unlock(&s->lock);
    return why->n > 0;
}

static void evaluate(struct sched *sched, struct round *r)
{
    bool lone = r->n == 1 && !r->of[0]->answering;
    if (lone)
        begin_lone(sched, r);
    double begin = now_s();
    pf_batch_eval(r->parts, r->n);               /* a part's failure is its own */
    double took = (now_s() - begin) / (double)r->rows;
    take_health(sched, r);
    if (lone)
        end_lone(sched, r, took);
    if (r->n > 1 && r->rows >= LEAST_ROWS)
        sched->row_s = took > sched->row_s ? took : 0.75 * sched->row_s + 0.25 * took;
    for (size_t i = 0; i < r->n; i++) {
        if (r->parts[i].status == PF_ECANCEL)    /* broken off: as it was before */
            continue;
        r->of[i]->unsaved = true;
        if (r->parts[i].status < 0)
            slot_fail(r->of[i], r->parts[i].status, r->parts[i].why);
        else
            slot_took(r->of[i], r->parts[i].n);
    }
}

/* Tokens that were drafted need no step: a slot whose next ones are such is not held up by the others. */
static void take_ahead(struct slot *s)
{
    while (s->job && s->answering && pf_session_is_ahead(s->session, s->next)) {
        pf_status st = pf_session_eval(s->session, &s->next, 1, 0);
        if (st == PF_ECANCEL)                    /* meant a step that was over */
            continue;
        s->unsaved = true;
        if (st < 0)
            slot_fail(s, st, NULL);
        else
            slot_took(s, 1);
    }
}

static void round_of_steps(struct sched *sched)
{
    struct round r = { .n = 0 };
    int n_running = 0;
    for (int i = 0; i < sched->n_slots; i++)
        if (is_ready(sched, i))
            take_ahead(&sched->slots[i]);
    for (int i = 0; i < sched->n_slots; i++)
        n_running += sched->slots[i].job != NULL;
    for (int i = 0; i < sched->n_slots; i++)
        if (is_ready(sched, i) && sched->slots[i].answering)
            add_part(&r, &sched->slots[i], &sched->slots[i].next, 1);
    bool is_bounded = n_running > 1 || is_claimed(sched);
    add_prompts(sched, &r, is_bounded ? rows_of_a_pause(sched) : sched->lone_rows);
    pthread_mutex_lock(&sched->lock);
    settle_places(sched);                        /* what is back from memory does not count this step as its return */
    pthread_mutex_unlock(&sched->lock);
    double begin = now_s();
    if (r.n > 0)
        evaluate(sched, &r);
    sched->step_s = is_bounded ? now_s() - begin : 0;
}

static void *run(void *ctx)
{
    struct sched *s = ctx;
    while (wait_for_work(s)) {
        drop_gone_waiting(s);
        drop_gone_running(s);
        fill_slots(s);
        move_sequences(s);
        share_slots(s);                  /* behind a move that has ended, before what is awaited goes on */
        round_of_steps(s);
    }
    keep_all(s);
    pthread_mutex_lock(&s->lock);
    settle_places(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static void free_sched(struct sched *s)
{
    for (int i = 0; i < s->o.n_slots; i++) {
        pf_session_close(&s->slots[i].session);
        answer_free(&s->slots[i].answer);
    }
    if (s->o.saved)
        saved_close(s->o.saved);
    aside_close(s->aside);
    buf_free(&s->ill);
    free(s->slots);
    free(s->places);
    free(s);
}

/* Tried with a sequence of three tokens: a recurrent state may still have the one before the last step. */
static bool can_cut(pf_session *session)
{
    static const int32_t tok[3];
    bool cuts = true;
    for (int i = 0; i < 3 && cuts; i++)
        cuts = pf_session_eval(session, &tok[i], 1, 0) == PF_OK;
    cuts = cuts && pf_session_rewind(session, 1) == PF_OK && pf_session_computed(session) == 1;
    pf_session_rewind(session, 0);
    return cuts;
}

pf_status sched_open(struct sched **out, const struct sched_opts *o)
{
    struct sched *s = xrealloc(NULL, 1, sizeof *s);
    *s = (struct sched){ .o = *o, .n_slots = o->n_slots, .aside = aside_open() };
    if (o->saved)
        saved_set_aside(o->saved, s->aside);
    s->slots = xrealloc(NULL, (size_t)o->n_slots, sizeof *s->slots);
    s->places = xrealloc(NULL, (size_t)o->n_slots, sizeof *s->places);
    memset(s->places, 0, (size_t)o->n_slots * sizeof *s->places);
    for (int i = 0; i < o->n_slots; i++)
        s->slots[i] = (struct slot){ .m = o->m, .family = o->family };
    pf_status st = pf_session_open(&s->slots[0].session, o->m, &o->session);
    if (st < 0) {
        free_sched(s);
        return st;
    }
    s->o.session.n_ctx = pf_session_n_ctx(s->slots[0].session);      /* all slots have the same */
    s->keeper = keep_open(o->saved, o->m, &s->o.session, can_cut(s->slots[0].session));
    s->lone_rows = most_rows(s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->more, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int error = pthread_create(&s->thread, &attr, run, s);
    pthread_attr_destroy(&attr);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    *out = s;
    return PF_OK;
}

int64_t sched_n_ctx(const struct sched *s)
{
    return pf_session_n_ctx(s->slots[0].session);
}

void sched_close(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    free_sched(s);
}

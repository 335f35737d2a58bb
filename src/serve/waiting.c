/* See scheduler_impl.h: who waits for a slot, whose turn it is, who claims one, and whose client has gone. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "serve/journal.h"
#include "serve/metrics.h"
#include "serve/scheduler_impl.h"

/* How long a slot is a request's before a client that has none may claim it, and how many times as long as it took to
 * make the sequence what it was, would take then, or takes who claims it: so no more than a fifth of the time goes into
 * changing. */
static const double TURN_S = 1, TURN_PER_RETURN = 4;

/* ---- The queue --------------------------------------------------------------------------------------------------- */

double sched_claimed_at(const struct place *p, const struct party *client)
{
    if (!p->client || p->moves || p->since == 0 || !turns_before(client, p->client))
        return NEVER;
    double returns_s = p->returns_s > client->returns_s ? p->returns_s : client->returns_s;
    returns_s = p->loses_s > returns_s ? p->loses_s : returns_s;
    return p->since + (TURN_PER_RETURN * returns_s > TURN_S ? TURN_PER_RETURN * returns_s : TURN_S);
}

void sched_break_off(struct sched *s, const struct waiting *w)
{
    double now = now_s();
    const struct round *r = s->alone.round;
    if (!r || s->alone.broken_off)
        return;
    double from = s->alone.place ? sched_claimed_at(s->alone.place, w->turn.client) : now;
    if (sched_would_await(s, w))
        return;
    bool is_soon = s->alone.end - (from > now ? from : now) < s->pace.pause_s;
    s->alone.is_joined = s->alone.is_joined || !s->alone.place || !is_soon;
    if (is_soon)
        return;
    s->alone.broken_off = true;
    for (size_t i = 0; i < r->n; i++)
        pf_session_cancel(r->parts[i].session);
}

bool sched_is_gone(const struct job *j)
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
        if ((waiting_of(t)->parked && !begun) || !sched_is_gone(waiting_of(t)->job))
            continue;
        turns_leave(&s->turns, t);
        t->next = gone;
        gone = t;
    }
    return gone;
}

void sched_forget(struct waiting *w)
{
    struct job *j = w->job;
    if (!j->over) {
        atomic_fetch_add(&metrics.cancelled, 1);
        journal_gone(j);
    }
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
        sched_forget(waiting_of(t));
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
        sched_break_off(s, w);
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

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

/* A sequence for which the cache has no room is evaluated again. What is new of it is no more than its turn has taken;
 * what it began with may have taken much longer. */
static double lost_by_claim(const struct sched *s, int i)
{
    const struct slot *slot = &s->slots[i];
    return pf_session_pos(slot->session) > s->keeper.most_tok ? (double)slot->n_reused * pace_row_s(&s->pace) : 0;
}

void sched_settle_places(struct sched *s)
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
        if (sched_claimed_at(p, client) > now)
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

struct waiting *sched_take_next(struct sched *s, struct party **client)
{
    pthread_mutex_lock(&s->lock);
    sched_settle_places(s);
    bool is_free = sched_any_free(s);
    struct queued *t = turns_next(&s->turns, is_free ? NULL : can_claim, s);
    if (t && !is_free && !sched_is_gone(waiting_of(t)->job))
        park(s, find_claimed(s, t->client));
    if (t)
        *client = turns_give(&s->turns, t);
    atomic_store(&metrics.waiting, s->turns.n);
    pthread_mutex_unlock(&s->lock);
    return t ? waiting_of(t) : NULL;
}

void sched_give_back(struct sched *s, struct party *client)
{
    pthread_mutex_lock(&s->lock);
    turns_take_back(&s->turns, client);
    pthread_mutex_unlock(&s->lock);
}

/* With the lock. */
static void keep_streams(struct sched *sched)
{
    for (struct queued *t = sched->turns.first; t; t = t->next)
        job_keep_alive(waiting_of(t)->job);
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->slots[i].job && !sched->slots[i].job->over)
            job_keep_alive(sched->slots[i].job);
}

void sched_look_after(struct sched *sched)
{
    double now = now_s();
    if (now - sched->asked < ASKED_S)
        return;
    sched->asked = now;
    pthread_mutex_lock(&sched->lock);
    struct queued *gone = take_gone(sched, true);
    keep_streams(sched);
    atomic_store(&metrics.waiting, sched->turns.n);
    pthread_mutex_unlock(&sched->lock);
    forget_all(gone);
}

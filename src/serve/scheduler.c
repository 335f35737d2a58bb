/* See scheduler.h, and scheduler_impl.h for what is guarded by what: slots and whose they are, the queue, and the
 * thread. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/journal.h"
#include "serve/metrics.h"
#include "serve/scheduler_impl.h"

enum { STACK_BYTES = 4 << 20 };

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

struct place *sched_place_of(const struct sched *sched, const struct slot *s)
{
    return &sched->places[s - sched->slots];
}

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

/* Until what use of a slot the sequence of this one is not given up for others'. A long one is saved, brought back or
 * made again in seconds, which short requests in between, as agents make them, are not worth. */
static uint64_t stays_until(const struct slot *s)
{
    enum { TOKENS_OF_A_USE = 256 };
    return s->used + (uint64_t)pf_session_pos(s->session) / TOKENS_OF_A_USE;
}

/* Opens the first slot that is closed. -1: none is, or there is no memory for it. */
static int open_next(struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++)
        if (!sched->slots[i].session)
            return open_slot(sched, i) ? i : -1;
    return -1;
}

/* The one that saves most by what its sequence has of the prompt, less what is lost of the sequence (which may never be
 * wanted again: it counts a quarter); else one without a sequence; else one that is opened now; else the one that was
 * used longest ago, a long sequence counting as used later. */
int sched_choose_slot(struct sched *sched, const struct prompt *q)
{
    int best = -1, oldest = -1;
    int64_t most = 0;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (s->job || !s->session)
            continue;
        int64_t spared = (int64_t)slot_spares(s, q->tok, q->n_tok), common = (int64_t)slot_common(s, q->tok, q->n_tok);
        int64_t worth = spared - (pf_session_pos(s->session) - common) / 4;
        if (worth > most) {
            most = worth;
            best = i;
        }
        if (oldest < 0 || stays_until(s) < stays_until(&sched->slots[oldest]))
            oldest = i;
    }
    if (best >= 0 || (oldest >= 0 && pf_session_pos(sched->slots[oldest].session) == 0))
        return best >= 0 ? best : oldest;
    int opened = open_next(sched);
    return opened >= 0 ? opened : oldest;
}

void sched_give_slot(struct sched *sched, struct slot *s, struct job *j, struct slot *parked, struct party *client)
{
    double now = now_s();
    s->used = ++sched->n_used;
    sched->places[s - sched->slots] = (struct place){ .client = client, .given = now, .since = parked ? 0 : now };
    if (parked)
        slot_resume(s, parked);
    else
        slot_give(s, j);
}

/* ---- Work, and waiting for it ------------------------------------------------------------------------------------ */

static bool any_running(const struct sched *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].job)
            return true;
    return false;
}

bool sched_any_free(const struct sched *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (!s->slots[i].job)
            return true;
    return false;
}

bool sched_is_queue_empty(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    bool empty = !s->turns.first;
    pthread_mutex_unlock(&s->lock);
    return empty;
}

static bool is_idle(struct sched *s)
{
    return sched_is_queue_empty(s) && !any_running(s);
}

/* When there was nothing to do for a while, one slot more is opened than have a sequence, so that the next conversation
 * need not wait for that: where keys and values lie in main memory it takes seconds. The others stay closed, and take
 * no memory, until they are wanted. Whether the time for it is yet to come. */
static bool open_ahead(struct sched *s)
{
    static const double WHILE_S = 2;
    bool is_closed = false;
    if (!is_idle(s) || s->busy <= 0) {
        s->busy = now_s();
        return false;
    }
    for (int i = 0; i < s->n_slots; i++) {
        is_closed = is_closed || !s->slots[i].session;
        if (s->slots[i].session && pf_session_pos(s->slots[i].session) == 0)
            return false;
    }
    bool is_due = is_closed && now_s() - s->busy >= WHILE_S;
    if (is_due)
        (void)open_next(s);
    return is_closed && !is_due;
}

/* Whether a slot's sequence is kept before the slot is lost: to outlive the program, or, if that costs nothing that is
 * kept already, so that who gets the slot later need not wait for it. */
static bool is_kept_early(const struct sched *s, const struct slot *slot)
{
    return slot->session && slot->unsaved &&
           (s->outlive || saved_has_room(s->keeper.saved, slot->session));
}

/* One after the other, while nobody waits for a slot or has one. Whether the next one is to wait for a file that is
 * still being written. */
static bool keep_when_idle(struct sched *s)
{
    if (!s->keeper.saved || s->moved.slot || !is_idle(s))
        return false;
    int i = 0;
    while (i < s->n_slots && !is_kept_early(s, &s->slots[i]))
        i++;
    if (i < s->n_slots && saved_is_busy(s->keeper.saved))
        return true;
    if (i < s->n_slots)
        sched_begin_keeping(s, &s->slots[i]);
    return false;
}

static void keep_all(struct sched *s)
{
    for (int i = 0; i < s->n_slots && s->keeper.saved && s->outlive; i++) {
        if (!s->slots[i].session)
            continue;
        keep_sequence(&s->keeper, &s->slots[i], false);
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
        bool is_to_open = open_ahead(s), for_drive = keep_when_idle(s);
        pthread_mutex_lock(&s->lock);
        if (!has_work(s) && !s->ending)
            wait_for_more(s, is_to_open || for_drive);
        bool more = has_work(s), ends = s->ending;
        pthread_mutex_unlock(&s->lock);
        if (more || ends)
            return more;
    }
}

/* ---- The queue --------------------------------------------------------------------------------------------------- */

/* What the slot is to go on from. */
static struct prompt wanted_of(const struct waiting *w)
{
    return w->parked ? slot_goal(w->parked) : *w->job->req.prompts;
}

static void fill_slots(struct sched *s)
{
    struct waiting *w;
    struct party *client;
    while ((w = sched_take_next(s, &client))) {
        if (sched_is_gone(w->job)) {
            sched_give_back(s, client);
            sched_forget(w);
            continue;
        }
        struct prompt q = wanted_of(w);
        int i = sched_choose_slot(s, &q);
        if (i >= 0) {
            sched_give_slot(s, &s->slots[i], w->job, w->parked, client);
            if (!sched_await_other(s, &s->slots[i]))
                sched_move_if_needed(s, &s->slots[i]);
            free(w);
            continue;
        }
        pthread_mutex_lock(&s->lock);        /* slots turned out to be fewer: back to the queue's head */
        turns_wait(&s->turns, &w->turn, exchange_client(w->job->x), true);
        turns_take_back(&s->turns, client);
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* Whether the move that is under way has to do with the slot's job. */
static bool is_moved(const struct sched *sched, const struct slot *s)
{
    return sched->moved.slot && !sched->moved.stays && (sched->moved.slot == s || sched->moved.from == s);
}

void sched_drop_gone(struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        struct job *j = s->job;
        if (!j || !sched_is_gone(j))
            continue;
        if (is_moved(sched, s)) {
            aside_give_up(sched->aside);
            continue;
        }
        sched->places[i].moves = sched->moved.slot == s;
        slot_take_times(s);
        if (!j->over) {
            atomic_fetch_add(&metrics.cancelled, 1);
            journal_gone(j);
            exchange_end(j->x);
        }
        j->over = true;
        slot_leave(s);
    }
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

bool sched_ill(struct sched *s, struct buf *why)
{
    pthread_mutex_lock(&s->lock);
    buf_add(why, buf_text(&s->ill), s->ill.n);
    pthread_mutex_unlock(&s->lock);
    return why->n > 0;
}

static void *run(void *ctx)
{
    struct sched *s = ctx;
    while (wait_for_work(s)) {
        sched_look_after(s);
        sched_drop_gone(s);
        fill_slots(s);
        sched_move_sequences(s);
        sched_share_slots(s);            /* behind a move that has ended, before what is awaited goes on */
        sched_keep_for_others(s);
        sched_round(s);
    }
    keep_all(s);
    pthread_mutex_lock(&s->lock);
    sched_settle_places(s);
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
    if (s->keeper.saved)
        saved_close(s->keeper.saved);
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
    s->o.session.n_batch = pf_session_n_batch(s->slots[0].session);
    s->pace = (struct pace){ .pause_s = 1e-3 * (double)o->pause_ms, .most_pause_s = 1e-3 * (double)o->most_pause_ms,
                             .most_rows = (size_t)s->o.session.n_batch };
    s->lone_rows = sched_lone_rows(s);
    *out = s;
    return PF_OK;
}

int64_t sched_n_ctx(const struct sched *s)
{
    return pf_session_n_ctx(s->slots[0].session);
}

void sched_start(struct sched *s, struct saved *saved, bool outlive)
{
    s->keeper = keep_open(saved, s->o.m, &s->o.session, can_cut(s->slots[0].session));
    s->outlive = outlive;
    if (saved)
        saved_set_aside(saved, s->aside);
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

/* See scheduler.h, and scheduler_impl.h for what is guarded by what: slots and whose they are, sequences on their way,
 * choices that are made together, and the thread. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/journal.h"
#include "serve/metrics.h"
#include "serve/scheduler_impl.h"

enum { STACK_BYTES = 4 << 20 };

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

/* The free slot for a prompt: the one that saves most by what its sequence has of it, less what is lost of the sequence
 * (which may never be wanted again: it counts a quarter); else one without a sequence; else one that is opened now;
 * else the one that was used longest ago, a long sequence counting as used later. -1: none is free. */
static int choose_slot(struct sched *sched, const struct prompt *q)
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

/* ---- Sequences on their way -------------------------------------------------------------------------------------- */

/* Before a save or load: the first one reads samples of all weights, which may take seconds, so away. Why it failed,
 * that one says. */
static void identify(const struct sched *sched)
{
    aside_leave(sched->aside);
    (void)pf_model_identify(sched->o.m);
    aside_return(sched->aside);
}

static void keep_aside(void *ctx)
{
    struct sched *sched = ctx;
    identify(sched);
    keep_sequence(&sched->keeper, sched->moved.slot, sched->moved.is_shared);
}

static void exchange_aside(void *ctx)
{
    struct sched *sched = ctx;
    struct prompt q = slot_goal(sched->moved.slot);
    identify(sched);
    keep_exchange(&sched->keeper, sched->moved.slot, &q);
}

static void copy_aside(void *ctx)
{
    struct sched *sched = ctx;
    struct slot *s = sched->moved.slot;
    struct prompt q = slot_goal(s);
    identify(sched);
    if (keep_lost(&sched->keeper, s, slot_common(s, q.tok, q.n_tok), true))
        slot_copy(s, sched->moved.from, sched->aside);
}

static struct place *place_of(const struct sched *sched, const struct slot *s)
{
    return &sched->places[s - sched->slots];
}

/* The slot's own sequence is kept, and stays. Whoever wants more of it meanwhile says so again. */
static void begin_keeping(struct sched *sched, struct slot *s)
{
    sched->moved.slot = s;
    sched->moved.from = NULL;
    sched->moved.stays = true;
    sched->moved.is_shared = sched_has_parted(s);
    s->n_shared = sched->moved.is_shared ? 0 : s->n_shared;
    s->is_wanted = false;
    place_of(sched, s)->moves = true;
    aside_begin(sched->aside, keep_aside, sched);
}

/* from: NULL, or a slot that makes no steps meanwhile, either. */
static void begin_move(struct sched *sched, struct slot *s, const struct slot *from)
{
    sched->moved.slot = s;
    sched->moved.from = from;
    sched->moved.stays = false;
    place_of(sched, s)->moves = true;
    place_of(sched, s)->since = 0;
    if (from)
        place_of(sched, from)->moves = true;
    aside_begin(sched->aside, from ? copy_aside : exchange_aside, sched);
}

/* What the slot that was given is to go on from may be kept, and what it has be lost: its turn begins afterwards. What
 * is being kept since nothing was to be done can wait, unless the slot is to lose it now. */
static void move_if_needed(struct sched *sched, struct slot *s)
{
    struct prompt q = slot_goal(s);
    struct place *p = place_of(sched, s);
    bool exchanges = keep_would_exchange(&sched->keeper, s, &q), is_kept = sched->moved.slot == s;
    p->moves = is_kept || exchanges;
    if (is_kept ? !exchanges : sched->moved.slot && !sched->moved.slot->job)
        aside_give_up(sched->aside);
    p->since = p->moves ? 0 : p->since;
}

static void end_move(struct sched *sched)
{
    struct slot *s = sched->moved.slot;
    if (sched->moved.from)
        place_of(sched, sched->moved.from)->moves = false;
    place_of(sched, s)->moves = false;
    sched->moved.slot = NULL;
    if (sched->moved.stays && s->job && s->fresh)    /* what has begun goes on from what it has */
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
        begin_keeping(s, &s->slots[i]);
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

/* ---- What prompts have in common --------------------------------------------------------------------------------- */

static size_t common_of(const struct prompt *p, const struct prompt *q)
{
    size_t n = 0;
    while (n < p->n_tok && n < q->n_tok && p->tok[n] == q->tok[n])
        n++;
    return n;
}

/* How much of a prompt that is not its own the slot's sequence begins with, or will once its own is evaluated; 0: it
 * can be cut there. */
static size_t common_with(const struct sched *sched, const struct slot *s, const struct prompt *q)
{
    size_t has = s->session ? slot_common(s, q->tok, q->n_tok) : 0;
    bool can_cut = sched->keeper.cuts && (!s->session || slot_spares(s, q->tok, q->n_tok) == has);
    struct prompt goal = s->job ? slot_goal(s) : (struct prompt){ 0 };
    size_t wants = goal.tok == q->tok ? 0 : common_of(&goal, q);
    return can_cut ? 0 : has > wants ? has : wants;
}

size_t sched_shared(struct sched *sched, const struct slot *s)
{
    struct prompt q = slot_goal(s);
    if (!sched->keeper.saved || s->left || keep_goes_on(s, &q))
        return 0;
    size_t most = keep_common(&sched->keeper, &q), kept = keep_spares(&sched->keeper, s, &q);
    for (int i = 0; i < sched->n_slots; i++) {
        size_t n = common_with(sched, &sched->slots[i], &q);
        most = n > most ? n : most;
    }
    return most >= kept + LEAST_SHARED && most + WORTH_TOKENS <= q.n_tok ? most : 0;
}

bool sched_has_parted(const struct slot *s)
{
    return s->job && !s->answering && !s->fresh && s->n_shared && s->n_done == s->n_shared;
}

/* Whether what the slot has is wanted by others, who wait for it. */
static bool is_to_be_kept_now(const struct sched *sched, int i)
{
    const struct slot *s = &sched->slots[i];
    return sched_has_parted(s) || (s->job && s->is_wanted && !s->fresh && !sched->places[i].moves);
}

/* Whether a slot has not come past n tokens of its prompt, of which it evaluates more. */
static bool comes_by(const struct slot *s, size_t n)
{
    return !s->answering && (s->fresh || s->n_done <= n) && n < job_prompt(s->job, s->choice)->n_tok;
}

/* Where a slot that comes by n tokens which another prompt begins with stops for it; it may stop for others already. 0:
 * nowhere that is of use. */
static size_t could_stop(const struct sched *sched, const struct slot *s, size_t n)
{
    size_t stops = s->n_shared;
    if (stops > 0 && stops <= n)
        return stops;
    return sched->keeper.cuts || stops < n + LEAST_SHARED ? n : 0;
}

/* How many tokens of another job's prompt a slot could keep for it: of its own prompt, when it comes by, or, where
 * sequences can be cut, of what it has, if most of that is of use. */
static size_t could_keep(const struct sched *sched, const struct slot *s, const struct prompt *q)
{
    if (s->left)
        return 0;
    const struct prompt *own = job_prompt(s->job, s->choice);
    size_t n = common_of(own, q);
    n = n < own->n_tok ? n : own->n_tok - 1;
    if (comes_by(s, n))
        return could_stop(sched, s, n);
    if (!sched->keeper.cuts || s->fresh)
        return 0;
    size_t has = slot_common(s, q->tok, q->n_tok), pos = (size_t)pf_session_pos(s->session);
    bool is_cut_there = slot_spares(s, q->tok, q->n_tok) == has && (int64_t)pos <= sched->keeper.most_tok;
    return is_cut_there && 2 * has >= pos ? has : 0;
}

/* A prompt that begins like another one which is being evaluated, or answered, waits until the other slot has kept
 * what both begin with, rather than to evaluate it, too. False: there is none. */
static bool await_other(struct sched *sched, struct slot *s)
{
    if (!sched->keeper.saved || s->left)
        return false;
    struct prompt q = slot_goal(s);
    size_t has = slot_spares(s, q.tok, q.n_tok), kept = keep_spares(&sched->keeper, s, &q),
           most = (has > kept ? has : kept) + LEAST_SHARED - 1;
    struct slot *best = NULL;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *other = &sched->slots[i];
        bool may = other->job && other->job != s->job && !sched->places[i].awaits;
        size_t n = may ? could_keep(sched, other, &q) : 0;
        best = n > most ? other : best;
        most = n > most ? n : most;
    }
    if (!best || (int64_t)most > sched->keeper.most_tok)
        return false;
    if (!comes_by(best, most))
        best->is_wanted = true;
    else if (best->n_shared == 0 || (best->n_shared > most && !sched->keeper.cuts))
        best->n_shared = most;
    struct place *p = place_of(sched, s);
    p->awaits = best;
    p->awaited_job = best->job;
    p->since = 0;
    return true;
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
        int i = choose_slot(s, &q);
        if (i >= 0) {
            give_slot(s, &s->slots[i], w->job, w->parked, client);
            if (!await_other(s, &s->slots[i]))
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

bool sched_leads(const struct slot *s)
{
    const struct job *j = s->job;
    return j && !s->left && j->n_given < j->n_choices && job_prompt(j, s->choice) == job_prompt(j, j->n_given) &&
           job_prompt(j, s->choice)->n_tok >= WORTH_TOKENS;
}

size_t sched_n_led(const struct sched *sched, const struct slot *s)
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
        if (s->job != j || !sched_leads(s))
            continue;
        if (s->answering ? sched->keeper.cuts : !s->fresh && s->n_done == sched_n_led(sched, s))
            found = s;
        *soon = *soon || (!s->answering && s->n_done < sched_n_led(sched, s));
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
    bool copies = leader && p->n_tok >= slot_spares(s, p->tok, p->n_tok) + WORTH_TOKENS;
    if (copies && sched->moved.slot)
        return false;
    pthread_mutex_lock(&sched->lock);
    sched_settle_places(sched);
    turns_give_more(client);
    pthread_mutex_unlock(&sched->lock);
    give_slot(sched, s, j, NULL, client);
    if (copies)
        begin_move(sched, s, leader);
    else
        move_if_needed(sched, s);
    return true;
}

/* Whether other choices can take over a prompt of which the last token is left to evaluate: beyond it a sequence that
 * cannot be cut short is of no use to them. */
static bool has_led(const struct sched *sched, const struct slot *s)
{
    return !sched->keeper.cuts && sched_leads(s) && !s->answering && !s->fresh && s->n_done == sched_n_led(sched, s);
}

/* Whether a slot that is another job's now may make choices which go on from what this one has: then that is kept,
 * since it is of no use to them once an answer has begun. */
static bool is_to_be_kept(const struct sched *sched, const struct slot *s)
{
    bool all_its = true;
    for (int i = 0; i < sched->n_slots; i++)
        all_its = all_its && sched->slots[i].job == s->job;
    return sched->keeper.saved && has_led(sched, s) && s->unsaved && !all_its && !sched_any_free(sched);
}

/* Whether what a slot waits for is to be kept yet, or is being kept, whoever has gone. */
static bool is_still_awaited(const struct sched *sched, const struct place *p)
{
    const struct slot *other = p->awaits;
    return (sched->moved.slot == other && sched->moved.stays) ||
           (other->job == p->awaited_job && (other->n_shared || other->is_wanted));
}

/* A slot whose waiting is over: with what was kept, or, where nothing was, behind another one. */
static void go_on(struct sched *sched, struct slot *s)
{
    struct place *p = place_of(sched, s);
    p->awaits = NULL;
    p->since = now_s();
    if (!await_other(sched, s))
        move_if_needed(sched, s);
}

/* What is not kept now, since a file is still being written, is not waited for. */
static void keep_for_others(struct sched *sched)
{
    for (int i = 0; i < sched->n_slots && !sched->moved.slot; i++) {
        struct slot *s = &sched->slots[i];
        bool is_wanted = is_to_be_kept_now(sched, i);
        if (is_wanted && saved_is_busy(sched->keeper.saved)) {
            s->n_shared = 0;
            s->is_wanted = false;
        } else if (is_wanted || is_to_be_kept(sched, s)) {
            begin_keeping(sched, s);
        }
    }
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->places[i].awaits && sched->slots[i].job && !is_still_awaited(sched, &sched->places[i]))
            go_on(sched, &sched->slots[i]);
}

/* Slots that nobody waits for make the other choices of the jobs that run, one job's after the other's. */
static void share_slots(struct sched *sched)
{
    bool waits = !is_queue_empty(sched), gave = !waits;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->slots[i].job)
            sched->slots[i].job->yields = waits;
    for (int i = 0; i < sched->n_slots; i++)
        if (has_led(sched, &sched->slots[i]))
            sched->slots[i].job->yields = true;
    while (gave) {
        gave = false;
        for (int i = 0; i < sched->n_slots && sched_any_free(sched); i++) {
            struct job *j = sched->slots[i].job;
            if (j && !j->over && j->n_given < j->n_choices)
                gave = give_another(sched, j, sched->places[i].client) || gave;
        }
    }
    keep_for_others(sched);
}

/* ---- What takes part in steps ------------------------------------------------------------------------------------ */

/* Whether a slot stays where it is for other choices, which are to take over what it has. */
static bool is_awaited(const struct sched *sched, const struct slot *s)
{
    return has_led(sched, s) && sched_any_free(sched);
}

static bool any_awaited(const struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++)
        if (is_awaited(sched, &sched->slots[i]) || is_to_be_kept_now(sched, i))
            return true;
    return false;
}

bool sched_is_ready(const struct sched *sched, int i)
{
    const struct slot *s = &sched->slots[i];
    const struct place *p = &sched->places[i];
    return s->job && !p->moves && !p->awaits && !sched_has_parted(s) && !(sched->moved.slot && is_awaited(sched, s));
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* Whether the move that is under way has to do with the slot's job. */
static bool is_moved(const struct sched *sched, const struct slot *s)
{
    return sched->moved.slot && !sched->moved.stays && (sched->moved.slot == s || sched->moved.from == s);
}

/* What is moved for a client that has gone is given up; its job is let go of when that has ended. */
static void drop_gone_running(struct sched *sched)
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

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

static bool any_answers(const struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++)
        if (sched_is_ready(sched, i) && sched->slots[i].answering)
            return true;
    return false;
}

/* How long a slice of what is to be moved may be: not to be felt between two steps where others' answers are made, and
 * yet not to take for ever where their steps are longer than the bound on pauses. Prompts alone can wait until a
 * conversation is moved, which is for a request that waits, too. */
static double move_seconds(const struct sched *sched)
{
    static const double MOVED_AT_ONCE_S = 1;
    double pause_s = sched->pace.pause_s;
    return any_answers(sched) ? (sched->step_s > pause_s ? sched->step_s : pause_s) / 4 : MOVED_AT_ONCE_S;
}

/* Whether a request waits that could have a slot now. */
static bool is_waited_for(struct sched *sched)
{
    return sched_any_free(sched) && !is_queue_empty(sched);
}

/* Looks up from what is moved after so long, whatever a slice may take. */
static const double LOOK_UP_S = 0.025;

/* A slice of what is to be moved, which ends when a drive is waited for, since prompts can go on meanwhile. */
static void move_sequences(struct sched *sched)
{
    double left = move_seconds(sched), end = now_s() + left;
    bool alone = true;
    for (int i = 0; i < sched->n_slots; i++)
        alone = alone && !sched_is_ready(sched, i);
    while (left > 0 && (sched->moved.slot || (!any_awaited(sched) && begin_next_move(sched)))) {
        if (aside_go_on(sched->aside, left < LOOK_UP_S ? left : LOOK_UP_S, alone))
            end_move(sched);
        else if (aside_is_away(sched->aside) || is_waited_for(sched))
            return;
        drop_gone_running(sched);        /* what was given up is not gone on with */
        left = end - now_s();
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
        drop_gone_running(s);
        fill_slots(s);
        move_sequences(s);
        share_slots(s);                  /* behind a move that has ended, before what is awaited goes on */
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

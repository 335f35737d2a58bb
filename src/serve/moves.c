/* See scheduler_impl.h: sequences on their way, one slot's at a time, in slices between steps (cache/aside.h). A slot's
 * sequence is kept and stays; or it is exchanged for what is kept of the slot's prompt, or for another slot's. */
#include "serve/scheduler_impl.h"

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
    const struct slot *from = sched->moved.from;
    struct prompt q = slot_goal(s);
    if (keep_would_exchange(&sched->keeper, s, &q))
        identify(sched);
    if (keep_lost(&sched->keeper, s, slot_common(s, q.tok, q.n_tok), true))
        slot_copy(s, from, slot_common(from, q.tok, q.n_tok - 1), sched->aside);
}

void sched_begin_keeping(struct sched *sched, struct slot *s)
{
    sched->moved.slot = s;
    sched->moved.from = NULL;
    sched->moved.stays = true;
    sched->moved.is_shared = sched_has_parted(s);
    s->n_shared = sched_is_kept_for_others(sched, s) ? sched_next_shared(sched, s) : s->n_shared;
    sched_place_of(sched, s)->moves = true;
    aside_begin(sched->aside, keep_aside, sched);
}

void sched_begin_move(struct sched *sched, struct slot *s, const struct slot *from)
{
    sched->moved.slot = s;
    sched->moved.from = from;
    sched->moved.stays = false;
    sched_place_of(sched, s)->moves = true;
    sched_place_of(sched, s)->since = 0;
    if (from)
        sched_place_of(sched, from)->moves = true;
    aside_begin(sched->aside, from ? copy_aside : exchange_aside, sched);
}

void sched_move_if_needed(struct sched *sched, struct slot *s)
{
    struct prompt q = slot_goal(s);
    struct place *p = sched_place_of(sched, s);
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
        sched_place_of(sched, sched->moved.from)->moves = false;
    sched_place_of(sched, s)->moves = false;
    sched->moved.slot = NULL;
    bool is_new = s->job && s->fresh && !sched_place_of(sched, s)->awaits.slot;
    if (sched->moved.stays && is_new)                /* what has begun goes on from what it has */
        sched_move_if_needed(sched, s);
}

/* Begins with the slot that waits longest for it; false: none does. */
static bool begin_next_move(struct sched *sched)
{
    int next = -1;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->places[i].moves && (next < 0 || sched->places[i].given < sched->places[next].given))
            next = i;
    if (next >= 0)
        sched_begin_move(sched, &sched->slots[next], NULL);
    return next >= 0;
}

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
    return sched_any_free(sched) && !sched_is_queue_empty(sched);
}

/* Looks up from what is moved after so long, whatever a slice may take. */
static const double LOOK_UP_S = 0.025;

/* Whether what a slot has is to be taken over, or kept, before other sequences are moved. */
static bool any_stays(const struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++)
        if (sched_stays_for_choices(sched, &sched->slots[i]) || sched_is_kept_for_others(sched, &sched->slots[i]))
            return true;
    return false;
}

void sched_move_sequences(struct sched *sched)
{
    double left = move_seconds(sched), end = now_s() + left;
    bool alone = true;
    for (int i = 0; i < sched->n_slots; i++)
        alone = alone && !sched_is_ready(sched, i);
    while (left > 0 && (sched->moved.slot || sched_hand_on(sched) || (!any_stays(sched) && begin_next_move(sched)))) {
        if (aside_go_on(sched->aside, left < LOOK_UP_S ? left : LOOK_UP_S, alone))
            end_move(sched);
        else if (aside_is_away(sched->aside) || is_waited_for(sched))
            return;
        sched_drop_gone(sched);        /* what was given up is not gone on with */
        left = end - now_s();
    }
}

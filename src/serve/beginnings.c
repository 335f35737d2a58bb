/* See scheduler_impl.h: what several prompts begin with is evaluated once, and kept for the others.
 *
 *     slot 0   instructions, tools | its own text       evaluates up to where they part, stops until that is kept
 *     slot 1   instructions, tools | another text       awaits slot 0, then loads what was kept and goes on from there
 *
 * A slot stops, one after the other, at all places up to which others await it, LEAST_SHARED tokens apart at least.
 * Who waits is let go when that is kept, cannot be kept, or the slot is another job's; and looks for the next one then.
 * No slot awaits one that awaits another itself, so there are no rings.
 *
 * What a slot can go back to is not what a kept sequence can be cut to: checkpoints are the session's alone. */
#include "serve/scheduler_impl.h"

/* Where a sequence cannot be cut short, what is kept of two prompts' beginning ends so many tokens before they part:
 * their own texts may begin with the same word, and what ends behind it is of no use to a third prompt. */
enum { BY_CHANCE = 32 };

/* How often a prompt may wait for what is not kept then, or not so that it is of use. */
enum { MOST_IN_VAIN = 2 };

/* Less than either: a prompt's last token is evaluated for its logits. */
static size_t common_of(const struct prompt *p, const struct prompt *q)
{
    size_t n = 0;
    while (n + 1 < p->n_tok && n + 1 < q->n_tok && p->tok[n] == q->tok[n])
        n++;
    return n;
}

/* How much of a prompt that is not its own the slot's sequence begins with, or will once its own is evaluated; 0: it
 * can be cut there. */
static size_t common_with(const struct sched *sched, const struct slot *s, const struct prompt *q)
{
    size_t has = s->session ? slot_common(s, q->tok, q->n_tok) : 0;
    bool can_cut = sched->keeper.cuts && (!s->session || pf_session_save_can_cut(s->session, (int64_t)has));
    struct prompt goal = s->job ? slot_goal(s) : (struct prompt){ 0 };
    size_t wants = goal.tok == q->tok ? 0 : common_of(&goal, q);
    return can_cut ? 0 : has > wants ? has : wants;
}

/* How much is kept of what two prompts begin with. */
static size_t kept_of(const struct sched *sched, size_t common)
{
    return sched->keeper.cuts ? common : common > BY_CHANCE ? common - BY_CHANCE : 0;
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
    most = kept_of(sched, most);
    return most >= kept + LEAST_SHARED && most + WORTH_TOKENS <= q.n_tok ? most : 0;
}

size_t sched_keeps_at(const struct sched *sched, const struct slot *s, size_t shared)
{
    if (shared == 0 || shared >= s->n_done)
        return shared;
    if (sched->keeper.cuts)
        return s->n_shared;                      /* at once, if another slot waits for it */
    return shared + BY_CHANCE >= s->n_done ? s->n_done : 0;
}

bool sched_has_parted(const struct slot *s)
{
    return s->job && !s->answering && !s->fresh && s->n_shared && s->n_done == s->n_shared;
}

bool sched_is_kept_for_others(const struct sched *sched, const struct slot *s)
{
    bool has_all = s->job && !s->fresh && s->n_shared && (s->answering || s->n_done >= s->n_shared);
    return has_all && !sched_place_of(sched, s)->moves;
}

/* Whether a slot has not come past n tokens of its prompt, of which it evaluates more. */
static bool comes_by(const struct slot *s, size_t n)
{
    return !s->answering && (s->fresh || s->n_done <= n) && n < job_prompt(s->job, s->choice)->n_tok;
}

/* How many tokens of another job's prompt a slot could keep for it: of its own prompt, when it comes by, or, where
 * sequences can be cut, of what it has, if most of that is of use. */
static size_t could_keep(const struct sched *sched, const struct slot *s, const struct prompt *q)
{
    if (s->left)
        return 0;
    size_t n = kept_of(sched, common_of(job_prompt(s->job, s->choice), q));
    if (comes_by(s, n))
        return n;
    if (!sched->keeper.cuts || s->fresh)
        return 0;
    size_t has = slot_common(s, q->tok, q->n_tok - 1), pos = (size_t)pf_session_pos(s->session);
    bool is_cut_there = pf_session_save_can_cut(s->session, (int64_t)has) && (int64_t)pos <= sched->keeper.most_tok;
    return is_cut_there && 2 * has >= pos ? has : 0;
}

/* The slot that could keep most of a prompt, more than *n tokens, which become what it could; NULL: none. */
static struct slot *find_other(struct sched *sched, const struct place *p, const struct job *j, const struct prompt *q,
                               size_t *n)
{
    struct slot *best = NULL;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        bool may = s->job && s->job != j && s->job != p->in_vain.job && !sched->places[i].awaits.slot;
        size_t could = may ? could_keep(sched, s, q) : 0;
        best = could > *n ? s : best;
        *n = could > *n ? could : *n;
    }
    return best;
}

bool sched_await_other(struct sched *sched, struct slot *s)
{
    struct place *p = sched_place_of(sched, s);
    if (!sched->keeper.saved || s->left || p->in_vain.n >= MOST_IN_VAIN)
        return false;
    struct prompt q = slot_goal(s);
    size_t has = slot_spares(s, q.tok, q.n_tok), kept = keep_spares(&sched->keeper, s, &q),
           most = (has > kept ? has : kept) + LEAST_SHARED - 1;
    struct slot *other = find_other(sched, p, s->job, &q, &most);
    if (!other || (int64_t)most > sched->keeper.most_tok)
        return false;
    other->n_shared = other->n_shared && other->n_shared < most ? other->n_shared : most;
    p->awaits.slot = other;
    p->awaits.job = other->job;
    p->awaits.n_tok = most;
    p->since = 0;
    return true;
}

size_t sched_next_shared(const struct sched *sched, const struct slot *s)
{
    size_t next = 0;
    for (int i = 0; i < sched->n_slots; i++) {
        const struct place *p = &sched->places[i];
        bool is_next = p->awaits.slot == s && p->awaits.job == s->job && p->awaits.n_tok >= s->n_done + LEAST_SHARED;
        if (is_next && (next == 0 || p->awaits.n_tok < next))
            next = p->awaits.n_tok;
    }
    return next;
}

/* How much of a prompt need not be evaluated once it has a slot that is free now. */
static size_t has_of(struct sched *sched, const struct prompt *q)
{
    size_t most = keep_spares(&sched->keeper, &sched->slots[0], q);
    for (int i = 0; i < sched->n_slots; i++) {
        const struct slot *s = &sched->slots[i];
        size_t n = !s->job && s->session ? slot_spares(s, q->tok, q->n_tok) : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* How much of a prompt a slot could keep once the slice that it is in is over. */
static size_t will_keep(const struct sched *sched, const struct slot *s, size_t n_slice, const struct prompt *q)
{
    size_t to = s->n_done + n_slice;
    if (s->left || (int64_t)to > sched->keeper.most_tok)
        return 0;
    size_t n = kept_of(sched, common_of(job_prompt(s->job, s->choice), q));
    return n >= to || (sched->keeper.cuts && 2 * n >= to) ? n : 0;
}

/* The scheduler's thread is in the round, and all that is its own is as it was when that began. */
bool sched_would_await(struct sched *sched, const struct waiting *w)
{
    const struct round *r = sched->alone.round;
    const struct prompt *q = w->job->req.prompts;
    size_t most = 0;
    if (!sched->keeper.saved || sched->alone.place || w->parked)
        return false;
    for (size_t i = 0; i < r->n; i++) {
        size_t n = will_keep(sched, r->of[i], r->parts[i].n, q);
        most = n > most ? n : most;
    }
    return most > 0 && most >= has_of(sched, q) + LEAST_SHARED;
}

/* Whether what a slot waits for is to be kept yet, or is being kept, whoever has gone. */
static bool is_still_awaited(const struct sched *sched, const struct place *p)
{
    const struct slot *other = p->awaits.slot;
    bool is_to_come = other->job == p->awaits.job && other->n_shared && other->n_shared <= p->awaits.n_tok;
    return is_to_come || (sched->moved.slot == other && sched->moved.stays);
}

/* A slot whose waiting is over: with what was kept, or, where nothing was, behind another one. */
static void go_on(struct sched *sched, struct slot *s)
{
    struct place *p = sched_place_of(sched, s);
    struct prompt q = slot_goal(s);
    bool has_job = p->awaits.slot->job == p->awaits.job;
    if (has_job && keep_spares(&sched->keeper, s, &q) + LEAST_SHARED <= p->awaits.n_tok) {
        p->in_vain.job = p->awaits.job;
        p->in_vain.n++;
    }
    p->awaits.slot = NULL;
    p->since = now_s();
    if (!sched_await_other(sched, s))
        sched_move_if_needed(sched, s);
}

void sched_keep_for_others(struct sched *sched)
{
    for (int i = 0; i < sched->n_slots && !sched->moved.slot; i++) {
        struct slot *s = &sched->slots[i];
        bool is_wanted = sched_is_kept_for_others(sched, s);
        if (is_wanted && saved_is_busy(sched->keeper.saved))
            s->n_shared = sched_next_shared(sched, s);
        else if (is_wanted || sched_is_kept_for_choices(sched, s))
            sched_begin_keeping(sched, s);
    }
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->places[i].awaits.slot && sched->slots[i].job && !is_still_awaited(sched, &sched->places[i]))
            go_on(sched, &sched->slots[i]);
}

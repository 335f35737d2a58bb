/* See scheduler_impl.h: what several prompts begin with is evaluated once, copied to those that are there, and kept for
 * later ones where no sequence that ends behind it would be of use to them.
 *
 *     slot 0   instructions, tools | its own text       evaluates up to where they part, stops until that is copied
 *     slot 1   instructions, tools | another text       awaits slot 0, then goes on from its copy
 *
 * A slot stops, one after the other, at all places up to which others await it, LEAST_SHARED tokens apart at least.
 * What it has already, in an answer for example, is copied at once. Who waits is let go when that cannot be copied any
 * more, or the slot is another job's; and looks for the next one then. No slot awaits one that awaits another itself,
 * so there are no rings.
 *
 * What a slot can go back to is not what a kept sequence can be cut to: checkpoints are the session's alone. */
#include "serve/scheduler_impl.h"

/* Where a sequence cannot be cut short, what is kept of two prompts' beginning ends so many tokens before they part:
 * their own texts may begin with the same word, and what ends behind it is of no use to a third prompt. */
enum { BY_CHANCE = 32 };

/* How often a prompt may wait for what it does not get. */
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

/* How much of what two prompts begin with is copied or kept. */
static size_t kept_of(const struct sched *sched, size_t common)
{
    return sched->keeper.cuts ? common : common > BY_CHANCE ? common - BY_CHANCE : 0;
}

/* How much of a prompt a slot is to keep, or is keeping. */
static size_t will_keep(const struct slot *s, const struct prompt *q)
{
    bool keeps = s->job && !s->fresh && s->n_shared;
    return keeps && common_of(job_prompt(s->job, s->choice), q) >= s->n_shared ? s->n_shared : 0;
}

size_t sched_shared(struct sched *sched, const struct slot *s)
{
    struct prompt q = slot_goal(s);
    if (!sched->keeper.saved || s->left || keep_goes_on(s, &q))
        return 0;
    size_t most = keep_common(&sched->keeper, &q), kept = keep_spares(&sched->keeper, s, &q);
    for (int i = 0; i < sched->n_slots; i++) {
        const struct slot *other = &sched->slots[i];
        size_t n = common_with(sched, other, &q), to_keep = other == s ? 0 : will_keep(other, &q);
        most = n > most ? n : most;
        kept = to_keep > kept ? to_keep : kept;
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

/* How many tokens of another job's prompt a slot could have for it: of its own prompt, when it comes by, or of what it
 * has. */
static size_t could_have(const struct sched *sched, const struct slot *s, const struct prompt *q)
{
    if (s->left)
        return 0;
    size_t n = kept_of(sched, common_of(job_prompt(s->job, s->choice), q));
    if (comes_by(s, n))
        return n;
    return s->fresh ? 0 : slot_spares(s, q->tok, q->n_tok - 1);
}

/* The slot that could have most of a prompt, more than *n tokens, which become what it could; NULL: none. */
static struct slot *find_other(struct sched *sched, const struct place *p, const struct job *j, const struct prompt *q,
                               size_t *n)
{
    struct slot *best = NULL;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        bool may = s->job && s->job != j && s->job != p->in_vain.job && !sched->places[i].awaits.slot;
        size_t could = may ? could_have(sched, s, q) : 0;
        best = could > *n ? s : best;
        *n = could > *n ? could : *n;
    }
    return best;
}

/* Whether a slot has n tokens of a prompt already. */
static bool has_already(const struct slot *s, const struct prompt *q, size_t n)
{
    return s->job && !s->fresh && slot_spares(s, q->tok, q->n_tok - 1) >= n;
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
    if (!other)
        return false;
    if (!has_already(other, &q, most))
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

/* How much of a prompt a slot could have for it once the slice that it is in is over. */
static size_t will_have(const struct sched *sched, const struct slot *s, size_t n_slice, const struct prompt *q)
{
    if (s->left)
        return 0;
    size_t n = kept_of(sched, common_of(job_prompt(s->job, s->choice), q));
    return sched->keeper.cuts || n >= s->n_done + n_slice ? n : 0;
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
        size_t n = will_have(sched, r->of[i], r->parts[i].n, q);
        most = n > most ? n : most;
    }
    return most > 0 && most >= has_of(sched, q) + LEAST_SHARED;
}

/* Whether a slot that is awaited stops later, where who awaits it is to go on, or has that; or stands still for the
 * time that its sequence is kept. */
static bool is_still_awaited(const struct sched *sched, const struct slot *s)
{
    const struct place *p = sched_place_of(sched, s);
    const struct slot *other = p->awaits.slot;
    struct prompt q = slot_goal(s);
    bool stops = other->n_shared && other->n_shared <= p->awaits.n_tok;
    return (other->job == p->awaits.job && (stops || has_already(other, &q, p->awaits.n_tok))) ||
           (sched->moved.slot == other && sched->moved.stays);
}

/* Whether the slot awaits another one that has what it is to have: all of it, or what it stopped at. */
static bool can_have_now(const struct sched *sched, const struct slot *s)
{
    const struct place *p = sched_place_of(sched, s);
    const struct slot *other = p->awaits.slot;
    if (!s->job || !other || other->job != p->awaits.job || sched_place_of(sched, other)->moves)
        return false;
    struct prompt q = slot_goal(s);
    bool stopped = sched_is_kept_for_others(sched, other) && p->awaits.n_tok < other->n_shared + LEAST_SHARED;
    return has_already(other, &q, stopped ? other->n_shared : p->awaits.n_tok);
}

bool sched_hand_on(struct sched *sched)
{
    struct slot *first = NULL;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        bool is_sooner = !first || sched->places[i].given < sched_place_of(sched, first)->given;
        first = is_sooner && can_have_now(sched, s) ? s : first;
    }
    if (!first)
        return false;
    const struct slot *from = sched_place_of(sched, first)->awaits.slot;
    sched_place_of(sched, first)->awaits.slot = NULL;
    sched_begin_move(sched, first, from);
    return true;
}

static bool is_awaited_now(const struct sched *sched, const struct slot *s)
{
    bool is = false;
    for (int i = 0; i < sched->n_slots; i++)
        is = is || (sched->places[i].awaits.slot == s && can_have_now(sched, &sched->slots[i]));
    return is;
}

/* Whether what a slot has would be of no use to a later prompt if it were kept when the slot is lost, as is the case
 * where it cannot be cut then. */
static bool is_to_keep(const struct sched *sched, const struct slot *s)
{
    int64_t n = pf_session_pos(s->session);
    return n <= sched->keeper.most_tok && !(sched->keeper.cuts && pf_session_save_can_cut(s->session, 1));
}

/* A slot that need not wait any longer: nothing can be copied to it now. */
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
        bool is_wanted = sched_is_kept_for_others(sched, s) && !is_awaited_now(sched, s);
        if (is_wanted && (!is_to_keep(sched, s) || saved_is_busy(sched->keeper.saved)))
            s->n_shared = sched_next_shared(sched, s);
        else if (is_wanted || sched_is_kept_for_choices(sched, s))
            sched_begin_keeping(sched, s);
    }
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (sched->places[i].awaits.slot && s->job && !is_still_awaited(sched, s))
            go_on(sched, s);
    }
}

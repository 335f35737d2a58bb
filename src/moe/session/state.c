/* Memory of a session that cannot be cut short as keys and values can: recurrent state, which layers carry from
 * position to position, and the windows in rings (ring.c). See session.h.
 *
 * Each unit has the state of its own layers. A step reads `state` and writes `next`; pf_state_commit swaps them. Copies
 * are kept (checkpoints), the farther apart the longer ago they are: going back means taking the newest at or before
 * the position, and evaluating from there again when the next tokens come; the step that was last is undone by swapping
 * back, and undone in part, if its inputs are kept, by going over the first of them again (run/settle.c). Without
 * recurrent state, and within the positions that the rings still hold, going back means moving `computed` and nothing
 * else. */
#include "moe/session/crew.h"

/* Where a layer's begins in the state of its unit. */
static size_t offset(const struct pf_session *s, int il)
{
    return s->m->layers[il].state_at - s->m->layers[pf_unit_of(s, il)->first].state_at;
}

float *pf_state_before(const struct pf_session *s, int il)
{
    return s->computed > 0 ? pf_unit_of(s, il)->state + offset(s, il) : NULL;
}

float *pf_state_after(const struct pf_session *s, int il)
{
    return pf_unit_of(s, il)->next + offset(s, il);
}

/* Between state (or not) and windows after pos positions, and what is kept under number i. */
void pf_state_copy_kept(const struct pf_session *s, int i, int64_t pos, bool state, bool keep)
{
    pf_crew_tell_state(s, keep ? PF_TOLD_KEEP : PF_TOLD_TAKE_BACK, i, pos, state);
    for (const struct pf_unit *u = s->units; u < s->units + s->n_units; u++) {
        size_t n = state ? u->state_bytes : 0;
        struct pf_buf_copy copy = { keep ? u->kept[i] : u->state, keep ? u->state : u->kept[i], n, n, n, 1 };
        if (n)
            u->backend->ops->buf_copy(u->backend, &copy);
        if (u->kept_bytes > u->state_bytes)
            pf_ring_copy(s, u, pos, (char *)u->kept[i] + u->state_bytes, keep);
    }
}

/* Whether the computed positions can be cut to pos without a checkpoint. */
static bool at_hand(const struct pf_session *s, int64_t pos)
{
    return pos == s->computed || (pos < s->computed && !s->m->recurrent && pf_ring_holds(s, pos));
}

/* What the sequence would be without c once it is `end` long: how many positions are evaluated again, at worst, for
 * each that it goes back by. TAIL more count as gone back by, so that those next to the end are not all kept. */
static double cost_without(const struct pf_session *s, const struct pf_checkpoint *c, int64_t pos, int64_t end)
{
    enum { TAIL = 32 };
    int64_t before = pos < c->pos ? pos : 0, after = pos > c->pos ? pos : end;
    for (int i = 0; i < s->n_checkpoints; i++) {
        const struct pf_checkpoint *other = &s->checkpoints[i];
        int64_t at = other == s->planned ? s->planned_pos : other->pos;
        if (at < c->pos && at > before)
            before = at;
        if (at > c->pos && at < after)
            after = at;
    }
    return (double)(after - before) / (double)(end - after + TAIL);
}

/* Where a checkpoint of the first pos positions goes: to a place that is free, or that of the one that is missed least;
 * never the place that is planned, as the next step may write there. NULL: it is there already, or there are none. */
static struct pf_checkpoint *place_for(struct pf_session *s, int64_t pos)
{
    struct pf_checkpoint *best = NULL;
    int64_t end = pos > s->computed ? pos : s->computed;
    double least = 0;
    for (int i = 0; i < s->n_checkpoints && pos > 0; i++) {
        struct pf_checkpoint *c = &s->checkpoints[i];
        if (c->pos == pos)
            return NULL;
        double cost = c->pos == 0 ? -1 : cost_without(s, c, pos, end);
        if (c != s->planned && (!best || cost < least)) {
            best = c;
            least = cost;
        }
    }
    return best;
}

static void keep_in(struct pf_session *s, struct pf_checkpoint *c, int64_t pos, bool state)
{
    pf_state_copy_kept(s, (int)(c - s->checkpoints), pos, state, true);
    c->pos = pos;
}

void pf_state_keep(struct pf_session *s, int64_t pos)
{
    struct pf_checkpoint *c = at_hand(s, pos) ? place_for(s, pos) : NULL;
    if (c)
        keep_in(s, c, pos, true);
}

bool pf_state_can_cut(const struct pf_model *m)
{
    bool sums = m->arch->compressed || m->arch->index_pools || m->arch->index_means;        /* a state, too */
    return m->recurrent && !sums && m->ngrams.n == 0;
}

void pf_state_plan(struct pf_session *s, int64_t pos)
{
    s->planned = NULL;
    s->planned = place_for(s, pos);
    s->planned_pos = pos;
    if (s->planned)
        s->planned->pos = 0;
}

int pf_state_cut(const struct pf_session *s, int rows)
{
    int64_t first = s->planned ? s->planned_pos - s->computed : 0;
    return first > 0 && first < rows ? (int)first : 0;
}

float *pf_state_between(const struct pf_session *s, int il)
{
    return (float *)pf_unit_of(s, il)->kept[s->planned - s->checkpoints] + offset(s, il);
}

void pf_state_begin(struct pf_session *s, int rows)
{
    s->next_holds = 0;
    pf_ring_advance(s, rows);
}

/* `next` becomes the state, and the state, as the session had it, is kept as the next step's `next` until then. */
void pf_state_swap(struct pf_session *s)
{
    for (int i = 0; i < s->n_units; i++) {
        struct pf_unit *u = &s->units[i];
        float *now = u->next;
        u->next = u->state;
        u->state = now;
    }
}

void pf_state_commit(struct pf_session *s, int rows)
{
    bool passed = pf_state_cut(s, rows) > 0;
    pf_state_swap(s);
    s->next_holds = s->computed;
    s->inputs_kept = pf_state_keeps_inputs(s, rows);
    s->computed += rows;
    s->state_holds = s->computed;
    if (passed ? pf_ring_holds(s, s->planned_pos) : s->planned && s->computed == s->planned_pos)
        keep_in(s, s->planned, s->planned_pos, !passed);
}

bool pf_state_keeps_inputs(const struct pf_session *s, int rows)
{
    return s->m->recurrent && s->computed > 0 && rows > 1 && rows <= pf_logit_rows(&s->opts);
}

float *pf_state_inputs(const struct pf_session *s, int il)
{
    const struct pf_unit *u = pf_unit_of(s, il);
    size_t at = 0;
    for (int i = u->first; i < il; i++)
        at += pf_input_floats(s->m, i);
    return u->inputs + at * (size_t)pf_logit_rows(&s->opts);
}

int pf_state_behind(const struct pf_session *s)
{
    return s->m->recurrent && s->computed < s->state_holds ? (int)(s->computed - s->next_holds) : 0;
}

float *pf_state_earlier(const struct pf_session *s, int il)
{
    return pf_unit_of(s, il)->next + offset(s, il);
}

float *pf_state_now(const struct pf_session *s, int il)
{
    return pf_unit_of(s, il)->state + offset(s, il);
}

void pf_state_settled(struct pf_session *s)
{
    s->state_holds = s->computed;
}

static void undo(struct pf_session *s)
{
    pf_lock_take(&s->m->step_lock);
    pf_crew_tell_state(s, PF_TOLD_SWAP, 0, 0, false);
    pf_state_swap(s);
    pf_lock_give(&s->m->step_lock);
}

const struct pf_checkpoint *pf_state_checkpoint(const struct pf_session *s, int64_t pos)
{
    const struct pf_checkpoint *best = NULL;
    for (const struct pf_checkpoint *c = s->checkpoints; c < s->checkpoints + s->n_checkpoints; c++)
        if (c->pos > 0 && c->pos <= pos && (!best || c->pos > best->pos))
            best = c;
    return best;
}

/* Whether the last step can be undone, or the state be what it was within it. */
static bool is_in_last_step(const struct pf_session *s, int64_t pos)
{
    return s->m->recurrent && s->next_holds > 0 && pf_ring_holds(s, pos) &&
           (pos == s->next_holds || (s->inputs_kept && pos > s->next_holds));
}

int64_t pf_state_reach(const struct pf_session *s, int64_t pos)
{
    const struct pf_checkpoint *best = pf_state_checkpoint(s, pos);
    if (s->computed <= pos)
        return s->computed;
    return is_in_last_step(s, pos) || at_hand(s, pos) ? pos : best ? best->pos : 0;
}

/* Makes computed <= pos, but for the memory of a checkpoint that is to be taken back for it. NULL: none is. */
static const struct pf_checkpoint *cut(struct pf_session *s, int64_t pos)
{
    const struct pf_checkpoint *best = pf_state_checkpoint(s, pos);
    for (int i = 0; i < s->n_checkpoints; i++)
        s->checkpoints[i].pos = s->checkpoints[i].pos > pos ? 0 : s->checkpoints[i].pos;
    if (s->computed <= pos)
        return NULL;
    bool in_last = is_in_last_step(s, pos), undoes = in_last && pos == s->next_holds;
    if (in_last && !undoes) {
        s->computed = pos;                   /* the state follows when it is wanted */
        return NULL;
    }
    s->next_holds = 0;
    if (undoes)
        undo(s);
    if (undoes || at_hand(s, pos)) {
        s->computed = s->state_holds = pos;
        return NULL;
    }
    s->computed = s->state_holds = best ? best->pos : 0;
    s->held_from = s->window > 0 && s->computed > s->window ? s->computed - s->window : 0;
    return best;
}

static void take_back(const struct pf_session *s, const struct pf_checkpoint *c)
{
    pf_state_copy_kept(s, (int)(c - s->checkpoints), s->computed, true, false);
}

void pf_state_rewind(struct pf_session *s, int64_t pos)
{
    const struct pf_checkpoint *c = cut(s, pos);
    if (!c)
        return;
    pf_lock_take(&s->m->step_lock);
    take_back(s, c);
    pf_lock_give(&s->m->step_lock);
}

void pf_state_abandon(struct pf_session *s, int64_t end)
{
    int64_t pos = s->computed;
    s->computed = end;
    const struct pf_checkpoint *c = cut(s, pos);
    if (c)
        take_back(s, c);
}

/* Experts in a team: each card has some rows of gate, up and down of all of them, and makes as many columns of every
 * pick's activation and of every row's output. Who was picked every card finds out for itself.
 *
 *     card 0   route | its columns of activations | gather | its columns of outputs, picks added up | ..
 *     card 1   route | its columns of activations | gather | its columns of outputs, picks added up | ..
 *
 * Kernels find experts by tables of addresses, so a card's part of a matrix is a table of its own, in host memory of
 * the team, whose entries are where the card's rows of each expert begin in the file. */
#include <string.h>

#include "base/pf_mem.h"
#include "kernels/team/team.h"

size_t pf_team_pick_bytes(const struct pf_backend_sizes *s)
{
    return (size_t)s->max_picks * (size_t)s->n_ff * sizeof(float);
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* NULL: every card has all rows. */
static const struct team_experts *divided_experts(const struct team *t, const struct pf_expert_weight *w)
{
    size_t i = pf_team_behind(t->experts, t->n_experts, sizeof *t->experts, w->data);
    return i > 0 && t->experts[i - 1].data == w->data ? &t->experts[i - 1] : NULL;
}

static void free_experts(struct team_experts *x)
{
    for (int k = 0; k < PF_MAX_GPUS; k++) {
        pf_free(x->rows[k]);
        pf_free(x->bias[k]);
    }
}

void pf_team_free_experts(struct team *t)
{
    for (size_t i = 0; i < t->n_experts; i++)
        free_experts(&t->experts[i]);
    pf_free(t->experts);
}

static pf_status make_tables(const struct team *t, const struct pf_expert_weight *w, struct team_experts *x)
{
    size_t n_expert = (size_t)x->n_expert;
    for (int k = t->from; k < t->end; k++) {
        size_t n = (size_t)pf_team_columns(x->first, k), first = (size_t)x->first[k];
        x->rows[k] = pf_alloc_array(PF_MEM_KERNELS, n_expert, sizeof *x->rows[k]);
        x->bias[k] = w->bias ? pf_alloc_array(PF_MEM_KERNELS, n_expert * n, sizeof *x->bias[k]) : NULL;
        if (!x->rows[k] || (w->bias && !x->bias[k]))
            PF_FAIL(PF_ENOMEM, "no memory for tables of %d experts", x->n_expert);
        for (size_t e = 0; e < n_expert; e++) {
            x->rows[k][e] = w->data[e] + w->row_bytes * first;
            if (w->bias)
                memcpy(x->bias[k] + e * n, w->bias + e * (size_t)w->n_out + first, n * sizeof *w->bias);
        }
    }
    return PF_OK;
}

static pf_status place_tables(struct team *t, const struct pf_expert_weight *w, const struct team_experts *x)
{
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->place_pieces(t->card[k], x->rows[k], x->n_expert,
                                             w->row_bytes * (uint64_t)pf_team_columns(x->first, k)));
    return PF_OK;
}

pf_status pf_team_divide_experts(pf_backend *team, const struct pf_expert_weight *w, int n_expert, int unit)
{
    struct team *t = pf_team_of(team);
    struct team_experts x = { .data = w->data, .n_expert = n_expert };
    void *list = t->experts;
    if (divided_experts(t, w) || !pf_team_bounds(t->shape.first, t->n, w->n_out / unit, x.first))
        return PF_OK;
    for (int k = 0; k < t->n; k++)
        x.first[k] *= unit;
    x.first[t->n] = w->n_out;
    PF_TRY(pf_team_grow(&list, t->n_experts, &t->cap_experts, sizeof *t->experts));
    t->experts = list;
    pf_status st = make_tables(t, w, &x);
    if (st == PF_OK)
        st = place_tables(t, w, &x);
    if (st < 0) {
        free_experts(&x);
        return st;
    }
    size_t i = pf_team_behind(t->experts, t->n_experts, sizeof *t->experts, w->data);
    memmove(t->experts + i + 1, t->experts + i, (t->n_experts++ - i) * sizeof *t->experts);
    t->experts[i] = x;
    return PF_OK;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

pf_status pf_team_route(pf_backend *backend, const struct pf_route_op *r)
{
    struct team *t = pf_team_of(backend);
    int64_t n_picks = (int64_t)r->rows * r->how->n_used;
    PF_TRY(pf_team_whole(t, r->logits, (int64_t)r->rows * r->how->n_expert));
    PF_TRY(pf_team_wrote(t, r->picks, n_picks));
    PF_TRY(pf_team_wrote(t, r->weights, n_picks));
    for (int k = t->from; k < t->end; k++) {
        struct pf_route_op mine = *r;
        mine.logits = pf_team_here(t, k, r->logits);
        mine.ids = pf_team_here(t, k, r->ids);
        mine.picks = pf_team_here(t, k, r->picks);
        mine.weights = pf_team_here(t, k, r->weights);
        PF_TRY(t->card[k]->ops->route(t->card[k], &mine));
    }
    return PF_OK;
}

/* Card k's rows of w, or all. */
static struct pf_expert_weight rows_of(const struct team *t, int k, const struct pf_expert_weight *w)
{
    const struct team_experts *x = divided_experts(t, w);
    struct pf_expert_weight mine = *w;
    if (!x)
        return mine;
    mine.data = x->rows[k];
    mine.n_out = pf_team_columns(x->first, k);
    mine.bias = x->bias[k];
    return mine;
}

/* Rows of as many columns as w has rows are written, by each card its own if w is divided. */
static pf_status write_outputs(struct team *t, const struct pf_expert_weight *w, const float *at, int rows)
{
    const struct team_experts *x = divided_experts(t, w);
    struct divided d = { .at = at, .rows = rows, .n = w->n_out };
    if (!x)
        return pf_team_wrote(t, at, (int64_t)rows * w->n_out);
    memcpy(d.first, x->first, sizeof d.first);
    return pf_team_write(t, &d);
}

/* The op as card k is asked for it, with weights of its own in w {gate, up, down}. */
static struct pf_experts_op op_on(const struct team *t, int k, const struct pf_experts_op *e,
                                  struct pf_expert_weight *w)
{
    struct pf_experts_op mine = *e;
    w[0] = rows_of(t, k, e->gate);
    w[1] = rows_of(t, k, e->up);
    w[2] = rows_of(t, k, e->down);
    mine.gate = &w[0];
    mine.up = &w[1];
    mine.down = &w[2];
    mine.picks = pf_team_here(t, k, e->picks);
    mine.weights = pf_team_here(t, k, e->weights);
    mine.x = pf_team_here(t, k, e->x);
    mine.y = pf_team_at(t, k, e->y);
    return mine;
}

/* Makes the picks' activations [n_picks][n] whole, at *at: few of them elsewhere, so that they need not pass over those
 * that are still to be sent. */
static pf_status gather_picks(struct team *t, int n_picks, int n, float **at)
{
    const struct divided *d = pf_team_divided(t, t->pick_act);
    int64_t floats = (int64_t)n_picks * n;
    bool few = d && pf_team_swaps(t, d) && (size_t)floats * sizeof(float) <= t->pick_whole_bytes;
    *at = few ? t->pick_whole : t->pick_act;
    if (!few)
        return pf_team_whole(t, t->pick_act, floats);
    PF_TRY(pf_team_swap(t, d, *at, NULL, true));
    return pf_team_wrote(t, t->pick_act, floats);
}

pf_status pf_team_run_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct team *t = pf_team_of(backend);
    struct pf_expert_weight w[3];
    float *act = NULL;
    int n_picks = e->rows * e->n_used;
    bool divided = divided_experts(t, e->gate) || divided_experts(t, e->down);
    PF_TRY(pf_team_whole(t, e->x, (int64_t)e->rows * e->gate->n_in));
    if (divided) {
        PF_TRY(write_outputs(t, e->gate, t->pick_act, n_picks));
        for (int k = t->from; k < t->end; k++) {
            struct pf_experts_op mine = op_on(t, k, e, w);
            mine.pick_act = pf_team_at(t, k, t->pick_act);
            PF_TRY(t->card[k]->ops->experts_up(t->card[k], &mine));
        }
        PF_TRY(gather_picks(t, n_picks, e->gate->n_out, &act));
    }
    PF_TRY(write_outputs(t, e->down, e->y, e->rows));
    for (int k = t->from; k < t->end; k++) {
        const struct pf_backend_ops *ops = t->card[k]->ops;
        struct pf_experts_op mine = op_on(t, k, e, w);
        mine.pick_act = pf_team_here(t, k, act);
        PF_TRY(divided ? ops->experts_down(t->card[k], &mine) : ops->experts(t->card[k], &mine));
    }
    return PF_OK;
}

/* A shared expert of one row is computed with those that the router picks: gate and up, then down, have a pick more,
 * which saves three kernels. Its three operations are held until the experts are asked for; whatever else is asked for
 * before starts what is held, as if it had not been. */
#include "kernels/cuda/cuda_backend.h"

/* A product that an expert's kernels do: they know neither its scale nor its bias. */
static bool is_plain(const struct pf_linear *l)
{
    return l->w->scale == 1.0f && !l->w->bias;
}

static bool begins(const struct cuda_backend *b, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    return rows == 1 && n_l == 2 && b->norm.y != x && b->acted.y != x && is_plain(&l[0]) && is_plain(&l[1]);
}

static bool ends(const struct cuda_backend *b, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    return b->shared.n == 2 && rows == 1 && n_l == 1 && x == b->shared.acted && is_plain(l);
}

static void keep(struct held_shared *s, int i, const struct pf_linear *l)
{
    s->w[i] = *l->w;
    s->y[i] = l->y;
}

pf_status pf_cuda_shared_multiplies(struct cuda_backend *b, const struct pf_linear *l, int n_l, const float *x,
                                    int rows, bool *held)
{
    struct held_shared *s = &b->shared;
    *held = true;
    if (ends(b, l, n_l, x, rows)) {
        keep(s, 2, l);
        s->n = 3;
        return PF_OK;
    }
    *held = begins(b, l, n_l, x, rows);
    if (!*held)
        return PF_OK;
    PF_TRY(pf_cuda_settle(b));
    for (int i = 0; i < 2; i++)
        keep(s, i, &l[i]);
    s->x = x;
    s->n = 1;
    return PF_OK;
}

bool pf_cuda_shared_acts(struct cuda_backend *b, struct pf_act act, const float *gate, const float *up, int64_t n,
                         float *y)
{
    struct held_shared *s = &b->shared;
    if (s->n != 1 || gate != s->y[0] || up != s->y[1] || n != s->w[0].n_out)
        return false;
    s->act = act;
    s->acted = y;
    s->n = 2;
    return true;
}

pf_status pf_cuda_shared_start(struct cuda_backend *b)
{
    const struct held_shared s = b->shared;
    const struct pf_linear gate_up[] = { { &s.w[0], s.y[0] }, { &s.w[1], s.y[1] } };
    b->shared.n = 0;
    if (s.n > 0)
        PF_TRY(pf_cuda_multiply(b, gate_up, 2, s.x, 1));
    if (s.n > 1)
        PF_TRY(pf_cuda_activate(b, s.act, s.y[0], s.y[1], s.w[0].n_out, s.acted));
    return s.n > 2 ? pf_cuda_multiply(b, &(struct pf_linear){ &s.w[2], s.y[2] }, 1, s.acted, 1) : PF_OK;
}

static bool alike(const struct pf_weight *w, const struct pf_expert_weight *of)
{
    return w->type == of->type && w->n_in == of->n_in && w->n_out == of->n_out && w->row_bytes == of->row_bytes &&
           !of->lora;
}

void pf_cuda_shared_joins(struct cuda_backend *b, const struct pf_experts_op *e)
{
    const struct held_shared *s = &b->shared;
    const uint8_t *at[3] = { NULL };
    b->with = (struct cu_shared){ .gate = NULL };
    if (s->n < 3 || e->rows != 1 || e->weigh_input || e->x != s->x || e->n_used + 1 > b->sizes.max_picks ||
        e->gate->type != e->up->type || e->act.kind != s->act.kind || e->act.limit != s->act.limit ||
        !alike(&s->w[0], e->gate) || !alike(&s->w[1], e->up) || !alike(&s->w[2], e->down))
        return;
    for (int i = 0; i < 3; i++)
        at[i] = pf_placed_find(&b->placed, s->w[i].data);
    if (!at[0] || !at[1] || !at[2])
        return;
    b->with = (struct cu_shared){ at[0], at[1], at[2], s->y[0], s->y[1], s->y[2], s->acted };
    for (int i = 0; i < 3; i++) {
        b->base.weight_bytes_read += pf_weight_bytes(&s->w[i]);
        pf_cuda_wrote(b, s->y[i], s->w[i].n_out);
    }
    pf_cuda_wrote(b, s->acted, s->w[0].n_out);
    b->shared.n = 0;
}

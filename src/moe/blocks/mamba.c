/* Mamba2: y = out * norm(silu(z h) * ssm(conv(u h), dt h)), the norm group by group. Between the products two
 * operations take one sequence's rows from its state to the next; the state is [taps - 1][n_conv], rows from before the
 * convolution, and behind them the heads' matrices. A step that makes a checkpoint on its way does both operations
 * twice, up to there and from there on. */
#include "moe/blocks/blocks.h"

/* Rows [first, first + rows) of the step, from state `before` (NULL: none) to state `after`. */
static pf_status apply(struct pf_step *t, const struct pf_mamba *a, int first, int rows, const float *before,
                       float *after)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_mamba_sizes *s = &t->m->mamba;
    const struct pf_buffers *b = &t->unit->buf;
    size_t at = (size_t)first, n_conv = (size_t)s->n_conv, n_rows = (size_t)(s->taps - 1) * n_conv;
    PF_TRY(ops->conv(be, &(struct pf_conv_op){
        .x = b->packed + at * n_conv, .w = a->conv, .bias = a->conv_bias, .before = before, .after = after,
        .y = b->mixed + at * n_conv, .n = s->n_conv, .taps = s->taps, .rows = rows, .silu = true }));
    return ops->ssm(be, &(struct pf_ssm_op){
        .u = b->mixed + at * n_conv, .dt = b->ba + at * (size_t)s->n_head, .z = b->gate_out + at * (size_t)s->n_inner,
        .dt_bias = a->dt_bias, .a = a->a, .skip = a->skip, .norm = a->norm, .before = before ? before + n_rows : NULL,
        .after = after + n_rows, .out = b->attn + at * (size_t)s->n_inner, .d = s->d, .p = s->p, .n_head = s->n_head,
        .n_group = s->n_group, .rows = rows, .eps = t->m->eps });
}

/* One part's rows, from its session's state to the next. */
static pf_status apply_part(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_mamba *a = &t->m->layers[il].mamba;
    const float *before = pf_state_before(p->s, il);
    int n = pf_state_cut(p->s, p->rows);
    if (n > 0) {
        PF_TRY(apply(t, a, p->first, n, before, pf_state_between(p->s, il)));
        before = pf_state_between(p->s, il);
    }
    return apply(t, a, p->first + n, p->rows - n, before, pf_state_after(p->s, il));
}

pf_status pf_mamba_block(struct pf_step *t, int il, int rows)
{
    const struct pf_mamba *a = &t->m->layers[il].mamba;
    struct pf_buffers *b = &t->unit->buf;
    const struct pf_linear in[] = { { &a->z, b->gate_out }, { &a->u, b->packed }, { &a->dt, b->ba } };
    PF_TRY(pf_project(t, in, 3, b->h, rows));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(apply_part(t, il, &t->parts[i]));
    return pf_project(t, &(struct pf_linear){ &a->out, b->y }, 1, b->attn, rows);
}

/* Mamba2: y = out * norm(silu(z h) * ssm(conv(u h), dt h)), the norm group by group. Between the products two
 * operations take one sequence's rows from its state to the next; the state is [taps - 1][n_conv], rows from before the
 * convolution, and behind them the heads' matrices. A step that makes a checkpoint on its way does both operations
 * twice, up to there and from there on. Of a step with drafts u and dt are kept, so that both can be done again for
 * those that were right. */
#include "moe/blocks/blocks.h"

/* Products of the rows: u before the convolution, and dt. */
struct products {
    const float *u, *dt;
};

/* Rows [first, first + rows) of the products, from state `before` (NULL: none) to state `after`. */
static pf_status apply(struct pf_step *t, const struct pf_mamba *a, const struct products *p, int first, int rows,
                       const float *before, float *after)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_mamba_sizes *s = &t->m->mamba;
    const struct pf_buffers *b = &t->unit->buf;
    size_t at = (size_t)first, n_conv = (size_t)s->n_conv, n_rows = (size_t)(s->taps - 1) * n_conv;
    PF_TRY(ops->conv(be, &(struct pf_conv_op){
        .x = p->u + at * n_conv, .w = a->conv, .bias = a->conv_bias, .before = before, .after = after,
        .y = b->mixed + at * n_conv, .n = s->n_conv, .taps = s->taps, .rows = rows, .silu = true }));
    return ops->ssm(be, &(struct pf_ssm_op){
        .u = b->mixed + at * n_conv, .dt = p->dt + at * (size_t)s->n_head, .z = b->gate_out + at * (size_t)s->n_inner,
        .dt_bias = a->dt_bias, .a = a->a, .skip = a->skip, .norm = a->norm, .before = before ? before + n_rows : NULL,
        .after = after + n_rows, .out = b->attn + at * (size_t)s->n_inner, .d = s->d, .p = s->p, .n_head = s->n_head,
        .n_group = s->n_group, .rows = rows, .eps = t->m->eps });
}

/* One part's rows, from its session's state to the next. */
static pf_status apply_part(struct pf_step *t, int il, const struct products *products, const struct pf_part *p)
{
    const struct pf_mamba *a = &t->m->layers[il].mamba;
    const float *before = pf_state_before(p->s, il);
    int n = pf_state_cut(p->s, p->rows);
    if (n > 0) {
        PF_TRY(apply(t, a, products, p->first, n, before, pf_state_between(p->s, il)));
        before = pf_state_between(p->s, il);
    }
    return apply(t, a, products, p->first + n, p->rows - n, before, pf_state_after(p->s, il));
}

/* What a session keeps of a step with drafts: all rows' u, then dt. */
static float *kept_dt(const struct pf_session *s, int il)
{
    return pf_state_inputs(s, il) + (size_t)pf_logit_rows(&s->opts) * (size_t)s->m->mamba.n_conv;
}

static pf_status keep_products(struct pf_step *t, int il, const struct products *from, const struct pf_part *p)
{
    int n_conv = t->m->mamba.n_conv, n_head = t->m->mamba.n_head;
    size_t first = (size_t)p->first;
    if (!pf_state_keeps_inputs(p->s, p->rows))
        return PF_OK;
    const struct pf_copy copies[] = {
        { from->u + first * (size_t)n_conv, pf_state_inputs(p->s, il), n_conv, 1, 0, 0, n_conv, n_conv },
        { from->dt + first * (size_t)n_head, kept_dt(p->s, il), n_head, 1, 0, 0, n_head, n_head },
    };
    return ops_of(t)->copy(t->unit->backend, copies, 2, p->rows);
}

pf_status pf_mamba_again(struct pf_step *t, struct pf_session *s, int il, int rows)
{
    const struct products kept = { pf_state_inputs(s, il), kept_dt(s, il) };
    return apply(t, &t->m->layers[il].mamba, &kept, 0, rows, pf_state_earlier(s, il), pf_state_now(s, il));
}

pf_status pf_mamba_block(struct pf_step *t, int il, int rows)
{
    const struct pf_mamba *a = &t->m->layers[il].mamba;
    struct pf_buffers *b = &t->unit->buf;
    const struct pf_linear in[] = { { &a->z, b->gate_out }, { &a->u, b->packed }, { &a->dt, b->ba } };
    PF_TRY(pf_project(t, in, 3, b->h, rows));
    const struct products p = { b->packed, b->ba };
    for (int i = 0; i < t->n_parts; i++) {
        PF_TRY(keep_products(t, il, &p, &t->parts[i]));
        PF_TRY(apply_part(t, il, &p, &t->parts[i]));
    }
    return pf_project(t, &(struct pf_linear){ &a->out, b->y }, 1, b->attn, rows);
}

/* Gated short convolution (LFM2): y = out * (gate_out h * conv(gate_in h * x h)), products element by element. The
 * state of a sequence is [taps - 1][n_embd], rows from before the convolution. A step that makes a checkpoint on its
 * way does the convolution twice, up to there and from there on. Of a step with drafts its input is kept, so that it
 * can be done again for those that were right. */
#include "moe/blocks/blocks.h"

/* Rows [first, first + rows) of x, to b->attn. */
static pf_status apply(struct pf_step *t, const struct pf_short_conv *c, const float *x, int first, int rows,
                       const float *before, float *after)
{
    const struct pf_buffers *b = &t->unit->buf;
    size_t at = (size_t)first * (size_t)t->m->n_embd;
    return ops_of(t)->conv(t->unit->backend, &(struct pf_conv_op){
        .x = x + at, .w = c->conv, .before = before, .after = after, .y = b->attn + at, .n = t->m->n_embd,
        .taps = t->m->conv_taps, .rows = rows });
}

/* One part's rows, from its session's state to the next. */
static pf_status apply_part(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_short_conv *c = &t->m->layers[il].short_conv;
    const float *before = pf_state_before(p->s, il), *x = t->unit->buf.mixed;
    int n = pf_state_cut(p->s, p->rows);
    if (n > 0) {
        PF_TRY(apply(t, c, x, p->first, n, before, pf_state_between(p->s, il)));
        before = pf_state_between(p->s, il);
    }
    return apply(t, c, x, p->first + n, p->rows - n, before, pf_state_after(p->s, il));
}

static pf_status keep_input(struct pf_step *t, int il, const struct pf_part *p)
{
    int n = t->m->n_embd;
    if (!pf_state_keeps_inputs(p->s, p->rows))
        return PF_OK;
    const struct pf_copy copy = { t->unit->buf.mixed + (size_t)p->first * (size_t)n, pf_state_inputs(p->s, il), n, 1, 0,
                                  0, n, n };
    return ops_of(t)->copy(t->unit->backend, &copy, 1, p->rows);
}

pf_status pf_short_conv_again(struct pf_step *t, struct pf_session *s, int il, int rows)
{
    return apply(t, &t->m->layers[il].short_conv, pf_state_inputs(s, il), 0, rows, pf_state_earlier(s, il),
                 pf_state_now(s, il));
}

pf_status pf_short_conv_block(struct pf_step *t, int il, int rows)
{
    static const struct pf_act product = { .kind = PF_ACT_PRODUCT };
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_short_conv *c = &t->m->layers[il].short_conv;
    struct pf_buffers *b = &t->unit->buf;
    int64_t n = (int64_t)rows * t->m->n_embd;
    const struct pf_linear in[] = { { &c->gate_in, b->packed }, { &c->gate_out, b->gate_out }, { &c->x, b->mixed } };
    PF_TRY(pf_project(t, in, 3, b->h, rows));
    PF_TRY(ops->act(be, product, b->packed, b->mixed, n, b->mixed));
    for (int i = 0; i < t->n_parts; i++) {
        PF_TRY(keep_input(t, il, &t->parts[i]));
        PF_TRY(apply_part(t, il, &t->parts[i]));
    }
    PF_TRY(ops->act(be, product, b->gate_out, b->attn, n, b->attn));
    return pf_project(t, &(struct pf_linear){ &c->out, b->y }, 1, b->attn, rows);
}

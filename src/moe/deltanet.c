/* Gated DeltaNet: y = out * (norm(delta(conv(qkv h))) * silu(z h)).
 *
 *     packed layout: one product gives, per key head, [q | k | its values | their z]; it is dealt out to
 *     qkv  [q of all heads | k of all heads | v of all heads]        and        z [all value heads]
 *
 * The state of a net is the last raw rows of qkv, [taps - 1][2 K + V], and a matrix per value head, [n_v_head][d][d]. */
#include "moe/blocks.h"

static pf_status unpacked_projections(struct pf_session *s, const struct pf_delta_net *net, int rows)
{
    struct pf_buffers *b = &s->unit->buf;
    const struct pf_linear l[] = { { &net->qkv, b->qkv }, { &net->z, b->gate_out } };
    return pf_project(s, l, 2, b->h, rows);
}

static pf_status packed_projections(struct pf_session *s, const struct pf_delta_net *net, int rows)
{
    const struct pf_delta_sizes *z = &s->m->delta;
    struct pf_buffers *b = &s->unit->buf;
    int n_head = z->n_k_head, d = z->d, v = z->n_v / n_head, group = 2 * d + 2 * v;
    const float *from = b->packed;
    const struct pf_copy deal[] = {
        { from, b->qkv, d, n_head, group, d, net->packed.n_out, z->n_conv },
        { from + d, b->qkv + z->n_k, d, n_head, group, d, net->packed.n_out, z->n_conv },
        { from + 2 * d, b->qkv + 2 * z->n_k, v, n_head, group, v, net->packed.n_out, z->n_conv },
        { from + 2 * d + v, b->gate_out, v, n_head, group, v, net->packed.n_out, z->n_v },
    };
    PF_TRY(pf_project(s, &(struct pf_linear){ &net->packed, b->packed }, 1, b->h, rows));
    return ops_of(s)->copy(s->unit->backend, deal, 4, rows);
}

static pf_status beta_and_alpha(struct pf_session *s, const struct pf_delta_net *net, int rows)
{
    const struct pf_delta_sizes *z = &s->m->delta;
    struct pf_buffers *b = &s->unit->buf;
    int n_head = z->n_k_head, r = z->n_v_head / n_head;
    const struct pf_copy deal[] = {
        { b->packed, b->beta, r, n_head, 2 * r, r, 2 * z->n_v_head, z->n_v_head },
        { b->packed + r, b->alpha, r, n_head, 2 * r, r, 2 * z->n_v_head, z->n_v_head },
    };
    if (!net->ba.data) {
        const struct pf_linear l[] = { { &net->beta, b->beta }, { &net->alpha, b->alpha } };
        return pf_project(s, l, 2, b->h, rows);
    }
    PF_TRY(pf_project(s, &(struct pf_linear){ &net->ba, b->packed }, 1, b->h, rows));
    return ops_of(s)->copy(s->unit->backend, deal, 2, rows);
}

pf_status pf_delta_block(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_delta_net *net = &s->m->layers[il].delta;
    const struct pf_delta_sizes *z = &s->m->delta;
    float *before = pf_state_before(s, il), *after = pf_state_after(s, il);
    size_t n_rows = (size_t)(z->taps - 1) * (size_t)z->n_conv;           /* of the state; the matrices are behind them */
    struct pf_buffers *b = &s->unit->buf;

    PF_TRY(net->packed.data ? packed_projections(s, net, rows) : unpacked_projections(s, net, rows));
    PF_TRY(beta_and_alpha(s, net, rows));
    PF_TRY(ops->conv(be, &(struct pf_conv_op){
        .x = b->qkv, .w = net->conv, .before = before, .after = after, .y = b->mixed, .n = z->n_conv,
        .taps = z->taps, .rows = rows }));
    PF_TRY(ops->delta(be, &(struct pf_delta_op){
        .u = b->mixed, .alpha = b->alpha, .beta = b->beta, .a = net->a, .dt = net->dt, .before = before ? before + n_rows : NULL,
        .after = after + n_rows, .out = b->attn, .d = z->d, .n_k_head = z->n_k_head, .n_v_head = z->n_v_head,
        .rows = rows, .tiled = s->m->arch->delta == PF_DELTA_TILED, .eps = s->m->eps }));
    PF_TRY(ops->rms_norm(be, b->attn, net->norm, s->m->eps, z->d, rows * z->n_v_head, b->attn));
    PF_TRY(ops->act(be, (struct pf_act){ .kind = PF_ACT_SWIGLU }, b->gate_out, b->attn, (int64_t)rows * z->n_v, b->attn));
    return pf_project(s, &(struct pf_linear){ &net->out, b->y }, 1, b->attn, rows);
}

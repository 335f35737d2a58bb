/* Gated DeltaNet: y = out * (norm(delta(conv(qkv h))) * silu(z h)), beta and alpha h how fast it learns and forgets.
 *
 * Products give [q of all heads | k of all heads | v of all heads] and [z of all], or, packed, per key head, [q | k |
 * its values | their z]; and [beta of all value heads] and [alpha of all], or, per key head, [beta of its values |
 * alpha of its values]. Nothing is dealt out: the operation in the middle is told where vectors lie. A step that makes
 * a checkpoint on its way does that operation twice, up to there and from there on. */
#include "moe/blocks/blocks.h"

/* q, k, v, z, alpha, beta of the normed rows, and where they are. */
static pf_status project(struct pf_step *t, const struct pf_delta_net *net, int rows, struct pf_delta_op *op)
{
    const struct pf_delta_sizes *z = &t->m->delta;
    struct pf_buffers *b = &t->unit->buf;
    int n = z->n_v_head, r = n / z->n_k_head, d = z->d, group = 2 * d + 2 * r * d, n_l = 0;
    float *alpha = b->ba + (size_t)rows * (size_t)n;
    struct pf_linear l[4];
    if (net->packed.data) {
        l[n_l++] = (struct pf_linear){ &net->packed, b->packed };
        op->q = (struct pf_vectors){ b->packed, net->packed.n_out, d, 1, group };
        op->k = (struct pf_vectors){ b->packed + d, net->packed.n_out, d, 1, group };
        op->v = (struct pf_vectors){ b->packed + 2 * d, net->packed.n_out, d, r, group };
        op->z = (struct pf_vectors){ b->packed + (2 + r) * d, net->packed.n_out, d, r, group };
    } else {
        l[n_l++] = (struct pf_linear){ &net->qkv, b->packed };
        l[n_l++] = (struct pf_linear){ &net->z, b->gate_out };
        op->q = (struct pf_vectors){ b->packed, z->n_conv, d, 1, d };
        op->k = (struct pf_vectors){ b->packed + z->n_k, z->n_conv, d, 1, d };
        op->v = (struct pf_vectors){ b->packed + 2 * z->n_k, z->n_conv, d, 1, d };
        op->z = (struct pf_vectors){ b->gate_out, z->n_v, d, 1, d };
    }
    if (net->ba.data) {
        l[n_l++] = (struct pf_linear){ &net->ba, b->ba };
        op->beta = (struct pf_vectors){ b->ba, 2 * n, 1, r, 2 * r };
        op->alpha = (struct pf_vectors){ b->ba + r, 2 * n, 1, r, 2 * r };
    } else {
        l[n_l++] = (struct pf_linear){ &net->beta, b->ba };
        l[n_l++] = (struct pf_linear){ &net->alpha, alpha };
        op->beta = (struct pf_vectors){ b->ba, n, 1, 1, 1 };
        op->alpha = (struct pf_vectors){ alpha, n, 1, 1, 1 };
    }
    return pf_project(t, l, n_l, b->h, rows);
}

/* The same of Kimi's, in which a projection to d numbers comes before alpha and before z. */
static pf_status project_kda(struct pf_step *t, const struct pf_delta_net *net, int rows, struct pf_delta_op *op)
{
    const struct pf_delta_sizes *z = &t->m->delta;
    struct pf_buffers *b = &t->unit->buf;
    size_t r = (size_t)rows, n = (size_t)z->n_k;
    float *q = b->packed, *k = q + r * n, *v = k + r * n, *alpha = v + r * n, *for_alpha = b->ba + r * z->n_v_head,
          *for_z = for_alpha + r * z->d;
    const struct pf_linear from_h[] = { { &net->q, q }, { &net->k, k }, { &net->v, v }, { &net->beta, b->ba },
                                        { &net->decay_a, for_alpha }, { &net->z_a, for_z } };
    op->q = (struct pf_vectors){ q, z->n_k, z->d, 1, z->d };
    op->k = (struct pf_vectors){ k, z->n_k, z->d, 1, z->d };
    op->v = (struct pf_vectors){ v, z->n_v, z->d, 1, z->d };
    op->z = (struct pf_vectors){ b->gate_out, z->n_v, z->d, 1, z->d };
    op->beta = (struct pf_vectors){ b->ba, z->n_v_head, 1, 1, 1 };
    op->alpha = (struct pf_vectors){ alpha, z->n_k, z->d, 1, z->d };
    op->by_key = op->sigmoid_gate = true;
    op->least = z->least;
    PF_TRY(pf_project(t, from_h, sizeof from_h / sizeof *from_h, b->h, rows));
    PF_TRY(pf_project(t, &(struct pf_linear){ &net->decay_b, alpha }, 1, for_alpha, rows));
    return pf_project(t, &(struct pf_linear){ &net->z_b, b->gate_out }, 1, for_z, rows);
}

/* Applies the delta rule to rows [first, first + rows) of *all, from state `before` to state `after`. follows: the
 * operation ahead left `before`. */
static pf_status apply(struct pf_step *t, const struct pf_delta_op *all, int first, int rows, bool follows,
                       const float *before, float *after)
{
    struct pf_delta_op op = *all;
    struct pf_vectors *const vectors[] = { &op.q, &op.k, &op.v, &op.z, &op.alpha, &op.beta };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        vectors[i]->at += first * vectors[i]->row;
    op.out += (size_t)first * (size_t)(op.n_v_head * op.d);
    op.rows = rows;
    op.follows = follows;
    op.before = before;
    op.after = after;
    return ops_of(t)->delta(t->unit->backend, &op);
}

/* One part's rows, from its session's state to the next. */
static pf_status apply_part(struct pf_step *t, int il, const struct pf_delta_op *all, const struct pf_part *p)
{
    const float *before = pf_state_before(p->s, il);
    int n = pf_state_cut(p->s, p->rows);
    if (n > 0) {
        PF_TRY(apply(t, all, p->first, n, false, before, pf_state_between(p->s, il)));
        before = pf_state_between(p->s, il);
    }
    return apply(t, all, p->first + n, p->rows - n, n > 0, before, pf_state_after(p->s, il));
}

pf_status pf_delta_block(struct pf_step *t, int il, int rows)
{
    const struct pf_delta_net *net = &t->m->layers[il].delta;
    const struct pf_delta_sizes *z = &t->m->delta;
    struct pf_buffers *b = &t->unit->buf;
    struct pf_delta_op op = {
        .conv = net->conv, .a = net->a, .dt = net->dt, .norm = net->norm, .mixed = b->mixed, .out = b->attn,
        .d = z->d, .n_k_head = z->n_k_head, .n_v_head = z->n_v_head, .taps = z->taps,
        .tiled = t->m->arch->delta == PF_DELTA_TILED, .eps = t->m->eps };
    PF_TRY((net->q.data ? project_kda : project)(t, net, rows, &op));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(apply_part(t, il, &op, &t->parts[i]));
    return pf_project(t, &(struct pf_linear){ &net->out, b->y }, 1, b->attn, rows);
}

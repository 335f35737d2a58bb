/* Gated DeltaNet: y = out * (norm(delta(conv(qkv h))) * silu(z h)), beta and alpha h how fast it learns and forgets.
 *
 * Products give [q of all heads | k of all heads | v of all heads] and [z of all], or, packed, per key head, [q | k |
 * its values | their z]; and [beta of all value heads] and [alpha of all], or, per key head, [beta of its values |
 * alpha of its values]. Nothing is dealt out: the operation in the middle is told where vectors lie. A step that makes
 * a checkpoint on its way does that operation twice, up to there and from there on. Of a step with drafts the vectors
 * are kept, so that it can be done again for those that were right. */
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

/* Kimi's projections (KDA), in which one to d numbers comes before alpha and before z. */
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

static struct pf_delta_op operation(const struct pf_model *m, const struct pf_delta_net *net,
                                    const struct pf_buffers *b)
{
    const struct pf_delta_sizes *z = &m->delta;
    return (struct pf_delta_op){
        .conv = net->conv, .a = net->a, .dt = net->dt, .norm = net->norm, .mixed = b->mixed, .out = b->attn,
        .d = z->d, .n_k_head = z->n_k_head, .n_v_head = z->n_v_head, .taps = z->taps,
        .tiled = m->arch->delta == PF_DELTA_TILED, .sigmoid_gate = m->arch->delta_sigmoid, .eps = m->eps };
}

/* Where a session keeps the vectors of a step with drafts, of all rows each. */
struct kept {
    float *q, *k, *v, *alpha, *beta;
    int    n_alpha;                  /* floats of alpha for a head */
};

static struct kept kept_of(const struct pf_session *s, int il)
{
    const struct pf_delta_sizes *z = &s->m->delta;
    size_t rows = (size_t)pf_logit_rows(&s->opts);
    struct kept k = { .q = pf_state_inputs(s, il), .n_alpha = s->m->layers[il].delta.q.data ? z->d : 1 };
    k.k = k.q + rows * (size_t)z->n_k;
    k.v = k.k + rows * (size_t)z->n_k;
    k.alpha = k.v + rows * (size_t)z->n_v;
    k.beta = k.alpha + rows * (size_t)(z->n_v_head * k.n_alpha);
    return k;
}

/* Copies n vectors of every row, from row `first` on, to where they and the rows are neighbours. */
static struct pf_copy copy_of(const struct pf_vectors *from, int first, int n, float *to)
{
    int together = from->per * from->n;
    return (struct pf_copy){ from->at + first * from->row, to, together, n / from->per, from->group, together,
                             from->row, (int64_t)n * from->n };
}

static pf_status keep_vectors(struct pf_step *t, int il, const struct pf_delta_op *op, const struct pf_part *p)
{
    if (!pf_state_keeps_inputs(p->s, p->rows))
        return PF_OK;
    const struct kept k = kept_of(p->s, il);
    const struct pf_copy copies[] = {
        copy_of(&op->q, p->first, op->n_k_head, k.q),         copy_of(&op->k, p->first, op->n_k_head, k.k),
        copy_of(&op->v, p->first, op->n_v_head, k.v),         copy_of(&op->alpha, p->first, op->n_v_head, k.alpha),
        copy_of(&op->beta, p->first, op->n_v_head, k.beta),
    };
    return ops_of(t)->copy(t->unit->backend, copies, sizeof copies / sizeof *copies, p->rows);
}

/* z is no part of the state: v, which has its shape, serves as well. */
pf_status pf_delta_again(struct pf_step *t, struct pf_session *s, int il, int rows)
{
    const struct pf_delta_net *net = &t->m->layers[il].delta;
    const struct pf_delta_sizes *z = &t->m->delta;
    const struct kept k = kept_of(s, il);
    struct pf_delta_op op = operation(t->m, net, &t->unit->buf);
    op.by_key = op.sigmoid_gate = net->q.data != NULL;
    op.least = z->least;
    op.q = (struct pf_vectors){ k.q, z->n_k, z->d, 1, z->d };
    op.k = (struct pf_vectors){ k.k, z->n_k, z->d, 1, z->d };
    op.v = op.z = (struct pf_vectors){ k.v, z->n_v, z->d, 1, z->d };
    op.alpha = (struct pf_vectors){ k.alpha, z->n_v_head * k.n_alpha, k.n_alpha, 1, k.n_alpha };
    op.beta = (struct pf_vectors){ k.beta, z->n_v_head, 1, 1, 1 };
    return apply(t, &op, 0, rows, false, pf_state_earlier(s, il), pf_state_now(s, il));
}

pf_status pf_delta_block(struct pf_step *t, int il, int rows)
{
    const struct pf_delta_net *net = &t->m->layers[il].delta;
    struct pf_buffers *b = &t->unit->buf;
    struct pf_delta_op op = operation(t->m, net, b);
    PF_TRY((net->q.data ? project_kda : project)(t, net, rows, &op));
    for (int i = 0; i < t->n_parts; i++) {
        PF_TRY(keep_vectors(t, il, &op, &t->parts[i]));
        PF_TRY(apply_part(t, il, &op, &t->parts[i]));
    }
    return pf_project(t, &(struct pf_linear){ &net->out, b->y }, 1, b->attn, rows);
}

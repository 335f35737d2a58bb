/* Tensors of layers with a recurrent state: delta nets, Mamba2, short convolutions. A convolution's kernel is turned
 * as it is bound, so that channels are neighbours. */
#include <stdio.h>

#include "base/pf_mem.h"
#include "moe/load/bind.h"
#include "moe/load/tensors.h"

/* n channels to turned[0 ..]: {taps, n} -> [taps][n_conv], so that channels are neighbours. */
static void turn_conv(const float *w, int taps, int n, int n_conv, float *turned)
{
    for (int c = 0; c < n; c++)
        for (int t = 0; t < taps; t++)
            turned[(size_t)t * n_conv + c] = w[(size_t)c * taps + t];
}

pf_status pf_bind_conv(const struct pf_loader *l, int il, const char *suffix, int taps, int n_conv,
                       const float **out)
{
    const float *w;
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, suffix, taps, n_conv, &w));
    float *turned = pf_alloc_array(PF_MEM_MODEL, (size_t)taps * (size_t)n_conv, sizeof *turned);
    PF_TRY(pf_model_own(l->m, turned));
    turn_conv(w, taps, n_conv, n_conv, turned);
    *out = turned;
    return PF_OK;
}

/* Values in whatever shape. */
static pf_status bind_values(const struct pf_loader *l, int il, const char *suffix, int64_t n, const float **out)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    const struct pf_tensor *t = pf_tensor_find(l, name);
    if (!t)
        return pf_tensor_missing(l, name);
    if (t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] != n)
        PF_TRY(pf_tensor_check_shape(l, t, n, 1, 1));
    return pf_tensor_floats(l, t, n, out);
}

/* Kimi's: a kernel each for queries, keys and values, {taps, K} or {taps, 1, K}. */
static pf_status bind_kda_conv(const struct pf_loader *l, int il, const float **out)
{
    static const char *const names[] = { "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight" };
    const struct pf_delta_sizes *s = &l->m->delta;
    float *turned = pf_alloc_array(PF_MEM_MODEL, (size_t)s->taps * (size_t)s->n_conv, sizeof *turned);
    PF_TRY(pf_model_own(l->m, turned));
    for (int i = 0; i < 3; i++) {
        const float *w;
        PF_TRY(bind_values(l, il, names[i], (int64_t)s->taps * s->n_k, &w));
        turn_conv(w, s->taps, s->n_k, s->n_conv, turned + i * s->n_k);
    }
    *out = turned;
    return PF_OK;
}

static pf_status bind_kda(const struct pf_loader *l, int il, struct pf_delta_net *d)
{
    const struct pf_delta_sizes *s = &l->m->delta;
    int n_embd = l->m->n_embd;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q", n_embd, s->n_k, PF_NEVER, &d->q));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_k", n_embd, s->n_k, PF_NEVER, &d->k));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_v", n_embd, s->n_v, PF_NEVER, &d->v));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_beta", n_embd, s->n_v_head, PF_NEVER, &d->beta));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_f_a", n_embd, s->d, PF_NEVER, &d->decay_a));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_f_b", s->d, s->n_k, PF_NEVER, &d->decay_b));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_g_a", n_embd, s->d, PF_NEVER, &d->z_a));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_g_b", s->d, s->n_v, PF_NEVER, &d->z_b));
    PF_TRY(bind_kda_conv(l, il, &d->conv));
    PF_TRY(bind_values(l, il, "ssm_a", s->n_v_head, &d->a));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_dt.bias", s->n_k, 1, &d->dt));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_norm.weight", s->d, 1, &d->norm));
    return pf_layer_matrix(l, PF_REQUIRED, il, "attn_output", s->n_v, n_embd, PF_NEVER, &d->out);
}

pf_status pf_bind_delta(const struct pf_loader *l, int il, struct pf_delta_net *d)
{
    const struct pf_delta_sizes *s = &l->m->delta;
    int n_embd = l->m->n_embd;
    if (l->m->arch->delta == PF_DELTA_KDA)
        return bind_kda(l, il, d);
    PF_TRY(pf_layer_matrix(l, PF_OPTIONAL, il, "ssm_in", n_embd, 2 * (int64_t)(s->n_k + s->n_v), PF_NEVER, &d->packed));
    if (!d->packed.data) {
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_qkv", n_embd, s->n_conv, PF_NEVER, &d->qkv));
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_gate", n_embd, s->n_v, PF_NEVER, &d->z));
    }
    PF_TRY(pf_layer_matrix(l, PF_OPTIONAL, il, "ssm_ba", n_embd, 2 * (int64_t)s->n_v_head, PF_NEVER, &d->ba));
    if (!d->ba.data) {
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_beta", n_embd, s->n_v_head, PF_NEVER, &d->beta));
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ssm_alpha", n_embd, s->n_v_head, PF_NEVER, &d->alpha));
    }
    PF_TRY(pf_bind_conv(l, il, "ssm_conv1d.weight", s->taps, s->n_conv, &d->conv));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_a", s->n_v_head, 1, &d->a));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_dt.bias", s->n_v_head, 1, &d->dt));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_norm.weight", s->d, 1, &d->norm));
    return pf_layer_matrix(l, PF_REQUIRED, il, "ssm_out", s->n_v, n_embd, PF_NEVER, &d->out);
}

/* ssm_in holds the rows of z, then those of what passes through the convolution, then those of dt. */
pf_status pf_bind_mamba(const struct pf_loader *l, int il, struct pf_mamba *a)
{
    const struct pf_mamba_sizes *s = &l->m->mamba;
    struct pf_weight in;
    PF_TRY(pf_layer_whole(l, PF_REQUIRED, il, "ssm_in", l->m->n_embd, (int64_t)s->n_inner + s->n_conv + s->n_head,
                          PF_NEVER, &in));
    PF_TRY(pf_layer_rows(l, il, &in, 0, s->n_inner, &a->z));
    PF_TRY(pf_layer_rows(l, il, &in, s->n_inner, s->n_conv, &a->u));
    PF_TRY(pf_layer_rows(l, il, &in, s->n_inner + s->n_conv, s->n_head, &a->dt));
    PF_TRY(pf_bind_conv(l, il, "ssm_conv1d.weight", s->taps, s->n_conv, &a->conv));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_conv1d.bias", s->n_conv, 1, &a->conv_bias));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_dt.bias", s->n_head, 1, &a->dt_bias));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_a", 1, s->n_head, &a->a));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_d", 1, s->n_head, &a->skip));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ssm_norm.weight", s->n_inner / s->n_group, s->n_group, &a->norm));
    return pf_layer_matrix(l, PF_REQUIRED, il, "ssm_out", s->n_inner, l->m->n_embd, PF_NEVER, &a->out);
}

pf_status pf_bind_short_conv(const struct pf_loader *l, int il, struct pf_short_conv *c)
{
    int n = l->m->n_embd;
    struct pf_weight in;
    PF_TRY(pf_layer_whole(l, PF_REQUIRED, il, "shortconv.in_proj", n, 3 * (int64_t)n, PF_NEVER, &in));
    PF_TRY(pf_layer_rows(l, il, &in, 0, n, &c->gate_in));
    PF_TRY(pf_layer_rows(l, il, &in, n, n, &c->gate_out));
    PF_TRY(pf_layer_rows(l, il, &in, 2 * n, n, &c->x));
    PF_TRY(pf_bind_conv(l, il, "shortconv.conv.weight", l->m->conv_taps, n, &c->conv));
    return pf_layer_matrix(l, PF_REQUIRED, il, "shortconv.out_proj", n, n, PF_NEVER, &c->out);
}

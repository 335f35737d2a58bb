/* Keys of layers with a recurrent state (delta nets, Mamba2, short convolutions), which layer is of which kind, and how
 * large the states are. */
#include <stdio.h>

#include "moe/load/keys.h"
#include "moe/load/read.h"

/* A delta net's state: what the convolution looks back at, and a matrix for each value head. */
static size_t delta_state(const struct pf_delta_sizes *s)
{
    return (size_t)(s->taps - 1) * (size_t)s->n_conv + (size_t)s->n_v * (size_t)s->d;
}

/* Kimi's: keys and values have as many heads as queries. */
static pf_status read_kda(const struct pf_loader *l)
{
    enum { MAX_NET_HEADS = 4096, MAX_NET_DIM = 1024, MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    struct pf_delta_sizes *s = &m->delta;
    PF_TRY(pf_key_int(l, "attention.head_count", true, 1, MAX_NET_HEADS, &s->n_v_head));
    PF_TRY(pf_key_int(l, "ssm.conv_kernel", true, 1, MAX_TAPS, &s->taps));
    PF_TRY(pf_key_int(l, "kda.head_dim", true, 1, MAX_NET_DIM, &s->d));
    PF_TRY(pf_key_real(l, "kda.gate_lower_bound", false, false, &s->least));
    s->n_k_head = s->n_v_head;
    s->n_k = s->n_v = s->n_v_head * s->d;
    s->n_conv = 3 * s->n_k;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_DELTA)
            m->layers[il].n_state = delta_state(s);
    return PF_OK;
}

pf_status pf_read_delta(const struct pf_loader *l)
{
    enum { MAX_NET_HEADS = 4096, MAX_NET_DIM = 1024, MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    struct pf_delta_sizes *s = &m->delta;
    int inner = 0, n_nets = 0;
    for (int il = 0; m->arch->delta && m->arch->delta != PF_DELTA_KDA && il < m->n_layer; il++) {
        char name[PF_KEY_BYTES];
        snprintf(name, sizeof name, "blk.%d.ssm_conv1d.weight", il);
        if (!pf_gguf_tensor(l->g, name))
            continue;
        m->layers[il].mixer = PF_MIXER_DELTA;
        n_nets++;
    }
    if (n_nets == 0)
        return PF_OK;
    PF_TRY(pf_key_int(l, "ssm.conv_kernel", true, 1, MAX_TAPS, &s->taps));
    PF_TRY(pf_key_int(l, "ssm.state_size", true, 1, MAX_NET_DIM, &s->d));
    PF_TRY(pf_key_int(l, "ssm.group_count", true, 1, MAX_NET_HEADS, &s->n_k_head));
    PF_TRY(pf_key_int(l, "ssm.time_step_rank", true, 1, MAX_NET_HEADS, &s->n_v_head));
    PF_TRY(pf_key_int(l, "ssm.inner_size", true, 1, PF_MAX_DIM, &inner));
    s->n_k = s->n_k_head * s->d;
    s->n_v = s->n_v_head * s->d;
    s->n_conv = 2 * s->n_k + s->n_v;
    if (s->n_v_head % s->n_k_head || inner != s->n_v)
        PF_FAIL(PF_EFORMAT, "%d value heads of %d do not suit %d key heads and an inner size of %d, in %s", s->n_v_head,
                s->d, s->n_k_head, inner, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_DELTA)
            m->layers[il].n_state = delta_state(s);
    return PF_OK;
}

static pf_status read_mamba(const struct pf_loader *l)
{
    enum { MAX_SSM_HEADS = 65536, MAX_SSM_STATE = 4096, MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    struct pf_mamba_sizes *s = &m->mamba;
    PF_TRY(pf_key_int(l, "ssm.conv_kernel", true, 1, MAX_TAPS, &s->taps));
    PF_TRY(pf_key_int(l, "ssm.inner_size", true, 1, PF_MAX_DIM / 4, &s->n_inner));
    PF_TRY(pf_key_int(l, "ssm.state_size", true, 1, MAX_SSM_STATE, &s->d));
    PF_TRY(pf_key_int(l, "ssm.time_step_rank", true, 1, MAX_SSM_HEADS, &s->n_head));
    PF_TRY(pf_key_int(l, "ssm.group_count", true, 1, MAX_SSM_HEADS / 64, &s->n_group));
    if (s->n_inner % s->n_head || s->n_head % s->n_group)
        PF_FAIL(PF_EFORMAT, "%d heads in %d groups do not suit an inner size of %d, in %s", s->n_head, s->n_group,
                s->n_inner, pf_gguf_path(l->g));
    s->p = s->n_inner / s->n_head;
    s->n_conv = s->n_inner + 2 * s->n_group * s->d;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_MAMBA2)
            m->layers[il].n_state =
                (size_t)(s->taps - 1) * (size_t)s->n_conv + (size_t)s->n_inner * (size_t)s->d;
    return PF_OK;
}

static pf_status read_short_conv(const struct pf_loader *l)
{
    enum { MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    PF_TRY(pf_key_int(l, "shortconv.l_cache", true, 2, MAX_TAPS, &m->conv_taps));
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_SHORT_CONV)
            m->layers[il].n_state = (size_t)(m->conv_taps - 1) * (size_t)m->n_embd;
    return PF_OK;
}

/* What each layer consists of, where that follows from keys alone. */
pf_status pf_read_mixers(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    const struct pf_arch *arch = m->arch;
    int64_t n_kv[PF_MAX_LAYERS], n_ff[PF_MAX_LAYERS];
    bool by_kv = arch->without_kv != PF_MIXER_ATTENTION;
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].mixer = arch->mla ? PF_MIXER_LATENT : arch->compressed ? PF_MIXER_COMPRESSED : PF_MIXER_ATTENTION;
        m->layers[il].has_ffn = true;
    }
    if (!by_kv)
        return PF_OK;
    PF_TRY(pf_key_layers(l, "attention.head_count_kv", true, 0, PF_MAX_HEADS, n_kv));
    if (arch->split_layers)
        PF_TRY(pf_key_layers(l, "feed_forward_length", true, 0, PF_MAX_DIM, n_ff));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].has_ffn = !arch->split_layers || n_ff[il] > 0;
        if (arch->split_layers && n_ff[il] > 0)
            m->layers[il].mixer = PF_MIXER_NONE;
        else if (n_kv[il] == 0)
            m->layers[il].mixer = arch->without_kv;
    }
    if (m->is_nextn && arch->split_layers) {
        m->layers[m->first_block].mixer = PF_MIXER_ATTENTION;
        m->layers[m->first_block].has_ffn = true;
    }
    return arch->without_kv == PF_MIXER_MAMBA2 ? read_mamba(l)
           : arch->without_kv == PF_MIXER_DELTA ? read_kda(l)
                                                : read_short_conv(l);
}

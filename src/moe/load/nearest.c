/* Which known architecture a file of an unknown one comes closest to, by the names of its tensors. See nearest.h. */
#include "moe/load/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "moe/archs/arch.h"
#include "moe/model/model.h"

enum { NAME_BYTES = 96, MOST_NAMED = 4 };

#define IF(x) ((x) ? PF_REQUIRED : PF_NEVER)

/* Names that tell tables apart, and whether table a has them in some layer; where all layers of all models may have a
 * name, or no table asks for it by itself, PF_OPTIONAL. */
#define NAMES(N) \
    N("attn_norm.weight", IF(!a->gated_streams)) \
    N("attn_q.weight", PF_OPTIONAL) N("attn_k.weight", PF_OPTIONAL) N("attn_v.weight", PF_OPTIONAL) \
    N("attn_qkv.weight", PF_OPTIONAL) N("attn_output.weight", PF_OPTIONAL) \
    N("attn_q.bias", a->qkv_bias) N("attn_k.bias", a->qkv_bias) N("attn_v.bias", a->qkv_bias) \
    N("attn_output.bias", a->out_bias) N("attn_norm.bias", a->norm_bias) N("ffn_norm.bias", a->norm_bias) \
    N("attn_sinks.weight", a->sinks) N("attn_q_norm.weight", a->qk_norm) N("attn_k_norm.weight", a->qk_norm) \
    N("attn_gate.weight", a->head_gate ? a->head_gate : IF(has_delta(a))) \
    N("ssm_conv1d.weight", IF(has_delta(a) || a->without_kv == PF_MIXER_MAMBA2)) \
    N("ssm_conv1d_q.weight", IF(a->delta == PF_DELTA_KDA)) \
    N("ssm_norm.weight", IF(a->delta || a->without_kv == PF_MIXER_MAMBA2)) \
    N("ssm_d", IF(a->without_kv == PF_MIXER_MAMBA2)) \
    N("shortconv.conv.weight", IF(a->without_kv == PF_MIXER_SHORT_CONV)) \
    N("attn_kv_a_mqa.weight", IF(a->mla)) N("attn_q_a.weight", a->mla ? PF_OPTIONAL : IF(a->compressed)) \
    N("attn_kv.weight", a->compressed ? PF_OPTIONAL : PF_NEVER) \
    N("indexer.attn_q_b.weight", IF(a->indexer || a->compressed)) \
    N("indexer_compressor_gate.weight", IF(a->index_pools || a->compressed)) \
    N("indexer.q_proj.weight", IF(a->index_runs || a->index_means)) \
    N("hc_attn_fn.weight", IF(a->streams)) N("hc_attn_norm.weight", IF(a->gated_streams)) \
    N("ffn_norm.weight", IF(a->ffn_norm && strcmp(a->ffn_norm, "ffn_norm") == 0)) \
    N("post_attention_norm.weight", IF(a->post_norms || has_other_norm(a))) \
    N("post_ffw_norm.weight", IF(a->post_norms)) \
    N("ffn_gate_inp.weight", a->dense == PF_OPTIONAL ? PF_OPTIONAL : IF(a->dense != PF_REQUIRED)) \
    N("ffn_gate_inp.bias", a->router_bias) N("ffn_gate_exps.bias", a->expert_bias) \
    N("ffn_gate_exps.weight", a->ungated || a->dense == PF_REQUIRED ? PF_NEVER : PF_OPTIONAL) \
    N("exp_probs_b.bias", a->select_bias) N("ffn_gate_tid2eid.weight", IF(a->hash_layers)) \
    N("ffn_up_shexp.weight", a->shared) N("ffn_gate_inp_shexp.weight", a->shared_gate)

static bool has_other_norm(const struct pf_arch *a)
{
    return !a->split_layers && a->ffn_norm && strcmp(a->ffn_norm, "ffn_norm") != 0;
}

static bool has_delta(const struct pf_arch *a)
{
    return a->delta == PF_DELTA_GROUPED || a->delta == PF_DELTA_TILED;
}

#define TEXT(name, need) name,
#define NEED(name, need) need,
static const char *const names[] = { NAMES(TEXT) };
enum { N_NAMES = sizeof names / sizeof *names };

static void fill_needs(const struct pf_arch *a, enum pf_need needs[N_NAMES])
{
    const enum pf_need of_a[] = { NAMES(NEED) };
    memcpy(needs, of_a, sizeof of_a);
}

/* Whether some layer of the file has a tensor of the name. */
static void find_names(const pf_gguf *g, bool found[N_NAMES])
{
    memset(found, 0, N_NAMES * sizeof *found);
    for (uint64_t t = 0; t < pf_gguf_n_tensors(g); t++) {
        char name[NAME_BYTES];
        int il, at = 0;
        struct pf_str s = pf_gguf_tensor_at(g, t)->name;
        snprintf(name, sizeof name, "%.*s", (int)(s.n < NAME_BYTES ? s.n : NAME_BYTES - 1), s.p);
        if (sscanf(name, "blk.%d.%n", &il, &at) < 1 || at == 0)
            continue;
        for (int i = 0; i < N_NAMES; i++)
            found[i] |= strcmp(name + at, names[i]) == 0;
    }
}

/* A name that the table does not know weighs more than one that the file does not have. */
static int distance(const struct pf_arch *a, const bool found[N_NAMES])
{
    enum pf_need needs[N_NAMES];
    int sum = 0;
    fill_needs(a, needs);
    for (int i = 0; i < N_NAMES; i++)
        sum += found[i] && needs[i] == PF_NEVER ? 3 : !found[i] && needs[i] == PF_REQUIRED ? 2 : 0;
    return sum;
}

void pf_model_liken(const pf_gguf *g, const char *name, char *text, size_t cap)
{
    const struct pf_arch *arch = pf_arch_find(name, strlen(name));
    char differences[400];
    if (!arch) {
        pf_nearest_arch(g, text, cap);
        return;
    }
    pf_arch_differences(arch, pf_arch_like(arch), differences, sizeof differences);
    snprintf(text, cap, "like %s%s", pf_arch_like(arch)->name, differences);
}

void pf_nearest_arch(const pf_gguf *g, char *text, size_t cap)
{
    bool found[N_NAMES];
    enum pf_need needs[N_NAMES];
    const struct pf_arch *best = pf_arch_at(0);
    int n_named = 0;
    size_t n;
    find_names(g, found);
    for (int i = 1; pf_arch_at(i); i++)
        if (distance(pf_arch_at(i), found) < distance(best, found))
            best = pf_arch_at(i);
    fill_needs(best, needs);
    n = (size_t)snprintf(text, cap, "its tensors are most like those of %s", best->name);
    for (int i = 0; i < N_NAMES && n_named < MOST_NAMED && n < cap; i++)
        if (found[i] && needs[i] == PF_NEVER)
            n += (size_t)snprintf(text + n, cap - n, "%s%s", n_named++ ? ", " : ", which has no ", names[i]);
    for (int i = 0, first = 1; i < N_NAMES && n_named < MOST_NAMED && n < cap; i++)
        if (!found[i] && needs[i] == PF_REQUIRED) {
            n += (size_t)snprintf(text + n, cap - n, "%s%s", first ? "; the file has no " : ", ", names[i]);
            first = 0;
            n_named++;
        }
}

/* Shapes of published models: the presets of pfmoe-synth, and the tensors that each is made of. One thread; whoever
 * fills a struct model frees its tensors. */
#ifndef SYNTH_SHAPES_H
#define SYNTH_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "synth_fill.h"

enum { SYNTH_ALIGN = 32 };

enum family { LLAMA, QWEN3MOE, GPTOSS, QWEN3NEXT, QWEN35MOE, DEEPSEEK2, GLM4MOE, GLM_DSA, QWEN35, DEEPSEEK4,
              NEMOTRON, LFM2, GRANITE_H, PHI, KIMI, QWEN4, GEMMA4, GLM5, QWEN3VL, MISTRAL3, MISTRAL4, SMOLLM3,
              DEEPSEEK32, STEP35, MIMO2, MINIMAX3, AFMOE, COHERE2, HY3 };

struct preset {
    const char *name;
    enum family family;
    int n_layer, n_embd, n_head, n_kv, hd, n_ff, n_expert, n_used, n_ff_expert, n_vocab, n_ctx;
    float rope_base, eps;
    const char *type, *down_type, *expert_type, *output_type;   /* NULL: as type (down_type: as expert_type) */
    const char *about;
    int n_dense, n_shared;                /* leading layers without experts; shared experts, side by side in one
                                             tensor */
};

struct tensor {
    char     name[64];
    const struct synth_type *type;
    int      n_dims;
    uint64_t ne[3];
    float    mean, rms;            /* mean and root mean square of its values */
    int      n_ids;                /* 0, or they are numbers below this */
    uint64_t offset, n_bytes;
};

enum { SYNTH_MAX_MIX = 32 };

struct model {
    struct preset p;
    const struct synth_type *type, *expert_type, *down_type, *output_type, *f32, *i32;
    const struct synth_type *mix[SYNTH_MAX_MIX];      /* if n_mix > 0, all matrices but F32 take these in turn */
    size_t n_mix, n_mixed;
    struct tensor *tensors;
    size_t n_tensors, cap;
};

extern const struct preset synth_presets[];
extern const size_t synth_n_presets;

/* general.architecture. */
const char *synth_arch_of(const struct preset *p);

/* Three layers of four are delta nets, the fourth is gated attention; latent attention; layers with a recurrent state,
 * which files tell by their having no KV heads; no output matrix but the embedding. */
bool synth_is_hybrid(const struct preset *p);
bool synth_is_latent(const struct preset *p);
bool synth_has_states(const struct preset *p);
bool synth_is_tied(const struct preset *p);

/* How layer il mixes positions: 'a' attention (of the family's kind), 'w' attention with a window, 'd' a delta net,
 * 'm' Mamba2, 'c' a short convolution, 'k' one of Kimi's delta nets, 'e' not at all: experts alone. */
char synth_kind_of(const struct preset *p, int il);

/* Layers that guess ahead, behind the others: the small model has one. */
static inline int synth_n_nextn(const struct preset *p)
{
    return p->family == DEEPSEEK4 && p->n_embd < 1024;
}

/* Heads of layer il, of attention with keys and values of its own. */
struct synth_heads {
    int n_head, n_kv, hd_k, hd_v;
};
struct synth_heads synth_heads_of(const struct preset *p, int il);

/* Heads of the hybrids' delta nets; the small models have a quarter of them. */
static inline int synth_key_heads(const struct preset *p)
{
    return p->n_embd < 1024 ? 4 : 16;
}

static inline int synth_value_heads(const struct preset *p)
{
    return synth_key_heads(p) * (p->family == QWEN4 ? 3 : 2);
}

/* Gemma 4: of `period` layers all but the last have a window. The E models have `width` numbers of each token for each
 * layer, and n_shared last layers, n_ff_shared wide, that see keys and values of earlier ones. */
struct synth_gemma {
    int period, window, width, n_shared, n_ff_shared;
};
struct synth_gemma synth_gemma_of(const struct preset *p);

/* Latent attention: of each key n_rope numbers are rotated, n_nope not; what keys and values are made from; the values;
 * what queries are made from (0: the row itself). */
struct synth_latent {
    int n_rope, n_nope, n_latent, n_v, q_latent;
};
struct synth_latent synth_latent_of(const struct preset *p);

/* Indexers: heads, their width, how many positions (of MiniMax-M3: runs of 128) they choose. n_head 0: none. Of GLM-DSA
 * the first layers have one and the others share its choice. */
struct synth_index {
    int n_head, width, n_chosen;
};
enum { DSA_FULL_LAYERS = 2 };
struct synth_index synth_index_of(const struct preset *p);
bool synth_has_indexer(const struct preset *p, int il);

/* Qwen3.8: gated residual streams, and a layer with n-grams of up to NGRAM tokens, whose heads have tables of sizes[]
 * rows, together as many as synth_ngram_sizes says. */
enum { N_STREAMS = 4, LOW_RANK = 320, NGRAM = 3, NGRAM_HEADS = 16, NGRAM_TAPS = 4, NGRAM_LAYER = 1 };
uint64_t synth_ngram_sizes(uint64_t sizes[NGRAM_HEADS]);

/* Sizes of DeepSeek-V4: rotated part of a head, latent of queries, groups of heads and the output of each, the
 * indexers, the window; n_hash leading layers have a table that picks the experts; n_plain leading layers have no keys
 * of blocks, the others have keys of blocks of 4 and of 128 positions in turn. */
struct synth_compressed {
    int n_rot, q_latent, n_group, group_out, index_heads, index_width, n_chosen, window, n_hash, n_plain;
};
const struct synth_compressed *synth_compressed_of(const struct preset *p);
int synth_ratio_of(const struct preset *p, int il);

/* Mamba2: inner size, heads, groups; its state and its window have these sizes in all presets. */
struct synth_mamba {
    int n_inner, n_head, n_group;
};
enum { MAMBA_STATE = 128, MAMBA_TAPS = 4, SHORT_TAPS = 3 };
struct synth_mamba synth_mamba_of(const struct preset *p);

/* Lists the tensors of m->p in the types of m, and where each begins behind the header. */
void synth_list_tensors(struct model *m);

#endif

/* Shapes of published models: the presets of pfmoe-synth, and the tensors that each is made of. One thread; whoever
 * fills a struct model frees its tensors. */
#ifndef SYNTH_SHAPES_H
#define SYNTH_SHAPES_H

#include <stddef.h>
#include <stdint.h>

#include "synth_fill.h"

enum { SYNTH_ALIGN = 32 };

enum family { LLAMA, QWEN3MOE, GPTOSS, QWEN3NEXT, QWEN35MOE, DEEPSEEK2, GLM4MOE, GLM_DSA, QWEN35, DEEPSEEK4,
              NEMOTRON, LFM2, GRANITE_H, PHI, KIMI };

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

/* Latent attention of DeepSeek-V2-Lite: of each key this much is rotated, that much not; what keys and values are
 * made from; the values. */
enum { MLA_ROPE = 64, MLA_NOPE = 128, MLA_LATENT = 512, MLA_V = 128 };

/* Sparse latent attention, of the tiny model only: sizes of its queries' latent and of its indexers, which the first
 * layers have and the others share. */
enum { DSA_Q_LATENT = 128, DSA_HEADS = 4, DSA_KEY = 96, DSA_CHOSEN = 270, DSA_FULL_LAYERS = 2 };

/* Sizes of DeepSeek-V4: rotated part of a head, latent of queries, groups of heads and the output of each, the
 * indexers, the window; n_hash leading layers have a table that picks the experts; n_plain leading layers have no keys
 * of blocks, the others have keys of blocks of 4 and of 128 positions in turn. */
struct synth_compressed {
    int n_rot, q_latent, n_group, group_out, index_heads, index_width, n_chosen, window, n_hash, n_plain;
};
const struct synth_compressed *synth_compressed_of(const struct preset *p);
int synth_ratio_of(const struct preset *p, int il);

/* Families whose layers differ: 'a' is an attention layer in the pattern, of latent attention too; 'm' is Mamba2, 'c' a
 * short convolution, 'k' one of Kimi's delta nets, 'e' experts alone. NULL: all layers are attention. */
const char *synth_pattern_of(const struct preset *p);

/* Mamba2: inner size, heads, groups; its state and its window have these sizes in all presets. */
struct synth_mamba {
    int n_inner, n_head, n_group;
};
enum { MAMBA_STATE = 128, MAMBA_TAPS = 4, SHORT_TAPS = 3 };
struct synth_mamba synth_mamba_of(const struct preset *p);

/* Lists the tensors of m->p in the types of m, and where each begins behind the header. */
void synth_list_tensors(struct model *m);

#endif

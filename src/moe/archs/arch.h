/* What distinguishes an architecture: a const table each. arch_*.c have the tables, archs.h lists them; moe/load
 * reads a file by its table, and what runs a model asks the table where a block differs. */
#ifndef PF_ARCH_H
#define PF_ARCH_H

#include <stdbool.h>

#include "backend/backend.h"

/* Whether an architecture has a tensor: never, perhaps, always. Tensors of a running layer that no table names are
 * refused. */
enum pf_need { PF_NEVER, PF_OPTIONAL, PF_REQUIRED };

/* How a layer mixes positions: the block in front of its feed-forward. */
enum pf_mixer { PF_MIXER_ATTENTION, PF_MIXER_LATENT, PF_MIXER_COMPRESSED, PF_MIXER_DELTA, PF_MIXER_MAMBA2,
                PF_MIXER_SHORT_CONV, PF_MIXER_NONE };

/* The differences of an architecture. One const table per architecture; everything not named is the plain pre-norm
 * transformer: x += attention(norm(x)); x += ffn(norm(x)). */
struct pf_arch {
    const char     *name;                 /* general.architecture */

    bool            rope_neox;            /* pairs (i, i + n/2) instead of (2i, 2i + 1) */
    bool            rope_freqs;           /* the file may hold divisors of the rotary frequencies */
    bool            long_rope;            /* the file holds such divisors for long contexts and for short ones */
    bool            rope_whole_head;      /* rope.dimension_count must equal the key length */
    bool            rope_switch;          /* rope.scaling.finetuned false: no rotation at all */
    int             still_period;         /* n > 0: the last layer of every n does not rotate */
    bool            yarn_betas;           /* reads the ends of YaRN's ramp */
    bool            temper;               /* reads attention.temperature_scale: queries grow with their position, from
                                             the context before extension on */
    enum { PF_SECTIONS_NONE, PF_SECTIONS_BLOCKS, PF_SECTIONS_INTERLEAVED } rope_sections;   /* positions in images */

    enum pf_need    qkv_bias, out_bias, sinks;
    enum pf_need    qk_norm;              /* norms of queries and keys, before rotation, per head */
    bool            norm_whole_row;       /* those norms go over all heads at once */
    enum pf_need    head_gate;            /* attn_gate: what a head puts out is weighed by sigmoid(attn_gate h) */
    bool            gate_elements;        /* attn_gate has a number for each element of what a head puts out */
    bool            value_scale;          /* reads attention.value_scale, a factor of what attention puts out */
    bool            gated_attention;      /* attn_q holds, head by head, queries and a gate of the head's output */
    enum { PF_DELTA_NONE, PF_DELTA_GROUPED, PF_DELTA_TILED, PF_DELTA_KDA } delta; /* layers with ssm_conv1d are delta
                                             nets; value heads that are neighbours share a key head, or they take
                                             turns. KDA: layers without KV heads are, Kimi's */
    bool            delta_sigmoid;        /* delta nets gate by sigmoid, not silu */
    bool            mla;                  /* latent attention instead of queries, keys and values */
    bool            indexer;              /* latent attention looks only at positions that an indexer chooses */
    bool            index_pools;          /* it chooses runs of attention.indexer.kpool positions */
    bool            index_runs;           /* attention whose layers have an indexer looks, for each KV head, only at the
                                             runs of positions that it chooses */
    bool            index_neox;           /* rope_neox of the indexer's heads */
    bool            yarn_ratio;           /* yarn_log_multiplier says a second magnitude, by which YaRN's is divided */
    bool            index_means;          /* attention looks only at runs of positions that an indexer chooses by the
                                             means of their keys, in layers with an attention.compress_ratios */
    bool            compressed;           /* attention to a window of positions and to keys of blocks of positions */
    bool            streams;              /* hyper-connections: several residual streams */
    bool            streams_mean;         /* of which the end takes the mean, without weights of its own */
    bool            gated_streams;        /* these, gated element by element, in the place of norms */
    bool            ngrams;               /* a layer may have embeddings of the last tokens: ngrams.h */
    enum pf_mixer   without_kv;           /* mixer of layers without KV heads; ATTENTION: there are none */
    bool            split_layers;         /* a layer is one block: feed-forward if feed_forward_length is not 0 */
    bool            no_rope;              /* nothing rotates, whatever keys say */
    bool            norm_after_rope;
    bool            value_norm;           /* values are normed per head without weights; without attn_v they are made of
                                             the keys' projections */
    bool            near_heads;           /* layers with a window have heads and rotations of their own sizes */
    bool            unscaled;             /* queries are not scaled */
    bool            post_norms;           /* what a block puts out is normed before it is added */
    bool            parallel;             /* the feed-forward reads what attention reads: the layer's one norm of x */
    bool            layer_parts;          /* reads embedding_length_per_layer_input (each layer adds something of the
                                             token), attention.shared_kv_layers and layer_output_scale; layers may
                                             differ in width */
    bool            embed_root;           /* the embedding is multiplied by the root of its length */
    bool            softcap;              /* reads final_logit_softcapping */
    bool            attention_scale;      /* reads attention.scale */
    enum { PF_WINDOW_NONE, PF_WINDOW_SLIDING, PF_WINDOW_LLAMA4, PF_WINDOW_BY_LAYER } window;    /* on all but the last
                                             layer of each period of attention.sliding_window_pattern; llama4:
                                             load/read_attention.c, read_windows(); by layer: the pattern says true, and
                                             these layers have a rotation of their own */
    bool            still_far;            /* layers without a window do not rotate, and the others as keys say of all */
    bool            near_plain;           /* layers with a window rotate from the same base, never scaled */
    bool            dense_rotates;        /* but the leading layers without experts do, whatever they see */
    bool            half_rope;            /* layers without a window rotate half of rope.dimension_count, and they alone
                                             have divisors */
    int             window_period;

    const char     *ffn_norm;             /* name of the norm in front of the FFN */
    enum pf_need    norm_bias;            /* norms of the residual stream add a bias */
    bool            centred;              /* they subtract the mean (LayerNorm) in files without
                                             attention.layer_norm_rms_epsilon */
    const char     *output_norm;          /* name of the last norm; NULL: output_norm */
    enum pf_need    dense;                /* layers without experts in files without experts: required means always */
    enum pf_need    dense_bias, router_bias, expert_bias;
    bool            dense_beside;         /* layers with experts have a dense feed-forward besides, each with norms */
    bool            dense_by_tensor;      /* layers without a router are dense */
    enum pf_need    leading_dense;        /* leading_dense_block_count: the first layers have no experts */
    enum pf_need    interleave;           /* interleave_moe_layer_step n: only every n-th layer has experts */
    enum pf_act_kind act;
    bool            ungated;              /* feed-forwards have no gate: down * act(up h, up h) */
    bool            latent_experts;       /* moe_latent_size: picked experts work on a shorter vector */
    enum pf_gating  gating;
    bool            norm_weights;
    bool            router_keys;          /* reads expert_gating_func, _weights_norm, _weights_scale and _group_...;
                                             for absent keys gating and norm_weights hold */
    bool            weigh_input;          /* routing weights multiply the experts' input */
    enum pf_need    select_bias;          /* exp_probs_b */
    bool            hash_layers;          /* some layers have a table of picks by token, and no selection bias */
    bool            limits;               /* the file has limits for the experts' gate and up */
    enum pf_need    shared, shared_gate;  /* an expert that every token goes through; its weight is sigmoid(gate) */
    bool            shared_mean;          /* the layer puts out the mean of that expert and of the picked ones' sum */
    enum { PF_WIDTH_FF, PF_WIDTH_FF_PER_PICK, PF_WIDTH_KEY } expert_width;  /* when expert_feed_forward_length is
                                             absent: feed_forward_length, that / n_used, or it must be there */

    bool            nextn;                /* the layer that guesses ahead is of the others' kind; without indexer; where
                                             layers are split it has both blocks */
    bool            nextn_centred;        /* its output norm is a LayerNorm */
    bool            nextn_plain;          /* it reads, and hands on, rows that are not normed yet, with all streams */
    bool            multipliers;          /* reads embedding_scale, residual_scale, logit_scale, a divisor of logits */
    bool            logit_factor;         /* reads logit_scale, a factor of logits */
};

/* NULL past the last; NULL: there is none of this name of n bytes. */
const struct pf_arch *pf_arch_at(int i);
const struct pf_arch *pf_arch_find(const char *name, size_t n);

/* The other table from which a differs in the fewest fields; and these fields, in words: " with x, y; without z", or
 * nothing. */
const struct pf_arch *pf_arch_like(const struct pf_arch *a);
void pf_arch_differences(const struct pf_arch *a, const struct pf_arch *b, char *text, size_t cap);

#endif

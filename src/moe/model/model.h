/* A model: hyper-parameters and weights, bound and checked once, immutable afterwards.
 *
 *     GGUF file --arch table (archs/)--> pf_model { layers[] { attention, dense FFN or experts } }
 *
 * moe/load reads the keys and binds the tensors that an architecture's table asks for; forward.c walks the result and
 * knows no architecture by name. The model owns the file mapping, the tokenizer, the chat template, the backend and a
 * lock that lets the sessions' steps take turns. Weights stay where the file mapping has them, or pass through the
 * store where memory is too small (place/placement.h). */
#ifndef PF_MODEL_H
#define PF_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/pf_cancel.h"
#include "base/pf_lock.h"
#include "gguf/gguf.h"
#include "backend/backend.h"
#include "draft/gate.h"
#include "moe/archs/arch.h"
#include "moe/model/digest.h"
#include "moe/model/ngrams.h"
#include "moe/model/rope.h"
#include "text/chat_tmpl.h"
#include "text/vocab.h"
#include "tiers/trace.h"

struct pf_attention {
    struct pf_weight q, k, v;             /* {n_embd, n_head * hd}; k, v with n_kv_head */
    struct pf_weight out;                 /* {n_head * hd_v, n_embd} */
    struct pf_weight gate;                /* {n_embd, n_head}, of each head's output; or no data */
    bool             norm;                /* queries and keys are normed */
    const float     *q_norm, *k_norm;     /* weights of those norms, {hd_k} or {n_head * hd_k}; NULL: without weights */
    const float     *sinks;               /* {n_head} or NULL */
    int              n_head, n_kv_head, hd_k, hd_v;
    bool             rotate;
    bool             v_in_k;              /* a value is the beginning of its key */
    int              window;              /* 0: all positions */
    int              kv_layer;            /* whose keys and values are seen: the layer's own, or an earlier one's */
    bool             near_rope;           /* rotates by the model's near_rope */
    bool             chunked;             /* windows are fixed pieces of the context, not sliding */
    bool             temper;              /* queries grow with the logarithm of their position */
    float            scale;
};

/* Multi-head latent attention in absorbed form: one key for all heads, [latent | rotated part], whose latent is its
 * value too; pf_attention of such a layer describes that (n_kv_head 1, hd_k = n_latent + n_rope, hd_v = n_latent). */
struct pf_mla {
    struct pf_weight q;                   /* {n_embd, n_head * (n_nope + n_rope)}; or q_a and q_b */
    struct pf_weight q_a, q_b;            /* {n_embd, n_q_latent}, {n_q_latent, n_head * (n_nope + n_rope)} */
    const float     *q_norm;              /* {n_q_latent} */
    struct pf_weight kv;                  /* {n_embd, n_latent + n_rope} */
    const float     *kv_norm;             /* {n_latent} */
    struct pf_weight k_b, v_b;            /* per head {n_nope, n_latent}, {n_latent, n_v} */
    bool             k_b_is_made;         /* k_b was computed when binding: the file does not hold it */
    int              v_head_rows;         /* rows of v_b from one head to the next */
};

/* Makes keys of blocks of `ratio` positions (struct pf_compress_op). W is `width`, or twice that if blocks overlap. */
struct pf_compressor {
    struct pf_weight u, gate;             /* {n_embd, W} */
    const float     *ape, *norm;          /* {W, ratio}, {width} */
    int              width, ratio;        /* 0: there is none */
    bool             overlaps;
};

/* Attention to a window of positions and to blocks of them (compressed.c): one key for all heads, its value too;
 * pf_attention of such a layer describes that (n_kv_head 1, hd_k = hd_v, the last n_rot rotated). */
struct pf_compressed {
    struct pf_weight     q_a, q_b;        /* {n_embd, n_q_latent}, {n_q_latent, n_head * hd} */
    const float         *q_norm;          /* {n_q_latent} */
    struct pf_weight     kv;              /* {n_embd, hd} */
    const float         *kv_norm;         /* {hd} */
    struct pf_weight     out_a;           /* per group of heads {n_head / n_group * hd, n_group_out}; then attn.out */
    struct pf_compressor blocks;
};

/* Chooses what attention looks at: indexer.c. */
struct pf_indexer {
    struct pf_weight q;                   /* {n_q_latent, index.n_head * index.width}; no data: the layer takes what
                                             the last one with an indexer chose */
    struct pf_weight w;                   /* {n_embd, index.n_head} */
    struct pf_weight k;                   /* keys of positions: {n_embd, index.width}; or no data, and blocks */
    const float     *k_norm, *k_norm_bias;           /* {index.width}, norm of keys of positions, or of their means */
    const float     *q_norm;              /* {index.width} of each head, where keys are of means or heads choose
                                             runs */
    struct pf_compressor blocks;          /* keys of blocks */
};

/* The weights by which a block reads and writes the residual streams: streams.c. Gated ones have the second half. */
struct pf_mix {
    struct pf_weight fn;                  /* {streams.n * n_embd, n_weights}; no data: there is one stream */
    const float     *base, *scale;        /* {n_weights}, {3}; at the end, where streams are only read,
                                             {streams.n}, {1} */
    const float     *norm;                /* {streams.n * n_embd} */
    struct pf_weight down, up, inject;    /* {streams.n * n_embd, low_rank}, back, {streams.n * n_embd, streams.n}; at
                                             the end there is no inject */
};

/* Gated DeltaNet, in place of attention: no keys and values, but a state of fixed size. */
struct pf_delta_net {
    struct pf_weight qkv, z;              /* {n_embd, 2 K + V}, {n_embd, V}; or no data, and packed */
    struct pf_weight packed;              /* {n_embd, 2 K + 2 V}: per key head q, k, its values, their z */
    struct pf_weight beta, alpha;         /* {n_embd, n_v_head} each; or no data, and ba */
    struct pf_weight ba;                  /* {n_embd, 2 n_v_head}: per key head beta, then alpha of its value heads */
    struct pf_weight q, k, v;             /* of Kimi's instead of these: {n_embd, K} each, */
    struct pf_weight decay_a, decay_b;    /* {n_embd, d}, {d, K}: alpha, */
    struct pf_weight z_a, z_b;            /* {n_embd, d}, {d, V}: z */
    struct pf_weight out;                 /* {V, n_embd} */
    const float     *conv;                /* [taps][2 K + V] */
    const float     *a, *dt;              /* {n_v_head}; Kimi's dt {K} */
    const float     *norm;                /* {d} */
};

/* Mamba2, in place of attention (blocks/mamba.c). */
struct pf_mamba {
    struct pf_weight z, u, dt;            /* {n_embd, n_inner}, {n_embd, n_conv}, {n_embd, n_head}: rows of a tensor */
    struct pf_weight out;                 /* {n_inner, n_embd} */
    const float     *conv, *conv_bias;    /* [taps][n_conv], {n_conv} */
    const float     *a, *skip, *dt_bias;  /* {n_head} */
    const float     *norm;                /* {n_inner} */
};

/* A gated convolution over few positions, in place of attention (blocks/shortconv.c). */
struct pf_short_conv {
    struct pf_weight gate_in, gate_out, x;           /* {n_embd, n_embd} each: rows of a tensor */
    struct pf_weight out;                 /* {n_embd, n_embd} */
    const float     *conv;                /* [conv_taps][n_embd] */
};

/* What a layer makes of the rows that belong to its last tokens: ngrams.c. */
struct pf_ngram_weights {
    struct pf_weight key, value;          /* {n_embd, streams.n * n_embd}, {n_embd, n_embd} */
    const float     *key_norm, *query_norm, *conv_norm;      /* {streams.n * n_embd} */
    const float     *conv;                /* [taps][streams.n * n_embd] */
};

struct pf_dense_ffn {
    struct pf_weight gate, up, down;      /* up without data: the product of gate is up's, too */
    struct pf_act    act;
};

/* What a layer adds of the token itself: x += norm(proj (gelu(gate x) * its part)). per_layer.c */
struct pf_own_part {
    struct pf_weight gate, proj;          /* {n_embd, per_layer.width}, back; or no data */
    const float     *norm;                /* {n_embd} */
};

struct pf_moe {
    int                     ordinal;      /* among the layers with experts */
    int                     n_ff;         /* width of a routed expert */
    struct pf_weight        router;       /* {n_embd, n_expert} */
    const float            *select_bias;  /* {n_expert} or NULL */
    bool                    by_token;     /* picks are by token, from table, not by the router's scores */
    const int32_t          *table;        /* {n_used, n_vocab}, or NULL */
    struct pf_routing       routing;
    struct pf_act           act;
    struct pf_expert_weight gate, up, down;          /* of experts without gates, gate is up once more */
    struct pf_weight        latent_down, latent_up;  /* {n_embd, n_expert_in}, {n_expert_in, n_embd} around the
                                                        picked experts, or no data */
    struct pf_dense_ffn     shared;       /* data of its weights NULL: there is none */
    struct pf_weight        shared_gate;  /* {n_embd, 1} or no data */
    const float            *router_norm;  /* not NULL: the router and `shared` read x by these norms, and what they and
                                             the experts put out is normed by the others {n_embd} */
    const float            *shared_norm, *shared_post, *experts_post;
};

enum { PF_LAYER_WEIGHTS = 32 };           /* matrices of a layer at most, without routed experts */

struct pf_layer {
    struct pf_weight   *weights[PF_LAYER_WEIGHTS];   /* the matrices that every token needs, in the order in which they
                                                        were bound: members of what follows that have data */
    int                 n_weights;
    const float        *attn_norm, *ffn_norm;        /* {n_embd} */
    const float        *attn_norm_bias, *ffn_norm_bias;         /* {n_embd} or NULL */
    struct pf_mix       attn_mix, ffn_mix;
    enum pf_mixer       mixer;
    bool                has_indexer;
    bool                has_ffn;                     /* a feed-forward, dense or of experts, follows the mixer */
    struct pf_attention attn;                        /* all zeros in layers without keys and values */
    struct pf_delta_net delta;
    struct pf_mamba     mamba;
    struct pf_short_conv short_conv;
    struct pf_mla       mla;
    struct pf_compressed compressed;
    struct pf_indexer   indexer;
    struct pf_ngram_weights ngrams;                  /* of the one layer that has them */
    struct pf_own_part  own;
    const float        *attn_post, *ffn_post;        /* {n_embd} norms of what blocks put out, or NULL */
    float               scale;                       /* of the residual stream behind the layer; 1: none */
    size_t              state_at, n_state;           /* where the layer's recurrent state begins among the
                                                        layers' states, and its floats */
    bool                is_moe;
    struct pf_dense_ffn dense;
    struct pf_moe       moe;
};

/* The options of pf_trace_set, and copies of the present step's values; under the step lock. watch.c */
struct pf_watch {
    struct pf_trace_opts opts;
    pf_trace_writer *writer;              /* NULL: nothing is recorded */
    uint64_t *counts;                     /* [n_moe][n_expert] or NULL */
    uint64_t  n_tokens;                   /* tokens that were counted */
    pf_backend *owner;                    /* allocated picks and weights */
    int       max_rows;                   /* rows that the buffers below have room for */
    int32_t  *picks;                      /* [n_moe][rows][n_used] */
    float    *weights;                    /* [n_moe][rows][n_used] */
    float    *x, *y, *logits;             /* inputs and sum of a layer's experts, its router's logits */
    struct pf_tap tap;                    /* copies of values inside of route and experts */
};

enum { PF_MAX_RATIOS = 2 };

/* How the layer that guesses ahead (nextn, or multi-token prediction) makes its input of a token and of what the
 * whole model has put out for the token before: x = eh [norm(embedding) | norm(hidden)], for each stream of hidden. */
struct pf_nextn_entry {
    struct pf_weight eh;                  /* {2 n_embd, n_embd}; no data: the model is a whole one */
    const float     *enorm, *hnorm;       /* {n_embd} */
};

enum { PF_UNUSED = -100 };                /* layer of tensors that the model does not use */

struct pf_model {
    const struct pf_arch *arch;
    pf_gguf    *file;
    struct pf_model *nextn;               /* the layer that guesses ahead, as a model of its own: one layer, with what
                                             it shares with this one; owned; NULL: not there, or not wanted */
    struct pf_model *second;              /* a smaller model that drafts for this one; owned; NULL: none */
    bool        is_nextn;                 /* it is such a layer itself */
    bool        is_beside;                /* it is `nextn` or `second` of another model */
    int         first_block;              /* number of its first layer in the file */
    int         n_before, n_behind;       /* layers of the file that lie in front of it and behind it, and are other
                                             processes'; layers[-n_before] to layers[n_layer + n_behind - 1] say what
                                             they are like */
    struct pf_crew *crew;                 /* these processes: session/crew.h; NULL: there are none */
    bool       *used;                     /* [n_tensors] whether the tensor is one of this model */
    pf_vocab   *vocab;                    /* NULL: the file has none */
    struct pf_tokens *_Atomic tokens;     /* its texts for grammars; NULL: no grammar has asked yet */
    pf_tmpl    *tmpl;                     /* NULL: none, or it does not parse: tmpl_error says why */
    char       *tmpl_error;
    pf_backend *cpu;                      /* NULL when opened for the vocabulary only */
    pf_backend *_Atomic backend;          /* the backend that steps run on: the device of place, or cpu */
    struct pf_placement *_Atomic place;   /* where weights are, and who computes with them: placement.h; NULL before
                                             they are placed */
    struct pf_placement *_Atomic left;    /* the placement of GPUs that all failed, closed with the model; sessions
                                             leave their memory one by one */
    atomic_int  n_losses;                 /* how often GPUs were lost, one of several or all that were left; whatever
                                             lay on them before is to be made anew */
    uint64_t context_bytes;               /* memory for sessions that do not say how long they are: placement's share */
    struct pf_trace injected;             /* a trace whose picks take the place of the router's; n_tokens 0: none */
    struct pf_watch watch;
    pf_spans   *spans;                    /* NULL: nobody wants a timeline */

    int   n_layer, n_embd, n_vocab, n_ctx_train, n_ff;
    int   n_expert, n_used, n_ff_expert;  /* 0: no experts; of layers that differ, the largest */
    int   n_expert_in;                    /* length of the picked experts' inputs and outputs */
    bool  uneven;                         /* layers differ in how many experts are picked, or in how wide they are */
    int   n_moe;                          /* layers with experts */
    float eps, residual_scale;
    bool  is_centred;                     /* norms of the residual stream subtract the row's mean first */
    struct pf_delta_sizes {               /* sizes of all delta nets of the model; all 0: there are none */
        int d, n_k_head, n_v_head, taps;
        int n_k, n_v, n_conv;             /* K = n_k_head * d, V = n_v_head * d, 2 K + V */
        float least;                      /* struct pf_delta_op */
    } delta;
    struct pf_mamba_sizes {               /* all 0: no layer is a Mamba2 */
        int d, p, n_head, n_group, taps;  /* as in struct pf_ssm_op */
        int n_inner, n_conv;              /* n_head * p, and that + 2 n_group d */
    } mamba;
    int conv_taps;                        /* of short convolutions; 0: there are none */
    struct pf_mla_sizes {                 /* all 0: the model has no latent attention */
        int n_head, n_latent, n_q_latent, n_nope, n_rope, n_v;
    } mla;
    struct pf_index_sizes {               /* all 0: there are no indexers */
        int width, n_head, max_chosen;
        int ratio;                        /* positions that a key stands for */
        int run, n_local;                 /* keys that are chosen together; so many of the last runs always are */
        int n_lists;                      /* choices of a row: 1, or one for each KV head */
        float eps;                        /* of the norm of keys of positions */
    } index;
    struct pf_compressed_sizes {          /* all 0: the model has no compressed attention */
        int n_q_latent, n_rot, n_group, n_group_out;
        int ratio[PF_MAX_RATIOS];         /* ratios that occur in the model; 0: unused entry */
    } compressed;
    struct pf_streams_sizes {
        int   n, rounds;                  /* 1 stream: no hyper-connections */
        int   low_rank;                   /* of gated streams */
        float eps;
    } streams;
    struct pf_temper {                    /* of layers that temper: queries grow by 1 + scale * ln(1 + (position + from)
                                             / every) */
        double scale;
        int    every, from;               /* every 0: the model has no such layers */
    } temper;
    struct pf_ngrams ngrams;
    struct pf_per_layer {                 /* what layers add of the token itself: per_layer.c */
        int              width;           /* 0: nothing */
        struct pf_weight proj;            /* {n_embd, n_layer * width} */
        const float     *norm;            /* {width} */
    } per_layer;
    int   n_shared_kv;                    /* so many layers, the last ones, have no keys and values of their own */
    float softcap;                        /* of logits; 0: none */
    struct pf_gather {                    /* rows of a table that belong to each token, looked up by the CPU: no device
                                             has it, and nobody reads it ahead */
        struct pf_weight table;           /* no data: there is none */
        int              per_token;
    } gather;
    struct pf_rope   rope, far_rope;      /* far_rope: for layers with keys of blocks */
    struct pf_rope   long_rope;           /* in place of rope in sessions with room for long_from positions and more */
    int64_t          long_from;           /* 0: in none */
    struct pf_rope   near_rope;           /* for layers with a window, if theirs is another; else 0 pairs */
    struct pf_weight embed, output;       /* {n_embd, n_vocab} */
    const float     *output_norm, *output_norm_bias;            /* the latter may be NULL */
    float            centred_eps;         /* of an output norm that is a LayerNorm; 0: it is not */
    struct pf_mix    output_mix;
    struct pf_nextn_entry entry;          /* of a model that is_nextn */
    struct pf_layer *layers;              /* [n_layer] */
    struct pf_layer *all_layers;          /* what layers are part of, as allocated */
    bool             recurrent;           /* some layers have a state that cannot go back */

    struct pf_adapters *adapters;         /* NULL: none */
    const struct pf_lora *flipped;        /* deltas of the embedding used as the output matrix; NULL: none,
                                             or it is not used so */
    int   lora_rank, lora_out;            /* largest rank and output of deltas of dense matrices */
    int   lora_expert_rank;               /* summed rank of all deltas of one expert matrix */

    void  **owned;                        /* converted vectors and pointer tables, freed with the model */
    size_t  n_owned;
    struct pf_digest identity;            /* identity.h; all 0: not asked for yet */
    pthread_mutex_t  identity_lock;       /* whoever asks first reads the file with it, and with no other */

    pf_log_fn *log;
    void      *log_ctx;
    struct pf_cancel cancel;
    struct pf_model_info info;            /* constant once the model is open */
    struct pf_model_info info_left[PF_MAX_GPUS];     /* what holds after loss 1, 2 .. n_losses; constants then */
    char       name[128], arch_name[64];

    struct pf_row_prices row_prices;      /* what steps take by their rows; under the step lock */
    struct pf_work *work;                 /* session/work.h: inputs and activations of a step; NULL: no session open */
    struct pf_lock  step_lock;            /* one step at a time: the backend and its scratch are shared */
    _Atomic int     n_sessions;
    _Atomic int64_t last_n_ctx;           /* of the session that was opened last */
    _Atomic uint64_t n_steps, n_tokens, step_ns, far_bytes;
    struct pf_counters {                  /* sums over the backends: now, and at the last reset */
        _Atomic uint64_t weight_bytes, launches;
    } counted, counted_before;
    struct pf_draft_counters {            /* since the last reset */
        _Atomic uint64_t drafted, accepted, steps, step_ns, alone_ns;
    } drafts;
};

/* Numbers of a row that the layer that guesses ahead reads of what the whole model puts out, and hands on itself. */
static inline size_t pf_hidden_width(const struct pf_model *m)
{
    return (size_t)(m->arch->nextn_plain ? m->streams.n : 1) * (size_t)m->n_embd;
}

/* Whether t is the table of m->gather. */
bool pf_model_gathers(const struct pf_model *m, const struct pf_tensor *t);

/* A sentence about a file whose general.architecture is `name`: which other architecture it is most like and where it
 * differs, of a known one by its table, of another one by the names of its tensors. */
void pf_model_liken(const pf_gguf *g, const char *name, char *text, size_t cap);

/* Reads hyper-parameters and binds every tensor of m->file. On failure the caller closes m. */
pf_status pf_model_bind(struct pf_model *m);

/* Leaves a model that is bound the layers [first, end) of it, and if first is 0 what belongs to no layer. */
void pf_model_keep_layers(struct pf_model *m, int first, int end);

/* Bytes of gate, up and down of an expert of layer il, which has experts. */
void pf_expert_bytes(const struct pf_model *m, int il, uint64_t bytes[3]);
/* Bytes of weights gone over to decode a token: what every token needs of a layer; experts that are picked. */
uint64_t pf_layer_bytes(const struct pf_layer *l);
uint64_t pf_picked_bytes(const struct pf_layer *l);

/* The layer of m that a tensor belongs to; -1: none of them; PF_UNUSED: it is none of m's tensors. */
int pf_tensor_layer(const struct pf_model *m, const struct pf_tensor *t);
/* Whether devices have a place for a tensor: one of m's that is not gathered from. */
bool pf_model_places(const struct pf_model *m, const struct pf_tensor *t);

/* Frees p with the model; p NULL is PF_ENOMEM. */
pf_status pf_model_own(struct pf_model *m, void *p);
/* Matrices that do not lie in the model's file, those of adapters among them: their bytes; puts them on a device. */
uint64_t  pf_model_extra_bytes(const struct pf_model *m);
pf_status pf_model_place_extra(const struct pf_model *m, pf_backend *device);

void pf_model_logf(const struct pf_model *m, enum pf_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif

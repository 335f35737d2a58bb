/* Differences between the tables of two architectures, in words. See arch.h. */
#include "moe/archs/arch.h"

#include <stdio.h>
#include <string.h>

/* The fields of a table but for its name. Their words are the fields' own. */
#define FIELDS(F) \
    F(rope_neox) F(rope_freqs) F(long_rope) F(rope_whole_head) F(rope_switch) F(still_period) F(yarn_betas) F(temper) \
    F(rope_sections) F(qkv_bias) F(out_bias) F(sinks) F(qk_norm) F(norm_whole_row) F(head_gate) F(gate_elements) \
    F(value_scale) F(gated_attention) F(delta) F(delta_sigmoid) F(mla) F(indexer) F(index_pools) F(index_runs) \
    F(index_neox) F(yarn_ratio) F(index_means) F(compressed) F(streams) F(streams_mean) F(gated_streams) F(ngrams) \
    F(without_kv) F(split_layers) F(no_rope) F(norm_after_rope) F(value_norm) F(near_heads) F(unscaled) F(post_norms) \
    F(parallel) F(layer_parts) F(embed_root) F(softcap) F(attention_scale) F(window) F(still_far) F(near_plain) \
    F(dense_rotates) F(half_rope) F(window_period) F(norm_bias) F(centred) F(dense) F(dense_bias) F(router_bias) \
    F(expert_bias) F(dense_beside) F(dense_by_tensor) F(leading_dense) F(interleave) F(act) F(ungated) \
    F(latent_experts) F(gating) F(norm_weights) F(router_keys) F(weigh_input) F(select_bias) F(hash_layers) F(limits) \
    F(shared) F(shared_gate) F(shared_mean) F(expert_width) F(nextn) F(nextn_centred) F(nextn_plain) F(multipliers) \
    F(logit_factor)

#define NAME(field) #field,
static const char *const field_names[] = { FIELDS(NAME) };
enum { N_FIELDS = sizeof field_names / sizeof *field_names };

#define VALUE(field) (int)a->field,
static void values_of(const struct pf_arch *a, int out[N_FIELDS])
{
    const int values[] = { FIELDS(VALUE) };
    memcpy(out, values, sizeof values);
}

static int distance(const struct pf_arch *a, const struct pf_arch *b)
{
    int x[N_FIELDS], y[N_FIELDS], n = 0;
    values_of(a, x);
    values_of(b, y);
    for (int i = 0; i < N_FIELDS; i++)
        n += x[i] != y[i];
    return n;
}

const struct pf_arch *pf_arch_like(const struct pf_arch *a)
{
    const struct pf_arch *best = NULL;
    for (int i = 0; pf_arch_at(i); i++)
        if (pf_arch_at(i) != a && (!best || distance(a, pf_arch_at(i)) < distance(a, best)))
            best = pf_arch_at(i);
    return best;
}

/* Appends " word word, word" of the fields that are what `which` asks for: in a alone, in b alone, in both but not the
 * same. */
enum which { ONLY_A, ONLY_B, OTHER };

static size_t add_fields(const int x[N_FIELDS], const int y[N_FIELDS], enum which which, const char *before, char *text,
                         size_t cap)
{
    size_t n = 0;
    for (int i = 0; i < N_FIELDS && n < cap; i++) {
        enum which is = y[i] == 0 ? ONLY_A : x[i] == 0 ? ONLY_B : OTHER;
        if (x[i] == y[i] || is != which)
            continue;
        size_t at = n + (size_t)snprintf(text + n, cap - n, "%s ", n ? "," : before);
        n = at + (size_t)(at < cap ? snprintf(text + at, cap - at, "%s", field_names[i]) : 0);
        for (; at < n && at < cap; at++)
            text[at] = text[at] == '_' ? ' ' : text[at];
    }
    return n < cap ? n : cap - 1;
}

void pf_arch_differences(const struct pf_arch *a, const struct pf_arch *b, char *text, size_t cap)
{
    int x[N_FIELDS], y[N_FIELDS];
    size_t n = 0;
    values_of(a, x);
    values_of(b, y);
    text[0] = 0;
    n += add_fields(x, y, ONLY_A, " with", text + n, cap - n);
    n += add_fields(x, y, ONLY_B, n ? "; without" : " without", text + n, cap - n);
    add_fields(x, y, OTHER, n ? "; of another kind:" : " of another kind:", text + n, cap - n);
}

/* Random but valid weights: blocks of every type pfmoe-synth writes, with scales that keep activations around 1. */
#ifndef SYNTH_FILL_H
#define SYNTH_FILL_H

#include <stddef.h>
#include <stdint.h>

struct synth_rng {
    uint64_t s[4];
};
void synth_seed(struct synth_rng *r, uint64_t seed);

struct synth_type {
    const char *name;           /* "Q4_K" */
    uint32_t    id;             /* the type's number in GGUF */
    uint32_t    block_len, block_bytes;
    double      code_rms;       /* root mean square of a weight when the block's scale is 1; 0: a float type */
    uint32_t    d_at;           /* offset of the block's fp16 scale */
    uint32_t    min_at;         /* offset of its fp16 scale of minimums or fp16 offset, or NO_MIN */
    double      min_ratio;      /* value at min_at over the scale that makes the mean zero */
};
enum { NO_MIN = UINT32_MAX };

const struct synth_type *synth_type_find(const char *name);       /* any letter case; NULL if unknown */

/* Name of type number i; NULL past the last. */
const char *synth_type_name(size_t i);

/* Fills n_bytes (whole blocks) with weights of the given root mean square. */
void synth_fill(struct synth_rng *r, const struct synth_type *t, double rms, void *out, size_t n_bytes);

/* Float32 values: mean + uniform noise of this root mean square. */
void synth_fill_floats(struct synth_rng *r, float mean, float rms, float *out, size_t n);

#endif

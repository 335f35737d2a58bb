/* Keys of a model's architecture, named by what stands behind its name: "head_count" is read as "llama.head_count".
 *
 * Each reader leaves *out as it was where the key is absent and may be, so *out holds the default before. Bounds are
 * checked as keys are read, and once more where sizes are done (model.c), for products and for what stands in for
 * keys. */
#ifndef PF_KEYS_H
#define PF_KEYS_H

#include "moe/load/loader.h"

/* Bounds of what keys say, and of what stands in for keys: tables of the kernels and of ours rely on them, and so do
 * products of two sizes in an int. Far above any model. */
enum { PF_KEY_BYTES = 96, PF_MAX_DIM = 1 << 24, PF_MAX_LAYERS = 4096, PF_MAX_HEADS = 65536,
       PF_MAX_ROTATED = 2 * PF_ROPE_MAX_PAIRS };

/* The key's whole name, which is `out`, for messages and for the readers of gguf. */
const char *pf_key_name(const struct pf_loader *l, char out[PF_KEY_BYTES], const char *suffix);

pf_status pf_key_int(const struct pf_loader *l, const char *suffix, bool required, int64_t min, int64_t max, int *out);
pf_status pf_key_bool(const struct pf_loader *l, const char *suffix, bool *out);
pf_status pf_key_real(const struct pf_loader *l, const char *suffix, bool required, bool positive, float *out);

/* A key that is a scalar or an array with one entry per block of the file; *out is the scalar's default. */
pf_status pf_key_ints(const struct pf_loader *l, const char *suffix, int n_block, int64_t min, int64_t max,
                      int64_t *out);
/* A key that is a scalar or an array with one entry per block of the file, and must be there if `required`. */
pf_status pf_key_layers(const struct pf_loader *l, const char *suffix, bool required, int64_t min, int64_t max,
                        int64_t *out);
/* How many entries an array has that may go on past the last block of the file; anything else: n_block. */
int pf_key_entries(const struct pf_loader *l, const char *suffix);

/* Refuses a size of layer il that is not in [1, max]; `what` has it, for the sentence. */
pf_status pf_size_check(const struct pf_loader *l, int il, const char *what, int64_t n, int64_t max);

#endif

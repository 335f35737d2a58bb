/* Embeddings of n-grams (Qwen 3.8): one layer adds to the residual streams what a table has for the last tokens. Which
 * rows of it belong to a position follows from the tokens alone:
 *
 *     c_0, c_1, ..      the token at the position, the one before, ..; from the first end-of-text token that is met on
 *                       the way back, or from the beginning, they are end-of-text
 *     g = 2 .. n        mix_g = c_0 * mult[0] xor .. xor c_(g-1) * mult[g-1]      in 64 bits
 *     head (g, i)       row = mix_g mod size + offset of the head                 n_heads for each g
 *
 * Pure functions; any thread. */
#ifndef PF_NGRAMS_H
#define PF_NGRAMS_H

#include "gguf/gguf.h"

enum { PF_MAX_NGRAM = 8, PF_MAX_NGRAM_HEADS = 128 };

struct pf_ngrams {
    int      layer;                       /* the one that has them; -1: none */
    int      n, n_heads, taps, width;     /* n 0: there are none. width: floats of a row of the table */
    int32_t  eos;
    uint64_t mult[PF_MAX_NGRAM];
    uint64_t offset[PF_MAX_NGRAM_HEADS], size[PF_MAX_NGRAM_HEADS];     /* [g - 2][n_heads] */
};

/* Rows of the table for a position. */
static inline int pf_ngram_rows(const struct pf_ngrams *g)
{
    return (g->n - 1) * g->n_heads;
}

/* Reads the keys, which begin with arch; a file without them has no n-grams. The rows together are n_embd wide. */
pf_status pf_ngrams_read(const pf_gguf *file, const char *arch, int n_layer, int n_embd, struct pf_ngrams *out);

/* One more than the largest row. */
uint64_t pf_ngrams_end(const struct pf_ngrams *g);

/* rows [pf_ngram_rows] of tokens[pos]. */
void pf_ngrams_at(const struct pf_ngrams *g, const int32_t *tokens, int64_t pos, int32_t *rows);

#endif

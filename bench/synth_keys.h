/* What stands in front of the weights in a file of pfmoe-synth. One thread; whoever has a header built frees its bytes.
 *
 * The tokenizer is a stand-in: one token a byte, and fillers up to the vocabulary's size. */
#ifndef SYNTH_KEYS_H
#define SYNTH_KEYS_H

#include "synth_shapes.h"

/* Bytes that grow. */
struct header {
    char    *p;
    size_t   n, cap;
    uint64_t n_kv;
    const char *arch;
};

/* The vocabulary: a token a byte, then these. */
enum { BYTES = 256, TOKEN_TH, TOKEN_END, TOKEN_IM_START, TOKEN_IM_END, N_REAL };

/* Appends all of it, whole multiples of SYNTH_ALIGN. m's tensors are listed. */
void synth_build_header(struct header *h, const struct model *m);

#endif

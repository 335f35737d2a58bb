/* Pre-tokenizers of byte-level BPE: a fragment of text is cut into chunks that are merged each on its own.
 *
 * The models publish them as regular expressions. Here each is a few passes of rules over Unicode classes, matched by
 * hand-written scanners: linear in the text, constant in stack, no memory, no state. Any bytes are text; an
 * ill-formed byte counts as U+FFFD. Any thread. pf_pretokenize of pfmoe.h has its body in pretok.c too. */
#ifndef PF_PRETOK_H
#define PF_PRETOK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/pf_status.h"

struct pf_pretok {
    const char *names;                   /* values of tokenizer.ggml.pre, one space after each */
    const struct pf_pretok_pass *passes;
    int  n_passes;
    bool add_bos;                        /* the default when tokenizer.ggml.add_bos_token is absent */
    bool ignore_merges;                  /* a chunk that is a token's text is that token */
    bool nfc;                            /* the model's own tokenizer normalises to NFC first */
    bool rank_by_id;                     /* without merges in the file, a pair's rank is the joined token's id */
};

/* NULL for a name that is none. */
const struct pf_pretok *pf_pretok_find(const char *name, size_t len);

/* Called for each chunk [from, to) of the text, in order, none empty. A failure ends the run and is its result. */
typedef pf_status pf_chunk_fn(void *ctx, size_t from, size_t to);

pf_status pf_pretok_run(const struct pf_pretok *pt, const char *text, size_t len, pf_chunk_fn *chunk, void *ctx);

#endif

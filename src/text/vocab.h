/* The tokenizer of a model: text to ids and ids to bytes, read from a GGUF file's tokenizer.* keys.
 *
 * A pf_vocab owns copies of everything it needs; the GGUF may be closed after pf_vocab_open. Immutable afterwards,
 * except for per-call scratch that is allocated inside the call; any thread. vocab_load.c builds it; specials.c
 * finds special tokens, vocab.c cuts text there and renders ids; bpe.c, spm.c and merge.c merge; pretok.c holds the
 * pre-tokenizers of byte-level BPE. */
#ifndef PF_VOCAB_H
#define PF_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pf_cancel.h"
#include "gguf/gguf.h"

typedef struct pf_vocab pf_vocab;

/* *out is NULL, and the result PF_OK, for a file without a vocabulary (tokenizer.ggml.model absent, "none" or
 * "no_vocab"). Other kinds than gpt2, llama and gemma4 are PF_EUNSUPPORTED, named. */
pf_status pf_vocab_open(pf_vocab **out, const pf_gguf *g);
void      pf_vocab_close(pf_vocab **v);

/* c is asked while text is tokenized. Borrowed; before others use v. */
void pf_vocab_set_cancel(pf_vocab *v, const struct pf_cancel *c);

int64_t pf_vocab_size(const pf_vocab *v);

/* flags: PF_TOK_ADD_SPECIAL, PF_TOK_PARSE_SPECIAL of pfmoe.h; results as pf_tokenize there. */
pf_status pf_vocab_tokenize(const pf_vocab *v, const char *text, size_t len, unsigned flags, int32_t *out, size_t cap,
                            size_t *n);

/* The bytes of one token, borrowed from v: with or without control tokens' text. *len may be 0. */
const char *pf_vocab_piece(const pf_vocab *v, int32_t id, bool special, size_t *len);

/* As pf_detokenize in pfmoe.h. SPM: the space before the first word is dropped. */
pf_status pf_vocab_detokenize(const pf_vocab *v, const int32_t *ids, size_t n, unsigned flags, char *out, size_t cap,
                              size_t *need);

int32_t pf_vocab_find(const pf_vocab *v, const char *text, size_t len);     /* id or -1 */
bool    pf_vocab_is_end(const pf_vocab *v, int32_t id);
/* Ordinary tokens, bytes, and user-defined tokens of white space alone: those that stand for nothing but their text. */
bool    pf_vocab_is_text(const pf_vocab *v, int32_t id);

enum pf_special { PF_SPECIAL_BOS, PF_SPECIAL_EOS, PF_SPECIAL_PAD, PF_SPECIAL_UNK };
int32_t pf_vocab_special(const pf_vocab *v, enum pf_special which);         /* id or -1 */

/* pf_pretokenize of pfmoe.h has its body here too. */
#endif

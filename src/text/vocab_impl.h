/* The inside of a vocabulary, shared by the files that build it (vocab_load.c, bpe.c) and use it (vocab.c, bpe.c,
 * spm.c, merge.c). Not for others: they include vocab.h.
 *
 *     id            0 ................ n_tokens ........ n_symbols
 *     texts[id]     what merging forms: raw bytes        texts that only occur in merges
 *     pieces[id]    what is shown                        -
 *
 * Raw bytes means: in byte-level BPE the byte map undone; in the two SPM kinds a space for U+2581, for the two
 * characters are the same to those tokenizers and the input is rewritten likewise. table finds a symbol by its text.
 * In byte-level BPE control, unknown and user-defined tokens are not in it: they have no text there, only a piece. In
 * the SPM kinds every token is. Where two symbols have one text the lower id is found.
 *
 * Everything lives in the pf_vocab and is immutable once pf_vocab_open has returned. */
#ifndef PF_VOCAB_IMPL_H
#define PF_VOCAB_IMPL_H

#include "text/pretok.h"
#include "text/vocab.h"

enum pf_vocab_kind { PF_VOCAB_SPM, PF_VOCAB_BPE, PF_VOCAB_GEMMA };

/* Values of tokenizer.ggml.token_type, and one of our own: recognised like a control token, shown like a user-defined
 * one. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE,
       TOKEN_CONTROL_SHOWN };

struct pf_bytes {
    const char *p;
    size_t n;
};

/* Open addressing, a power of two of slots, at most half of them used. */
struct pf_text_slot {
    uint64_t key;                        /* text and length of a text of up to 7 bytes, else a hash of it */
    uint32_t id_plus_1;                  /* 0: free */
};
struct pf_pair_slot {
    int32_t  left, right;
    uint32_t rank;
    uint32_t joined_plus_1;              /* 0: free */
};

static inline size_t pf_pair_hash(int32_t left, int32_t right)
{
    uint64_t both = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    both = (both ^ both >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(both >> 32);
}

struct pf_text_block;                    /* where texts and pieces are kept */

struct pf_vocab {
    enum pf_vocab_kind kind;
    int32_t n_tokens, n_symbols, symbol_cap;
    struct pf_bytes *texts, *pieces;
    uint8_t *types;
    bool *is_end;
    uint32_t *score_keys;                /* SPM: by token, the higher the score the lower the key */
    struct pf_text_slot *table;
    size_t table_mask, table_used;
    size_t max_text;                     /* bytes of the longest text in the table */
    struct pf_pair_slot *pairs;          /* NULL: the rank of a pair belongs to the joined text, not to the pair */
    size_t pair_mask;

    int32_t byte_symbols[256];           /* BPE: the symbol a byte begins as */
    int32_t byte_ids[256];               /* the token for a byte that nothing else covers, or -1 */

    int32_t *specials;                   /* control, unknown, user-defined; by rising bytes of their pieces */
    int32_t special_first[257];          /* specials that begin with byte b: [special_first[b], special_first[b + 1]) */

    int32_t bos, eos, pad, unk;          /* -1: none */
    int32_t unshown;                     /* an ordinary token that plain text leaves out; -1: none */
    bool add_bos, add_eos, add_space_prefix;
    bool words_begin_with_space;         /* SPM: in no text does a space follow anything but a space */
    bool strip_after_special;            /* drop ASCII white space after special tokens, see pf_vocab_strips */
    const struct pf_pretok *pretok;      /* BPE */
    struct pf_text_block *blocks;
};

/* vocab_load.c */
int32_t   pf_text_find(const struct pf_vocab *v, const char *p, size_t n);       /* symbol or -1 */
void      pf_text_prefetch(const struct pf_vocab *v, const char *p, size_t n);   /* pf_text_find will be asked */
pf_status pf_text_intern(struct pf_vocab *v, const char *p, size_t n, int32_t *symbol);
const char *pf_text_keep(struct pf_vocab *v, const char *p, size_t n);           /* a copy that v owns, or NULL */

/* ---- Tokenising: the state of one call ----------------------------------------------------------------------- */

enum { PF_NO_PAIR = UINT32_MAX, PF_SYM_END = UINT32_MAX };

/* A piece of the chunk being merged, in a doubly linked list. */
struct pf_sym {
    uint32_t at, n;                      /* its bytes in the chunk; n == 0: merged into its left neighbour */
    uint32_t prev, next;                 /* PF_SYM_END at the ends */
    int32_t  id;                         /* symbol, or -1 for a text that is none */
    uint32_t key;                        /* of the pair with its right neighbour: lower is merged first; PF_NO_PAIR */
    int32_t  joined;                     /* what that pair becomes */
};

struct pf_tok_job {
    const struct pf_vocab *v;
    const char *chunk;
    struct pf_sym *syms;
    uint32_t n_syms, sym_cap;
    uint64_t *heap;                      /* key << 32 | symbol, smallest on top; stale entries are skipped */
    size_t n_heap, heap_cap;
    const char *fragment;                /* what the pre-tokenizer cuts */
    int32_t *out;
    size_t cap, n;                       /* n counts on past cap */
};

void pf_tok_emit(struct pf_tok_job *j, int32_t id);
void pf_tok_emit_bytes(struct pf_tok_job *j, const char *p, size_t n);             /* by byte_ids */

/* merge.c: begin, add the symbols from left to right, run; then the list from syms[0] on is the result. */
void      pf_merge_begin(struct pf_tok_job *j, const char *chunk);
pf_status pf_merge_add(struct pf_tok_job *j, size_t at, size_t n, int32_t id);
pf_status pf_merge_run(struct pf_tok_job *j);

/* bpe.c. The _raw_text functions write at most n bytes: the byte map undone, U+2581 made a space. */
size_t    pf_bpe_raw_text(char *out, const char *p, size_t n);
pf_status pf_bpe_load(struct pf_vocab *v, const pf_gguf *g);
pf_status pf_bpe_fragment(struct pf_tok_job *j, const char *text, size_t len);
pf_status pf_gemma_fragment(struct pf_tok_job *j, const char *text, size_t len);

/* spm.c */
size_t    pf_spm_raw_text(char *out, const char *p, size_t n);
pf_status pf_spm_fragment(struct pf_tok_job *j, const char *text, size_t len);

#endif

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
 * Everything lives in the pf_vocab and is immutable once pf_vocab_open has returned, but for `recent`. */
#ifndef PF_VOCAB_IMPL_H
#define PF_VOCAB_IMPL_H

#include "base/pf_hash.h"
#include "text/pretok.h"
#include "text/recent.h"
#include "text/vocab.h"

/* Several times what any model has; beyond, a file of nothing but tiny texts would take a gigabyte and many seconds. */
enum { PF_MAX_TOKENS = 1 << 21, PF_MAX_MERGES = 1 << 21 };

enum pf_vocab_kind { PF_VOCAB_SPM, PF_VOCAB_BPE, PF_VOCAB_GEMMA };

/* Values of tokenizer.ggml.token_type, and one of our own: recognised like a control token, shown like a user-defined
 * one. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE,
       TOKEN_CONTROL_SHOWN };

struct pf_bytes {
    const char *p;
    size_t n;
};

/* Open addressing, a power of two of slots, at most half of them used; the hash has a key of its own in each
 * vocabulary, so no file can choose who collides. */
struct pf_text_slot {
    uint64_t key;                        /* text and length of a text of up to 7 bytes, else a hash of it */
    uint32_t id_plus_1;                  /* 0: free */
};
struct pf_pair_slot {
    int32_t  left, right;
    uint32_t rank;
    uint32_t joined_plus_1;              /* 0: free */
};

struct pf_text_block;                    /* where texts and pieces are kept */

struct pf_vocab {
    enum pf_vocab_kind kind;
    struct pf_hash_key hash_key;         /* of table and pairs */
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

    struct pf_special_trie *trie;        /* specials.c: finds special tokens in text */
    int32_t *specials;                   /* control, unknown, user-defined; by rising bytes of their pieces */
    int32_t special_first[257];          /* specials that begin with byte b: [special_first[b], special_first[b + 1]) */

    int32_t bos, eos, pad, unk;          /* -1: none */
    int32_t unshown;                     /* an ordinary token that plain text leaves out; -1: none */
    bool add_bos, add_eos, add_space_prefix;
    bool words_begin_with_space;         /* SPM: in no text does a space follow anything but a space */
    bool strip_after_special;            /* drop ASCII white space after special tokens, see pf_vocab_strips */
    const struct pf_pretok *pretok;      /* BPE */
    const struct pf_cancel *cancel;      /* NULL: nobody is asked */
    struct pf_recent *recent;            /* NULL: nothing is kept */
    struct pf_text_block *blocks;
};

/* Where in pairs the look-up of a pair begins. */
static inline size_t pf_pair_home(const struct pf_vocab *v, int32_t left, int32_t right)
{
    return pf_hash_word(&v->hash_key, (uint64_t)(uint32_t)left << 32 | (uint32_t)right) & v->pair_mask;
}

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
    uint32_t key;                        /* rank of the pair with its right neighbour, or PF_NO_PAIR */
    int32_t  joined;                     /* the symbol that the pair becomes */
    uint32_t unused;                     /* so that none lies in two lines of the cache */
};

struct pf_tok_job {
    const struct pf_vocab *v;
    const char *chunk;
    struct pf_sym *syms;
    uint32_t n_syms, sym_cap;
    uint64_t *heap;                      /* key << 32 | symbol, smallest on top; stale entries are skipped */
    size_t n_heap, heap_cap;
    struct pf_buckets *buckets;          /* of very long chunks; NULL: there was none */
    const char *fragment;                /* the text that the pre-tokenizer cuts */
    int32_t *out;
    size_t cap, n;                       /* n counts on past cap */
    size_t work;                         /* since somebody was asked whether to go on */
};

/* Counts bytes, merges and the like; some milliseconds of them are enough to ask. */
static inline pf_status pf_tok_work(struct pf_tok_job *j, size_t n)
{
    enum { ASK_EVERY = 1 << 17 };
    j->work += n;
    if (j->work < ASK_EVERY)
        return PF_OK;
    j->work = 0;
    return pf_cancel_check(j->v->cancel);
}

void pf_tok_emit(struct pf_tok_job *j, int32_t id);
void pf_tok_emit_bytes(struct pf_tok_job *j, const char *p, size_t n);             /* each byte's token, by byte_ids */

/* merge.c: begin, add the symbols from left to right, at least one, end: merges them and emits their tokens. */
void      pf_merge_begin(struct pf_tok_job *j, const char *chunk);
pf_status pf_merge_add(struct pf_tok_job *j, size_t at, size_t n, int32_t id);
pf_status pf_merge_end(struct pf_tok_job *j);
void      pf_merge_free(struct pf_tok_job *j);
/* The three for a chunk, not empty, whose symbols are its characters. */
pf_status pf_merge_characters(struct pf_tok_job *j, const char *chunk, size_t n);

/* bpe.c. The _raw_text functions write at most n bytes: the byte map undone, U+2581 made a space. */
size_t    pf_bpe_raw_text(char *out, const char *p, size_t n);
pf_status pf_bpe_load(struct pf_vocab *v, const pf_gguf *g);
pf_status pf_bpe_fragment(struct pf_tok_job *j, const char *text, size_t len);
pf_status pf_gemma_fragment(struct pf_tok_job *j, const char *text, size_t len);

/* specials.c: the special tokens that text holds, from the last to the first, each the longest that begins there. Built
 * when types are settled; NULL when there are none. */
struct pf_special_hit {
    uint32_t at;
    int32_t  id;
};
pf_status pf_special_trie_build(struct pf_vocab *v);
void      pf_special_trie_free(struct pf_special_trie *t);
pf_status pf_special_find(const struct pf_vocab *v, const char *text, size_t len, bool parse_special,
                          struct pf_special_hit **hits, size_t *n);                /* freed with pf_free */

/* spm.c */
size_t    pf_spm_raw_text(char *out, const char *p, size_t n);
pf_status pf_spm_fragment(struct pf_tok_job *j, const char *text, size_t len);

#endif

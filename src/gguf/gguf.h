/* GGUF files, versions 2 and 3, single or split: metadata and the tensor directory, checked before use.
 *
 * Owns: the metadata (private memory, read with pread) and one read-only mapping per shard. A pf_gguf is immutable
 * after pf_gguf_open and may be read from any thread; every pointer it hands out lives until pf_gguf_close.
 *
 * Everything a file can say wrongly is found here: counts, lengths, types, dimensions, offsets, alignment, overlaps,
 * shards. A failure is one sentence naming the field, the file and the byte offset. Nothing is allocated in proportion
 * to an unchecked number. Knows nothing of architectures beyond general.* and split.*. */
#ifndef PF_GGUF_H
#define PF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pf_qtype.h"
#include "base/pf_status.h"

typedef struct pf_gguf pf_gguf;

enum pf_gguf_type {
    PF_GGUF_U8, PF_GGUF_I8, PF_GGUF_U16, PF_GGUF_I16, PF_GGUF_U32, PF_GGUF_I32, PF_GGUF_F32, PF_GGUF_BOOL,
    PF_GGUF_STRING, PF_GGUF_ARRAY, PF_GGUF_U64, PF_GGUF_I64, PF_GGUF_F64
};

/* Bytes inside the file's metadata; not terminated. */
struct pf_str {
    const char *p;
    size_t      n;
};

/* A name or value of a file as it stands in a message: printable, and shortened when long, so that what comes behind it
 * is not pushed out. */
struct pf_gguf_quoted {
    char s[96];
};
struct pf_gguf_quoted pf_gguf_quote(struct pf_str name);

/* One metadata entry. For scalars n == 1 and type == elem; for arrays type == PF_GGUF_ARRAY. */
struct pf_gguf_kv {
    struct pf_str     key;
    enum pf_gguf_type type, elem;
    uint64_t          n;             /* elements */
    const void       *data;          /* packed little-endian elements; NULL when elem is PF_GGUF_STRING */
    const struct pf_str *strings;    /* n strings when elem is PF_GGUF_STRING, else NULL */
    uint64_t          offset;        /* where the entry is in the first shard's file, for messages */
};

/* One tensor. Its bytes are at data in shard's mapping, at file offset `offset`. */
struct pf_tensor {
    struct pf_str name;
    enum pf_qtype type;
    int           n_dims;
    int64_t       ne[4];             /* GGUF order, missing dimensions 1 */
    uint64_t      row_bytes;         /* ne[0] elements */
    uint64_t      n_bytes;           /* row_bytes * ne[1] * ne[2] * ne[3] */
    int           shard;
    uint64_t      offset;            /* absolute, in the shard's file */
    const uint8_t *data;             /* mapped; a file cut short while in use raises SIGBUS on access */
};

enum {
    PF_GGUF_VOCAB_ONLY = 1u << 0,        /* metadata only: no tensors needed, none mapped, shards not opened */
    PF_GGUF_EMPTY_OK   = 1u << 1         /* a file without any tensor is fine, as of a vocabulary; for inspection */
};

pf_status pf_gguf_open(pf_gguf **out, const char *path, unsigned flags);
void      pf_gguf_close(pf_gguf **g);    /* NULL-safe; clears *g */

const char *pf_gguf_path(const pf_gguf *g);           /* the first shard's path, as given to open */
int         pf_gguf_version(const pf_gguf *g);
int         pf_gguf_n_shards(const pf_gguf *g);
const char *pf_gguf_shard_path(const pf_gguf *g, int shard);
uint64_t    pf_gguf_file_bytes(const pf_gguf *g);     /* all shards */

/* The i-th warning about a file that loads here but not everywhere, or NULL. */
const char *pf_gguf_warning(const pf_gguf *g, int i);

uint64_t                 pf_gguf_n_kv(const pf_gguf *g);
const struct pf_gguf_kv *pf_gguf_kv_at(const pf_gguf *g, uint64_t i);
const struct pf_gguf_kv *pf_gguf_find(const pf_gguf *g, const char *key);        /* NULL if absent */

uint64_t                pf_gguf_n_tensors(const pf_gguf *g);
const struct pf_tensor *pf_gguf_tensor_at(const pf_gguf *g, uint64_t i);
const struct pf_tensor *pf_gguf_tensor(const pf_gguf *g, const char *name);      /* NULL if absent */

/* Typed access. Any integer type is taken where an integer is due if the value lies in [min, max] (f32 or f64 where a
 * real is due); strings, arrays and bools are refused. The _opt forms leave *out alone when the key is absent. A
 * present key of the wrong type or range is always PF_EFORMAT naming key, found type or value, and what is due. */
pf_status pf_gguf_int(const pf_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out);
pf_status pf_gguf_int_opt(const pf_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out);
pf_status pf_gguf_real(const pf_gguf *g, const char *key, float *out);           /* finite, or PF_EFORMAT */
pf_status pf_gguf_real_opt(const pf_gguf *g, const char *key, float *out);
pf_status pf_gguf_bool_opt(const pf_gguf *g, const char *key, bool *out);
pf_status pf_gguf_str(const pf_gguf *g, const char *key, struct pf_str *out);
pf_status pf_gguf_str_opt(const pf_gguf *g, const char *key, struct pf_str *out);

/* A scalar, or an array of exactly n entries, into out[n]; a scalar fills all. Integers or bools (as 0, 1). *found
 * (may be NULL) says whether the key was there; if not, out is left alone. */
pf_status pf_gguf_ints_opt(const pf_gguf *g, const char *key, int64_t n, int64_t min, int64_t max, int64_t *out,
                           bool *found);

/* pf_gguf_ints_opt for reals. */
pf_status pf_gguf_reals_opt(const pf_gguf *g, const char *key, int64_t n, float *out);

/* Reads every byte of every tensor and checks scales and values: PF_EFORMAT naming tensor and element. */
pf_status pf_gguf_verify(const pf_gguf *g);

/* PF_ECHANGED if size, mtime or inode of a shard differ from what they were at open. */
pf_status pf_gguf_unchanged(const pf_gguf *g);

#endif

/* Shared by the files of src/gguf and seen by nobody else.
 *
 *     gguf.c         open and close, shards, look-up by name
 *     gguf_read.c    struct pf_gguf_reader: a bounds-checked cursor over one file, and the arena
 *     gguf_parse.c   header, metadata and tensor directory of one file
 *     gguf_get.c     typed access to metadata
 *     gguf_verify.c  reads and checks the tensors' contents
 *
 * Everything that a pf_gguf points to and that is not a mapping lies in its arena and goes with it, except the
 * tensor table, which grows shard by shard. */
#ifndef PF_GGUF_PRIV_H
#define PF_GGUF_PRIV_H

#include <sys/stat.h>

#include "gguf/gguf.h"

/* Limits of ours, far above any real file. */
#define PF_GGUF_MAX_META_BYTES   ((uint64_t)1 << 30)   /* memory for the metadata of all shards */
#define PF_GGUF_MAX_STRING_BYTES ((uint64_t)256 << 20)
#define PF_GGUF_MAX_ELEMENTS     ((uint64_t)1 << 30)   /* in one metadata array */
#define PF_GGUF_MAX_DIM          ((uint64_t)1 << 40)
enum {
    PF_GGUF_MAX_KV = 65536, PF_GGUF_MAX_TENSORS = 262144, PF_GGUF_MAX_SHARDS = 4096,
    PF_GGUF_MAX_KEY_BYTES = 65535, PF_GGUF_MAX_NAME_BYTES = 63,
    PF_GGUF_DEFAULT_ALIGN = 32, PF_GGUF_MIN_ALIGN = 8, PF_GGUF_MAX_ALIGN = 65536,
    PF_GGUF_MAX_WARNINGS = 8, PF_GGUF_WARNING_BYTES = 256
};

/* Memory that is only ever added to: a list of chunks, the newest first, freed together. */
struct pf_gguf_chunk;
struct pf_gguf_arena {
    struct pf_gguf_chunk *head;
    uint64_t total_bytes;
};

/* Names in sorted order. Every entry is the first member of the struct it names, so that a find gives that struct. A
 * sorted table, not a hash table: no file can make it slow. */
struct pf_gguf_index {
    const struct pf_str **names;
    uint64_t n;
};

/* One file. Its metadata is its own; of all shards only the first one's is seen from outside. */
struct pf_gguf_shard {
    char *path;
    struct stat id;                  /* as it was at open; size, mtime and inode are compared later */
    const uint8_t *map;              /* the whole file, read-only; NULL when only the metadata was wanted */
    uint32_t version;
    uint64_t n_kv;
    struct pf_gguf_kv *kv;           /* in file order */
    struct pf_gguf_index keys;
    uint64_t align, data_start;
    uint64_t first_tensor, n_tensors;    /* its slice of pf_gguf.tensors */
};

struct pf_gguf {
    struct pf_gguf_arena arena;
    struct pf_gguf_shard *shards;
    int n_shards;
    uint64_t n_tensors;
    struct pf_tensor *tensors;       /* all shards, in file order */
    struct pf_gguf_index tensor_names;
    int n_warnings;
    char warnings[PF_GGUF_MAX_WARNINGS][PF_GGUF_WARNING_BYTES];
};

/* ---- gguf_read.c ---- */

/* A cursor over one file: pos <= size always, and nothing at or after size is ever asked for. The item is what is
 * being read, for messages: "key 'general.name'", or "key 7" while its name is not known. */
enum { PF_GGUF_WINDOW_BYTES = 65536 };
struct pf_gguf_reader {
    const char *path;
    int fd;
    uint64_t size, pos;
    struct pf_gguf_arena *arena;
    const char *item_kind;
    int64_t item_no;                 /* from 0; -1: there is only one of the kind */
    struct pf_str item_name;
    uint64_t window_pos;             /* window[0..window_n) are the file's bytes from here on */
    size_t window_n;
    uint8_t window[PF_GGUF_WINDOW_BYTES];
};

/* Sets "PATH: ITEM at byte OFFSET: what is wrong" as the message and returns st. */
pf_status pf_gguf_bad(const struct pf_gguf_reader *r, pf_status st, uint64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Copies the next n bytes of `what` to dst and moves on. */
pf_status pf_gguf_take(struct pf_gguf_reader *r, void *dst, uint64_t n, const char *what);
pf_status pf_gguf_take_u32(struct pf_gguf_reader *r, uint32_t *out, const char *what);
pf_status pf_gguf_take_u64(struct pf_gguf_reader *r, uint64_t *out, const char *what);

static inline uint64_t pf_gguf_left(const struct pf_gguf_reader *r)
{
    return r->size - r->pos;
}

/* n bytes of the file at offset, all of them; PF_ECHANGED when it has become shorter. */
pf_status pf_gguf_pread(int fd, const char *path, void *dst, uint64_t n, uint64_t offset);

/* Zeroed memory that lives as long as the arena; path is for the message. align is a power of two up to 64. */
pf_status pf_gguf_arena_alloc(struct pf_gguf_arena *a, const char *path, uint64_t bytes, size_t align, void **out);
void      pf_gguf_arena_free(struct pf_gguf_arena *a);

/* ---- gguf_parse.c ---- */

const char *pf_gguf_type_name(enum pf_gguf_type t);

/* Reads the shard's header, metadata and, unless flags have PF_GGUF_VOCAB_ONLY, its tensor directory, whose entries are
 * appended to g->tensors with every check made that needs no other shard. `data` of the tensors is not set yet. */
pf_status pf_gguf_parse(pf_gguf *g, int shard, int fd, unsigned flags);

/* ---- gguf.c ---- */

void pf_gguf_warn(pf_gguf *g, int shard, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Sorts the n names that lie stride bytes apart, the first at `first`. twice becomes two entries of the same name, in
 * their order, or NULLs. */
pf_status pf_gguf_index_build(struct pf_gguf_index *index, struct pf_gguf_arena *a, const char *path, const void *first,
                              uint64_t n, size_t stride, const struct pf_str *twice[2]);
const void *pf_gguf_index_find(const struct pf_gguf_index *index, struct pf_str name);

/* Opens the file behind a shard's path; *st is what fstat says of it. Only regular files are taken. */
pf_status pf_gguf_open_file(const char *path, int *fd, struct stat *st);

/* Whether two looks at a file saw the same one: device, inode, size and modification time. */
bool pf_gguf_same_file(const struct stat *a, const struct stat *b);

/* ---- gguf_get.c ---- */

const struct pf_gguf_kv *pf_gguf_shard_find(const struct pf_gguf_shard *s, const char *key);
pf_status pf_gguf_shard_int_opt(const struct pf_gguf_shard *s, const char *key, int64_t min, int64_t max, int64_t *out,
                                bool *found);

#endif

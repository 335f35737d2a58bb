/* For tests: writes GGUF bytes, right or wrong, and opens them without a file system. */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"

/* Bytes that grow; exits when memory runs out. Free p. */
struct buf {
    uint8_t *p;
    size_t n, cap;
};
void put(struct buf *b, const void *bytes, size_t n);
void put_zeros(struct buf *b, size_t n);
void put_u8(struct buf *b, uint8_t v);
void put_u32(struct buf *b, uint32_t v);
void put_u64(struct buf *b, uint64_t v);
void put_string(struct buf *b, const char *s);
void put_bytes(struct buf *b, const char *s, size_t n);          /* a string that may hold NULs */
void pad_to(struct buf *b, size_t align);

void put_header(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void put_key(struct buf *b, const char *key, uint32_t type);     /* the value follows */
void put_array(struct buf *b, const char *key, uint32_t elem, uint64_t n);
void put_kv_u32(struct buf *b, const char *key, uint32_t v);
void put_kv_int(struct buf *b, const char *key, enum pf_gguf_type type, int64_t v);
void put_kv_string(struct buf *b, const char *key, const char *v);
void put_tensor(struct buf *b, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t offset);

/* A small model with every kind of metadata, and a tensor of zeros of every type there is; 256 divides ne0. */
void put_rich_file(struct buf *b, uint64_t ne0, uint64_t ne1);

/* A memory file with these bytes; its path is good for opening while the process holds it. */
struct mem_file {
    int fd;
    char path[64];
};
struct mem_file mem_file_new(const void *bytes, size_t n);
void mem_file_close(struct mem_file *f);

/* Opens the bytes as a file of that kind. */
pf_status open_bytes(pf_gguf **g, const struct buf *b, unsigned flags);

/* Inspects and verifies a good file while each allocation fails in turn: every time PF_ENOMEM and nothing left over.
 * Complains on standard output when not. */
bool survives_no_memory(const char *path);

#endif

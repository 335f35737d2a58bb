#define _GNU_SOURCE
#include "gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "gguf/inspect.h"

static void die(const char *what)
{
    perror(what);
    exit(1);
}

void put(struct buf *b, const void *bytes, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
        if (!b->p)
            die("realloc");
    }
    if (n)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
}

void put_zeros(struct buf *b, size_t n)
{
    static const uint8_t zeros[4096];
    for (size_t piece; n; n -= piece) {
        piece = n < sizeof zeros ? n : sizeof zeros;
        put(b, zeros, piece);
    }
}

void put_u8(struct buf *b, uint8_t v)
{
    put(b, &v, sizeof v);
}

void put_u32(struct buf *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

void put_u64(struct buf *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

void put_bytes(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    put(b, s, n);
}

void put_string(struct buf *b, const char *s)
{
    put_bytes(b, s, strlen(s));
}

void pad_to(struct buf *b, size_t align)
{
    put_zeros(b, (align - b->n % align) % align);
}

void put_header(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

void put_key(struct buf *b, const char *key, uint32_t type)
{
    put_string(b, key);
    put_u32(b, type);
}

void put_array(struct buf *b, const char *key, uint32_t elem, uint64_t n)
{
    put_key(b, key, PF_GGUF_ARRAY);
    put_u32(b, elem);
    put_u64(b, n);
}

void put_kv_u32(struct buf *b, const char *key, uint32_t v)
{
    put_key(b, key, PF_GGUF_U32);
    put_u32(b, v);
}

void put_kv_int(struct buf *b, const char *key, enum pf_gguf_type type, int64_t v)
{
    static const uint8_t sizes[] = { 1, 1, 2, 2, 4, 4, 0, 1, 0, 0, 8, 8 };
    put_key(b, key, type);
    put(b, &v, sizes[type]);
}

void put_kv_string(struct buf *b, const char *key, const char *v)
{
    put_key(b, key, PF_GGUF_STRING);
    put_string(b, v);
}

void put_tensor(struct buf *b, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t offset)
{
    put_string(b, name);
    put_u32(b, 2);
    put_u64(b, ne0);
    put_u64(b, ne1);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_rich_metadata(struct buf *b)
{
    float f = 1.5f;
    double d = -2.25;
    put_kv_string(b, "general.architecture", "test");
    put_kv_string(b, "general.name", "");
    put_kv_int(b, "test.u8", PF_GGUF_U8, 255);
    put_kv_int(b, "test.i8", PF_GGUF_I8, -128);
    put_kv_int(b, "test.u16", PF_GGUF_U16, 65535);
    put_kv_int(b, "test.i16", PF_GGUF_I16, -32768);
    put_kv_u32(b, "test.u32", UINT32_MAX);
    put_kv_int(b, "test.i32", PF_GGUF_I32, INT32_MIN);
    put_kv_int(b, "test.u64", PF_GGUF_U64, -1);
    put_kv_int(b, "test.i64", PF_GGUF_I64, INT64_MIN);
    put_kv_int(b, "test.bool", PF_GGUF_BOOL, 1);
    put_key(b, "test.f32", PF_GGUF_F32);
    put(b, &f, sizeof f);
    put_key(b, "test.f64", PF_GGUF_F64);
    put(b, &d, sizeof d);
    put_array(b, "test.layers", PF_GGUF_I32, 3);
    put_u32(b, 1);
    put_u32(b, 2);
    put_u32(b, 3);
    put_array(b, "test.flags", PF_GGUF_BOOL, 3);
    put(b, "\1\0\1", 3);
    put_array(b, "test.words", PF_GGUF_STRING, 3);
    put_string(b, "a");
    put_string(b, "");
    put_string(b, "\xFF\xFE");
    put_array(b, "test.nothing", PF_GGUF_STRING, 0);
}

void put_rich_file(struct buf *b, uint64_t ne0, uint64_t ne1)
{
    uint64_t n_tensors = 0, offset = 0;
    for (uint32_t id = 0; id < PF_N_QTYPES; id++)
        n_tensors += pf_qtype_info(id) != NULL;
    put_header(b, 3, n_tensors, 17);
    put_rich_metadata(b);
    for (uint32_t id = 0; id < PF_N_QTYPES; id++)
        if (pf_qtype_info(id)) {
            put_tensor(b, pf_qtype_info(id)->name, id, ne0, ne1, offset);
            offset += (pf_qtype_row_bytes((enum pf_qtype)id, ne0) * ne1 + 31) / 32 * 32;
        }
    pad_to(b, 32);
    put_zeros(b, offset);
}

struct mem_file mem_file_new(const void *bytes, size_t n)
{
    struct mem_file f;
    f.fd = memfd_create("test", MFD_CLOEXEC);
    if (f.fd < 0)
        die("memfd_create");
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(f.fd, (const char *)bytes + done, n - done);
        if (wrote <= 0)
            die("write");
        done += (size_t)wrote;
    }
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    return f;
}

void mem_file_close(struct mem_file *f)
{
    close(f->fd);
}

pf_status open_bytes(pf_gguf **g, const struct buf *b, unsigned flags)
{
    struct mem_file f = mem_file_new(b->p, b->n);
    pf_status st = pf_gguf_open(g, f.path, flags);
    mem_file_close(&f);
    return st;
}

bool survives_no_memory(const char *path)
{
    struct pf_mem_stats before, after;
    struct pf_file_info info;
    pf_status st;
    uint64_t n = 0;
    bool ok = true;
    pf_mem_stats_get(&before);
    do {
        pf_mem_fail_nth(++n);
        st = pf_gguf_inspect(path, PF_FILE_VERIFY, &info);
        pf_mem_stats_get(&after);
        bool right = st == PF_OK || (st == PF_ENOMEM && strstr(pf_last_error(), "no memory"));
        if (!right || after.n_live != before.n_live) {
            printf("allocation %d failing: %s, %d left: %s\n", (int)n, pf_strstatus(st),
                   (int)(after.n_live - before.n_live), pf_last_error());
            ok = false;
        }
    } while (st != PF_OK && n < 1000);
    pf_mem_fail_nth(0);
    printf("%d allocations failed in turn\n", (int)(n - 1));
    return ok && n > 5 && st == PF_OK;
}

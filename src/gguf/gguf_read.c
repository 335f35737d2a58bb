/* The cursor and the arena. See gguf_priv.h.
 *
 * The cursor reads ahead through a window, since most fields are a few bytes; what is larger than the window goes
 * straight to its place. Bounds are tested as n <= size - pos, never as pos + n <= size, so that no length in a file
 * can wrap them. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "gguf/gguf_priv.h"

struct pf_gguf_quoted pf_gguf_quote(struct pf_str name)
{
    struct pf_gguf_quoted q;
    size_t cap = sizeof q.s - 4, n = name.n < cap ? name.n : cap;
    for (size_t i = 0; i < n; i++)
        q.s[i] = name.p[i] >= 0x20 && name.p[i] < 0x7F ? name.p[i] : '?';
    strcpy(q.s + n, name.n > cap ? "..." : "");
    return q;
}

pf_status pf_gguf_bad(const struct pf_gguf_reader *r, pf_status st, uint64_t offset, const char *fmt, ...)
{
    char item[160], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (r->item_name.n)
        snprintf(item, sizeof item, "%s '%s'", r->item_kind, pf_gguf_quote(r->item_name).s);
    else if (r->item_no >= 0)
        snprintf(item, sizeof item, "%s %" PRId64, r->item_kind, r->item_no);
    else
        snprintf(item, sizeof item, "%s", r->item_kind);
    return pf_fail(st, "%s: %s at byte %" PRIu64 ": %s", r->path, item, offset, text);
}

pf_status pf_gguf_pread(int fd, const char *path, void *dst, uint64_t n, uint64_t offset)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)dst + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            PF_FAIL(PF_EIO, "%s: reading at byte %" PRIu64 " failed: %s", path, offset + done, strerror(errno));
        if (got == 0)
            PF_FAIL(PF_ECHANGED, "%s: the file now ends at byte %" PRIu64 "; it was longer when it was opened", path,
                    offset + done);
        done += (uint64_t)got;
    }
    return PF_OK;
}

static pf_status fill_window(struct pf_gguf_reader *r)
{
    uint64_t n = pf_gguf_left(r) < PF_GGUF_WINDOW_BYTES ? pf_gguf_left(r) : PF_GGUF_WINDOW_BYTES;
    r->window_n = 0;
    PF_TRY(pf_gguf_pread(r->fd, r->path, r->window, n, r->pos));
    r->window_pos = r->pos;
    r->window_n = n;
    return PF_OK;
}

pf_status pf_gguf_take(struct pf_gguf_reader *r, void *dst, uint64_t n, const char *what)
{
    if (n > pf_gguf_left(r))
        return pf_gguf_bad(r, PF_EFORMAT, r->pos,
                           "the file ends inside %s, which takes %" PRIu64 " bytes where %" PRIu64 " are left", what, n,
                           pf_gguf_left(r));
    if (n > PF_GGUF_WINDOW_BYTES) {
        PF_TRY(pf_gguf_pread(r->fd, r->path, dst, n, r->pos));
    } else if (n > 0) {
        uint64_t skip = r->pos - r->window_pos;
        if (skip > r->window_n || n > r->window_n - skip) {
            PF_TRY(fill_window(r));
            skip = 0;
        }
        memcpy(dst, r->window + skip, n);
    }
    r->pos += n;
    return PF_OK;
}

pf_status pf_gguf_take_u32(struct pf_gguf_reader *r, uint32_t *out, const char *what)
{
    return pf_gguf_take(r, out, sizeof *out, what);
}

pf_status pf_gguf_take_u64(struct pf_gguf_reader *r, uint64_t *out, const char *what)
{
    return pf_gguf_take(r, out, sizeof *out, what);
}

enum { CHUNK_BYTES = 65536 };
struct pf_gguf_chunk {
    struct pf_gguf_chunk *next;
    size_t used, cap;                /* of bytes[] */
    _Alignas(64) uint8_t bytes[];
};

pf_status pf_gguf_arena_alloc(struct pf_gguf_arena *a, const char *path, uint64_t bytes, size_t align, void **out)
{
    struct pf_gguf_chunk *c = a->head;
    size_t at = c ? (c->used + align - 1) & ~(align - 1) : 0;
    if (!c || at > c->cap || bytes > c->cap - at) {
        uint64_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        if (cap > PF_GGUF_MAX_META_BYTES - a->total_bytes)
            PF_FAIL(PF_EFORMAT, "%s: the metadata takes more than %" PRIu64 " bytes", path, PF_GGUF_MAX_META_BYTES);
        c = pf_alloc(PF_MEM_GGUF, sizeof *c + cap);
        if (!c)
            PF_FAIL(PF_ENOMEM, "%s: no memory for %" PRIu64 " bytes of metadata", path, cap);
        *c = (struct pf_gguf_chunk){ .next = a->head, .cap = cap };
        a->head = c;
        a->total_bytes += cap;
        at = 0;
    }
    c->used = at + bytes;
    *out = c->bytes + at;
    return PF_OK;
}

void pf_gguf_arena_free(struct pf_gguf_arena *a)
{
    while (a->head) {
        struct pf_gguf_chunk *next = a->head->next;
        pf_free(a->head);
        a->head = next;
    }
}

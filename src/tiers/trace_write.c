/* Writing a routing trace: see trace.h. The file is written without a buffer of the C library's, a batch a write, so
 * that nothing is allocated on the way and a program that is killed leaves whole tokens behind. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "tiers/trace.h"

struct pf_trace_writer {
    struct pf_trace_shape shape;
    int      fd;
    char    *path;
    uint64_t bytes;                      /* written to the file: whole tokens */
    size_t   token_bytes;
    uint8_t *batch;                      /* [max_rows] tokens as they will lie in the file */
};

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static pf_status write_all(struct pf_trace_writer *w, const uint8_t *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(w->fd, p + done, n - done, (off_t)(w->bytes + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            int err = k < 0 ? errno : EIO;
            int cut = ftruncate(w->fd, (off_t)w->bytes);
            (void)cut;                   /* a last token that is cut off does not count anyway */
            PF_FAIL(PF_EIO, "%s: writing the routing trace failed: %s", w->path, strerror(err));
        }
        done += (size_t)k;
    }
    w->bytes += n;
    return PF_OK;
}

static pf_status write_header(struct pf_trace_writer *w)
{
    uint8_t h[PF_TRACE_HEADER_BYTES] = "PFTRACE1";
    put_u32(h + 8, (uint32_t)w->shape.n_layers);
    put_u32(h + 12, (uint32_t)w->shape.n_expert);
    put_u32(h + 16, (uint32_t)w->shape.n_used);
    return write_all(w, h, sizeof h);
}

static void writer_free(struct pf_trace_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    pf_free(w->batch);
    pf_free(w->path);
    pf_free(w);
}

pf_status pf_trace_writer_open(pf_trace_writer **out, const char *path, const struct pf_trace_shape *shape)
{
    *out = NULL;
    pf_trace_writer *w = pf_alloc(PF_MEM_TIERS, sizeof *w);
    if (!w)
        PF_FAIL(PF_ENOMEM, "no memory to write a routing trace");
    w->shape = *shape;
    w->fd = -1;
    w->token_bytes = (size_t)shape->n_layers * (size_t)shape->n_used * PF_TRACE_PICK_BYTES;
    w->path = pf_strndup(PF_MEM_TIERS, path, strlen(path));
    w->batch = pf_alloc_array(PF_MEM_TIERS, (size_t)shape->max_rows, w->token_bytes);
    if (!w->path || !w->batch) {
        writer_free(w);
        PF_FAIL(PF_ENOMEM, "no memory to write a routing trace of %d tokens at once", shape->max_rows);
    }
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        int err = errno;
        writer_free(w);
        PF_FAIL(PF_EIO, "%s: creating the routing trace failed: %s", path, strerror(err));
    }
    pf_status st = write_header(w);
    if (st < 0) {
        writer_free(w);
        return st;
    }
    *out = w;
    return PF_OK;
}

void pf_trace_writer_put(pf_trace_writer *w, int layer, int rows, const int32_t *picks, const float *weights)
{
    int n_used = w->shape.n_used;
    assert(layer >= 0 && layer < w->shape.n_layers && rows <= w->shape.max_rows);
    for (int r = 0; r < rows; r++) {
        uint8_t *at = w->batch + (size_t)r * w->token_bytes + (size_t)layer * (size_t)n_used * PF_TRACE_PICK_BYTES;
        for (int i = r * n_used; i < (r + 1) * n_used; i++, at += PF_TRACE_PICK_BYTES) {
            uint32_t weight;
            memcpy(&weight, &weights[i], sizeof weight);
            at[0] = (uint8_t)picks[i];
            at[1] = (uint8_t)(picks[i] >> 8);
            put_u32(at + 2, weight);
        }
    }
}

pf_status pf_trace_writer_append(pf_trace_writer *w, int rows)
{
    assert(rows <= w->shape.max_rows);
    return write_all(w, w->batch, (size_t)rows * w->token_bytes);
}

pf_status pf_trace_writer_close(pf_trace_writer **wp)
{
    pf_trace_writer *w = *wp;
    pf_status st = PF_OK;
    *wp = NULL;
    if (!w)
        return PF_OK;
    int failed = close(w->fd);
    w->fd = -1;
    if (failed != 0)
        st = pf_fail(PF_EIO, "%s: closing the routing trace failed: %s", w->path, strerror(errno));
    writer_free(w);
    return st;
}

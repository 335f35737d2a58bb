/* Opening files for the drive queue, and choosing an engine. */
#define _GNU_SOURCE
#include "tiers/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The alignment that direct reads of fd want: statx says it since Linux 6.1. 0: direct reads do not work. */
static uint32_t direct_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN)) {
        uint32_t of_offset = sx.stx_dio_offset_align, of_memory = sx.stx_dio_mem_align;
        uint32_t align = of_offset > of_memory ? of_offset : of_memory;
        return align <= PF_IO_ALIGN_MAX && (align & (align - 1)) == 0 ? align : 0;
    }
#endif
    (void)fd;
    return PF_IO_ALIGN_UNKNOWN;
}

pf_status pf_io_file_open(struct pf_io_file *out, const char *path)
{
    struct stat st;
    struct pf_io_file f = { .align = PF_IO_ALIGN_UNKNOWN };
    *out = (struct pf_io_file){ 0 };
    f.fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    f.direct = f.fd >= 0;
    if (f.direct && direct_align(f.fd) == 0) {
        close(f.fd);
        f.direct = false;
    } else if (f.direct && direct_align(f.fd) > f.align) {
        f.align = direct_align(f.fd);        /* less than 4096 would be allowed, but buys nothing */
    }
    if (!f.direct)
        f.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f.fd < 0)
        PF_FAIL(PF_EIO, "%s: opening it for reading weights failed: %s", path, strerror(errno));
    if (fstat(f.fd, &st) != 0) {
        int err = errno;
        close(f.fd);
        PF_FAIL(PF_EIO, "%s: asking for its size failed: %s", path, strerror(err));
    }
    f.bytes = (uint64_t)st.st_size;
    f.written = st.st_mtim;
    *out = f;
    return PF_OK;
}

void pf_io_file_close(struct pf_io_file *f)
{
    if (f->align)
        close(f->fd);
    *f = (struct pf_io_file){ 0 };
}

bool pf_io_file_unchanged(const struct pf_io_file *f, struct timespec *touched)
{
    struct stat st;
    *touched = (struct timespec){ 0 };
    if (fstat(f->fd, &st) != 0)
        return false;
    *touched = st.st_ctim;
    return (uint64_t)st.st_size == f->bytes && st.st_mtim.tv_sec == f->written.tv_sec &&
           st.st_mtim.tv_nsec == f->written.tv_nsec;
}

pf_status pf_io_best_open(pf_io **out, const struct pf_io_setup *s, void *ctx)
{
    return pf_io_uring_open(out, s, ctx) == PF_OK ? PF_OK : pf_io_pread_open(out, s, ctx);
}

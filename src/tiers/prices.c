/* Measuring what the planner wants to know: see pf_price_ram and pf_price_disk in plan.h. Good enough to tell which
 * resource will be the limit, not to compare machines by. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/pf_mem.h"
#include "base/pf_pool.h"
#include "base/pf_time.h"
#include "tiers/io.h"
#include "tiers/plan.h"

/* ---- Main memory: the threads sum up a buffer that is larger than caches ----------------------------------------- */

enum { RAM_BYTES = 192 << 20, PIECE_BYTES = 1 << 20, PIECE_WORDS = PIECE_BYTES / 8, RAM_PASSES = 2 };

struct summing {
    uint64_t *words;
    _Atomic uint64_t sum;                /* the result of reading, or a compiler would leave the reads out */
};

static void touch_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct summing *s = ctx;
    (void)thread;
    for (int64_t i = begin * PIECE_WORDS; i < end * PIECE_WORDS; i += 512)
        s->words[i] = (uint64_t)i;
}

static void sum_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct summing *s = ctx;
    uint64_t sum[8] = { 0 };
    (void)thread;
    for (int64_t i = begin * PIECE_WORDS; i < end * PIECE_WORDS; i += 8)
        for (int j = 0; j < 8; j++)
            sum[j] += s->words[i + j];
    for (int j = 0; j < 8; j++)
        atomic_fetch_add(&s->sum, sum[j]);
}

double pf_price_ram(int n_threads)
{
    struct summing s = { .words = pf_pages_alloc(RAM_BYTES) };
    pf_pool *pool = NULL;
    double bytes_s = 0;
    if (s.words && pf_pool_open(&pool, n_threads) == PF_OK) {
        pf_pool_run(pool, touch_pieces, &s, RAM_BYTES / PIECE_BYTES, 4);
        uint64_t begin = pf_now_ns();
        for (int i = 0; i < RAM_PASSES; i++)
            pf_pool_run(pool, sum_pieces, &s, RAM_BYTES / PIECE_BYTES, 4);
        bytes_s = (double)RAM_BYTES * RAM_PASSES / ((double)(pf_now_ns() - begin) * 1e-9);
    }
    pf_pool_close(&pool);
    pf_pages_free(s.words, RAM_BYTES);
    return bytes_s;
}

/* ---- The drive: reads like the store's, from places spread over the file ----------------------------------------- */

enum { READ_BYTES = 1 << 20, DEPTH = 16, MAX_READS = 128 };
static const uint64_t ENOUGH_NS = 60000000;

struct reading {
    const struct pf_io_file *file;
    struct pf_io_read reads[DEPTH];
    char    *arena;
    int      n_begun;
    uint64_t bytes;
};

static void begin_read(struct reading *d, pf_io *io, struct pf_io_read *r)
{
    uint64_t n_places = d->file->bytes / READ_BYTES, place = (uint64_t)d->n_begun * 0x9e3779b97f4a7c15u % n_places;
    *r = (struct pf_io_read){ .offset = place * READ_BYTES, .bytes = READ_BYTES,
                              .buf = d->arena + (r - d->reads) * READ_BYTES };
    io->ops->queue(io, r);
    d->n_begun++;
}

/* Keeps DEPTH reads under way for a while; all of them are back in the end. */
static void read_around(struct reading *d, pf_io *io)
{
    int n_flying = DEPTH;
    uint64_t begin = pf_now_ns();
    for (int i = 0; i < DEPTH; i++)
        begin_read(d, io, &d->reads[i]);
    while (n_flying > 0) {
        struct pf_io_read *done[DEPTH];
        io->ops->commit(io);                     /* reads that it cannot send now go with the next commit */
        io->ops->wait(io, pf_now_ns() + ENOUGH_NS);
        int n = io->ops->take(io, done, DEPTH);
        for (int i = 0; i < n; i++) {
            n_flying--;
            d->bytes += done[i]->result > 0 ? (uint64_t)done[i]->result : 0;
            if (done[i]->result > 0 && d->n_begun < MAX_READS && pf_now_ns() - begin < ENOUGH_NS) {
                begin_read(d, io, done[i]);
                n_flying++;
            }
        }
    }
}

/* Whether most of a file is holes, as of one that has a model's shape alone: they are not read from the drive. Half,
 * since file systems that compress have fewer blocks, too. */
static bool is_hollow(const char *path)
{
    enum { BLOCK_BYTES = 512 };
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_blocks < st.st_size / BLOCK_BYTES / 2;
}

double pf_price_disk(const char *path)
{
    struct pf_io_file file;
    struct reading d = { .file = &file };
    struct pf_io_setup setup = { .files = &file, .n_files = 1, .depth = DEPTH,
                                 .arena_bytes = (size_t)DEPTH * READ_BYTES };
    pf_io *io = NULL;
    double bytes_s = 0;
    if (is_hollow(path) || pf_io_file_open(&file, path) < 0)
        return 0;
    d.arena = setup.arena = pf_pages_alloc(setup.arena_bytes);
    if (d.arena && file.bytes >= READ_BYTES && pf_io_best_open(&io, &setup, NULL) == PF_OK) {
        uint64_t begin = pf_now_ns();
        read_around(&d, io);
        bytes_s = (double)d.bytes / ((double)(pf_now_ns() - begin) * 1e-9);
        io->ops->close(io);
    }
    pf_pages_free(d.arena, setup.arena_bytes);
    pf_io_file_close(&file);
    return bytes_s;
}

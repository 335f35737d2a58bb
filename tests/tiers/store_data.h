/* A file whose bytes follow from their offsets, and a store over odd parts of it: what the tests of src/tiers/
 * share. */
#ifndef TEST_STORE_DATA_H
#define TEST_STORE_DATA_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "tiers/store/store.h"

enum { N_LAYERS = 4, N_EXPERTS = 6, N_SLABS = N_LAYERS * N_EXPERTS + 1, N_PARTS = 3 * N_SLABS };

struct fixture {
    char           path[256];
    const char    *paths[1];
    struct pf_part parts[N_PARTS];
    struct pf_slab slabs[N_SLABS];
    uint64_t       file_bytes;
    uint8_t       *bytes;                /* the file's contents as they should be, from byte_at() */
    uint64_t       all, least;           /* budgets */
    struct pf_store_setup setup;
};

static inline uint8_t byte_at(uint64_t offset)
{
    uint64_t x = (offset >> 3) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint8_t)(x >> (8 * (offset & 7)));
}

/* gate and up of one size, down of another that differs in the last layer; one more slab is as large as three
 * requests. */
static inline void fixture_open(struct fixture *f, const char *dir)
{
    uint64_t at = 4321;
    *f = (struct fixture){ 0 };
    snprintf(f->path, sizeof f->path, "%s/pfmoe-store-XXXXXX", dir);
    int fd = mkstemp(f->path);
    if (fd < 0) {
        perror(dir);
        exit(1);
    }
    for (int i = 0; i < N_SLABS; i++) {
        int layer = i < N_LAYERS * N_EXPERTS ? i / N_EXPERTS : N_LAYERS - 1;
        f->slabs[i] = (struct pf_slab){ layer, i == N_SLABS - 1 ? -1 : i % N_EXPERTS, 3 * i, 3 };
        for (int p = 0; p < 3; p++) {
            uint64_t bytes = p < 2 ? 13000 : layer == N_LAYERS - 1 ? 20000 : 9999;
            if (i == N_SLABS - 1 && p == 0)
                bytes = 2 * PF_STORE_READ_BYTES + 5;
            f->parts[3 * i + p] = (struct pf_part){ 0, at, bytes };
            at += bytes + (uint64_t)(i * 37 % 500);
        }
    }
    f->file_bytes = f->parts[N_PARTS - 1].offset + f->parts[N_PARTS - 1].bytes;      /* the last part ends the file */
    f->bytes = malloc(f->file_bytes);
    for (uint64_t i = 0; i < f->file_bytes; i++)
        f->bytes[i] = byte_at(i);
    if (write(fd, f->bytes, f->file_bytes) != (ssize_t)f->file_bytes) {
        perror(f->path);
        exit(1);
    }
    close(fd);
    f->paths[0] = f->path;
    f->setup = (struct pf_store_setup){ .paths = f->paths, .n_files = 1, .parts = f->parts, .n_parts = N_PARTS,
                                        .slabs = f->slabs, .n_slabs = N_SLABS, .n_layers = N_LAYERS,
                                        .policy = &pf_evict_nextuse, .io = pf_io_best_open, .stall_ns = 20000000000u };
    if (pf_store_bytes(&f->setup, &f->all, &f->least) < 0)
        exit(1);
    f->setup.budget_bytes = f->all;
}

static inline void fixture_close(const struct fixture *f)
{
    unlink(f->path);
    free(f->bytes);
}

/* Whether a pinned, ready slab holds what the file does. */
static inline bool slab_is_right(const struct fixture *f, const pf_store *s, int slab)
{
    for (int p = f->slabs[slab].first; p < f->slabs[slab].first + f->slabs[slab].n; p++) {
        if (memcmp(pf_store_data(s, p), f->bytes + f->parts[p].offset, f->parts[p].bytes) != 0)
            return false;
    }
    return true;
}

/* Pins the slabs, in as many goes as it takes, and checks the bytes of each. Everything is unpinned in the end.
 * *n_right counts. */
static inline pf_status use_slabs(const struct fixture *f, pf_store *s, const int *slabs, int n, int *n_right)
{
    enum pf_pin how[N_SLABS];
    int todo[N_SLABS], n_todo = n;
    pf_status st = PF_OK;
    memcpy(todo, slabs, (size_t)n * sizeof *slabs);
    while (n_todo > 0 && st == PF_OK) {
        int n_busy = 0;
        st = pf_store_pin(s, todo, n_todo, how);
        if (st < 0)
            return st;
        for (int i = 0; i < n_todo; i++) {
            if (how[i] == PF_PIN_BUSY) {
                todo[n_busy++] = todo[i];
                continue;
            }
            if (how[i] == PF_PIN_QUEUED && st == PF_OK)
                st = pf_store_wait(s, todo[i]);
            if (st == PF_OK && pf_store_is_ready(s, todo[i]))
                *n_right += slab_is_right(f, s, todo[i]);
            pf_store_unpin(s, &todo[i], 1);
        }
        n_todo = n_busy;
    }
    return st;
}

static inline uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* n different slabs of one layer; returns how many (at most N_EXPERTS). */
static inline int some_slabs(uint64_t *rng, int layer, int n, int *out)
{
    int first = (int)(next_random(rng) % N_EXPERTS);
    n = n < N_EXPERTS ? n : N_EXPERTS;
    for (int i = 0; i < n; i++)
        out[i] = layer * N_EXPERTS + (first + i) % N_EXPERTS;
    return n;
}

#endif

/* Any bytes as a GGUF file: opened, every key and tensor read, inspected and verified. */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "fuzz.h"
#include "gguf/inspect.h"
#include "gguf/gguf.h"

/* The keys' values go into this, so that reading them is not optimised away, and a sanitizer sees it. */
static volatile uint64_t sink;

static void read_bytes(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sink += ((const uint8_t *)p)[i];
}

static void read_key(const pf_gguf *g, const struct pf_gguf_kv *kv)
{
    char key[256];
    struct pf_str s;
    int64_t v[4];
    float f;
    bool b;
    assert(pf_gguf_find(g, "no such key") == NULL);
    for (uint64_t i = 0; kv->strings && i < kv->n; i++)
        read_bytes(kv->strings[i].p, kv->strings[i].n);
    if (kv->key.n >= sizeof key)
        return;
    snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
    assert(pf_gguf_find(g, key) == kv);
    sink += (uint64_t)pf_gguf_int_opt(g, key, 0, 1000, v) + (uint64_t)pf_gguf_real_opt(g, key, &f) +
            (uint64_t)pf_gguf_bool_opt(g, key, &b) + (uint64_t)pf_gguf_str_opt(g, key, &s) +
            (uint64_t)pf_gguf_ints_opt(g, key, 4, INT64_MIN, INT64_MAX, v, NULL);
}

static void read_all(const pf_gguf *g)
{
    for (uint64_t i = 0; i < pf_gguf_n_kv(g); i++)
        read_key(g, pf_gguf_kv_at(g, i));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(g, i);
        assert(t->n_bytes > 0 && t->n_bytes == t->row_bytes * (uint64_t)(t->ne[1] * t->ne[2] * t->ne[3]));
        read_bytes(t->data, t->n_bytes);
    }
}

static int memory_file(void)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned flags[] = { 0, PF_GGUF_VOCAB_ONLY, PF_GGUF_EMPTY_OK };
    struct pf_file_info info;
    struct pf_mem_stats stats;
    char path[64];
    int fd = memory_file();
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        pf_gguf *g;
        if (pf_gguf_open(&g, path, flags[i]) == PF_OK)
            read_all(g);
        else
            assert(strlen(pf_last_error()) > strlen(path));
        pf_gguf_close(&g);
    }
    pf_gguf_inspect(path, PF_FILE_VERIFY, &info);
    pf_mem_stats_get(&stats);
    assert(stats.n_live == 0);
    return 0;
}

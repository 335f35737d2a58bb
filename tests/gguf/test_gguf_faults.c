/* The reader when memory runs out, with a good file cut short or with bits flipped, and beyond its limits. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "gguf/inspect.h"
#include "gguf_cases.h"

static int n_failed;

static uint64_t n_live(void)
{
    struct pf_mem_stats stats;
    pf_mem_stats_get(&stats);
    return stats.n_live;
}

static void test_no_memory(const struct buf *b)
{
    struct mem_file f = mem_file_new(b->p, b->n);
    n_failed += !survives_no_memory(f.path);
    mem_file_close(&f);
}

/* Tensors in any order are sorted, which takes memory of its own. */
static void test_no_memory_unordered(void)
{
    for (int i = 0; i < n_odd_cases; i++)
        if (strcmp(odd_cases[i].name, "backwards") == 0) {
            struct buf b = { 0 };
            odd_cases[i].make(&b);
            test_no_memory(&b);
            free(b.p);
        }
}

/* Any file shorter than its tensors need is an error. */
static void test_cuts(const struct buf *b, uint64_t end_of_data)
{
    struct mem_file f = mem_file_new(b->p, b->n);
    pf_gguf *g;
    for (uint64_t n = b->n; n-- > 0;) {
        if (ftruncate(f.fd, (off_t)n) != 0)
            n_failed++;
        pf_status st = pf_gguf_open(&g, f.path, 0);
        if (n >= end_of_data ? st != PF_OK : st != PF_EFORMAT) {
            printf("cut at %d: %s\n", (int)n, pf_strstatus(st));
            n_failed++;
        }
        pf_gguf_close(&g);
    }
    mem_file_close(&f);
}

/* Flips bits anywhere in front of the data and reads whatever still opens. The generator is xorshift64 with a fixed
 * seed. */
static void test_flips(const struct buf *b, uint64_t start_of_data, int n_rounds)
{
    struct mem_file f = mem_file_new(b->p, b->n);
    uint64_t x = 0x9E3779B97F4A7C15;
    int n_opened = 0;
    for (int round = 0; round < n_rounds; round++) {
        uint64_t at[3];
        struct pf_file_info info;
        for (int i = 0; i < 1 + round % 3; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            at[i] = x % start_of_data;
            uint8_t v = b->p[at[i]] ^ (uint8_t)(1u << (x >> 61));
            n_failed += pwrite(f.fd, &v, 1, (off_t)at[i]) != 1;
        }
        pf_status st = pf_gguf_inspect(f.path, PF_FILE_VERIFY, &info);
        n_opened += st == PF_OK;
        for (int i = 0; i < 1 + round % 3; i++)
            n_failed += pwrite(f.fd, &b->p[at[i]], 1, (off_t)at[i]) != 1;
    }
    printf("%d rounds of flipped bits, %d of them opened\n", n_rounds, n_opened);
    mem_file_close(&f);
}

/* Counts that a large enough file could hold, and that are refused all the same. The file is sparse: its size costs
 * nothing, and neither does the refusal. */
static void refuse(const struct buf *b, off_t file_bytes, const char *says)
{
    struct mem_file f = mem_file_new(b->p, b->n);
    pf_gguf *g;
    if (ftruncate(f.fd, file_bytes) != 0 || pf_gguf_open(&g, f.path, 0) != PF_EFORMAT ||
        !strstr(pf_last_error(), says)) {
        printf("no refusal that says '%s': %s\n", says, pf_last_error());
        n_failed++;
    }
    mem_file_close(&f);
}

static void test_limits(void)
{
    const off_t giant = (off_t)1 << 40;
    const struct {
        uint32_t elem;
        uint64_t n;
        const char *says;
    } arrays[] = {
        { PF_GGUF_U8, (UINT64_C(1) << 30) + 1, "above the limit of 1073741824" },
        { PF_GGUF_U32, UINT64_C(1) << 28, "the metadata takes more than 1073741824 bytes" },
        { PF_GGUF_STRING, UINT64_C(1) << 26, "the metadata takes more than 1073741824 bytes" },
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        struct buf b = { 0 };
        put_header(&b, 3, 1, 1);
        put_array(&b, "t.key", arrays[i].elem, arrays[i].n);
        refuse(&b, giant, arrays[i].says);
        free(b.p);
    }
    struct buf string = { 0 }, keys = { 0 }, tensors = { 0 };
    put_header(&string, 3, 1, 1);
    put_key(&string, "t.key", PF_GGUF_STRING);
    put_u64(&string, (UINT64_C(256) << 20) + 1);
    refuse(&string, giant, "above the limit of 268435456");
    put_header(&keys, 3, 1, 65537);
    refuse(&keys, giant, "n_kv is 65537, above the limit of 65536");
    put_header(&tensors, 3, 262145, 1);
    refuse(&tensors, giant, "n_tensors is 262145, above the limit of 262144");
    free(string.p);
    free(keys.p);
    free(tensors.p);
}

int main(void)
{
    struct buf b = { 0 };
    uint64_t start = UINT64_MAX, end = 0;
    pf_gguf *g;
    put_rich_file(&b, 512, 2);
    if (open_bytes(&g, &b, 0) != PF_OK)
        return 1;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(g, i);
        start = t->offset < start ? t->offset : start;
        end = t->offset + t->n_bytes > end ? t->offset + t->n_bytes : end;
    }
    pf_gguf_close(&g);
    test_no_memory(&b);
    test_no_memory_unordered();
    test_cuts(&b, end);
    test_flips(&b, start, 5000);
    test_limits();
    free(b.p);
    printf("%d failures, %d allocations left\n", n_failed, (int)n_live());
    return n_failed || n_live();
}

/* Dequantisation of every type, at every level this CPU has, bit for bit against stored vectors: TYPE.bin holds raw
 * blocks, TYPE.f32 the values. Found through PFMOE_SHARED, else ../shared beside the source. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_cpu.h"
#include "kernels/kernels.h"

static int n_failed, n_compared;

/* The whole file, NULL if it cannot be read. */
static void *slurp(const char *dir, const char *name, const char *ext, size_t *bytes)
{
    char path[4096];
    int at = snprintf(path, sizeof path, "%s/reference/quant-vectors/dequant/", dir);
    for (; *name && at < (int)sizeof path - 8; name++)
        path[at++] = (char)tolower(*name);
    snprintf(path + at, sizeof path - (size_t)at, "%s", ext);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *data = malloc(1 << 16);
    *bytes = data ? fread(data, 1, 1 << 16, f) : 0;
    fclose(f);
    return data;
}

static void compare(const struct pf_kernels *level, int type, const void *blocks, const float *want, int n)
{
    const char *name = pf_qtype_info((uint32_t)type)->name;
    float *got = malloc((size_t)n * sizeof *got);
    level->dequant[type](blocks, n, got);
    n_compared++;
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0) {
        int i = 0;
        while (memcmp(&got[i], &want[i], sizeof *got) == 0)
            i++;
        printf("%s %s: element %d is %a, the vector says %a\n", level->name, name, i, (double)got[i], (double)want[i]);
        n_failed++;
    }
    free(got);
}

static void check_type(const char *dir, int type)
{
    const struct pf_qtype_info *info = pf_qtype_info((uint32_t)type);
    size_t bytes = 0, value_bytes = 0;
    void *blocks = slurp(dir, info->name, ".bin", &bytes), *values = slurp(dir, info->name, ".f32", &value_bytes);
    int n = (int)(bytes / info->block_bytes * info->block_len);
    if (!blocks || !values || n == 0 || value_bytes != (size_t)n * sizeof(float)) {
        printf("%s: no usable pair of files\n", info->name);
        n_failed++;
    } else {
        for (int i = 0; pf_kernels_level(i); i++)
            if ((pf_kernels_level(i)->need & ~pf_cpu_isa()) == 0 && pf_kernels_level(i)->dequant[type])
                compare(pf_kernels_level(i), type, blocks, values, n);
    }
    free(blocks);
    free(values);
}

int main(void)
{
    char beside[4096];
    const char *dir = getenv("PFMOE_SHARED"), *root = getenv("PFMOE_SOURCE_ROOT");
    size_t bytes;
    if (!dir) {
        snprintf(beside, sizeof beside, "%s/../shared", root ? root : ".");
        dir = beside;
    }
    void *probe = slurp(dir, "q8_0", ".bin", &bytes);
    if (!probe) {
        printf("skipped: no vectors under %s; set PFMOE_SHARED\n", dir);
        return 77;
    }
    free(probe);
    for (int type = 0; type < PF_N_QTYPES; type++)
        if (pf_qtype_info((uint32_t)type) && pf_qtype_info((uint32_t)type)->is_weight)
            check_type(dir, type);
    printf("%d comparisons, %d failed\n", n_compared, n_failed);
    return n_failed != 0;
}

/* The scalar level defines every bit, so its bits may not drift: a hash of its products per type, over fixed inputs
 * with whole and short segments. A change of the order of accumulation, of a scale's product or of a rounding shows
 * here, and so does a compiler that fuses or reorders. New numbers are right only when the contract itself was
 * changed. */
#include <stdio.h>

#include "check.h"

static const uint64_t frozen[PF_N_QTYPES] = {
    [PF_F32] = 0x92eb56116e67aeb4u,
    [PF_F16] = 0x859e1b832fd2f907u,
    [PF_Q4_0] = 0xeb097b05dc348dffu,
    [PF_Q4_1] = 0x1d1a20a6b1e51640u,
    [PF_Q5_0] = 0x7dc3a24303624f88u,
    [PF_Q5_1] = 0x1ce83d73d203ea2au,
    [PF_Q8_0] = 0xb9a023879355d645u,
    [PF_Q2_K] = 0x3adfaa1735fa9591u,
    [PF_Q3_K] = 0x51160a5011272a49u,
    [PF_Q4_K] = 0x6f3ffdf2e92c3c55u,
    [PF_Q5_K] = 0xec69c4af4fb9607eu,
    [PF_Q6_K] = 0x79e8094e0dd63da1u,
    [PF_IQ2_XXS] = 0xd2f1642bd6eb0833u,
    [PF_IQ2_XS] = 0xfc6fa7f0d8e0dc23u,
    [PF_IQ3_XXS] = 0x8324d9a5ff7bb7ccu,
    [PF_IQ1_S] = 0x616f014f974e5641u,
    [PF_IQ4_NL] = 0xa668177373526d48u,
    [PF_IQ3_S] = 0xe816c54b481806acu,
    [PF_IQ2_S] = 0x00a36019350349e3u,
    [PF_IQ4_XS] = 0x350966d9e942b406u,
    [PF_IQ1_M] = 0xb18e78bb57331012u,
    [PF_BF16] = 0xe12f071878c3a1efu,
    [PF_TQ1_0] = 0x6b123ded0e834571u,
    [PF_TQ2_0] = 0x8aadf109436e35eau,
    [PF_MXFP4] = 0xb0e9f92a4ed42aebu,
    [PF_NVFP4] = 0xa592c89da78aa775u,
    [PF_Q1_0] = 0xa29f33c505b21bd6u,
    [PF_Q2_0] = 0x4fdc1eb56084a2a1u,
};

/* FNV-1a, going on from h. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_length(uint64_t h, const struct pf_kernels *scalar, enum pf_qtype type, int n)
{
    enum { ROWS = 16, N_X = 10 };
    struct check_rng rng = { .state = (uint64_t)n };
    float y[ROWS * N_X];
    size_t row_bytes = (size_t)pf_qtype_row_bytes(type, (uint64_t)n);
    uint8_t *w = check_fenced_new(row_bytes * ROWS);
    for (int r = 0; r < ROWS; r++)
        check_weights(&rng, type, r % 2 ? CHECK_MIXED : CHECK_PLAIN, w + (size_t)r * row_bytes, n);
    struct check_acts acts = check_acts_new(&rng, n, N_X, false);
    scalar->tile[type](w, row_bytes, ROWS, n, acts.x, N_X, y, ROWS, NULL);
    check_acts_free(&acts);
    check_fenced_free(w, row_bytes * ROWS);
    return hash(h, y, sizeof y);
}

int main(void)
{
    int n_failed = 0;
    struct pf_kernels scalar;
    pf_kernels_resolve(&scalar, 0);
    for (int type = 0; type < PF_N_QTYPES; type++) {
        const struct pf_qtype_info *info = pf_qtype_info((uint32_t)type);
        if (!info || !info->is_weight)
            continue;
        uint64_t h = hash_length(0xcbf29ce484222325u, &scalar, (enum pf_qtype)type, 2048);
        h = hash_length(h, &scalar, (enum pf_qtype)type, 256 + info->block_len);
        if (h != frozen[type]) {
            printf("[PF_%s] = 0x%016llx, not 0x%016llx\n", info->name, (unsigned long long)h,
                   (unsigned long long)frozen[type]);
            n_failed++;
        }
    }
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}

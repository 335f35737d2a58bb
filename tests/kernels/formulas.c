/* Dequantisation by the formulas of the formats, element by element from byte offsets: a second reading of the layouts,
 * independent of qblocks.h and ref/, so that this needs no stored vectors. Random blocks of all kinds, every type,
 * bit for bit. B is the block, i the element; the look-up tables are checked by what must hold of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "kernels/ref/iq_tables.h"

static int nib(int byte, int high)
{
    return high ? byte >> 4 & 15 : byte & 15;
}

static int bit(uint32_t v, int k)
{
    return (int)(v >> k & 1);
}

static int u16(const uint8_t *p)
{
    return p[0] | p[1] << 8;
}

static uint32_t u32(const uint8_t *p)
{
    return (uint32_t)u16(p) | (uint32_t)u16(p + 2) << 16;
}

/* fp16 by its definition: sign, 5 bits of exponent, 10 of mantissa. */
static float half_value(int h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float f = e == 0 ? ldexpf((float)m, -24) : ldexpf((float)(1024 + m), e - 25);
    return h & 0x8000 ? -f : f;
}

static float h(const uint8_t *p)
{
    return half_value(u16(p));
}

static float e2m1(int code)
{
    static const float magnitude[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };
    return code & 8 ? 0 - magnitude[code & 7] : magnitude[code & 7];
}

static float ue4m3(int v)
{
    int e = v >> 3 & 15, m = v & 7;
    if (v == 0x7f)
        return 0;
    return e == 0 ? ldexpf((float)m, -9) : ldexpf(1 + (float)m / 8, e - 7);
}

static int grid64(uint64_t entry, int j)
{
    return (int)(entry >> 8 * j & 255);
}

static float sign(uint32_t bits, int j)
{
    return bit(bits, j) ? -1.0f : 1.0f;
}

/* Scale (want_min 0) or minimum of group g in the 12 bytes of Q4_K and Q5_K. */
static float six_bits(const uint8_t *S, int g, int want_min)
{
    if (g < 4)
        return (float)(S[g + 4 * want_min] & 63);
    return (float)(nib(S[g + 4], want_min) + 16 * (S[want_min ? g : g - 4] >> 6));
}

static float legacy_value(enum pf_qtype type, const uint8_t *B, int i)
{
    int j = i % 16, up = i >= 16;
    switch (type) {
    case PF_Q4_0:   return (float)(nib(B[2 + j], up) - 8) * h(B);
    case PF_Q4_1:   return (float)nib(B[4 + j], up) * h(B) + h(B + 2);
    case PF_Q5_0:   return (float)(nib(B[6 + j], up) + 16 * bit(u32(B + 2), i) - 16) * h(B);
    case PF_Q5_1:   return (float)(nib(B[8 + j], up) + 16 * bit(u32(B + 4), i)) * h(B) + h(B + 2);
    case PF_IQ4_NL: return h(B) * (float)pf_codebook_iq4[nib(B[2 + j], up)];
    case PF_MXFP4:  return e2m1(nib(B[1 + j], up)) * ldexpf(1, B[0] - 128);
    default:        return (float)(int8_t)B[2 + i] * h(B);     /* Q8_0 */
    }
}

static float kquant_value(enum pf_qtype type, const uint8_t *B, int i)
{
    int H = i / 128, s = i % 128 / 32, l = i % 32, c = i / 64, g = i / 32, t = i / 16;
    switch (type) {
    case PF_Q2_K: {
        int q = B[16 + 32 * H + l] >> 2 * s & 3;
        return (h(B + 80) * (float)(B[t] & 15)) * (float)q - h(B + 82) * (float)(B[t] >> 4);
    }
    case PF_Q3_K: {
        int q = (B[32 + 32 * H + l] >> 2 * s & 3) + 4 * bit(B[l], 4 * H + s) - 4;
        int scale = nib(B[96 + t % 8], t >= 8) + 16 * (B[104 + t % 4] >> 2 * (t / 4) & 3) - 32;
        return (h(B + 108) * (float)scale) * (float)q;
    }
    case PF_Q4_K: {
        int q = nib(B[16 + 32 * c + l], g % 2);
        return (h(B) * six_bits(B + 4, g, 0)) * (float)q - h(B + 2) * six_bits(B + 4, g, 1);
    }
    case PF_Q5_K: {
        int q = nib(B[48 + 32 * c + l], g % 2) + 16 * bit(B[16 + l], g);
        return (h(B) * six_bits(B + 4, g, 0)) * (float)q - h(B + 2) * six_bits(B + 4, g, 1);
    }
    default: {                                                  /* Q6_K */
        int q = nib(B[64 * H + 32 * (s % 2) + l], s >= 2) + 16 * (B[128 + 32 * H + l] >> 2 * s & 3) - 32;
        return (h(B + 208) * (float)(int8_t)B[192 + t]) * (float)q;
    }
    }
}

static float iq_value(enum pf_qtype type, const uint8_t *B, int i)
{
    int b = i / 32, k = i % 32 / 8, j = i % 8, up = i % 32 >= 16;
    switch (type) {
    case PF_IQ2_XXS: {
        uint32_t A = u32(B + 6 + 8 * b);
        float m = (float)grid64(pf_grid_iq2_xxs[B[2 + 8 * b + k]], j);
        return (h(B) * (0.5f + (float)(A >> 28))) * 0.25f * m * sign(pf_signs_even(A >> 7 * k & 127), j);
    }
    case PF_IQ2_XS: {
        int w = u16(B + 2 + 2 * (i / 8));
        float m = (float)grid64(pf_grid_iq2_xs[w & 511], j), sc = (float)nib(B[66 + b], up);
        return (h(B) * (0.5f + sc)) * 0.25f * m * sign(pf_signs_even((unsigned)w >> 9), j);
    }
    case PF_IQ2_S: {
        int index = B[2 + i / 8] + 256 * (B[66 + b] >> 2 * k & 3);
        float sc = (float)nib(B[74 + b], up);
        return (h(B) * (0.5f + sc)) * 0.25f * (float)grid64(pf_grid_iq2_s[index], j) * sign(B[34 + i / 8], j);
    }
    case PF_IQ3_XXS: {
        uint32_t A = u32(B + 66 + 4 * b);
        float m = (float)grid64(pf_grid_iq3_xxs[B[2 + i / 4]], i % 4);
        return (h(B) * (0.5f + (float)(A >> 28))) * 0.5f * m * sign(pf_signs_even(A >> 7 * k & 127), j);
    }
    case PF_IQ3_S: {
        int index = B[2 + i / 4] + 256 * bit(B[66 + b], i / 4 % 8);
        float sc = (float)nib(B[106 + b / 2], b % 2);
        return h(B) * (1 + 2 * sc) * (float)grid64(pf_grid_iq3_s[index], i % 4) * sign(B[74 + i / 8], j);
    }
    case PF_IQ1_S: {
        int H = u16(B + 34 + 2 * b), index = B[2 + i / 8] + 256 * (H >> 3 * k & 7);
        float v = (float)(int8_t)grid64(pf_grid_iq1[index], j), delta = H >> 15 ? -0.125f : 0.125f;
        return (h(B) * (float)(2 * (H >> 12 & 7) + 1)) * (v + delta);
    }
    case PF_IQ1_M: {
        int d = 0, t = i / 16, n = nib(B[32 + t], i / 8 % 2), index = B[i / 8] + 256 * (n & 7);
        for (int c = 0; c < 4; c++)
            d += (u16(B + 48 + 2 * c) >> 12) << 4 * c;
        float v = (float)(int8_t)grid64(pf_grid_iq1[index], j), delta = n & 8 ? -0.125f : 0.125f;
        return (half_value(d) * (float)(2 * (u16(B + 48 + 2 * (t / 4)) >> 3 * (t % 4) & 7) + 1)) * (v + delta);
    }
    default: {                                                  /* IQ4_XS */
        int ls = nib(B[4 + b / 2], b % 2) + 16 * (u16(B + 2) >> 2 * b & 3);
        return (h(B) * (float)(ls - 32)) * (float)pf_codebook_iq4[nib(B[8 + 16 * b + i % 16], up)];
    }
    }
}

static float tq1_0_value(const uint8_t *B, int i)
{
    static const int pow3[5] = { 1, 3, 9, 27, 81 };
    int byte = i < 160 ? i % 32 : i < 240 ? 32 + (i - 160) % 16 : 48 + (i - 240) % 4;
    int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    return (float)(B[byte] * pow3[digit] % 256 * 3 / 256 - 1) * h(B + 52);
}

static float small_value(enum pf_qtype type, const uint8_t *B, int i)
{
    switch (type) {
    case PF_TQ1_0: return tq1_0_value(B, i);
    case PF_TQ2_0: return (float)((B[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3) - 1) * h(B + 64);
    case PF_Q1_0:  return bit(B[2 + i / 8], i % 8) ? h(B) : -h(B);
    case PF_Q2_0:  return (float)((B[2 + i / 4] >> 2 * (i % 4) & 3) - 1) * h(B);
    default:       return e2m1(nib(B[4 + i / 16 * 8 + i % 8], i % 16 >= 8)) * (ue4m3(B[i / 16]) / 2);      /* NVFP4 */
    }
}

static float value(enum pf_qtype type, const uint8_t *B, int i)
{
    float f;
    uint32_t upper = type == PF_BF16 ? (uint32_t)u16(B) << 16 : 0;
    switch (type) {
    case PF_F32:
        memcpy(&f, B, sizeof f);
        return f;
    case PF_BF16:
        memcpy(&f, &upper, sizeof f);
        return f;
    case PF_F16:
        return h(B);
    case PF_Q4_0: case PF_Q4_1: case PF_Q5_0: case PF_Q5_1: case PF_Q8_0: case PF_IQ4_NL: case PF_MXFP4:
        return legacy_value(type, B, i);
    case PF_Q2_K: case PF_Q3_K: case PF_Q4_K: case PF_Q5_K: case PF_Q6_K:
        return kquant_value(type, B, i);
    case PF_TQ1_0: case PF_TQ2_0: case PF_Q1_0: case PF_Q2_0: case PF_NVFP4:
        return small_value(type, B, i);
    default:
        return iq_value(type, B, i);
    }
}

static int check_type(const struct pf_kernels *scalar, enum pf_qtype type)
{
    enum { N = 1024, ROUNDS = 64 };
    const struct pf_qtype_info *info = pf_qtype_info(type);
    uint8_t row[N * 4];
    float got[N];
    struct check_rng rng = { .state = (uint64_t)type };
    for (int round = 0; round < ROUNDS; round++) {
        check_weights(&rng, type, round == 0 ? CHECK_ONES : round == 1 ? CHECK_ZEROS : CHECK_ANY, row, N);
        scalar->dequant[type](row, N, got);
        for (int i = 0; i < N; i++) {
            float want = value(type, row + i / info->block_len * info->block_bytes, i % info->block_len);
            if (memcmp(&got[i], &want, sizeof want) != 0) {
                printf("%s element %d is %a, by the formula %a\n", info->name, i, (double)got[i], (double)want);
                return 1;
            }
        }
    }
    return 0;
}

/* FNV-1a: the numbers are fixed by the formats and cannot be computed, so a hash says that none has changed. */
static uint64_t hash(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t h64 = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h64 = (h64 ^ p[i]) * 0x100000001b3u;
    return h64;
}

static int check_tables(void)
{
    const struct { const char *name; const void *data; size_t bytes; uint64_t hash; } tables[] = {
        { "iq2_xxs", pf_grid_iq2_xxs, sizeof pf_grid_iq2_xxs, 0xbb4ee025b5ac6e8eu },
        { "iq2_xs", pf_grid_iq2_xs, sizeof pf_grid_iq2_xs, 0xc9b1ee61e79909bdu },
        { "iq2_s", pf_grid_iq2_s, sizeof pf_grid_iq2_s, 0x123edd38a3b62b90u },
        { "iq3_xxs", pf_grid_iq3_xxs, sizeof pf_grid_iq3_xxs, 0xdfa5dc83d6a155d5u },
        { "iq3_s", pf_grid_iq3_s, sizeof pf_grid_iq3_s, 0xfa37020c25b44829u },
        { "iq1", pf_grid_iq1, sizeof pf_grid_iq1, 0x6703ed863501ae2eu },
        { "iq4", pf_codebook_iq4, sizeof pf_codebook_iq4, 0x055d06d2d8fa0f75u },
        { "e2m1", pf_codebook_e2m1, sizeof pf_codebook_e2m1, 0x3f0e3c08af1e5eb5u },
    };
    int n_failed = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (hash(tables[i].data, tables[i].bytes) != tables[i].hash) {
            printf("table %s: hash 0x%016llx is not 0x%016llx\n", tables[i].name,
                   (unsigned long long)hash(tables[i].data, tables[i].bytes), (unsigned long long)tables[i].hash);
            n_failed++;
        }
    return n_failed;
}

int main(void)
{
    struct pf_kernels scalar;
    pf_kernels_resolve(&scalar, 0);
    int n_failed = check_tables();
    for (int type = 0; type < PF_N_QTYPES; type++)
        if (pf_qtype_info((uint32_t)type) && pf_qtype_info((uint32_t)type)->is_weight)
            n_failed += check_type(&scalar, (enum pf_qtype)type);
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}

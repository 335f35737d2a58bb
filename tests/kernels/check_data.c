/* Random inputs and fenced buffers for the kernel harness. See check.h. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/qblocks.h"

static void *must(void *p)
{
    if (!p || p == MAP_FAILED) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

uint64_t check_bits(struct check_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int check_int(struct check_rng *rng, int lo, int hi)
{
    return lo + (int)(check_bits(rng) % (uint64_t)(hi - lo + 1));
}

float check_real(struct check_rng *rng, int lo, int hi)
{
    uint64_t bits = check_bits(rng);
    float mantissa = 1.0f + (float)(bits & 0x7fffff) * 0x1p-23f;
    return ldexpf(bits >> 63 ? -mantissa : mantissa, check_int(rng, lo, hi));
}

/* ---- Buffers ---------------------------------------------------------------------------------------------------- */

enum { PAGE = 4096 };

static size_t fenced_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

uint8_t *check_fenced_new(size_t bytes)
{
    size_t inside = fenced_pages(bytes);
    uint8_t *p = must(mmap(NULL, inside + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (mprotect(p + inside, PAGE, PROT_NONE) != 0)
        must(NULL);
    return p + inside - bytes;
}

void check_fenced_free(uint8_t *p, size_t bytes)
{
    munmap(p + bytes - fenced_pages(bytes), fenced_pages(bytes) + PAGE);
}

static const uint32_t guard_word = 0x7fa5c3e1;

float *check_guarded_new(struct check_rng *rng, size_t n)
{
    size_t n_all = n + 2 * CHECK_GUARD + 16;
    uint32_t *all = must(malloc(n_all * sizeof *all));
    for (size_t i = 0; i < n_all; i++)
        all[i] = guard_word;
    /* The first word says how far in the floats begin, so that they can be freed. */
    all[0] = (uint32_t)check_int(rng, CHECK_GUARD + 1, CHECK_GUARD + 15);
    float *p = (float *)(void *)(all + all[0]);
    ((uint32_t *)(void *)p)[-1] = all[0];
    return p;
}

bool check_guarded_intact(const float *p, size_t n)
{
    const uint32_t *words = (const uint32_t *)(const void *)p;
    for (int i = 2; i < CHECK_GUARD; i++)
        if (words[-i] != guard_word)
            return false;
    for (size_t i = n; i < n + CHECK_GUARD; i++)
        if (words[i] != guard_word)
            return false;
    return true;
}

void check_guarded_free(float *p)
{
    uint32_t *words = (uint32_t *)(void *)p;
    free(words - words[-1]);
}

/* ---- Weights ---------------------------------------------------------------------------------------------------- */

/* Where a block keeps its fp16 fields; -1: none. */
static void half_fields(enum pf_qtype type, int at[2])
{
    at[0] = 0, at[1] = -1;
    switch (type) {
    case PF_Q4_1: case PF_Q5_1: case PF_Q4_K: case PF_Q5_K:
        at[1] = 2;
        break;
    case PF_Q2_K:
        at[0] = 80, at[1] = 82;
        break;
    case PF_Q3_K:  at[0] = 108; break;
    case PF_Q6_K:  at[0] = 208; break;
    case PF_TQ1_0: at[0] = 52;  break;
    case PF_TQ2_0: at[0] = 64;  break;
    case PF_MXFP4: case PF_NVFP4: case PF_IQ1_M: case PF_F32: case PF_BF16:
        at[0] = -1;
        break;
    default:
        break;
    }
}

static uint16_t random_half(struct check_rng *rng, enum check_mood mood)
{
    uint16_t sign = (uint16_t)(check_bits(rng) & 0x8000);
    uint16_t usual = (uint16_t)(sign | check_int(rng, 0x1000, 0x3000));
    if (mood == CHECK_PLAIN)
        return usual;
    switch (check_int(rng, 0, 7)) {
    case 0:  return sign;
    case 1:  return sign | (uint16_t)check_int(rng, 1, 0x3ff);
    case 2:  return sign | 0x7bff;
    case 3:  return sign | (uint16_t)check_int(rng, 0, 0x7bff);
    default: return usual;
    }
}

static void set_scales(struct check_rng *rng, enum pf_qtype type, enum check_mood mood, uint8_t *block)
{
    int at[2];
    half_fields(type, at);
    for (int k = 0; k < 2; k++) {
        uint16_t h = random_half(rng, mood);
        if (at[k] >= 0)
            memcpy(block + at[k], &h, sizeof h);
    }
    if (type == PF_MXFP4) {
        int most = mood == CHECK_ANY ? 254 : mood == CHECK_PLAIN ? 130 : 180;
        block[0] = (uint8_t)check_int(rng, mood == CHECK_PLAIN ? 110 : 0, most);
    }
    if (type == PF_NVFP4 && mood == CHECK_PLAIN)
        for (int s = 0; s < 4; s++)
            block[s] = (uint8_t)check_int(rng, 8, 0x60);
    if (type == PF_IQ1_M) {
        struct pf_block_iq1_m *b = (struct pf_block_iq1_m *)(void *)block;
        uint16_t h = random_half(rng, mood);
        for (int k = 0; k < 4; k++)
            b->scales[k] = (uint16_t)((b->scales[k] & 0xfff) | (h >> 4 * k & 15) << 12);
    }
}

static float random_float_weight(struct check_rng *rng, enum check_mood mood)
{
    switch (mood == CHECK_PLAIN ? 9 : mood == CHECK_ZEROS ? 0 : check_int(rng, 0, 9)) {
    case 0:  return check_bits(rng) & 1 ? -0.0f : 0.0f;
    case 1:  return check_real(rng, -140, -126);
    case 2:  return check_real(rng, -20, 20);
    default: return check_real(rng, -8, -1);
    }
}

static void float_weights(struct check_rng *rng, enum pf_qtype type, enum check_mood mood, uint8_t *row, int n)
{
    for (int i = 0; i < n; i++) {
        float f = random_float_weight(rng, mood);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        uint16_t h = type == PF_F16 ? random_half(rng, mood) : (uint16_t)(bits >> 16);
        if (type == PF_F32)
            memcpy(row + (size_t)i * 4, &f, 4);
        else
            memcpy(row + (size_t)i * 2, &h, 2);
    }
}

void check_weights(struct check_rng *rng, enum pf_qtype type, enum check_mood mood, void *row, int n)
{
    const struct pf_qtype_info *info = pf_qtype_info(type);
    uint8_t *p = row;
    if (info->is_float) {
        float_weights(rng, type, mood, p, n);
        return;
    }
    for (int b = 0; b < n / info->block_len; b++, p += info->block_bytes) {
        for (int i = 0; i < info->block_bytes; i++)
            p[i] = mood == CHECK_ONES ? 0xff : mood == CHECK_ZEROS ? 0 : (uint8_t)(check_bits(rng) >> 32);
        set_scales(rng, type, mood, p);
    }
}

/* ---- Activations ------------------------------------------------------------------------------------------------ */

/* The contract of pf_quantise_fn, for one block. */
static void quantise32(const float *x, int8_t *q, float *d, int16_t *s)
{
    float amax = 0;
    for (int i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    bool zero = amax < 0x1p-100f;
    float scale = zero ? 0 : 127 / amax;
    *d = zero ? 0 : amax / 127;
    s[0] = s[1] = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (int8_t)rintf(x[i] * scale);
        s[i / 16] = (int16_t)(s[i / 16] + q[i]);
    }
}

static float random_act(struct check_rng *rng, int kind, int i)
{
    switch (kind) {
    case 4:  return check_bits(rng) & 1 ? 3.0f : -3.0f;                        /* codes of +-127 alone */
    case 5:  return i / 32 % 3 == 0 ? check_real(rng, -6, 2) : 0;              /* blocks of zeros */
    case 6:  return check_real(rng, 20, 29);
    case 7:  return check_real(rng, -104, -96);                                /* around the least block */
    case 8:  return 5.0f;                                                      /* the greatest sums */
    case 9:  return i / 32 % 2 ? check_real(rng, 28, 29) : check_real(rng, -99, -98);
    default: return check_real(rng, -6, 2);
    }
}

/* Bytes of a field with the padding that kernels may load. */
static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64 + 64;
}

/* A row lies as q, d, s, each padded. */
struct check_acts check_acts_new(struct check_rng *rng, int n, int n_x, bool plain)
{
    size_t d_at = padded((size_t)n), s_at = d_at + padded((size_t)n / 32 * 4), row = s_at + padded((size_t)n / 16 * 2);
    struct check_acts a = { .n_x = n_x, .n = n, .f_bytes = (size_t)n * (size_t)n_x * sizeof(float) };
    a.x = must(calloc((size_t)n_x, sizeof *a.x));
    a.q_all = must(aligned_alloc(64, row * (size_t)n_x));
    a.f_fence = check_fenced_new(a.f_bytes);
    for (size_t i = 0; i < row * (size_t)n_x; i++)
        a.q_all[i] = (uint8_t)(check_bits(rng) >> 32);
    for (int j = 0; j < n_x; j++) {
        float *f = (float *)(void *)a.f_fence + (size_t)j * (size_t)n;
        uint8_t *base = a.q_all + (size_t)j * row;
        int8_t *q = (int8_t *)base;
        float *d = (float *)(void *)(base + d_at);
        int16_t *s = (int16_t *)(void *)(base + s_at);
        for (int i = 0; i < n; i++)
            f[i] = random_act(rng, plain ? 0 : j % 10, i);
        for (int b = 0; b < n / 32; b++)
            quantise32(f + b * 32, q + b * 32, d + b, s + b * 2);
        a.x[j] = (struct pf_xrow){ .f = f, .q = q, .d = d, .s = s };
    }
    return a;
}

void check_acts_free(struct check_acts *a)
{
    check_fenced_free(a->f_fence, a->f_bytes);
    free(a->q_all);
    free(a->x);
}

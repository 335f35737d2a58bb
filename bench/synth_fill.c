/* Random bits are valid quants in every type here; only the scales must be sane. So a buffer is filled with random
 * words and the scale fields are written over, which runs at several GB/s. */
#include "synth_fill.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* code_rms: of the product of integer scale and code, both uniform over their range. E.g. Q4_K: sc, m in 0..63, q in
 * 0..15; with dmin = 7.5 d the variance of sc q - 7.5 m is E sc^2 E q^2 - 2 (7.5 E sc)^2 + 7.5^2 E m^2 = 255.6^2. */
static const struct synth_type types[] = {
    { "F32",    0,  1,   4,   0,    0,      NO_MIN, 0 },
    { "F16",    1,  1,   2,   0,    0,      NO_MIN, 0 },
    { "BF16",   30, 1,   2,   0,    0,      NO_MIN, 0 },
    { "Q4_0",   2,  32,  18,  4.64, 0,      NO_MIN, 0 },
    { "Q4_1",   3,  32,  20,  4.61, 0,      2,      -7.5 },
    { "Q5_0",   6,  32,  22,  9.25, 0,      NO_MIN, 0 },
    { "Q5_1",   7,  32,  24,  9.24, 0,      2,      -15.5 },
    { "Q8_0",   8,  32,  34,  73.9, 0,      NO_MIN, 0 },
    { "Q2_K",   10, 256, 84,  13.9, 80,     82,     1.5 },
    { "Q3_K",   11, 256, 110, 43.2, 108,    NO_MIN, 0 },
    { "Q4_K",   12, 256, 144, 255.6, 0,     2,      7.5 },
    { "Q5_K",   13, 256, 176, 521.4, 0,     2,      15.5 },
    { "Q6_K",   14, 256, 210, 1367, 208,    NO_MIN, 0 },
    { "IQ1_S",  19, 256, 50,  7.2,  0,      NO_MIN, 0 },
    { "IQ1_M",  29, 256, 56,  7.19, 0,      NO_MIN, 0 },
    { "IQ2_XXS", 16, 256, 66, 53.3, 0,      NO_MIN, 0 },
    { "IQ2_XS", 17, 256, 74,  55.9, 0,      NO_MIN, 0 },
    { "IQ2_S",  22, 256, 82,  56.3, 0,      NO_MIN, 0 },
    { "IQ3_XXS", 18, 256, 98, 142,  0,      NO_MIN, 0 },
    { "IQ3_S",  21, 256, 110, 140,  0,      NO_MIN, 0 },
    { "IQ4_NL", 20, 32,  18,  67.5, 0,      NO_MIN, 0 },
    { "IQ4_XS", 23, 256, 136, 1250, 0,      NO_MIN, 0 },
    { "TQ1_0",  34, 256, 54,  0.82, 52,     NO_MIN, 0 },
    { "TQ2_0",  35, 256, 66,  1.22, 64,     NO_MIN, 0 },
    { "MXFP4",  39, 32,  17,  5.85, 0,      NO_MIN, 0 },
    { "NVFP4",  40, 64,  36,  2.93, 0,      NO_MIN, 0 },
    { "Q1_0",   41, 128, 18,  1,    0,      NO_MIN, 0 },
    { "Q2_0",   42, 64,  18,  1.22, 0,      NO_MIN, 0 },
};

const char *synth_type_name(size_t i)
{
    return i < sizeof types / sizeof *types ? types[i].name : NULL;
}

const struct synth_type *synth_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcasecmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

void synth_seed(struct synth_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {        /* splitmix64 */
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        r->s[i] = z ^ z >> 31;
    }
}

/* xoshiro256+ (Blackman and Vigna, 2018): its upper bits are what floats take, its lower ones are good enough for
 * quants. */
static uint64_t next(struct synth_rng *r)
{
    uint64_t result = r->s[0] + r->s[3], t = r->s[1] << 17;
    r->s[2] ^= r->s[0];
    r->s[3] ^= r->s[1];
    r->s[1] ^= r->s[2];
    r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = r->s[3] << 45 | r->s[3] >> 19;
    return result;
}

static void random_bytes(struct synth_rng *r, void *out, size_t n)
{
    char *p = out;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x = next(r);
        memcpy(p, &x, 8);
    }
    uint64_t x = next(r);
    memcpy(p, &x, n);
}

/* Nearest fp16 of a number between -65504 and 65504; ties do not matter here. */
static uint16_t to_half(double x)
{
    int e;
    if (x == 0)
        return 0;
    frexp(x, &e);                        /* 2^(e-1) <= |x| < 2^e */
    int exponent = e - 1 < -14 ? -14 : e - 1;
    long m = lrint(ldexp(fabs(x), 10 - exponent));     /* 1024..2048 for normal numbers */
    return (uint16_t)((m >= 1024 ? (exponent + 15) << 10 : 0) + (m >= 1024 ? m - 1024 : m) + (x < 0 ? 0x8000 : 0));
}

/* Nearest UE4M3, a byte of four exponent bits and three of mantissa, of a number between 2^-6 and 448. */
static uint8_t to_ue4m3(double x)
{
    int e;
    frexp(x, &e);
    return (uint8_t)(((e - 1 + 7) << 3) + lrint(ldexp(x, 4 - e)) - 8);
}

void synth_fill_floats(struct synth_rng *r, float mean, float rms, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = mean + rms * 1.7320508f * ((float)(next(r) >> 40) * 0x1p-23f - 1.0f);
}

static void fill_16_bit(struct synth_rng *r, const struct synth_type *t, double rms, uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x;
        uint32_t bits;
        synth_fill_floats(r, 0, (float)rms, &x, 1);
        memcpy(&bits, &x, 4);
        uint16_t half = to_half(x);
        out[i] = strcmp(t->name, "F16") == 0 ? half : (uint16_t)(bits >> 16);
    }
}

/* A block has an exponent, four small floats, an fp16 in four nibbles, or an fp16 and perhaps another. */
static void put_scales(const struct synth_type *t, double d, unsigned char *p, size_t n_bytes)
{
    const bool mxfp4 = strcmp(t->name, "MXFP4") == 0, nvfp4 = strcmp(t->name, "NVFP4") == 0;
    const bool nibbles = strcmp(t->name, "IQ1_M") == 0;
    const uint16_t scale = to_half(d), min = to_half(d * t->min_ratio);
    const uint8_t byte = mxfp4 ? (uint8_t)(128 + lrint(log2(d))) : nvfp4 ? to_ue4m3(d) : 0;
    for (unsigned char *block = p; block < p + n_bytes; block += t->block_bytes) {
        if (mxfp4 || nvfp4) {
            memset(block, byte, nvfp4 ? 4 : 1);
        } else if (nibbles) {
            for (int k = 0; k < 4; k++)
                block[49 + 2 * k] = (uint8_t)((block[49 + 2 * k] & 15) | (scale >> 4 * k & 15) << 4);
        } else {
            memcpy(block + t->d_at, &scale, 2);
            if (t->min_at != NO_MIN)
                memcpy(block + t->min_at, &min, 2);
        }
    }
}

void synth_fill(struct synth_rng *r, const struct synth_type *t, double rms, void *out, size_t n_bytes)
{
    if (t->block_bytes == 4)
        synth_fill_floats(r, 0, (float)rms, out, n_bytes / 4);
    else if (t->block_bytes == 2)
        fill_16_bit(r, t, rms, out, n_bytes / 2);
    else {
        random_bytes(r, out, n_bytes);
        put_scales(t, rms / t->code_rms, out, n_bytes);
    }
}

/* Reads every byte of every tensor and looks for values that no computation survives. See gguf.h.
 *
 * Per type there is one rule: where in a block the scales lie and what they must not be. The quantised codes themselves
 * need no check: every code of every type means something. Read with pread, not through the mapping, so that a bad
 * sector or a file cut short is a status and not a signal. Each chunk is first asked "any bad?" without branches, which
 * compilers vectorise, and searched only when the answer is yes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "gguf/gguf_priv.h"

enum { CHUNK_BYTES = 1 << 20 };

enum rule_kind {
    RULE_NONE,                       /* integers: any value will do */
    RULE_HALVES,                     /* f16 at a and at b; a == b: one f16 */
    RULE_F16, RULE_BF16, RULE_F32, RULE_F64,
    RULE_IQ1_M,                      /* an f16 in four nibbles */
    RULE_E8M0,                       /* exponent byte at 0; 255 is NaN */
    RULE_UE4M3                       /* four bytes at 0; 127 is NaN, bit 7 is no part of it */
};
struct rule {
    enum rule_kind kind;
    uint8_t a, b;
};

#define ONE(at)      { RULE_HALVES, at, at }
#define TWO(at, too) { RULE_HALVES, at, too }

static const struct rule rules[PF_N_QTYPES] = {
    [PF_F32] = { .kind = RULE_F32 },   [PF_F16] = { .kind = RULE_F16 },   [PF_BF16] = { .kind = RULE_BF16 },
    [PF_F64] = { .kind = RULE_F64 },
    [PF_Q4_0] = ONE(0),                [PF_Q4_1] = TWO(0, 2),             [PF_Q5_0] = ONE(0),
    [PF_Q5_1] = TWO(0, 2),             [PF_Q8_0] = ONE(0),                [PF_Q8_1] = TWO(0, 2),
    [PF_Q2_K] = TWO(80, 82),           [PF_Q3_K] = ONE(108),              [PF_Q4_K] = TWO(0, 2),
    [PF_Q5_K] = TWO(0, 2),             [PF_Q6_K] = ONE(208),              [PF_Q8_K] = { .kind = RULE_F32 },
    [PF_IQ2_XXS] = ONE(0),             [PF_IQ2_XS] = ONE(0),              [PF_IQ2_S] = ONE(0),
    [PF_IQ3_XXS] = ONE(0),             [PF_IQ3_S] = ONE(0),               [PF_IQ1_S] = ONE(0),
    [PF_IQ1_M] = { .kind = RULE_IQ1_M }, [PF_IQ4_NL] = ONE(0),            [PF_IQ4_XS] = ONE(0),
    [PF_TQ1_0] = ONE(52),              [PF_TQ2_0] = ONE(64),              [PF_Q1_0] = ONE(0),
    [PF_Q2_0] = ONE(0),
    [PF_MXFP4] = { .kind = RULE_E8M0 }, [PF_NVFP4] = { .kind = RULE_UE4M3 },
};

/* An IEEE number whose exponent bits are all ones is NaN or infinite. */
enum { F16_EXPONENT = 0x7C00, BF16_EXPONENT = 0x7F80 };
#define F32_EXPONENT UINT32_C(0x7F800000)
#define F64_EXPONENT UINT64_C(0x7FF0000000000000)

#define INLINE static inline __attribute__((always_inline))

INLINE uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE unsigned bad_f16(const uint8_t *p, struct rule rule)
{
    (void)rule;
    return (load_u16(p) & F16_EXPONENT) == F16_EXPONENT;
}

INLINE unsigned bad_bf16(const uint8_t *p, struct rule rule)
{
    (void)rule;
    return (load_u16(p) & BF16_EXPONENT) == BF16_EXPONENT;
}

INLINE unsigned bad_f32(const uint8_t *p, struct rule rule)
{
    uint32_t v;
    (void)rule;
    memcpy(&v, p, sizeof v);
    return (v & F32_EXPONENT) == F32_EXPONENT;
}

INLINE unsigned bad_f64(const uint8_t *p, struct rule rule)
{
    uint64_t v;
    (void)rule;
    memcpy(&v, p, sizeof v);
    return (v & F64_EXPONENT) == F64_EXPONENT;
}

INLINE unsigned bad_halves(const uint8_t *p, struct rule rule)
{
    return bad_f16(p + rule.a, rule) | bad_f16(p + rule.b, rule);
}

/* The scale's top nibble is in the top nibble of the fourth u16 at 48, the next in that of the third. */
INLINE unsigned bad_iq1_m(const uint8_t *p, struct rule rule)
{
    (void)rule;
    unsigned high = (unsigned)p[55] >> 4 << 12 | (unsigned)p[53] >> 4 << 8;
    return (high & F16_EXPONENT) == F16_EXPONENT;
}

INLINE unsigned bad_e8m0(const uint8_t *p, struct rule rule)
{
    (void)rule;
    return p[0] == 0xFF;
}

INLINE unsigned bad_ue4m3(const uint8_t *p, struct rule rule)
{
    (void)rule;
    return (p[0] >= 0x7F) | (p[1] >= 0x7F) | (p[2] >= 0x7F) | (p[3] >= 0x7F);
}

/* The first of n blocks that is bad, or n. */
INLINE uint64_t scan(const uint8_t *p, uint64_t n, size_t block_bytes, struct rule rule,
                     unsigned (*bad)(const uint8_t *, struct rule))
{
    unsigned any = 0;
    for (uint64_t i = 0; i < n; i++)
        any |= bad(p + i * block_bytes, rule);
    for (uint64_t i = 0; any && i < n; i++)
        if (bad(p + i * block_bytes, rule))
            return i;
    return n;
}

static uint64_t first_bad(const uint8_t *p, uint64_t n, size_t block_bytes, struct rule rule)
{
    switch (rule.kind) {
    case RULE_NONE:   return n;
    case RULE_F16:    return scan(p, n, 2, rule, bad_f16);
    case RULE_BF16:   return scan(p, n, 2, rule, bad_bf16);
    case RULE_F32:    return block_bytes == 4 ? scan(p, n, 4, rule, bad_f32) : scan(p, n, block_bytes, rule, bad_f32);
    case RULE_F64:    return scan(p, n, 8, rule, bad_f64);
    case RULE_HALVES: return scan(p, n, block_bytes, rule, bad_halves);
    case RULE_IQ1_M:  return scan(p, n, block_bytes, rule, bad_iq1_m);
    case RULE_E8M0:   return scan(p, n, block_bytes, rule, bad_e8m0);
    case RULE_UE4M3:  return scan(p, n, block_bytes, rule, bad_ue4m3);
    }
    return n;
}

static pf_status report(const char *path, const struct pf_tensor *t, uint64_t block)
{
    const struct pf_qtype_info *info = pf_qtype_info(t->type);
    uint64_t element = block * info->block_len, offset = t->offset + block * info->block_bytes;
    if (info->block_len == 1)
        PF_FAIL(PF_EFORMAT, "%s: tensor '%s' at byte %" PRIu64 ": element %" PRIu64 " (%s) is NaN or infinite", path,
                pf_gguf_quote(t->name).s, offset, element, info->name);
    PF_FAIL(PF_EFORMAT, "%s: tensor '%s' at byte %" PRIu64 ": a scale of the block (%s) at element %" PRIu64
            " is NaN, infinite or no code of its type", path, pf_gguf_quote(t->name).s, offset, info->name, element);
}

static pf_status verify_tensor(int fd, const char *path, const struct pf_tensor *t, uint8_t *chunk)
{
    uint64_t block_bytes = pf_qtype_info(t->type)->block_bytes;
    uint64_t n_blocks = t->n_bytes / block_bytes, most = CHUNK_BYTES / block_bytes;
    for (uint64_t done = 0; done < n_blocks;) {
        uint64_t n = n_blocks - done < most ? n_blocks - done : most;
        PF_TRY(pf_gguf_pread(fd, path, chunk, n * block_bytes, t->offset + done * block_bytes));
        uint64_t bad = first_bad(chunk, n, block_bytes, rules[t->type]);
        if (bad < n)
            return report(path, t, done + bad);
        done += n;
    }
    return PF_OK;
}

static pf_status verify_open_shard(const pf_gguf *g, const struct pf_gguf_shard *s, int fd, const struct stat *now,
                                   uint8_t *chunk)
{
    if (!pf_gguf_same_file(now, &s->id))
        PF_FAIL(PF_ECHANGED, "%s: the file changed since it was opened", s->path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);      /* advice: a file system that takes none is fine */
    for (uint64_t i = 0; i < s->n_tensors; i++)
        PF_TRY(verify_tensor(fd, s->path, &g->tensors[s->first_tensor + i], chunk));
    return PF_OK;
}

static pf_status verify_shard(const pf_gguf *g, const struct pf_gguf_shard *s, uint8_t *chunk)
{
    struct stat now;
    int fd;
    PF_TRY(pf_gguf_open_file(s->path, &fd, &now));
    pf_status st = verify_open_shard(g, s, fd, &now, chunk);
    close(fd);
    return st;
}

pf_status pf_gguf_verify(const pf_gguf *g)
{
    pf_status st = PF_OK;
    uint8_t *chunk = pf_alloc(PF_MEM_GGUF, CHUNK_BYTES);
    if (!chunk)
        PF_FAIL(PF_ENOMEM, "%s: no memory to verify the file", pf_gguf_path(g));
    for (int i = 0; i < g->n_shards && st == PF_OK; i++)
        st = verify_shard(g, &g->shards[i], chunk);
    pf_free(chunk);
    return st;
}

/* Typed access to metadata. See gguf.h. Values are copied out with memcpy: elements lie packed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf_priv.h"

#define BAD_VALUE(shard, kv, fmt, ...)                                                                     \
    PF_FAIL(PF_EFORMAT, "%s: key '%s' at byte %" PRIu64 " " fmt, (shard)->path, pf_gguf_quote((kv)->key).s, \
            (kv)->offset, __VA_ARGS__)

const struct pf_gguf_kv *pf_gguf_shard_find(const struct pf_gguf_shard *s, const char *key)
{
    return pf_gguf_index_find(&s->keys, (struct pf_str){ key, strlen(key) });
}

static pf_status missing(const pf_gguf *g, const char *key)
{
    PF_FAIL(PF_EFORMAT, "%s: key '%s' is missing", g->shards[0].path, key);
}

/* "u32", or "an array of u32". */
struct type_text {
    char s[24];
};
static struct type_text describe(const struct pf_gguf_kv *kv)
{
    struct type_text t;
    snprintf(t.s, sizeof t.s, "%s%s", kv->type == PF_GGUF_ARRAY ? "array of " : "", pf_gguf_type_name(kv->elem));
    return t;
}

/* Element i as it lies there. An integer is negative or not; a magnitude above INT64_MAX can only be a u64's. */
struct integer {
    bool is_negative;
    uint64_t bits;                   /* two's complement when negative */
};
static bool integer_at(const struct pf_gguf_kv *kv, uint64_t i, struct integer *out)
{
    const char *p = kv->data;
    int64_t v = 0;
#define LOAD(id, type)                                   \
    case id: {                                           \
        type x;                                          \
        memcpy(&x, p + i * sizeof x, sizeof x);          \
        v = (int64_t)x;                                  \
        break;                                           \
    }
    switch (kv->elem) {
    LOAD(PF_GGUF_U8, uint8_t)
    LOAD(PF_GGUF_I8, int8_t)
    LOAD(PF_GGUF_U16, uint16_t)
    LOAD(PF_GGUF_I16, int16_t)
    LOAD(PF_GGUF_U32, uint32_t)
    LOAD(PF_GGUF_I32, int32_t)
    LOAD(PF_GGUF_U64, uint64_t)
    LOAD(PF_GGUF_I64, int64_t)
    default:
        return false;
    }
#undef LOAD
    *out = (struct integer){ v < 0 && kv->elem != PF_GGUF_U64, (uint64_t)v };
    return true;
}

static pf_status int_in_range(const struct pf_gguf_shard *s, const struct pf_gguf_kv *kv, uint64_t i, int64_t min,
                              int64_t max, int64_t *out)
{
    struct integer v;
    if (!integer_at(kv, i, &v))
        BAD_VALUE(s, kv, "is of type %s where an integer is due", describe(kv).s);
    if (!v.is_negative && v.bits > INT64_MAX)
        BAD_VALUE(s, kv, "is %" PRIu64 ", not from %" PRId64 " to %" PRId64, v.bits, min, max);
    if ((int64_t)v.bits < min || (int64_t)v.bits > max)
        BAD_VALUE(s, kv, "is %" PRId64 ", not from %" PRId64 " to %" PRId64, (int64_t)v.bits, min, max);
    *out = (int64_t)v.bits;
    return PF_OK;
}

pf_status pf_gguf_shard_int_opt(const struct pf_gguf_shard *s, const char *key, int64_t min, int64_t max, int64_t *out,
                                bool *found)
{
    const struct pf_gguf_kv *kv = pf_gguf_shard_find(s, key);
    if (found)
        *found = kv != NULL;
    if (!kv)
        return PF_OK;
    if (kv->type == PF_GGUF_ARRAY)
        BAD_VALUE(s, kv, "is of type %s where an integer is due", describe(kv).s);
    return int_in_range(s, kv, 0, min, max, out);
}

pf_status pf_gguf_int_opt(const pf_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out)
{
    return pf_gguf_shard_int_opt(&g->shards[0], key, min, max, out, NULL);
}

pf_status pf_gguf_int(const pf_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out)
{
    bool found;
    PF_TRY(pf_gguf_shard_int_opt(&g->shards[0], key, min, max, out, &found));
    return found ? PF_OK : missing(g, key);
}

static pf_status real_at(const pf_gguf *g, const struct pf_gguf_kv *kv, uint64_t i, float *out)
{
    double wide = 0;
    float narrow = 0;
    if (kv->elem == PF_GGUF_F64) {
        memcpy(&wide, (const char *)kv->data + i * sizeof wide, sizeof wide);
        narrow = (float)wide;
    } else if (kv->elem == PF_GGUF_F32) {
        memcpy(&narrow, (const char *)kv->data + i * sizeof narrow, sizeof narrow);
    } else {
        BAD_VALUE(&g->shards[0], kv, "is of type %s where a real is due", describe(kv).s);
    }
    if (!isfinite(narrow))
        BAD_VALUE(&g->shards[0], kv, "is %g, not a finite f32", kv->elem == PF_GGUF_F64 ? wide : (double)narrow);
    *out = narrow;
    return PF_OK;
}

static pf_status get_real(const pf_gguf *g, const struct pf_gguf_kv *kv, float *out)
{
    if (kv->type == PF_GGUF_ARRAY)
        BAD_VALUE(&g->shards[0], kv, "is of type %s where a real is due", describe(kv).s);
    return real_at(g, kv, 0, out);
}

pf_status pf_gguf_real_opt(const pf_gguf *g, const char *key, float *out)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    return kv ? get_real(g, kv, out) : PF_OK;
}

pf_status pf_gguf_real(const pf_gguf *g, const char *key, float *out)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    return kv ? get_real(g, kv, out) : missing(g, key);
}

pf_status pf_gguf_bool_opt(const pf_gguf *g, const char *key, bool *out)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    if (!kv)
        return PF_OK;
    if (kv->type != PF_GGUF_BOOL)
        BAD_VALUE(&g->shards[0], kv, "is of type %s where a bool is due", describe(kv).s);
    *out = *(const uint8_t *)kv->data != 0;
    return PF_OK;
}

pf_status pf_gguf_str_opt(const pf_gguf *g, const char *key, struct pf_str *out)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    if (!kv)
        return PF_OK;
    if (kv->type != PF_GGUF_STRING)
        BAD_VALUE(&g->shards[0], kv, "is of type %s where a string is due", describe(kv).s);
    *out = kv->strings[0];
    return PF_OK;
}

pf_status pf_gguf_str(const pf_gguf *g, const char *key, struct pf_str *out)
{
    PF_TRY(pf_gguf_str_opt(g, key, out));
    return pf_gguf_find(g, key) ? PF_OK : missing(g, key);
}

static pf_status int_or_bool(const struct pf_gguf_shard *s, const struct pf_gguf_kv *kv, uint64_t i, int64_t min,
                             int64_t max, int64_t *out)
{
    if (kv->elem != PF_GGUF_BOOL)
        return int_in_range(s, kv, i, min, max, out);
    *out = ((const uint8_t *)kv->data)[i];
    if (*out < min || *out > max)
        BAD_VALUE(s, kv, "is %s where an integer from %" PRId64 " to %" PRId64 " is due", *out ? "true" : "false", min,
                  max);
    return PF_OK;
}

static pf_status check_entries(const pf_gguf *g, const struct pf_gguf_kv *kv, int64_t n)
{
    if (kv->type == PF_GGUF_ARRAY && kv->n != (uint64_t)n)
        BAD_VALUE(&g->shards[0], kv, "has %" PRIu64 " entries where %" PRId64 " are due", kv->n, n);
    return PF_OK;
}

pf_status pf_gguf_ints_opt(const pf_gguf *g, const char *key, int64_t n, int64_t min, int64_t max, int64_t *out,
                           bool *found)
{
    const struct pf_gguf_shard *s = &g->shards[0];
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    if (found)
        *found = kv != NULL;
    if (!kv)
        return PF_OK;
    PF_TRY(check_entries(g, kv, n));
    for (int64_t i = 0; i < n; i++)
        PF_TRY(int_or_bool(s, kv, kv->type == PF_GGUF_ARRAY ? (uint64_t)i : 0, min, max, &out[i]));
    return PF_OK;
}

pf_status pf_gguf_reals_opt(const pf_gguf *g, const char *key, int64_t n, float *out)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    if (!kv)
        return PF_OK;
    PF_TRY(check_entries(g, kv, n));
    for (int64_t i = 0; i < n; i++)
        PF_TRY(real_at(g, kv, kv->type == PF_GGUF_ARRAY ? (uint64_t)i : 0, &out[i]));
    return PF_OK;
}

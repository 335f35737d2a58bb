/* See tensors.h. */
#include "moe/load/tensors.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "moe/model/lora.h"

pf_status pf_model_own(struct pf_model *m, void *p)
{
    if (p) {
        void **grown = pf_realloc(PF_MEM_MODEL, m->owned, (m->n_owned + 1) * sizeof *grown);
        if (grown) {
            m->owned = grown;
            m->owned[m->n_owned++] = p;
            return PF_OK;
        }
        pf_free(p);
    }
    PF_FAIL(PF_ENOMEM, "no memory for the tables of model %s", pf_gguf_path(m->file));
}

const struct pf_tensor *pf_tensor_find(const struct pf_loader *l, const char *name)
{
    const struct pf_tensor *t = pf_gguf_tensor(l->g, name);
    if (t)
        l->seen[t - pf_gguf_tensor_at(l->g, 0)] = true;
    return t;
}

pf_status pf_tensor_missing(const struct pf_loader *l, const char *name)
{
    PF_FAIL(PF_EFORMAT, "tensor %s, which %s models must have, is missing from %s", name, l->m->arch->name,
            pf_gguf_path(l->g));
}

pf_status pf_tensor_check_shape(const struct pf_loader *l, const struct pf_tensor *t, int64_t n0, int64_t n1,
                                int64_t n2)
{
    if (t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1)
        return PF_OK;
    PF_FAIL(PF_EFORMAT, "tensor %s has the shape {%lld, %lld, %lld, %lld}, expected {%lld, %lld, %lld}, in %s",
            pf_gguf_quote(t->name).s, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
            (long long)t->ne[3], (long long)n0, (long long)n1, (long long)n2, pf_gguf_path(l->g));
}

pf_status pf_tensor_wrong_type(const struct pf_loader *l, const struct pf_tensor *t, const char *expected)
{
    PF_FAIL(PF_EFORMAT, "tensor %s is %s, expected %s, in %s", pf_gguf_quote(t->name).s,
            pf_qtype_info(t->type)->name, expected, pf_gguf_path(l->g));
}

const char *pf_tensor_spelling(const struct pf_loader *l, int il, const char *name, const char *other,
                               const char *ending)
{
    char full[PF_TENSOR_BYTES];
    if (il < 0)
        snprintf(full, sizeof full, "%s%s", other, ending);
    else
        snprintf(full, sizeof full, "blk.%d.%s%s", il, other, ending);
    return pf_gguf_tensor(l->g, full) ? other : name;
}

static float half_to_float(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    float magnitude = exponent == 31
                          ? (mantissa ? NAN : INFINITY)
                          : ldexpf((float)(exponent ? mantissa | 1024 : mantissa), (int)(exponent ? exponent : 1) - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static float bf16_to_float(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

pf_status pf_tensor_floats(const struct pf_loader *l, const struct pf_tensor *t, int64_t n, const float **out)
{
    if (t->type == PF_F32) {              /* tensors are aligned to 8 or more, gguf.c checks that */
        *out = (const float *)(const void *)t->data;
        return PF_OK;
    }
    if (t->type != PF_F16 && t->type != PF_BF16)
        return pf_tensor_wrong_type(l, t, "F32, F16 or BF16");
    float *copy = pf_alloc_array(PF_MEM_MODEL, (size_t)n, sizeof *copy);
    PF_TRY(pf_model_own(l->m, copy));
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, t->data + 2 * i, sizeof h);
        copy[i] = t->type == PF_F16 ? half_to_float(h) : bf16_to_float(h);
    }
    *out = copy;
    return PF_OK;
}

pf_status pf_bind_vector(const struct pf_loader *l, enum pf_need need, const char *name, int64_t n0, int64_t n1,
                         const float **out)
{
    *out = NULL;
    if (need == PF_NEVER)
        return PF_OK;
    const struct pf_tensor *t = pf_tensor_find(l, name);
    if (!t)
        return need == PF_REQUIRED ? pf_tensor_missing(l, name) : PF_OK;
    PF_TRY(pf_tensor_check_shape(l, t, n0, n1, 1));
    return pf_tensor_floats(l, t, n0 * n1, out);
}

pf_status pf_layer_vector(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n0,
                          int64_t n1, const float **out)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    return pf_bind_vector(l, need, name, n0, n1, out);
}

pf_status pf_tensor_check_weight(const struct pf_loader *l, const struct pf_tensor *t)
{
    return pf_qtype_info(t->type)->is_weight ? PF_OK : pf_tensor_wrong_type(l, t, "a weight type");
}

static void weight_of(const struct pf_tensor *t, struct pf_weight *w)
{
    *w = (struct pf_weight){ .data = t->data, .type = t->type, .n_in = (int)t->ne[0], .n_out = (int)t->ne[1],
                             .row_bytes = t->row_bytes, .scale = 1.0f };
}

void pf_layer_list(const struct pf_loader *l, int il, struct pf_weight *w)
{
    struct pf_layer *layer = &l->m->layers[il];
    if (!w->data)
        return;
    assert(layer->n_weights < PF_LAYER_WEIGHTS);
    layer->weights[layer->n_weights++] = w;
}

pf_status pf_bind_matrix(const struct pf_loader *l, enum pf_need need, const char *name, int64_t n_in, int64_t n_out,
                         enum pf_need bias, struct pf_weight *w)
{
    char full[PF_TENSOR_BYTES];
    const float *scale;
    *w = (struct pf_weight){ .data = NULL };
    snprintf(full, sizeof full, "%s.weight", name);
    const struct pf_tensor *t = pf_tensor_find(l, full);
    if (!t)
        return need == PF_REQUIRED ? pf_tensor_missing(l, full) : PF_OK;
    PF_TRY(pf_tensor_check_shape(l, t, n_in, n_out, 1));
    PF_TRY(pf_tensor_check_weight(l, t));
    weight_of(t, w);
    if (strcmp(name, PF_EMBEDDING) != 0)
        PF_TRY(pf_lora_bind(l->m, full, n_in, n_out, &w->lora));
    snprintf(full, sizeof full, "%s.bias", name);
    PF_TRY(pf_bind_vector(l, bias, full, n_out, 1, &w->bias));
    snprintf(full, sizeof full, "%s.scale", name);
    bool of_input = l->m->arch->dense_beside && strstr(name, "ffn_gate_inp");        /* {n_in}: see pf_bind_beside */
    PF_TRY(pf_bind_vector(l, of_input ? PF_NEVER : PF_OPTIONAL, full, 1, 1, &scale));
    if (scale)
        w->scale = *scale;
    snprintf(full, sizeof full, "%s.input_scale", name); /* for static activation scales, which we do not use */
    (void)pf_tensor_find(l, full);
    return PF_OK;
}

pf_status pf_layer_whole(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n_in,
                         int64_t n_out, enum pf_need bias, struct pf_weight *w)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    return pf_bind_matrix(l, need, name, n_in, n_out, bias, w);
}

pf_status pf_layer_matrix(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n_in,
                          int64_t n_out, enum pf_need bias, struct pf_weight *w)
{
    PF_TRY(pf_layer_whole(l, need, il, suffix, n_in, n_out, bias, w));
    pf_layer_list(l, il, w);
    return PF_OK;
}

pf_status pf_layer_by_head(const struct pf_loader *l, int il, const char *suffix, int64_t n_in, int64_t n_out,
                           int64_t n_head, struct pf_weight *w)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s.weight", il, suffix);
    const struct pf_tensor *t = pf_tensor_find(l, name);
    *w = (struct pf_weight){ .data = NULL };
    if (!t)
        return PF_OK;
    if (t->ne[1] != n_out * n_head)
        PF_TRY(pf_tensor_check_shape(l, t, n_in, n_out, n_head));
    else
        PF_TRY(pf_tensor_check_shape(l, t, n_in, n_out * n_head, 1));
    PF_TRY(pf_tensor_check_weight(l, t));
    weight_of(t, w);
    w->n_out = (int)(n_out * n_head);
    return PF_OK;
}

struct pf_weight pf_weight_rows(const struct pf_weight *w, int first, int n)
{
    struct pf_weight part = *w;
    part.data = (const uint8_t *)w->data + (uint64_t)first * w->row_bytes;
    part.n_out = n;
    part.bias = w->bias ? w->bias + first : NULL;
    part.lora = NULL;
    return part;
}

pf_status pf_layer_rows(const struct pf_loader *l, int il, const struct pf_weight *w, int first, int n,
                        struct pf_weight *out)
{
    *out = pf_weight_rows(w, first, n);
    pf_layer_list(l, il, out);
    return pf_lora_rows(l->m, w->lora, first, n, &out->lora);
}

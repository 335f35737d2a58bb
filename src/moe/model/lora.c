/* See lora.h. */
#include "moe/model/lora.h"

#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"

enum { NAME_BYTES = 128, MAX_RANK = 65536 };

struct adapter {
    pf_gguf *file;
    float    scale, alpha;               /* alpha 0: scale is not divided by the rank */
    bool    *used;                       /* [n_tensors] */
};

struct pf_adapters {
    int n;
    struct adapter at[];
};

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static bool is(struct pf_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

static pf_status check_keys(const struct pf_model *m, struct adapter *a)
{
    struct pf_str kind = { 0 }, type = { 0 }, arch = { 0 };
    const char *path = pf_gguf_path(a->file);
    PF_TRY(pf_gguf_str_opt(a->file, "general.type", &kind));
    PF_TRY(pf_gguf_str_opt(a->file, "adapter.type", &type));
    PF_TRY(pf_gguf_str_opt(a->file, "general.architecture", &arch));
    if (!is(kind, "adapter") || !is(type, "lora"))
        PF_FAIL(PF_EFORMAT, "%s is no LoRA adapter: general.type is \"%s\" and adapter.type is \"%s\"", path,
                pf_gguf_quote(kind).s, pf_gguf_quote(type).s);
    if (!is(arch, m->arch_name))
        PF_FAIL(PF_EFORMAT, "adapter %s is for %s models, this is a %s model", path, pf_gguf_quote(arch).s,
                m->arch_name);
    return pf_gguf_real_opt(a->file, "adapter.lora.alpha", &a->alpha);
}

static pf_status open_one(const struct pf_model *m, const struct pf_adapter *from, struct adapter *a)
{
    a->scale = from->scale;
    PF_TRY(pf_gguf_open(&a->file, from->path, 0));
    a->used = pf_alloc_array(PF_MEM_MODEL, pf_gguf_n_tensors(a->file), sizeof *a->used);
    if (!a->used)
        PF_FAIL(PF_ENOMEM, "no memory for adapter %s", from->path);
    return check_keys(m, a);
}

pf_status pf_lora_open(struct pf_model *m, const struct pf_adapter *adapters, int n)
{
    if (n <= 0)
        return PF_OK;
    m->adapters = pf_alloc(PF_MEM_MODEL, sizeof *m->adapters + (size_t)n * sizeof m->adapters->at[0]);
    if (!m->adapters)
        PF_FAIL(PF_ENOMEM, "no memory for %d adapters", n);
    for (int i = 0; i < n; i++) {
        m->adapters->n = i + 1;
        PF_TRY(open_one(m, &adapters[i], &m->adapters->at[i]));
    }
    return PF_OK;
}

void pf_lora_close(struct pf_model *m)
{
    for (int i = 0; m->adapters && i < m->adapters->n; i++) {
        pf_gguf_close(&m->adapters->at[i].file);
        pf_free(m->adapters->at[i].used);
    }
    pf_free(m->adapters);
    m->adapters = NULL;
}

pf_status pf_lora_all_used(const struct pf_model *m)
{
    for (int i = 0; m->adapters && i < m->adapters->n; i++)
        for (uint64_t t = 0; t < pf_gguf_n_tensors(m->adapters->at[i].file); t++) {
            struct pf_str name = pf_gguf_tensor_at(m->adapters->at[i].file, t)->name;
            if (!m->adapters->at[i].used[t])
                PF_FAIL(PF_EUNSUPPORTED,
                        "adapter %s has a tensor %s: the model has no such matrix, or not one that can be adapted",
                        pf_gguf_path(m->adapters->at[i].file), pf_gguf_quote(name).s);
        }
    return PF_OK;
}

const pf_gguf *pf_lora_file(const struct pf_model *m, int i)
{
    return m->adapters && i < m->adapters->n ? m->adapters->at[i].file : NULL;
}

float pf_lora_scale(const struct pf_model *m, int i)
{
    return m->adapters->at[i].scale;
}

uint64_t pf_lora_bytes(const struct pf_model *m)
{
    uint64_t bytes = 0;
    for (int i = 0; m->adapters && i < m->adapters->n; i++)
        for (uint64_t t = 0; t < pf_gguf_n_tensors(m->adapters->at[i].file); t++)
            bytes += pf_gguf_tensor_at(m->adapters->at[i].file, t)->n_bytes;
    return bytes;
}

pf_status pf_lora_place(const struct pf_model *m, pf_backend *device)
{
    for (int i = 0; m->adapters && i < m->adapters->n; i++)
        for (uint64_t t = 0; t < pf_gguf_n_tensors(m->adapters->at[i].file); t++) {
            const struct pf_tensor *tensor = pf_gguf_tensor_at(m->adapters->at[i].file, t);
            PF_TRY(device->ops->place(device, tensor->data, tensor->n_bytes));
        }
    for (const struct pf_lora *l = m->flipped; l; l = l->next)      /* made here, not mapped */
        PF_TRY(device->ops->place(device, l->a.data, pf_weight_bytes(&l->a)));
    return PF_OK;
}

pf_status pf_lora_unchanged(const struct pf_model *m)
{
    for (int i = 0; m->adapters && i < m->adapters->n; i++)
        PF_TRY(pf_gguf_unchanged(m->adapters->at[i].file));
    return PF_OK;
}

/* ---- Binding ----------------------------------------------------------------------------------------------------- */

struct pair {
    const struct pf_tensor *a, *b;
};

static const struct pf_tensor *find(struct adapter *a, const char *name, const char *ending)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", name, ending);
    const struct pf_tensor *t = pf_gguf_tensor(a->file, full);
    if (t)
        a->used[t - pf_gguf_tensor_at(a->file, 0)] = true;
    return t;
}

static pf_status check_tensor(const struct adapter *a, const struct pf_tensor *t, int64_t n0, int64_t n1, int64_t n2)
{
    if (!pf_qtype_info(t->type)->is_weight || (n2 > 1 && !pf_qtype_info(t->type)->is_float))
        PF_FAIL(PF_EUNSUPPORTED, "adapter tensor %s is %s, which pfmoe does not take there, in %s",
                pf_gguf_quote(t->name).s, pf_qtype_info(t->type)->name, pf_gguf_path(a->file));
    if (t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1)
        return PF_OK;
    PF_FAIL(PF_EFORMAT, "adapter tensor %s has the shape {%lld, %lld, %lld}, expected {%lld, %lld, %lld}, in %s",
            pf_gguf_quote(t->name).s, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)n0,
            (long long)n1, (long long)n2, pf_gguf_path(a->file));
}

/* The pair for a tensor {n_in, n_out, n}; both NULL if the adapter does not change it. by_rows: A is {rank, n_in}. */
static pf_status find_pair(struct adapter *a, const char *name, int64_t n_in, int64_t n_out, int64_t n, bool by_rows,
                           struct pair *p)
{
    p->a = find(a, name, ".lora_a");
    p->b = find(a, name, ".lora_b");
    if (!p->a && !p->b)
        return PF_OK;
    if (!p->a || !p->b)
        PF_FAIL(PF_EFORMAT, "adapter %s has %s.lora_%c without its other half", pf_gguf_path(a->file), name,
                p->a ? 'a' : 'b');
    int64_t rank = p->b->ne[0];
    if (rank > MAX_RANK)
        PF_FAIL(PF_EUNSUPPORTED, "adapter %s has rank %lld for %s; up to %d are supported", pf_gguf_path(a->file),
                (long long)rank, name, (int)MAX_RANK);
    PF_TRY(check_tensor(a, p->a, by_rows ? rank : n_in, by_rows ? n_in : rank, n));
    return check_tensor(a, p->b, rank, n_out, n);
}

/* Room that a step needs for it: m->lora_rank, m->lora_out. */
static void note_sizes(struct pf_model *m, int64_t rank, int64_t n_out)
{
    m->lora_rank = rank > m->lora_rank ? (int)rank : m->lora_rank;
    m->lora_out = n_out > m->lora_out ? (int)n_out : m->lora_out;
}

static float scale_of(const struct adapter *a, int64_t rank)
{
    return a->alpha != 0 ? a->scale * a->alpha / (float)rank : a->scale;
}

static struct pf_weight weight_of(const struct pf_tensor *t)
{
    return (struct pf_weight){ .data = t->data, .type = t->type, .n_in = (int)t->ne[0], .n_out = (int)t->ne[1],
                               .row_bytes = t->row_bytes, .scale = 1 };
}

static pf_status new_lora(struct pf_model *m, struct pf_lora **out)
{
    *out = pf_alloc(PF_MEM_MODEL, sizeof **out);
    return pf_model_own(m, *out);
}

static pf_status bind_all(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out, bool by_rows,
                          const struct pf_lora **out)
{
    const struct pf_lora **end = out;
    *out = NULL;
    for (int i = 0; m->adapters && i < m->adapters->n; i++) {
        struct adapter *a = &m->adapters->at[i];
        struct pair p;
        struct pf_lora *l;
        PF_TRY(find_pair(a, name, n_in, n_out, 1, by_rows, &p));
        if (!p.a)
            continue;
        PF_TRY(new_lora(m, &l));
        *l = (struct pf_lora){ .a = weight_of(p.a), .b = weight_of(p.b), .scale = scale_of(a, p.b->ne[0]) };
        note_sizes(m, l->b.n_in, n_out);
        *end = l;
        end = &l->next;
    }
    return PF_OK;
}

pf_status pf_lora_bind(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out, const struct pf_lora **out)
{
    return bind_all(m, name, n_in, n_out, false, out);
}

/* As the output matrix the embedding adds A (B' x): B' is made here, A is used as it is. */
static pf_status flip(struct pf_model *m, const struct pf_lora *l, struct pf_lora *out)
{
    pf_backend *cpu = m->cpu;
    int rank = l->b.n_in, n_embd = l->b.n_out;
    float *turned = pf_alloc_array(PF_MEM_MODEL, (size_t)rank * (size_t)n_embd, sizeof *turned);
    PF_TRY(pf_model_own(m, turned));
    float *row = pf_alloc_array(PF_MEM_MODEL, (size_t)rank, sizeof *row);
    PF_TRY(pf_model_own(m, row));
    for (int32_t i = 0; i < n_embd; i++) {
        PF_TRY(cpu->ops->embed(cpu, &l->b, &i, 1, row));
        for (int r = 0; r < rank; r++)
            turned[(size_t)r * (size_t)n_embd + (size_t)i] = row[r];
    }
    *out = (struct pf_lora){ .a = { .data = turned, .type = PF_F32, .n_in = n_embd, .n_out = rank,
                                    .row_bytes = (uint64_t)n_embd * sizeof *turned, .scale = 1 },
                             .b = l->a, .scale = l->scale };
    return PF_OK;
}

pf_status pf_lora_bind_embedding(struct pf_model *m, const char *name, int64_t n_embd, int64_t n_vocab,
                                 const struct pf_lora **out, const struct pf_lora **flipped)
{
    const struct pf_lora **end = flipped;
    PF_TRY(bind_all(m, name, n_vocab, n_embd, true, out));
    *flipped = NULL;
    for (const struct pf_lora *l = *out; l; l = l->next) {
        struct pf_lora *f;
        PF_TRY(new_lora(m, &f));
        PF_TRY(flip(m, l, f));
        *end = f;
        end = &f->next;
    }
    return PF_OK;
}

pf_status pf_lora_rows(struct pf_model *m, const struct pf_lora *of, int first, int n, const struct pf_lora **out)
{
    const struct pf_lora **end = out;
    *out = NULL;
    for (; of; of = of->next) {
        struct pf_lora *l;
        PF_TRY(new_lora(m, &l));
        *l = *of;
        l->next = NULL;
        l->b.data = (const uint8_t *)of->b.data + (uint64_t)first * of->b.row_bytes;
        l->b.n_out = n;
        *end = l;
        end = &l->next;
    }
    return PF_OK;
}

/* Each expert's rows from `first` on of a tensor {.., .., n_expert}. */
static pf_status slices(struct pf_model *m, const struct pf_tensor *t, struct pf_expert_weight *w)
{
    const uint8_t **data = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_expert, sizeof *data);
    PF_TRY(pf_model_own(m, data));
    for (int e = 0; e < m->n_expert; e++)
        data[e] = t->data + (uint64_t)e * (uint64_t)t->ne[1] * t->row_bytes;
    *w = (struct pf_expert_weight){ .data = data, .type = t->type, .n_in = (int)t->ne[0], .n_out = (int)t->ne[1],
                                    .row_bytes = t->row_bytes };
    return PF_OK;
}

static pf_status new_expert_lora(struct pf_model *m, struct pf_expert_lora **out)
{
    *out = pf_alloc(PF_MEM_MODEL, sizeof **out);
    return pf_model_own(m, *out);
}

pf_status pf_lora_bind_experts(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out,
                               const struct pf_expert_lora **out)
{
    const struct pf_expert_lora **end = out;
    int rank = 0;
    *out = NULL;
    for (int i = 0; m->adapters && i < m->adapters->n; i++) {
        struct adapter *a = &m->adapters->at[i];
        struct pair p;
        struct pf_expert_lora *l;
        PF_TRY(find_pair(a, name, n_in, n_out, m->n_expert, false, &p));
        if (!p.a)
            continue;
        PF_TRY(new_expert_lora(m, &l));
        PF_TRY(slices(m, p.a, &l->a));
        PF_TRY(slices(m, p.b, &l->b));
        l->scale = scale_of(a, p.b->ne[0]);
        rank += l->b.n_in;
        *end = l;
        end = &l->next;
    }
    m->lora_expert_rank = rank > m->lora_expert_rank ? rank : m->lora_expert_rank;
    return PF_OK;
}

pf_status pf_lora_expert_rows(struct pf_model *m, const struct pf_expert_lora *of, int first, int n,
                              const struct pf_expert_lora **out)
{
    const struct pf_expert_lora **end = out;
    *out = NULL;
    for (; of; of = of->next) {
        struct pf_expert_lora *l;
        const uint8_t **data = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_expert, sizeof *data);
        PF_TRY(pf_model_own(m, data));
        PF_TRY(new_expert_lora(m, &l));
        for (int e = 0; e < m->n_expert; e++)
            data[e] = of->b.data[e] + (uint64_t)first * of->b.row_bytes;
        *l = *of;
        l->next = NULL;
        l->b.data = data;
        l->b.n_out = n;
        *end = l;
        end = &l->next;
    }
    return PF_OK;
}

/* See identity.h. */
#define _GNU_SOURCE
#include "moe/model/identity.h"

#include <string.h>
#include <sys/mman.h>

#include "moe/model/lora.h"

enum { PAGE = 4096, PAGES = 16, PAGES_PER_SLICE = 2 };

/* Place i of n that are spread over the tensor, the first at its beginning and the last at its end. */
static const uint8_t *place(const struct pf_tensor *t, uint64_t i, uint64_t n)
{
    uint64_t last = t->n_bytes - PAGE;
    return t->data + last / (n - 1) * i + last % (n - 1) * i / (n - 1);
}

static uint64_t n_places(const struct pf_tensor *t)
{
    return PAGES + PAGES_PER_SLICE * (uint64_t)(t->ne[2] * t->ne[3] - 1);
}

static bool is_whole(const struct pf_tensor *t)
{
    return t->n_bytes <= PAGES * PAGE;
}

/* Asks for what will be read, so that a cold drive has all of it to do at once. */
static void ask_for(const void *p, uint64_t n)
{
    uintptr_t begin = (uintptr_t)p / PAGE * PAGE, end = (uintptr_t)p + n;
    madvise((void *)begin, end - begin, MADV_WILLNEED);
}

static void ask_for_samples(const struct pf_tensor *t)
{
    if (is_whole(t))
        ask_for(t->data, t->n_bytes);
    for (uint64_t i = 0; !is_whole(t) && i < n_places(t); i++)
        ask_for(place(t, i, n_places(t)), PAGE);
}

static void add_tensor(struct pf_digester *h, const struct pf_tensor *t)
{
    pf_digest_add(h, &t->name.n, sizeof t->name.n);
    pf_digest_add(h, t->name.p, t->name.n);
    pf_digest_add(h, &t->type, sizeof t->type);
    pf_digest_add(h, t->ne, sizeof t->ne);
    if (is_whole(t))
        pf_digest_add(h, t->data, t->n_bytes);
    for (uint64_t i = 0; !is_whole(t) && i < n_places(t); i++)
        pf_digest_add(h, place(t, i, n_places(t)), PAGE);
}

static bool begins(struct pf_str s, const char *with)
{
    size_t n = strlen(with);
    return s.n > n && memcmp(s.p, with, n) == 0;
}

static size_t elem_bytes(enum pf_gguf_type type)
{
    static const size_t bytes[] = { [PF_GGUF_U8] = 1, [PF_GGUF_I8] = 1, [PF_GGUF_BOOL] = 1, [PF_GGUF_U16] = 2,
                                    [PF_GGUF_I16] = 2, [PF_GGUF_U32] = 4, [PF_GGUF_I32] = 4, [PF_GGUF_F32] = 4,
                                    [PF_GGUF_U64] = 8, [PF_GGUF_I64] = 8, [PF_GGUF_F64] = 8 };
    return bytes[type];
}

static void add_kv(struct pf_digester *h, const struct pf_gguf_kv *kv)
{
    pf_digest_add(h, &kv->key.n, sizeof kv->key.n);
    pf_digest_add(h, kv->key.p, kv->key.n);
    pf_digest_add(h, &kv->elem, sizeof kv->elem);
    pf_digest_add(h, &kv->n, sizeof kv->n);
    if (kv->elem != PF_GGUF_STRING)
        pf_digest_add(h, kv->data, kv->n * elem_bytes(kv->elem));
    for (uint64_t i = 0; kv->elem == PF_GGUF_STRING && i < kv->n; i++) {
        pf_digest_add(h, &kv->strings[i].n, sizeof kv->strings[i].n);
        pf_digest_add(h, kv->strings[i].p, kv->strings[i].n);
    }
}

/* Adds the metadata that can change a result. A tokenizer's texts change none, so only the number of tokens counts. */
static void add_file(struct pf_digester *h, const pf_gguf *g, const char *arch)
{
    for (uint64_t i = 0; i < pf_gguf_n_kv(g); i++) {
        const struct pf_gguf_kv *kv = pf_gguf_kv_at(g, i);
        if (begins(kv->key, "general.") || begins(kv->key, "adapter.") || begins(kv->key, arch))
            add_kv(h, kv);
    }
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g); i++)
        ask_for_samples(pf_gguf_tensor_at(g, i));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g); i++)
        add_tensor(h, pf_gguf_tensor_at(g, i));
}

/* Picks that take the router's place make other keys and values. */
static void add_injected(struct pf_digester *h, const struct pf_trace *t)
{
    size_t n = (size_t)t->n_tokens * (size_t)t->n_layers * (size_t)t->n_used;
    if (n == 0)
        return;
    pf_digest_add(h, t->experts, n * sizeof *t->experts);
    pf_digest_add(h, t->weights, n * sizeof *t->weights);
}

static pf_status unchanged(const struct pf_model *m)
{
    PF_TRY(pf_gguf_unchanged(m->file));
    return pf_lora_unchanged(m);
}

static pf_status find_out(struct pf_model *m)
{
    struct pf_digester h;
    PF_TRY(unchanged(m));
    pf_digest_begin(&h);
    add_file(&h, m->file, m->arch->name);
    for (int i = 0; pf_lora_file(m, i); i++) {
        float scale = pf_lora_scale(m, i);
        pf_digest_add(&h, &scale, sizeof scale);
        add_file(&h, pf_lora_file(m, i), m->arch->name);
    }
    add_injected(&h, &m->injected);
    PF_TRY(unchanged(m));
    m->identity = pf_digest_of(&h);
    return PF_OK;
}

pf_status pf_model_identity(struct pf_model *m, struct pf_digest *out)
{
    pthread_mutex_lock(&m->identity_lock);
    pf_status st = m->identity.low || m->identity.high ? PF_OK : find_out(m);
    *out = m->identity;
    pthread_mutex_unlock(&m->identity_lock);
    return st;
}

/* Models that draft for it have identities of their own, and their sessions are saved, too. */
pf_status pf_model_identify(pf_model *m)
{
    struct pf_digest any;
    PF_TRY(pf_model_identity(m, &any));
    PF_TRY(m->nextn ? pf_model_identity(m->nextn, &any) : PF_OK);
    return m->second ? pf_model_identity(m->second, &any) : PF_OK;
}

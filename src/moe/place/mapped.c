/* See mapped.h. */
#define _GNU_SOURCE
#include "moe/place/mapped.h"

#include <string.h>
#include <sys/mman.h>

#include "base/pf_mem.h"

enum { PAGE = 4096, NO_LAYER = -1, EXPERTS = -2 };

struct pf_mapped {
    int  *kind;                          /* [n_tensors] its layer; NO_LAYER; EXPERTS: a matrix of all
                                            experts of a layer */
    bool *asked;                         /* [n_layer * n_expert] */
    int   n_entered;                     /* the rest of layers before this one has been asked for */
};

static void advise(const void *data, uint64_t bytes, int advice)
{
    uintptr_t begin = (uintptr_t)data / PAGE * PAGE;
    madvise((void *)begin, (uintptr_t)data + bytes - begin, advice);
}

static int kind_of(const struct pf_tensor *t)
{
    static const char experts[] = "_exps.weight";
    if (memmem(t->name.p, t->name.n, experts, sizeof experts - 1))
        return EXPERTS;
    return pf_tensor_layer(t);               /* -1, NO_LAYER: none */
}

/* The rest of a layer; NO_LAYER: embedding and output. */
static void ask_layer(const struct pf_model *m, int il)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (m->mapped->kind[i] == il && t->data != m->embed.data)        /* of which rows are read here and there */
            advise(t->data, t->n_bytes, MADV_WILLNEED);
    }
}

pf_status pf_mapped_open(struct pf_model *m)
{
    size_t n_tensors = (size_t)pf_gguf_n_tensors(m->file), n_experts = (size_t)m->n_layer * (size_t)m->n_expert;
    m->mapped = pf_alloc(PF_MEM_MODEL, sizeof *m->mapped);
    if (m->mapped) {
        m->mapped->kind = pf_alloc_array(PF_MEM_MODEL, n_tensors, sizeof *m->mapped->kind);
        m->mapped->asked = pf_alloc_array(PF_MEM_MODEL, n_experts, sizeof *m->mapped->asked);
    }
    if (!m->mapped || !m->mapped->kind || !m->mapped->asked) {
        pf_mapped_close(m);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of what %s needs when", pf_gguf_path(m->file));
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        m->mapped->kind[i] = kind_of(t);
        if (m->mapped->kind[i] == EXPERTS)
            advise(t->data, t->n_bytes, MADV_RANDOM);
    }
    return PF_OK;
}

void pf_mapped_close(struct pf_model *m)
{
    if (!m->mapped)
        return;
    pf_free(m->mapped->kind);
    pf_free(m->mapped->asked);
    pf_free(m->mapped);
    m->mapped = NULL;
}

void pf_mapped_enter(struct pf_model *m, int il)
{
    for (; m->mapped->n_entered <= il + 1 && m->mapped->n_entered < m->n_layer; m->mapped->n_entered++) {
        ask_layer(m, m->mapped->n_entered);
        if (m->mapped->n_entered == m->n_layer - 1)
            ask_layer(m, NO_LAYER);
    }
}

void pf_mapped_experts(struct pf_model *m, int il, const struct pf_experts_op *e)
{
    const struct pf_expert_weight *w[] = { e->gate, e->up, e->down };
    bool *asked = m->mapped->asked + (size_t)il * (size_t)m->n_expert;
    for (int p = 0; p < e->rows * e->n_used; p++) {
        int x = e->picks[p];
        for (int i = 0; !asked[x] && i < 3; i++)
            advise(w[i]->data[x], pf_expert_weight_bytes(w[i]), MADV_WILLNEED);
        asked[x] = true;
    }
}

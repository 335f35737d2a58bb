/* See mapped.h. */
#define _GNU_SOURCE
#include "moe/place/mapped.h"

#include <string.h>
#include <sys/mman.h>

#include "base/pf_mem.h"

enum { PAGE = 4096, NO_LAYER = -1, EXPERTS = -2 };

struct mapped {
    struct pf_placement base;
    int  *kind;                          /* [n_tensors] its layer; NO_LAYER; PF_UNUSED; EXPERTS: a matrix of
                                            all experts of a layer */
    bool *asked;                         /* [n_layer * n_expert] */
    int   n_entered;                     /* the rest of layers before this one has been asked for */
};

static void advise(const void *data, uint64_t bytes, int advice)
{
    uintptr_t begin = (uintptr_t)data / PAGE * PAGE;
    madvise((void *)begin, (uintptr_t)data + bytes - begin, advice);
}

static int kind_of(const struct pf_model *m, const struct pf_tensor *t)
{
    static const char experts[] = "_exps.weight";
    int il = pf_tensor_layer(m, t);          /* -1, NO_LAYER: none */
    if (il != PF_UNUSED && memmem(t->name.p, t->name.n, experts, sizeof experts - 1))
        return EXPERTS;
    return il;
}

static struct mapped *mapped_of(struct pf_placement *p)
{
    return (struct mapped *)p;
}

/* The rest of a layer; NO_LAYER: embedding and output. */
static void ask_layer(const struct mapped *r, int il)
{
    const struct pf_model *m = r->base.m;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        bool by_rows = t->data == m->embed.data || pf_model_gathers(m, t);
        if (r->kind[i] == il && !by_rows)
            advise(t->data, t->n_bytes, MADV_WILLNEED);
    }
}

static void mapped_close(struct pf_placement *p)
{
    struct mapped *r = mapped_of(p);
    pf_free(r->kind);
    pf_free(r->asked);
    pf_free(r);
}

static pf_status mapped_enter(struct pf_placement *p, int il)
{
    struct mapped *r = mapped_of(p);
    for (; r->n_entered <= il + 1 && r->n_entered < p->m->n_layer; r->n_entered++) {
        ask_layer(r, r->n_entered);
        if (r->n_entered == p->m->n_layer - 1)
            ask_layer(r, NO_LAYER);
    }
    return PF_OK;
}

static pf_status mapped_want(struct pf_placement *p, int il, const struct pf_experts_op *e)
{
    const struct pf_expert_weight *w[] = { e->gate, e->up, e->down };
    bool *asked = mapped_of(p)->asked + (size_t)il * (size_t)p->m->n_expert;
    for (int i = 0; i < e->rows * e->n_used; i++) {
        int x = e->picks[i];
        for (int part = 0; !asked[x] && part < 3; part++)
            advise(w[part]->data[x], pf_expert_weight_bytes(w[part]), MADV_WILLNEED);
        asked[x] = true;
    }
    return PF_OK;
}

static bool mapped_maps(const struct pf_placement *p, const struct pf_tensor *t)
{
    (void)p;
    (void)t;
    return true;
}

static const struct pf_place_ops ops = { .enter = mapped_enter, .want = mapped_want,
                                         .maps = mapped_maps, .close = mapped_close };

pf_status pf_mapped_open(struct pf_placement **out, struct pf_model *m, int first)
{
    size_t n_tensors = (size_t)pf_gguf_n_tensors(m->file), n_experts = (size_t)m->n_layer * (size_t)m->n_expert;
    struct mapped *r = pf_alloc(PF_MEM_MODEL, sizeof *r);
    *out = NULL;
    if (r) {
        r->base = (struct pf_placement){ .ops = &ops, .m = m, .device = m->cpu, .cut = pf_cut_all(m) };
        r->n_entered = first;
        r->kind = pf_alloc_array(PF_MEM_MODEL, n_tensors, sizeof *r->kind);
        r->asked = pf_alloc_array(PF_MEM_MODEL, n_experts, sizeof *r->asked);
    }
    if (!r || !r->kind || !r->asked) {
        if (r)
            mapped_close(&r->base);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of what %s needs when", pf_gguf_path(m->file));
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        r->kind[i] = kind_of(m, t);
        if (r->kind[i] == EXPERTS || pf_model_gathers(m, t))
            advise(t->data, t->n_bytes, MADV_RANDOM);
    }
    *out = &r->base;
    return PF_OK;
}

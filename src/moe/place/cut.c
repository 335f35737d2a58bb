/* See cut.h. */
#include "moe/place/cut.h"

#include "base/pf_mem.h"
#include "moe/run/session.h"

struct pf_cut pf_cut_make(const struct pf_cut_sizes *s, uint64_t room)
{
    struct pf_cut cut = { .n_layers = 0 };
    uint64_t used = s->fixed;
    if (used > room)
        return cut;
    cut.output = s->output <= room - used;
    used += cut.output ? s->output : 0;
    while (cut.n_layers < s->n_layers && s->layers[cut.n_layers] <= room - used)
        used += s->layers[cut.n_layers++];
    cut.whole = cut.output && cut.n_layers == s->n_layers && s->outside - s->output <= room - used;
    return cut;
}

/* What a layer takes of a session beside what any takes. */
static pf_status session_layer(const struct pf_model *m, const struct pf_session_opts *so, int il, uint64_t fixed,
                               uint64_t *bytes)
{
    uint64_t kv, work;
    PF_TRY(pf_session_part_bytes(m, so, m->backend, il, il + 1, &kv, &work));
    *bytes = kv + work - fixed;
    return PF_OK;
}

static pf_status sizes_of(const struct pf_model *m, const struct pf_session_opts *so, uint64_t *layers,
                          struct pf_cut_sizes *out)
{
    uint64_t kv, fixed;
    PF_TRY(pf_session_part_bytes(m, so, m->backend, 0, 0, &kv, &fixed));
    *out = (struct pf_cut_sizes){ .fixed = fixed + PF_CUT_SPARE_BYTES + pf_model_extra_bytes(m),
                                  .output = pf_weight_bytes(&m->output), .layers = layers, .n_layers = m->n_layer };
    for (int il = 0; il < m->n_layer; il++)
        PF_TRY(session_layer(m, so, il, fixed, &layers[il]));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        int il = pf_tensor_layer(t);
        *(il >= 0 && il < m->n_layer ? &layers[il] : &out->outside) += t->n_bytes;
    }
    return PF_OK;
}

pf_status pf_cut_of(const struct pf_model *m, const struct pf_session_opts *so, uint64_t room, bool streaming,
                    struct pf_cut *out, uint64_t *least)
{
    struct pf_cut_sizes sizes;
    uint64_t *layers = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *layers);
    if (!layers)
        PF_FAIL(PF_ENOMEM, "no memory for the sizes of %d layers", m->n_layer);
    pf_status st = sizes_of(m, so, layers, &sizes);
    *least = st == PF_OK ? sizes.fixed + layers[0] : 0;
    if (st == PF_OK)
        *out = pf_cut_make(&sizes, room);
    pf_free(layers);
    PF_TRY(st);
    if (streaming && out->n_layers > m->n_layer / 2) {
        out->n_layers = m->n_layer / 2;
        out->whole = false;
    }
    return PF_OK;
}

static pf_status place(struct pf_model *m, const void *data, uint64_t bytes)
{
    m->cut.bytes += bytes;
    return m->backend->ops->place(m->backend, data, bytes);
}

/* The output matrix may be the embedding, too, which is one of the tensors. */
static pf_status place_cut(struct pf_model *m)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (m->cut.whole || pf_is_on_device(m, pf_tensor_layer(t)))
            PF_TRY(place(m, t->data, t->n_bytes));
    }
    if (m->cut.output && !m->cut.whole)
        PF_TRY(place(m, m->output.data, pf_weight_bytes(&m->output)));
    return pf_model_place_extra(m);
}

pf_status pf_split_open(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_cut cut;
    uint64_t least, room = m->backend->ops->room(m->backend);
    PF_TRY(pf_cut_of(m, NULL, room, o->streaming, &cut, &least));
    if (cut.n_layers == 0 && !cut.output)
        PF_FAIL(PF_ENOMEM, "its first layer needs %llu MB of the GPU's memory, which has %llu",
                (unsigned long long)((least + 999999) / 1000000), (unsigned long long)(room / 1000000));
    m->cut = cut;
    PF_TRY(place_cut(m));
    if (cut.whole)
        return PF_OK;
    pf_model_logf(m, PF_LOG_INFO, "the GPU has room for %d of %d layers%s; the CPU computes the rest", cut.n_layers,
                  m->n_layer, cut.output ? " and the output" : "");
    return pf_residency_open(m, o, setup);
}

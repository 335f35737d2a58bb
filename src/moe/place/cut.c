/* See cut.h. */
#include "moe/place/cut.h"

#include "base/pf_mem.h"
#include "moe/place/on_device.h"
#include "moe/place/planning.h"

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

/* Bytes that a layer adds to a session, beyond `fixed`, the bytes of a session without layers. */
static pf_status session_layer(const struct pf_model *m, const pf_backend *b, const struct pf_session_opts *so, int il,
                               uint64_t fixed, uint64_t *bytes)
{
    uint64_t kv, work;
    PF_TRY(pf_session_part_bytes(m, so, b, il, il + 1, &kv, &work));
    *bytes = kv + work - fixed;
    return PF_OK;
}

static pf_status sizes_of(const struct pf_model *m, const pf_backend *b, const struct pf_session_opts *so,
                          uint64_t *layers, struct pf_cut_sizes *out)
{
    uint64_t kv, fixed;
    PF_TRY(pf_session_part_bytes(m, so, b, 0, 0, &kv, &fixed));
    *out = (struct pf_cut_sizes){ .fixed = fixed + PF_CUT_SPARE_BYTES + pf_model_extra_bytes(m),
                                  .output = pf_weight_bytes(&m->output), .layers = layers, .n_layers = m->n_layer };
    for (int il = 0; il < m->n_layer; il++)
        PF_TRY(session_layer(m, b, so, il, fixed, &layers[il]));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        int il = pf_tensor_layer(m, t);
        if (il == PF_UNUSED || pf_model_gathers(m, t))
            continue;
        *(il >= 0 && il < m->n_layer ? &layers[il] : &out->outside) += t->n_bytes;
    }
    return PF_OK;
}

pf_status pf_cut_of(const struct pf_model *m, const pf_backend *b, const struct pf_session_opts *so, uint64_t room,
                    bool streaming, struct pf_cut *out, uint64_t *least)
{
    struct pf_cut_sizes sizes;
    uint64_t *layers = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *layers);
    if (!layers)
        PF_FAIL(PF_ENOMEM, "no memory for the sizes of %d layers", m->n_layer);
    pf_status st = sizes_of(m, b, so, layers, &sizes);
    *least = st == PF_OK ? sizes.fixed + layers[0] : 0;
    if (st == PF_OK)
        *out = pf_cut_make(&sizes, room);
    pf_free(layers);
    PF_TRY(st);
    if (!out->whole && (m->n_shared_kv || m->per_layer.width))
        out->n_layers = 0;                /* layers need what earlier ones left on their unit */
    if (streaming && out->n_layers > m->n_layer / 2) {
        out->n_layers = m->n_shared_kv || m->per_layer.width ? 0 : m->n_layer / 2;
        out->whole = false;
    }
    return PF_OK;
}

/* ---- The placement ----------------------------------------------------------------------------------------------- */

struct cut {
    struct pf_placement base;
};

/* Whether the weights of layer il are nowhere but on the device, as long as it is there. */
static bool is_on_device(const struct pf_placement *p, int il)
{
    return !p->cut.whole && il >= 0 && il < p->cut.n_layers;
}

static pf_status cut_enter(struct pf_placement *p, int il)
{
    return il < p->cut.n_layers ? PF_OK : pf_place_enter(p->under, il);
}

static void cut_leave(struct pf_placement *p, int il)
{
    if (il >= p->cut.n_layers)
        pf_place_leave(p->under, il);
}

static void cut_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    (void)well;
    if (p->cut.whole)
        pf_on_device_note(p, begun_ns);
}

static bool cut_maps(const struct pf_placement *p, const struct pf_tensor *t)
{
    return !is_on_device(p, pf_tensor_layer(p->m, t)) && pf_place_maps(p->under, t);
}

/* The layers whose weights the device has, as far as it has room for the session's part of them, too. */
static struct pf_cut cut_for(const struct pf_placement *p, const struct pf_session_opts *o)
{
    struct pf_cut cut = p->cut;
    uint64_t used = cut.whole ? 0 : PF_CUT_SPARE_BYTES, room = p->device->ops->room(p->device);
    for (int il = 0; il < p->cut.n_layers; il++) {
        used += pf_kv_bytes_of(p->m, il, o) + pf_states_bytes(p->m, il, il + 1, o);
        if (used > room) {
            cut.n_layers = il;
            cut.whole = false;
            break;
        }
    }
    return cut;
}

static void cut_close(struct pf_placement *p)
{
    pf_free(p);
}

static const struct pf_place_ops ops = { .ended = cut_ended, .enter = cut_enter,
                                         .leave = cut_leave, .cut_for = cut_for, .maps = cut_maps,
                                         .close = cut_close };

/* The output matrix may be the embedding, too, which is one of the tensors. */
static pf_status place_cut(const struct cut *c)
{
    const struct pf_model *m = c->base.m;
    pf_backend *device = c->base.device;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        int il = pf_tensor_layer(m, t);
        if (il == PF_UNUSED || pf_model_gathers(m, t))
            continue;
        if (c->base.cut.whole || is_on_device(&c->base, il))
            PF_TRY(device->ops->place(device, t->data, t->n_bytes));
    }
    if (c->base.cut.output && !c->base.cut.whole)
        PF_TRY(device->ops->place(device, m->output.data, pf_weight_bytes(&m->output)));
    return pf_model_place_extra(m, c->base.device);
}

static pf_status open_parts(struct cut *c, const struct pf_placing *what, const struct pf_residency_setup *setup)
{
    struct pf_model *m = c->base.m;
    const struct pf_cut *cut = &c->base.cut;
    PF_TRY(place_cut(c));
    if (cut->whole)
        return pf_plain_open(&c->base.under, m);
    pf_model_logf(m, PF_LOG_INFO, "the GPU has room for %d of %d layers%s; the CPU computes the rest", cut->n_layers,
                  m->n_layer, cut->output ? " and the output" : "");
    return pf_cpu_place_open(&c->base.under, m, what, setup);
}

pf_status pf_cut_open(struct pf_placement **out, struct pf_model *m, pf_backend *device, const struct pf_placing *what,
                      const struct pf_residency_setup *setup)
{
    struct cut *c = pf_alloc(PF_MEM_MODEL, sizeof *c);
    *out = NULL;
    if (!c)
        PF_FAIL(PF_ENOMEM, "no memory for sharing layers with the GPU");
    c->base = (struct pf_placement){ .ops = &ops, .m = m, .device = device, .cut = what->cut };
    pf_status st = open_parts(c, what, setup);
    if (st < 0) {
        cut_close(&c->base);
        return st;
    }
    *out = &c->base;
    return PF_OK;
}

/* See on_device.h. */
#include "moe/place/on_device.h"

#include "base/pf_mem.h"
#include "base/pf_time.h"

static void plain_close(struct pf_placement *p)
{
    pf_free(p);
}

static pf_status open_with(struct pf_placement **out, struct pf_model *m, pf_backend *device,
                           const struct pf_place_ops *ops)
{
    *out = pf_alloc(PF_MEM_MODEL, sizeof **out);
    if (!*out)
        PF_FAIL(PF_ENOMEM, "no memory to place %s", pf_gguf_path(m->file));
    **out = (struct pf_placement){ .ops = ops, .m = m, .device = device, .cut = pf_cut_all(m) };
    (*out)->cards[0] = device == m->cpu ? NULL : device;
    return PF_OK;
}

pf_status pf_plain_open(struct pf_placement **out, struct pf_model *m)
{
    static const struct pf_place_ops ops = { .close = plain_close };
    return open_with(out, m, m->cpu, &ops);
}

void pf_on_device_note(const struct pf_placement *p, uint64_t begun_ns)
{
    if (p->m->spans)
        pf_spans_add(p->m->spans, &(struct pf_span){ "step", PF_TRACK_GPU, -1, -1, begun_ns, pf_now_ns() });
}

void pf_on_device_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    (void)well;
    pf_on_device_note(p, begun_ns);
}

static pf_status place_all(const struct pf_model *m, pf_backend *device)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (pf_model_places(m, t))
            PF_TRY(device->ops->place(device, t->data, t->n_bytes));
    }
    return pf_model_place_extra(m, device);
}

pf_status pf_on_device_open(struct pf_placement **out, struct pf_model *m, pf_backend *device)
{
    static const struct pf_place_ops ops = { .ended = pf_on_device_ended, .close = plain_close };
    *out = NULL;
    PF_TRY(place_all(m, device));
    struct pf_placement *cpu;
    PF_TRY(pf_plain_open(&cpu, m));
    pf_status st = open_with(out, m, device, &ops);
    if (st < 0)
        plain_close(cpu);
    else
        (*out)->under = cpu;
    return st;
}

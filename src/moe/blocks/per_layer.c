/* What each layer adds of the token itself (Gemma 3n and the E models of Gemma 4). When a step begins, for all layers:
 *
 *     p = norm(proj x) per layer + its part of the row that a table has for the token         x: the embedding
 *
 * and behind each layer x += norm(proj (gelu(gate x) * p)). Factors are in the weights (bind_streams.c). */
#include "moe/blocks/blocks.h"

pf_status pf_per_layer_begin(struct pf_step *t, int rows)
{
    const struct pf_per_layer *p = &t->m->per_layer;
    pf_backend *be = t->unit->backend;
    struct pf_buffers *b = &t->unit->buf;
    int n = p->width, n_layer = t->m->n_layer;
    if (n == 0)
        return PF_OK;
    PF_TRY(pf_project(t, &(struct pf_linear){ &p->proj, b->per_layer }, 1, b->x, rows));
    PF_TRY(ops_of(t)->rms_norm(be, b->per_layer, p->norm, t->m->eps, n, rows * n_layer, b->per_layer));
    return ops_of(t)->add(be, b->per_layer, 1, b->gathered, (int64_t)rows * n_layer * n);
}

pf_status pf_own_part_block(struct pf_step *t, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_own_part *own = &t->m->layers[il].own;
    struct pf_buffers *b = &t->unit->buf;
    int n = t->m->per_layer.width;
    const struct pf_copy part = { b->per_layer + (size_t)il * (size_t)n, b->up, n, 1, 0, 0, (int64_t)t->m->n_layer * n,
                                  n };
    PF_TRY(pf_project(t, &(struct pf_linear){ &own->gate, b->gate }, 1, b->x, rows));
    PF_TRY(ops->copy(be, &part, 1, rows));
    PF_TRY(ops->act(be, (struct pf_act){ .kind = PF_ACT_GELU }, b->gate, b->up, (int64_t)rows * n, b->gate));
    PF_TRY(pf_project(t, &(struct pf_linear){ &own->proj, b->y }, 1, b->gate, rows));
    PF_TRY(pf_norm(t, b->y, own->norm, NULL, t->m->eps, rows, b->y));
    return ops->add(be, b->x, 1, b->y, (int64_t)rows * t->m->n_embd);
}

/* Norms of the residual stream, and products with weights that adapters may add to: y = W x, then for each adapter
 * y += scale * B (A x). */
#include "moe/model/lora.h"
#include "moe/blocks/blocks.h"

static pf_status add(struct pf_step *t, const struct pf_lora *l, const struct pf_weight *w, const float *x, float *y,
                     int rows)
{
    pf_backend *be = t->unit->backend;
    struct pf_buffers *b = &t->unit->buf;
    for (; l; l = l->next) {
        PF_TRY(be->ops->linear(be, &(struct pf_linear){ &l->a, b->low }, 1, x, rows));
        PF_TRY(be->ops->linear(be, &(struct pf_linear){ &l->b, b->added }, 1, b->low, rows));
        PF_TRY(be->ops->add(be, y, l->scale * w->scale, b->added, (int64_t)rows * l->b.n_out));
    }
    return PF_OK;
}

pf_status pf_project(struct pf_step *t, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    PF_TRY(t->unit->backend->ops->linear(t->unit->backend, l, n_l, x, rows));
    for (int i = 0; i < n_l; i++)
        PF_TRY(add(t, l[i].w->lora, l[i].w, x, l[i].y, rows));
    return PF_OK;
}

pf_status pf_embed(struct pf_step *t, int rows, float *x)
{
    pf_backend *be = t->unit->backend;
    const struct pf_weight *w = &t->m->embed;
    struct pf_buffers *b = &t->unit->buf;
    PF_TRY(be->ops->embed(be, w, b->ids, rows, x));
    for (const struct pf_lora *l = w->lora; l; l = l->next) {
        PF_TRY(be->ops->embed(be, &l->a, b->ids, rows, b->low));
        PF_TRY(be->ops->linear(be, &(struct pf_linear){ &l->b, b->added }, 1, b->low, rows));
        PF_TRY(be->ops->add(be, x, l->scale * w->scale, b->added, (int64_t)rows * l->b.n_out));
    }
    return PF_OK;
}

pf_status pf_norm(struct pf_step *t, const float *x, const float *w, const float *bias, float eps, int rows,
                  float *h)
{
    const struct pf_backend_ops *ops = t->unit->backend->ops;
    int n = t->m->n_embd;
    PF_TRY(ops->rms_norm(t->unit->backend, x, w, eps, n, rows, h));
    return bias ? ops->add_bias(t->unit->backend, h, bias, n, rows) : PF_OK;
}

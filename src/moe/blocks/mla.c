/* Multi-head latent attention in absorbed form (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1). A key per head
 * is a matrix per head times one latent; in absorbed form that matrix is applied to the query instead, and the values'
 * matrix to the output of attention:
 *
 *     kv h = [c | k_pe]         cached: [norm(c) | rope(k_pe)], one key for all heads; its first part is the value too
 *     q h  = [q_nope | q_pe]    per head; asked: [k_b q_nope | rope(q_pe)]
 *     y    = out * [v_b attention of every head] */
#include "moe/blocks/blocks.h"

/* b->q [rows][n_head][n_latent + n_rope] */
static pf_status queries(struct pf_step *t, const struct pf_mla *a, int n_head, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_mla_sizes *z = &t->m->mla;
    struct pf_buffers *b = &t->unit->buf;
    int n_k = z->n_nope + z->n_rope, n_key = z->n_latent + z->n_rope;
    if (a->q.data) {
        PF_TRY(pf_project(t, &(struct pf_linear){ &a->q, b->packed }, 1, b->h, rows));
    } else {
        PF_TRY(pf_project(t, &(struct pf_linear){ &a->q_a, b->q_latent }, 1, b->h, rows));
        PF_TRY(ops->rms_norm(be, b->q_latent, a->q_norm, t->m->eps, z->n_q_latent, rows, b->q_latent));
        PF_TRY(pf_project(t, &(struct pf_linear){ &a->q_b, b->packed }, 1, b->q_latent, rows));
    }
    const struct pf_copy deal = { b->packed + z->n_nope, b->q + z->n_latent, z->n_rope, n_head, n_k, n_key,
                                  (int64_t)n_head * n_k, (int64_t)n_head * n_key };
    if (z->n_rope)
        PF_TRY(ops->copy(be, &deal, 1, rows));
    return ops->heads(be, &(struct pf_heads_op){
        .w = &a->k_b, .n_head = n_head, .n_out = z->n_latent, .head_rows = z->n_latent, .rows = rows,
        .x = b->packed, .x_stride = n_k, .y = b->q, .y_stride = n_key });
}

/* b->k [rows][n_latent + n_rope] */
static pf_status keys(struct pf_step *t, const struct pf_mla *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_mla_sizes *z = &t->m->mla;
    struct pf_buffers *b = &t->unit->buf;
    int n_key = z->n_latent + z->n_rope;
    const struct pf_copy apart[] = {
        { b->gate_out, b->v, z->n_latent, 1, 0, 0, n_key, z->n_latent },
        { b->gate_out + z->n_latent, b->k + z->n_latent, z->n_rope, 1, 0, 0, n_key, n_key },
    };
    const struct pf_copy together = { b->v, b->k, z->n_latent, 1, 0, 0, z->n_latent, n_key };
    PF_TRY(pf_project(t, &(struct pf_linear){ &a->kv, b->gate_out }, 1, b->h, rows));
    PF_TRY(ops->copy(be, apart, z->n_rope ? 2 : 1, rows));
    PF_TRY(ops->rms_norm(be, b->v, a->kv_norm, t->m->eps, z->n_latent, rows, b->v));
    return ops->copy(be, &together, 1, rows);
}

/* One part's rows: their keys go to its session's, and they attend to these, or to those that were chosen. */
static pf_status attend(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_attention *a = &t->m->layers[il].attn;
    const struct pf_kv_view *kv = &p->s->kv[il].view;
    const struct pf_buffers *b = &t->unit->buf;
    size_t first = (size_t)p->first, n = (size_t)a->n_head, max_chosen = (size_t)t->m->index.max_chosen;
    const int32_t *pos = b->pos + first;
    PF_TRY(ops->kv_store(be, kv, b->k + first * (size_t)a->hd_k, NULL, pos, p->rows));
    return ops->attention(be, &(struct pf_attention_op){
        .q = b->q + first * n * (size_t)a->hd_k, .out = b->attn + first * n * (size_t)a->hd_v, .kv = kv, .pos = pos,
        .n_positions = pf_part_end(p), .rows = p->rows, .n_head = a->n_head, .scale = a->scale,
        .row_scale = a->temper ? b->temper + first : NULL,
        .chosen = pf_index_is_used(p) ? b->chosen + first * max_chosen : NULL, .max_chosen = t->m->index.max_chosen,
        .n_lists = 1, .run = t->m->index.ratio });
}

pf_status pf_mla_block(struct pf_step *t, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_mla *a = &t->m->layers[il].mla;
    const struct pf_attention *attn = &t->m->layers[il].attn;
    const struct pf_mla_sizes *z = &t->m->mla;
    struct pf_buffers *b = &t->unit->buf;
    int n_pairs = t->m->rope.n_pairs;

    PF_TRY(queries(t, a, attn->n_head, rows));
    PF_TRY(keys(t, a, rows));
    if (t->m->index.max_chosen)
        PF_TRY(pf_index_block(t, il, rows));
    const struct pf_rope_op ropes[] = {
        { b->q + z->n_latent, b->cs, attn->n_head, attn->hd_k, n_pairs, t->m->arch->rope_neox },
        { b->k + z->n_latent, b->cs, 1, attn->hd_k, n_pairs, t->m->arch->rope_neox },
    };
    if (attn->rotate)
        PF_TRY(ops->rope(be, ropes, 2, rows));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(attend(t, il, &t->parts[i]));
    PF_TRY(ops->heads(be, &(struct pf_heads_op){
        .w = &a->v_b, .n_head = attn->n_head, .n_out = z->n_v, .head_rows = a->v_head_rows, .rows = rows,
        .x = b->attn, .x_stride = z->n_latent, .y = b->packed, .y_stride = z->n_v }));
    return pf_project(t, &(struct pf_linear){ &attn->out, b->y }, 1, b->packed, rows);
}

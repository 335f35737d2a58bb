/* Multi-head latent attention in absorbed form (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1). A key per head
 * is a matrix per head times one latent; in absorbed form that matrix is applied to the query instead, and the values'
 * matrix to the output of attention:
 *
 *     kv h = [c | k_pe]         cached: [norm(c) | rope(k_pe)], one key for all heads; its first part is the value too
 *     q h  = [q_nope | q_pe]    per head; asked: [k_b q_nope | rope(q_pe)]
 *     y    = out * [v_b attention of every head] */
#include "moe/run/blocks.h"

/* b->q [rows][n_head][n_latent + n_rope] */
static pf_status queries(struct pf_session *s, const struct pf_mla *a, int n_head, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_mla_sizes *z = &s->m->mla;
    struct pf_buffers *b = &s->unit->buf;
    int n_k = z->n_nope + z->n_rope, n_key = z->n_latent + z->n_rope;
    if (a->q.data) {
        PF_TRY(pf_project(s, &(struct pf_linear){ &a->q, b->packed }, 1, b->h, rows));
    } else {
        PF_TRY(pf_project(s, &(struct pf_linear){ &a->q_a, b->q_latent }, 1, b->h, rows));
        PF_TRY(ops->rms_norm(be, b->q_latent, a->q_norm, s->m->eps, z->n_q_latent, rows, b->q_latent));
        PF_TRY(pf_project(s, &(struct pf_linear){ &a->q_b, b->packed }, 1, b->q_latent, rows));
    }
    const struct pf_copy deal = { b->packed + z->n_nope, b->q + z->n_latent, z->n_rope, n_head, n_k, n_key,
                                  (int64_t)n_head * n_k, (int64_t)n_head * n_key };
    PF_TRY(ops->copy(be, &deal, 1, rows));
    return ops->heads(be, &(struct pf_heads_op){
        .w = &a->k_b, .n_head = n_head, .n_out = z->n_latent, .head_rows = z->n_latent, .rows = rows,
        .x = b->packed, .x_stride = n_k, .y = b->q, .y_stride = n_key });
}

/* b->k [rows][n_latent + n_rope] */
static pf_status keys(struct pf_session *s, const struct pf_mla *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_mla_sizes *z = &s->m->mla;
    struct pf_buffers *b = &s->unit->buf;
    int n_key = z->n_latent + z->n_rope;
    const struct pf_copy apart[] = {
        { b->gate_out, b->v, z->n_latent, 1, 0, 0, n_key, z->n_latent },
        { b->gate_out + z->n_latent, b->k + z->n_latent, z->n_rope, 1, 0, 0, n_key, n_key },
    };
    const struct pf_copy together = { b->v, b->k, z->n_latent, 1, 0, 0, z->n_latent, n_key };
    PF_TRY(pf_project(s, &(struct pf_linear){ &a->kv, b->gate_out }, 1, b->h, rows));
    PF_TRY(ops->copy(be, apart, 2, rows));
    PF_TRY(ops->rms_norm(be, b->v, a->kv_norm, s->m->eps, z->n_latent, rows, b->v));
    return ops->copy(be, &together, 1, rows);
}

pf_status pf_mla_block(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_mla *a = &s->m->layers[il].mla;
    const struct pf_attention *attn = &s->m->layers[il].attn;
    const struct pf_mla_sizes *z = &s->m->mla;
    const struct pf_kv_view *kv = &s->kv[il].view;
    struct pf_buffers *b = &s->unit->buf;
    int n_pairs = s->m->rope.n_pairs;

    PF_TRY(queries(s, a, attn->n_head, rows));
    PF_TRY(keys(s, a, rows));
    if (s->m->index.max_chosen)
        PF_TRY(pf_index_block(s, il, rows));
    const struct pf_rope_op ropes[] = {
        { b->q + z->n_latent, b->cs, attn->n_head, attn->hd_k, n_pairs, s->m->arch->rope_neox },
        { b->k + z->n_latent, b->cs, 1, attn->hd_k, n_pairs, s->m->arch->rope_neox },
    };
    PF_TRY(ops->rope(be, ropes, 2, rows));
    PF_TRY(ops->kv_store(be, kv, b->k, NULL, b->pos, rows));
    PF_TRY(ops->attention(be, &(struct pf_attention_op){
        .q = b->q, .out = b->attn, .kv = kv, .pos = b->pos, .n_positions = s->computed + rows, .rows = rows,
        .n_head = attn->n_head,
        .scale = attn->scale, .chosen = pf_index_is_used(s, rows) ? b->chosen : NULL,
        .max_chosen = s->m->index.max_chosen }));
    PF_TRY(ops->heads(be, &(struct pf_heads_op){
        .w = &a->v_b, .n_head = attn->n_head, .n_out = z->n_v, .head_rows = a->v_head_rows, .rows = rows,
        .x = b->attn, .x_stride = z->n_latent, .y = b->packed, .y_stride = z->n_v }));
    return pf_project(s, &(struct pf_linear){ &attn->out, b->y }, 1, b->packed, rows);
}

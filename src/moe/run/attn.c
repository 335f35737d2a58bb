/* Attention over keys and values of all positions so far: y = out * attention(rope(norm(q h)), rope(norm(k h)), v h).
 * Gated attention multiplies what the heads put out by the sigmoid of a second projection, which shares a matrix with
 * q. */
#include "moe/run/blocks.h"

/* q, k, v; and the gate, dealt out from [head 0: q, gate | head 1: q, gate | ...] */
static pf_status projections(struct pf_session *s, const struct pf_attention *a, int rows)
{
    struct pf_buffers *b = &s->unit->buf;
    bool gated = s->m->arch->gated_attention;
    int hd = a->hd_k, n_q = a->n_head * hd;
    const struct pf_linear qkv[] = { { &a->q, gated ? b->packed : b->q }, { &a->k, b->k }, { &a->v, b->v } };
    const struct pf_copy deal[] = {
        { b->packed, b->q, hd, a->n_head, 2 * hd, hd, 2 * (int64_t)n_q, n_q },
        { b->packed + hd, b->gate_out, hd, a->n_head, 2 * hd, hd, 2 * (int64_t)n_q, n_q },
    };
    PF_TRY(pf_project(s, qkv, 3, b->h, rows));
    return gated ? ops_of(s)->copy(s->unit->backend, deal, 2, rows) : PF_OK;
}

static pf_status norm_queries_and_keys(struct pf_session *s, const struct pf_attention *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_buffers *b = &s->unit->buf;
    bool whole = s->m->arch->norm_whole_row;
    int q_parts = whole ? 1 : a->n_head, k_parts = whole ? 1 : a->n_kv_head;
    if (!a->norm)
        return PF_OK;
    PF_TRY(ops->rms_norm(be, b->q, a->q_norm, s->m->eps, a->n_head * a->hd_k / q_parts, rows * q_parts, b->q));
    return ops->rms_norm(be, b->k, a->k_norm, s->m->eps, a->n_kv_head * a->hd_k / k_parts, rows * k_parts, b->k);
}

static pf_status rotate(struct pf_session *s, const struct pf_attention *a, int rows)
{
    const struct pf_buffers *b = &s->unit->buf;
    const struct pf_rope_op ropes[] = {
        { b->q, b->cs, a->n_head, a->hd_k, s->m->rope.n_pairs, s->m->arch->rope_neox },
        { b->k, b->cs, a->n_kv_head, a->hd_k, s->m->rope.n_pairs, s->m->arch->rope_neox },
    };
    return a->rotate ? ops_of(s)->rope(s->unit->backend, ropes, 2, rows) : PF_OK;
}

pf_status pf_attention_block(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_attention *a = &s->m->layers[il].attn;
    const struct pf_kv_view *kv = &s->kv[il].view;
    struct pf_buffers *b = &s->unit->buf;
    bool norm_last = s->m->arch->norm_after_rope;

    PF_TRY(projections(s, a, rows));
    if (!norm_last)
        PF_TRY(norm_queries_and_keys(s, a, rows));
    PF_TRY(rotate(s, a, rows));
    if (norm_last)
        PF_TRY(norm_queries_and_keys(s, a, rows));
    PF_TRY(ops->kv_store(be, kv, b->k, b->v, b->pos, rows));
    PF_TRY(ops->attention(be, &(struct pf_attention_op){
        .q = b->q, .out = b->attn, .kv = kv, .pos = b->pos, .n_positions = s->computed + rows,
        .rows = rows, .n_head = a->n_head, .window = a->window,
        .chunked = a->chunked, .scale = a->scale, .sinks = a->sinks, .row_scale = a->temper ? b->temper : NULL }));
    if (s->m->arch->gated_attention)
        PF_TRY(ops->act(be, (struct pf_act){ .kind = PF_ACT_SIGMOID }, b->gate_out, b->attn,
                        (int64_t)rows * a->n_head * a->hd_v, b->attn));
    return pf_project(s, &(struct pf_linear){ &a->out, b->y }, 1, b->attn, rows);
}

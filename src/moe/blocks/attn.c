/* Attention over keys and values of all positions so far: y = out * attention(rope(norm(q h)), rope(norm(k h)), v h).
 * Gated attention multiplies what the heads put out by the sigmoid of a second projection, which shares a matrix with
 * q, or has one of its own and a number for each head or for each element. */
#include "moe/blocks/blocks.h"

/* q, k, v; and the gate, dealt out from [head 0: q, gate | head 1: q, gate | ...] */
static pf_status projections(struct pf_step *t, const struct pf_attention *a, int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    bool gated = t->m->arch->gated_attention;
    int hd = a->hd_k, n_q = a->n_head * hd;
    bool norms = t->m->arch->value_norm;
    const struct pf_linear all[] = { { &a->q, gated ? b->packed : b->q }, { &a->k, b->k },
                                     { &a->v, norms ? b->packed : b->v }, { &a->gate, b->gate_out } };
    struct pf_linear present[4];
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (all[i].w->data)
            present[n++] = all[i];
    const struct pf_copy deal[] = {
        { b->packed, b->q, hd, a->n_head, 2 * hd, hd, 2 * (int64_t)n_q, n_q },
        { b->packed + hd, b->gate_out, hd, a->n_head, 2 * hd, hd, 2 * (int64_t)n_q, n_q },
    };
    PF_TRY(pf_project(t, present, n, b->h, rows));
    if (norms && a->k.data)                  /* without attn_v, keys are values too, as they are now */
        PF_TRY(ops_of(t)->rms_norm(t->unit->backend, a->v.data ? b->packed : b->k, NULL, t->m->eps, a->hd_v,
                                   rows * a->n_kv_head, b->v));
    return gated ? ops_of(t)->copy(t->unit->backend, deal, 2, rows) : PF_OK;
}

static pf_status norm_queries_and_keys(struct pf_step *t, const struct pf_attention *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_buffers *b = &t->unit->buf;
    bool whole = t->m->arch->norm_whole_row;
    int q_parts = whole ? 1 : a->n_head, k_parts = whole ? 1 : a->n_kv_head;
    if (!a->norm)
        return PF_OK;
    PF_TRY(ops->rms_norm(be, b->q, a->q_norm, t->m->eps, a->n_head * a->hd_k / q_parts, rows * q_parts, b->q));
    if (!a->k.data)
        return PF_OK;
    return ops->rms_norm(be, b->k, a->k_norm, t->m->eps, a->n_kv_head * a->hd_k / k_parts, rows * k_parts, b->k);
}

static pf_status rotate(struct pf_step *t, const struct pf_attention *a, int rows)
{
    const struct pf_buffers *b = &t->unit->buf;
    const float *cs = a->near_rope ? b->near_cs : b->cs;
    int n_pairs = a->near_rope ? t->m->near_rope.n_pairs : t->m->rope.n_pairs;
    const struct pf_rope_op ropes[] = {
        { b->q, cs, a->n_head, a->hd_k, n_pairs, t->m->arch->rope_neox },
        { b->k, cs, a->n_kv_head, a->hd_k, n_pairs, t->m->arch->rope_neox },
    };
    return a->rotate ? ops_of(t)->rope(t->unit->backend, ropes, a->k.data ? 2 : 1, rows) : PF_OK;
}

/* One part's rows: their keys and values go to its session's, and they attend to these. */
static pf_status attend(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_attention *a = &t->m->layers[il].attn;
    const struct pf_index_sizes *z = &t->m->index;
    const struct pf_kv_layer *kv = &p->s->kv[a->kv_layer];
    const struct pf_buffers *b = &t->unit->buf;
    struct pf_kv_view at_hand = kv->view;
    size_t first = (size_t)p->first, n_kv = (size_t)a->n_kv_head, n = (size_t)a->n_head;
    const int32_t *pos = b->pos + first, *chosen = NULL;
    int part = (int)(p - t->parts);
    struct pf_by_host by_host = { il, part, b->far_range + part };
    if (t->m->layers[il].has_indexer && pf_index_is_used(p))
        chosen = b->chosen + first * (size_t)z->n_lists * (size_t)z->max_chosen;
    PF_TRY(t->visits ? pf_lent_take(t, p, &kv->view, &at_hand) : pf_far_take(t, il, p, &at_hand));
    if (a->kv_layer == il)
        PF_TRY(ops->kv_store(be, &at_hand, b->k + first * n_kv * (size_t)a->hd_k, b->v + first * n_kv * (size_t)a->hd_v,
                             pos, p->rows));
    PF_TRY(ops->attention(be, &(struct pf_attention_op){
        .q = b->q + first * n * (size_t)a->hd_k, .out = b->attn + first * n * (size_t)a->hd_v, .kv = &at_hand,
        .pos = pos, .n_positions = pf_part_end(p), .rows = p->rows, .n_head = a->n_head, .window = a->window,
        .chunked = a->chunked, .scale = a->scale, .sinks = a->sinks,
        .row_scale = a->temper ? b->temper + first : NULL, .chosen = chosen,
        .max_chosen = z->max_chosen, .n_lists = z->n_lists, .run = z->ratio * z->run,
        .open_run = t->m->arch->index_runs, .by_host = kv->far && pf_far_is_shared(t, p) ? &by_host : NULL }));
    return t->visits ? pf_lent_give_back(t, p, &kv->view, &at_hand) : pf_far_give_back(t, il, p);
}

/* attn *= sigmoid(gate), element by element or head by head. */
static pf_status gate_heads(struct pf_step *t, const struct pf_attention *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    const struct pf_buffers *b = &t->unit->buf;
    int n_heads = rows * a->n_head;
    if (t->m->arch->gated_attention || (a->gate.data && t->m->arch->gate_elements))
        return ops->act(t->unit->backend, (struct pf_act){ .kind = PF_ACT_SIGMOID }, b->gate_out, b->attn,
                        (int64_t)n_heads * a->hd_v, b->attn);
    return a->gate.data ? ops->gate(t->unit->backend, b->attn, b->gate_out, a->hd_v, n_heads) : PF_OK;
}

pf_status pf_attention_block(struct pf_step *t, int il, int rows)
{
    const struct pf_attention *a = &t->m->layers[il].attn;
    struct pf_buffers *b = &t->unit->buf;
    bool norm_last = t->m->arch->norm_after_rope;

    if (t->m->layers[il].has_indexer)
        PF_TRY(pf_index_block(t, il, rows));
    PF_TRY(projections(t, a, rows));
    if (!norm_last)
        PF_TRY(norm_queries_and_keys(t, a, rows));
    PF_TRY(rotate(t, a, rows));
    if (norm_last)
        PF_TRY(norm_queries_and_keys(t, a, rows));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(attend(t, il, &t->parts[i]));
    PF_TRY(gate_heads(t, a, rows));
    return pf_project(t, &(struct pf_linear){ &a->out, b->y }, 1, b->attn, rows);
}

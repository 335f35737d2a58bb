/* Attention, and what happens to queries, keys and values before it. Calls for several sequences, whose heads were held
 * together, are held, too, and become one when the last has come:
 *
 *     heads of rows 0 .. n - 1 | store, attend: rows of a | store, attend: rows of b | ..     one launch of each kernel
 *
 * If something else comes before the last, all of it is started as it was asked for. */
#include <string.h>

#include "kernels/cuda/cuda_backend.h"

/* Whether what is dealt out, if anything is, are the queries that are rotated, and as many blocks beside them. */
static bool deals_queries(const struct held_heads *h)
{
    const struct pf_copy *q = &h->deal[0], *beside = &h->deal[1];
    const struct pf_rope_op *r = &h->rope[0];
    return h->n_deals == 0 || (h->deal_rows == h->rows && q->to == r->x && q->n == r->hd && q->n_blocks == r->n_head &&
                               q->to_block == r->hd && q->to_row == r->n_head * r->hd && beside->n_blocks == r->n_head);
}

/* Whether what is held is all that happens to the heads before k is stored; then *out says it. */
static bool heads_together(const struct held_heads *h, const float *k, int rows, struct cu_heads *out)
{
    if (!out->v || h->n_ropes != 2 || h->rows != rows || h->rope[1].x != k || h->rope[1].n_head != out->kv.n_kv_head ||
        h->rope[1].hd != out->kv.hd_k || h->rope[0].hd > CU_HEAD_DIM || h->rope[1].hd > CU_HEAD_DIM ||
        !deals_queries(h))
        return false;
    memcpy(out->rope, h->rope, sizeof out->rope);
    memcpy(out->deal, h->deal, (size_t)h->n_deals * sizeof *h->deal);
    for (int i = 0; i < h->n_norms; i++) {
        const struct cu_norm *norm = &h->norm[i];
        int part = norm->x == h->rope[1].x;
        const struct pf_rope_op *r = &h->rope[part];
        if (norm->x != r->x || norm->n != r->hd || norm->rows != rows * r->n_head || norm->eps != h->norm[0].eps ||
            out->norm[part])
            return false;
        out->norm[part] = true;
        out->weight[part] = norm->w;
        out->eps = norm->eps;
    }
    return true;
}

/* ---- Several sequences ------------------------------------------------------------------------------------------- */

static bool is_like(const struct pf_kv_view *a, const struct pf_kv_view *b)
{
    return a->type == b->type && a->n_kv_head == b->n_kv_head && a->hd_k == b->hd_k && a->hd_v == b->hd_v;
}

static bool is_same(const struct pf_kv_view *a, const struct pf_kv_view *b)
{
    return is_like(a, b) && a->k == b->k && a->v == b->v && a->n_chunks == b->n_chunks && a->n_near == b->n_near &&
           a->k_far == b->k_far && a->v_far == b->v_far;
}

/* Adds a sequence whose keys and values are to be stored. */
static void add_sequence(struct held_together *t, const struct pf_kv_view *kv, int rows)
{
    t->parts.kv[t->parts.n++] = *kv;
    t->n_stored += rows;
    t->parts.first[t->parts.n] = t->n_stored;
}

/* Whether these are the first rows of all those whose heads are held; then what follows is held. */
static bool begins_together(struct cuda_backend *b, const struct cu_heads *first, const float *k)
{
    struct held_together t = { .heads = b->heads, .stored = *first };
    t.stored.rows = b->heads.rows;
    if (first->kv.type != PF_KV_I16 || first->rows >= t.stored.rows || t.stored.rows > CU_VECTOR_ROWS ||
        !heads_together(&b->heads, k, t.stored.rows, &t.stored))
        return false;
    add_sequence(&t, &first->kv, first->rows);
    b->together = t;
    b->heads.n_deals = b->heads.n_norms = b->heads.n_ropes = 0;
    return true;
}

/* Whether these are the rows behind those that are held. */
static bool stores_next(struct held_together *t, const struct cu_heads *next, const float *k)
{
    const struct pf_kv_view *kv = &t->parts.kv[0];
    int64_t before = t->n_stored;
    if (t->op.rows != t->n_stored || t->parts.n == CU_SEQUENCES || t->n_stored + next->rows > t->stored.rows ||
        !is_like(kv, &next->kv) || next->pos != t->stored.pos + before ||
        k != t->stored.rope[1].x + before * kv->n_kv_head * kv->hd_k ||
        next->v != t->stored.v + before * kv->n_kv_head * kv->hd_v)
        return false;
    add_sequence(t, &next->kv, next->rows);
    return true;
}

/* Whether this is the attention of the rows whose keys and values came last. */
static bool attends_next(struct held_together *t, const struct pf_attention_op *a)
{
    struct pf_attention_op *op = &t->op;
    const struct pf_kv_view *kv = &t->parts.kv[t->parts.n - 1];
    int64_t before = op->rows;
    bool first = before == 0;
    if (before + a->rows != t->n_stored || !is_same(kv, a->kv) || a->chosen || a->blocks || a->by_host ||
        a->n_head != t->stored.rope[0].n_head || kv->hd_k != t->stored.rope[0].hd ||
        a->q != t->stored.rope[0].x + before * a->n_head * kv->hd_k || a->pos != t->stored.pos + before)
        return false;
    if (!first && (a->window != op->window || a->chunked != op->chunked || a->scale != op->scale ||
                   a->sinks != op->sinks || a->out != op->out + before * a->n_head * kv->hd_v ||
                   a->row_scale != (op->row_scale ? op->row_scale + before : NULL)))
        return false;
    int64_t longest = first || a->n_positions > op->n_positions ? a->n_positions : op->n_positions;
    if (first)
        *op = *a;
    op->n_positions = longest;
    op->rows = t->n_stored;
    t->n_positions[t->parts.n - 1] = a->n_positions;
    return true;
}

static struct cu_i16 i16_of(const struct cuda_backend *b)
{
    return (struct cu_i16){ b->q16, b->cq, b->part, b->n_part, NULL };
}

static pf_status put_together(struct cuda_backend *b)
{
    struct held_together t = b->together;
    struct cu_i16 i16 = i16_of(b);
    struct cu_x x = b->x;
    int64_t n_out = (int64_t)t.op.n_head * t.parts.kv[0].hd_v;
    b->together.stored.rows = 0;
    t.op.kv = &t.parts.kv[0];
    PF_TRY(pf_cuda_floats_at(b, t.op.sinks, (size_t)t.op.n_head, &t.op.sinks));
    pf_cuda_wrote(b, t.op.out, t.op.rows * n_out);
    if (n_out <= b->sizes.max_n_in) {
        b->x_of = t.op.out;
        b->x_floats = t.op.rows * n_out;
    } else {
        x.q = NULL;
    }
    return pf_cuda_put(b, pf_cu_i16_together(b->stream, &t.op, &t.parts, pf_cuda_chunks(b, t.op.n_positions), &i16, &x,
                                             &t.stored, b->shared_bytes, b->fault), "attention");
}

/* What the heads were asked to do, and each sequence's keys and values and attention, as far as they came. */
pf_status pf_cuda_part_ways(struct cuda_backend *b)
{
    struct held_together t = b->together;
    struct cu_i16 i16 = i16_of(b);
    struct cu_x none = { .f = NULL };
    if (!t.stored.rows)
        return PF_OK;
    b->together.stored.rows = 0;
    PF_TRY(pf_cuda_put_heads(b, &t.heads));
    PF_TRY(pf_cuda_floats_at(b, t.op.sinks, (size_t)t.op.n_head, &t.op.sinks));
    for (int i = 0; i < t.parts.n; i++) {
        const struct pf_kv_view *kv = &t.parts.kv[i];
        struct pf_attention_op a = t.op;
        int64_t first = t.parts.first[i];
        int rows = t.parts.first[i + 1] - t.parts.first[i];
        const float *k = t.stored.rope[1].x + first * kv->n_kv_head * kv->hd_k,
                    *v = t.stored.v + first * kv->n_kv_head * kv->hd_v;
        CU_PUT(b, pf_cu_kv_store(b->stream, kv, k, v, t.stored.pos + first, rows), "storing keys and values");
        if (first >= t.op.rows)
            break;
        a.q += first * a.n_head * kv->hd_k;
        a.out += first * a.n_head * kv->hd_v;
        a.pos += first;
        a.row_scale = a.row_scale ? a.row_scale + first : NULL;
        a.kv = kv;
        a.rows = rows;
        a.n_positions = t.n_positions[i];
        CU_PUT(b, pf_cu_i16_attention(b->stream, &a, pf_cuda_chunks(b, a.n_positions), &i16, NULL, &none, NULL,
                                      b->shared_bytes, b->fault), "attention");
    }
    return PF_OK;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

pf_status pf_cuda_kv_store(pf_backend *backend, const struct pf_kv_view *kv, const float *k, const float *v,
                           const int32_t *pos, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cu_heads o = { .kv = *kv, .v = v, .pos = pos, .rows = rows };
    if (b->together.stored.rows && stores_next(&b->together, &o, k))
        return PF_OK;
    if (heads_together(&b->heads, k, rows, &o)) {
        b->heads.n_deals = b->heads.n_norms = b->heads.n_ropes = 0;
        PF_TRY(pf_cuda_settle_rows(b));
        b->stored = o;
        return PF_OK;
    }
    PF_TRY(pf_cuda_settle_rows(b));
    if (begins_together(b, &o, k))
        return PF_OK;
    PF_TRY(pf_cuda_settle(b));
    if (pf_kv_is_latent(kv)) {           /* a kernel stores these and has the queries */
        o.rope[1].x = (float *)(uintptr_t)k;
        b->stored = o;
        return PF_OK;
    }
    return pf_cuda_put(b, pf_cu_kv_store(b->stream, kv, k, v, pos, rows), "storing keys and values");
}

/* Whether the rows of a latent that are to be stored are those that attend. */
static bool stores_own(const struct cu_heads *h, const struct pf_attention_op *a)
{
    return pf_kv_is_latent(a->kv) && h->kv.k == a->kv->k && h->rows == a->rows && h->pos == a->pos;
}

/* Keys and values apart, of one sequence; some partials may be the host's. */
static pf_status attend_i16(struct cuda_backend *b, const struct pf_attention_op *a, const struct cu_x *x,
                            const struct cu_heads *heads)
{
    struct cu_i16 i16 = i16_of(b);
    struct cu_far far;
    bool by_host = pf_cuda_share_attends(b, a, &far);
    int n_chunks = pf_cuda_chunks(b, a->n_positions);
    i16.by_host = by_host ? a->by_host->range : NULL;
    CU_PUT(b, pf_cu_i16_attention(b->stream, a, n_chunks, &i16, by_host ? &far : NULL, x, heads, b->shared_bytes,
                                  b->fault), "attention");
    if (!by_host)
        return PF_OK;
    PF_TRY(pf_cuda_share_attend(b, a));
    return pf_cuda_put(b, pf_cu_far_take(b->stream, a, n_chunks, &i16, &far, x, b->fault), "taking the CPU's partials");
}

pf_status pf_cuda_attention(pf_backend *backend, const struct pf_attention_op *a)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_attention_op o = *a;
    if (b->stored.rows && pf_kv_is_latent(&b->stored.kv) && !stores_own(&b->stored, a))
        PF_TRY(pf_cuda_settle(b));
    struct cu_heads heads = b->stored;
    if (b->together.stored.rows && attends_next(&b->together, a))
        return b->together.op.rows == b->together.stored.rows ? put_together(b) : PF_OK;
    b->stored.rows = 0;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, a->sinks, (size_t)a->n_head, &o.sinks));
    int64_t n_out = (int64_t)a->n_head * a->kv->hd_v;
    bool for_product = a->rows <= CU_VECTOR_ROWS && !a->chosen && !a->blocks && a->kv->hd_v % 32 == 0 &&
                       n_out <= b->sizes.max_n_in;
    struct cu_x x = b->x;
    pf_cuda_wrote(b, a->out, a->rows * n_out);
    if (for_product) {
        b->x_of = a->out;
        b->x_floats = a->rows * n_out;
    } else {
        x.q = NULL;
    }
    if (a->kv->type == PF_KV_I16) {
        struct cu_i16 i16 = i16_of(b);
        if (pf_kv_is_latent(a->kv))
            return pf_cuda_put(b, pf_cu_latent_attention(b->stream, &o, pf_cuda_chunks(b, a->n_positions), &i16, &x,
                                                         heads.rows ? &heads : NULL, b->shared_bytes, b->fault),
                               "attention to a latent");
        return attend_i16(b, &o, &x, heads.rows ? &heads : NULL);
    }
    return pf_cuda_put(b, pf_cu_attention(b->stream, &o, pf_cuda_chunks(b, a->n_positions), b->count, b->part,
                                          b->latent_scores, &x, heads.rows ? &heads : NULL, b->shared_bytes, b->fault),
                       "attention");
}


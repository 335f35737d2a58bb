/* A team's operations. Each is asked of every card, with the card's own addresses; those that can work on some columns
 * of rows, or on some heads, are asked for these where the rows are divided. */
#include <string.h>

#include "kernels/team/team.h"

enum { MAX_LINEAR = 8 };

/* Whether the cards' columns of d are whole pieces of n. */
static bool in_pieces(const struct team *t, const struct divided *d, int n)
{
    bool are = d && n > 0 && n < d->n && d->n % n == 0;
    for (int k = 0; are && k < t->n; k++)
        are = d->first[k] % n == 0;
    return are;
}

/* Whether a and b are divided alike, a's columns being n to one of b's. */
static bool alike(const struct team *t, const struct divided *a, const struct divided *b, int n)
{
    bool are = a && b && a->n == b->n * n;
    for (int k = 0; are && k <= t->n; k++)
        are = a->first[k] == b->first[k] * n;
    return are;
}

/* d with n columns in the place of each `of`. */
static struct divided in_proportion(const struct divided *d, const float *at, int of, int n)
{
    struct divided out = *d;
    out.at = at;
    out.n = d->n / of * n;
    for (int k = 0; k <= PF_MAX_GPUS; k++)
        out.first[k] = d->first[k] / of * n;
    return out;
}

/* ---- Whole rows -------------------------------------------------------------------------------------------------- */

/* The first card has the embedding; whoever wants the rows gathers them. */
static pf_status team_embed(pf_backend *backend, const struct pf_weight *w, const int32_t *ids, int rows, float *x)
{
    struct team *t = pf_team_of(backend);
    struct divided d = { .at = x, .rows = rows, .n = w->n_in };
    for (int k = 1; k <= t->n; k++)
        d.first[k] = w->n_in;
    PF_TRY(pf_team_write(t, &d));
    return t->from == 0 ? t->card[0]->ops->embed(t->card[0], w, ids, rows, x) : PF_OK;
}

static pf_status team_layer_norm(pf_backend *backend, const float *x, const float *w, const float *bias, float eps,
                                 int n, int rows, float *y)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_whole(t, x, (int64_t)rows * n));
    PF_TRY(pf_team_wrote(t, y, (int64_t)rows * n));
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->layer_norm(t->card[k], pf_team_here(t, k, x), w, bias, eps, n, rows,
                                           pf_team_here(t, k, y)));
    return PF_OK;
}

static pf_status team_centre(pf_backend *backend, const float *x, int n, int rows, float *y)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_whole(t, x, (int64_t)rows * n));
    PF_TRY(pf_team_wrote(t, y, (int64_t)rows * n));
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->centre(t->card[k], pf_team_here(t, k, x), n, rows, pf_team_here(t, k, y)));
    return PF_OK;
}

static pf_status team_add_gated(pf_backend *backend, float *y, const float *gate, const float *x, int n, int rows)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_whole(t, y, (int64_t)rows * n));
    PF_TRY(pf_team_whole(t, x, (int64_t)rows * n));
    PF_TRY(pf_team_whole(t, gate, rows));
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->add_gated(t->card[k], pf_team_here(t, k, y), pf_team_here(t, k, gate),
                                          pf_team_here(t, k, x), n, rows));
    return PF_OK;
}

static pf_status team_add_bias(pf_backend *backend, float *y, const float *bias, int n, int rows)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_whole(t, y, (int64_t)rows * n));
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->add_bias(t->card[k], pf_team_here(t, k, y), bias, n, rows));
    return PF_OK;
}

/* What it looks at is read behind the step: invariant 3. */
static pf_status team_check_finite(pf_backend *backend, const float *x, int64_t n)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_whole(t, x, n));
    return t->card[t->from]->ops->check_finite(t->card[t->from], pf_team_here(t, t->from, x), n);
}

static pf_status team_tops(pf_backend *backend, const float *x, int n, int rows, float *const *to)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_whole(t, x, (int64_t)rows * n));
    return t->card[t->from]->ops->tops(t->card[t->from], pf_team_here(t, t->from, x), n, rows, to);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Card k's rows of w, or all. */
static struct pf_weight rows_of(const struct team *t, int k, const struct pf_weight *w)
{
    const struct team_weight *d = pf_team_weight(t, w->data);
    struct pf_weight mine = *w;
    if (!d)
        return mine;
    mine.data = (const char *)w->data + w->row_bytes * (uint64_t)d->first[k];
    mine.n_out = pf_team_columns(d->first, k);
    mine.bias = w->bias ? w->bias + d->first[k] : NULL;
    return mine;
}

static pf_status write_products(struct team *t, const struct pf_linear *l, int n_l, int rows)
{
    for (int i = 0; i < n_l; i++) {
        const struct team_weight *w = pf_team_weight(t, l[i].w->data);
        struct divided d = { .at = l[i].y, .rows = rows, .n = l[i].w->n_out };
        if (w)
            memcpy(d.first, w->first, sizeof d.first);
        PF_TRY(w ? pf_team_write(t, &d) : pf_team_wrote(t, l[i].y, (int64_t)rows * l[i].w->n_out));
    }
    return PF_OK;
}

static pf_status team_linear(pf_backend *backend, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    struct team *t = pf_team_of(backend);
    struct pf_weight w[MAX_LINEAR];
    struct pf_linear mine[MAX_LINEAR];
    PF_TRY(pf_team_whole(t, x, (int64_t)rows * l->w->n_in));
    PF_TRY(write_products(t, l, n_l, rows));
    for (int k = t->from; k < t->end; k++) {
        for (int i = 0; i < n_l; i++) {
            w[i] = rows_of(t, k, l[i].w);
            mine[i] = (struct pf_linear){ &w[i], pf_team_at(t, k, l[i].y) };
        }
        PF_TRY(t->card[k]->ops->linear(t->card[k], mine, n_l, pf_team_here(t, k, x), rows));
    }
    return PF_OK;
}

/* ---- Element by element ------------------------------------------------------------------------------------------ */

/* How many of n elements card k has, of rows like those at p. */
static int64_t elements_of(const struct team *t, int k, const float *p, int64_t n)
{
    const struct divided *d = pf_team_divided(t, p);
    return d ? n / d->n * pf_team_columns(d->first, k) : n;
}

static pf_status team_act(pf_backend *backend, struct pf_act act, const float *gate, const float *up, int64_t n,
                          float *y)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    const struct divided *g = pf_team_divided(t, gate), *u = pf_team_divided(t, up);
    if (y == gate && alike(t, g, u, 1) && g->at == gate && u->at == up && (int64_t)g->rows * g->n == n &&
        pf_team_swaps(t, g)) {
        t->acted = (struct held_act){ act, y, up, n };
        return PF_OK;
    }
    if (alike(t, g, u, 1)) {
        struct divided d = in_proportion(g, y, 1, 1);
        d.rows = (int)(n / d.n);
        PF_TRY(y == gate || y == up ? PF_OK : pf_team_write(t, &d));
    } else {
        PF_TRY(pf_team_whole(t, gate, n));
        PF_TRY(pf_team_whole(t, up, n));
        PF_TRY(pf_team_wrote(t, y, n));
    }
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->act(t->card[k], act, pf_team_at(t, k, gate), pf_team_at(t, k, up),
                                    elements_of(t, k, y, n), pf_team_at(t, k, y)));
    return PF_OK;
}

/* Few rows of x are added to whole ones as they are exchanged. */
static pf_status team_add(pf_backend *backend, float *y, float a, const float *x, int64_t n)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    const struct divided *d = pf_team_divided(t, x);
    if (d && d->at == x && (int64_t)d->rows * d->n == n && pf_team_swaps(t, d) && !pf_team_divided(t, y))
        return pf_team_swap(t, d, y, &a, false);
    if (!alike(t, pf_team_divided(t, y), pf_team_divided(t, x), 1)) {
        PF_TRY(pf_team_whole(t, y, n));
        PF_TRY(pf_team_whole(t, x, n));
    }
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->add(t->card[k], pf_team_at(t, k, y), a, pf_team_at(t, k, x),
                                    elements_of(t, k, y, n)));
    return PF_OK;
}

static pf_status team_softcap(pf_backend *backend, float *x, float cap, int64_t n)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->softcap(t->card[k], pf_team_at(t, k, x), cap, elements_of(t, k, x, n)));
    return PF_OK;
}

/* ---- Head by head ------------------------------------------------------------------------------------------------ */

static pf_status team_rms_norm(pf_backend *backend, const float *x, const float *w, float eps, int n, int rows,
                               float *y)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    const struct divided *from = pf_team_divided(t, x);
    bool parts = in_pieces(t, from, n);
    if (parts) {
        struct divided d = in_proportion(from, y, 1, 1);
        PF_TRY(y == x ? PF_OK : pf_team_write(t, &d));
    } else {
        PF_TRY(pf_team_whole(t, x, (int64_t)rows * n));
        PF_TRY(pf_team_wrote(t, y, (int64_t)rows * n));
    }
    for (int k = t->from; k < t->end; k++) {
        int mine = parts ? (int)(elements_of(t, k, y, (int64_t)rows * n) / n) : rows;
        PF_TRY(t->card[k]->ops->rms_norm(t->card[k], pf_team_at(t, k, x), w, eps, n, mine, pf_team_at(t, k, y)));
    }
    return PF_OK;
}

/* x of a head times the sigmoid of its number. */
static pf_status team_gate(pf_backend *backend, float *x, const float *gate, int n, int rows)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    if (!alike(t, pf_team_divided(t, x), pf_team_divided(t, gate), n)) {
        PF_TRY(pf_team_whole(t, x, (int64_t)rows * n));
        PF_TRY(pf_team_whole(t, gate, rows));
    }
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->gate(t->card[k], pf_team_at(t, k, x), pf_team_at(t, k, gate), n,
                                     (int)elements_of(t, k, gate, rows)));
    return PF_OK;
}

static pf_status team_rope(pf_backend *backend, const struct pf_rope_op *ropes, int n_ropes, int rows)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    struct pf_rope_op mine[2];
    for (int i = 0; i < n_ropes; i++)
        if (!in_pieces(t, pf_team_divided(t, ropes[i].x), ropes[i].hd))
            PF_TRY(pf_team_whole(t, ropes[i].x, (int64_t)rows * ropes[i].n_head * ropes[i].hd));
    for (int k = t->from; k < t->end; k++) {
        for (int i = 0; i < n_ropes; i++) {
            mine[i] = ropes[i];
            mine[i].x = pf_team_at(t, k, ropes[i].x);
            mine[i].cs = pf_team_here(t, k, ropes[i].cs);
            mine[i].n_head = (int)elements_of(t, k, ropes[i].x, ropes[i].n_head * (int64_t)ropes[i].hd) / ropes[i].hd;
        }
        PF_TRY(t->card[k]->ops->rope(t->card[k], mine, n_ropes, rows));
    }
    return PF_OK;
}

/* Whether the copy takes a piece of each block of divided rows, and leaves the pieces in rows of their own. */
static bool deals_blocks(const struct team *t, const struct pf_copy *c)
{
    const struct divided *d = pf_team_divided(t, c->from);
    return in_pieces(t, d, c->from_block) && c->from - d->at < c->from_block && c->from_row == d->n &&
           c->n_blocks * c->from_block == d->n && c->to_row == (int64_t)c->n_blocks * c->to_block;
}

static pf_status begin_copy(struct team *t, const struct pf_copy *c, int rows)
{
    const struct divided *d = pf_team_divided(t, c->from);
    if (deals_blocks(t, c)) {
        struct divided to = in_proportion(d, c->to, c->from_block, c->to_block);
        return pf_team_write(t, &to);
    }
    PF_TRY(pf_team_whole(t, c->from, (rows - 1) * c->from_row + (c->n_blocks - 1) * (int64_t)c->from_block + c->n));
    return pf_team_wrote(t, c->to, (rows - 1) * c->to_row + (c->n_blocks - 1) * (int64_t)c->to_block + c->n);
}

static struct pf_copy copy_on(const struct team *t, int k, const struct pf_copy *c)
{
    const struct divided *d = pf_team_divided(t, c->from);
    struct pf_copy mine = *c;
    mine.from = pf_team_at(t, k, c->from);
    mine.to = pf_team_at(t, k, c->to);
    if (!d)
        return mine;
    mine.from_row = pf_team_columns(d->first, k);
    mine.n_blocks = (int)mine.from_row / c->from_block;
    mine.to_row = (int64_t)mine.n_blocks * c->to_block;
    return mine;
}

static pf_status team_copy(pf_backend *backend, const struct pf_copy *copies, int n_copies, int rows)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    struct pf_copy mine[2];
    for (int i = 0; i < n_copies; i++)
        PF_TRY(begin_copy(t, &copies[i], rows));
    for (int k = t->from; k < t->end; k++) {
        for (int i = 0; i < n_copies; i++)
            mine[i] = copy_on(t, k, &copies[i]);
        PF_TRY(t->card[k]->ops->copy(t->card[k], mine, n_copies, rows));
    }
    return PF_OK;
}

/* ---- Keys and values --------------------------------------------------------------------------------------------- */

/* The heads of kv that card k has, or all. */
static struct pf_kv_view heads_of(const struct team *t, int k, const struct pf_kv_view *kv)
{
    const struct team_buffer *keys = pf_team_buffer(t, kv->k), *values = kv->v ? pf_team_buffer(t, kv->v) : NULL;
    struct pf_kv_view mine = *kv;
    mine.k = keys->on[k];
    mine.v = values ? values->on[k] : NULL;
    mine.n_kv_head = keys->chunk_bytes ? pf_team_columns(keys->first, k) : kv->n_kv_head;
    return mine;
}

static bool are_divided(const struct team *t, const struct pf_kv_view *kv)
{
    return pf_team_buffer(t, kv->k)->chunk_bytes != 0;
}

static pf_status team_kv_store(pf_backend *backend, const struct pf_kv_view *kv, const float *k, const float *v,
                               const int32_t *pos, int rows)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    if (!are_divided(t, kv)) {
        PF_TRY(pf_team_whole(t, k, (int64_t)rows * kv->n_kv_head * kv->hd_k));
        PF_TRY(kv->v ? pf_team_whole(t, v, (int64_t)rows * kv->n_kv_head * kv->hd_v) : PF_OK);
    }
    for (int i = t->from; i < t->end; i++) {
        struct pf_kv_view mine = heads_of(t, i, kv);
        PF_TRY(t->card[i]->ops->kv_store(t->card[i], &mine, pf_team_at(t, i, k), pf_team_at(t, i, v),
                                         pf_team_here(t, i, pos), rows));
    }
    return PF_OK;
}

/* Outputs of heads are divided as the queries are: rows of a sequence lie behind those of the sequences ahead of it. */
static pf_status divide_outputs(struct team *t, const struct pf_attention_op *a)
{
    const struct divided *q = pf_team_divided(t, a->q);
    if (!q)
        PF_FAIL(PF_EDEVICE, "queries of heads that are divided between GPUs are not");
    int64_t row = (a->q - q->at) / q->n;
    struct divided d = in_proportion(q, NULL, a->kv->hd_k, a->kv->hd_v);
    d.at = a->out - row * d.n;
    d.rows = q->rows;
    return row == 0 ? pf_team_write(t, &d) : pf_team_add(t, &d);
}

static pf_status team_attention(pf_backend *backend, const struct pf_attention_op *a)
{
    struct team *t = pf_team_of(backend);
    PF_TRY(pf_team_settle(t));
    bool divided = are_divided(t, a->kv);
    int each = a->n_head / a->kv->n_kv_head;
    PF_TRY(divided ? divide_outputs(t, a) : pf_team_whole(t, a->q, (int64_t)a->rows * a->n_head * a->kv->hd_k));
    PF_TRY(divided ? PF_OK : pf_team_wrote(t, a->out, (int64_t)a->rows * a->n_head * a->kv->hd_v));
    for (int k = t->from; k < t->end; k++) {
        struct pf_kv_view kv = heads_of(t, k, a->kv);
        struct pf_attention_op mine = *a;
        mine.kv = &kv;
        mine.n_head = kv.n_kv_head * each;
        mine.q = pf_team_at(t, k, a->q);
        mine.out = pf_team_at(t, k, a->out);
        mine.pos = pf_team_here(t, k, a->pos);
        mine.row_scale = pf_team_here(t, k, a->row_scale);
        mine.sinks = a->sinks && divided ? a->sinks + pf_team_buffer(t, a->kv->k)->first[k] * each : a->sinks;
        PF_TRY(t->card[k]->ops->attention(t->card[k], &mine));
    }
    return PF_OK;
}

const struct pf_backend_ops pf_team_ops = {
    .embed = team_embed,
    .rms_norm = team_rms_norm,
    .layer_norm = team_layer_norm,
    .centre = team_centre,
    .linear = team_linear,
    .act = team_act,
    .add = team_add,
    .softcap = team_softcap,
    .add_gated = team_add_gated,
    .add_bias = team_add_bias,
    .gate = team_gate,
    .check_finite = team_check_finite,
    .tops = team_tops,
    .rope = team_rope,
    .kv_store = team_kv_store,
    .attention = team_attention,
    .copy = team_copy,
    .route = pf_team_route,
    .experts = pf_team_run_experts,
};

/* Operations on rows: which kernels each becomes, and which wait for the one that usually follows (invariants 2 and 3
 * of cuda_backend.h). */
#include <string.h>

#include "kernels/cuda/cu_few_api.h"
#include "kernels/cuda/cu_several_api.h"
#include "kernels/cuda/cuda_backend.h"

static pf_status start_turns(struct cuda_backend *b, const struct held_turns *t, float *y,
                             const struct cu_residual *residual)
{
    const struct cu_choice none = { .op.rows = 0 };
    CU_PUT(b, pf_cu_down_of(b->stream, &t->first, &none, y, residual), "down");
    CU_PUT(b, pf_cu_take(b->stream, &t->take), "taking the CPU's experts");
    CU_PUT(b, pf_cu_gate_up_of(b->stream, &t->gate_up, &none, &t->acts, b->shared_bytes, b->fault), "gate and up");
    return pf_cuda_put(b, pf_cu_down_of(b->stream, &t->down, &none, y, residual), "down");
}

static pf_status start_down(struct cuda_backend *b, const struct held_product *p)
{
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");            /* which is asked what it has room for */
    if (pf_cu_down_stream_takes(&p->down))
        return pf_cuda_put(b, pf_cu_down_stream(b->stream, &p->down, p->y, &p->residual), "down");
    if (pf_cu_several_takes_down(&p->down, b->shared_bytes))
        return pf_cuda_put(b, pf_cu_several_down(b->stream, &p->down, p->y, &p->residual), "down");
    return pf_cuda_put(b, pf_cu_down_of(b->stream, &p->down, &p->choice, p->y, &p->residual), "down");
}

static pf_status start_product(struct cuda_backend *b)
{
    struct held_product p = b->product;
    b->product.kind = HELD_NOTHING;
    if (p.kind == HELD_TURNS)
        return start_turns(b, &p.turns, p.y, &p.residual);
    if (p.kind == HELD_LINEAR && p.linear.rows > 1)
        CU_PUT(b, pf_cu_few_given(b->stream, &p.linear, &p.given, b->shared_bytes), "a product");
    if (p.kind == HELD_LINEAR && p.linear.rows == 1) {
        struct cu_given given = { p.given.to[0], p.given.fault };
        p.linear.residual = p.residual;
        CU_PUT(b, pf_cu_linear_given(b->stream, &p.linear, &given), "a product");
    }
    if (p.kind == HELD_DOWN)
        PF_TRY(start_down(b, &p));
    if (p.kind == HELD_COMBINE)
        CU_PUT(b, pf_cu_combine(b->stream, &p.combine, &p.residual), "adding experts");
    return PF_OK;
}

pf_status pf_cuda_hold(struct cuda_backend *b, const struct held_product *p)
{
    PF_TRY(start_product(b));
    b->product = *p;
    return PF_OK;
}

pf_status pf_cuda_put_heads(struct cuda_backend *b, const struct held_heads *h)
{
    if (h->n_deals)
        CU_PUT(b, pf_cu_copy(b->stream, h->deal, h->n_deals, h->deal_rows), "a copy");
    for (int i = 0; i < h->n_norms; i++)
        CU_PUT(b, pf_cu_norm(b->stream, &h->norm[i]), "a norm");
    if (h->n_ropes)
        CU_PUT(b, pf_cu_rope(b->stream, h->rope, h->n_ropes, h->rows), "a rotation");
    return PF_OK;
}

pf_status pf_cuda_settle_rows(struct cuda_backend *b)
{
    PF_TRY(pf_cuda_shared_start(b));
    struct held_add add = b->held;
    struct cu_norm norm = b->norm;
    struct held_act acted = b->acted;
    struct cu_between between = b->between;
    struct cu_heads stored = b->stored;
    struct cu_choice choice = b->choice;
    b->held.y = b->norm.y = b->acted.y = NULL;
    b->between.rows = b->stored.rows = b->choice.op.rows = 0;
    PF_TRY(pf_cuda_part_ways(b));
    PF_TRY(start_product(b));
    if (choice.op.rows)
        CU_PUT(b, pf_cu_route(b->stream, &choice.op, b->fault), "routing");
    if (stored.rows)
        CU_PUT(b, pf_cu_heads(b->stream, &stored), "queries and keys");
    if (add.y)
        CU_PUT(b, pf_cu_add(b->stream, add.y, add.a, add.x, add.n), "adding");
    if (norm.y)
        CU_PUT(b, pf_cu_norm(b->stream, &norm), "a norm");
    if (between.rows)
        CU_PUT(b, pf_cu_between(b->stream, &between), "norms between blocks");
    if (acted.y)
        CU_PUT(b, pf_cu_act(b->stream, acted.act, acted.gate, acted.up, acted.n, acted.y), "an activation");
    return PF_OK;
}

pf_status pf_cuda_settle(struct cuda_backend *b)
{
    struct held_heads heads = b->heads;
    b->heads.n_deals = b->heads.n_norms = b->heads.n_ropes = 0;
    PF_TRY(pf_cuda_settle_rows(b));
    return pf_cuda_put_heads(b, &heads);
}

void pf_cuda_wrote(struct cuda_backend *b, const float *p, int64_t n)
{
    if (b->x_of && p < b->x_of + b->x_floats && b->x_of < p + n)
        b->x_of = NULL;
}

pf_status pf_cuda_embed(pf_backend *backend, const struct pf_weight *w, const int32_t *ids, int rows, float *x)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const uint8_t *data;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_matrix_at(b, w->data, &data));
    pf_cuda_wrote(b, x, (int64_t)rows * w->n_in);
    return pf_cuda_put(b, pf_cu_embed(b->stream, w->type, data, w->row_bytes, w->n_in, w->scale, ids, rows, x,
                                      &b->tables), "embedding");
}

pf_status pf_cuda_rms_norm(pf_backend *backend, const float *x, const float *w, float eps, int n, int rows, float *y)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cu_norm o = { .x = (float *)(uintptr_t)x, .eps = eps, .n = n, .rows = rows, .y = y, .fault = b->fault };
    bool with_add = b->held.y == x && b->held.n == (int64_t)n * rows;
    bool for_product = y != x && n % 32 == 0 && n <= b->sizes.max_n_in && rows <= b->sizes.max_rows;
    if (with_add) {
        o.add = b->held.x;
        o.a = b->held.a;
        b->held.y = NULL;
    }
    PF_TRY(pf_cuda_floats_at(b, w, (size_t)n, &o.w));
    pf_cuda_wrote(b, y, o.n * (int64_t)rows);
    if (pf_cuda_between_norms(b, &o))
        return PF_OK;
    bool ends = !with_add && pf_cuda_between_ends(b, &o);
    struct cu_between between = b->between;
    b->between.rows = ends ? 0 : between.rows;
    if (y == x && !with_add && !b->held.y && b->heads.n_ropes == 0 && b->heads.n_norms < 2) {
        PF_TRY(pf_cuda_settle_rows(b));
        b->heads.norm[b->heads.n_norms++] = o;
        return PF_OK;
    }
    PF_TRY(pf_cuda_settle(b));
    if (for_product) {
        o.q = b->x;
        b->x_of = y;
        b->x_floats = (int64_t)n * rows;
    }
    if (ends) {
        between.norm = o;
        return pf_cuda_put(b, pf_cu_between(b->stream, &between), "norms between blocks");
    }
    bool aligned = ((uintptr_t)x | (uintptr_t)y | (uintptr_t)o.w) % 16 == 0;         /* of four floats at a time */
    if (for_product && rows == 1 && !with_add && aligned) {
        b->norm = o;
        return PF_OK;
    }
    return pf_cuda_put(b, pf_cu_norm(b->stream, &o), "a norm");
}

pf_status pf_cuda_quantise_x(struct cuda_backend *b, const float *x, int n, int rows, bool quantised, struct cu_x *out)
{
    if (quantised && !(b->x_of == x && b->x_floats >= (int64_t)n * rows)) {
        struct cu_x to = b->x;
        to.f = x;
        CU_PUT(b, pf_cu_quantise(b->stream, &to, n, n, rows, b->fault), "quantising");
        b->x_of = x;
        b->x_floats = (int64_t)n * rows;
    }
    *out = b->x;
    out->f = x;
    return PF_OK;
}

/* The products of l that share the type of the first which is not yet done; marks them. */
static pf_status same_type(struct cuda_backend *b, const struct pf_linear *l, int n_l, unsigned *done,
                           struct cu_linear *out)
{
    out->n_parts = 0;
    for (int i = 0; i < n_l && out->n_parts < CU_MAX_PARTS; i++) {
        const struct pf_weight *w = l[i].w;
        if (*done >> i & 1 || (out->n_parts > 0 && w->type != out->type))
            continue;
        struct cu_part *p = &out->part[out->n_parts++];
        *p = (struct cu_part){ .y = l[i].y, .scale = w->scale, .n_out = w->n_out };
        PF_TRY(pf_cuda_matrix_at(b, w->data, &p->w));
        PF_TRY(pf_cuda_floats_at(b, w->bias, (size_t)w->n_out, &p->bias));
        out->type = w->type;
        out->row_bytes = w->row_bytes;
        *done |= 1u << i;
    }
    return PF_OK;
}

/* A product for the many rows of a prompt, by tiles. */
static pf_status linear_tiles(struct cuda_backend *b, const struct cu_linear *l)
{
    struct cu_tiles o = { .type = l->type, .row_bytes = l->row_bytes, .n_parts = l->n_parts, .n = l->n,
                          .n_columns = l->rows, .x = l->x, .tables = b->tables, .halves = b->halves,
                          .scales = b->block_scales };
    for (int i = 0; i < l->n_parts; i++)
        o.part[i] = (struct cu_tile_part){ .w = l->part[i].w, .scale = l->part[i].scale, .bias = l->part[i].bias,
                                           .y = l->part[i].y, .n_out = l->part[i].n_out };
    return pf_cuda_put(b, pf_cu_tiles(b->stream, &o, &b->shape), "a product");
}

/* One launch of pf_cuda_linear: by tiles, or row by row; held, if its results may be added to something, or handed to
 * the host as they are made. */
static pf_status put_linear(struct cuda_backend *b, const struct cu_linear *l, bool only)
{
    bool few = pf_cu_few_takes(l, b->shared_bytes);
    if (only && l->n_parts == 1 && (few || l->rows == 1))
        return pf_cuda_hold(b, &(struct held_product){ .kind = HELD_LINEAR, .linear = *l, .y = l->part[0].y,
                                                       .n = l->rows * l->part[0].n_out });
    if (few)
        return pf_cuda_put(b, pf_cu_few(b->stream, l, b->shared_bytes), "a product");
    if (b->has_tiles && l->rows > CU_LOOP_ROWS && pf_cuda_is_quantised(l->type))
        return linear_tiles(b, l);
    if (pf_cu_few_floats_takes(l))
        return pf_cuda_put(b, pf_cu_few_floats(b->stream, l), "a product");
    return pf_cuda_put(b, pf_cu_linear(b->stream, l), "a product");
}

/* Activates and quantises rows of n. Few of them leave b->x alone: what it holds is often wanted again. */
static pf_status put_act(struct cuda_backend *b, const struct held_act *a, int n, struct cu_x *out)
{
    int rows = (int)(a->n / n);
    *out = rows <= CU_VECTOR_ROWS ? b->acts : b->x;
    out->f = a->y;
    if (rows > CU_VECTOR_ROWS)
        b->x_of = NULL;
    return pf_cuda_put(b, pf_cu_act_picks(b->stream, a->act, a->gate, a->up, out, n, rows, NULL, NULL, b->fault),
                       "an activation");
}

pf_status pf_cuda_linear(pf_backend *backend, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    bool held;
    PF_TRY(pf_cuda_shared_multiplies(b, l, n_l, x, rows, &held));
    return held ? PF_OK : pf_cuda_multiply(b, l, n_l, x, rows);
}

pf_status pf_cuda_multiply(struct cuda_backend *b, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    struct cu_linear o = { .n = l[0].w->n_in, .rows = rows, .tables = b->tables };
    struct cu_norm norm = b->norm;
    struct held_act acted = b->acted;
    bool begins = norm.y == x && norm.n == o.n, acts = acted.y == x && acted.n == (int64_t)o.n * rows;
    bool quantised = false;
    unsigned done = 0;
    for (int i = 0; i < n_l; i++) {
        quantised |= pf_cuda_is_quantised(l[i].w->type);
        b->base.weight_bytes_read += pf_weight_bytes(l[i].w);
    }
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");            /* which is asked what it has room for */
    acts = acts && quantised;
    b->norm.y = begins ? NULL : norm.y;
    b->acted.y = acts ? NULL : acted.y;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(acts ? put_act(b, &acted, o.n, &o.x) : pf_cuda_quantise_x(b, x, o.n, rows, quantised, &o.x));
    while (done != (1u << n_l) - 1) {
        PF_TRY(same_type(b, l, n_l, &done, &o));
        if (begins) {
            o.norm = norm;
            begins = false;
            if (!pf_cu_linear_norms(&o, b->shared_bytes)) {
                CU_PUT(b, pf_cu_norm(b->stream, &o.norm), "a norm");
                o.norm.y = NULL;
            }
        }
        PF_TRY(put_linear(b, &o, n_l == 1));
        o.norm.y = NULL;
    }
    for (int i = 0; i < n_l; i++)
        pf_cuda_wrote(b, l[i].y, (int64_t)rows * l[i].w->n_out);
    return PF_OK;
}

pf_status pf_cuda_heads(pf_backend *backend, const struct pf_heads_op *h)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const struct pf_weight *w = h->w;
    struct cu_x x = b->h;
    struct cu_linear o = { .n_parts = 1, .n = w->n_in, .rows = h->rows, .type = w->type, .row_bytes = w->row_bytes,
                           .tables = b->tables, .n_heads = h->n_head, .head_rows = h->head_rows,
                           .x_stride = h->x_stride, .y_stride = h->y_stride,
                           .part = { { .y = h->y, .scale = w->scale, .n_out = h->n_out } } };
    x.f = h->x;
    o.x = x;
    b->base.weight_bytes_read += w->row_bytes * (uint64_t)h->n_out * (uint64_t)h->n_head;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_matrix_at(b, w->data, &o.part[0].w));
    if (pf_cuda_is_quantised(w->type))
        CU_PUT(b, pf_cu_quantise(b->stream, &x, w->n_in, h->x_stride, h->rows * h->n_head, b->fault), "quantising");
    pf_cuda_wrote(b, h->y, (int64_t)h->rows * h->n_head * h->y_stride);
    return pf_cuda_put(b, pf_cu_linear(b->stream, &o), "a product by head");
}

pf_status pf_cuda_norm_each(pf_backend *backend, const float *x, const float *w, float eps, int n, int n_each,
                            int rows, float *y)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cu_norm o = { .x = (float *)(uintptr_t)x, .eps = eps, .n = n, .rows = rows * n_each, .n_each = n_each,
                         .y = y, .fault = b->fault };
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, w, (size_t)n * (size_t)n_each, &o.w));
    pf_cuda_wrote(b, y, (int64_t)n * o.rows);
    return pf_cuda_put(b, pf_cu_norm(b->stream, &o), "a norm");
}

pf_status pf_cuda_centre(pf_backend *backend, const float *x, int n, int rows, float *y)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, y, (int64_t)n * rows);
    return pf_cuda_put(b, pf_cu_centre(b->stream, x, n, rows, y), "a mean");
}

pf_status pf_cuda_layer_norm(pf_backend *backend, const float *x, const float *w, const float *bias, float eps, int n,
                             int rows, float *y)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const float *dw, *dbias;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, w, (size_t)n, &dw));
    PF_TRY(pf_cuda_floats_at(b, bias, (size_t)n, &dbias));
    pf_cuda_wrote(b, y, (int64_t)n * rows);
    return pf_cuda_put(b, pf_cu_layer_norm(b->stream, x, dw, dbias, eps, n, rows, y), "a norm");
}

pf_status pf_cuda_choose(pf_backend *backend, const struct pf_choose_op *c)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, pf_cu_choose(b->stream, c, b->scores, b->sizes.max_positions), "choosing positions");
}

pf_status pf_cuda_act(pf_backend *backend, struct pf_act act, const float *gate, const float *up, int64_t n, float *y)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    return pf_cuda_shared_acts(b, act, gate, up, n, y) ? PF_OK : pf_cuda_activate(b, act, gate, up, n, y);
}

pf_status pf_cuda_activate(struct cuda_backend *b, struct pf_act act, const float *gate, const float *up, int64_t n,
                           float *y)
{
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, y, n);
    b->acted = (struct held_act){ act, gate, up, n, y };
    return PF_OK;
}

/* Whether blocks of the product still read y when others have put out what they made. */
static bool reads(const struct held_product *p, const float *y)
{
    return p->kind == HELD_LINEAR && (p->linear.x.f == y || (p->linear.norm.y && p->linear.norm.x == y));
}

/* Whether y += a * x is left to the product that makes x, which is started next. */
static bool joins_product(struct cuda_backend *b, float *y, float a, const float *x, int64_t n)
{
    struct held_product *p = &b->product;
    bool of_rows = p->kind == HELD_LINEAR && p->linear.rows > 1;
    if (p->kind == HELD_NOTHING || of_rows || p->y != x || p->n != n || reads(p, y))
        return false;
    p->residual.x = y;
    p->residual.a = a;
    return true;
}

/* Whether the held experts that make y take over y += a * x or y += sigmoid(gate) * x. The experts stay held: an
 * addition of their sum to the residual stream may follow. */
static bool joins_experts(struct cuda_backend *b, const float *y, const float *gate, float a, const float *x, int64_t n)
{
    struct held_product *p = &b->product;
    struct cu_residual *r = &p->residual;
    bool of_experts = p->kind == HELD_DOWN || p->kind == HELD_TURNS || p->kind == HELD_COMBINE;
    if (!of_experts || p->y != y || p->n != n || r->plus)
        return false;
    r->plus = x;
    r->gate = gate;
    r->b = a;
    return true;
}

pf_status pf_cuda_add(pf_backend *backend, float *y, float a, const float *x, int64_t n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_shared_start(b));     /* its last product may be what is added */
    pf_cuda_wrote(b, y, n);
    if (joins_experts(b, y, NULL, a, x, n) || pf_cuda_between_adds(b, y, a, x, n))
        return PF_OK;
    bool joins = joins_product(b, y, a, x, n);
    PF_TRY(pf_cuda_settle(b));
    if (!joins)
        b->held = (struct held_add){ y, x, a, n };
    return PF_OK;
}

bool pf_cuda_gives(const struct cuda_backend *b, const float *y, int64_t n, struct held_rows *out)
{
    enum { MOST_ROWS = 8 };              /* eight floats of a row at a time cross PCIe at half of what copies make */
    const struct held_product *p = &b->product;
    if (p->kind != HELD_LINEAR || p->linear.rows > MOST_ROWS || y < p->y || y + n > p->y + p->n)
        return false;
    int n_out = p->linear.part[0].n_out;
    *out = (struct held_rows){ (int)((y - p->y) / n_out), (int)(n / n_out), n_out };
    return (y - p->y) % n_out == 0 && n % n_out == 0;
}

pf_status pf_cuda_check_finite(pf_backend *backend, const float *x, int64_t n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct held_rows rows;
    if (pf_cuda_gives(b, x, n, &rows) && n == b->product.n) {
        b->product.given.fault = b->fault;
        return PF_OK;
    }
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, pf_cu_check_finite(b->stream, x, n, b->fault), "a check");
}

pf_status pf_cuda_tops(pf_backend *backend, const float *x, int n, int rows, float *const *to)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cu_tops t;
    PF_TRY(pf_cuda_settle(b));
    for (int r = 0; r < rows; r++) {
        t.to[r] = pf_cuda_seen_by_kernels(to[r]);
        if (!t.to[r])
            PF_FAIL(PF_EINVAL, "the GPU does not see the memory that row %d of the largest logits goes to", r);
    }
    return pf_cuda_put(b, pf_cu_tops(b->stream, &t, x, n, rows), "looking for the largest logits");
}

pf_status pf_cuda_add_gated(pf_backend *backend, float *y, const float *gate, const float *x, int n, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    pf_cuda_wrote(b, y, (int64_t)n * rows);
    if (joins_experts(b, y, gate, 1, x, (int64_t)n * rows))
        return PF_OK;
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, pf_cu_add_gated(b->stream, y, gate, x, n, rows), "adding");
}

pf_status pf_cuda_add_bias(pf_backend *backend, float *y, const float *bias, int n, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const float *at;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, bias, (size_t)n, &at));
    pf_cuda_wrote(b, y, (int64_t)n * rows);
    return pf_cuda_put(b, pf_cu_add_bias(b->stream, y, at, n, rows), "adding");
}

pf_status pf_cuda_softcap(pf_backend *backend, float *x, float cap, int64_t n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, x, n);
    return pf_cuda_put(b, pf_cu_softcap(b->stream, x, cap, n), "limiting logits");
}

pf_status pf_cuda_gate(pf_backend *backend, float *x, const float *gate, int n, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    pf_cuda_wrote(b, x, (int64_t)n * rows);
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, pf_cu_gate(b->stream, x, gate, n, rows), "gating");
}

pf_status pf_cuda_rope(pf_backend *backend, const struct pf_rope_op *ropes, int n_ropes, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    for (int i = 0; i < n_ropes; i++)
        pf_cuda_wrote(b, ropes[i].x, (int64_t)rows * ropes[i].n_head * ropes[i].hd);
    if (n_ropes == 2 && !b->held.y && b->heads.n_ropes == 0) {
        PF_TRY(pf_cuda_settle_rows(b));
        memcpy(b->heads.rope, ropes, sizeof b->heads.rope);
        b->heads.n_ropes = n_ropes;
        b->heads.rows = rows;
        return PF_OK;
    }
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, pf_cu_rope(b->stream, ropes, n_ropes, rows), "a rotation");
}

pf_status pf_cuda_route(pf_backend *backend, const struct pf_route_op *r)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_route_op o = *r;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, r->select_bias, (size_t)r->how->n_expert, &o.select_bias));
    if (r->table) {
        const uint8_t *table;
        PF_TRY(pf_cuda_matrix_at(b, r->table, &table));
        o.table = (const int32_t *)(const void *)table;
    }
    struct cu_choice choice = { o, *o.how, b->fault };
    if (pf_cu_experts_choose(&choice) || (b->share && pf_cu_offer_chooses(&choice))) {
        b->choice = choice;
        return PF_OK;
    }
    return pf_cuda_put(b, pf_cu_route(b->stream, &o, b->fault), "routing");
}

pf_status pf_cuda_copy(pf_backend *backend, const struct pf_copy *copies, int n_copies, int rows)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    for (int i = 0; i < n_copies; i++)
        pf_cuda_wrote(b, copies[i].to,
                      (rows - 1) * copies[i].to_row + (int64_t)copies[i].n_blocks * copies[i].to_block);
    if (n_copies == 1 && pf_cuda_between_copies(b, copies, rows))
        return PF_OK;
    PF_TRY(pf_cuda_settle(b));
    if (n_copies == 2) {
        memcpy(b->heads.deal, copies, sizeof b->heads.deal);
        b->heads.n_deals = n_copies;
        b->heads.deal_rows = rows;
        return PF_OK;
    }
    return pf_cuda_put(b, pf_cu_copy(b->stream, copies, n_copies, rows), "a copy");
}

pf_status pf_cuda_delta(pf_backend *backend, const struct pf_delta_op *d)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_delta_op o = *d;
    struct cu_x x = b->x;
    int n = pf_delta_channels(d), n_out = d->n_v_head * d->d;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, d->conv, (size_t)d->taps * (size_t)n, &o.conv));
    PF_TRY(pf_cuda_floats_at(b, d->a, (size_t)d->n_v_head, &o.a));
    PF_TRY(pf_cuda_floats_at(b, d->dt, (size_t)d->n_v_head * (d->by_key ? (size_t)d->d : 1), &o.dt));
    PF_TRY(pf_cuda_floats_at(b, d->norm, (size_t)d->d, &o.norm));
    pf_cuda_wrote(b, d->mixed, (int64_t)d->rows * n);
    pf_cuda_wrote(b, d->out, (int64_t)d->rows * n_out);
    if (d->d % 32 == 0 && n_out <= b->sizes.max_n_in && d->rows <= b->sizes.max_rows) {
        b->x_of = d->out;
        b->x_floats = (int64_t)d->rows * n_out;
    } else {
        x.q = NULL;
    }
    return pf_cuda_put(b, pf_cu_delta(b->stream, &o, &x, b->fault), "a delta net");
}

pf_status pf_cuda_conv(pf_backend *backend, const struct pf_conv_op *c)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_conv_op o = *c;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, c->w, (size_t)c->taps * (size_t)c->n, &o.w));
    PF_TRY(pf_cuda_floats_at(b, c->bias, (size_t)c->n, &o.bias));
    pf_cuda_wrote(b, c->y, (int64_t)c->rows * c->n);
    return pf_cuda_put(b, pf_cu_conv(b->stream, &o), "a convolution");
}

pf_status pf_cuda_ssm(pf_backend *backend, const struct pf_ssm_op *s)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_ssm_op o = *s;
    size_t n_head = (size_t)s->n_head;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, s->dt_bias, n_head, &o.dt_bias));
    PF_TRY(pf_cuda_floats_at(b, s->a, n_head, &o.a));
    PF_TRY(pf_cuda_floats_at(b, s->skip, n_head, &o.skip));
    PF_TRY(pf_cuda_floats_at(b, s->norm, n_head * (size_t)s->p, &o.norm));
    pf_cuda_wrote(b, s->out, (int64_t)s->rows * s->n_head * s->p);
    return pf_cuda_put(b, pf_cu_ssm(b->stream, &o), "a Mamba2");
}

pf_status pf_cuda_compress(pf_backend *backend, const struct pf_compress_op *c)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_compress_op o = *c;
    PF_TRY(pf_cuda_settle(b));
    if (c->ape)
        PF_TRY(pf_cuda_floats_at(b, c->ape, (size_t)c->ratio * (size_t)c->n * (1 + c->overlaps), &o.ape));
    pf_cuda_wrote(b, c->out, (int64_t)c->n_out * c->n);
    return pf_cuda_put(b, pf_cu_compress(b->stream, &o), "keys of blocks");
}

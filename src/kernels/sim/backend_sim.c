/* The simulated device. See sim.h.
 *
 * Device memory is memory of its own, filled with NaNs where a fetch has not ended, so that a product which reads too
 * early, or reads weights of the host that were never brought over, gives other bits than it should. */
#include "kernels/sim/sim.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/pf_mem.h"
#include "kernels/placed.h"
#include "backend/share.h"

enum { MAX_PIECES = 192, MAX_LINEAR = 8, POISON = 0xff };

struct fetch {
    struct pf_piece pieces[MAX_PIECES];
    int      n;
    uint64_t questions;                  /* fetch_state answers IN_FLIGHT so many more times */
    bool     broken;
    enum pf_fetch_state state;
};

struct sim_backend {
    struct pf_backend base;
    struct pf_sim    *sim;
    pf_backend       *inner;             /* computes */
    uint64_t          used;
    bool              lost;
    bool              recording;         /* operations of the step under way are counted and leave nothing */
    struct pf_placed  placed;

    const uint8_t   **tables[3];         /* [n_expert] addresses of a layer's experts, for experts() */
    int               n_table;

    struct pf_share_sizes sizes;
    struct pf_share_host host;
    struct held { const void *gate, *up, *down; } *held;         /* [n_layer][n_expert] */
    float            *x, *weights;                /* as offered to the host */
    float            *rows;                       /* [n_picks][n_embd] outputs of the picks */
    int32_t          *picks;
    int               offered;                    /* layer, or -1 */
    bool              dealt;                      /* the device has computed its own picks of the offer */
    float            *gate_row, *up_row;          /* [n_ff] */
    float            *low, *added;                /* for adapters: low [n_low], added [n_ff] or [n_embd] */
    int               n_low;
    struct pf_answer  answer;
    struct fetch      fetches[PF_SHARE_TICKETS];
};

static struct sim_backend *sim_of(pf_backend *b)
{
    return (struct sim_backend *)b;
}

static pf_status gone(void)
{
    PF_FAIL(PF_EDEVICE, "the device is lost");
}

/* Counts an operation; from the one at which the device is lost on, it fails. */
static pf_status operate(struct sim_backend *b)
{
    b->base.n_launches++;
    b->lost |= ++b->sim->n_ops == b->sim->lose_at;
    return b->lost ? gone() : PF_OK;
}

/* Counts an operation, and leaves the function that carries it out when the device is lost or only records. */
#define OPERATE(b) do { PF_TRY(operate(b)); if ((b)->recording) return PF_OK; } while (0)

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static uint64_t sim_room(const pf_backend *backend)
{
    const struct sim_backend *b = (const struct sim_backend *)backend;
    uint64_t all = b->sim->memory_bytes ? b->sim->memory_bytes : (uint64_t)1 << 30;
    return all - b->used;
}

static pf_status sim_buf_alloc(pf_backend *backend, size_t bytes, bool shared, void **out)
{
    struct sim_backend *b = sim_of(backend);
    *out = NULL;
    if (b->lost)
        return gone();
    if (++b->sim->n_allocs == b->sim->fail_alloc || (!shared && bytes > sim_room(backend)))
        PF_FAIL(PF_ENOMEM, "no device memory for a buffer of %zu bytes", bytes);
    PF_TRY(b->inner->ops->buf_alloc(b->inner, bytes, shared, out));
    b->used += shared ? 0 : bytes;
    return PF_OK;
}

static void sim_buf_free(pf_backend *backend, void *p, size_t bytes, bool shared)
{
    struct sim_backend *b = sim_of(backend);
    if (!p)
        return;
    b->inner->ops->buf_free(b->inner, p, bytes, shared);
    b->used -= shared ? 0 : bytes;
}

static void sim_buf_copy(pf_backend *backend, const struct pf_buf_copy *c)
{
    struct sim_backend *b = sim_of(backend);
    if (operate(b) == PF_OK)                 /* a failure is heard of when something is waited for */
        b->inner->ops->buf_copy(b->inner, c);
}

static pf_status sim_transfer(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    OPERATE(sim_of(backend));
    memcpy(to, from, bytes);
    return PF_OK;
}

static pf_status sim_place(pf_backend *backend, const void *host, size_t bytes)
{
    struct sim_backend *b = sim_of(backend);
    void *dev;
    if (bytes == 0 || pf_placed_find(&b->placed, host))
        return PF_OK;
    PF_TRY(sim_buf_alloc(backend, bytes, false, &dev));
    memcpy(dev, host, bytes);
    pf_status st = pf_placed_add(&b->placed, host, bytes, dev);
    if (st < 0)
        sim_buf_free(backend, dev, bytes, false);
    return st;
}

/* *out: w with the address of its copy on the device. */
static pf_status on_device(const struct sim_backend *b, const struct pf_weight *w, struct pf_weight *out)
{
    *out = *w;
    out->data = pf_placed_find(&b->placed, w->data);
    if (!out->data)
        PF_FAIL(PF_EDEVICE, "a weight is not in the device's memory");
    return PF_OK;
}

static pf_status sim_finish(pf_backend *backend)
{
    return sim_of(backend)->lost ? gone() : PF_OK;
}

static bool sim_is_lost(pf_backend *backend)
{
    return sim_of(backend)->lost;
}

static pf_status sim_pass(pf_backend *backend, pf_backend *to, void *x_to, const void *x, size_t bytes)
{
    OPERATE(sim_of(backend));
    return sim_transfer(to, x_to, x, bytes);
}

static pf_status sim_begin(pf_backend *backend, const struct pf_repeat *r, bool *replayed)
{
    struct sim_backend *b = sim_of(backend);
    bool may = !r->once && r->rows <= PF_SHARE_ROWS && r->n_logits <= 1;
    *replayed = false;
    PF_TRY(operate(b));
    b->recording = b->sim->again_every && ++b->sim->n_steps % b->sim->again_every == 0 && may;
    return PF_OK;
}

static pf_status sim_end(pf_backend *backend, bool *again)
{
    struct sim_backend *b = sim_of(backend);
    *again = b->recording;
    b->recording = false;
    return sim_finish(backend);
}

/* Its scratch is the host's. */
static uint64_t sim_scratch_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    (void)backend;
    (void)sizes;
    return 0;
}

static pf_status sim_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct sim_backend *b = sim_of(backend);
    struct pf_backend_sizes s = *sizes;
    if (b->lost)
        return gone();
    if (s.max_n_in < s.n_ff)                 /* a pick's down product is an ordinary one here */
        s.max_n_in = s.n_ff;
    if (b->n_table < s.n_expert) {
        for (int i = 0; i < 3; i++) {
            pf_free(b->tables[i]);
            b->tables[i] = pf_alloc_array(PF_MEM_KERNELS, (size_t)s.n_expert, sizeof *b->tables[i]);
            if (!b->tables[i])
                PF_FAIL(PF_ENOMEM, "no memory for a table of %d experts", s.n_expert);
        }
        b->n_table = s.n_expert;
    }
    if (b->n_low < s.expert_rank) {
        pf_free(b->low);
        b->low = pf_alloc_array(PF_MEM_KERNELS, (size_t)s.expert_rank, sizeof *b->low);
        b->n_low = b->low ? s.expert_rank : 0;
        if (!b->low)
            PF_FAIL(PF_ENOMEM, "no memory for adapters of rank %d", s.expert_rank);
    }
    return b->inner->ops->reserve(b->inner, &s);
}

/* ---- Operations: the inner backend's, on the device's weights ---------------------------------------------------- */

static pf_status sim_embed(pf_backend *backend, const struct pf_weight *w, const int32_t *ids, int rows, float *x)
{
    struct sim_backend *b = sim_of(backend);
    struct pf_weight dev;
    OPERATE(b);
    PF_TRY(on_device(b, w, &dev));
    return b->inner->ops->embed(b->inner, &dev, ids, rows, x);
}

static pf_status sim_rms_norm(pf_backend *backend, const float *x, const float *w, float eps, int n, int rows, float *y)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->rms_norm(b->inner, x, w, eps, n, rows, y);
}

static pf_status sim_norm_each(pf_backend *backend, const float *x, const float *w, float eps, int n, int n_each,
                               int rows, float *y)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->norm_each(b->inner, x, w, eps, n, n_each, rows, y);
}

static pf_status sim_centre(pf_backend *backend, const float *x, int n, int rows, float *y)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->centre(b->inner, x, n, rows, y);
}

static pf_status sim_layer_norm(pf_backend *backend, const float *x, const float *w, const float *bias, float eps,
                                int n, int rows, float *y)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->layer_norm(b->inner, x, w, bias, eps, n, rows, y);
}

static pf_status sim_linear(pf_backend *backend, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    struct sim_backend *b = sim_of(backend);
    struct pf_weight dev[MAX_LINEAR];
    struct pf_linear on[MAX_LINEAR];
    OPERATE(b);
    for (int i = 0; i < n_l; i++) {
        PF_TRY(on_device(b, l[i].w, &dev[i]));
        on[i] = (struct pf_linear){ &dev[i], l[i].y };
    }
    return b->inner->ops->linear(b->inner, on, n_l, x, rows);
}

static pf_status sim_heads(pf_backend *backend, const struct pf_heads_op *h)
{
    struct sim_backend *b = sim_of(backend);
    struct pf_heads_op op = *h;
    struct pf_weight dev;
    OPERATE(b);
    PF_TRY(on_device(b, h->w, &dev));
    op.w = &dev;
    return b->inner->ops->heads(b->inner, &op);
}

static pf_status sim_act(pf_backend *backend, struct pf_act act, const float *gate, const float *up, int64_t n,
                         float *y)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->act(b->inner, act, gate, up, n, y);
}

static pf_status sim_add(pf_backend *backend, float *y, float a, const float *x, int64_t n)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->add(b->inner, y, a, x, n);
}

static pf_status sim_softcap(pf_backend *backend, float *x, float cap, int64_t n)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->softcap(b->inner, x, cap, n);
}

static pf_status sim_add_gated(pf_backend *backend, float *y, const float *gate, const float *x, int n, int rows)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->add_gated(b->inner, y, gate, x, n, rows);
}

static pf_status sim_gate(pf_backend *backend, float *x, const float *gate, int n, int rows)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->gate(b->inner, x, gate, n, rows);
}

static pf_status sim_rope(pf_backend *backend, const struct pf_rope_op *ropes, int n_ropes, int rows)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->rope(b->inner, ropes, n_ropes, rows);
}

static pf_status sim_kv_store(pf_backend *backend, const struct pf_kv_view *kv, const float *k, const float *v,
                              const int32_t *pos, int rows)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->kv_store(b->inner, kv, k, v, pos, rows);
}

/* The host's part of attention: whatever it says of queries that are all zeros, all of it has to be there. The device
 * computes everything once more itself. */
static pf_status ask_partials(struct sim_backend *b, const struct pf_attention_op *a)
{
    const struct pf_kv_view *kv = a->kv;
    size_t n_queries = (size_t)a->rows * (size_t)a->n_head, n_chunks = (size_t)(a->by_host->range->end -
           a->by_host->range->first), n = n_chunks * n_queries, stride = pf_partial_floats(kv->hd_v);
    int8_t *q = pf_alloc_array(PF_MEM_KERNELS, n_queries * (size_t)kv->hd_k, 2);
    float *cq = pf_alloc_array(PF_MEM_KERNELS, n_queries, sizeof *cq),
          *part = pf_alloc_array(PF_MEM_KERNELS, n * stride, sizeof *part);
    pf_status st = q && cq && part ? PF_OK : PF_ENOMEM;
    if (st == PF_OK) {
        memset(part, POISON, n * stride * sizeof *part);
        st = b->host.attend(b->host.ctx, a->by_host->il, a->by_host->part, &(struct pf_partials_op){
            .kv = kv, .q = q, .cq = cq, .part = part, .n_q = a->rows * (a->n_head / kv->n_kv_head) });
    }
    for (size_t i = 0; st == PF_OK && i < n; i++)
        st = isfinite(part[i * stride]) && part[i * stride + (size_t)kv->hd_v + 1] > 0 ? PF_OK : PF_EDEVICE;
    pf_free(q);
    pf_free(cq);
    pf_free(part);
    b->sim->n_attended += st == PF_OK;
    return st;
}

static pf_status sim_attention(pf_backend *backend, const struct pf_attention_op *a)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    if (a->by_host && ask_partials(b, a) < 0)
        PF_FAIL(PF_EDEVICE, "the host's part of attention is not there");
    if (a->by_host)
        PF_TRY(operate(b));
    return b->inner->ops->attention(b->inner, a);
}

static pf_status sim_choose(pf_backend *backend, const struct pf_choose_op *c)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->choose(b->inner, c);
}

static pf_status sim_route(pf_backend *backend, const struct pf_route_op *r)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->route(b->inner, r);
}

static pf_status sim_copy(pf_backend *backend, const struct pf_copy *copies, int n_copies, int rows)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->copy(b->inner, copies, n_copies, rows);
}

static pf_status sim_delta(pf_backend *backend, const struct pf_delta_op *d)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->delta(b->inner, d);
}

static pf_status sim_add_bias(pf_backend *backend, float *y, const float *bias, int n, int rows)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->add_bias(b->inner, y, bias, n, rows);
}

static pf_status sim_conv(pf_backend *backend, const struct pf_conv_op *c)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->conv(b->inner, c);
}

static pf_status sim_ssm(pf_backend *backend, const struct pf_ssm_op *s)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->ssm(b->inner, s);
}

static pf_status sim_compress(pf_backend *backend, const struct pf_compress_op *c)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->compress(b->inner, c);
}

static pf_status sim_mix(pf_backend *backend, const struct pf_mix_op *m)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->mix(b->inner, m);
}

static pf_status sim_streams_read(pf_backend *backend, const struct pf_streams_op *s)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->streams_read(b->inner, s);
}

static pf_status sim_streams_write(pf_backend *backend, const struct pf_streams_op *s)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->streams_write(b->inner, s);
}

static pf_status sim_gated_read(pf_backend *backend, const struct pf_gated_op *g)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->gated_read(b->inner, g);
}

static pf_status sim_gated_write(pf_backend *backend, const struct pf_gated_op *g)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->gated_write(b->inner, g);
}

static pf_status sim_agree(pf_backend *backend, const struct pf_agree_op *a)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->agree(b->inner, a);
}

static pf_status sim_spread(pf_backend *backend, const struct pf_spread_op *s)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->spread(b->inner, s);
}

static pf_status table_on_device(const struct sim_backend *b, const struct pf_expert_weight *w, int n_expert,
                                 const uint8_t **table)
{
    for (int x = 0; x < n_expert; x++) {
        table[x] = pf_placed_find(&b->placed, w->data[x]);
        if (!table[x])
            PF_FAIL(PF_EDEVICE, "an expert is not in the device's memory");
    }
    return PF_OK;
}

static pf_status sim_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct sim_backend *b = sim_of(backend);
    struct pf_expert_weight gate = *e->gate, up = *e->up, down = *e->down;
    struct pf_experts_op op = *e;
    OPERATE(b);
    PF_TRY(table_on_device(b, e->gate, e->n_expert, b->tables[0]));
    PF_TRY(table_on_device(b, e->up, e->n_expert, b->tables[1]));
    PF_TRY(table_on_device(b, e->down, e->n_expert, b->tables[2]));
    gate.data = b->tables[0];
    up.data = b->tables[1];
    down.data = b->tables[2];
    op.gate = &gate;
    op.up = &up;
    op.down = &down;
    return b->inner->ops->experts(b->inner, &op);
}

static pf_status sim_experts_begin(pf_backend *backend, const struct pf_experts_op *e)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->experts_begin(b->inner, e);
}

static pf_status sim_experts_part(pf_backend *backend, const int *experts, int n)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->experts_part(b->inner, experts, n);
}

static pf_status sim_experts_given(pf_backend *backend, const int *experts, int n, const float *y)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->experts_given(b->inner, experts, n, y);
}

static pf_status sim_experts_end(pf_backend *backend)
{
    struct sim_backend *b = sim_of(backend);
    OPERATE(b);
    return b->inner->ops->experts_end(b->inner);
}

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

static void *floats(size_t n)
{
    return pf_alloc_array(PF_MEM_KERNELS, n, sizeof(float));
}

static pf_status sim_share_open(pf_backend *backend, const struct pf_share_sizes *s, const struct pf_share_host *host)
{
    struct sim_backend *b = sim_of(backend);
    size_t n_picks = PF_SHARE_ROWS * (size_t)s->n_used;
    b->sizes = *s;
    b->host = *host;
    b->offered = -1;
    b->held = pf_alloc_array(PF_MEM_KERNELS, (size_t)s->n_layer * (size_t)s->n_expert, sizeof *b->held);
    b->x = floats(PF_SHARE_ROWS * (size_t)s->n_embd);
    b->weights = floats(n_picks);
    b->picks = floats(n_picks);
    b->rows = floats(n_picks * (size_t)s->n_embd);
    b->gate_row = floats((size_t)s->n_ff);
    b->up_row = floats((size_t)s->n_ff);
    b->added = floats((size_t)(s->n_ff > s->n_embd ? s->n_ff : s->n_embd));
    b->answer = (struct pf_answer){ .pick = pf_alloc_array(PF_MEM_KERNELS, n_picks, sizeof *b->answer.pick),
                                    .act = floats(n_picks * (size_t)s->n_ff),
                                    .y = floats(n_picks * (size_t)s->n_embd) };
    if (!b->held || !b->x || !b->weights || !b->picks || !b->rows || !b->gate_row || !b->up_row || !b->added ||
        !b->answer.pick || !b->answer.act || !b->answer.y)
        PF_FAIL(PF_ENOMEM, "no memory to share experts with the host");
    return PF_OK;
}

/* y = w x of one expert and one row, w's data being at data, without what adapters add. */
static pf_status plain_product(struct sim_backend *b, const struct pf_expert_weight *w, int expert, const void *data,
                               const float *x, float *y)
{
    struct pf_weight one = { .data = data, .type = w->type, .n_in = w->n_in, .n_out = w->n_out,
                             .row_bytes = w->row_bytes, .scale = w->scale ? w->scale[expert] : 1,
                             .bias = w->bias ? w->bias + (size_t)expert * (size_t)w->n_out : NULL };
    return b->inner->ops->linear(b->inner, &(struct pf_linear){ &one, y }, 1, x, 1);
}

static pf_status product(struct sim_backend *b, const struct pf_expert_weight *w, int expert, const void *data,
                         const float *x, float *y)
{
    PF_TRY(plain_product(b, w, expert, data, x, y));
    for (const struct pf_expert_lora *l = w->lora; l; l = l->next) {
        const void *at_a = pf_placed_find(&b->placed, l->a.data[expert]),
                   *at_b = pf_placed_find(&b->placed, l->b.data[expert]);
        if (!at_a || !at_b || l->a.n_out > b->n_low)
            PF_FAIL(PF_EDEVICE, "an adapter is not in the device's memory, or has no room");
        PF_TRY(plain_product(b, &l->a, expert, at_a, x, b->low));
        PF_TRY(plain_product(b, &l->b, expert, at_b, b->low, b->added));
        PF_TRY(b->inner->ops->add(b->inner, y, w->scale ? l->scale * w->scale[expert] : l->scale, b->added, w->n_out));
    }
    return PF_OK;
}

static void weigh(float *x, int n, float weight)
{
    for (int i = 0; i < n; i++)
        x[i] *= weight;
}

static pf_status run_pick(struct sim_backend *b, const struct pf_experts_op *e, int pick, const struct held *at)
{
    int expert = e->picks[pick];
    const float *x = e->x + (size_t)(pick / e->n_used) * (size_t)e->gate->n_in;
    PF_TRY(product(b, e->gate, expert, at->gate, x, b->gate_row));
    PF_TRY(product(b, e->up, expert, at->up, x, b->up_row));
    if (e->weigh_input) {
        weigh(b->gate_row, e->gate->n_out, e->weights[pick]);
        weigh(b->up_row, e->gate->n_out, e->weights[pick]);
    }
    PF_TRY(b->inner->ops->act(b->inner, e->act, b->gate_row, b->up_row, e->gate->n_out, b->gate_row));
    return product(b, e->down, expert, at->down, b->gate_row, b->rows + (size_t)pick * (size_t)e->down->n_out);
}

static pf_status take_pick(struct sim_backend *b, int il, const struct pf_experts_op *e, int pick)
{
    const struct pf_handed *h = &b->answer.pick[pick];
    int n_out = e->down->n_out;
    float *y = b->rows + (size_t)pick * (size_t)n_out;
    switch (h->by) {
    case PF_BY_HOST:
        memcpy(y, b->answer.y + (size_t)pick * (size_t)n_out, (size_t)n_out * sizeof *y);
        return PF_OK;
    case PF_BY_DOWN:
        return product(b, e->down, e->picks[pick], h->down, b->answer.act + (size_t)pick * (size_t)e->gate->n_out, y);
    case PF_BY_COPY:
        return run_pick(b, e, pick, &(struct held){ h->gate, h->up, h->down });
    case PF_BY_PLACE:
        assert(b->dealt);
        return run_pick(b, e, pick, &(struct held){ h->gate, h->up, h->down });
    case PF_BY_DEVICE:
        return run_pick(b, e, pick, &b->held[(size_t)il * (size_t)b->sizes.n_expert + (size_t)e->picks[pick]]);
    }
    return PF_OK;
}

static void add_picks(const struct sim_backend *b, const struct pf_experts_op *e)
{
    int n = e->down->n_out;
    memset(e->y, 0, (size_t)e->rows * (size_t)n * sizeof *e->y);
    for (int p = 0; p < e->rows * e->n_used; p++) {
        float *y = e->y + (size_t)(p / e->n_used) * (size_t)n;
        for (int i = 0; i < n; i++)
            y[i] = fmaf(e->weigh_input ? 1.0f : e->weights[p], b->rows[(size_t)p * (size_t)n + (size_t)i], y[i]);
    }
}

static pf_status sim_offer(pf_backend *backend, int il, const struct pf_experts_op *e)
{
    struct sim_backend *b = sim_of(backend);
    size_t n_picks = (size_t)e->rows * (size_t)e->n_used;
    OPERATE(b);
    memcpy(b->x, e->x, (size_t)e->rows * (size_t)e->gate->n_in * sizeof *b->x);
    memcpy(b->picks, e->picks, n_picks * sizeof *b->picks);
    memcpy(b->weights, e->weights, n_picks * sizeof *b->weights);
    b->offered = il;
    b->dealt = false;
    return PF_OK;
}

static void sim_dealt(pf_backend *backend, int il)
{
    struct sim_backend *b = sim_of(backend);
    assert(b->offered == il && !b->dealt);
    b->dealt = true;
}

static bool holds_all(const struct sim_backend *b, int il, const struct pf_experts_op *e)
{
    const struct held *held = b->held + (size_t)il * (size_t)b->sizes.n_expert;
    for (int p = 0; p < e->rows * e->n_used; p++)
        if (!held[e->picks[p]].gate)
            return false;
    return true;
}

static pf_status sim_share_experts(pf_backend *backend, int il, const struct pf_experts_op *e)
{
    struct sim_backend *b = sim_of(backend);
    size_t n_picks = (size_t)e->rows * (size_t)e->n_used;
    struct pf_experts_op shown = *e;
    OPERATE(b);
    assert(b->offered == il);
    shown.x = b->x;
    shown.picks = b->picks;
    shown.weights = b->weights;
    if (holds_all(b, il, e)) {               /* a device might show a later layer's already */
        memset(b->x, POISON, (size_t)e->rows * (size_t)e->gate->n_in * sizeof *b->x);
        memset(b->weights, POISON, n_picks * sizeof *b->weights);
    }
    memset(b->answer.act, POISON, n_picks * (size_t)b->sizes.n_ff * sizeof *b->answer.act);
    memset(b->answer.y, POISON, n_picks * (size_t)b->sizes.n_embd * sizeof *b->answer.y);
    PF_TRY(b->host.serve(b->host.ctx, &(struct pf_offer){ il, &shown, true }, &b->answer));
    b->offered = -1;
    b->host.served(b->host.ctx);
    b->lost |= b->sim->lose_in_serve && e->rows == 1;
    PF_TRY(operate(b));
    for (size_t p = 0; p < n_picks; p++)
        PF_TRY(take_pick(b, il, e, (int)p));
    add_picks(b, e);
    return PF_OK;
}

static pf_status sim_hold(pf_backend *backend, int il, int expert, const void *gate, const void *up, const void *down)
{
    struct sim_backend *b = sim_of(backend);
    PF_TRY(operate(b));
    b->held[(size_t)il * (size_t)b->sizes.n_expert + (size_t)expert] = (struct held){ gate, up, down };
    return PF_OK;
}

static const void *sim_pin(pf_backend *backend, void *host, size_t bytes)
{
    (void)bytes;
    sim_of(backend)->sim->n_pinned++;
    return sim_of(backend)->sim->sees_host ? host : NULL;
}

static void sim_unpin(pf_backend *backend, void *host)
{
    (void)host;
    sim_of(backend)->sim->n_pinned--;
}

static pf_status sim_fetch(pf_backend *backend, int ticket, const struct pf_piece *pieces, int n)
{
    struct sim_backend *b = sim_of(backend);
    struct fetch *f = &b->fetches[ticket];
    uint64_t count = ++b->sim->n_fetches;
    PF_TRY(operate(b));
    if (count == b->sim->refuse_fetch)
        PF_FAIL(PF_EDEVICE, "a copy could not be begun");
    *f = (struct fetch){ .n = n, .state = PF_FETCH_IN_FLIGHT };
    f->broken = b->sim->break_every && count % b->sim->break_every == 0;
    f->questions = b->sim->late_every && count % b->sim->late_every == 0 ? b->sim->late_for : 0;
    for (int i = 0; i < n; i++) {
        f->pieces[i] = pieces[i];
        memset(pieces[i].to, POISON, pieces[i].bytes);
    }
    return PF_OK;
}

static enum pf_fetch_state sim_fetch_wait(pf_backend *backend, int ticket)
{
    struct sim_backend *b = sim_of(backend);
    struct fetch *f = &b->fetches[ticket];
    if (f->state != PF_FETCH_IN_FLIGHT)
        return f->state;
    if (!f->broken && !b->lost)
        for (int i = 0; i < f->n; i++)
            memcpy(f->pieces[i].to, f->pieces[i].from, f->pieces[i].bytes);
    f->state = f->broken || b->lost ? PF_FETCH_FAILED : PF_FETCH_READY;
    return f->state;
}

static enum pf_fetch_state sim_fetch_state(pf_backend *backend, int ticket)
{
    struct fetch *f = &sim_of(backend)->fetches[ticket];
    if (f->state == PF_FETCH_IN_FLIGHT && f->questions > 0) {
        f->questions--;
        return PF_FETCH_IN_FLIGHT;
    }
    return sim_fetch_wait(backend, ticket);
}

static uint64_t sim_fetch_ns(pf_backend *backend, int ticket)
{
    (void)ticket;
    return sim_of(backend)->sim->fetch_ns;
}

static pf_status sim_use(pf_backend *backend, int ticket)
{
    if (sim_fetch_wait(backend, ticket) == PF_FETCH_FAILED)
        PF_FAIL(PF_EDEVICE, "a copy to the device failed");
    return operate(sim_of(backend));
}

static pf_status sim_release(pf_backend *backend, int ticket)
{
    (void)ticket;
    return operate(sim_of(backend));
}

static pf_status sim_open_copies(pf_backend *backend)
{
    (void)backend;
    return PF_OK;
}

static pf_status sim_lend(pf_backend *backend, const void *host, size_t bytes, void *dev)
{
    struct sim_backend *b = sim_of(backend);
    if (dev)
        return pf_placed_add(&b->placed, host, bytes, dev);
    pf_placed_remove(&b->placed, host);
    return PF_OK;
}

static size_t sim_attend_room(pf_backend *backend)
{
    return sim_of(backend)->sim->attend_floats;
}

static void sim_attended(pf_backend *backend, int part, struct pf_attended *out)
{
    (void)part;
    *out = sim_of(backend)->sim->attended;
}

static void sim_handoffs(pf_backend *backend, struct pf_handoff_stats *out)
{
    (void)backend;
    *out = (struct pf_handoff_stats){ .n = 0 };
}

static void sim_handoffs_reset(pf_backend *backend)
{
    (void)backend;
}

static const struct pf_share_ops sim_share = {
    .open = sim_share_open, .attend_room = sim_attend_room, .attended = sim_attended,
    .offer = sim_offer, .experts = sim_share_experts,
    .dealt = sim_dealt, .hold = sim_hold, .open_copies = sim_open_copies, .lend = sim_lend,
    .pin = sim_pin, .unpin = sim_unpin,
    .fetch = sim_fetch, .fetch_state = sim_fetch_state, .fetch_wait = sim_fetch_wait, .fetch_ns = sim_fetch_ns,
    .use = sim_use, .release = sim_release,
    .handoffs = sim_handoffs, .handoffs_reset = sim_handoffs_reset,
};

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void sim_close(pf_backend *backend)
{
    struct sim_backend *b = sim_of(backend);
    for (size_t i = 0; i < b->placed.n; i++)
        sim_buf_free(backend, b->placed.ranges[i].dev, b->placed.ranges[i].bytes, false);
    pf_placed_free(&b->placed);
    for (int i = 0; i < 3; i++)
        pf_free(b->tables[i]);
    void *owned[] = { b->held, b->x, b->weights, b->picks, b->rows, b->gate_row, b->up_row, b->low, b->added,
                      b->answer.pick, b->answer.act, b->answer.y };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        pf_free(owned[i]);
    if (b->inner)
        b->inner->ops->close(b->inner);
    pf_free(b);
}

static const char *sim_describe(const pf_backend *backend)
{
    (void)backend;
    return "simulated";
}

static const struct pf_backend_ops sim_ops = {
    .name = "sim", .close = sim_close, .describe = sim_describe, .room = sim_room, .place = sim_place,
    .buf_alloc = sim_buf_alloc, .buf_free = sim_buf_free, .buf_copy = sim_buf_copy, .upload = sim_transfer,
    .download = sim_transfer, .pass = sim_pass, .finish = sim_finish, .is_lost = sim_is_lost,
    .scratch_bytes = sim_scratch_bytes, .reserve = sim_reserve,
    .begin = sim_begin, .end = sim_end, .embed = sim_embed,
    .rms_norm = sim_rms_norm, .norm_each = sim_norm_each, .centre = sim_centre, .layer_norm = sim_layer_norm,
    .linear = sim_linear, .heads = sim_heads, .act = sim_act,
    .softcap = sim_softcap,
    .add = sim_add, .add_gated = sim_add_gated, .gate = sim_gate, .rope = sim_rope, .kv_store = sim_kv_store,
    .attention = sim_attention,
    .choose = sim_choose, .route = sim_route, .copy = sim_copy, .delta = sim_delta, .conv = sim_conv, .ssm = sim_ssm,
    .add_bias = sim_add_bias,
    .compress = sim_compress, .mix = sim_mix, .streams_read = sim_streams_read, .streams_write = sim_streams_write,
    .gated_read = sim_gated_read, .gated_write = sim_gated_write, .agree = sim_agree, .spread = sim_spread,
    .experts = sim_experts, .experts_begin = sim_experts_begin, .experts_part = sim_experts_part,
    .experts_given = sim_experts_given, .experts_end = sim_experts_end,
    .share = &sim_share,
};

pf_status pf_backend_sim_open(pf_backend **out, struct pf_sim *sim)
{
    *out = NULL;
    struct sim_backend *b = pf_alloc(PF_MEM_KERNELS, sizeof *b);
    if (!b)
        PF_FAIL(PF_ENOMEM, "no memory for the simulated device");
    b->base.ops = &sim_ops;
    b->sim = sim;
    pf_status st = pf_backend_cpu_open(&b->inner, 1, PF_ISA_ALL);
    if (st < 0) {
        sim_close(&b->base);
        return st;
    }
    *out = &b->base;
    return PF_OK;
}

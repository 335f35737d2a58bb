/* Routed experts: few rows go pick by pick through gate and up, then down; the picks of a prompt are sorted by expert
 * and go by tiles. */
#include "kernels/cuda/cuda_backend.h"

static pf_status expert_weight(struct cuda_backend *b, const struct pf_expert_weight *w, int n_expert,
                               struct cu_expert_weight *out)
{
    *out = (struct cu_expert_weight){ .type = w->type, .row_bytes = w->row_bytes };
    PF_TRY(pf_cuda_table_at(b, w->data, n_expert, &out->data));
    PF_TRY(pf_cuda_floats_at(b, w->scale, (size_t)n_expert, &out->scale));
    return pf_cuda_floats_at(b, w->bias, (size_t)n_expert * (size_t)w->n_out, &out->bias);
}

/* a = act(gate x, up x) for every pick, quantised if down wants that. */
static pf_status gate_up(struct cuda_backend *b, const struct pf_experts_op *e, bool quantised)
{
    int n_ff = e->gate->n_out, n_picks = e->rows * e->n_used;
    struct cu_experts o = { .act = e->act, .weigh_input = e->weigh_input, .n = e->gate->n_in, .n_out = n_ff,
                            .n_used = e->n_used, .rows = e->rows, .picks = e->picks, .weights = e->weights, .tables = b->tables };
    struct cu_x out = b->a;
    bool codes = pf_cuda_is_quantised(e->gate->type) || pf_cuda_is_quantised(e->up->type);
    PF_TRY(pf_cuda_quantise_x(b, e->x, o.n, e->rows, codes, &o.x));
    PF_TRY(expert_weight(b, e->gate, e->n_expert, &o.w));
    PF_TRY(expert_weight(b, e->up, e->n_expert, &o.w2));
    if (e->gate->type == e->up->type) {
        out.q = quantised ? out.q : NULL;
        return pf_cuda_check(pf_cu_gate_up(b->stream, &o, &out, b->fault), "gate and up");
    }
    float *gate = (float *)(uintptr_t)out.f;
    CU_TRY(pf_cu_expert_rows(b->stream, &o, gate), "gate");
    o.w = o.w2;
    CU_TRY(pf_cu_expert_rows(b->stream, &o, b->up), "up");
    CU_TRY(pf_cu_act(b->stream, e->act, gate, b->up, (int64_t)n_picks * n_ff, gate), "an activation");
    return quantised ? pf_cuda_check(pf_cu_quantise(b->stream, &out, n_ff, n_ff, n_picks, b->fault), "quantising") : PF_OK;
}

/* Adds a matrix of every expert to a product by tiles. */
static pf_status add_part(struct cuda_backend *b, const struct pf_experts_op *e, const struct pf_expert_weight *w, float *y,
                          struct cu_tiles *o)
{
    struct cu_expert_weight cw;
    PF_TRY(expert_weight(b, w, e->n_expert, &cw));
    o->type = w->type;
    o->row_bytes = w->row_bytes;
    o->n = w->n_in;
    o->part[o->n_parts++] = (struct cu_tile_part){ .table = cw.data, .scales = cw.scale, .bias = cw.bias, .y = y,
                                                   .n_out = w->n_out };
    return PF_OK;
}

static pf_status run_tiles(struct cuda_backend *b, const struct cu_tiles *o)
{
    return pf_cuda_check(pf_cu_tiles(b->stream, o, &b->shape), "a product of experts");
}

/* The picks of a prompt, grouped by expert in b->groups. */
static pf_status experts_of_prompt(struct cuda_backend *b, const struct pf_experts_op *e)
{
    int n_ff = e->gate->n_out, n_picks = e->rows * e->n_used;
    float *gate = (float *)(uintptr_t)b->a.f;
    struct cu_tiles o = { .n_columns = n_picks, .tables = b->tables, .groups = b->groups, .n_expert = e->n_expert,
                          .x_divisor = e->n_used, .weights = e->weigh_input ? e->weights : NULL };
    PF_TRY(pf_cuda_quantise_x(b, e->x, e->gate->n_in, e->rows, true, &o.x));
    CU_TRY(pf_cu_group(b->stream, e->picks, n_picks, e->n_expert, b->shape.width, b->groups), "sorting picks");
    PF_TRY(add_part(b, e, e->gate, gate, &o));
    if (e->up->type != e->gate->type) {
        PF_TRY(run_tiles(b, &o));
        o.n_parts = 0;
    }
    PF_TRY(add_part(b, e, e->up, b->up, &o));
    PF_TRY(run_tiles(b, &o));
    CU_TRY(pf_cu_act_quantise(b->stream, e->act, gate, b->up, &b->a, n_ff, n_picks, b->fault), "an activation");
    o.x = b->a;
    o.x_divisor = 1;
    o.weights = NULL;
    o.n_parts = 0;
    PF_TRY(add_part(b, e, e->down, b->pick_out, &o));
    PF_TRY(run_tiles(b, &o));
    const float *weights = e->weigh_input ? NULL : e->weights;
    return pf_cuda_check(pf_cu_combine(b->stream, b->pick_out, weights, e->down->n_out, e->n_used, e->rows, e->y),
                         "adding experts");
}

static uint64_t expert_bytes(const struct pf_expert_weight *w)
{
    return w->row_bytes * (uint64_t)w->n_out;
}

static bool all_quantised(const struct pf_experts_op *e)
{
    return pf_cuda_is_quantised(e->gate->type) && pf_cuda_is_quantised(e->up->type) && pf_cuda_is_quantised(e->down->type);
}

pf_status pf_cuda_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cu_experts o = { .weigh_input = e->weigh_input, .n = e->gate->n_out, .n_out = e->down->n_out,
                            .n_used = e->n_used, .rows = e->rows, .picks = e->picks, .weights = e->weights, .x = b->a, .tables = b->tables };
    PF_TRY(pf_cuda_settle(b));
    uint64_t bytes = expert_bytes(e->gate) + expert_bytes(e->up) + expert_bytes(e->down);
    b->base.weight_bytes_read += (uint64_t)(e->rows * e->n_used) * bytes;
    if (b->has_tiles && e->rows > CU_VECTOR_ROWS && all_quantised(e)) {
        pf_cuda_wrote(b, e->y, (int64_t)e->rows * e->down->n_out);
        return experts_of_prompt(b, e);
    }
    PF_TRY(gate_up(b, e, pf_cuda_is_quantised(e->down->type)));
    PF_TRY(expert_weight(b, e->down, e->n_expert, &o.w));
    pf_cuda_wrote(b, e->y, (int64_t)e->rows * e->down->n_out);
    return pf_cuda_check(pf_cu_down(b->stream, &o, e->y), "down");
}

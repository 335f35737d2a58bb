/* Routed experts: few rows go pick by pick through gate and up, then down; the picks of a prompt are sorted by expert
 * and go by tiles. */
#include "kernels/cuda/cu_several_api.h"
#include "kernels/cuda/cuda_backend.h"

/* table: addresses of the experts on the device; NULL: all were placed. */
static pf_status expert_weight(struct cuda_backend *b, const struct pf_expert_weight *w, int n_expert,
                               const uint8_t *const *table, struct cu_expert_weight *out)
{
    *out = (struct cu_expert_weight){ .type = w->type, .row_bytes = w->row_bytes, .data = table };
    if (!table)
        PF_TRY(pf_cuda_in_step(pf_cuda_table_at(b, w->data, n_expert, &out->data)));
    PF_TRY(pf_cuda_floats_at(b, w->scale, (size_t)n_expert, &out->scale));
    return pf_cuda_floats_at(b, w->bias, (size_t)n_expert * (size_t)w->n_out, &out->bias);
}

/* The tables of gate, up and down: [3][n_expert] behind one another; NULLs of a layer that was placed. */
struct tables {
    const uint8_t *const *gate, *const *up, *const *down;
};

static struct tables tables_at(const uint8_t **at, int n_expert)
{
    return (struct tables){ at, at ? at + n_expert : NULL, at ? at + 2 * n_expert : NULL };
}

/* Adds the adapters' deltas to y [picks][w->n_out], the output of w; pick p's input is row p / n_used of x. only: a
 * table of experts, and picks of experts without an address in it get nothing; NULL: all picks do. */
static pf_status add_low(struct cuda_backend *b, const struct pf_experts_op *e, const struct pf_expert_weight *w,
                         const uint8_t *const *only, const struct cu_x *x, int n_used, float *y)
{
    int n_picks = e->rows * e->n_used;
    for (const struct pf_expert_lora *l = w->lora; l; l = l->next) {
        struct cu_experts low = { .n = l->a.n_in, .n_out = l->a.n_out, .n_used = n_used, .rows = n_picks / n_used,
                                  .picks = e->picks, .x = *x, .tables = b->tables, .only = only };
        struct cu_experts sum = { .n = l->b.n_in, .n_out = l->b.n_out, .n_used = 1, .rows = n_picks, .picks = e->picks,
                                  .x = { .f = b->low }, .tables = b->tables, .only = only, .adds = true,
                                  .add = l->scale };
        PF_TRY(expert_weight(b, &l->a, e->n_expert, NULL, &low.w));
        PF_TRY(expert_weight(b, &l->b, e->n_expert, NULL, &sum.w));
        PF_TRY(pf_cuda_floats_at(b, w->scale, (size_t)e->n_expert, &sum.add_scale));
        CU_PUT(b, pf_cu_expert_rows(b->stream, &low, b->low), "an adapter");
        CU_PUT(b, pf_cu_expert_rows(b->stream, &sum, y), "an adapter");
    }
    return PF_OK;
}

/* Where activations go: to the op's pick_act, as floats that another card reads, or to b->a, which down reads. */
enum to { TO_DOWN, TO_PICK_ACT };

static struct cu_x output_of(const struct cuda_backend *b, const struct pf_experts_op *e, enum to to)
{
    struct cu_x out = b->a;
    if (to == TO_PICK_ACT)
        return (struct cu_x){ .f = e->pick_act };
    out.q = pf_cuda_is_quantised(e->down->type) ? out.q : NULL;
    return out;
}

/* act(gate, b->up) for the picks of the experts in `only`: floats if somebody reads them, and codes. gate may be where
 * the floats go. */
static pf_status activate(struct cuda_backend *b, const struct pf_experts_op *e, const float *gate,
                          const uint8_t *const *only, enum to to)
{
    struct cu_x out = output_of(b, e, to);
    out.f = e->down->lora || !out.q ? out.f : NULL;
    return pf_cuda_put(b, pf_cu_act_picks(b->stream, e->act, gate, b->up, &out, e->gate->n_out, e->rows * e->n_used,
                                          e->picks, only, b->fault), "an activation");
}

/* Gate and up as one operation of kernels. */
static pf_status gate_up_op(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table,
                            struct cu_experts *o)
{
    struct tables at = tables_at(table, e->n_expert);
    bool codes = pf_cuda_is_quantised(e->gate->type) || pf_cuda_is_quantised(e->up->type);
    *o = (struct cu_experts){ .act = e->act, .weigh_input = e->weigh_input, .n = e->gate->n_in, .n_out = e->gate->n_out,
                              .n_used = e->n_used, .rows = e->rows, .picks = e->picks, .weights = e->weights,
                              .tables = b->tables, .with = b->with, .n_placed = table ? 0 : e->n_expert };
    PF_TRY(pf_cuda_quantise_x(b, e->x, o->n, e->rows, codes, &o->x));
    PF_TRY(expert_weight(b, e->gate, e->n_expert, at.gate, &o->w));
    return expert_weight(b, e->up, e->n_expert, at.up, &o->w2);
}

/* Whether one kernel does gate and up. */
static bool is_one_kernel(const struct pf_experts_op *e)
{
    return e->gate->type == e->up->type && !e->gate->lora && !e->up->lora;
}

/* act(gate x, up x) for every pick. */
static pf_status gate_up(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table, enum to to)
{
    struct tables at = tables_at(table, e->n_expert);
    struct cu_experts o;
    const struct cu_choice *choice = table ? &(struct cu_choice){ .op.rows = 0 } : &b->chosen;
    struct cu_x out = output_of(b, e, to);
    PF_TRY(gate_up_op(b, e, table, &o));
    if (is_one_kernel(e)) {
        CU_TRY(cudaSetDevice(b->device), "choosing the GPU");        /* which is asked what it has room for */
        if (pf_cu_sixteen_takes(&o))
            return pf_cuda_put(b, pf_cu_sixteen(b->stream, &o, &out, b->fault), "gate and up");
        if (pf_cu_several_takes(&o, b->shared_bytes))
            return pf_cuda_put(b, pf_cu_several(b->stream, &o, &out, b->fault), "gate and up");
        return pf_cuda_put(b, pf_cu_gate_up_of(b->stream, &o, choice, &out, b->shared_bytes, b->fault),
                           "gate and up");
    }
    float *gate = (float *)(uintptr_t)b->a.f;
    CU_PUT(b, pf_cu_expert_rows(b->stream, &o, gate), "gate");
    o.w = o.w2;
    CU_PUT(b, pf_cu_expert_rows(b->stream, &o, b->up), "up");
    PF_TRY(add_low(b, e, e->gate, at.gate, &o.x, e->n_used, gate));
    PF_TRY(add_low(b, e, e->up, at.gate, &o.x, e->n_used, b->up));
    return activate(b, e, gate, at.gate, to);
}

pf_status pf_cuda_gate_up(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table)
{
    return gate_up(b, e, table, TO_DOWN);
}

/* Each pick's down product, to pick_out. */
pf_status pf_cuda_down_rows(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table)
{
    struct cu_experts o = { .n = e->gate->n_out, .n_out = e->down->n_out, .n_used = 1, .rows = e->rows * e->n_used,
                            .picks = e->picks, .x = b->a, .tables = b->tables };
    const uint8_t *const *only = tables_at(table, e->n_expert).down;
    PF_TRY(expert_weight(b, e->down, e->n_expert, only, &o.w));
    CU_PUT(b, pf_cu_expert_rows(b->stream, &o, b->pick_out), "down");
    return add_low(b, e, e->down, only, &b->a, 1, b->pick_out);
}

pf_status pf_cuda_combine(struct cuda_backend *b, const struct pf_experts_op *e)
{
    const float *weights = e->weigh_input ? NULL : e->weights;
    pf_cuda_wrote(b, e->y, (int64_t)e->rows * e->down->n_out);
    return pf_cuda_hold(b, &(struct held_product){
        .kind = HELD_COMBINE, .y = e->y, .n = e->rows * e->down->n_out,
        .combine = { b->pick_out, weights, e->down->n_out, e->n_used, e->rows, e->y } });
}

static pf_status down_op(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table,
                         const struct cu_x *x, struct cu_experts *o)
{
    *o = (struct cu_experts){ .weigh_input = e->weigh_input, .n = e->down->n_in, .n_out = e->down->n_out,
                              .n_used = e->n_used, .rows = e->rows, .picks = e->picks, .weights = e->weights, .x = *x,
                              .tables = b->tables, .with = b->with, .done = b->pick_out };
    return expert_weight(b, e->down, e->n_expert, tables_at(table, e->n_expert).down, &o->w);
}

/* y = the sums of the picks' down products of x; of a pick whose expert is not in the table, of what pick_out has. */
static pf_status down(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table,
                      const struct cu_x *x)
{
    struct cu_experts o;
    struct cu_choice choice = { .op.rows = 0 };
    PF_TRY(down_op(b, e, table, x, &o));
    pf_cuda_wrote(b, e->y, (int64_t)e->rows * e->down->n_out);
    if (!table)
        choice = b->chosen;
    return pf_cuda_hold(b, &(struct held_product){ .kind = HELD_DOWN, .down = o, .choice = choice, .y = e->y,
                                                   .n = e->rows * o.n_out });
}

pf_status pf_cuda_down(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table)
{
    if (!e->down->lora)
        return down(b, e, table, &b->a);
    PF_TRY(pf_cuda_down_rows(b, e, table));
    return pf_cuda_combine(b, e);
}

bool pf_cuda_has_turns(const struct pf_experts_op *e)
{
    return e->rows == 1 && is_one_kernel(e) && !e->down->lora;
}

pf_status pf_cuda_in_turns(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **now,
                           const uint8_t **late, const struct cu_take *take)
{
    struct held_product p = { .kind = HELD_TURNS, .turns = { .take = *take, .acts = output_of(b, e, TO_DOWN) },
                              .y = e->y, .n = e->down->n_out };
    struct held_turns *t = &p.turns;
    PF_TRY(pf_cuda_gate_up(b, e, now));
    PF_TRY(down_op(b, e, now, &b->a, &t->first));
    PF_TRY(gate_up_op(b, e, late, &t->gate_up));
    PF_TRY(down_op(b, e, late, &b->a, &t->down));
    t->first.turns = (struct cu_turns){ take->told, b->pick_out };
    t->first.done = NULL;
    t->gate_up.turns.told = t->down.turns.told = take->told;
    pf_cuda_wrote(b, e->y, p.n);
    return pf_cuda_hold(b, &p);
}

/* Adds a matrix of every expert to a product by tiles. */
static pf_status add_part(struct cuda_backend *b, const struct pf_experts_op *e, const struct pf_expert_weight *w,
                          const uint8_t *const *table, float *y, struct cu_tiles *o)
{
    struct cu_expert_weight cw;
    PF_TRY(expert_weight(b, w, e->n_expert, table, &cw));
    o->type = w->type;
    o->row_bytes = w->row_bytes;
    o->n = w->n_in;
    o->part[o->n_parts++] = (struct cu_tile_part){ .table = cw.data, .scales = cw.scale, .bias = cw.bias, .y = y,
                                                   .n_out = w->n_out };
    return PF_OK;
}

static pf_status run_tiles(struct cuda_backend *b, const struct cu_tiles *o)
{
    return pf_cuda_put(b, pf_cu_tiles(b->stream, o, &b->shape), "a product of experts");
}

/* Products by tiles of a prompt's picks. */
static struct cu_tiles tiles_of(const struct cuda_backend *b, const struct pf_experts_op *e)
{
    return (struct cu_tiles){ .n_columns = e->rows * e->n_used, .tables = b->tables, .groups = b->groups,
                              .n_expert = e->n_expert, .x_divisor = 1, .halves = b->halves,
                              .scales = b->block_scales };
}

/* Activations of a prompt's picks, which it groups by expert in b->groups. table not NULL: only of experts with an
 * address there. */
static pf_status prompt_up(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table, enum to to)
{
    struct tables at = tables_at(table, e->n_expert);
    float *gate = (float *)(uintptr_t)b->a.f;
    struct cu_tiles o = tiles_of(b, e);
    o.x_divisor = e->n_used;
    o.weights = e->weigh_input ? e->weights : NULL;
    PF_TRY(pf_cuda_quantise_x(b, e->x, e->gate->n_in, e->rows, true, &o.x));
    CU_PUT(b, pf_cu_group(b->stream, e->picks, o.n_columns, e->n_expert, b->shape.width, at.gate, b->groups),
           "sorting picks");
    PF_TRY(add_part(b, e, e->gate, at.gate, gate, &o));
    if (e->up->type != e->gate->type) {
        PF_TRY(run_tiles(b, &o));
        o.n_parts = 0;
    }
    PF_TRY(add_part(b, e, e->up, at.up, b->up, &o));
    PF_TRY(run_tiles(b, &o));
    const struct cu_x x = o.x;
    PF_TRY(add_low(b, e, e->gate, at.gate, &x, e->n_used, gate));
    PF_TRY(add_low(b, e, e->up, at.gate, &x, e->n_used, b->up));
    return activate(b, e, gate, at.gate, to);
}

/* Outputs of the picks that were grouped, from activations x. */
static pf_status prompt_down(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table,
                             const struct cu_x *x)
{
    const uint8_t *const *down = tables_at(table, e->n_expert).down;
    struct cu_tiles o = tiles_of(b, e);
    o.x = *x;
    PF_TRY(add_part(b, e, e->down, down, b->pick_out, &o));
    PF_TRY(run_tiles(b, &o));
    return add_low(b, e, e->down, down, x, 1, b->pick_out);
}

static pf_status run_prompt(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table)
{
    PF_TRY(prompt_up(b, e, table, TO_DOWN));
    return prompt_down(b, e, table, &b->a);
}

static bool all_quantised(const struct pf_experts_op *e)
{
    return pf_cuda_is_quantised(e->gate->type) && pf_cuda_is_quantised(e->up->type) &&
           pf_cuda_is_quantised(e->down->type);
}

/* So many rows are sooner done without tiles. Where both products have kernels for several rows, as many as either
 * says: a type says few whose tiles are fast, and that one loses less without them than the other would with them. */
static int rows_without_tiles(const struct pf_experts_op *e)
{
    int gate = pf_cu_several_most(e->gate->type), down = pf_cu_several_most(e->down->type),
        most = gate > down ? gate : down;
    bool have = e->gate->type == e->up->type && gate && down;
    return have && most > CU_LOOP_ROWS ? most : CU_LOOP_ROWS;
}

static bool by_tiles(const struct cuda_backend *b, const struct pf_experts_op *e)
{
    return b->has_tiles && e->rows > rows_without_tiles(e) && all_quantised(e);
}

pf_status pf_cuda_some_experts(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table)
{
    if (by_tiles(b, e))
        return run_prompt(b, e, table);
    PF_TRY(pf_cuda_gate_up(b, e, table));
    return pf_cuda_down_rows(b, e, table);
}

struct cu_choice pf_cuda_choice_for(struct cuda_backend *b, const struct pf_experts_op *e)
{
    struct cu_choice c = b->choice;
    bool is_theirs = c.op.rows && c.op.picks == e->picks && c.op.weights == e->weights && e->rows == 1;
    if (is_theirs)
        b->choice.op.rows = 0;
    else
        c.op.rows = 0;
    return c;
}

/* Leaves a choice that is held to the experts that it is for, if their kernels can make it. */
static void take_choice(struct cuda_backend *b, const struct pf_experts_op *e)
{
    bool plain = e->gate->type == e->up->type && !e->gate->lora && !e->up->lora && !e->down->lora;
    b->chosen.op.rows = 0;
    if (plain && pf_cu_experts_choose(&b->choice))
        b->chosen = pf_cuda_choice_for(b, e);
}

pf_status pf_cuda_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    take_choice(b, e);
    pf_cuda_shared_joins(b, e);
    PF_TRY(pf_cuda_settle(b));
    uint64_t bytes = pf_expert_weight_bytes(e->gate) + pf_expert_weight_bytes(e->up) + pf_expert_weight_bytes(e->down);
    b->base.weight_bytes_read += (uint64_t)(e->rows * e->n_used) * bytes;
    if (by_tiles(b, e)) {
        PF_TRY(run_prompt(b, e, NULL));
        return pf_cuda_combine(b, e);
    }
    pf_status st = pf_cuda_gate_up(b, e, NULL);
    if (st == PF_OK)
        st = pf_cuda_down(b, e, NULL);
    b->with = (struct cu_shared){ .gate = NULL };
    return st;
}

/* ---- In two operations, for cards that have rows of each expert -------------------------------------------------- */

pf_status pf_cuda_experts_up(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    b->chosen.op.rows = 0;
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, e->pick_act, (int64_t)e->rows * e->n_used * e->gate->n_out);
    b->base.weight_bytes_read += (uint64_t)(e->rows * e->n_used) *
        (pf_expert_weight_bytes(e->gate) + pf_expert_weight_bytes(e->up));
    return by_tiles(b, e) ? prompt_up(b, e, NULL, TO_PICK_ACT) : gate_up(b, e, NULL, TO_PICK_ACT);
}

pf_status pf_cuda_experts_down(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    int n = e->down->n_in, n_picks = e->rows * e->n_used;
    struct cu_x x = b->a;
    PF_TRY(pf_cuda_settle(b));
    x.f = e->pick_act;
    b->base.weight_bytes_read += (uint64_t)n_picks * pf_expert_weight_bytes(e->down);
    if (pf_cuda_is_quantised(e->down->type) && b->a_of != e->pick_act)
        CU_PUT(b, pf_cu_quantise(b->stream, &x, n, n, n_picks, b->fault), "quantising");
    b->a_of = NULL;
    if (!by_tiles(b, e))
        return down(b, e, NULL, &x);
    PF_TRY(prompt_down(b, e, NULL, &x));
    return pf_cuda_combine(b, e);
}

/* ---- In parts, for experts that were copied to buffers of the device --------------------------------------------- */

pf_status pf_cuda_experts_begin(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    b->parts = *e;
    return PF_OK;
}

static pf_status run_part(struct cuda_backend *b, const int *experts, int n)
{
    const struct pf_experts_op *e = &b->parts;
    const struct pf_expert_weight *w[] = { e->gate, e->up, e->down };
    struct cu_entries entries = { .n = n, .stride = e->n_expert, .n_clear = e->n_expert };
    for (int i = 0; i < n; i++) {
        entries.expert[i] = experts[i];
        for (int p = 0; p < 3; p++)
            entries.at[p][i] = w[p]->data[experts[i]];
    }
    CU_PUT(b, pf_cu_set_table(b->stream, b->part_table, &entries), "naming experts");
    entries.n_clear = 0;
    if (b->shares_parts)
        CU_PUT(b, pf_cu_set_table(b->stream, b->done_table, &entries), "naming experts");
    return pf_cuda_some_experts(b, e, b->part_table);
}

pf_status pf_cuda_experts_part(pf_backend *backend, const int *experts, int n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const struct pf_experts_op *e = &b->parts;
    b->base.weight_bytes_read += (uint64_t)n * (pf_expert_weight_bytes(e->gate) + pf_expert_weight_bytes(e->up) +
                                                pf_expert_weight_bytes(e->down));
    for (int i = 0; i < n; i += CU_TABLE_ENTRIES)
        PF_TRY(run_part(b, experts + i, n - i < CU_TABLE_ENTRIES ? n - i : CU_TABLE_ENTRIES));
    return PF_OK;
}

/* Marks the experts of a part in part_table, and has a kernel copy what their picks put out. */
static pf_status take_part(struct cuda_backend *b, const int *experts, int n, const float *y)
{
    const struct pf_experts_op *e = &b->parts;
    struct cu_entries entries = { .n = n, .stride = e->n_expert, .n_clear = e->n_expert };
    for (int i = 0; i < n; i++) {
        entries.expert[i] = experts[i];
        for (int p = 0; p < 3; p++)
            entries.at[p][i] = (const uint8_t *)y;
    }
    CU_PUT(b, pf_cu_set_table(b->stream, b->part_table, &entries), "naming experts");
    const struct cu_given_picks g = { b->part_table, e->picks, y, b->pick_out, e->rows * e->n_used, e->down->n_out };
    return pf_cuda_put(b, pf_cu_take_given(b->stream, &g), "taking the CPU's experts");
}

pf_status pf_cuda_experts_given(pf_backend *backend, const int *experts, int n, const float *y)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const float *seen = pf_cuda_seen_by_kernels((void *)(uintptr_t)y);
    if (!seen)
        PF_FAIL(PF_EDEVICE, "the GPU cannot read the memory that the CPU's experts put out to");
    for (int i = 0; i < n; i += CU_TABLE_ENTRIES)
        PF_TRY(take_part(b, experts + i, n - i < CU_TABLE_ENTRIES ? n - i : CU_TABLE_ENTRIES, seen));
    return PF_OK;
}

pf_status pf_cuda_experts_end(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    return pf_cuda_combine(b, &b->parts);
}

/* Experts divided between cards: see backend/among.h.
 *
 *     first card   .. letter? | lent | .. | its picks | ----------- waits ------------ | rows of others | sum | ..
 *     another                    `-> sheets -> its picks -> rows -> answered -^
 *
 * Of a layer each card has a table of addresses, NULL for experts that lie elsewhere, so kernels skip the other cards'
 * picks. Rows, picks and weights are copied to each card before its kernels read them. A card that reaches the first
 * one's memory copies from there, and writes its rows there; if one does not, the first card puts a letter into pinned
 * memory of the host, and all rows come back through such memory. Events order the cards: captured on the first
 * card's stream, they make the other cards' kernels part of its graph.
 *
 * Where experts are shared with the host, tables change with every layer (cuda_share.c), and a card's rows come in two
 * portions: of what it holds, and of what was copied to it meanwhile. */
#include <string.h>

#include "base/pf_mem.h"
#include "kernels/cuda/cu_among.h"
#include "kernels/cuda/cuda_backend.h"

enum { WORD = 4 };

/* What a card is lent: the step's rows, picks and weights, as far as there is room for. */
struct lent {
    char    *at;                         /* x, picks and weights one after the other */
    float   *x;
    int32_t *picks;
    float   *weights;
    uint32_t *told;                      /* a word; of shared experts: cu_offer.told */
};

struct other {
    struct cuda_backend *b;              /* NULL: it was lost */
    bool        reaches;                 /* the first card's memory */
    struct lent lent;                    /* in its memory */
};

struct cuda_among {
    struct other others[PF_MAX_GPUS - 1];
    int          n;
    bool         all_reach;
    int          max_rows, max_n_in, max_picks, n_out;       /* what there is room for */
    size_t       lent_bytes, outputs_bytes;
    struct lent  letter;                 /* pinned; unless all_reach */
    float       *outputs;                /* [max_picks][n_out] of other cards: this one's memory, or pinned */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static size_t lent_bytes(const struct pf_backend_sizes *s)
{
    return ((size_t)s->max_rows * (size_t)s->max_n_in + 2 * (size_t)s->max_picks + 1) * WORD;
}

static size_t outputs_bytes(const struct pf_backend_sizes *s)
{
    return (size_t)s->max_picks * (size_t)s->n_out * WORD;
}

static uint64_t among_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes, bool first)
{
    return first ? outputs_bytes(sizes) : pf_cuda_scratch_bytes(backend, sizes) + lent_bytes(sizes);
}

static void cut_lent(struct lent *l, void *at, const struct pf_backend_sizes *s)
{
    l->at = at;
    l->x = at;
    l->picks = (int32_t *)(void *)(l->x + (size_t)s->max_rows * (size_t)s->max_n_in);
    l->weights = (float *)(void *)(l->picks + s->max_picks);
    l->told = (uint32_t *)(void *)(l->weights + s->max_picks);
}

static void free_memory(struct cuda_backend *b, struct cuda_among *a)
{
    for (int i = 0; i < a->n; i++) {
        if (a->others[i].b)
            pf_cuda_free(a->others[i].b, a->others[i].lent.at, a->lent_bytes);
        a->others[i].lent.at = NULL;
    }
    if (a->all_reach)
        pf_cuda_free(b, a->outputs, a->outputs_bytes);
    else
        cudaFreeHost(a->outputs);
    cudaFreeHost(a->letter.at);
    a->outputs = NULL;
    a->letter.at = NULL;
    a->max_rows = a->max_picks = 0;
}

/* All cards see it at the same address. */
static pf_status pinned(size_t bytes, void **out)
{
    return pf_cuda_check(cudaHostAlloc(out, bytes, cudaHostAllocMapped), "allocating pinned memory");
}

static pf_status alloc_memory(struct cuda_backend *b, struct cuda_among *a, const struct pf_backend_sizes *s)
{
    void *p = NULL;
    a->lent_bytes = lent_bytes(s);
    a->outputs_bytes = outputs_bytes(s);
    for (int i = 0; i < a->n; i++) {
        if (!a->others[i].b)
            continue;
        PF_TRY(pf_cuda_alloc(a->others[i].b, a->lent_bytes, "what it is lent", &p));
        cut_lent(&a->others[i].lent, p, s);
    }
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    PF_TRY(a->all_reach ? pf_cuda_alloc(b, a->outputs_bytes, "other cards' outputs", &p)
                        : pinned(a->outputs_bytes, &p));
    a->outputs = p;
    if (!a->all_reach) {
        PF_TRY(pinned(a->lent_bytes, &p));
        cut_lent(&a->letter, p, s);
    }
    a->max_rows = s->max_rows;
    a->max_n_in = s->max_n_in;
    a->max_picks = s->max_picks;
    a->n_out = s->n_out;
    return PF_OK;
}

/* Nothing is under way: sessions open between steps. Where there is no room for more, what there was is taken again. */
static pf_status among_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = b->among;
    struct pf_backend_sizes had = { .max_rows = a->max_rows, .max_n_in = a->max_n_in, .max_picks = a->max_picks,
                                    .n_out = a->n_out }, s = *sizes;
    for (int i = 0; i < a->n; i++) {
        if (!a->others[i].b)
            continue;
        const char *before = a->others[i].b->scratch;
        PF_TRY(pf_cuda_reserve(&a->others[i].b->base, sizes));
        if (a->others[i].b->scratch != before)
            pf_cuda_drop_graphs(b);      /* they name it */
    }
    if (s.max_rows <= had.max_rows && s.max_picks <= had.max_picks)
        return PF_OK;
    s.max_rows = s.max_rows > had.max_rows ? s.max_rows : had.max_rows;
    s.max_picks = s.max_picks > had.max_picks ? s.max_picks : had.max_picks;
    pf_cuda_drop_graphs(b);
    free_memory(b, a);
    pf_status st = alloc_memory(b, a, &s);
    if (st == PF_OK)
        return PF_OK;
    free_memory(b, a);
    if (had.max_rows > 0 && alloc_memory(b, a, &had) < 0)
        free_memory(b, a);
    return st;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_status among_open(pf_backend *backend, pf_backend *const *others, int n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = pf_alloc(PF_MEM_KERNELS, sizeof *a);
    if (!a)
        PF_FAIL(PF_ENOMEM, "no memory for dividing experts between GPUs");
    b->among = a;
    a->n = n;
    a->all_reach = true;
    for (int i = 0; i < n; i++) {
        struct other *o = &a->others[i];
        o->b = pf_cuda_of(others[i]);
        o->reaches = pf_cuda_reaches(o->b, b);
        a->all_reach &= o->reaches;
        o->b->shares_parts = b->share != NULL;
        if (b->share)
            pf_cuda_share_join(o->b, b, i + 1);
    }
    b->shares_parts = b->share != NULL;
    return PF_OK;
}

int pf_cuda_n_among(const struct cuda_backend *b)
{
    return b->among ? b->among->n : 0;
}

struct cuda_backend *pf_cuda_among_at(const struct cuda_backend *b, int i)
{
    return b->among->others[i].b;
}

/* Graphs name it. */
static void among_leave(pf_backend *backend, pf_backend *other)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = b->among;
    cudaSetDevice(b->device);
    cudaStreamSynchronize(b->stream);
    pf_cuda_drop_graphs(b);
    for (int i = 0; i < a->n; i++)
        if (a->others[i].b && &a->others[i].b->base == other) {
            pf_cuda_free(a->others[i].b, a->others[i].lent.at, a->lent_bytes);
            a->others[i].lent.at = NULL;
            a->others[i].b = NULL;
        }
}

/* The other cards are closed later, or nothing was reserved. */
void pf_cuda_among_close(struct cuda_backend *b)
{
    struct cuda_among *a = b->among;
    if (!a)
        return;
    free_memory(b, a);
    pf_free(a);
    b->among = NULL;
}

/* The first card's stream waits for the others', but need not fail with them. */
pf_status pf_cuda_among_finish(struct cuda_backend *b, int *fault)
{
    struct cuda_among *a = b->among;
    cudaError_t e = cudaSuccess;
    *fault = CU_FINE;
    for (int i = 0; a && i < a->n; i++) {
        struct cuda_backend *o = a->others[i].b;
        if (!o)
            continue;
        (void)pf_cuda_settle(o);
        cudaError_t ended = cudaStreamSynchronize(o->stream);
        e = e == cudaSuccess ? ended : e;
        *fault = *fault == CU_FINE ? *o->fault : *fault;
        *o->fault = CU_FINE;
    }
    return pf_cuda_check(e, "a step on another card");
}

/* ---- A layer ----------------------------------------------------------------------------------------------------- */

/* The card's table of a layer [3][n_expert], which is made when the layer is first computed. It is placed under the
 * address of the host's table of gates. */
static pf_status table_of(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t ***out)
{
    const struct pf_expert_weight *w[] = { e->gate, e->up, e->down };
    size_t n = (size_t)e->n_expert, bytes = 3 * n * sizeof(uint8_t *);
    *out = pf_placed_find(&b->placed, e->gate->data);
    if (*out)
        return PF_OK;
    const uint8_t **host = pf_alloc_array(PF_MEM_KERNELS, 3 * n, sizeof *host);
    void *dev = NULL;
    if (!host)
        PF_FAIL(PF_ENOMEM, "no memory for a table of %zu experts", n);
    for (size_t i = 0; i < 3 * n; i++)
        host[i] = w[i / n]->data ? pf_placed_find(&b->placed, w[i / n]->data[i % n]) : NULL;
    pf_status st = pf_cuda_in_step(pf_cuda_copy_in(b, host, bytes, &dev));
    pf_free(host);
    PF_TRY(st);
    *out = dev;
    return pf_placed_add(&b->placed, e->gate->data, n * sizeof *e->gate->data, dev);
}

/* Copies what a card is lent from where the first one has it. */
static pf_status send(struct cuda_backend *b, const struct pf_experts_op *e, const struct lent *from,
                      const struct lent *to)
{
    int64_t n_picks = (int64_t)e->rows * e->n_used;
    const struct cu_letter l = { { { from->x, to->x, (int64_t)e->rows * e->gate->n_in },
                                   { from->picks, to->picks, n_picks }, { from->weights, to->weights, n_picks },
                                   { from->told, to->told, from->told ? 1 : 0 } } };
    pf_cuda_wrote(b, to->x, (int64_t)e->rows * e->gate->n_in);
    return pf_cuda_put(b, pf_cu_send(b->stream, &l), "lending picks to another GPU");
}

static pf_status send_rows(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t *const *table,
                           bool here, const float *from, float *to)
{
    const struct cu_some_rows r = { .picks = e->picks, .n_picks = e->rows * e->n_used, .n = e->down->n_out,
                                    .table = table, .here = here, .from = from, .to = to };
    return pf_cuda_put(b, pf_cu_send_rows(b->stream, &r), "gathering outputs of experts");
}

/* The op with what the other card was lent. */
static struct pf_experts_op op_of(const struct other *o, const struct pf_experts_op *e)
{
    struct pf_experts_op mine = *e;
    mine.x = o->lent.x;
    mine.picks = o->lent.picks;
    mine.weights = o->lent.weights;
    return mine;
}

/* Lends a layer's rows to the other cards, after all that b was asked for. told: see struct lent; or NULL. */
static pf_status lend_rows(struct cuda_backend *b, const struct pf_experts_op *e, uint32_t *told)
{
    struct cuda_among *a = b->among;
    const struct lent here = { .x = (float *)(uintptr_t)e->x, .picks = (int32_t *)(uintptr_t)e->picks,
                               .weights = (float *)(uintptr_t)e->weights, .told = told };
    struct lent letter = a->letter;
    letter.told = told ? letter.told : NULL;
    if (!a->all_reach)
        PF_TRY(send(b, e, &here, &a->letter));
    for (int i = 0; i < a->n; i++) {
        const struct other *o = &a->others[i];
        struct lent to = o->lent;
        if (!o->b)
            continue;
        to.told = told ? pf_cuda_share_told(o->b) : NULL;
        PF_TRY(pf_cuda_after(o->b, b));
        PF_TRY(send(o->b, e, o->reaches ? &here : &letter, &to));
    }
    return PF_OK;
}

static pf_status among_lend(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = b->among;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(lend_rows(b, e, NULL));
    for (int i = 0; i < a->n; i++) {
        struct cuda_backend *o = a->others[i].b;
        const struct pf_experts_op mine = op_of(&a->others[i], e);
        const uint8_t **table;
        PF_TRY(table_of(o, e, &table));
        PF_TRY(pf_cuda_some_experts(o, &mine, table));
        PF_TRY(send_rows(o, &mine, table, true, o->pick_out, a->outputs));
    }
    return PF_OK;
}

/* b goes on when the others have put out all that they were asked for. */
static pf_status wait_for_others(struct cuda_backend *b)
{
    struct cuda_among *a = b->among;
    for (int i = 0; i < a->n; i++)
        if (a->others[i].b)
            PF_TRY(pf_cuda_after(b, a->others[i].b));
    return PF_OK;
}

static pf_status among_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = b->among;
    const uint8_t **table;
    uint64_t bytes = pf_expert_weight_bytes(e->gate) + pf_expert_weight_bytes(e->up) + pf_expert_weight_bytes(e->down);
    PF_TRY(pf_cuda_settle(b));
    b->base.weight_bytes_read += (uint64_t)(e->rows * e->n_used) * bytes;
    PF_TRY(table_of(b, e, &table));
    PF_TRY(pf_cuda_some_experts(b, e, table));
    PF_TRY(wait_for_others(b));
    PF_TRY(send_rows(b, e, table, false, a->outputs, b->pick_out));
    return pf_cuda_combine(b, e);
}

/* ---- A layer whose experts the host has, too --------------------------------------------------------------------- */

/* Rows of the experts whose down products the card has made; down's table stands behind gate's and up's. */
static pf_status put_out(struct cuda_backend *first, const struct other *o, const struct pf_experts_op *e,
                         const uint8_t **table)
{
    return send_rows(o->b, e, table + 2 * (size_t)e->n_expert, true, o->b->pick_out, first->among->outputs);
}

/* What a card has of a layer's experts: those that it holds, or those that were copied to it. */
typedef pf_status run_some(struct cuda_backend *b, int il, const struct pf_experts_op *e, const uint8_t ***table);

static pf_status run_others(struct cuda_backend *b, int il, const struct pf_experts_op *e, run_some *run)
{
    struct cuda_among *a = b->among;
    for (int i = 0; i < a->n; i++) {
        const struct pf_experts_op mine = op_of(&a->others[i], e);
        const uint8_t **table;
        if (!a->others[i].b)
            continue;
        PF_TRY(run(a->others[i].b, il, &mine, &table));
        PF_TRY(put_out(b, &a->others[i], &mine, table));
    }
    return PF_OK;
}

pf_status pf_cuda_among_lend_shared(struct cuda_backend *b, int il, const struct pf_experts_op *e)
{
    PF_TRY(lend_rows(b, e, pf_cuda_share_told(b)));
    return run_others(b, il, e, pf_cuda_share_run_held);
}

pf_status pf_cuda_among_late(struct cuda_backend *b, int il, const struct pf_experts_op *e)
{
    return run_others(b, il, e, pf_cuda_share_run_late);
}

pf_status pf_cuda_among_gather_shared(struct cuda_backend *b, const struct pf_experts_op *e, const int32_t *theirs)
{
    const struct cu_some_rows r = { .n_picks = e->rows * e->n_used, .n = e->down->n_out, .marked = theirs,
                                    .from = b->among->outputs, .to = b->pick_out };
    PF_TRY(wait_for_others(b));
    return pf_cuda_put(b, pf_cu_send_rows(b->stream, &r), "gathering outputs of experts");
}

/* ---- In parts ---------------------------------------------------------------------------------------------------- */

static pf_status clear_done(struct cuda_backend *b, const struct pf_experts_op *e)
{
    const struct cu_entries none = { .stride = e->n_expert, .n_clear = e->n_expert };
    return pf_cuda_put(b, pf_cu_set_table(b->stream, b->done_table, &none), "clearing a table");
}

static pf_status among_begin(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = b->among;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(lend_rows(b, e, NULL));
    for (int i = 0; i < a->n; i++) {
        struct cuda_backend *o = a->others[i].b;
        if (!o)
            continue;
        o->parts = op_of(&a->others[i], e);
        PF_TRY(clear_done(o, e));
    }
    b->parts = *e;
    return clear_done(b, e);
}

static pf_status among_end(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_among *a = b->among;
    const struct pf_experts_op *e = &b->parts;
    for (int i = 0; i < a->n; i++)
        if (a->others[i].b)
            PF_TRY(put_out(b, &a->others[i], &a->others[i].b->parts, a->others[i].b->done_table));
    PF_TRY(wait_for_others(b));
    PF_TRY(send_rows(b, e, b->done_table + 2 * (size_t)e->n_expert, false, a->outputs, b->pick_out));
    return pf_cuda_combine(b, e);
}

const struct pf_among_ops pf_cuda_among_ops = {
    .open = among_open, .leave = among_leave, .reserve = among_reserve, .bytes = among_bytes, .lend = among_lend,
    .experts = among_experts, .begin = among_begin, .end = among_end,
};

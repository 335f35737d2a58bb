/* Experts shared with the host: see backend/share.h.
 *
 *     stream      .. | offer | .. | experts held, or read in place | take: waits | late experts, and the sum | ..
 *     this thread      `-> await -> serve: dealt -^ .. -> raise the flag ---^         one layer of a step
 *
 * Run plainly, a layer is served as soon as its operations up to `offer` are on the stream. In a captured step,
 * layers are only listed (served[graph]); once the graph is launched, pf_cuda_share_serve goes through the list.
 * Either way the GPU is never left waiting: if the host fails, it raises all flags with CU_FLAG_GIVEN_UP, and the
 * kernel's own patience ends too.
 *
 * Where other cards have experts, too (backend/among.h), each of them has tables and answer flags of its own, in its
 * own cuda_share, and everything else is the first card's. cuda_among.c has the order of their work.
 *
 * A layer of which the GPU holds all that was picked is not waited for: the host may come to it when the GPU is layers
 * ahead, and finds its picks all the same.
 *
 * Memory of the host that the device has mapped: three flags for each layer, each in a line of its own, and the layer's
 * picks; one set of all other buffers, since those of a layer that is waited for are read before the next layer's are
 * written. */
#include <immintrin.h>
#include <string.h>

#include "base/pf_count.h"
#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "kernels/cuda/cuda_backend.h"

enum { LINE = 64, N_BUCKETS = 400, BUCKET_NS = 250 };
static const uint64_t LOOK_NS = 2000000, PATIENCE_NS = 30000000000u;  /* how often to look at the device; how long */

/* What the host does for a layer: its experts, or partials of its attention. */
struct served {
    int  il;
    bool attends;
    struct pf_experts_op  e;
    struct pf_partials_op partials;
    struct pf_kv_view     kv;            /* of the partials */
    struct pf_by_host     by_host;
};

struct cuda_share {
    struct pf_share_sizes sizes;
    struct pf_share_host  host;

    struct cu_flag *offers, *deals, *answers;        /* [n_layer] */
    float       *x, *weights;            /* the offer's copies for the host */
    int32_t     *picks;                  /* [n_layer][PF_SHARE_ROWS * n_used] */
    struct pf_answer answer;
    void        *mapped;                 /* the memory of everything from offers to answer */

    const uint8_t **held, **now, **late; /* device memory: held [n_layer][3][n_expert], now and late [3][n_expert] */
    uint32_t     *heard;                 /* device memory: cu_take.told */
    const uint8_t **elsewhere;           /* [n_layer][3][n_expert], held by other cards */
    int32_t      *theirs;                /* device memory [PF_SHARE_ROWS * n_used]: cu_take.theirs */
    struct cuda_backend *first;          /* of another card's: the one that offers; else NULL */
    int           card;                  /* the number by which the host names it */

    struct timing {                      /* a layer's last hand-off, by the host's clock; 0: noted already */
        uint64_t seen_ns, answered_ns;
        bool     replayed;
    } *timings;                          /* [n_layer] */
    pf_counter    handoffs[N_BUCKETS];   /* of so many BUCKET_NS; read by any thread, as waited_ns */
    pf_counter    waited_ns;

    int           graph;                 /* being captured, or -1 */
    struct served *served[CUDA_MAX_GRAPHS];          /* [(1 + PF_BY_HOST_PARTS) * n_layer] each */
    int           n_served[CUDA_MAX_GRAPHS];
};

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void *take(char **at, size_t bytes)
{
    void *p = *at;
    if (*at)
        *at += (bytes + LINE - 1) / LINE * LINE;
    return p;
}

/* Carves the mapped memory; returns its size when base is NULL. */
static size_t carve(struct cuda_share *s, char *base)
{
    static char none[1];
    size_t n_picks = PF_SHARE_ROWS * (size_t)s->sizes.n_used, n_layer = (size_t)s->sizes.n_layer;
    char *start = base ? base : none, *at = start;
    s->offers = take(&at, n_layer * sizeof *s->offers);
    s->deals = take(&at, n_layer * sizeof *s->deals);
    s->answers = take(&at, n_layer * sizeof *s->answers);
    s->x = take(&at, PF_SHARE_ROWS * (size_t)s->sizes.n_embd * sizeof *s->x);
    s->weights = take(&at, n_picks * sizeof *s->weights);
    s->picks = take(&at, n_layer * n_picks * sizeof *s->picks);
    s->answer.pick = take(&at, n_picks * sizeof *s->answer.pick);
    s->answer.act = take(&at, n_picks * (size_t)s->sizes.n_ff * sizeof *s->answer.act);
    s->answer.y = take(&at, n_picks * (size_t)s->sizes.n_embd * sizeof *s->answer.y);
    return (size_t)(at - start);
}

static pf_status open_mapped(struct cuda_share *s)
{
    size_t bytes = carve(s, NULL);
    CU_TRY(cudaHostAlloc(&s->mapped, bytes, cudaHostAllocMapped), "allocating pinned memory");
    memset(s->mapped, 0, bytes);
    carve(s, s->mapped);
    return PF_OK;
}

static pf_status open_tables(struct cuda_backend *b, struct cuda_share *s)
{
    size_t layer = 3 * (size_t)s->sizes.n_expert * sizeof(void *), all = layer * (size_t)s->sizes.n_layer;
    size_t n_picks = PF_SHARE_ROWS * (size_t)s->sizes.n_used;
    void *held, *now, *late, *part, *heard, *elsewhere, *theirs, *done;
    s->timings = pf_alloc_array(PF_MEM_KERNELS, (size_t)s->sizes.n_layer, sizeof *s->timings);
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        s->served[i] = pf_alloc_array(PF_MEM_KERNELS, (1 + PF_BY_HOST_PARTS) * (size_t)s->sizes.n_layer,
                                      sizeof *s->served[i]);
        if (!s->served[i] || !s->timings)
            PF_FAIL(PF_ENOMEM, "no memory to list the layers that a GPU shares");
    }
    PF_TRY(pf_cuda_own(b, all, &held));
    PF_TRY(pf_cuda_own(b, layer, &now));
    PF_TRY(pf_cuda_own(b, layer, &late));
    PF_TRY(pf_cuda_own(b, layer, &part));
    PF_TRY(pf_cuda_own(b, layer, &done));
    PF_TRY(pf_cuda_own(b, sizeof *s->heard, &heard));
    PF_TRY(pf_cuda_own(b, all, &elsewhere));
    PF_TRY(pf_cuda_own(b, n_picks * sizeof *s->theirs, &theirs));
    CU_TRY(cudaMemsetAsync(held, 0, all, b->stream), "clearing a table");
    CU_TRY(cudaMemsetAsync(late, 0, layer, b->stream), "clearing a table");
    CU_TRY(cudaMemsetAsync(elsewhere, 0, all, b->stream), "clearing a table");
    s->held = held;
    s->now = now;
    s->late = late;
    s->heard = heard;
    s->elsewhere = elsewhere;
    s->theirs = theirs;
    b->part_table = part;
    b->done_table = done;
    return PF_OK;
}

static pf_status share_open(pf_backend *backend, const struct pf_share_sizes *sizes, const struct pf_share_host *host)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_share *s = pf_alloc(PF_MEM_KERNELS, sizeof *s);
    if (!s)
        PF_FAIL(PF_ENOMEM, "no memory to share experts with the GPU");
    b->share = s;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    s->sizes = *sizes;
    s->host = *host;
    s->graph = -1;
    PF_TRY(open_mapped(s));
    PF_TRY(open_tables(b, s));
    return pf_cuda_copies_open(b, sizes->one_stream);
}

int pf_cuda_share_layers(const struct cuda_backend *b)
{
    return b->share->sizes.n_layer;
}

void pf_cuda_share_close(struct cuda_backend *b)
{
    struct cuda_share *s = b->share;
    pf_cuda_far_close(b);
    if (!s)
        return;
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        pf_free(s->served[i]);
    cudaFreeHost(s->mapped);
    pf_free(s->timings);
    pf_free(s);
    b->share = NULL;
}

/* ---- Hand-off ---------------------------------------------------------------------------------------------------- */

/* In one stream a copy would queue up behind the kernel that waits for it. */
bool pf_cuda_share_allows_graph(const struct cuda_backend *b, int rows)
{
    return !b->share || (!b->share->sizes.one_stream && rows <= PF_SHARE_ROWS);
}

void pf_cuda_share_begin(struct cuda_backend *b, int graph)
{
    if (!b->share)
        return;
    b->share->graph = graph;
    if (graph >= 0)
        b->share->n_served[graph] = 0;
}

static uint64_t wait_for(const struct cu_flag *flag)
{
    return flag->ns - flag->began_ns;
}

/* Notes the last hand-off of a layer, which is over. If the device came for the answer after the host had it, the
 * duration is not known. In a step without a graph the take is launched only when the answer is there, so since when
 * the device had nothing to do is not known, and it counts as waiting from the offer on. */
static void note_handoff(struct cuda_share *s, int il)
{
    struct timing *t = &s->timings[il];
    uint64_t offered = s->offers[il].ns, taken = s->answers[il].ns, served = t->answered_ns - t->seen_ns;
    if (t->answered_ns && taken > offered) {
        uint64_t took = taken - offered, bucket = (took > served ? took - served : 0) / BUCKET_NS;
        pf_count(&s->waited_ns, t->replayed ? wait_for(&s->deals[il]) + wait_for(&s->answers[il]) : took);
        pf_count(&s->handoffs[bucket < N_BUCKETS ? bucket : N_BUCKETS - 1], !t->replayed || !s->answers[il].was_up);
    }
    t->answered_ns = 0;
}

static void lower_flags(struct cuda_share *s, int il)
{
    struct cu_flag *flags[] = { &s->offers[il], &s->deals[il], &s->answers[il] };
    note_handoff(s, il);
    for (int i = 0; i < 3; i++)
        *flags[i] = (struct cu_flag){ .up = CU_FLAG_DOWN };
}

static void lower_all(struct cuda_backend *b, int il)
{
    lower_flags(b->share, il);
    for (int i = 0; i < pf_cuda_n_among(b); i++)
        if (pf_cuda_among_at(b, i))
            lower_flags(pf_cuda_among_at(b, i)->share, il);
}

void pf_cuda_share_reset(struct cuda_backend *b)
{
    for (int il = 0; b->share && il < b->share->sizes.n_layer; il++)
        lower_all(b, il);
    if (b->share)
        pf_count(&b->share->waited_ns, pf_cuda_far_lower_all(b));
}

/* Says something to a layer's take on all cards. */
static void raise_answers(struct cuda_backend *b, int il, uint32_t how)
{
    for (int i = 0; i < pf_cuda_n_among(b); i++)
        if (pf_cuda_among_at(b, i))
            __atomic_store_n(&pf_cuda_among_at(b, i)->share->answers[il].up, how, __ATOMIC_RELEASE);
    __atomic_store_n(&b->share->answers[il].up, how, __ATOMIC_RELEASE);
}

/* Until the device has shown something of layer il: what it picked, or its queries. */
static pf_status await(struct cuda_backend *b, const struct cu_flag *offer, int il)
{
    uint64_t begin = 0, looked = 0;
    for (unsigned n = 1; __atomic_load_n(&offer->up, __ATOMIC_ACQUIRE) != CU_FLAG_UP; n++) {
        _mm_pause();
        if (n % 1024)
            continue;
        uint64_t now = pf_now_ns();
        begin = begin ? begin : now;
        if (now - looked < LOOK_NS)
            continue;
        looked = now;
        cudaError_t e = cudaStreamQuery(b->stream);
        if (e != cudaErrorNotReady && e != cudaSuccess)
            return pf_cuda_check(e, "a step");
        if (now - begin > PATIENCE_NS)
            PF_FAIL(PF_EDEVICE, "the GPU has not come to layer %d for %d s", il, (int)(PATIENCE_NS / 1000000000u));
    }
    return PF_OK;
}

static int32_t *picks_of(const struct cuda_share *s, int il)
{
    return s->picks + (size_t)il * PF_SHARE_ROWS * (size_t)s->sizes.n_used;
}

/* Run plainly, the device does not wait for a deal: operations after the offer may have weights to place, and wait for
 * it. */
static pf_status serve_layer(struct cuda_backend *b, const struct served *l, bool replayed)
{
    struct cuda_share *s = b->share;
    struct pf_experts_op shown = l->e;
    PF_TRY(await(b, &s->offers[l->il], l->il));
    s->timings[l->il].seen_ns = pf_now_ns();
    shown.x = s->x;
    shown.weights = s->weights;
    shown.picks = picks_of(s, l->il);
    PF_TRY(s->host.serve(s->host.ctx, &(struct pf_offer){ l->il, &shown, replayed }, &s->answer));
    s->timings[l->il].answered_ns = pf_now_ns();
    s->timings[l->il].replayed = replayed;
    raise_answers(b, l->il, CU_FLAG_UP);
    __atomic_store_n(&s->deals[l->il].up, CU_FLAG_UP, __ATOMIC_RELEASE);
    return PF_OK;
}

struct queries {
    struct cuda_backend *b;
    const struct served *layer;
    uint64_t             seen_ns;
};

static pf_status await_queries(void *ctx)
{
    struct queries *q = ctx;
    PF_TRY(await(q->b, pf_cuda_far_shown(q->b, &q->layer->by_host), q->layer->il));
    q->seen_ns = pf_now_ns();
    return PF_OK;
}

/* The host is asked before the device has shown its queries, and begins what it can do without. */
static pf_status serve_attention(struct cuda_backend *b, const struct served *l, bool replayed)
{
    struct cuda_share *s = b->share;
    struct queries queries = { b, l, 0 };
    struct pf_partials_op p = l->partials;
    p.kv = &l->kv;
    p.await = await_queries;
    p.ctx = &queries;
    PF_TRY(s->host.attend(s->host.ctx, l->il, l->by_host.part, &p));
    pf_cuda_far_made(b, &l->by_host, queries.seen_ns, replayed);
    return PF_OK;
}

/* Lets the device run on without answers. */
static void give_up(struct cuda_backend *b)
{
    struct cuda_share *s = b->share;
    pf_cuda_far_give_up(b);
    for (int il = 0; il < s->sizes.n_layer; il++) {
        __atomic_store_n(&s->deals[il].up, CU_FLAG_GIVEN_UP, __ATOMIC_RELEASE);
        raise_answers(b, il, CU_FLAG_GIVEN_UP);
    }
}

/* Where a layer's attention comes next, it comes before what can wait: the device shows its queries soon, and the
 * router's picks only later. */
pf_status pf_cuda_share_serve(struct cuda_backend *b, int graph)
{
    struct cuda_share *s = b->share;
    int n = s ? s->n_served[graph] : 0;
    bool owes = false;                   /* to say that a layer is served */
    for (int i = 0; i < n; i++) {
        const struct served *l = &s->served[graph][i];
        pf_status st = l->attends ? serve_attention(b, l, true) : serve_layer(b, l, true);
        if (st < 0) {
            give_up(b);
            return st;
        }
        owes |= !l->attends;
        if (owes && (i + 1 == n || !l[1].attends)) {
            s->host.served(s->host.ctx);
            owes = false;
        }
    }
    return PF_OK;
}

static const uint8_t **held_of(const struct cuda_share *s, int il)
{
    return s->held + (size_t)il * 3 * (size_t)s->sizes.n_expert;
}

/* NULL: the card is alone. */
static const uint8_t **elsewhere_of(const struct cuda_backend *b, int il)
{
    return b->among ? b->share->elsewhere + (size_t)il * 3 * (size_t)b->share->sizes.n_expert : NULL;
}

static pf_status put_offer(struct cuda_backend *b, int il, const struct pf_experts_op *e,
                           const struct cu_choice *choice)
{
    struct cuda_share *s = b->share;
    const struct cu_offer o = { .x = e->x, .weights = e->weights, .picks = e->picks, .n_x = e->rows * e->gate->n_in,
                                .n_picks = e->rows * e->n_used, .host_x = s->x, .host_weights = s->weights,
                                .host_picks = picks_of(s, il), .flag = &s->offers[il], .told = s->heard,
                                .deal = s->graph >= 0 ? &s->deals[il] : NULL, .handed = s->answer.pick,
                                .n_expert = e->n_expert, .held = held_of(s, il), .now = s->now, .fault = b->fault,
                                .elsewhere = elsewhere_of(b, il) };
    if (choice->op.rows)
        return pf_cuda_put(b, pf_cu_offer_of(b->stream, &o, choice), "handing picks to the CPU");
    return pf_cuda_put(b, pf_cu_offer(b->stream, &o), "handing picks to the CPU");
}

/* `from` makes the offer: b, or the first of several cards. */
static struct cu_take take_of(struct cuda_backend *b, const struct cuda_backend *from, int il,
                              const struct pf_experts_op *e)
{
    struct cuda_share *s = b->share;
    const struct pf_answer *answer = &from->share->answer;
    struct cu_take t = { .flag = &s->answers[il], .handed = answer->pick, .act = answer->act, .host_y = answer->y,
                         .picks = e->picks, .n_picks = e->rows * e->n_used, .n_ff = e->gate->n_out,
                         .n_out = e->down->n_out, .n_expert = e->n_expert, .y = b->pick_out, .a = b->a,
                         .held = b->among || s->card ? NULL : held_of(s, il), .late = s->late, .told = s->heard,
                         .card = s->card, .elsewhere = elsewhere_of(b, il),
                         .theirs = b->among ? s->theirs : NULL, .fault = b->fault };
    if (!pf_cuda_is_quantised(e->down->type))
        t.a.q = NULL;
    return t;
}

static pf_status take_answer(struct cuda_backend *b, const struct cuda_backend *from, int il,
                             const struct pf_experts_op *e)
{
    struct cu_take t = take_of(b, from, il, e);
    return pf_cuda_put(b, pf_cu_take(b->stream, &t), "taking the CPU's experts");
}

static pf_status serve_or_list(struct cuda_backend *b, const struct served *l)
{
    struct cuda_share *s = b->share;
    if (s->graph >= 0) {
        s->served[s->graph][s->n_served[s->graph]++] = *l;
        return PF_OK;
    }
    pf_status st = l->attends ? serve_attention(b, l, false) : serve_layer(b, l, false);
    if (st < 0)
        give_up(b);
    else if (!l->attends)
        s->host.served(s->host.ctx);
    return st;
}

static pf_status serve_experts(struct cuda_backend *b, int il, const struct pf_experts_op *e)
{
    return serve_or_list(b, &(struct served){ .il = il, .e = *e });
}

bool pf_cuda_share_attends(struct cuda_backend *b, const struct pf_attention_op *a, struct cu_far *far)
{
    if (!a->by_host)
        return false;
    if (b->share->graph < 0)
        pf_count(&b->share->waited_ns, pf_cuda_far_lower(b, a->by_host));
    *far = pf_cuda_far_of(b, a->by_host);
    return true;
}

pf_status pf_cuda_share_attend(struct cuda_backend *b, const struct pf_attention_op *a)
{
    return serve_or_list(b, &(struct served){ .il = a->by_host->il, .attends = true, .kv = *a->kv,
                                              .partials = pf_cuda_far_partials(b, a), .by_host = *a->by_host });
}

static pf_status share_offer(pf_backend *backend, int il, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_share *s = b->share;
    const struct cu_choice choice = pf_cuda_choice_for(b, e);
    PF_TRY(pf_cuda_settle(b));
    if (s->graph < 0)
        lower_all(b, il);
    PF_TRY(put_offer(b, il, e, &choice));
    return b->among ? pf_cuda_among_lend_shared(b, il, e) : PF_OK;
}

static pf_status share_experts(pf_backend *backend, int il, const struct pf_experts_op *e)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_share *s = b->share;
    PF_TRY(pf_cuda_settle(b));
    if (s->graph >= 0 && !b->among && pf_cuda_has_turns(e)) {
        struct cu_take take = take_of(b, b, il, e);
        PF_TRY(serve_experts(b, il, e));
        return pf_cuda_in_turns(b, e, s->now, s->late, &take);
    }
    PF_TRY(pf_cuda_gate_up(b, e, s->now));
    PF_TRY(pf_cuda_down_rows(b, e, s->now));
    PF_TRY(serve_experts(b, il, e));
    PF_TRY(b->among ? pf_cuda_among_late(b, il, e) : PF_OK);
    PF_TRY(take_answer(b, b, il, e));
    PF_TRY(pf_cuda_gate_up(b, e, s->late));
    if (!b->among)
        return pf_cuda_down(b, e, s->late);
    /* What pf_cuda_down adds up has to be there before the kernel ahead of it; other cards' rows come later. */
    PF_TRY(pf_cuda_down_rows(b, e, s->late));
    PF_TRY(pf_cuda_among_gather_shared(b, e, s->theirs));
    return pf_cuda_combine(b, e);
}

/* ---- The part of another card: e names what it was lent ---------------------------------------------------------- */

void pf_cuda_share_join(struct cuda_backend *b, struct cuda_backend *first, int card)
{
    b->share->first = first;
    b->share->card = card;
}

uint32_t *pf_cuda_share_told(const struct cuda_backend *b)
{
    return b->share->heard;
}

pf_status pf_cuda_share_run_held(struct cuda_backend *b, int il, const struct pf_experts_op *e, const uint8_t ***table)
{
    struct cuda_share *s = b->share, *from = s->first->share;
    const struct cu_offer o = { .picks = e->picks, .n_picks = e->rows * e->n_used, .told = s->heard,
                                .deal = from->graph >= 0 ? &from->deals[il] : NULL, .handed = from->answer.pick,
                                .n_expert = e->n_expert, .held = held_of(s, il), .now = s->now, .card = s->card };
    PF_TRY(pf_cuda_put(b, pf_cu_find(b->stream, &o), "finding experts"));
    PF_TRY(pf_cuda_gate_up(b, e, s->now));
    *table = s->now;
    return pf_cuda_down_rows(b, e, s->now);
}

pf_status pf_cuda_share_run_late(struct cuda_backend *b, int il, const struct pf_experts_op *e, const uint8_t ***table)
{
    struct cuda_share *s = b->share;
    PF_TRY(take_answer(b, s->first, il, e));
    PF_TRY(pf_cuda_gate_up(b, e, s->late));
    *table = s->late;
    return pf_cuda_down_rows(b, e, s->late);
}

static void share_dealt(pf_backend *backend, int il)
{
    __atomic_store_n(&pf_cuda_of(backend)->share->deals[il].up, CU_FLAG_UP, __ATOMIC_RELEASE);
}

static pf_status share_hold(pf_backend *backend, int il, int expert, const void *gate, const void *up, const void *down)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct cuda_share *s = b->share;
    const struct cu_entries e = { .n = 1, .stride = s->sizes.n_expert, .expert = { expert },
                                  .at = { { gate }, { up }, { down } } };
    struct cuda_backend *first = s->first;
    if (first)
        PF_TRY(pf_cuda_put(first, pf_cu_set_table(first->stream, elsewhere_of(first, il), &e), "naming an expert"));
    return pf_cuda_put(b, pf_cu_set_table(b->stream, held_of(s, il), &e), "naming an expert");
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static uint64_t percentile(const struct cuda_share *s, uint64_t n, double share)
{
    uint64_t below = 0;
    int i = 0;
    while (i < N_BUCKETS - 1 && (double)(below += pf_counted(&s->handoffs[i])) < share * (double)n)
        i++;
    return (uint64_t)(i + 1) * BUCKET_NS;
}

static void share_handoffs(pf_backend *backend, struct pf_handoff_stats *out)
{
    const struct cuda_share *s = pf_cuda_of(backend)->share;
    *out = (struct pf_handoff_stats){ .waited_ns = pf_counted(&s->waited_ns) };
    for (int i = 0; i < N_BUCKETS; i++)
        out->n += pf_counted(&s->handoffs[i]);
    if (out->n > 0) {
        out->p50_ns = percentile(s, out->n, 0.5);
        out->p95_ns = percentile(s, out->n, 0.95);
    }
}

static void share_handoffs_reset(pf_backend *backend)
{
    struct cuda_share *s = pf_cuda_of(backend)->share;
    for (int i = 0; i < N_BUCKETS; i++)
        pf_count_anew(&s->handoffs[i]);
    pf_count_anew(&s->waited_ns);
}

const struct pf_share_ops pf_cuda_share_ops = {
    .open = share_open, .attend_room = pf_cuda_attend_room, .attended = pf_cuda_attended,
    .offer = share_offer, .experts = share_experts,
    .dealt = share_dealt, .hold = share_hold, .open_copies = pf_cuda_open_copies, .lend = pf_cuda_lend,
    .pin = pf_cuda_pin, .unpin = pf_cuda_unpin,
    .fetch = pf_cuda_fetch, .fetch_state = pf_cuda_fetch_state, .fetch_wait = pf_cuda_fetch_wait,
    .fetch_ns = pf_cuda_fetch_ns, .use = pf_cuda_use, .release = pf_cuda_release,
    .handoffs = share_handoffs, .handoffs_reset = share_handoffs_reset,
};

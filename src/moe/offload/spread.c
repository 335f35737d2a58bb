/* Several cards that share experts with the CPU, each those of its own layers: a placement over one pf_offload for each
 * card, all of them over the same slots in RAM.
 *
 *     card 0     layers 0 .. a      cache, scratchpad, slots of prompts, solver  |
 *     card 1     layers a .. b      cache, ...                                   | experts of all layers in RAM
 *     ..                                                                         |
 *
 * A layer's calls go to its card, or, if that was lost, to the placement of the CPU under all of them; what is no
 * layer's goes to all cards that are there. Threads as in placement.h. */
#include "moe/offload/shared.h"

#include "base/pf_mem.h"

struct spread {
    struct pf_placement  base;
    struct pf_placement *parts[PF_MAX_GPUS];         /* NULL: not opened */
};

static struct pf_placement *part_at(const struct pf_placement *p, int k)
{
    return ((const struct spread *)p)->parts[k];
}

/* NULL: layer il is the CPU's, in the place of a lost card. */
static struct pf_placement *part_of(const struct pf_placement *p, int il)
{
    int k = p->cut.n_more;
    while (k > 0 && il < p->cut.first[k])
        k--;
    return pf_place_has_lost(p, k) ? NULL : part_at(p, k);
}

/* The next card that is there, from card k on; the number of all: none. */
static int there(const struct pf_placement *p, int k)
{
    while (k < pf_place_n_cards(p) && pf_place_has_lost(p, k))
        k++;
    return k;
}

#define FOR_CARDS(p, k) for (int k = there((p), 0); k < pf_place_n_cards(p); k = there((p), k + 1))

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static pf_status spread_between(struct pf_placement *p, int rows)
{
    FOR_CARDS(p, k)
        PF_TRY(part_at(p, k)->ops->between(part_at(p, k), rows));
    return PF_OK;
}

static void spread_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    int k = p->cut.n_more;
    while (k > 0 && pf_place_has_lost(p, k))
        k--;
    part_at(p, k)->ops->ended(part_at(p, k), begun_ns, well);
}

static pf_status spread_want(struct pf_placement *p, int il, const struct pf_experts_op *e)
{
    struct pf_placement *part = part_of(p, il);
    return part ? part->ops->want(part, il, e) : pf_place_want(p->under, il, e);
}

static pf_status spread_experts(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e)
{
    struct pf_placement *part = part_of(p, il);
    return part ? part->ops->experts(part, b, il, e) : pf_place_experts(p->under, b, il, e);
}

static pf_status spread_copied(struct pf_placement *p)
{
    pf_status st = PF_OK;
    FOR_CARDS(p, k) {
        pf_status copied = part_at(p, k)->ops->copied(part_at(p, k));
        st = st < 0 ? st : copied;
    }
    return st;
}

static enum pf_guess spread_guesses(const struct pf_placement *p, int il, int rows)
{
    struct pf_placement *part = part_of(p, il);
    for (int k = 0; k < pf_place_n_cards(p); k++)
        if (il == p->cut.first[k])           /* the card in front of it does not have its router */
            return PF_GUESS_NOTHING;
    return part ? part->ops->guesses(part, il, rows) : pf_place_guesses(p->under, il, rows);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static pf_status spread_reserve(struct pf_placement *p, const struct pf_backend_sizes *sizes)
{
    FOR_CARDS(p, k)
        PF_TRY(part_at(p, k)->ops->reserve(part_at(p, k), sizes));
    return PF_OK;
}

/* Each card gives back what the whole session would take, and takes what is left afterwards. */
static void spread_make_room(struct pf_placement *p, uint64_t bytes)
{
    FOR_CARDS(p, k)
        part_at(p, k)->ops->make_room(part_at(p, k), bytes);
}

static void spread_use_room(struct pf_placement *p)
{
    FOR_CARDS(p, k)
        part_at(p, k)->ops->use_room(part_at(p, k));
}

static pf_status spread_fill(struct pf_placement *p)
{
    FOR_CARDS(p, k)
        PF_TRY(part_at(p, k)->ops->fill(part_at(p, k)));
    return PF_OK;
}

/* ---- What was learned: each card learns, the first one that is there tells --------------------------------------- */

static uint64_t spread_measure(struct pf_placement *p, bool on)
{
    uint64_t n = 0;
    FOR_CARDS(p, k)
        n += part_at(p, k)->ops->measure(part_at(p, k), on);
    return n;
}

static bool spread_knows(const struct pf_placement *p)
{
    struct pf_placement *first = part_at(p, there(p, 0));
    return first->ops->knows(first);
}

static void spread_tell(const struct pf_placement *p, struct pf_learned *out)
{
    struct pf_placement *first = part_at(p, there(p, 0));
    first->ops->tell(first, out);
}

static void spread_recall(struct pf_placement *p, const struct pf_learned *l)
{
    FOR_CARDS(p, k)
        part_at(p, k)->ops->recall(part_at(p, k), l);
}

/* ---- Statistics: counts are sums, of hand-offs the slower card's ------------------------------------------------- */

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void spread_stats(const struct pf_placement *p, struct pf_stats *out)
{
    FOR_CARDS(p, k) {
        struct pf_stats of = { .vram_slots = 0 };
        part_at(p, k)->ops->stats(part_at(p, k), &of);
        out->vram_slots += of.vram_slots;
        out->vram_slot_bytes += of.vram_slot_bytes;
        out->vram_transit_bytes += of.vram_transit_bytes;
        out->vram_hits += of.vram_hits;
        out->n_transfers += of.n_transfers;
        out->transfer_bytes += of.transfer_bytes;
        out->transfer_ns += of.transfer_ns;
        out->transfer_hidden_ns += of.transfer_hidden_ns;
        out->n_in_place += of.n_in_place;
        out->in_place_bytes += of.in_place_bytes;
        out->n_fallbacks += of.n_fallbacks;
        out->stream_bytes += of.stream_bytes;
        out->handoff_p50_ns = most(out->handoff_p50_ns, of.handoff_p50_ns);
        out->handoff_p95_ns = most(out->handoff_p95_ns, of.handoff_p95_ns);
        out->gpu_busy_ns = k == there(p, 0) || of.gpu_busy_ns < out->gpu_busy_ns ? of.gpu_busy_ns : out->gpu_busy_ns;
    }
}

static void spread_stats_reset(struct pf_placement *p)
{
    FOR_CARDS(p, k)
        part_at(p, k)->ops->stats_reset(part_at(p, k));
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* The slots in RAM stay pinned as long as any card copies from them: the last one to leave unpins. */
static bool spread_lose(struct pf_placement *p, unsigned lost)
{
    unsigned all = lost | atomic_load(&p->lost);
    int heir = 0;
    while (all >> heir & 1)
        heir++;
    for (int k = 0; k < pf_place_n_cards(p); k++) {
        pf_offload_of(part_at(p, k))->unpins = k == heir;
        if (lost >> k & 1)
            part_at(p, k)->ops->leave_device(part_at(p, k));
    }
    p->m->cpu->ops->alert(p->m->cpu, true);
    return true;
}

static void spread_leave_device(struct pf_placement *p)
{
    for (int k = p->cut.n_more; k >= 0; k--)
        if (!pf_place_has_lost(p, k))
            part_at(p, k)->ops->leave_device(part_at(p, k));
}

static void spread_close(struct pf_placement *p)
{
    for (int k = p->cut.n_more; k >= 0; k--)
        if (part_at(p, k))
            part_at(p, k)->ops->close(part_at(p, k));
    pf_free(p);
}

static const struct pf_place_ops ops = {
    .between = spread_between, .ended = spread_ended, .want = spread_want, .experts = spread_experts,
    .copied = spread_copied,
    .guesses = spread_guesses, .reserve = spread_reserve, .make_room = spread_make_room,
    .use_room = spread_use_room, .fill = spread_fill, .measure = spread_measure, .knows = spread_knows,
    .tell = spread_tell, .recall = spread_recall, .stats = spread_stats, .stats_reset = spread_stats_reset,
    .lose = spread_lose, .leave_device = spread_leave_device, .close = spread_close,
};

pf_status pf_spread_open(struct pf_placement **out, struct pf_placement *under, const struct pf_cards *cards,
                         const struct pf_cut *cut, const struct pf_model_opts *o)
{
    struct spread *s = pf_alloc(PF_MEM_MODEL, sizeof *s);
    *out = NULL;
    if (!s)
        PF_FAIL(PF_ENOMEM, "no memory for sharing experts with several GPUs");
    s->base = (struct pf_placement){ .ops = &ops, .m = under->m, .device = cards->at[0], .cut = *cut,
                                     .experts_apart = true, .under = under };
    for (int k = 0; k <= cut->n_more; k++) {
        s->base.cards[k] = cards->at[k];
        pf_status st = pf_offload_open_card(&s->parts[k], under, cards, cut, k, o);
        if (st < 0) {
            spread_close(&s->base);
            return st;
        }
    }
    *out = &s->base;
    return PF_OK;
}

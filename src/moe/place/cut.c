/* See cut.h. */
#include "moe/place/cut.h"

#include "backend/share.h"
#include "base/pf_mem.h"
#include "moe/place/on_device.h"
#include "moe/place/planning.h"
#include "moe/place/residency.h"

/* Visits take that part of a card's memory at most. */
enum { VISITS_SHARE = 8 };

static struct pf_cut take(const struct pf_cut_sizes *s, uint64_t room)
{
    struct pf_cut cut = { .n_layers = 0 };
    uint64_t used = s->fixed;
    if (used > room)
        return cut;
    cut.output = s->output <= room - used;
    used += cut.output ? s->output : 0;
    while (cut.n_layers < s->n_layers && s->layers[cut.n_layers] <= room - used)
        used += s->layers[cut.n_layers++];
    cut.whole = cut.output && cut.n_layers == s->n_layers && s->outside - s->output <= room - used;
    return cut;
}

struct pf_cut pf_cut_make(const struct pf_cut_sizes *s, uint64_t room)
{
    struct pf_cut cut = take(s, room);
    if (cut.n_layers == s->n_layers || s->visits == 0 || s->visits > room / VISITS_SHARE)
        return cut;
    struct pf_cut beside = take(s, room - s->visits);
    beside.visits = beside.n_layers > 0 || beside.output;
    return beside.visits ? beside : cut;
}

/* ---- Several cards ----------------------------------------------------------------------------------------------- */

enum { SHARES = 1000, MORE = 100 };          /* of a card's memory; as if it had so many times as much */

/* One more than the last layer from `at` on that there is room for, leaving so many to others. */
static int end_of(const struct pf_cut_sizes *s, int at, uint64_t room, int others)
{
    while (at < s->n_layers - others && s->layers[at] <= room)
        room -= s->layers[at++];
    return at;
}

/* Whether the cards take all layers, at least one each, with so many SHARES of their memory. */
static bool deal_whole(const struct pf_cut_sizes *s, const uint64_t *room, int n, int share, struct pf_cut *cut)
{
    int at = 0;
    *cut = (struct pf_cut){ .output = true, .whole = true, .n_layers = s->n_layers, .n_more = n - 1 };
    for (int k = 0; k < n; k++) {
        uint64_t mine = room[k] / SHARES * (uint64_t)share;
        uint64_t taken = s->fixed + (k == 0 ? s->first : 0) + (k == n - 1 ? s->output : 0);
        int end = taken < mine ? end_of(s, at, mine - taken, n - 1 - k) : at;
        cut->first[k] = at;
        if (end == at)
            return false;
        at = end;
    }
    return at == s->n_layers;
}

static struct pf_cut deal_part(const struct pf_cut_sizes *s, const uint64_t *room, int n)
{
    struct pf_cut cut = { .n_more = n - 1, .visits = s->visits > 0 && s->visits <= room[n - 1] / VISITS_SHARE };
    uint64_t last = s->fixed + (cut.visits ? s->visits : 0);
    cut.output = last <= room[n - 1] && s->output <= room[n - 1] - last;
    for (int k = 0; k < n; k++) {
        uint64_t taken = k == n - 1 ? last + (cut.output ? s->output : 0) : s->fixed;
        cut.first[k] = cut.n_layers;
        cut.n_layers = taken < room[k] ? end_of(s, cut.n_layers, room[k] - taken, 0) : cut.n_layers;
    }
    cut.visits = cut.visits && cut.n_layers < s->n_layers;
    return cut;
}

/* With the least share of their memory by which n cards take all layers; n_layers 0: `most` is too little. */
static struct pf_cut deal_evenly(const struct pf_cut_sizes *s, const uint64_t *room, int n, int most)
{
    struct pf_cut cut;
    int fits = most, not = 0;
    if (!deal_whole(s, room, n, most, &cut))
        return (struct pf_cut){ .n_layers = 0 };
    while (not + 1 < fits) {
        int middle = (fits + not) / 2;
        *(deal_whole(s, room, n, middle, &cut) ? &fits : &not) = middle;
    }
    deal_whole(s, room, n, fits, &cut);
    return cut;
}

struct pf_cut pf_cut_deal(const struct pf_cut_sizes *s, const uint64_t *room, int n)
{
    for (int used = n < s->n_layers ? n : s->n_layers; used > 1; used--) {
        struct pf_cut cut = deal_evenly(s, room, used, SHARES);
        if (cut.whole)
            return cut;
    }
    return deal_part(s, room, n);
}

/* All layers, as if each card had so much more memory as it takes; experts are left to lie elsewhere. */
static struct pf_cut deal_apart(const struct pf_cut_sizes *s, const uint64_t *room, int n)
{
    struct pf_cut cut = deal_evenly(s, room, n < s->n_layers ? n : s->n_layers, MORE * SHARES);
    cut.apart = cut.whole;
    return cut;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Bytes that a layer adds to a session, beyond `fixed`, the bytes of a session without layers. */
static pf_status session_layer(const struct pf_model *m, const pf_backend *b, const struct pf_session_opts *so, int il,
                               uint64_t fixed, uint64_t *bytes)
{
    uint64_t kv, work;
    PF_TRY(pf_session_part_bytes(m, so, b, il, il + 1, &kv, &work));
    *bytes = kv + work - fixed;
    return PF_OK;
}

/* Whether the first, or the last, of several cards has a weight that belongs to no layer. The embedding is the first
 * one's, the output the last one's; a tensor that serves as both is on both cards. */
static bool is_of_first(const struct pf_model *m, const struct pf_tensor *t)
{
    return t->data != m->output.data || t->data == m->embed.data;
}

static bool is_of_last(const struct pf_model *m, const struct pf_tensor *t)
{
    return t->data != m->embed.data || t->data == m->output.data;
}

static bool is_in_layer(const struct pf_model *m, const struct pf_tensor *t)
{
    int il = pf_tensor_layer(m, t);
    return il >= 0 && il < m->n_layer;
}

bool pf_cut_has(const struct pf_model *m, const struct pf_cut *cut, int k, const struct pf_tensor *t)
{
    int il = pf_tensor_layer(m, t), first, end;
    pf_cut_card(cut, k, &first, &end);
    if (il == PF_UNUSED)
        return false;
    if (is_in_layer(m, t))
        return il >= first && il < end;
    return cut->whole && ((k == 0 && is_of_first(m, t)) || (k == cut->n_more && is_of_last(m, t)));
}

static pf_status sizes_of(const struct pf_model *m, const pf_backend *b, const struct pf_session_opts *so,
                          uint64_t *layers, struct pf_cut_sizes *out)
{
    uint64_t kv, fixed;
    PF_TRY(pf_session_part_bytes(m, so, b, 0, 0, &kv, &fixed));
    *out = (struct pf_cut_sizes){ .fixed = fixed + PF_CUT_SPARE_BYTES + pf_model_extra_bytes(m),
                                  .output = pf_weight_bytes(&m->output), .layers = layers, .n_layers = m->n_layer };
    if (b == m->cpu || (b->ops->share && b->ops->share->lend))       /* the CPU stands for a card that is described */
        out->visits = pf_visits_bytes(m, so);
    for (int il = 0; il < m->n_layer; il++)
        PF_TRY(session_layer(m, b, so, il, fixed, &layers[il]));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        bool within = is_in_layer(m, t);
        if (!pf_model_places(m, t))
            continue;
        *(within ? &layers[pf_tensor_layer(m, t)] : &out->outside) += t->n_bytes;
        out->first += !within && is_of_first(m, t) ? t->n_bytes : 0;
    }
    return PF_OK;
}

/* Layers that need what earlier ones have left on their unit stay with these. */
static bool can_be_cut(const struct pf_model *m)
{
    bool fit = !m->n_shared_kv && !m->per_layer.width;
    for (int il = 0; m->index.max_chosen && il < m->n_layer; il++)
        fit = fit && (m->layers[il].has_indexer || m->layers[il].mixer != PF_MIXER_LATENT);
    return fit;
}

pf_status pf_cut_ranks(const struct pf_model *m, const uint64_t *room, int n, struct pf_cut *out)
{
    struct pf_cut_sizes sizes;
    struct pf_session_opts so;
    if (!can_be_cut(m) || m->gather.table.data)
        PF_FAIL(PF_EUNSUPPORTED, "layers of %s models cannot be divided between processes", m->arch->name);
    if (n > m->n_layer)
        PF_FAIL(PF_EINVAL, "%d processes: the model has only %d layers", n, m->n_layer);
    PF_TRY(pf_session_opts_resolve(m, NULL, &so));
    so.n_ctx = pf_least_context(m);
    uint64_t *layers = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *layers);
    if (!layers)
        PF_FAIL(PF_ENOMEM, "no memory for the sizes of %d layers", m->n_layer);
    pf_status st = sizes_of(m, m->cpu, &so, layers, &sizes);
    sizes.fixed = sizes.output = 0;
    sizes.first = sizes.outside;
    if (st == PF_OK)
        *out = deal_evenly(&sizes, room, n, MORE * SHARES);
    pf_free(layers);
    PF_TRY(st);
    if (!out->whole)
        PF_FAIL(PF_ENOMEM, "%d processes have too little memory for the model's layers", n);
    return PF_OK;
}

/* The first card alone takes everything, unless the layers are to be divided. Where the cards together have no room for
 * the experts, each shares those of its layers with the CPU. */
static struct pf_cut cut_for_cards(const struct pf_model *m, const struct pf_cards *cards,
                                   const struct pf_cut_sizes *sizes, const struct pf_model_opts *o)
{
    struct pf_cut one = pf_cut_make(sizes, cards->room[0]);
    bool whole = one.whole && !o->streaming;
    if (cards->n == 1 || !can_be_cut(m) || (whole && o->layout == PF_LAYOUT_AUTO) || (o->streaming && !m->n_expert))
        return one;
    struct pf_cut cut = pf_cut_deal(sizes, cards->room, cards->n);
    if (m->n_expert > 0 && (!cut.whole || o->streaming))
        return deal_apart(sizes, cards->room, cards->n);
    return cut;
}

pf_status pf_cut_of(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                    const struct pf_model_opts *o, struct pf_cut *out, uint64_t *least)
{
    struct pf_cut_sizes sizes;
    uint64_t *layers = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *layers);
    if (!layers)
        PF_FAIL(PF_ENOMEM, "no memory for the sizes of %d layers", m->n_layer);
    pf_status st = sizes_of(m, cards->at[0], so, layers, &sizes);
    *least = st == PF_OK ? sizes.fixed + layers[0] : 0;
    if (st == PF_OK)
        *out = cut_for_cards(m, cards, &sizes, o);
    pf_free(layers);
    PF_TRY(st);
    if (!out->whole && !can_be_cut(m))
        out->n_layers = 0;
    if (o->streaming && !out->apart && out->n_layers > m->n_layer / 2) {
        out->n_layers = can_be_cut(m) ? m->n_layer / 2 : 0;
        out->visits = out->n_layers > 0 && sizes.visits > 0;
        out->whole = false;
    }
    return PF_OK;
}

/* ---- The placement ----------------------------------------------------------------------------------------------- */

/* Whether the weights of layer il are nowhere but on the device, as long as it is there. */
static bool is_on_device(const struct pf_placement *p, int il)
{
    return !p->cut.whole && il >= 0 && il < p->cut.n_layers;
}

static pf_status cut_enter(struct pf_placement *p, int il)
{
    return il < p->cut.n_layers ? PF_OK : pf_place_enter(p->under, il);
}

static void cut_leave(struct pf_placement *p, int il)
{
    if (il >= p->cut.n_layers)
        pf_place_leave(p->under, il);
}

static void cut_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    (void)well;
    if (p->cut.whole)
        pf_on_device_note(p, begun_ns);
}

static bool cut_maps(const struct pf_placement *p, const struct pf_tensor *t)
{
    return !is_on_device(p, pf_tensor_layer(p->m, t)) && pf_place_maps(p->under, t);
}

/* The layers whose weights the cards have, as far as they have room for the session's part of them, too. */
static struct pf_cut cut_for(const struct pf_placement *p, const struct pf_session_opts *o)
{
    struct pf_cut cut = p->cut;
    for (int k = 0; k < pf_place_n_cards(p); k++) {
        pf_backend *device = pf_place_unit(p, k);
        uint64_t used = p->cut.whole ? 0 : PF_CUT_SPARE_BYTES + pf_place_visits_stage(p, k, o);
        uint64_t room = device->ops->room ? device->ops->room(device) : UINT64_MAX;
        int first, end;
        pf_cut_card(&cut, k, &first, &end);
        for (int il = first; il < end; il++) {
            used += pf_kv_bytes_of(p->m, il, o) + pf_states_bytes(p->m, il, il + 1, o);
            if (used > room) {
                cut.n_layers = end = il;
                cut.whole = false;
            }
        }
    }
    return cut;
}

static void cut_stats(const struct pf_placement *p, struct pf_stats *out)
{
    if (p->visits)
        out->stream_bytes = pf_visits_bytes_sent(p->visits);
}

static void cut_stats_reset(struct pf_placement *p)
{
    if (p->visits)
        pf_visits_reset(p->visits);
}

static void cut_close(struct pf_placement *p)
{
    pf_visits_close(p->visits);
    pf_free(p);
}

static const struct pf_place_ops ops = { .ended = cut_ended, .enter = cut_enter,
                                         .leave = cut_leave, .cut_for = cut_for, .maps = cut_maps,
                                         .stats = cut_stats, .stats_reset = cut_stats_reset, .close = cut_close };

/* The output matrix may be the embedding, too, which is one of the tensors. */
static pf_status place_cut(const struct pf_placement *p, int k)
{
    const struct pf_model *m = p->m;
    pf_backend *device = p->cards[k];
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (pf_cut_has(m, &p->cut, k, t) && !pf_model_gathers(m, t))
            PF_TRY(device->ops->place(device, t->data, t->n_bytes));
    }
    if (p->cut.output && !p->cut.whole && k == p->cut.n_more && m->output.data)
        PF_TRY(device->ops->place(device, m->output.data, pf_weight_bytes(&m->output)));
    return pf_model_place_extra(m, device);
}

static pf_status open_parts(struct pf_placement *p, const struct pf_placing *what,
                            const struct pf_residency_setup *setup)
{
    struct pf_model *m = p->m;
    const struct pf_cut *cut = &p->cut;
    for (int k = 0; k < pf_place_n_cards(p); k++)
        PF_TRY(place_cut(p, k));
    if (cut->whole)
        return pf_plain_open(&p->under, m);
    if (cut->visits) {
        pf_status st = pf_visits_open(&p->visits, m, p->cards[cut->n_more], cut->n_layers);
        if (st < 0 && st != PF_ENOMEM)
            return st;
    }
    pf_model_logf(m, PF_LOG_INFO, "the GPU has room for %d of %d layers%s; the CPU computes the rest%s",
                  cut->n_layers, m->n_layer, cut->output ? " and the output" : "",
                  p->visits ? ", and the GPU in prompts" : "");
    PF_TRY(pf_cpu_place_open(&p->under, m, what, setup));
    const struct pf_residency *streams = p->visits ? pf_residency_of(p->under) : NULL;
    if (streams) {
        size_t bytes;
        void *slots = pf_residency_arena(streams, &bytes);
        pf_visits_pin(p->visits, slots, bytes);
    }
    return PF_OK;
}

pf_status pf_cut_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                      const struct pf_placing *what, const struct pf_residency_setup *setup)
{
    struct pf_placement *p = pf_alloc(PF_MEM_MODEL, sizeof *p);
    *out = NULL;
    if (!p)
        PF_FAIL(PF_ENOMEM, "no memory for sharing layers with the GPU");
    *p = (struct pf_placement){ .ops = &ops, .m = m, .device = cards->at[0], .cut = what->cut };
    for (int k = 0; k <= what->cut.n_more; k++)
        p->cards[k] = cards->at[k];
    pf_status st = open_parts(p, what, setup);
    if (st < 0) {
        cut_close(p);
        return st;
    }
    *out = p;
    return PF_OK;
}

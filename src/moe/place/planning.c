/* See planning.h: sizes for the planner, and what follows from its answer. */
#include "moe/place/planning.h"

#include <string.h>

#include "backend/team.h"
#include "moe/place/among.h"
#include "moe/place/cut.h"
#include "moe/place/layouts.h"
#include "moe/place/mapped.h"
#include "moe/place/residency.h"
#include "moe/place/rows.h"
#include "moe/place/transit.h"

/* Prices when nobody names or measures better ones: a GPU of the middle class on PCIe 4, two channels of DDR4, a
 * drive. */
static const struct pf_speeds ASSUMED = { 500e9, 20e9, 30e9, 2.5e9 };

/* An exchange between GPUs by events and small kernels, over PCIe. */
static const struct pf_link ASSUMED_LINK = { 15e-6, 10e9 };

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Weights that a cut puts on a device: of layers, and others. */
static void cut_weights(const struct pf_model *m, const struct pf_cut *cut, uint64_t *bytes)
{
    *bytes = cut->output ? pf_weight_bytes(&m->output) : 0;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        int il = pf_tensor_layer(m, t);
        *bytes += il >= 0 && il < cut->n_layers ? t->n_bytes : 0;
    }
}

static pf_status slab_sizes(const struct pf_model *m, const struct pf_cut *cut, struct pf_plan_sizes *s)
{
    struct pf_slabs all, left;
    struct pf_store_setup setup;
    PF_TRY(pf_slabs_make(&all, m, 0));
    s->n_slabs = (uint64_t)all.n_slabs;
    for (int i = 0; i < all.n_slabs; i++) {
        bool there = m->n_expert == 0 && all.slabs[i].layer < cut->n_layers;
        uint64_t bytes = pf_slab_bytes(&all, i);
        s->slab_bytes += bytes;
        s->cut_slabs += there;
        s->cut_slab_bytes += there ? bytes : 0;
    }
    pf_slabs_free(&all);
    PF_TRY(pf_slabs_make(&left, m, m->n_expert ? 0 : cut->n_layers));
    pf_slabs_setup(&left, m, &setup);
    pf_status st = pf_store_bytes(&setup, &s->slots_all, &s->slots_least);
    pf_slabs_free(&left);
    return st;
}

/* Bytes of a session: on the CPU, for the layers that a cut leaves it, and on a device that computes everything. */
static pf_status session_sizes(const struct pf_model *m, const pf_backend *device, const struct pf_cut *cut,
                               const struct pf_session_opts *so, struct pf_plan_sizes *s)
{
    const struct pf_cut all = pf_cut_all(m);
    struct pf_session_opts least = *so;
    uint64_t kv, work;
    if (cut->n_layers > 0 || cut->output)
        PF_TRY(pf_session_part_bytes(m, so, m->cpu, cut->n_layers, m->n_layer, &kv, &work));
    else
        PF_TRY(pf_place_session_bytes(m, &all, m->cpu, so, &kv, &work));
    s->other_bytes = kv + work + pf_model_extra_bytes(m);
    PF_TRY(pf_session_part_bytes(m, so, device, 0, m->n_layer, &kv, &work));
    s->device_bytes = kv + work + pf_model_extra_bytes(m);
    if (cut->n_more > 0) {
        PF_TRY(pf_session_part_bytes(m, so, device, 0, 0, &kv, &work));
        s->device_bytes += (uint64_t)cut->n_more * (work + pf_model_extra_bytes(m));
    }
    least.n_near = 1;
    PF_TRY(pf_session_part_bytes(m, &least, device, 0, m->n_layer, &kv, &work));
    s->device_least_bytes = kv + work + pf_model_extra_bytes(m) + PF_NEAR_SPARE_BYTES;
    if (s->device_least_bytes > s->device_bytes)         /* what passes through takes more than what it saves */
        s->device_least_bytes = s->device_bytes;
    return PF_OK;
}

/* Whether each card has room for what every token needs of its layers. */
static pf_status take_dense(const struct pf_model *m, const struct pf_cards *cards, const struct pf_cut *cut,
                            const struct pf_session_opts *so, uint64_t transit_bytes, bool *take)
{
    struct pf_slabs slabs;
    uint64_t kv, work;
    PF_TRY(pf_session_part_bytes(m, so, cards->at[0], 0, 0, &kv, &work));
    PF_TRY(pf_slabs_make(&slabs, m, 0));
    *take = true;
    for (int k = 0; k <= cut->n_more; k++) {
        uint64_t bytes = work + transit_bytes + pf_model_extra_bytes(m) + PF_NEAR_SPARE_BYTES;
        for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
            const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
            bool there = !slabs.streams[i] && pf_cut_has(m, cut, k, t) && !pf_model_gathers(m, t);
            bytes += there ? t->n_bytes : 0;
        }
        *take &= bytes <= cards->room[k];
    }
    pf_slabs_free(&slabs);
    return PF_OK;
}

/* The cut; of a model with experts n_layers is 0 if one card is used, as if there were no others. */
static pf_status find_cut(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                          const struct pf_session_opts *so, uint64_t transit_bytes, struct pf_placing *what)
{
    bool take = true;
    what->cut = (struct pf_cut){ .n_layers = 0 };
    if ((m->n_expert > 0 && cards->n < 2) || cards->room[0] == 0)
        return PF_OK;
    if (o->layout == PF_LAYOUT_EXPERTS && cards->n > 1) {
        if (!o->streaming)
            PF_TRY(pf_among_cut(m, cards, so, &what->cut));
        if (!what->cut.by_experts)
            PF_TRY(pf_among_cut_apart(m, cards, so, transit_bytes, &what->cut));
        if (what->cut.by_experts)
            return PF_OK;
    }
    if (o->layout == PF_LAYOUT_ROWS && cards->n > 1 && !o->streaming) {
        PF_TRY(pf_rows_cut(m, cards, so, &what->cut));
        if (what->cut.by_rows)
            return PF_OK;
    }
    PF_TRY(pf_cut_of(m, cards, so, o, &what->cut, &what->least_bytes));
    if (what->cut.apart)
        PF_TRY(take_dense(m, cards, &what->cut, so, transit_bytes, &take));
    if (m->n_expert > 0 && (what->cut.n_more == 0 || !take))
        what->cut = (struct pf_cut){ .n_layers = 0 };
    return PF_OK;
}

/* A table of which each token takes some rows is needed nowhere as a whole: it stays in the file as mapped, and the
 * page cache has what it has. Only if nothing may be read while running, it counts. */
static pf_status sizes_of(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                          const struct pf_session_opts *so, struct pf_placing *what, struct pf_plan_sizes *out)
{
    uint64_t by_rows = m->gather.table.data ? pf_weight_bytes(&m->gather.table) : 0;
    struct pf_plan_sizes s = { .weight_bytes = m->info.weight_bytes - by_rows, .token_bytes = m->info.bytes_per_token };
    struct pf_transit transit = pf_transit_of(m, &o->postfetch, cards->room[0]);
    const pf_backend *device = cards->at[0];
    uint64_t transit_bytes = m->n_expert ? pf_transit_bytes(&transit, &o->postfetch) : 0;
    PF_TRY(find_cut(m, cards, o, so, transit_bytes, what));
    struct pf_cut cut = what->cut;
    cut.n_layers = cut.apart ? 0 : cut.n_layers;         /* the CPU may have to compute all of them */
    cut.output = cut.output && !cut.apart;
    s.experts = m->n_expert > 0 && (what->cut.n_more == 0 || what->cut.apart);
    PF_TRY(slab_sizes(m, &cut, &s));
    PF_TRY(session_sizes(m, device, &cut, so, &s));
    s.other_bytes += o->no_nvme ? by_rows : 0;
    s.transit_bytes = transit_bytes * (uint64_t)(1 + what->cut.n_more);
    s.cut_whole = what->cut.whole;
    s.apart = what->cut.by_experts && what->cut.apart;
    if (!s.experts) {
        uint64_t placed;
        cut_weights(m, &what->cut, &placed);
        s.cut_bytes = placed - s.cut_slab_bytes;
    } else {
        what->least_bytes = s.weight_bytes - s.slab_bytes + s.transit_bytes;
    }
    s.token_slab_bytes = m->n_expert ? s.slab_bytes / (uint64_t)m->n_expert * (uint64_t)m->n_used : s.slab_bytes;
    *out = s;
    return PF_OK;
}

/* ---- Deciding ---------------------------------------------------------------------------------------------------- */

static enum pf_layout layout_of(const struct pf_cut *c)
{
    return c->by_experts  ? PF_LAYOUT_EXPERTS
           : c->by_rows   ? PF_LAYOUT_ROWS
           : c->n_more > 0 ? PF_LAYOUT_LAYERS
                          : PF_LAYOUT_AUTO;
}

static void name_cards(const struct pf_model *m, const struct pf_cards *cards, const struct pf_placing *what,
                       struct pf_plan *plan)
{
    struct pf_cut all = pf_cut_all(m);
    const struct pf_cut *cut = m->n_expert > 0 && what->cut.n_more == 0 ? &all : &what->cut;
    plan->layout = what->how == PF_HOW_CPU ? PF_LAYOUT_AUTO : layout_of(&what->cut);
    plan->n_gpus = what->how == PF_HOW_CPU || cards->n == 0 ? 0 : 1 + what->cut.n_more;
    for (int k = 0; k < plan->n_gpus; k++) {
        struct pf_plan_gpu *g = &plan->gpus[k];
        int end;
        g->gpu = cards->gpu[k];
        g->budget_bytes = cards->room[k];
        bool together = cut->by_experts || cut->by_rows;
        pf_cut_card(together ? &all : cut, together ? 0 : k, &g->first_layer, &end);
        g->n_layers = end - g->first_layer;
        if (cut->by_rows)
            g->rows = (double)((k < cut->n_more ? cut->first_share[k + 1] : PF_TEAM_SHARES) - cut->first_share[k]) /
                      PF_TEAM_SHARES;
        if (!cut->by_experts || cut->apart)
            continue;
        g->first_expert = cut->first_expert[k];
        g->n_experts = (k < cut->n_more ? cut->first_expert[k + 1] : m->n_expert) - g->first_expert;
    }
}

/* Matrices of layers that visit a card cross to it once in each step. */
static void price_visits(const struct pf_model *m, const struct pf_placing *what, const struct pf_session_opts *so,
                         double pcie_bytes_s, struct pf_plan *plan)
{
    if (what->how != PF_HOW_CUT || !what->cut.visits)
        return;
    for (int il = what->cut.n_layers; il < m->n_layer; il++)
        for (int i = 0; i < m->layers[il].n_weights; i++)
            plan->visit_bytes += pf_weight_bytes(m->layers[il].weights[i]);
    plan->visit_rows = so->n_batch;
    plan->visit_tok_s = so->n_batch * pcie_bytes_s / (double)plan->visit_bytes;
}

/* Where weights go beside a session of this length. */
static pf_status decide_for(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                            const struct pf_session_opts *so, bool any_session, const struct pf_plan_budget *of_host,
                            struct pf_placing *out, struct pf_plan *plan)
{
    struct pf_placing what = { .how = PF_HOW_CPU };
    struct pf_plan_budget budget = *of_host;
    struct pf_plan_sizes sizes;
    struct pf_plan_choice choice;
    PF_TRY(sizes_of(m, cards, o, so, &what, &sizes));
    sizes.any_session = any_session;
    for (int k = 0; k <= what.cut.n_more; k++)
        budget.vram_bytes += cards->room[k];
    PF_TRY(pf_plan_make(&sizes, &budget, plan, &choice));
    what.how = choice.how;
    what.mapped = plan->resident && choice.how != PF_HOW_SHARED;     /* a GPU copies from slots, which can be pinned */
    what.slot_bytes = plan->resident ? sizes.slots_all : plan->slot_bytes;
    what.n_planned = (int)choice.n_in_ram;
    what.context_bytes = choice.context_bytes;
    plan->n_ctx = so->n_ctx;
    name_cards(m, cards, &what, plan);
    price_visits(m, &what, so, budget.speeds.pcie_bytes_s, plan);
    *out = what;
    return PF_OK;
}

/* ---- Which layout ------------------------------------------------------------------------------------------------ */

/* Notes in plan->layouts how fast the layouts of several cards decode, and makes of o and cards what is best: the first
 * card alone, the layers divided if that is faster, or a layout with exchanges in each layer if that gains a tenth. */
static pf_status choose_layout(const struct pf_model *m, struct pf_cards *cards, struct pf_model_opts *o,
                               const struct pf_session_opts *so, bool any_session, const struct pf_plan_budget *budget,
                               struct pf_plan *out)
{
    static const double gain[] = { [PF_LAYOUT_AUTO] = 1, [PF_LAYOUT_LAYERS] = 1, [PF_LAYOUT_EXPERTS] = 1.1,
                                   [PF_LAYOUT_ROWS] = 1.1 };
    const struct pf_link link = cards->link.seconds > 0 ? cards->link : ASSUMED_LINK;
    double best = 0;
    out->n_layouts = 0;
    for (enum pf_layout l = PF_LAYOUT_AUTO; cards->n > 1 && l <= PF_LAYOUT_ROWS; l++) {
        struct pf_cards some = *cards;
        struct pf_model_opts asked = *o;
        struct pf_placing what;
        struct pf_plan plan;
        double seconds;
        some.n = l == PF_LAYOUT_AUTO ? 1 : cards->n;
        asked.layout = l;
        if (decide_for(m, &some, &asked, so, any_session, budget, &what, &plan) < 0 || plan.layout != l)
            continue;
        PF_TRY(pf_layout_seconds(m, cards, &what, &plan, &budget->speeds, &link, &seconds));
        out->layouts[out->n_layouts++] = (struct pf_plan_layout){ l, 1 / seconds };
        if (1 / seconds <= best * gain[l])
            continue;
        best = 1 / seconds;
        o->layout = l;
    }
    cards->n = best > 0 && o->layout == PF_LAYOUT_AUTO ? 1 : cards->n;
    return PF_OK;
}

/* Main memory for models that draft for this one. Embedding and output of the layer that guesses ahead are read where
 * this model has them. */
static uint64_t drafter_bytes(const struct pf_model *m)
{
    uint64_t bytes = m->second && m->second->backend == m->second->cpu ? m->second->info.weight_bytes : 0;
    if (!m->nextn || m->nextn->backend != m->nextn->cpu)
        return bytes;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->nextn->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->nextn->file, i);
        bytes += pf_tensor_layer(m->nextn, t) >= 0 ? t->n_bytes : 0;
    }
    return bytes;
}

static struct pf_session_opts usual_session(const struct pf_model_opts *o)
{
    struct pf_session_opts usual;
    pf_session_opts_init(&usual);
    usual.n_batch = o->n_batch;
    return usual;
}

/* As long as what the decision leaves allows, if that changes nothing else. */
static void lengthen(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                     struct pf_session_opts *so, bool any_session, const struct pf_plan_budget *budget,
                     struct pf_placing *out, struct pf_plan *plan)
{
    struct pf_placing longer;
    struct pf_plan longer_plan;
    const pf_backend *attends = out->how == PF_HOW_CPU ? m->cpu : cards->at[0];
    so->n_ctx = pf_context_within(m, so, attends, out->context_bytes);
    if (so->n_ctx > pf_least_context(m) &&
        decide_for(m, cards, o, so, any_session, budget, &longer, &longer_plan) == PF_OK &&
        longer.how == out->how && longer.mapped == out->mapped && longer.cut.n_more == out->cut.n_more &&
        longer.cut.by_rows == out->cut.by_rows) {
        longer.context_bytes = out->context_bytes;
        *out = longer;
        *plan = longer_plan;
    } else {
        out->context_bytes = 0;
    }
}

/* The price of the layout that was chosen, in the place of one for cards that do nothing at the same time. */
static void keep_layouts(const struct pf_plan *choice, const struct pf_cards *cards, struct pf_plan *plan)
{
    plan->n_layouts = choice->n_layouts;
    memcpy(plan->layouts, choice->layouts, sizeof plan->layouts);
    plan->link = cards->link.seconds > 0 ? cards->link : ASSUMED_LINK;
    for (int i = 0; i < plan->n_layouts; i++)
        if (plan->layouts[i].layout == plan->layout)
            plan->tok_s = plan->layouts[i].tok_s;
}

pf_status pf_place_decide(const struct pf_model *m, const struct pf_cards *there, const struct pf_model_opts *asked,
                          const struct pf_session_opts *so, const struct pf_speeds *speeds, struct pf_placing *out,
                          struct pf_plan *plan)
{
    struct pf_session_opts usual = usual_session(asked), least;
    struct pf_model_opts o = *asked;
    struct pf_cards cards = *there;
    struct pf_plan_budget budget = { .ram_bytes = o.ram_bytes ? o.ram_bytes : pf_ram_available(""),
                                     .streaming = o.streaming, .no_nvme = o.no_nvme,
                                     .speeds = speeds ? *speeds : ASSUMED };
    struct pf_plan choice = { .n_layouts = 0 };
    bool said = so && so->n_ctx > 0;
    uint64_t beside = drafter_bytes(m);
    budget.ram_bytes = budget.ram_bytes > beside ? budget.ram_bytes - beside : 1;
    PF_TRY(pf_session_opts_resolve(m, so ? so : &usual, &least));
    if (!said)
        least.n_ctx = pf_least_context(m);
    cards.at[0] = cards.n > 0 && cards.at[0] ? cards.at[0] : m->cpu;
    if (o.layout == PF_LAYOUT_AUTO)
        PF_TRY(choose_layout(m, &cards, &o, &least, so == NULL, &budget, &choice));
    PF_TRY(decide_for(m, &cards, &o, &least, so == NULL, &budget, out, plan));
    if (!said)
        lengthen(m, &cards, &o, &least, so == NULL, &budget, out, plan);
    keep_layouts(&choice, &cards, plan);
    return PF_OK;
}

/* The first known of: given, measured, assumed (which *price holds before). */
static enum pf_price price_of(double given, double measured, double *price)
{
    if (given <= 0 && measured <= 0)
        return PF_PRICE_ASSUMED;
    *price = given > 0 ? given : measured;
    return given > 0 ? PF_PRICE_GIVEN : PF_PRICE_MEASURED;
}

pf_status pf_place_plan(const struct pf_model *m, const struct pf_cards *there, const struct pf_model_opts *o,
                        const struct pf_session_opts *so, struct pf_plan *out)
{
    struct pf_session_opts usual = usual_session(o);
    struct pf_cards cards = *there;
    struct pf_placing what;
    struct pf_speeds speeds = ASSUMED;
    const struct pf_speeds *given = &o->speeds;
    enum pf_price from[PF_N_TIERS];
    if (cards.bytes_s[0] > 0)
        speeds.vram_bytes_s = cards.bytes_s[0];
    enum pf_price copies = price_of(given->pcie_bytes_s, 0, &speeds.pcie_bytes_s);
    from[PF_TIER_VRAM] = price_of(given->vram_bytes_s, 0, &speeds.vram_bytes_s);
    from[PF_TIER_RAM] = price_of(given->ram_bytes_s, given->ram_bytes_s > 0 ? 0 : pf_price_ram(m->info.n_threads),
                                 &speeds.ram_bytes_s);
    from[PF_TIER_DISK] = price_of(given->disk_bytes_s,
                                  given->disk_bytes_s > 0 ? 0 : pf_price_disk(pf_gguf_shard_path(m->file, 0)),
                                  &speeds.disk_bytes_s);
    for (int k = 0; given->vram_bytes_s > 0 && k < PF_MAX_GPUS; k++)
        cards.bytes_s[k] = 0;
    if (o->link.seconds > 0 && o->link.bytes_s > 0) {
        cards.link = o->link;
        cards.swap_seconds = 0;
    }
    PF_TRY(pf_place_decide(m, &cards, o, so ? so : &usual, &speeds, &what, out));
    out->link_price = o->link.seconds > 0 && o->link.bytes_s > 0 ? PF_PRICE_GIVEN
                      : cards.link.seconds > 0                   ? PF_PRICE_MEASURED
                                                                 : PF_PRICE_ASSUMED;
    if (out->tiers[PF_TIER_RAM].bytes_s > speeds.ram_bytes_s)
        from[PF_TIER_RAM] = copies;
    for (int t = 0; t < PF_N_TIERS; t++)
        out->tiers[t].price = from[t];
    return PF_OK;
}

pf_status pf_cpu_place_open(struct pf_placement **out, struct pf_model *m, const struct pf_placing *what,
                            const struct pf_residency_setup *setup)
{
    int first = what->how == PF_HOW_CUT ? what->cut.n_layers : 0;
    struct pf_streaming how = { what->slot_bytes, what->n_planned, first };
    struct pf_slabs slabs;
    *out = NULL;
    if (what->mapped)
        return pf_mapped_open(out, m, first);
    PF_TRY(pf_slabs_make(&slabs, m, first));
    return pf_residency_open(out, m, &slabs, &how, setup);
}

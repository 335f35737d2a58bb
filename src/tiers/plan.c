/* The planner. See plan.h. */
#include "tiers/plan.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What the GPU takes: *fixed says whether that is all but the slabs, the result is bytes of slabs. */
static uint64_t slabs_in_vram(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, bool *fixed)
{
    uint64_t needed = s->weight_bytes - s->slab_bytes + s->other_bytes;
    uint64_t left = b->vram_bytes > needed ? b->vram_bytes - needed : 0;
    *fixed = b->vram_bytes >= needed && b->vram_bytes > 0 && (s->experts || left >= s->slab_bytes);
    if (!*fixed)
        return 0;
    if (b->streaming && s->n_slabs > 0)          /* not everything, even if it would fit */
        left = min_u64(left, s->slab_bytes / 2);
    return min_u64(left, s->slab_bytes);
}

/* Bytes of RAM for the slots of slabs whose slots would take `wanted` bytes in all, beside fixed bytes; or an error. */
static pf_status slots_for(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, uint64_t fixed,
                           uint64_t wanted, uint64_t *slots)
{
    bool whole = b->no_nvme || s->n_slabs == 0;
    uint64_t needed = fixed + (whole ? wanted : s->slots_least);
    if (b->ram_bytes < needed || (whole && b->ram_bytes < fixed + wanted))
        PF_FAIL(PF_ENOMEM, "the model needs %" PRIu64 " MB of memory%s and may take %" PRIu64 " MB",
                (needed + 999999) / 1000000,
                b->no_nvme ? " when it may not be read from the drive as it runs" : "", b->ram_bytes / 1000000);
    *slots = min_u64(b->ram_bytes - fixed, wanted);
    if (b->streaming && wanted > s->slots_least)
        *slots = min_u64(*slots, s->slots_least + (wanted - s->slots_least) / 2);
    return PF_OK;
}

static void fill_tier(struct pf_plan_tier *t, double bytes_s, double token_bytes)
{
    t->bytes_s = bytes_s;
    t->token_bytes = token_bytes;
    t->tok_s = token_bytes > 0 ? bytes_s / token_bytes : 0;
}

/* Layers come one after the other: the GPU's, then the CPU's while the drive reads. */
static void fill_speeds_of_cut(const struct pf_plan_sizes *s, const struct pf_speeds *p, const double share[PF_N_TIERS],
                               struct pf_plan *out)
{
    double other = (double)s->cut_bytes, slabs = (double)s->token_slab_bytes;
    double rest = (double)(s->token_bytes - s->token_slab_bytes) - other;
    fill_tier(&out->tiers[PF_TIER_VRAM], p->vram_bytes_s, other + share[PF_TIER_VRAM] * slabs);
    fill_tier(&out->tiers[PF_TIER_RAM], p->ram_bytes_s, rest + (1 - share[PF_TIER_VRAM]) * slabs);
    fill_tier(&out->tiers[PF_TIER_DISK], p->disk_bytes_s, share[PF_TIER_DISK] * slabs);
    double first = out->tiers[PF_TIER_VRAM].token_bytes / p->vram_bytes_s;
    double ram = out->tiers[PF_TIER_RAM].token_bytes / p->ram_bytes_s,
           disk = out->tiers[PF_TIER_DISK].token_bytes / p->disk_bytes_s;
    double then = ram > disk ? ram : disk;
    out->limit = first > then ? PF_TIER_VRAM : ram > disk ? PF_TIER_RAM : PF_TIER_DISK;
    out->tok_s = 1 / (first + then);
}

/* The GPU first reads what every token needs; then all tiers serve their slabs at the same time. What lies in RAM is
 * computed there, or goes to the GPU where that is faster; both share RAM's speed. What comes from the drive is written
 * to RAM and read there like the rest. */
static void fill_speeds(const struct pf_plan_sizes *s, const struct pf_speeds *p, const double share[PF_N_TIERS],
                        bool gpu, struct pf_plan *out)
{
    double fixed = (double)(s->token_bytes - s->token_slab_bytes), slabs = (double)s->token_slab_bytes;
    double ram_bytes_s = gpu && p->pcie_bytes_s > p->ram_bytes_s ? p->pcie_bytes_s : p->ram_bytes_s;
    fill_tier(&out->tiers[PF_TIER_VRAM], p->vram_bytes_s, gpu ? fixed + share[PF_TIER_VRAM] * slabs : 0);
    fill_tier(&out->tiers[PF_TIER_RAM], ram_bytes_s, 
              (gpu ? 0 : fixed) + (share[PF_TIER_RAM] + share[PF_TIER_DISK]) * slabs);
    fill_tier(&out->tiers[PF_TIER_DISK], p->disk_bytes_s, share[PF_TIER_DISK] * slabs);
    double before = gpu ? fixed / p->vram_bytes_s : 0, longest = 0;
    for (int t = 0; t < PF_N_TIERS; t++) {
        double bytes = out->tiers[t].token_bytes - (t == PF_TIER_VRAM && gpu ? fixed : 0);
        if (bytes / out->tiers[t].bytes_s > longest) {
            longest = bytes / out->tiers[t].bytes_s;
            out->limit = (enum pf_tier)t;
        }
    }
    if (before > longest)
        out->limit = PF_TIER_VRAM;
    out->tok_s = 1 / (before + longest);
}

pf_status pf_plan_make(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, struct pf_plan *out)
{
    struct pf_plan p = { .ram_budget_bytes = b->ram_bytes, .other_bytes = s->other_bytes };
    double share[PF_N_TIERS] = { 0 };            /* of the slabs */
    bool gpu;
    uint64_t in_vram = slabs_in_vram(s, b, &gpu), others = s->weight_bytes - s->slab_bytes;
    bool cut = !gpu && b->vram_bytes > 0 && s->cut_slab_bytes + s->cut_bytes > 0;
    in_vram = cut ? s->cut_slab_bytes : in_vram;
    uint64_t others_in_vram = gpu ? others : cut ? s->cut_bytes : 0, left = s->slab_bytes - in_vram;
    uint64_t fixed = gpu ? 0 : others - others_in_vram + s->other_bytes;
    p.vram_budget_bytes = gpu || cut ? b->vram_bytes : 0;
    p.vram_slot_bytes = in_vram;
    share[PF_TIER_VRAM] = s->slab_bytes ? (double)in_vram / (double)s->slab_bytes : 0;
    share[PF_TIER_RAM] = 1 - share[PF_TIER_VRAM];
    p.resident = left + fixed <= b->ram_bytes && !(b->streaming && left > 0);
    if (!p.resident) {
        uint64_t wanted = (uint64_t)(share[PF_TIER_RAM] * (double)s->slots_all);
        PF_TRY(slots_for(s, b, fixed, s->n_slabs ? wanted : left, &p.slot_bytes));
        share[PF_TIER_RAM] *= wanted ? (double)p.slot_bytes / (double)wanted : 0;
    }
    share[PF_TIER_DISK] = 1 - share[PF_TIER_VRAM] - share[PF_TIER_RAM];
    if (share[PF_TIER_DISK] < 0 || p.resident)
        share[PF_TIER_DISK] = 0;
    uint64_t slabs_left = s->n_slabs, bytes_left = s->weight_bytes;
    for (int t = 0; t < PF_TIER_DISK; t++) {
        bool rest = t == PF_TIER_RAM && p.resident;          /* down to the last byte, whatever rounding says */
        p.tiers[t].n_slabs = rest ? slabs_left : (uint64_t)(share[t] * (double)s->n_slabs);
        if (cut && t == PF_TIER_VRAM)            /* they are not all of a size */
            p.tiers[t].n_slabs = s->cut_slabs;
        p.tiers[t].bytes = rest ? left : (uint64_t)(share[t] * (double)s->slab_bytes);
        p.tiers[t].bytes += t == PF_TIER_VRAM ? others_in_vram : others - others_in_vram;
        slabs_left -= p.tiers[t].n_slabs;
        bytes_left -= p.tiers[t].bytes;
    }
    p.tiers[PF_TIER_DISK].n_slabs = slabs_left;
    p.tiers[PF_TIER_DISK].bytes = bytes_left;
    if (cut)
        fill_speeds_of_cut(s, &b->speeds, share, &p);
    else
        fill_speeds(s, &b->speeds, share, gpu, &p);
    *out = p;
    return PF_OK;
}

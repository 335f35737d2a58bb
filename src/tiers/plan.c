/* The planner. See plan.h. */
#include "tiers/plan.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes of VRAM that sharing experts takes at least, without a session. */
static uint64_t shared_bytes(const struct pf_plan_sizes *s)
{
    return s->weight_bytes - s->slab_bytes + s->transit_bytes;
}

/* Whether a byte of keys and values is worth more to VRAM than one of experts. From RAM a byte of either costs the time
 * to cross PCIe, or for experts, to be read by the CPU if that is faster; and a token reads all of the keys and values
 * that there are, of a context that is half full on average, but only its own share of the experts. */
static bool kv_first(const struct pf_plan_sizes *s, const struct pf_speeds *p)
{
    double ram = p->ram_bytes_s > p->pcie_bytes_s ? p->ram_bytes_s : p->pcie_bytes_s;
    double of_experts = s->slab_bytes ? (double)s->token_slab_bytes / (double)s->slab_bytes : 1;
    return 0.5 / p->pcie_bytes_s > of_experts / ram;
}

static enum pf_plan_how how_of(const struct pf_plan_sizes *s, const struct pf_plan_budget *b)
{
    if (b->vram_bytes == 0)
        return PF_HOW_CPU;
    if (!s->experts)
        return s->cut_whole ? PF_HOW_DEVICE : s->cut_slab_bytes + s->cut_bytes > 0 ? PF_HOW_CUT : PF_HOW_CPU;
    bool may_all = !b->streaming && !s->apart;
    if (may_all && s->weight_bytes + s->device_bytes <= b->vram_bytes)
        return PF_HOW_DEVICE;
    if (may_all && s->weight_bytes + s->device_least_bytes <= b->vram_bytes && !kv_first(s, &b->speeds))
        return PF_HOW_DEVICE;
    uint64_t needed = shared_bytes(s) + (s->any_session ? 0 : s->device_least_bytes);
    return needed <= b->vram_bytes ? PF_HOW_SHARED : PF_HOW_CPU;
}

/* Bytes of slabs that the GPU holds. */
static uint64_t slabs_in_vram(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, enum pf_plan_how how)
{
    uint64_t first = shared_bytes(s) + s->device_bytes;
    if (how == PF_HOW_DEVICE)
        return s->slab_bytes;
    if (how == PF_HOW_CUT)
        return s->cut_slab_bytes;
    return how == PF_HOW_SHARED && b->vram_bytes > first ? min_u64(b->vram_bytes - first, s->slab_bytes) : 0;
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

/* The GPU first reads what every token needs; then all tiers serve their slabs at the same time. Slabs in RAM are
 * computed there, or go to the GPU where that is faster; both share RAM's speed. Slabs from the drive are written to
 * RAM and read there like the others. */
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

/* Bytes of weights other than slabs that the GPU holds. */
static uint64_t others_in_vram(const struct pf_plan_sizes *s, enum pf_plan_how how)
{
    if (how == PF_HOW_CUT)
        return s->cut_bytes;
    return how == PF_HOW_CPU ? 0 : s->weight_bytes - s->slab_bytes;
}

/* Bytes that RAM should hold: *slabs of slabs, *fixed of everything else. Weights that every token needs and the GPU
 * holds take no place in RAM: if the GPU is lost, they come from the mapped file. All slabs and a session do, for that
 * case; and where the GPU has no room for the usual session, which then runs on the CPU, so do those weights. */
static void ram_of(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, enum pf_plan_how how,
                   uint64_t far_bytes, uint64_t *slabs, uint64_t *fixed)
{
    bool left = how == PF_HOW_SHARED && shared_bytes(s) + s->device_least_bytes > b->vram_bytes;
    uint64_t others = s->weight_bytes - s->slab_bytes - (left ? 0 : others_in_vram(s, how));
    *slabs = how == PF_HOW_DEVICE ? 0 : how == PF_HOW_CUT ? s->slab_bytes - s->cut_slab_bytes : s->slab_bytes;
    *fixed = how == PF_HOW_DEVICE ? far_bytes : others + s->other_bytes;
}

/* Every slab and byte gets its tier. */
static void fill_places(const struct pf_plan_sizes *s, enum pf_plan_how how, const double share[PF_N_TIERS],
                        struct pf_plan *p)
{
    uint64_t held = others_in_vram(s, how), others = s->weight_bytes - s->slab_bytes;
    uint64_t slabs_left = s->n_slabs, bytes_left = s->weight_bytes;
    for (int t = 0; t < PF_TIER_DISK; t++) {
        bool rest = t == PF_TIER_RAM && p->resident;         /* down to the last byte, whatever rounding says */
        p->tiers[t].n_slabs = rest ? slabs_left : (uint64_t)(share[t] * (double)s->n_slabs);
        if (how == PF_HOW_CUT && t == PF_TIER_VRAM)          /* they are not all of a size */
            p->tiers[t].n_slabs = s->cut_slabs;
        p->tiers[t].bytes = rest ? s->slab_bytes - p->vram_slot_bytes : (uint64_t)(share[t] * (double)s->slab_bytes);
        p->tiers[t].bytes += t == PF_TIER_VRAM ? held : others - held;
        slabs_left -= p->tiers[t].n_slabs;
        bytes_left -= p->tiers[t].bytes;
    }
    p->tiers[PF_TIER_DISK].n_slabs = slabs_left;
    p->tiers[PF_TIER_DISK].bytes = bytes_left;
}

/* Bytes of memory that are left beside what is taken, but for a reserve: other sessions, pages that do not fill up. */
static uint64_t most_of_rest(uint64_t all, uint64_t taken)
{
    return all > taken ? (all - taken) / 4 * 3 : 0;
}

/* Sessions that share a GPU with experts take their keys and values from the cache; those beside streamed weights take
 * them from the slots. A cut leaves nothing over: a longer context would cost layers. */
static uint64_t context_of(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, enum pf_plan_how how,
                           bool resident, uint64_t ram_taken)
{
    uint64_t host = resident ? most_of_rest(b->ram_bytes, ram_taken) : b->ram_bytes / 16;
    if (how == PF_HOW_CUT)
        return 0;
    if (how == PF_HOW_CPU)
        return host;
    if (how == PF_HOW_DEVICE)
        return most_of_rest(b->vram_bytes, s->weight_bytes);
    return min_u64(host, min_u64(b->vram_bytes / 4, most_of_rest(b->vram_bytes, shared_bytes(s))));
}

pf_status pf_plan_make(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, struct pf_plan *out,
                       struct pf_plan_choice *choice)
{
    enum pf_plan_how how = how_of(s, b);
    struct pf_plan p = { .ram_budget_bytes = b->ram_bytes, .vram_budget_bytes = how == PF_HOW_CPU ? 0 : b->vram_bytes,
                         .vram_slot_bytes = slabs_in_vram(s, b, how) };
    bool gpu = how == PF_HOW_DEVICE || how == PF_HOW_SHARED;
    uint64_t slabs, fixed;
    double share[PF_N_TIERS] = { 0 }, in_ram;    /* of the slabs */
    p.other_bytes = gpu ? s->device_bytes : s->other_bytes;
    if (gpu && !s->any_session) {
        uint64_t weights = how == PF_HOW_DEVICE ? s->weight_bytes : shared_bytes(s) + p.vram_slot_bytes;
        p.other_bytes = min_u64(s->device_bytes, b->vram_bytes - weights);
        p.far_bytes = s->device_bytes - p.other_bytes;
    }
    ram_of(s, b, how, p.far_bytes, &slabs, &fixed);
    uint64_t session = fixed < s->other_bytes ? fixed : s->other_bytes;
    in_ram = s->slab_bytes ? (double)slabs / (double)s->slab_bytes : 0;
    p.resident = slabs + fixed <= b->ram_bytes && !(b->streaming && slabs > 0);
    p.resident |= how == PF_HOW_DEVICE;
    if (!p.resident) {
        PF_TRY(slots_for(s, b, fixed, s->n_slabs ? s->slots_all : slabs, &p.slot_bytes));
        in_ram *= s->slots_all ? (double)p.slot_bytes / (double)s->slots_all : 0;
    }
    share[PF_TIER_VRAM] = s->slab_bytes ? (double)p.vram_slot_bytes / (double)s->slab_bytes : 0;
    share[PF_TIER_RAM] = in_ram < 1 - share[PF_TIER_VRAM] ? in_ram : 1 - share[PF_TIER_VRAM];
    share[PF_TIER_DISK] = p.resident ? 0 : 1 - share[PF_TIER_VRAM] - share[PF_TIER_RAM];
    fill_places(s, how, share, &p);
    if (how == PF_HOW_CUT)
        fill_speeds_of_cut(s, &b->speeds, share, &p);
    else
        fill_speeds(s, &b->speeds, share, gpu, &p);
    uint64_t n = s->n_slabs - (how == PF_HOW_CUT ? s->cut_slabs : 0);
    *choice = (struct pf_plan_choice){ how, p.resident ? n : min_u64(n, (uint64_t)(in_ram * (double)s->n_slabs)),
                                       context_of(s, b, how, p.resident, slabs + fixed - session) };
    *out = p;
    return PF_OK;
}

/* The planner. See plan.h. */
#include "tiers/plan.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static double rate(double bytes_s, double bytes)
{
    return bytes > 0 ? bytes_s / bytes : 0;
}

/* Bytes for slots, or an error. */
static pf_status slots_for(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, uint64_t *slots)
{
    uint64_t fixed = s->weight_bytes - s->slab_bytes + s->other_bytes;
    uint64_t needed = b->no_nvme || s->n_slabs == 0 ? s->weight_bytes + s->other_bytes : fixed + s->slots_least;
    if (b->no_nvme || s->n_slabs == 0 || b->ram_bytes < needed)
        PF_FAIL(PF_ENOMEM, "the model needs %" PRIu64 " MB of memory%s and may take %" PRIu64 " MB", (needed + 999999) / 1000000,
                b->no_nvme ? " when it may not be read from the drive as it runs" : "", b->ram_bytes / 1000000);
    *slots = min_u64(b->ram_bytes - fixed, s->slots_all);
    if (b->streaming)                    /* not everything, even if it would fit */
        *slots = min_u64(*slots, s->slots_least + (s->slots_all - s->slots_least) / 2);
    return PF_OK;
}

pf_status pf_plan_make(const struct pf_plan_sizes *s, const struct pf_plan_budget *b, struct pf_plan *out)
{
    struct pf_plan p = { .ram_budget_bytes = b->ram_bytes, .other_bytes = s->other_bytes };
    double share = 1;                    /* of the slabs that are in RAM */
    p.resident = s->weight_bytes + s->other_bytes <= b->ram_bytes && !(b->streaming && s->n_slabs > 0);
    if (!p.resident) {
        PF_TRY(slots_for(s, b, &p.slot_bytes));
        share = s->slots_all ? (double)p.slot_bytes / (double)s->slots_all : 0;
    }
    double missed = (double)s->token_slab_bytes * (1 - share);
    struct pf_plan_tier *ram = &p.tiers[PF_TIER_RAM], *disk = &p.tiers[PF_TIER_DISK];
    ram->n_slabs = (uint64_t)(share * (double)s->n_slabs);
    ram->bytes = s->weight_bytes - s->slab_bytes + (uint64_t)(share * (double)s->slab_bytes);
    ram->token_bytes = (double)s->token_bytes;
    ram->tok_s = rate(b->ram_bytes_s, (double)s->token_bytes);
    disk->n_slabs = s->n_slabs - ram->n_slabs;
    disk->bytes = s->weight_bytes - ram->bytes;
    disk->token_bytes = missed;
    disk->tok_s = rate(b->disk_bytes_s, missed);
    p.limit = missed > 0 && disk->tok_s < ram->tok_s ? PF_TIER_DISK : PF_TIER_RAM;
    p.tok_s = p.tiers[p.limit].tok_s;
    *out = p;
    return PF_OK;
}

/* What is planned is what opening does: for many sizes of a device and of RAM, a model that is opened on the simulated
 * device, and a usual session of it, are where the plan puts them: who computes which layers, how many weights come
 * through slots of RAM, whether the drive is read while running, how much of the device is left for experts. Preloading
 * reads what the plan has in memory, and nothing of what is the device's alone.
 *
 * usage: test_planned MODEL.gguf */
#include "check.h"
#include "kernels/sim/sim.h"
#include "moe/open/open.h"
#include "moe/place/residency.h"

static const char *path;
static int n_cpu, n_device, n_partly, n_streamed, n_visits;      /* cases of each kind that were seen */

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

/* Layers without experts that the plan gives the device; with experts, all of them or none. */
static int64_t layers_of(const struct pf_model_info *info, const struct pf_plan *p)
{
    if (p->vram_budget_bytes == 0)
        return 0;
    return info->n_experts ? info->n_layers : (int64_t)p->tiers[PF_TIER_VRAM].n_slabs;
}

static void take_total(void *ctx, uint64_t done, uint64_t total)
{
    (void)done;
    *(uint64_t *)ctx = total;
}

/* Experts that are shared with the device have their place in memory as well. */
static void check_preload(const char *name, pf_model *m, const struct pf_plan *p, bool device_alone)
{
    uint64_t bytes = 0, in_ram = p->tiers[PF_TIER_RAM].bytes, weights = pf_model_info(m)->weight_bytes;
    bool on_cpu = p->vram_budget_bytes == 0;
    CHECK(pf_model_preload(m, NULL, 0, take_total, &bytes) == PF_OK, "%s: %s", name, pf_last_error());
    CHECK(device_alone ? bytes == 0 : bytes > 0 && bytes <= (on_cpu ? in_ram : weights),
          "%s: %llu bytes are read into memory, of %llu; planned there are %llu", name, (unsigned long long)bytes,
          (unsigned long long)weights, (unsigned long long)in_ram);
}

static void compare(const char *name, pf_model *m, const struct pf_plan *p)
{
    enum { CHUNK = 64 << 20 };
    const struct pf_model_info *info = pf_model_info(m);
    struct pf_placement *place = m->place, *ram = place->under ? place->under : place;
    struct pf_residency *slots = pf_residency_of(ram);
    struct pf_stats stats;
    pf_stats_get(m, &stats);
    CHECK(info->n_gpu_layers == layers_of(info, p), "%s: %d layers on the device, planned are %d", name,
          info->n_gpu_layers, (int)layers_of(info, p));
    uint64_t n = info->n_experts ? (uint64_t)(info->n_experts * info->n_expert_layers) : (uint64_t)info->n_layers;
    bool all = info->n_gpu_layers > 0 && p->tiers[PF_TIER_VRAM].n_slabs == n && stats.vram_slots == 0;
    CHECK(all || p->resident == (!slots || pf_residency_keeps_all(slots)), "%s: %s memory, planned otherwise", name,
          slots ? "through slots of" : "mapped in");
    if (!p->resident)
        CHECK(slots && pf_residency_slot_bytes(slots) == p->slot_bytes, "%s: %llu bytes of slots, planned are %llu",
              name, slots ? (unsigned long long)pf_residency_slot_bytes(slots) : 0, (unsigned long long)p->slot_bytes);
    CHECK(stats.vram_slot_bytes <= p->vram_slot_bytes + p->vram_slot_bytes / 8 + (1u << 20) &&
          (all || !info->n_experts || p->vram_slot_bytes <= stats.vram_slot_bytes + CHUNK),
          "%s: %llu bytes of the device are for experts, planned are %llu", name,
          (unsigned long long)stats.vram_slot_bytes, (unsigned long long)p->vram_slot_bytes);
    CHECK((p->visit_bytes > 0) == (place->visits != NULL) && (p->visit_tok_s > 0) == (p->visit_rows > 0),
          "%s: visits: %d, planned are %llu bytes in each step of %d rows", name, place->visits != NULL,
          (unsigned long long)p->visit_bytes, p->visit_rows);
    check_preload(name, m, p, all && !slots);
    n_visits += p->visit_bytes > 0;
    n_cpu += p->vram_budget_bytes == 0;
    n_device += all;
    n_partly += p->vram_budget_bytes > 0 && !all;
    n_streamed += !p->resident;
}

static void check(uint64_t device_bytes, uint64_t ram_bytes, bool streaming)
{
    struct pf_sim sim = { .memory_bytes = device_bytes };
    struct pf_residency_setup setup = { .device = device_bytes ? open_device : NULL, .device_ctx = &sim };
    struct pf_model_opts o;
    struct pf_plan p;
    pf_model *m = NULL;
    pf_session *s = NULL;
    char name[96];
    snprintf(name, sizeof name, "device %llu, memory %llu%s", (unsigned long long)device_bytes,
             (unsigned long long)ram_bytes, streaming ? ", streaming" : "");
    pf_model_opts_init(&o);
    o.device = -1;
    o.n_threads = 1;
    o.ram_bytes = ram_bytes;
    o.streaming = streaming;
    o.speeds = (struct pf_speeds){ 500e9, 20e9, 30e9, 2e9 };             /* nothing is measured */
    pf_status planned = pf_open_plan(path, &o, NULL, &setup, &p), opened = pf_model_open_with(&m, path, &o, &setup);
    CHECK(planned == opened, "%s: planning says %d, opening %d: %s", name, planned, opened, pf_last_error());
    if (planned == PF_OK && opened == PF_OK && pf_session_open(&s, m, NULL) == PF_OK)
        compare(name, m, &p);
    pf_session_close(&s);
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    struct pf_file_info info;
    if (argc < 2)
        return 2;
    path = argv[1];
    CHECK(pf_file_inspect(path, 0, &info) == PF_OK, "%s", pf_last_error());
    for (int streaming = 0; streaming < 2; streaming++)
        for (uint64_t ram = 0; ram < 5; ram++)
            for (uint64_t device = 0; device < 12; device++)
                check(device * (info.weight_bytes / 8) * 3, ram * (info.weight_bytes / 2) + ram * (8 << 20), streaming);
    printf("%d cases on the CPU, %d on the device, %d partly; %d with slots, %d with visits\n", n_cpu, n_device,
           n_partly, n_streamed, n_visits);
    CHECK(n_cpu > 0 && n_device > 0 && n_partly > 0 && n_streamed > 0, "not every way was seen");
    return check_status();
}

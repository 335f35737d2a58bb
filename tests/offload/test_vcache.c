/* The expert cache by itself, on the simulated device: who gets a slot, who loses it, and that nothing is pinned in RAM
 * for an expert that gets no slot. The functions of the model that a cache calls are defined here, not by
 * moe/place/residency.c and moe/load/model.c. */
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "backend/share.h"
#include "kernels/sim/sim.h"
#include "moe/place/residency.h"
#include "moe/place/cut.h"
#include "moe/offload/vcache.h"

/* Two chunks of eight slots for 32 experts; one chunk is less than three times top-k slots a layer. */
enum { N_LAYER = 2, N_EXPERT = 16, N_USED = 2, N_SLOTS = 16, PART_BYTES = 2700000, ENOUGH = 1 << 30 };

static uint8_t weights[PART_BYTES];
static bool    absent[N_LAYER][N_EXPERT];        /* not in RAM */
static int     n_takes, n_drops;

void pf_expert_bytes(const struct pf_model *m, int il, uint64_t bytes[3])
{
    (void)m, (void)il;
    bytes[0] = bytes[1] = bytes[2] = PART_BYTES;
}

bool pf_residency_take(struct pf_residency *r, int il, int expert, const uint8_t *parts[3])
{
    (void)r;
    parts[0] = parts[1] = parts[2] = weights;
    n_takes += !absent[il][expert];
    return !absent[il][expert];
}

void pf_residency_drop(struct pf_residency *r, int il, int expert)
{
    (void)r, (void)il, (void)expert;
    n_drops++;
}

bool pf_residency_is_short(const struct pf_residency *r)
{
    (void)r;
    return false;
}

static pf_status no_serve(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer)
{
    (void)ctx, (void)offer, (void)answer;
    return PF_OK;
}

/* Uses of experts [from, to) of every layer; what is begun then ends in steps that use nothing. */
static void use(struct pf_vcache *c, int from, int to, int times)
{
    for (int i = 0; i < times; i++)
        for (int il = 0; il < N_LAYER; il++)
            for (int x = from; x < to; x++)
                pf_vcache_use(c, il, x);
    for (int i = 0; i < 3; i++)
        CHECK(pf_vcache_between(c, ENOUGH) == PF_OK, "%s", pf_last_error());
    CHECK(n_takes == n_drops, "%d pins, %d given back", n_takes, n_drops);
}

static int n_held(const struct pf_vcache *c, int from, int to)
{
    int n = 0;
    for (int il = 0; il < N_LAYER; il++)
        for (int x = from; x < to; x++)
            n += pf_vcache_held(c, il)[x];
    return n;
}

static void test_policy(struct pf_vcache *c, const struct pf_vcache_counts *stats, struct pf_sim *sim)
{
    pf_vcache_grow(c);
    use(c, 0, 4, 2);                             /* as many experts as are copied at a time */
    use(c, 4, 8, 3);
    CHECK(n_held(c, 0, 8) == N_SLOTS && n_takes == N_SLOTS, "%d held, %d pinned", n_held(c, 0, 8), n_takes);

    use(c, 8, 16, 2);                            /* experts as cold as the coldest that are held */
    CHECK(n_held(c, 0, 8) == N_SLOTS && n_takes == N_SLOTS, "%d held, %d pinned", n_held(c, 0, 8), n_takes);

    absent[0][9] = true;
    for (int i = 0; i < 2; i++)                  /* hot, but one of them cannot be copied */
        use(c, 9, 10, 2);
    CHECK(n_held(c, 9, 10) == 1 && n_held(c, 0, 4) == 7 && n_held(c, 4, 8) == 8 && n_takes == N_SLOTS + 1,
          "%d, %d and %d held, %d pinned", n_held(c, 9, 10), n_held(c, 0, 4), n_held(c, 4, 8), n_takes);

    sim->refuse_fetch = sim->n_fetches + 1;      /* the slot that was emptied is free, for whoever comes next */
    use(c, 10, 11, 4);
    CHECK(n_held(c, 0, 16) == N_SLOTS && n_held(c, 10, 11) == 1, "%d held, %d hot", n_held(c, 0, 16),
          n_held(c, 10, 11));

    uint64_t room = sim->memory_bytes;
    sim->memory_bytes -= PF_CUT_SPARE_BYTES / 2;
    pf_vcache_make_room(c, PF_CUT_SPARE_BYTES);
    n_takes = n_drops = 0;
    use(c, 11, 16, 9);                           /* too few slots to replace */
    CHECK(stats->n_slots == N_SLOTS / 2 && stats->n_held == N_SLOTS / 2 && n_takes == 0, "%d slots, %d held, %d pinned",
          (int)stats->n_slots, (int)stats->n_held, n_takes);

    sim->memory_bytes = room;
    pf_vcache_grow(c);
    CHECK(pf_vcache_fill(c) == PF_OK, "%s", pf_last_error());
    CHECK(stats->n_slots == N_SLOTS && stats->n_held == N_SLOTS && n_held(c, 0, 16) == N_SLOTS && n_takes == n_drops,
          "%d slots, %d held, %d pinned, %d given back", (int)stats->n_slots, (int)stats->n_held, n_takes, n_drops);
}

/* Experts that were picked most while nothing was copied are the ones that the cache holds after a fill. */
static void test_choice(struct pf_vcache *c)
{
    for (int il = 0; il < N_LAYER; il++)
        for (int x = 12; x < N_EXPERT; x++)
            for (int i = 0; i < 500; i++)
                pf_vcache_warm(c, il, x);
    n_takes = n_drops = 0;
    CHECK(pf_vcache_fill(c) == PF_OK, "%s", pf_last_error());
    CHECK(n_held(c, 12, 16) == 8 && n_held(c, 0, 16) == N_SLOTS && n_takes == n_drops, "%d of 8 held, %d in all",
          n_held(c, 12, 16), n_held(c, 0, 16));
    int n = n_takes;
    CHECK(pf_vcache_fill(c) == PF_OK && n_takes == n, "what was chosen is chosen again");
}

/* A step of two layers in which the cache may send 2 MB. */
static void small_step(struct pf_vcache *c)
{
    CHECK(pf_vcache_between(c, 2000000) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < N_LAYER; i++)
        pf_vcache_go_on(c);
}

static bool is_whole(const struct pf_vcache *c, int il, int expert)
{
    const uint8_t *at[3];
    bool same = true;
    pf_vcache_at(c, il, expert, at);
    for (int p = 0; p < 3; p++)
        same &= memcmp(at[p], weights, PART_BYTES) == 0;
    return same;
}

/* An expert of 8.1 MB crosses in pieces of 1 MB; then another, of which one piece is refused. */
static void test_pieces(struct pf_vcache *c, struct pf_sim *sim)
{
    for (int expert = 0, held; expert < 2; expert++) {
        pf_vcache_make_room(c, sim->memory_bytes);       /* all slots are free from here on */
        pf_vcache_grow(c);
        for (int i = 0; i < 5000; i++)
            pf_vcache_warm(c, 0, expert);
        pf_vcache_use(c, 0, expert);
        n_takes = n_drops = 0;
        uint64_t first = sim->n_fetches;
        sim->refuse_fetch = expert == 1 ? first + 4 : 0;
        small_step(c);
        CHECK(!pf_vcache_held(c, 0)[expert] && n_takes == 1 && n_drops == 0, "%d taken, %d dropped", n_takes, n_drops);
        for (int i = 0; i < 40 && n_drops == 0; i++)
            small_step(c);
        held = pf_vcache_held(c, 0)[expert];
        CHECK(held == (expert == 0) && n_drops == 1, "expert %d is held: %d, %d dropped", expert, held, n_drops);
        CHECK(!held || is_whole(c, 0, expert), "expert %d has other bytes", expert);
        CHECK(sim->n_fetches - first == (expert == 0 ? 9 : 4), "%d pieces", (int)(sim->n_fetches - first));
    }
}

int main(void)
{
    struct pf_mem_stats before, after;
    struct pf_sim sim = { .memory_bytes = (uint64_t)N_SLOTS * (3 * PART_BYTES + 1024) + PF_CUT_SPARE_BYTES,
                          .late_every = 1, .late_for = 1 };
    struct pf_share_sizes sizes = { .n_layer = N_LAYER, .n_expert = N_EXPERT, .n_used = N_USED, .n_embd = 32,
                                    .n_ff = 32 };
    struct pf_layer layers[N_LAYER] = { { .is_moe = true }, { .is_moe = true } };
    struct pf_model m = { .n_layer = N_LAYER, .n_expert = N_EXPERT, .n_used = N_USED, .n_moe = N_LAYER,
                          .layers = layers };
    struct pf_vcache_counts counts = { 0 };
    struct pf_vcache *c;
    pf_backend *device;
    pf_mem_stats_get(&before);
    CHECK(pf_backend_sim_open(&device, &sim) == PF_OK, "%s", pf_last_error());
    const struct pf_share_host host = { .serve = no_serve };
    CHECK(device->ops->share->open(device, &sizes, &host) == PF_OK, "%s", pf_last_error());
    const struct pf_vcache_setup setup = { .m = &m, .device = device, .end = m.n_layer };
    CHECK(pf_vcache_open(&c, &setup, &counts) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < PART_BYTES; i++)
        weights[i] = (uint8_t)(i >> 3 ^ i >> 11 ^ i);
    test_policy(c, &counts, &sim);
    test_choice(c);
    test_pieces(c, &sim);
    pf_vcache_close(&c);
    device->ops->close(device);
    pf_mem_stats_get(&after);
    CHECK(before.n_live == after.n_live, "memory is left behind");
    return check_status();
}

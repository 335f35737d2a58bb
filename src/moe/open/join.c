/* Opening a model by several processes: session/crew.h. All know the same facts of all, and rank 0 decides by them who
 * has which layers, or which rows. */
#include <string.h>

#include "backend/team.h"
#include "base/pf_mem.h"
#include "moe/model/identity.h"
#include "moe/open/open.h"
#include "moe/place/cut.h"
#include "moe/place/rows.h"
#include "moe/session/crew.h"

enum { MEET_S = 300, BEAT_S = 60 };          /* for starting a program on each machine by hand; for an exchange alone */
enum { LOAD_BYTES_S = 20000000 };            /* a rank that opens the model more slowly than this is taken for lost */

struct facts {
    char             version[32];            /* of pfmoe: all must decide alike */
    struct pf_digest identity;
    uint64_t         room;
    int32_t          n_layer, by_rows;
};

/* Why options are not for several processes; PF_OK: they are. */
static pf_status check(const struct pf_model_opts *o)
{
    if (o->n_adapters > 0)
        PF_FAIL(PF_EUNSUPPORTED, "several processes run a model without adapters");
    if (o->routing)
        PF_FAIL(PF_EUNSUPPORTED, "several processes run a model without a routing trace");
    if (o->layout == PF_LAYOUT_EXPERTS)
        PF_FAIL(PF_EUNSUPPORTED, "several processes divide a model by layers or by rows");
    if (o->layout == PF_LAYOUT_ROWS && o->n_gpus > 1)
        PF_FAIL(PF_EUNSUPPORTED, "by rows each of several processes has one GPU, and this one is to have %d",
                o->n_gpus);
    if (o->layout == PF_LAYOUT_ROWS && o->streaming)
        PF_FAIL(PF_EUNSUPPORTED, "several processes divide a model by rows that is not streamed");
    return PF_OK;
}

static int gpu_of(const struct pf_model_opts *o)
{
    return o->n_gpus > 0 ? o->gpus[0] : o->device;
}

/* Memory of GPUs that may be taken, or all that they have; by its shares the layers are dealt. With hardly any, the CPU
 * computes, but for rows. */
static uint64_t room_of(const struct pf_model_opts *o)
{
    const uint64_t least = o->layout == PF_LAYOUT_ROWS ? 0 : 1u << 30;
    struct pf_device gpu = { .memory_bytes = 0 };
    uint64_t room = 0;
    for (int i = 0; i < (o->n_gpus > 0 ? o->n_gpus : 1); i++) {
        uint64_t budget = o->n_gpus > 0 ? o->gpu_bytes[i] : o->vram_bytes;
        pf_backend_cuda_device(o->n_gpus > 0 ? o->gpus[i] : o->device, &gpu);
        room += budget && budget < gpu.memory_bytes ? budget : gpu.memory_bytes;
    }
    return room > least ? room : least;
}

static pf_status compare(const struct facts *all, int n)
{
    for (int k = 1; k < n; k++) {
        if (memcmp(all[k].version, all->version, sizeof all->version) != 0)
            PF_FAIL(PF_EINVAL, "rank %d is pfmoe %.32s, rank 0 is %.32s", k, all[k].version, all->version);
        if (!pf_digest_equal(all[k].identity, all->identity) || all[k].n_layer != all->n_layer)
            PF_FAIL(PF_EINVAL, "the file of rank %d is another model than that of rank 0", k);
        if (all[k].by_rows != all->by_rows)
            PF_FAIL(PF_EINVAL, "rank %d divides the model by %s, rank 0 by %s", k, all[k].by_rows ? "rows" : "layers",
                    all->by_rows ? "rows" : "layers");
    }
    return PF_OK;
}

static pf_status know(struct pf_model *m, const struct pf_model_opts *o, struct facts *all)
{
    struct pf_crew *crew = m->crew;
    struct facts mine = { .room = room_of(o), .n_layer = m->n_layer, .by_rows = o->layout == PF_LAYOUT_ROWS };
    strncpy(mine.version, pf_version(), sizeof mine.version - 1);
    pf_ranks_expect(crew->ranks, MEET_S, "the other ranks to have read what the model is");
    pf_status st = check(o);
    st = st == PF_OK ? pf_model_identity(m, &mine.identity) : st;
    PF_TRY(pf_crew_agree(crew, st));
    PF_TRY(pf_ranks_gather(crew->ranks, &mine, all, sizeof mine));
    return compare(all, crew->n);
}

/* Rank 0's decision; whether it is one that can be carried out. */
static pf_status decide(const struct pf_model *m, const struct facts *all, struct pf_cut *cut)
{
    const struct pf_crew *crew = m->crew;
    uint64_t room[PF_MAX_GPUS];
    for (int k = 0; k < crew->n; k++)
        room[k] = all[k].room;
    return all->by_rows ? pf_rows_cut_ranks(m, room, crew->n, crew->ranks, cut) : pf_cut_ranks(m, room, crew->n, cut);
}

static bool can_be(const struct pf_model *m, const struct facts *all, const struct pf_cut *cut)
{
    int rank = m->crew->rank, first, end;
    bool can = cut->n_layers == m->n_layer && cut->n_more == m->crew->n - 1 && cut->by_rows == all->by_rows;
    pf_cut_card(cut, rank, &first, &end);
    for (int k = 0; cut->by_rows && k < m->crew->n; k++)
        can &= cut->first_share[k] >= (k > 0 ? cut->first_share[k - 1] : 0) && cut->first_share[k] < PF_TEAM_SHARES;
    return can && (cut->by_rows || (first >= 0 && first < end));
}

static void take_layers(struct pf_model *m, const struct pf_cut *cut)
{
    int rank = m->crew->rank, first, end;
    pf_cut_card(cut, rank, &first, &end);
    pf_model_keep_layers(m, first, end);
    pf_info_weights(m);
    pf_model_logf(m, PF_LOG_INFO, "rank %d of %d has layers %d to %d", rank, m->crew->n, first, end - 1);
}

static void take_rows(struct pf_model *m, const struct pf_cut *cut)
{
    int rank = m->crew->rank, end = rank < cut->n_more ? cut->first_share[rank + 1] : PF_TEAM_SHARES;
    m->crew->cut = *cut;
    pf_model_logf(m, PF_LOG_INFO, "rank %d of %d has %.1f%% of the rows", rank, m->crew->n,
                  100.0 * (end - cut->first_share[rank]) / PF_TEAM_SHARES);
}

static pf_status divide(struct pf_model *m, const struct facts *all)
{
    struct pf_crew *crew = m->crew;
    struct pf_cut cut = { .n_layers = 0 };
    pf_ranks_expect(crew->ranks, MEET_S, "the model to be divided");
    PF_TRY(pf_crew_agree(crew, crew->rank == 0 ? decide(m, all, &cut) : PF_OK));
    PF_TRY(pf_ranks_broadcast(crew->ranks, &cut, sizeof cut));
    if (!can_be(m, all, &cut))
        PF_FAIL(PF_EIO, "rank 0 divides the model in a way that cannot be");
    pf_ranks_expect(crew->ranks, MEET_S + (int)(m->info.weight_bytes / LOAD_BYTES_S),
                    "the other ranks to have opened the model");
    (cut.by_rows ? take_rows : take_layers)(m, &cut);
    return PF_OK;
}

pf_status pf_crew_open(struct pf_model *m, const struct pf_model_opts *o)
{
    struct facts all[PF_MAX_GPUS];
    if (o->n_ranks > PF_MAX_GPUS || o->rank < 0 || o->rank >= o->n_ranks)
        PF_FAIL(PF_EINVAL, "rank %d of %d: there are ranks from 0 on, and %d at most", o->rank, o->n_ranks,
                (int)PF_MAX_GPUS);
    if (gpu_of(o) < 0)
        PF_FAIL(PF_EINVAL, "processes exchange by a GPU of each, and this one is to use none");
    struct pf_crew *crew = pf_alloc(PF_MEM_MODEL, sizeof *crew);
    if (!crew)
        PF_FAIL(PF_ENOMEM, "no memory to work with other processes");
    crew->rank = o->rank;
    crew->n = o->n_ranks;
    m->crew = crew;
    pf_status st = pf_ranks_open(&crew->ranks, gpu_of(o), crew->rank, crew->n, MEET_S, &m->cancel);
    if (st == PF_OK) {
        pf_ranks_expect(crew->ranks, BEAT_S, "the other ranks to say who they are");
        st = pf_ranks_introduce(crew->ranks);
    }
    if (st == PF_OK)
        st = know(m, o, all);
    return st == PF_OK ? divide(m, all) : st;
}

pf_status pf_crew_begin(struct pf_model *m, pf_status st)
{
    pf_ranks *ranks = m->crew->ranks;
    if (!ranks)
        return st;
    PF_TRY(pf_crew_agree(m->crew, st));
    m->crew->is_together = true;
    pf_ranks_expect(ranks, BEAT_S, "the heartbeat of all ranks to begin");
    PF_TRY(pf_ranks_watch(ranks));
    pf_ranks_expect(ranks, 0, NULL);
    return PF_OK;
}

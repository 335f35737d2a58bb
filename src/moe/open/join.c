/* Opening a model by several processes: session/crew.h. All know the same facts of all, and rank 0 decides by them who
 * has which layers. */
#include <string.h>

#include "base/pf_mem.h"
#include "moe/model/identity.h"
#include "moe/open/open.h"
#include "moe/place/cut.h"
#include "moe/session/crew.h"

enum { MEET_S = 300, BEAT_S = 60 };          /* for starting a program on each machine by hand; for a last exchange */
enum { LOAD_BYTES_S = 20000000 };            /* a rank that opens the model more slowly than this is taken for lost */

struct facts {
    char             version[32];            /* of pfmoe: all must decide alike */
    struct pf_digest identity;
    uint64_t         room;
    int32_t          n_layer;
};

/* Why options are not for several processes; PF_OK: they are. */
static pf_status check(const struct pf_model_opts *o)
{
    if (o->n_adapters > 0)
        PF_FAIL(PF_EUNSUPPORTED, "several processes run a model without adapters");
    if (o->routing)
        PF_FAIL(PF_EUNSUPPORTED, "several processes run a model without a routing trace");
    if (o->layout == PF_LAYOUT_EXPERTS || o->layout == PF_LAYOUT_ROWS)
        PF_FAIL(PF_EUNSUPPORTED, "several processes divide a model by layers alone");
    return PF_OK;
}

static int gpu_of(const struct pf_model_opts *o)
{
    return o->n_gpus > 0 ? o->gpus[0] : o->device;
}

/* Memory of GPUs that may be taken, or all that they have; by its shares the layers are dealt. With hardly any, the CPU
 * computes. */
static uint64_t room_of(const struct pf_model_opts *o)
{
    const uint64_t least = 1u << 30;
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
    }
    return PF_OK;
}

static pf_status know(struct pf_model *m, const struct pf_model_opts *o, struct facts *all)
{
    struct pf_crew *crew = m->crew;
    struct facts mine = { .room = room_of(o), .n_layer = m->n_layer };
    strncpy(mine.version, pf_version(), sizeof mine.version - 1);
    pf_ranks_expect(crew->ranks, MEET_S, "the other ranks to have read what the model is");
    pf_status st = check(o);
    st = st == PF_OK ? pf_model_identity(m, &mine.identity) : st;
    PF_TRY(pf_crew_agree(crew, st));
    PF_TRY(pf_ranks_gather(crew->ranks, &mine, all, sizeof mine));
    return compare(all, crew->n);
}

static pf_status divide(struct pf_model *m, const struct facts *all)
{
    struct pf_crew *crew = m->crew;
    uint64_t room[PF_MAX_GPUS];
    struct pf_cut cut = { .n_layers = 0 };
    int first, end;
    for (int k = 0; k < crew->n; k++)
        room[k] = all[k].room;
    pf_ranks_expect(crew->ranks, MEET_S, "the layers to be divided");
    PF_TRY(pf_crew_agree(crew, crew->rank == 0 ? pf_cut_ranks(m, room, crew->n, &cut) : PF_OK));
    PF_TRY(pf_ranks_broadcast(crew->ranks, &cut, sizeof cut));
    pf_cut_card(&cut, crew->rank, &first, &end);
    if (cut.n_layers != m->n_layer || cut.n_more != crew->n - 1 || first < 0 || first >= end)
        PF_FAIL(PF_EIO, "rank 0 divides the model in a way that cannot be");
    pf_ranks_expect(crew->ranks, MEET_S + (int)(m->info.weight_bytes / LOAD_BYTES_S),
                    "the other ranks to have opened the model");
    pf_model_keep_layers(m, first, end);
    pf_info_weights(m);
    pf_model_logf(m, PF_LOG_INFO, "rank %d of %d has layers %d to %d", crew->rank, crew->n, first, end - 1);
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

/* Where the weights will live: a pure function from sizes, budgets and prices to a placement. Reads nothing, keeps
 * nothing; any thread. What it wants to know of the machine is found elsewhere: limits.c finds the one budget that
 * nobody has to name, the memory that may be taken; prices.c measures.
 *
 *     the GPU takes everything           -> VRAM, and nothing else
 *     it takes what every token needs    -> VRAM: that first, then keys, values, scratch, and experts as fit. RAM has
 *                                           room for all experts and a session, as the GPU may be lost
 *     not all keys and values fit then   -> VRAM has those of the first positions, RAM the others. They and experts are
 *                                           weighed against each other: what costs more to read from RAM stays
 *     without experts, and it does not   -> VRAM: the layers and the other weights that somebody has cut off for it
 *     what is left fits in RAM           -> resident: nothing is read from the drive while running
 *     the slabs do not, the rest does    -> RAM holds the rest, and as many slabs as fit; the drive serves the others
 *     not even the rest fits             -> an error that says how much is needed
 *
 * A slab lives in one tier. */
#ifndef PF_PLAN_H
#define PF_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pf_status.h"

struct pf_plan_sizes {
    uint64_t weight_bytes;               /* the whole model */
    uint64_t slab_bytes;                 /* of it what may be streamed: routed experts; or the layers
                                            of a dense model */
    uint64_t slots_all, slots_least;     /* memory for slabs that a cut leaves: for each a place; the least
                                            that works */
    uint64_t n_slabs;
    uint64_t token_bytes;                /* weights read to decode one token, */
    uint64_t token_slab_bytes;           /* and of it from slabs */
    uint64_t other_bytes;                /* keys, values and scratch of the CPU's part, */
    uint64_t device_bytes;               /* and of the GPU's if that takes all layers; */
    uint64_t device_least_bytes;         /* of it what cannot lie in RAM instead */
    uint64_t transit_bytes;              /* of the GPU's memory for experts that pass through */
    bool     experts;                    /* slabs are experts; if not, what the GPU takes when it cannot
                                            take everything: */
    uint64_t cut_slabs, cut_slab_bytes, cut_bytes;       /* so many of them, their bytes, and those of other weights */
    bool     cut_whole;                  /* it can */
    bool     apart;                      /* some experts are in RAM, however much room devices have together */
    bool     any_session;                /* nobody knows yet how large sessions will be: experts are shared even where
                                            the usual one has no room */
};

struct pf_plan_budget {
    uint64_t vram_bytes, ram_bytes;      /* vram_bytes 0: there is no GPU */
    bool     streaming, no_nvme;         /* as in pf_model_opts */
    struct pf_speeds speeds;             /* every speed must be given */
};

/* Who computes: the CPU, the GPU, one after the other by layers, both at the experts. */
enum pf_plan_how { PF_HOW_CPU, PF_HOW_DEVICE, PF_HOW_CUT, PF_HOW_SHARED };

/* Fills *out but for where prices come from; *how, and how many slabs have a place in RAM whatever the GPU holds. This
 * is what opening does, and what is printed. PF_ENOMEM when there is no way to place the model. */
struct pf_plan_choice {
    enum pf_plan_how how;
    uint64_t         n_in_ram;
    uint64_t         context_bytes;      /* memory of the unit that attends for sessions whose length nobody says: most
                                            of what is left where all weights have their place; where experts are shared
                                            or weights streamed a share that costs them little; 0: for the least */
};
pf_status pf_plan_make(const struct pf_plan_sizes *sizes, const struct pf_plan_budget *budget, struct pf_plan *out,
                       struct pf_plan_choice *choice);

/* Memory this process may take now: MemAvailable (an estimate, where /proc is not there), or what the memory cgroups
 * (version 1 or 2) leave if that is less, minus a reserve of 6 GB or a tenth, whichever is less. root stands in front
 * of /proc and /sys; "" but in tests. */
uint64_t pf_ram_available(const char *root);

/* How fast n_threads read main memory, and reads past the page cache read a file, measured in some tens of milliseconds
 * each. 0: it could not be measured, as on a file that is short or mostly holes. */
double pf_price_ram(int n_threads);
double pf_price_disk(const char *path);

#endif

/* Where a model's weights are while it runs: the mapped file, or the store's slots for what memory cannot hold.
 *
 * Opened with the model. When the plan says that everything fits, there is no store and every call here does nothing.
 * If not, the routed experts (or, in a model without experts, the matrices of its layers) come through the store:
 * pinned in front of the computation that needs them, unpinned after it. All other weights stay mapped. What passes
 * through the store is the file's bytes, so results are the same bits.
 *
 * The calls of a step belong to the thread that holds the model's step lock; the others are for any thread. */
#ifndef PF_RESIDENCY_H
#define PF_RESIDENCY_H

#include "moe/model/model.h"
#include "tiers/store.h"

/* For tests: engine and policy of the store (io NULL: the usual ones), and a device. */
struct pf_residency_setup {
    pf_io_open_fn *io;
    void          *io_ctx;
    const struct pf_evict_ops *policy;
    uint64_t       stall_ns;
    pf_status    (*device)(pf_backend **out, void *ctx);     /* NULL: no device; else the one to use */
    void          *device_ctx;
};
/* pf_model_open with such a setup. */
pf_status pf_model_open_with(pf_model **out, const char *path, const struct pf_model_opts *o,
                             const struct pf_residency_setup *setup);

/* Makes the plan of a bound model, for this machine or the one that o describes; places nothing. */
pf_status pf_residency_plan(struct pf_model *m, const struct pf_model_opts *o, const struct pf_session_opts *so,
                            struct pf_plan *out);

/* Sets m->residency, or leaves it NULL when everything is mapped. */
pf_status pf_residency_open(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup);
void      pf_residency_close(struct pf_model *m);

/* A step. Between enter and leave the matrices of a dense layer can be used; experts runs the layer's experts. leave
 * follows every enter that succeeded. */
pf_status pf_residency_enter(struct pf_model *m, int il);
void      pf_residency_leave(struct pf_model *m, int il);
pf_status pf_residency_experts(struct pf_model *m, pf_backend *b, int il, const struct pf_experts_op *e);

/* In front of experts, if there is something else to compute first: pins what the layer picked and sends the reads of
 * what is missing. skip as below. leave gives back what was never run. */
pf_status pf_residency_want(struct pf_model *m, int il, const struct pf_experts_op *e, const bool *skip);

/* Reading ahead while the drive would have nothing to do. guesses says, after want, whether to guess what layer il will
 * want of the drive, and how: all of its experts, or those that its router picks for today's state. guess takes the
 * picks [rows][n_used], likeliest first (NULL: all experts in order); while fewer than depth reads are under way, more
 * are begun. An early guess, while the layer before is read, is wrong more often than a late one, when that layer has
 * been computed. A wrong guess costs time, never a bit; whether guesses are read the store decides by how many were
 * right. */
enum pf_guess { PF_GUESS_NOTHING, PF_GUESS_PICKS, PF_GUESS_ALL };
enum { PF_GUESS_ROWS = 8, PF_GUESS_EARLY = 4, PF_GUESS_LATE = 5 };
enum pf_guess pf_residency_guesses(const struct pf_model *m, int il, int rows);
void          pf_residency_guess(struct pf_model *m, int il, const int32_t *picks, int rows, int depth);

/* The same for others who compute experts from the store; there must be one. tables makes op, by way of w, look at the
 * addresses that run sets: run calls fn until each picked expert that skip (NULL: none) does not name has been among
 * `experts` once; their addresses hold while fn runs. take pins an expert that is in memory, until drop, and never
 * waits. */
typedef pf_status pf_residency_fn(void *ctx, const int *experts, int n);
pf_status pf_residency_run(struct pf_model *m, int il, const struct pf_experts_op *e, const bool *skip,
                           pf_residency_fn *fn, void *ctx);
void      pf_residency_tables(const struct pf_model *m, struct pf_experts_op *op, struct pf_expert_weight w[3]);
bool      pf_residency_take(struct pf_model *m, int il, int expert, const uint8_t *parts[3]);
void      pf_residency_drop(struct pf_model *m, int il, int expert);

/* Whether what was in memory once stays there, where it is. */
bool      pf_residency_keeps_all(const struct pf_model *m);

/* Whether there are slabs that have no place in memory. */
bool      pf_residency_is_short(const struct pf_model *m);

/* The slots' memory, whole pages; it stays where it is until the model is closed. */
void     *pf_residency_arena(const struct pf_model *m, size_t *bytes);

/* Loading ahead. layer -1: as much of the model as the plan places in memory. */
bool      pf_residency_streams(const struct pf_model *m, const struct pf_tensor *t);
uint64_t  pf_residency_bytes(const struct pf_model *m, int layer);
pf_status pf_residency_load(struct pf_model *m, int layer, pf_progress_fn *progress, void *ctx, uint64_t done,
                            uint64_t total);
bool      pf_residency_holds(const struct pf_model *m, int layer);

/* The drive's part of the statistics. */
void      pf_residency_stats(const struct pf_model *m, struct pf_stats *out);
void      pf_residency_stats_reset(struct pf_model *m);

#endif

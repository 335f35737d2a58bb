/* Attention's work by blocks of queries and runs of chunks, for cpu_attention.c and cpu_attention_i16.c.
 *
 * Where there are blocks of queries enough for all threads, as in a prompt, a task takes one through all its chunks and
 * folds each chunk's partial at once. Otherwise, as in decoding, a task takes a block through a run of chunks and
 * leaves their partials in the backend's memory; then every query folds its own, in order. A round is as many chunks as
 * there is room for.
 *
 *     round 0                             round 1
 *     block 0: | run | run | run |        | run | ..       then queries 0, 1, 2 ... fold what the round left
 *     block 1: | run | run | run |        | run | ..
 *
 * Memory of a round, partials of `stride` floats:    totals of all queries | chunk's partials of all | chunk's .. */
#ifndef PF_CPU_ROUNDS_H
#define PF_CPU_ROUNDS_H

#include "kernels/cpu/cpu.h"

struct cpu_rounds {
    struct cpu_backend *b;
    int64_t n_blocks, n_queries;         /* of all KV heads */
    size_t  stride;
    int     first, end;                  /* chunks */
    int     run, round_first, round_end; /* chunks: of a task; of the present round */
    int64_t n_tasks;                     /* of the present round */
};

/* A block of queries and the chunks that a task takes it through. */
struct cpu_run {
    int64_t block;
    int     first, end;
};

/* Runs the tasks of all rounds: `whole`, or, if the context is split, `run` and then `fold`, whose tasks are queries.
 * Each is called with ctx, which r belongs to. */
void pf_cpu_rounds_run(struct cpu_rounds *r, pf_job_fn *whole, pf_job_fn *run, pf_job_fn *fold, void *ctx);

struct cpu_run pf_cpu_run_of(const struct cpu_rounds *r, int64_t task);

float *pf_cpu_total_of(const struct cpu_rounds *r, int64_t query);
float *pf_cpu_part_of(const struct cpu_rounds *r, int chunk, int64_t query);

#endif

/* How attention's chunks are dealt out: cpu_rounds.h. Pure arithmetic on the caller's struct; threads only read it. */
#include "kernels/cpu/cpu_rounds.h"

enum {
    BLOCKS_PER_THREAD = 4,       /* with so many, blocks go through all chunks */
    RUNS_PER_THREAD = 16,        /* else: what a thread that ends first takes from another one is a small part */
    ROUND_FLOATS = 1 << 20,      /* of partials in the backend's memory: 64,000 positions of 32 heads of 128 */
    ROUND_ROWS = 8               /* rows of a step whose partials have room for some chunks, whatever the heads */
};

size_t pf_cpu_parts_floats(const struct pf_backend_sizes *s)
{
    size_t rows = s->max_rows < ROUND_ROWS ? (size_t)s->max_rows : ROUND_ROWS;
    size_t n_chunks = ((size_t)s->n_ctx + PF_KV_CHUNK - 1) / PF_KV_CHUNK + 1;
    size_t needed = n_chunks * rows * (size_t)s->max_heads * ((size_t)s->max_head_dim + 2);
    return needed < ROUND_FLOATS ? needed : ROUND_FLOATS;
}

struct cpu_run pf_cpu_run_of(const struct cpu_rounds *r, int64_t task)
{
    int n_runs = (r->round_end - r->round_first + r->run - 1) / r->run;
    int first = r->round_first + (int)(task % n_runs) * r->run;
    return (struct cpu_run){ task / n_runs, first, r->round_end - first < r->run ? r->round_end : first + r->run };
}

float *pf_cpu_total_of(const struct cpu_rounds *r, int64_t query)
{
    return r->b->parts + (size_t)query * r->stride;
}

float *pf_cpu_part_of(const struct cpu_rounds *r, int chunk, int64_t query)
{
    return pf_cpu_total_of(r, (chunk - r->round_first + 1) * r->n_queries + query);
}

/* Chunks of a round, or 0 if blocks had better go through all chunks. */
static int round_of(const struct cpu_rounds *r)
{
    int n_threads = pf_pool_n_threads(r->b->pool), n_chunks = r->end - r->first;
    size_t room = pf_cpu_parts_floats(&r->b->sizes) / ((size_t)r->n_queries * r->stride);
    if (n_threads == 1 || n_chunks == 1 || r->n_blocks >= BLOCKS_PER_THREAD * n_threads || room < 3)
        return 0;
    return room - 1 < (size_t)n_chunks ? (int)room - 1 : n_chunks;           /* totals take as much as a chunk */
}

static void run_round(struct cpu_rounds *r, pf_job_fn *tasks, void *ctx)
{
    r->n_tasks = r->n_blocks * ((r->round_end - r->round_first + r->run - 1) / r->run);
    pf_pool_run(r->b->pool, tasks, ctx, r->n_tasks, 1);
}

void pf_cpu_rounds_run(struct cpu_rounds *r, pf_job_fn *whole, pf_job_fn *run, pf_job_fn *fold, void *ctx)
{
    int round = round_of(r);
    if (round == 0) {
        r->round_first = r->first;
        r->round_end = r->end;
        r->run = r->end - r->first;
        run_round(r, whole, ctx);
        return;
    }
    int64_t length = r->n_blocks * round / (RUNS_PER_THREAD * pf_pool_n_threads(r->b->pool));
    r->run = length > 1 ? (int)length : 1;
    for (r->round_first = r->first; r->round_first < r->end; r->round_first = r->round_end) {
        r->round_end = r->end - r->round_first < round ? r->end : r->round_first + round;
        run_round(r, run, ctx);
        pf_pool_run(r->b->pool, fold, ctx, r->n_queries, 1);
    }
}

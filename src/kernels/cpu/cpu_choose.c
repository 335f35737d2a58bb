/* The positions, or blocks of them, that an indexer finds worth attending to: a score per key, the
 * best max_chosen of each row.
 *
 *     keys of a chunk x the row's heads --product--> dots --sum over heads of w * max(dot, 0)--> scores [n_keys]
 *     or, where each head chooses runs for itself, dots --largest of a run--> scores [n_head][n_runs]
 *     scores --fourth of the bits by fourth, from the top--> the max_chosen-th largest --> chosen, rising
 *
 * Rows go in blocks of CHOOSE_ROWS, whose scores are shared memory: first all (row, chunk), then all rows. A score
 * depends on its row and key only. Rows that see no more than max_chosen keys get them all, unscored. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

struct choose_job {
    struct cpu_backend *b;
    const struct pf_choose_op *op;
    int first, n_chunks;         /* row of the block; chunks of the row that sees most */
};

size_t pf_cpu_choose_floats(int n_head)
{
    return (size_t)n_head * PF_KV_CHUNK;
}

static int n_seen(const struct pf_choose_op *op, int row)
{
    return pf_choose_seen(op, op->pos[row]);
}

/* Keys that are scored for a row; 0 if it gets whatever it sees. */
static int n_scored(const struct pf_choose_op *op, int row)
{
    return n_seen(op, row) <= op->max_chosen ? 0 : op->run ? op->pos[row] + 1 : n_seen(op, row);
}

static float *scores_of(const struct choose_job *job, int row)
{
    return job->b->scores + (size_t)(row - job->first) * (size_t)job->b->sizes.max_positions;
}

/* Scores of keys from the dots of a chunk with all heads. */
static void score_keys(const struct pf_choose_op *op, int row, const float *dots, int n, float *score)
{
    const float *w = op->w ? op->w + (size_t)row * (size_t)op->n_head : NULL;
    memset(score, 0, (size_t)n * sizeof *score);
    for (int h = 0; h < op->n_head; h++)
        for (int p = 0; p < n; p++) {
            float dot = dots[(size_t)h * PF_KV_CHUNK + p];
            score[p] = fmaf(w ? w[h] : 1, dot > 0 ? dot : 0, score[p]);
        }
}

/* Scores of the chunk's runs, for each head a list of so many. */
static void score_runs(const struct pf_choose_op *op, const float *dots, int first, int n, int n_runs, float *scores)
{
    for (int h = 0; h < op->n_head; h++)
        for (int at = 0; at < n; at += op->run) {
            int run = (first + at) / op->run, end = at + op->run < n ? at + op->run : n;
            float top = -INFINITY;
            for (int p = at; p < end; p++)
                top = dots[(size_t)h * PF_KV_CHUNK + p] > top ? dots[(size_t)h * PF_KV_CHUNK + p] : top;
            scores[(size_t)h * (size_t)n_runs + (size_t)run] = run >= n_runs - op->n_local ? INFINITY : top;
        }
}

static void score_chunks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct choose_job *job = ctx;
    const struct pf_choose_op *op = job->op;
    const struct pf_kv_view *kv = op->kv;
    float *dots = cpu_thread_scratch(job->b, thread);
    enum pf_qtype type = kv->type == PF_KV_F16 ? PF_F16 : PF_F32;
    size_t row_bytes = pf_kv_row_bytes(kv->type, kv->hd_k);
    for (int64_t t = begin; t < end; t++) {
        int row = job->first + (int)(t / job->n_chunks), at = (int)(t % job->n_chunks) * PF_KV_CHUNK;
        int n = n_scored(op, row) - at < PF_KV_CHUNK ? n_scored(op, row) - at : PF_KV_CHUNK;
        if (n <= 0)
            continue;
        pf_cpu_mul(job->b, type, (const uint8_t *)kv->k + pf_kv_row(kv, at, 0) * row_bytes, row_bytes, 0, n, kv->hd_k,
                   job->b->h.rows + (size_t)row * (size_t)op->n_head, op->n_head, dots, PF_KV_CHUNK, NULL);
        if (op->run)
            score_runs(op, dots, at, n, n_seen(op, row), scores_of(job, row));
        else
            score_keys(op, row, dots, n, scores_of(job, row) + at);
    }
}

/* Larger floats have larger ranks. */
static uint32_t rank_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The k-th largest rank; *n_equal: how many of that rank are among the k. */
static uint32_t kth_largest(const float *score, int n, int k, int *n_equal)
{
    uint32_t found = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = { 0 }, digit = 255;
        for (int i = 0; i < n; i++) {
            uint32_t rank = rank_of(score[i]);
            if (shift == 24 || rank >> (shift + 8) == found >> (shift + 8))
                count[rank >> shift & 255]++;
        }
        for (; count[digit] < k; digit--)
            k -= count[digit];
        found |= (uint32_t)digit << shift;
    }
    *n_equal = k;
    return found;
}

static void choose_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct choose_job *job = ctx;
    const struct pf_choose_op *op = job->op;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int n_lists = op->run ? op->n_head : 1, list = (int)(t % n_lists), row = job->first + (int)(t / n_lists);
        int n = n_seen(op, row), n_equal = 0;
        int32_t *out = op->chosen + ((size_t)row * (size_t)n_lists + (size_t)list) * (size_t)op->max_chosen;
        const float *score = scores_of(job, row) + (size_t)list * (size_t)n;
        bool all = n <= op->max_chosen;
        uint32_t least = all ? 0 : kth_largest(score, n, op->max_chosen, &n_equal);
        for (int p = 0; p < n; p++)
            if (all || rank_of(score[p]) > least || (rank_of(score[p]) == least && n_equal-- > 0))
                *out++ = p;
    }
}

pf_status pf_cpu_choose(pf_backend *backend, const struct pf_choose_op *op)
{
    struct choose_job job = { .b = cpu_of(backend), .op = op };
    PF_TRY(pf_cpu_prepare(job.b, &job.b->h, op->q, op->kv->hd_k, op->kv->hd_k, op->rows * op->n_head, false));
    for (; job.first < op->rows; job.first += CHOOSE_ROWS) {
        int n = op->rows - job.first < CHOOSE_ROWS ? op->rows - job.first : CHOOSE_ROWS;
        job.n_chunks = 0;
        for (int r = job.first; r < job.first + n; r++)
            if (job.n_chunks * PF_KV_CHUNK < n_scored(op, r))
                job.n_chunks = (n_scored(op, r) + PF_KV_CHUNK - 1) / PF_KV_CHUNK;
        pf_pool_run(job.b->pool, score_chunks, &job, (int64_t)n * job.n_chunks, 1);
        pf_pool_run(job.b->pool, choose_rows, &job, op->run ? n * op->n_head : n, 1);
    }
    return PF_OK;
}

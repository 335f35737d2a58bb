/* The router's choice, row by row: probabilities, the best n_used by selection score, their weights.
 *
 *     1  P = softmax(logits) | sigmoid(logits) | logits | sqrt(softplus(logits))        by gating
 *     2  score = P + select_bias                                 the bias takes part here only
 *     2b groups: a group's score is the sum of its two largest; outside the n_group_used best groups score = -inf
 *     3  picks = the n_used largest scores, falling; equal scores: the lower index; or what a table has for the token
 *     4  w = P[picks];  SOFTMAX_SELECTED: w = softmax(w)
 *     5  norm_weights: w /= max(sum w, 2^-14)                    summed in the order of the picks
 *     6  weight_scale: w *= weight_scale
 */
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu.h"

struct route_job {
    struct cpu_backend *b;
    const struct pf_route_op *op;
};

size_t pf_cpu_route_floats(int n_expert)
{
    return 4 * (size_t)n_expert;             /* P, scores, group scores, best groups */
}

static void probabilities(const struct route_job *job, const float *logits, float *p)
{
    int n = job->op->how->n_expert;
    switch (job->op->how->gating) {
    case PF_GATE_SOFTMAX:
        job->b->k.softmax(logits, n, p);
        break;
    case PF_GATE_SIGMOID:
        for (int i = 0; i < n; i++)
            p[i] = pf_sigmoidf(logits[i]);
        break;
    case PF_GATE_SOFTMAX_SELECTED:
        for (int i = 0; i < n; i++)
            p[i] = logits[i];
        break;
    case PF_GATE_SQRT_SOFTPLUS:
        for (int i = 0; i < n; i++)
            p[i] = sqrtf(pf_softplusf(logits[i]));
        break;
    }
}

/* Keeps the best k of n scores in picks, best first. A later equal score never displaces an earlier one. */
static void top_k(const float *score, int n, int k, int32_t *picks)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (kept == k && !(score[i] > score[picks[k - 1]]))
            continue;
        int at = kept < k ? kept++ : k - 1;
        while (at > 0 && score[i] > score[picks[at - 1]]) {
            picks[at] = picks[at - 1];
            at--;
        }
        picks[at] = i;
    }
}

static float two_largest(const float *score, int n)
{
    float a = score[0], b = -INFINITY;
    for (int i = 1; i < n; i++) {
        b = score[i] > a ? a : score[i] > b ? score[i] : b;
        a = score[i] > a ? score[i] : a;
    }
    return n > 1 ? a + b : a;
}

/* Takes the experts outside the best groups out of the choice. */
static void keep_best_groups(const struct pf_routing *r, float *score, float *group_score, int32_t *best)
{
    int n = r->n_expert / r->n_group;
    for (int g = 0; g < r->n_group; g++)
        group_score[g] = two_largest(score + g * n, n);
    top_k(group_score, r->n_group, r->n_group_used, best);
    for (int g = 0; g < r->n_group; g++) {
        bool kept = false;
        for (int i = 0; i < r->n_group_used; i++)
            kept |= best[i] == g;
        for (int i = 0; !kept && i < n; i++)
            score[g * n + i] = -INFINITY;
    }
}

static bool all_finite(const float *x, int n)
{
    float sum = 0;               /* 0 * x is 0 for a finite x and NaN for any other */
    for (int i = 0; i < n; i++)
        sum += 0.0f * x[i];
    return sum == 0.0f;
}

static void show(const struct pf_tap *tap, int64_t row, int n, const float *p, const float *score)
{
    if (tap->probs)
        memcpy(tap->probs + row * n, p, (size_t)n * sizeof *p);
    if (tap->scores)
        memcpy(tap->scores + row * n, score, (size_t)n * sizeof *score);
}

/* Steps 2 and 3. score: room for as pf_cpu_route_floats says, behind p. */
static void pick(const struct route_job *job, int64_t row, const float *p, float *score, int32_t *picks)
{
    const struct pf_route_op *op = job->op;
    const struct pf_routing *r = op->how;
    float *group_score = score + r->n_expert;
    for (int i = 0; i < r->n_expert; i++)
        score[i] = op->select_bias ? p[i] + op->select_bias[i] : p[i];
    if (r->n_group > 1)
        keep_best_groups(r, score, group_score, (int32_t *)(void *)(group_score + r->n_expert));
    if (job->b->base.tap)
        show(job->b->base.tap, row, r->n_expert, p, score);
    if (op->table)
        memcpy(picks, op->table + (size_t)op->ids[row] * (size_t)r->n_used, (size_t)r->n_used * sizeof *picks);
    else
        top_k(score, r->n_expert, r->n_used, picks);
}

static void route_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct route_job *job = ctx;
    const struct pf_routing *r = job->op->how;
    float *p = cpu_thread_scratch(job->b, thread);
    for (int64_t row = begin; row < end; row++) {
        const float *logits = job->op->logits + row * r->n_expert;
        int32_t *picks = job->op->picks + row * r->n_used;
        float *w = job->op->weights + row * r->n_used;
        if (!all_finite(logits, r->n_expert))
            atomic_store_explicit(&job->b->not_finite, true, memory_order_relaxed);
        probabilities(job, logits, p);
        pick(job, row, p, p + r->n_expert, picks);

        float sum = 0;
        for (int i = 0; i < r->n_used; i++)
            w[i] = p[picks[i]];
        if (r->gating == PF_GATE_SOFTMAX_SELECTED)
            job->b->k.softmax(w, r->n_used, w);
        for (int i = 0; i < r->n_used; i++)
            sum += w[i];
        if (r->norm_weights)
            for (int i = 0; i < r->n_used; i++)
                w[i] /= fmaxf(sum, 0x1p-14f);
        if (r->weight_scale != 1.0f)
            for (int i = 0; i < r->n_used; i++)
                w[i] *= r->weight_scale;
    }
}

pf_status pf_cpu_route(pf_backend *backend, const struct pf_route_op *op)
{
    struct route_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, route_rows, &job, op->rows, 8);
    if (atomic_exchange_explicit(&job.b->not_finite, false, memory_order_relaxed))
        PF_FAIL(PF_ENUMERIC, "a router logit is not finite");
    return PF_OK;
}

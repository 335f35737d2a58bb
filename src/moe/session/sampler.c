/* Sampling: from logits to one token.
 *
 *     penalties on tokens seen, bias -> temperature -> the top_k best -> of those the top_p share -> of those at least
 *     min_p of the best one's probability -> draw
 *
 * Candidates are a heap ordered by (logit falling, id rising), a total order, so equal logits never depend on the
 * algorithm. Only as many are taken off it as the limits ask for. exp is pf_expf and sums are double in a fixed order:
 * the same seed gives the same tokens on every machine. Scratch belongs to the session; nothing is allocated. */
#include <math.h>

#include "base/pf_fp.h"
#include "base/pf_math.h"
#include "grammar/grammar.h"
#include "moe/session/session.h"

/* ---- Random numbers: xoshiro256** seeded through splitmix64 (Blackman and Vigna, 2018) --------------------------- */

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint64_t next_random(uint64_t s[4])
{
    uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

static double next_unit(uint64_t s[4])
{
    return (double)(next_random(s) >> 11) * 0x1p-53;
}

void pf_sampler_init(struct pf_sampler *sp, uint64_t seed)
{
    *sp = (struct pf_sampler){ .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f,
                               .penalty_last_n = 64 };
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sp->rng[i] = z ^ z >> 31;
    }
}

/* ---- Candidates -------------------------------------------------------------------------------------------------- */

static bool before(const struct pf_candidate *a, const struct pf_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(struct pf_candidate *heap, int n, int i)
{
    struct pf_candidate moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Takes the best candidate off the heap and parks it just past the shrunken heap's end. */
static struct pf_candidate pop(struct pf_candidate *heap, int *n)
{
    struct pf_candidate best = heap[0];
    heap[0] = heap[--*n];
    heap[*n] = best;
    sift_down(heap, *n, 0);
    return best;
}

static pf_status fill(struct pf_candidate *c, const float *logits, int n)
{
    for (int i = 0; i < n; i++) {
        if (isnan(logits[i]))
            PF_FAIL(PF_ENUMERIC, "the logit of token %d is not a number", i);
        c[i] = (struct pf_candidate){ .logit = logits[i], .id = i };
    }
    return PF_OK;
}

/* seen[] is all zero before and after. */
static void penalise(const struct pf_sampler *sp, const struct pf_session *s, struct pf_candidate *c)
{
    int64_t last = sp->penalty_last_n < 0 ? s->pos : sp->penalty_last_n;
    int64_t begin = s->pos > last ? s->pos - last : 0;
    if (sp->repeat_penalty == 1.0f && sp->presence_penalty == 0 && sp->frequency_penalty == 0)
        return;
    for (int64_t i = begin; i < s->pos; i++)
        s->seen[s->tokens[i]]++;
    for (int64_t i = begin; i < s->pos; i++) {
        int32_t id = s->tokens[i];
        if (!s->seen[id])
            continue;
        float *logit = &c[id].logit;
        *logit = *logit > 0 ? *logit / sp->repeat_penalty : *logit * sp->repeat_penalty;
        *logit -= sp->presence_penalty + (float)s->seen[id] * sp->frequency_penalty;
        s->seen[id] = 0;
    }
}

static double weight_of(const struct pf_sampler *sp, float logit, float best)
{
    return pf_expf((logit - best) / sp->temp);
}

/* The sum of weights that top_p is a share of: of the top_k candidates, or of all. */
static double total_weight(const struct pf_sampler *sp, const struct pf_candidate *c, int n, float best)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += weight_of(sp, c[i].logit, best);
    return sum;
}

static int32_t draw(struct pf_sampler *sp, struct pf_candidate *c, int n)
{
    int heap = n, kept = 0;
    for (int i = n / 2 - 1; i >= 0; i--)
        sift_down(c, n, i);
    float best = c[0].logit;
    int most = sp->top_k > 0 && sp->top_k < n ? sp->top_k : n;
    double total = most == n ? total_weight(sp, c, n, best) : 0, sum = 0;
    if (most < n) {                      /* the best `most` end up, worst first, in c[n - most .. n) */
        while (kept < most)
            pop(c, &heap), kept++;
        total = total_weight(sp, c + heap, most, best);
    }
    /* Walk from the best on; stop when the share is reached or probabilities fall below the floor. */
    for (kept = 0; kept < most; kept++) {
        float logit = most < n ? c[n - 1 - kept].logit : pop(c, &heap).logit;
        double w = weight_of(sp, logit, best);
        if (kept > 0 && (sum >= sp->top_p * total || w < sp->min_p))
            break;
        sum += w;
    }
    double target = next_unit(sp->rng) * sum;
    for (int i = 0; i < kept; i++) {
        target -= weight_of(sp, c[n - 1 - i].logit, best);
        if (target < 0)
            return c[n - 1 - i].id;
    }
    return c[n - kept].id;               /* rounding left a crumb: the last one kept */
}

static pf_status check_settings(const struct pf_sampler *sp)
{
    if (!(sp->temp >= 0) || !(sp->top_p > 0) || !(sp->min_p >= 0 && sp->min_p <= 1) || !(sp->repeat_penalty > 0) ||
        sp->top_k < 0)
        PF_FAIL(PF_EINVAL,
                "a sampling setting is out of range: temp %g, top_k %d, top_p %g, min_p %g, repeat_penalty %g",
                sp->temp, sp->top_k, sp->top_p, sp->min_p, sp->repeat_penalty);
    return PF_OK;
}

static int32_t greedy(const struct pf_candidate *c, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (before(&c[i], &c[best]))
            best = i;
    return c[best].id;
}

/* Picks a token; with a mask, among those whose bits are set. *tok is -1 when there is none. */
static pf_status pick(struct pf_sampler *sp, const struct pf_session *s, const uint64_t *mask, int32_t *tok)
{
    const float *logits = pf_session_logits(s);
    struct pf_candidate *c = s->candidates;
    int n = s->m->n_vocab, kept = 0;
    if (!logits)
        PF_FAIL(PF_EINVAL, "there are no logits to sample from");
    PF_TRY(check_settings(sp));
    PF_TRY(fill(c, logits, n));
    unsigned fp = pf_fp_begin();
    penalise(sp, s, c);
    for (int i = 0; i < sp->n_bias; i++)
        if (sp->bias[i].tok >= 0 && sp->bias[i].tok < n)
            c[sp->bias[i].tok].logit += sp->bias[i].add;
    for (int i = 0; mask && i < n && i < pf_vocab_size(s->m->vocab); i++)
        if (mask[i / 64] >> i % 64 & 1)
            c[kept++] = c[i];
    n = mask ? kept : n;
    *tok = n == 0 ? -1 : sp->temp > 0 ? draw(sp, c, n) : greedy(c, n);
    pf_fp_end(fp);
    return PF_OK;
}

pf_status pf_sample(struct pf_sampler *sp, const pf_session *s, int32_t *tok)
{
    return pick(sp, s, NULL, tok);
}

pf_status pf_sample_matching(struct pf_sampler *sp, const pf_session *s, pf_matcher *mt, int32_t *tok)
{
    struct pf_sampler next = *sp;            /* a call that fails leaves the random numbers where they were */
    const uint64_t *mask;
    int32_t picked;
    bool fits;
    PF_TRY(pick(&next, s, NULL, &picked));
    PF_TRY(pf_matcher_fits(mt, picked, &fits));
    if (!fits) {
        PF_TRY(pf_matcher_mask(mt, &mask));
        PF_TRY(pick(&next, s, mask, &picked));
        if (picked < 0)
            PF_FAIL(PF_EINVAL, "no token of the vocabulary may follow by the grammar");
    }
    *sp = next;
    *tok = picked;
    return PF_OK;
}

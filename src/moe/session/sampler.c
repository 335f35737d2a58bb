/* Sampling: from logits to one token.
 *
 *     penalties on tokens seen, bias -> temperature -> the top_k best -> of those the top_p share -> of those at least
 *     min_p of the best one's probability -> draw
 *
 * Candidates are ordered by (logit falling, id rising), a total order, so equal logits never depend on the algorithm:
 * the few best come from one pass over the logits; more of them, or all, are taken off a heap, as many as the limits
 * ask for. exp is pf_expf and sums are double in a fixed order: the same seed gives the same tokens on every machine.
 * Scratch belongs to the session; nothing is allocated. */
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

static pf_status check_number(const float *logits, int i)
{
    if (isnan(logits[i]))
        PF_FAIL(PF_ENUMERIC, "the logit of token %d is not a number", i);
    return PF_OK;
}

static pf_status fill(struct pf_candidate *c, const float *logits, int n)
{
    for (int i = 0; i < n; i++) {
        PF_TRY(check_number(logits, i));
        c[i] = (struct pf_candidate){ .logit = logits[i], .id = i };
    }
    return PF_OK;
}

/* Puts a candidate into its place among the `most` best so far, which are ordered, the worst first. */
static void offer(struct pf_candidate *best, int *kept, int most, struct pf_candidate c)
{
    int i = *kept;
    if (i < most) {
        for (; i > 0 && before(&best[i - 1], &c); i--)
            best[i] = best[i - 1];
        best[i] = c;
        ++*kept;
    } else if (before(&c, &best[0])) {
        for (i = 0; i + 1 < most && before(&c, &best[i + 1]); i++)
            best[i] = best[i + 1];
        best[i] = c;
    }
}

enum { BLOCK = 32 };

/* Whether any of a block's logits is at least so large, or no number. */
static bool has_any(const float *x, float least)
{
    int found = 0;
    for (int i = 0; i < BLOCK; i++)
        found |= !(x[i] < least);
    return found;
}

/* The `most` best, the worst first, in c[0 .. most): of n logits, or of the candidates c[0 .. n) if logits is NULL. */
static pf_status keep_best(struct pf_candidate *c, const float *logits, int n, int most)
{
    int kept = 0;
    for (int i = 0; !logits && i < n; i++)
        offer(c, &kept, most, c[i]);
    for (int i = 0; logits && i < n; i++) {
        bool whole = kept == most && i % BLOCK == 0 && i + BLOCK <= n;
        if (whole && !has_any(logits + i, c[0].logit)) {
            i += BLOCK - 1;
            continue;
        }
        PF_TRY(check_number(logits, i));
        offer(c, &kept, most, (struct pf_candidate){ .logit = logits[i], .id = i });
    }
    return PF_OK;
}

static bool penalises(const struct pf_sampler *sp)
{
    return sp->repeat_penalty != 1.0f || sp->presence_penalty != 0 || sp->frequency_penalty != 0;
}

/* seen[] is all zero before and after. */
static void penalise(const struct pf_sampler *sp, const struct pf_session *s, struct pf_candidate *c)
{
    int64_t last = sp->penalty_last_n < 0 ? s->pos : sp->penalty_last_n;
    int64_t begin = s->pos > last ? s->pos - last : 0;
    if (!penalises(sp))
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

static void make_heap(struct pf_candidate *c, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        sift_down(c, n, i);
}

/* From n logits, or, if they are NULL, from the candidates c[0 .. n). */
static pf_status draw(struct pf_sampler *sp, struct pf_candidate *c, const float *logits, int n, int32_t *tok)
{
    enum { FEW = 256 };
    int most = sp->top_k > 0 && sp->top_k < n ? sp->top_k : n, heap, kept;
    bool ordered = most < n;             /* the best `most` are, worst first, in c[n - most .. n); else c is a heap */
    if (ordered && most <= FEW) {
        PF_TRY(keep_best(c, logits, n, most));
        n = most;
    } else {
        PF_TRY(logits ? fill(c, logits, n) : PF_OK);
        make_heap(c, n);
        for (heap = n; ordered && heap > n - most;)
            pop(c, &heap);
    }
    heap = n;
    float best = ordered ? c[n - 1].logit : c[0].logit;
    double total = total_weight(sp, c + n - most, most, best), sum = 0;
    /* Walk from the best on; stop when the share is reached or probabilities fall below the floor. */
    for (kept = 0; kept < most; kept++) {
        float logit = ordered ? c[n - 1 - kept].logit : pop(c, &heap).logit;
        double w = weight_of(sp, logit, best);
        if (kept > 0 && (sum >= sp->top_p * total || w < sp->min_p))
            break;
        sum += w;
    }
    double target = next_unit(sp->rng) * sum;
    for (int i = 0; i < kept; i++) {
        target -= weight_of(sp, c[n - 1 - i].logit, best);
        *tok = c[n - 1 - i].id;
        if (target < 0)
            break;                       /* if rounding leaves a crumb it is the last one kept */
    }
    return PF_OK;
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

/* Picks among n logits, or, if they are NULL, among the candidates c[0 .. n). */
static pf_status pick_from(struct pf_sampler *sp, struct pf_candidate *c, const float *logits, int n, int32_t *tok)
{
    *tok = -1;
    if (n == 0)
        return PF_OK;
    if (sp->temp > 0)
        return draw(sp, c, logits, n, tok);
    PF_TRY(keep_best(c, logits, n, 1));
    *tok = c->id;
    return PF_OK;
}

/* The logits with penalties and bias as candidates; with a mask, those whose bits are set. Returns how many. */
static int change(const struct pf_sampler *sp, const struct pf_session *s, const uint64_t *mask)
{
    struct pf_candidate *c = s->candidates;
    int n = s->m->n_vocab, kept = 0;
    penalise(sp, s, c);
    for (int i = 0; i < sp->n_bias; i++)
        if (sp->bias[i].tok >= 0 && sp->bias[i].tok < n)
            c[sp->bias[i].tok].logit += sp->bias[i].add;
    for (int i = 0; mask && i < n && i < pf_vocab_size(s->m->vocab); i++)
        if (mask[i / 64] >> i % 64 & 1)
            c[kept++] = c[i];
    return mask ? kept : n;
}

/* Picks a token; with a mask, among those whose bits are set. *tok is -1 when there is none. */
static pf_status pick(struct pf_sampler *sp, const struct pf_session *s, const uint64_t *mask, int32_t *tok)
{
    const float *logits = pf_session_logits(s);
    struct pf_candidate *c = s->candidates;
    int n = s->m->n_vocab;
    bool as_they_are = !mask && !sp->n_bias && !penalises(sp);
    if (!logits)
        PF_FAIL(PF_EINVAL, "there are no logits to sample from");
    PF_TRY(check_settings(sp));
    PF_TRY(as_they_are ? PF_OK : fill(c, logits, n));
    unsigned fp = pf_fp_begin();
    n = as_they_are ? n : change(sp, s, mask);
    pf_status st = pick_from(sp, c, as_they_are ? logits : NULL, n, tok);
    pf_fp_end(fp);
    return st;
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

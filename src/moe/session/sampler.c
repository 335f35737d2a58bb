/* Sampling: from logits to one token.
 *
 *     penalties on tokens seen, bias -> temperature -> the top_k best -> of those the top_p share -> of those at least
 *     min_p of the best one's probability -> draw
 *
 * Candidates are ordered by (logit falling, id rising), a total order, so equal logits never depend on the algorithm:
 * up to PF_BEST_FEW are found in one pass (best.h); more of them, or all, are drawn by their weights (draw.h). exp is
 * pf_expf and sums are double in a fixed order: the same seed gives the same tokens on every machine. Scratch belongs
 * to the session; nothing is allocated. */
#include <math.h>
#include <string.h>

#include "base/pf_fp.h"
#include "base/pf_math.h"
#include "grammar/grammar.h"
#include "moe/session/draw.h"
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

/* ---- Penalties and bias ------------------------------------------------------------------------------------------ */

static bool penalises(const struct pf_sampler *sp)
{
    return sp->repeat_penalty != 1.0f || sp->presence_penalty != 0 || sp->frequency_penalty != 0;
}

/* The tokens that penalties look back on. */
struct window {
    const int32_t *tok;
    int64_t        n;
};

static struct window window_of(const struct pf_sampler *sp, const struct pf_session *s)
{
    int64_t last = sp->penalty_last_n < 0 ? s->pos : sp->penalty_last_n;
    int64_t begin = s->pos > last ? s->pos - last : 0;
    return penalises(sp) ? (struct window){ s->tokens + begin, s->pos - begin } : (struct window){ NULL, 0 };
}

/* Changes logits x of tokens in the window and of biased ones; no others are looked at. seen[] is all zero before and
 * after. */
static void change(const struct pf_sampler *sp, const struct pf_session *s, struct window w, float *x)
{
    for (int64_t i = 0; i < w.n; i++)
        s->seen[w.tok[i]]++;
    for (int64_t i = 0; i < w.n; i++) {
        int32_t id = w.tok[i];
        if (!s->seen[id])
            continue;
        x[id] = x[id] > 0 ? x[id] / sp->repeat_penalty : x[id] * sp->repeat_penalty;
        x[id] -= sp->presence_penalty + (float)s->seen[id] * sp->frequency_penalty;
        s->seen[id] = 0;
    }
    for (int i = 0; i < sp->n_bias; i++)
        if (sp->bias[i].tok >= 0 && sp->bias[i].tok < s->m->n_vocab)
            x[sp->bias[i].tok] += sp->bias[i].add;
}

/* Logits of tokens whose bits are not set become -inf. */
static void hide(const struct pf_session *s, const uint64_t *mask, float *x)
{
    int known = pf_vocab_size(s->m->vocab);
    for (int i = 0; i < s->m->n_vocab; i++)
        x[i] = i < known && mask[i / 64] >> i % 64 & 1 ? x[i] : -INFINITY;
}

/* All logits, changed, and hidden by a mask unless that is NULL. */
static struct pf_scores change_all(const struct pf_sampler *sp, const struct pf_session *s, const float *logits,
                                   const uint64_t *mask)
{
    memcpy(s->changed, logits, (size_t)s->m->n_vocab * sizeof *logits);
    change(sp, s, window_of(sp, s), s->changed);
    if (mask)
        hide(s, mask, s->changed);
    return (struct pf_scores){ s->changed, s->m->n_vocab, NULL };
}

/* ---- The best few ------------------------------------------------------------------------------------------------ */

/* The i-th of the tokens in the window and with a bias, some of which come more than once; -1: the vocabulary does not
 * have it. */
static int32_t changed_token(const struct pf_sampler *sp, const struct pf_session *s, struct window w, int64_t i)
{
    int32_t id = i < w.n ? w.tok[i] : sp->bias[i - w.n].tok;
    return id >= 0 && id < s->m->n_vocab ? id : -1;
}

/* Changes the logits of these tokens alone: in s->changed. NaN may come of a bias, or of penalties that are no finite
 * numbers. */
static pf_status change_few(const struct pf_sampler *sp, const struct pf_session *s, const float *logits,
                            struct window w, int64_t n)
{
    int32_t id;
    for (int64_t i = 0; i < n; i++)
        if ((id = changed_token(sp, s, w, i)) >= 0)
            s->changed[id] = logits[id];
    change(sp, s, w, s->changed);
    for (int64_t i = 0; i < n; i++)
        if ((id = changed_token(sp, s, w, i)) >= 0 && isnan(s->changed[id]))
            PF_FAIL(PF_ENUMERIC, "the logit of token %d is not a number", id);
    return PF_OK;
}

/* The `most` best, the worst first, of logits of which n_changed at most are changed: the best of the others, which are
 * among the most + n_changed <= PF_BEST_FEW best of all, and those. */
static pf_status best_of_changed(const struct pf_sampler *sp, const struct pf_session *s, const struct pf_scores *of,
                                 int most, int n_changed, struct pf_candidate *c, int *kept)
{
    struct window w = window_of(sp, s);
    int n, over;
    int32_t id;
    PF_TRY(pf_best(of, most + n_changed, c, &n));
    PF_TRY(change_few(sp, s, of->logits, w, n_changed));
    for (int i = 0; i < n_changed; i++)
        if ((id = changed_token(sp, s, w, i)) >= 0)
            s->seen[id] = 1;
    *kept = 0;
    for (int i = 0; i < n; i++)
        if (!s->seen[c[i].id])
            c[(*kept)++] = c[i];
    over = *kept > most ? *kept - most : 0;
    *kept -= over;
    memmove(c, c + over, (size_t)*kept * sizeof *c);
    for (int i = 0; i < n_changed; i++) {
        if ((id = changed_token(sp, s, w, i)) < 0 || !s->seen[id])
            continue;
        pf_best_offer(c, kept, most, (struct pf_candidate){ s->changed[id], id });
        s->seen[id] = 0;
    }
    return PF_OK;
}

static double weight_of(const struct pf_sampler *sp, float logit, float best)
{
    return pf_expf((logit - best) / sp->temp);
}

/* Draws from c[0 .. n), the worst first. */
static int32_t draw_few(struct pf_sampler *sp, const struct pf_candidate *c, int n)
{
    float best = c[n - 1].logit;
    double total = 0, sum = 0;
    int kept;
    for (int i = 0; i < n; i++)
        total += weight_of(sp, c[i].logit, best);
    for (kept = 0; kept < n; kept++) {
        double w = weight_of(sp, c[n - 1 - kept].logit, best);
        if (kept > 0 && (sum >= sp->top_p * total || w < sp->min_p))
            break;
        sum += w;
    }
    double target = next_unit(sp->rng) * sum;
    int i = 0;
    for (; i < kept - 1; i++) {              /* if rounding leaves a crumb it is the last one's that is kept */
        target -= weight_of(sp, c[n - 1 - i].logit, best);
        if (target < 0)
            break;
    }
    return c[n - 1 - i].id;
}

/* ---- Picking ----------------------------------------------------------------------------------------------------- */

static pf_status check_settings(const struct pf_sampler *sp)
{
    if (!(sp->temp >= 0 && sp->temp < INFINITY) || !(sp->top_p > 0) || !(sp->min_p >= 0 && sp->min_p <= 1) ||
        !(sp->repeat_penalty > 0) || sp->top_k < 0 || sp->n_bias < 0)
        PF_FAIL(PF_EINVAL,
                "a sampling setting is out of range: temp %g, top_k %d, top_p %g, min_p %g, repeat_penalty %g, "
                "n_bias %d", sp->temp, sp->top_k, sp->top_p, sp->min_p, sp->repeat_penalty, sp->n_bias);
    return PF_OK;
}

/* How many candidates there may be. */
static int most_of(const struct pf_sampler *sp, int n)
{
    return sp->temp <= 0 ? 1 : sp->top_k > 0 && sp->top_k < n ? sp->top_k : n;
}

/* Picks among the first `most` of all. Beside an infinite logit no other has any weight. */
static pf_status pick_from(struct pf_sampler *sp, const struct pf_session *s, const struct pf_scores *of, int most,
                           int n_changed, int32_t *tok)
{
    struct pf_candidate few[PF_BEST_FEW];
    int kept = 0;
    bool is_few = most <= PF_BEST_FEW;
    if (n_changed)
        PF_TRY(best_of_changed(sp, s, of, most, n_changed, few, &kept));
    else
        PF_TRY(pf_best(of, is_few ? most : 1, few, &kept));
    int masked = 0;
    while (masked < kept && few[masked].logit == -INFINITY)
        masked++;
    *tok = -1;
    if (masked == kept)
        return PF_OK;
    const struct pf_candidate *c = few + masked;
    const struct pf_draw how = { sp->temp, sp->top_p, sp->min_p, most, few[kept - 1].logit };
    const struct pf_draw_room room = { s->weights, s->candidates };
    if (sp->temp <= 0 || few[kept - 1].logit == INFINITY)
        *tok = few[kept - 1].id;
    else if (is_few)
        *tok = draw_few(sp, c, kept - masked);
    else
        *tok = pf_draw_one(&how, s->m->cpu, of->logits, of->n, next_unit(sp->rng), &room);
    return PF_OK;
}

/* The session's logits, and their tops if the step that made them told. */
static struct pf_scores scores_of(const struct pf_session *s)
{
    struct pf_scores of = { pf_session_logits(s), s->m->n_vocab, NULL };
    if (of.logits && s->has_tops && !s->all_logits)
        of.tops = s->tops + (of.logits - s->logits) / of.n * pf_n_tops(of.n);
    return of;
}

/* Picks a token; with a mask, among those whose bits are set. *tok is -1 when there is none. */
static pf_status pick(struct pf_sampler *sp, const struct pf_session *s, const uint64_t *mask, int32_t *tok)
{
    struct pf_scores of = scores_of(s);
    if (!of.logits)
        PF_FAIL(PF_EINVAL, "there are no logits to sample from");
    PF_TRY(check_settings(sp));
    unsigned fp = pf_fp_begin();
    int most = most_of(sp, of.n);
    int64_t n_changed = window_of(sp, s).n + sp->n_bias;
    bool all = mask || (n_changed > 0 && most + n_changed > PF_BEST_FEW);
    of = all ? change_all(sp, s, of.logits, mask) : of;
    pf_status st = pick_from(sp, s, &of, most, all ? 0 : (int)n_changed, tok);
    pf_fp_end(fp);
    return st;
}

pf_status pf_sample(struct pf_sampler *sp, const pf_session *s, int32_t *tok)
{
    int32_t picked;
    PF_TRY(pick(sp, s, NULL, &picked));
    if (picked < 0)
        PF_FAIL(PF_ENUMERIC, "every token's logit is -inf");
    *tok = picked;
    return PF_OK;
}

pf_status pf_sample_matching(struct pf_sampler *sp, const pf_session *s, pf_matcher *mt, int32_t *tok)
{
    struct pf_sampler next = *sp;            /* a call that fails leaves the random numbers where they were */
    const uint64_t *mask;
    int32_t picked;
    bool fits = false;
    PF_TRY(pick(&next, s, NULL, &picked));
    PF_TRY(picked < 0 ? PF_OK : pf_matcher_fits(mt, picked, &fits));
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

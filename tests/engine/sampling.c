/* Sampling from logits that are made up, without a model: what is picked is what the settings' definition in pfmoe.h
 * picks, computed here by sorting all tokens, for the same random number. Where that number falls on a border between
 * two tokens but for roundings, or a share of the weights is reached but for roundings, either is right.
 *
 * usage: sampling [--bench] */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pf_math.h"
#include "check.h"
#include "moe/model/model.h"
#include "moe/session/session.h"

enum { MOST = 60000, WINDOW = 300, N_BIAS = 3 };
static const double CLOSE = 1e-9;

static struct pf_model   model;
static struct pf_session session;
static uint64_t          state = 1;

static double unit(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

static double normal(void)
{
    double a = 0;
    for (int i = 0; i < 12; i++)
        a += unit();
    return a - 6;
}

/* ---- The definition ---------------------------------------------------------------------------------------------- */

/* The number in 0 .. 1 that comes next: xoshiro256**. */
static double next_number(const uint64_t s[4])
{
    uint64_t five = s[1] * 5, turned = (five << 7 | five >> 57) * 9;
    return (double)(turned >> 11) * 0x1p-53;
}

static struct pf_candidate all[MOST];

static int by_order(const void *a, const void *b)
{
    const struct pf_candidate *x = a, *y = b;
    return x->logit > y->logit ? -1 : x->logit < y->logit ? 1 : (x->id > y->id) - (x->id < y->id);
}

/* all[]: the logits with penalties and bias, in order. */
static void sort_changed(const struct pf_sampler *sp)
{
    int n = model.n_vocab;
    int64_t last = sp->penalty_last_n < 0 || sp->penalty_last_n > session.pos ? session.pos : sp->penalty_last_n;
    for (int id = 0; id < n; id++) {
        int seen = 0;
        float x = session.logits[id];
        for (int64_t k = session.pos - last; k < session.pos; k++)
            seen += session.tokens[k] == id;
        if (seen > 0) {
            x = x > 0 ? x / sp->repeat_penalty : x * sp->repeat_penalty;
            x -= sp->presence_penalty + (float)seen * sp->frequency_penalty;
        }
        for (int k = 0; k < sp->n_bias; k++)
            x += sp->bias[k].tok == id ? sp->bias[k].add : 0;
        all[id] = (struct pf_candidate){ x, id };
    }
    qsort(all, (size_t)n, sizeof *all, by_order);
}

static double weight(const struct pf_sampler *sp, int i)
{
    return pf_expf((all[i].logit - all[0].logit) / sp->temp);
}

/* Whether the definition allows that `tok` is picked. */
static bool is_right(const struct pf_sampler *sp, double number, int32_t tok)
{
    int n = sp->top_k > 0 && sp->top_k < model.n_vocab ? sp->top_k : model.n_vocab, kept = 0;
    double total = 0, sum = 0;
    if (sp->temp <= 0)
        return all[0].id == tok;
    for (int i = 0; i < n; i++)
        total += weight(sp, i);
    double share = (double)sp->top_p * total;
    bool may_end = false;
    for (; kept < n; kept++) {
        if (kept > 0 && (sum >= share || weight(sp, kept) < sp->min_p))
            break;
        may_end = may_end || (kept > 0 && fabs(sum - share) < CLOSE * total);
        sum += weight(sp, kept);
    }
    may_end = may_end || fabs(sum - share) < CLOSE * total;
    double begin = 0, target = number * sum;
    for (int i = 0; i < n; i++) {
        double end = begin + weight(sp, i);
        if (all[i].id == tok)
            return may_end || (i < kept && target > begin - CLOSE * total && target < end + CLOSE * total);
        begin = end;
    }
    return false;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void set_logits(int n, int kind)
{
    model.n_vocab = n;
    for (int i = 0; i < n; i++) {
        double x = normal() * (kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? 4 : 12);
        session.logits[i] = (float)(kind == 4 ? floor(x / 6) : kind == 5 ? x - 200 : x);
    }
    for (int i = 0; i < pf_n_tops(n); i++)
        session.tops[i] = -INFINITY;
    for (int i = 0; i < n; i++)
        session.tops[i / PF_TOPS_OF] = fmaxf(session.tops[i / PF_TOPS_OF], session.logits[i]);
    for (int i = 0; i < WINDOW; i++)
        session.tokens[i] = (int32_t)(unit() * (i % 2 ? n : n < 9 ? n : 9));
}

static float one_of(const float *of, int n)
{
    return of[(int)(unit() * n)];
}
#define ONE_OF(...) one_of((const float[]){ __VA_ARGS__ }, sizeof((float[]){ __VA_ARGS__ }) / sizeof(float))

static struct pf_sampler any_settings(const struct pf_logit_bias *bias)
{
    struct pf_sampler sp;
    pf_sampler_init(&sp, state);
    sp.temp = ONE_OF(0.0f, 0.1f, 0.7f, 1.0f, 1.0f, 5.0f);
    sp.top_k = (int)ONE_OF(0.0f, 0.0f, 1.0f, 40.0f, 256.0f, 257.0f, 1000.0f);
    sp.top_p = ONE_OF(1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-6f, 2.0f);
    sp.min_p = ONE_OF(0.0f, 0.0f, 0.05f, 0.001f, 1.0f);
    if (unit() < 0.4) {
        sp.repeat_penalty = ONE_OF(1.0f, 1.3f);
        sp.presence_penalty = ONE_OF(0.0f, 1.5f, -2.0f);
        sp.frequency_penalty = ONE_OF(0.0f, 0.3f);
        sp.penalty_last_n = (int)ONE_OF(-1.0f, 0.0f, 5.0f, 64.0f);
    }
    if (unit() < 0.3) {
        sp.bias = bias;
        sp.n_bias = N_BIAS;
    }
    return sp;
}

static void check_settings(int n, int kind)
{
    struct pf_logit_bias bias[N_BIAS] = { { (int32_t)(unit() * n), 3 }, { n, 100 }, { (int32_t)(unit() * n), -100 } };
    struct pf_sampler sp = any_settings(bias), before = sp, again = sp;
    int32_t tok = -1, second = -2;
    session.pos = (int64_t)(unit() * WINDOW);
    sort_changed(&sp);
    CHECK(pf_sample(&sp, &session, &tok) == PF_OK, "%s", pf_last_error());
    CHECK(is_right(&before, next_number(before.rng), tok),
          "token %d of %d, kind %d: temp %g, top_k %d, top_p %g, min_p %g, penalties %g %g %g, %d biases", tok, n, kind,
          before.temp, before.top_k, before.top_p, before.min_p, before.repeat_penalty, before.presence_penalty,
          before.frequency_penalty, before.n_bias);
    session.has_tops = !session.has_tops;
    CHECK(pf_sample(&again, &session, &second) == PF_OK && second == tok, "%d, with tops %d", tok, second);
    for (int i = 0; i < n; i++)
        CHECK(session.seen[i] == 0, "token %d is left marked", i);
}

/* A logit that is no number is told of, wherever it is, and changes nothing. */
static void check_nan(int n, int top_k)
{
    struct pf_sampler sp, before;
    int32_t tok;
    set_logits(n, 2);
    session.logits[(int)(unit() * n)] = NAN;
    pf_sampler_init(&sp, 1);
    sp.top_k = top_k;
    session.has_tops = false;
    before = sp;
    CHECK(pf_sample(&sp, &session, &tok) == PF_ENUMERIC, "%d logits, top_k %d", n, top_k);
    CHECK(memcmp(&sp, &before, sizeof sp) == 0);
}

/* Settings and biases that leave no finite logits: an infinite one is picked, what is no number told of. */
static void check_infinite(int n, int top_k, float add, pf_status expected)
{
    struct pf_logit_bias bias = { n / 2, add };
    struct pf_sampler sp;
    int32_t tok = -5;
    set_logits(n, 2);
    session.has_tops = unit() < 0.5;
    pf_sampler_init(&sp, 1);
    sp.top_k = top_k;
    sp.bias = &bias;
    sp.n_bias = 1;
    pf_status st = pf_sample(&sp, &session, &tok);
    CHECK(st == expected, "%d logits, top_k %d, a bias of %g: %d", n, top_k, add, (int)st);
    CHECK(st < 0 ? tok == -5 : add < 0 ? tok != n / 2 : tok == n / 2, "a bias of %g: token %d", add, tok);
    sp.bias = NULL;
    sp.n_bias = -1;
    CHECK(pf_sample(&sp, &session, &tok) == PF_EINVAL);
    sp.n_bias = 0;
    sp.temp = INFINITY;
    CHECK(pf_sample(&sp, &session, &tok) == PF_EINVAL);
    sp.temp = 1;
    for (int i = 0; i < n; i++)
        session.logits[i] = session.tops[i / PF_TOPS_OF] = -INFINITY;
    CHECK(pf_sample(&sp, &session, &tok) == PF_ENUMERIC);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void time_one(const char *what, struct pf_sampler sp)
{
    double best = 1e9;
    int32_t tok;
    for (int i = 0; i < 60; i++) {
        double begin = now_us();
        pf_sample(&sp, &session, &tok);
        double took = now_us() - begin;
        best = took < best ? took : best;
    }
    printf("%-40s %8.1f us\n", what, best);
}

static void bench(void)
{
    struct pf_sampler sp;
    pf_sampler_init(&sp, 1);
    session.pos = WINDOW;
    time_one("defaults", sp);
    session.has_tops = true;
    time_one("defaults, with tops", sp);
    sp.presence_penalty = 1.5f;
    time_one("defaults, presence_penalty", sp);
    sp.presence_penalty = 0;
    sp.temp = 0;
    time_one("greedy", sp);
    sp.temp = 0.8f;
    sp.top_k = 1000;
    time_one("top_k 1000", sp);
    sp.top_k = 0;
    time_one("top_p and min_p among all", sp);
    sp.min_p = 0;
    time_one("top_p among all", sp);
    sp.top_p = 1;
    time_one("among all", sp);
}

int main(int argc, char **argv)
{
    static const int sizes[] = { 1, 2, 5, 33, 300, 1000, 4096, 20000 };
    session = (struct pf_session){ .m = &model, .has_logits = true };
    session.logits = calloc(MOST, sizeof *session.logits);
    session.tops = calloc(MOST, sizeof *session.tops);
    session.tokens = calloc(WINDOW, sizeof *session.tokens);
    session.candidates = calloc(MOST, sizeof *session.candidates);
    session.weights = calloc(MOST, sizeof *session.weights);
    session.changed = calloc(MOST, sizeof *session.changed);
    session.seen = calloc(MOST, sizeof *session.seen);
    if (pf_backend_cpu_open(&model.cpu, 1, PF_ISA_ALL) < 0)
        return 1;
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        set_logits(MOST, 2);
        bench();
        return 0;
    }
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int kind = 0; kind < 6; kind++) {
            set_logits(sizes[k], kind);
            for (int i = 0; i < (sizes[k] > 1000 ? 25 : 150); i++)
                check_settings(sizes[k], kind);
        }
    for (int i = 0; i < 20; i++) {
        check_nan(1000, 40);
        check_nan(1000, 0);
    }
    for (int k = 0; k < 3; k++) {
        static const int few_and_all[] = { 0, 40, 1 };
        check_infinite(1000, few_and_all[k], INFINITY, PF_OK);
        check_infinite(1000, few_and_all[k], -INFINITY, PF_OK);
        check_infinite(1000, few_and_all[k], NAN, PF_ENUMERIC);
    }
    model.cpu->ops->close(model.cpu);
    free(session.logits);
    free(session.tops);
    free(session.tokens);
    free(session.candidates);
    free(session.weights);
    free(session.changed);
    free(session.seen);
    return check_status();
}

/* Two policies over one estimate: how often a key is used when the walk comes to its layer.
 *
 * A visit is the walk coming to the key's layer. Its rate is the share of visits with a use, the last half-life of them
 * counting half: each visit multiplies a sum by a decay and a use adds 1 - decay; the sum over what it would be with a
 * use every time, 1 - decay^visits, is the rate. Tokens repeat the experts of the tokens just before, and some experts
 * are popular throughout: the mean of a fast and a slow rate sees both (one of either kind alone loses to LRU, or to
 * the other, on some traces). Every key starts with one visit and half a use, for want of knowledge. The multiplication
 * is done late, when the rate is looked at.
 *
 *     lfu       evicts the lowest rate
 *     nextuse   evicts the latest expected next use: a key of rate r waits 1/r - 1 passes beyond the coming visit of
 *               its layer, which is (its layer - the present layer) mod n_layers layers away. Where every expert is
 *               used in every pass (prompts, dense layers) this evicts what was used last, as Belady's rule does;
 *               where uses are rare the rate decides.
 *
 * Looking at every candidate would cost more than it saves in models of thousands of experts, so victim() looks at
 * SAMPLE of them, drawn by a generator with a fixed seed; with no more than SAMPLE candidates it is exact. */
#include <math.h>

#include "base/pf_mem.h"
#include "tiers/evict.h"

enum { SAMPLE = 64, N_POWERS = 256 };
enum { FAST, SLOW, N_SPEEDS };
static const float half_life[N_SPEEDS] = { 2, 40 };      /* visits */

struct history {
    float    sum[N_SPEEDS];                  /* after `visits` visits of its layer */
    uint32_t visits;
    int      layer, place;                   /* place in candidates, -1: none */
};

struct lfu {
    pf_evict  base;
    bool      by_distance;                   /* nextuse */
    int       n_layers, layer;               /* where the walk is */
    uint32_t  pass;                          /* whole walks before this one */
    int       n_candidates;
    int      *candidates;                    /* [n_keys] */
    struct history *keys;                    /* [n_keys] */
    uint64_t  rng;
    float     powers[N_SPEEDS][N_POWERS];    /* decay^i */
};

static struct lfu *lfu_of(pf_evict *p)
{
    return (struct lfu *)p;
}

static void lfu_close(pf_evict *p)
{
    struct lfu *l = lfu_of(p);
    pf_free(l->candidates);
    pf_free(l->keys);
    pf_free(l);
}

static pf_status open_with(pf_evict **out, const struct pf_evict_shape *shape, const struct pf_evict_ops *ops,
                           bool by_distance)
{
    *out = NULL;
    struct lfu *l = pf_alloc(PF_MEM_TIERS, sizeof *l);
    if (!l)
        PF_FAIL(PF_ENOMEM, "no memory for a replacement policy");
    l->base.ops = ops;
    l->by_distance = by_distance;
    l->n_layers = shape->n_layers;
    l->layer = -1;
    l->rng = 0x9e3779b97f4a7c15u;
    l->candidates = pf_alloc_array(PF_MEM_TIERS, (size_t)shape->n_keys, sizeof *l->candidates);
    l->keys = pf_alloc_array(PF_MEM_TIERS, (size_t)shape->n_keys, sizeof *l->keys);
    if (!l->candidates || !l->keys) {
        lfu_close(&l->base);
        PF_FAIL(PF_ENOMEM, "no memory for a replacement policy over %d parts", shape->n_keys);
    }
    for (int s = 0; s < N_SPEEDS; s++)
        for (int i = 0; i < N_POWERS; i++)
            l->powers[s][i] = exp2f(-(float)i / half_life[s]);
    for (int i = 0; i < shape->n_keys; i++) {
        l->keys[i] = (struct history){ .visits = 1, .layer = shape->layer_of[i], .place = -1 };
        for (int s = 0; s < N_SPEEDS; s++)
            l->keys[i].sum[s] = (1 - l->powers[s][1]) / 2;
    }
    *out = &l->base;
    return PF_OK;
}

static pf_status lfu_open(pf_evict **out, const struct pf_evict_shape *shape)
{
    return open_with(out, shape, &pf_evict_lfu, false);
}

static pf_status nextuse_open(pf_evict **out, const struct pf_evict_shape *shape)
{
    return open_with(out, shape, &pf_evict_nextuse, true);
}

static void lfu_enter(pf_evict *p, int layer)
{
    struct lfu *l = lfu_of(p);
    if (layer <= l->layer)
        l->pass++;
    l->layer = layer;
}

static uint32_t visits_of(const struct lfu *l, const struct history *h)
{
    return 1 + l->pass + (h->layer <= l->layer);
}

static float power(const struct lfu *l, int speed, uint32_t n)
{
    return l->powers[speed][n < N_POWERS ? n : N_POWERS - 1];
}

static void leave(struct lfu *l, int key)
{
    int place = l->keys[key].place, last = l->candidates[l->n_candidates - 1];
    if (place < 0)
        return;
    l->candidates[place] = last;
    l->keys[last].place = place;
    l->keys[key].place = -1;
    l->n_candidates--;
}

static void lfu_use(pf_evict *p, int key)
{
    struct lfu *l = lfu_of(p);
    struct history *h = &l->keys[key];
    uint32_t visits = visits_of(l, h);
    if (h->visits != visits) {           /* several uses in one visit count once */
        for (int s = 0; s < N_SPEEDS; s++)
            h->sum[s] = h->sum[s] * power(l, s, visits - h->visits) + 1 - l->powers[s][1];
        h->visits = visits;
    }
    leave(l, key);
}

static void lfu_release(pf_evict *p, int key)
{
    struct lfu *l = lfu_of(p);
    if (l->keys[key].place >= 0)
        return;
    l->keys[key].place = l->n_candidates;
    l->candidates[l->n_candidates++] = key;
}

/* Larger: rather to be evicted. */
static float staleness(const struct lfu *l, int key)
{
    const struct history *h = &l->keys[key];
    uint32_t visits = visits_of(l, h);
    float rate = 0;
    for (int s = 0; s < N_SPEEDS; s++)
        rate += h->sum[s] * power(l, s, visits - h->visits) / (1 - power(l, s, visits)) / N_SPEEDS;
    if (!l->by_distance)
        return -rate;
    int ahead = (h->layer - l->layer + l->n_layers) % l->n_layers;
    return (float)(ahead == 0 ? l->n_layers : ahead) + (float)l->n_layers * (1 / (rate + 1e-4f) - 1);
}

static int lfu_victim(pf_evict *p)
{
    struct lfu *l = lfu_of(p);
    int best = -1, n = l->n_candidates < SAMPLE ? l->n_candidates : SAMPLE;
    float worst = 0;
    for (int i = 0; i < n; i++) {
        int at = i;
        if (l->n_candidates > SAMPLE) {
            l->rng = l->rng * 6364136223846793005u + 1442695040888963407u;
            at = (int)((l->rng >> 33) % (uint64_t)l->n_candidates);
        }
        float s = staleness(l, l->candidates[at]);
        if (best < 0 || s > worst) {
            best = l->candidates[at];
            worst = s;
        }
    }
    if (best >= 0)
        leave(l, best);
    return best;
}

const struct pf_evict_ops pf_evict_lfu = {
    .name = "lfu", .open = lfu_open, .close = lfu_close, .enter = lfu_enter, .use = lfu_use, .release = lfu_release,
    .victim = lfu_victim,
};

const struct pf_evict_ops pf_evict_nextuse = {
    .name = "nextuse", .open = nextuse_open, .close = lfu_close, .enter = lfu_enter, .use = lfu_use,
    .release = lfu_release,
    .victim = lfu_victim,
};

/* See draw.h. Tokens go into bins by their weights, eight bins for each power of two:
 *
 *     bin       0 | 1 | 2 | .. | limit | .. | N_BINS - 1           weights fall from bin to bin
 *               all of them may be drawn | of bin `limit` the first n in order; nothing behind
 *
 * Only members of the bins in which a limit lies, and of the one that the draw hits, are brought into order, by a heap
 * as far as is asked for. Sums are double: of a bin by four that take the tokens in turn, then of bins in order. */
#include "moe/session/draw.h"

#include <string.h>

#include "base/pf_math.h"

enum { ONE = 0x3f800000, SHIFT = 20, N_BINS = ONE >> SHIFT, COPIES = 4, BLOCK = 32 };
/* What weighs 0 goes into bin N_BINS, which nobody looks at. */

struct bins {
    double sum[COPIES][N_BINS + 1];
    int    n[COPIES][N_BINS + 1];
};

/* Floats from 0 to 1 order as their bits do. */
static int bin_of(float weight)
{
    uint32_t bits = pf_float_bits(weight);
    return bits < ONE ? (int)((ONE - bits) >> SHIFT) : 0;
}

static void add(struct bins *b, int copy, float weight)
{
    int at = bin_of(weight);
    b->sum[copy][at] += (double)weight;
    b->n[copy][at]++;
}

static void fill(struct bins *b, const float *w, int n)
{
    int i = 0;
    memset(b, 0, sizeof *b);
    for (; i + COPIES <= n; i += COPIES)
        for (int copy = 0; copy < COPIES; copy++)
            add(b, copy, w[i + copy]);
    for (; i < n; i++)
        add(b, i % COPIES, w[i]);
    for (int at = 0; at < N_BINS; at++) {
        b->sum[0][at] = (b->sum[0][at] + b->sum[1][at]) + (b->sum[2][at] + b->sum[3][at]);
        b->n[0][at] = (b->n[0][at] + b->n[1][at]) + (b->n[2][at] + b->n[3][at]);
    }
}

/* ---- The members of a bin, in order ------------------------------------------------------------------------------ */

/* c[0 .. left) is a heap; behind it, from the end of n on, lie those that were taken, the first one last. */
struct members {
    struct pf_candidate *c;
    int bin, n, left;
};

static void sift_down(struct pf_candidate *heap, int n, int i)
{
    struct pf_candidate moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && pf_is_better(&heap[child + 1], &heap[child]))
            child++;
        if (!pf_is_better(&heap[child], &moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Whether any of a block's weights is in the bin, in a loop without branches. */
static bool has_any(const float *w, int bin)
{
    int32_t least = ONE - ((bin + 1) << SHIFT) + 1, most = bin == 0 ? INT32_MAX : ONE - (bin << SHIFT), found = 0;
    for (int i = 0; i < BLOCK; i++) {
        int32_t bits = (int32_t)pf_float_bits(w[i]);
        found |= (bits >= least) & (bits <= most);
    }
    return found;
}

static void gather(struct members *m, int bin, const float *logits, const float *w, int n)
{
    m->bin = bin;
    m->n = 0;
    for (int i = 0; i < n; i++) {
        if (i % BLOCK == 0 && i + BLOCK <= n && !has_any(w + i, bin))
            i += BLOCK - 1;
        else if (bin_of(w[i]) == bin)
            m->c[m->n++] = (struct pf_candidate){ logits[i], i };
    }
    m->left = m->n;
    for (int i = m->n / 2 - 1; i >= 0; i--)
        sift_down(m->c, m->n, i);
}

/* The id of member i < n in order. */
static int32_t member(struct members *m, int i)
{
    while (m->n - m->left <= i) {
        struct pf_candidate best = m->c[0];
        m->c[0] = m->c[--m->left];
        m->c[m->left] = best;
        sift_down(m->c, m->left, 0);
    }
    return m->c[m->n - 1 - i].id;
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

/* How far the order is kept: all in front of a bin, and of that bin so many. */
struct limit {
    int    bin, n;
    double sum;
};

/* The limit of the top_k best; it ends with the last bin that has tokens if top_k is all of them. */
static struct limit best_k(const struct bins *b, int top_k, struct members *m, const float *logits, const float *w,
                           int n)
{
    struct limit l = { 0, 0, 0 };
    int before = 0;
    for (int at = 0; at < N_BINS && before < top_k; at++) {
        bool whole = before + b->n[0][at] <= top_k;
        if (b->n[0][at] == 0)
            continue;
        l.bin = at;
        l.n = whole ? b->n[0][at] : top_k - before;
        before += l.n;
        if (whole) {
            l.sum += b->sum[0][at];
            continue;
        }
        gather(m, at, logits, w, n);
        for (int i = 0; i < l.n; i++)
            l.sum += (double)w[member(m, i)];
    }
    return l;
}

/* The limit within l that the share and the least weight set which o asks for. The best token is always kept. */
static struct limit kept_of(const struct pf_draw *o, const struct bins *b, struct limit l, struct members *m,
                            const float *logits, const float *w, int n)
{
    double share = (double)o->top_p * l.sum;
    int floor = bin_of(o->min_p);
    struct limit k = { 0, 0, 0 };
    while (k.bin < l.bin && k.bin < floor && k.sum + b->sum[0][k.bin] < share)
        k.sum += b->sum[0][k.bin++];
    int most = k.bin == l.bin ? l.n : b->n[0][k.bin];
    if (m->bin != k.bin)
        gather(m, k.bin, logits, w, n);
    for (; k.n < most; k.n++) {
        float weight = w[member(m, k.n)];
        bool first = k.bin == 0 && k.n == 0;
        if (!first && (k.sum >= share || weight < o->min_p))
            break;
        k.sum += (double)weight;
    }
    return k;
}

int32_t pf_draw_one(const struct pf_draw *o, const pf_backend *cpu, const float *logits, int n, double unit,
                    const struct pf_draw_room *room)
{
    struct bins b;
    struct members m = { .c = room->c, .bin = -1 };
    float *w = room->w;
    cpu->ops->weigh(cpu, logits, o->best, o->temp, n, w);
    fill(&b, w, n);
    struct limit l = best_k(&b, o->top_k, &m, logits, w, n), k = kept_of(o, &b, l, &m, logits, w, n);
    double target = unit * k.sum;
    int at = 0, last = -1;
    for (; at < k.bin && target >= b.sum[0][at]; at++) {
        target -= b.sum[0][at];
        last = b.n[0][at] > 0 ? at : last;
    }
    if (at == k.bin && k.n == 0)             /* rounding left a crumb: the last bin that is kept has it */
        at = last;
    int most = at == k.bin ? k.n : b.n[0][at];
    if (m.bin != at)
        gather(&m, at, logits, w, n);
    int32_t tok = -1;
    for (int i = 0; i < most && (i == 0 || target >= 0); i++) {
        tok = member(&m, i);
        target -= (double)w[tok];
    }
    return tok;
}

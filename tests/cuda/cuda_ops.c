/* Every operation of the seam on the GPU against the CPU backend, bit for bit: products of every weight type (one row,
 * a few rows, a prompt), experts, norms, activations, rotation, attention, routing, the delta rule.
 *
 * usage: cuda_ops [--brief] [NAME]      only operations and types whose name holds NAME; brief: no large matrices,
 *                              a quarter of the short rows, of experts all activations for one row alone, in turn for
 *                              several and where shapes are tried */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "backend/backend.h"
#include "kernels/check.h"
#include "backend/share.h"

enum { SKIP = 77, MAX_ROWS = 70, MOST_ROWS = 130, MAX_IN = 4096, N_EXPERT = 12, N_USED = 4, MOST_USED = N_EXPERT,
       MOST_EXPERTS = 4096, N_CTX = 4500, N_FAR = 66000 };

static pf_backend *units[2];                 /* the CPU, the GPU */
static struct check_rng rng = { 20261121 };
static const char *only;
static bool brief, shapes_alone;             /* whether experts are tried for their shapes, not for what is in them */

/* n floats on both units. */
struct pair {
    float *at[2];
    size_t n;
};

static void must(pf_status st)
{
    if (st == PF_OK)
        return;
    printf("failed: %s\n", pf_last_error());
    exit(1);
}

static struct pair pair_new(const void *from, size_t n)
{
    struct pair p = { .n = n };
    for (int u = 0; u < 2; u++) {
        void *at;
        must(units[u]->ops->buf_alloc(units[u], n * sizeof(float) + 64, false, &at));
        p.at[u] = at;
        if (from) {
            must(units[u]->ops->upload(units[u], at, from, n * sizeof(float)));
            must(units[u]->ops->finish(units[u]));
        }
    }
    return p;
}

static void pair_free(struct pair *p)
{
    for (int u = 0; u < 2; u++)
        units[u]->ops->buf_free(units[u], p->at[u], p->n * sizeof(float) + 64, false);
}

static float *floats(size_t n, float size)
{
    float *x = calloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = check_real(&rng, -6, 0) * size;
    return x;
}

static struct pair random_pair(size_t n, float size)
{
    float *x = floats(n, size);
    struct pair p = pair_new(x, n);
    free(x);
    return p;
}

static void *place(void *host, size_t bytes)
{
    must(units[1]->ops->place(units[1], host, bytes));
    return host;
}

static bool is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* The bits of both sides; where both are no numbers, units may differ in which. */
static void compare(const struct pair *p, bool any_nan, const char *what, const char *type, int rows)
{
    uint32_t *got[2];
    size_t n_bad = 0, first = 0;
    for (int u = 0; u < 2; u++) {
        got[u] = malloc(p->n * sizeof **got);
        must(units[u]->ops->download(units[u], got[u], p->at[u], p->n * sizeof **got));
        must(units[u]->ops->finish(units[u]));
    }
    for (size_t i = p->n; i-- > 0;)
        if (got[0][i] != got[1][i] && !(any_nan && is_nan(got[0][i]) && is_nan(got[1][i]))) {
            n_bad++;
            first = i;
        }
    float a, b;
    memcpy(&a, &got[0][first], sizeof a);
    memcpy(&b, &got[1][first], sizeof b);
    CHECK(n_bad == 0, "%s %s, %d rows: %zu of %zu differ, first %zu: CPU %.9g, GPU %.9g", what, type, rows, n_bad, p->n,
          first, (double)a, (double)b);
    free(got[0]);
    free(got[1]);
}

static void same(const struct pair *p, const char *what, const char *type, int rows)
{
    compare(p, false, what, type, rows);
}

#define BOTH(call)                                                                        \
    for (int u = 0; u < 2; u++) {                                                         \
        pf_backend *b = units[u];                                                         \
        must(b->ops->call);                                                               \
    }

static bool wanted(const char *name)
{
    return !only || strstr(name, only);
}

static uint8_t *weights(enum pf_qtype type, int n, size_t n_rows)
{
    size_t row_bytes = (size_t)pf_qtype_row_bytes(type, (uint64_t)n);
    uint8_t *w = malloc(n_rows * row_bytes);
    for (size_t r = 0; r < n_rows; r++)
        check_weights(&rng, type, CHECK_PLAIN, w + r * row_bytes, n);
    return place(w, n_rows * row_bytes);
}

/* Rows of a prompt. Float weights go row by row, however many they are. */
static int prompt_rows(enum pf_qtype type)
{
    return !brief ? MAX_ROWS : pf_qtype_info(type)->is_float ? 9 : 34;
}

static void products(enum pf_qtype type)
{
    static const int lengths[] = { 32, 256, 768, 2880, 4096 };
    const int batches[] = { 1, 3, 8, 13, prompt_rows(type) };
    const struct pf_qtype_info *info = pf_qtype_info(type);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = lengths[i], n_out = 77;
        if (n % info->block_len || (brief && n > 768))
            continue;
        float *bias = floats((size_t)n_out, 1);
        struct pf_weight w = { .data = weights(type, n, (size_t)n_out), .type = type, .n_in = n, .n_out = n_out,
                               .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n), .scale = 0.75f,
                               .bias = place(bias, (size_t)n_out * sizeof *bias) };
        struct pf_weight v = w;
        v.n_out = 33, v.scale = 1, v.bias = NULL;
        for (size_t k = 0; k < sizeof batches / sizeof *batches; k++) {
            int rows = batches[k];
            struct pair x = random_pair((size_t)rows * n, 1), y = random_pair((size_t)rows * n_out, 1),
                        z = random_pair((size_t)rows * 33, 1);
            struct pf_linear l[2][2] = { { { &w, y.at[0] }, { &v, z.at[0] } }, { { &w, y.at[1] }, { &v, z.at[1] } } };
            BOTH(linear(b, l[u], 2, x.at[u], rows));
            same(&y, "product", info->name, rows);
            same(&z, "product without bias", info->name, rows);
            pair_free(&x);
            pair_free(&y);
            pair_free(&z);
        }
        int32_t ids[3] = { 5, 0, 76 };
        struct pair at = pair_new(ids, 3), e = random_pair(3 * (size_t)n, 1);
        BOTH(embed(b, &w, (const int32_t *)(const void *)at.at[u], 3, e.at[u]));
        same(&e, "embedding", info->name, 3);
        pair_free(&at);
        pair_free(&e);
    }
}

/* One row times a matrix so large that blocks go from one group of its rows to another. */
static void large_products(enum pf_qtype type)
{
    static const int lengths[] = { 768, 2048, 2816, 4096 };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = lengths[i];
        uint64_t row_bytes = pf_qtype_row_bytes(type, (uint64_t)n);
        size_t n_out = (size_t)((brief ? 17 : 48) << 20) / row_bytes;
        float *bias = floats(n_out, 1);
        struct pf_weight w = { .data = weights(type, n, n_out), .type = type, .n_in = n, .n_out = (int)n_out,
                               .row_bytes = row_bytes, .scale = i % 2 ? 1 : 0.75f,
                               .bias = i % 2 ? NULL : place(bias, n_out * sizeof *bias) };
        struct pair x = random_pair((size_t)n, 1), y = random_pair(n_out, 1), sum = random_pair(n_out, 1);
        BOTH(linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, x.at[u], 1));
        BOTH(add(b, sum.at[u], 0.5f, y.at[u], (int64_t)n_out));
        same(&y, "product with a large matrix", pf_qtype_info(type)->name, n);
        same(&sum, "added to what a large matrix gave", pf_qtype_info(type)->name, n);
        pair_free(&x);
        pair_free(&y);
        pair_free(&sum);
    }
}

/* A few rows times a matrix so large that warps have whole tiles of its rows, an odd number of them and one that is not
 * full at the end. */
static void few_rows_of_large(enum pf_qtype type, int n, int n_out, int rows)
{
    struct pf_weight w = { .data = weights(type, n, (size_t)n_out), .type = type, .n_in = n, .n_out = n_out,
                           .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n), .scale = 0.75f };
    struct pair x = random_pair((size_t)(rows * n), 1), y = random_pair((size_t)rows * (size_t)n_out, 1);
    BOTH(linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, x.at[u], rows));
    same(&y, "few rows and a large matrix", pf_qtype_info(type)->name, rows);
    pair_free(&x);
    pair_free(&y);
}

static struct pf_expert_weight expert_weights(enum pf_qtype type, int n, int n_out)
{
    const uint8_t **data = malloc(N_EXPERT * sizeof *data);
    uint64_t row_bytes = pf_qtype_row_bytes(type, (uint64_t)n);
    const uint8_t *all = weights(type, n, (size_t)N_EXPERT * (size_t)n_out);
    for (int e = 0; e < N_EXPERT; e++)
        data[e] = all + (size_t)e * (size_t)n_out * row_bytes;
    float *bias = floats((size_t)N_EXPERT * (size_t)n_out, 1), *scale = floats(N_EXPERT, 1);
    return (struct pf_expert_weight){ .data = data, .type = type, .n_in = n, .n_out = n_out, .row_bytes = row_bytes,
                                      .scale = scale, .bias = bias };
}

/* Other experts for each pick of a row. */
static void pick_some(int32_t *picks, int rows, int n_used)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0, first = check_int(&rng, 0, N_EXPERT - 1); i < n_used; i++)
            picks[r * n_used + i] = (first + i * (1 + r % 2 * 4)) % N_EXPERT;
}

static void experts(enum pf_qtype type, enum pf_qtype up_type, enum pf_qtype down_type, int n, int n_ff, int n_used)
{
    const int batches[] = { 1, 3, 8, 16, prompt_rows(type) };
    struct pf_expert_weight gate = expert_weights(type, n, n_ff), up = expert_weights(up_type, n, n_ff),
                            down = expert_weights(down_type, n_ff, n);
    for (size_t k = 0; k < sizeof batches / sizeof *batches; k++) {
        int rows = batches[k], n_picks = rows * n_used;
        int32_t picks[MAX_ROWS * MOST_USED];
        pick_some(picks, rows, n_used);
        struct pair at = pair_new(picks, (size_t)n_picks), w = random_pair((size_t)n_picks, 1),
                    x = random_pair((size_t)rows * n, 1), y = random_pair((size_t)rows * n, 1);
        static const struct pf_act acts[] = { { .kind = PF_ACT_SWIGLU }, { .kind = PF_ACT_SWIGLU_OAI },
                                              { PF_ACT_SWIGLU, 0.5f } };
        for (int way = 0; way < 3; way++) {
            if (brief && (shapes_alone || k > 0) && (k + (size_t)n_ff / 256 + (size_t)type) % 3 != (size_t)way)
                continue;
            BOTH(experts(b, &(struct pf_experts_op){ .gate = &gate, .up = &up, .down = &down, .act = acts[way],
                                                     .weigh_input = way == 2, .n_expert = N_EXPERT, .n_used = n_used,
                                                     .rows = rows, .picks = (const int32_t *)(const void *)at.at[u],
                                                     .weights = w.at[u], .x = x.at[u], .y = y.at[u] }));
            same(&y, "experts", pf_qtype_info(type)->name, rows);
        }
        pair_free(&at);
        pair_free(&w);
        pair_free(&x);
        pair_free(&y);
    }
}

/* A row's shared expert, asked for in front of those that are picked: */
enum shared_way {
    ADDED_GATED, ADDED_TWICE, ADDED, LEFT,           /* what follows: twice is to the residual stream, too */
    OF_ANOTHER_ROW, OF_ANOTHER_ACT, INTERRUPTED, SECOND_ROW, ALONE, UP_ALONE,       /* what it is not computed with */
    N_SHARED_WAYS
};

/* joins: whether it is computed with the others, that is by no more kernels than they are. */
static void share_way(enum shared_way way, const struct pf_expert_weight (*w)[3], const struct pf_weight *shared,
                      int n_used, bool joins)
{
    enum { N_KERNELS = 3 };                  /* the row in whole numbers; gate and up; down */
    int n = (*w)[0].n_in, n_ff = (*w)[0].n_out, rows = way == SECOND_ROW ? 2 : 1;
    const char *name = pf_qtype_info(shared[2].type)->name;
    int32_t picks[2 * MOST_USED];
    pick_some(picks, rows, n_used);
    struct pair at = pair_new(picks, (size_t)(rows * n_used)), weight = random_pair((size_t)(rows * n_used), 1),
                x = random_pair(2 * (size_t)n, 1), gate = random_pair(2 * (size_t)n_ff, 1),
                up = random_pair(2 * (size_t)n_ff, 1), own = random_pair(2 * (size_t)n, 1),
                y = random_pair(2 * (size_t)n, 1), sum = random_pair(2 * (size_t)n, 1), logit = random_pair(2, 1);
    const struct pf_act act = { .kind = PF_ACT_SWIGLU }, other = { .kind = PF_ACT_GELU };
    uint64_t before = units[1]->n_launches;
    BOTH(linear(b, (struct pf_linear[]){ { &shared[0], gate.at[u] }, { &shared[1], up.at[u] } }, 2, x.at[u], rows));
    if (way != UP_ALONE) {
        BOTH(act(b, way == OF_ANOTHER_ACT ? other : act, gate.at[u], up.at[u], (int64_t)rows * n_ff, gate.at[u]));
        BOTH(linear(b, &(struct pf_linear){ &shared[2], own.at[u] }, 1, gate.at[u], rows));
    }
    if (way == INTERRUPTED)
        BOTH(add(b, sum.at[u], 1, own.at[u], n));
    if (way < ALONE)
        BOTH(experts(b, &(struct pf_experts_op){ .gate = &(*w)[0], .up = &(*w)[1], .down = &(*w)[2], .act = act,
                                                 .n_expert = N_EXPERT, .n_used = n_used, .rows = rows,
                                                 .picks = (const int32_t *)(const void *)at.at[u],
                                                 .weights = weight.at[u], .y = y.at[u],
                                                 .x = x.at[u] + (way == OF_ANOTHER_ROW ? n : 0) }));
    if (way == ADDED_GATED || way == ADDED_TWICE || way == SECOND_ROW)
        BOTH(add_gated(b, y.at[u], logit.at[u], own.at[u], n, rows));
    if (way == ADDED)
        BOTH(add(b, y.at[u], 0.5f, own.at[u], n));
    if (way == ADDED_TWICE)
        BOTH(add(b, sum.at[u], 1, y.at[u], n));
    BOTH(finish(b));
    int n_kernels = (int)(units[1]->n_launches - before);
    CHECK(!joins || n_kernels <= N_KERNELS, "%d kernels for experts with a shared one of %s", n_kernels, name);
    struct pair *pairs[] = { &gate, &up, &own, &y, &sum, &at, &weight, &x, &logit };
    static const char *const names[] = { "its activation", "its up", "a shared expert", "experts beside it", "a sum" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        same(pairs[i], names[i], name, (int)way);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void experts_with_shared(enum pf_qtype type, enum pf_qtype down_type, int n, int n_ff, int n_used)
{
    const struct pf_expert_weight w[3] = { expert_weights(type, n, n_ff), expert_weights(type, n, n_ff),
                                           expert_weights(down_type, n_ff, n) };
    struct pf_weight shared[3];
    for (int i = 0; i < 3; i++)
        shared[i] = (struct pf_weight){ .data = weights(w[i].type, w[i].n_in, (size_t)w[i].n_out), .type = w[i].type,
                                        .n_in = w[i].n_in, .n_out = w[i].n_out, .row_bytes = w[i].row_bytes,
                                        .scale = 1 };
    for (int way = 0; way < N_SHARED_WAYS; way++)
        share_way((enum shared_way)way, &w, shared, n_used, way <= LEFT);
    shared[1].scale = 0.5f;                  /* their kernels do not know it */
    share_way(ADDED_GATED, &w, shared, n_used, false);
}

/* Down products of rows that blocks have whole in shared memory, or would, were the picks fewer; a last block with
 * fewer rows. */
static void short_rows(void)
{
    static const enum pf_qtype types[] = { PF_Q4_K, PF_Q5_K, PF_Q6_K };
    static const int lengths[] = { 256, 512, 768 }, used[] = { 1, 8, 10, MOST_USED };
    shapes_alone = true;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t k = 0; k < sizeof used / sizeof *used; k++)
                if (!brief || (t + i + k) % 4 == 0)
                    experts(PF_F16, PF_F16, types[t], 102, lengths[i], used[k]);
    shapes_alone = false;
}

/* Who computes what in a layer that the host shares. Expert e goes the way way_of(e). */
static struct {
    struct pf_expert_weight w[3];
    const uint8_t *there[3], *here[3];       /* all experts' matrices on the GPU; in memory of the host that it sees */
    const float   *act, *y;                  /* activation and output of each pick, by the CPU */
    enum pf_pick_by ways[4];
    int            n_placed;                 /* picks that were read in place */
    const float   *next_x;                   /* not NULL: a host as slow as can be: it looks at layer 0 when it sees
                                                this row of layer 1 */
    const int32_t *picks;                    /* of layer 0 */
} layer;

static enum pf_pick_by way_of(int expert)
{
    return layer.ways[expert % 4];
}

static size_t matrix_at(int part, int expert)
{
    return (size_t)expert * (size_t)layer.w[part].n_out * layer.w[part].row_bytes;
}

static const uint8_t *matrix_there(int part, int expert)
{
    return layer.there[part] + matrix_at(part, expert);
}

static struct pf_handed handed(enum pf_pick_by by, int expert)
{
    const uint8_t *const *at = by == PF_BY_PLACE ? layer.here : layer.there;
    bool whole = by == PF_BY_COPY || by == PF_BY_PLACE;
    return (struct pf_handed){ by, 0, whole ? at[0] + matrix_at(0, expert) : NULL,
                               whole ? at[1] + matrix_at(1, expert) : NULL,
                               whole || by == PF_BY_DOWN ? at[2] + matrix_at(2, expert) : NULL };
}

/* Fills the parts of an answer that nobody may look at with NaNs. */
static void answer_part(float *to, const float *from, int n, bool given)
{
    for (int i = 0; i < n; i++)
        to[i] = given ? from[i] : NAN;
}

/* Whether the device has shown the next layer's row already. */
static bool is_ahead(const struct pf_offer *offer)
{
    const volatile float *x = offer->e->x;
    int n = offer->e->gate->n_in, i = 0;
    while (i < n && x[i] == layer.next_x[i])
        i++;
    return i == n;
}

static pf_status serve(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer)
{
    const struct pf_experts_op *e = offer->e;
    int n_ff = layer.w[0].n_out, n = layer.w[2].n_out, n_placed = 0;
    (void)ctx;
    for (int ms = 0; layer.next_x && offer->in_place && offer->il == 0 && !is_ahead(offer); ms++) {
        if (ms == 10000)
            PF_FAIL(PF_EDEVICE, "the device waits for the host");
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    CHECK(!layer.next_x || offer->il > 0 || memcmp(e->picks, layer.picks, (size_t)e->n_used * sizeof *e->picks) == 0,
          "the host sees other picks than those of the layer that it serves");
    for (int p = 0; p < e->rows * e->n_used; p++) {
        enum pf_pick_by by = way_of(e->picks[p]);
        by = by == PF_BY_PLACE && !offer->in_place ? PF_BY_HOST : by;
        answer->pick[p] = handed(by, e->picks[p]);
        n_placed += by == PF_BY_PLACE;
    }
    if (n_placed > 0)
        units[1]->ops->share->dealt(units[1], offer->il);
    layer.n_placed += n_placed;
    for (int p = 0; p < e->rows * e->n_used; p++) {
        enum pf_pick_by by = answer->pick[p].by;
        answer_part(answer->act + (size_t)p * n_ff, layer.act + (size_t)p * n_ff, n_ff, by == PF_BY_DOWN);
        answer_part(answer->y + (size_t)p * n, layer.y + (size_t)p * n, n, by == PF_BY_HOST);
    }
    return PF_OK;
}

static void served(void *ctx)
{
    (void)ctx;
}

/* A step of one layer: its sum is added to rows that go on, and the next step's x is another. */
static void share_step(int u, const struct pf_experts_op *e, float *x, const float *plus, float *sum, bool replays)
{
    pf_backend *b = units[u];
    const struct pf_repeat step = { .rows = e->rows, .n_parts = 1, .part = { { .sequence = e->y, .n_positions = 1 } } };
    int64_t n = (int64_t)e->rows * e->down->n_out;
    bool replayed, again;
    must(b->ops->begin(b, &step, &replayed));
    CHECK(replayed == (u == 1 && replays), "a step was replayed: %d", replayed);
    if (!replayed) {
        if (u == 1)
            must(b->ops->share->offer(b, 0, e));
        must(u == 0 ? b->ops->experts(b, e) : b->ops->share->experts(b, 0, e));
        must(b->ops->add(b, e->y, 1, plus, n));
        must(b->ops->add(b, sum, 0.5f, e->y, n));
        must(b->ops->add(b, x, 1, plus, n));
    }
    must(b->ops->end(b, &again));
    must(b->ops->finish(b));
}

/* A layer's picks: run plainly, captured and replayed. */
static void share_rows(int rows, int n_used, bool weigh_input)
{
    int n = layer.w[2].n_out, n_ff = layer.w[0].n_out, n_picks = rows * n_used;
    int32_t picks[PF_SHARE_ROWS * MOST_USED];
    pick_some(picks, rows, n_used);
    float *act = floats((size_t)n_picks * n_ff, 1), *y = floats((size_t)n_picks * n, 1);
    struct pair at = pair_new(picks, (size_t)n_picks), w = random_pair((size_t)n_picks, 1),
                x = random_pair((size_t)rows * n, 1), out = random_pair((size_t)rows * n, 1),
                plus = random_pair((size_t)rows * n, 1), sum = random_pair((size_t)rows * n, 1);
    layer.act = act;
    layer.y = y;
    for (int i = 0; i < 6; i++) {
        int u = i % 2;
        struct pf_experts_op e = { .gate = &layer.w[0], .up = &layer.w[1], .down = &layer.w[2],
                                   .act = { .kind = PF_ACT_SWIGLU }, .weigh_input = weigh_input, .n_expert = N_EXPERT,
                                   .n_used = n_used, .rows = rows, .picks = (const int32_t *)(const void *)at.at[u],
                                   .weights = w.at[u], .x = x.at[u], .y = out.at[u], .pick_act = u ? NULL : act,
                                   .pick_y = u ? NULL : y };
        share_step(u, &e, x.at[u], plus.at[u], sum.at[u], i >= 4);
        if (u == 0)
            continue;
        same(&out, "shared experts", pf_qtype_info(layer.w[2].type)->name, rows);
        same(&sum, "added to what shared experts gave", pf_qtype_info(layer.w[2].type)->name, rows);
    }
    struct pair *pairs[] = { &at, &w, &x, &out, &plus, &sum };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
    free(act);
    free(y);
}

/* Layers of which the GPU holds some experts, or all, or none; the others come in every way. */
static void shared_experts(enum pf_qtype type, enum pf_qtype up_type, enum pf_qtype down_type, int n, int n_ff)
{
    static const enum pf_pick_by ways[][4] = {
        { PF_BY_HOST, PF_BY_DEVICE, PF_BY_DOWN, PF_BY_COPY },
        { PF_BY_DEVICE, PF_BY_DEVICE, PF_BY_DEVICE, PF_BY_DEVICE },
        { PF_BY_HOST, PF_BY_HOST, PF_BY_HOST, PF_BY_HOST },     { PF_BY_COPY, PF_BY_COPY, PF_BY_COPY, PF_BY_COPY },
        { PF_BY_DEVICE, PF_BY_DOWN, PF_BY_DEVICE, PF_BY_DOWN }, { PF_BY_PLACE, PF_BY_PLACE, PF_BY_PLACE, PF_BY_PLACE },
        { PF_BY_PLACE, PF_BY_DEVICE, PF_BY_HOST, PF_BY_COPY },  { PF_BY_PLACE, PF_BY_DOWN, PF_BY_COPY, PF_BY_PLACE },
    };
    const struct pf_share_ops *share = units[1]->ops->share;
    struct pair there[3];
    void *here[3];
    layer.n_placed = 0;
    layer.w[0] = expert_weights(type, n, n_ff);
    layer.w[1] = expert_weights(up_type, n, n_ff);
    layer.w[2] = expert_weights(down_type, n_ff, n);
    for (int i = 0; i < 3; i++) {
        size_t bytes = matrix_at(i, N_EXPERT);
        there[i] = pair_new(layer.w[i].data[0], bytes / sizeof(float));
        layer.there[i] = (const uint8_t *)there[i].at[1];
        must(units[1]->ops->buf_alloc(units[1], bytes + 64, true, &here[i]));
        layer.here[i] = memcpy(here[i], layer.w[i].data[0], bytes);
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        memcpy(layer.ways, ways[i], sizeof layer.ways);
        for (int e = 0; e < N_EXPERT; e++) {
            bool held = way_of(e) == PF_BY_DEVICE;
            must(share->hold(units[1], 0, e, held ? matrix_there(0, e) : NULL, held ? matrix_there(1, e) : NULL,
                             held ? matrix_there(2, e) : NULL));
        }
        share_rows(1, 10, false);
        share_rows(1, N_USED, true);
        share_rows(3, 10, true);
        share_rows(PF_SHARE_ROWS, N_USED, false);
    }
    CHECK(layer.n_placed > 0, "no expert was read in place");
    for (int i = 0; i < 3; i++) {
        pair_free(&there[i]);
        units[1]->ops->buf_free(units[1], here[i], matrix_at(i, N_EXPERT) + 64, true);
    }
}

/* Two layers, one behind the other. The GPU holds all experts of the first. */
struct two {
    struct pair w, at[2], x[2], y[2], there[3];
    struct pf_experts_op e[2][2];            /* by unit, layer */
};

static void run_two(struct two *t, int u)
{
    pf_backend *b = units[u];
    const struct pf_repeat step = { .rows = 1, .n_parts = 1, .part = { { .sequence = t, .n_positions = 1 } } };
    bool replayed, again;
    must(b->ops->begin(b, &step, &replayed));
    for (int il = 0; il < 2 && !replayed; il++) {
        if (u == 1)
            must(b->ops->share->offer(b, il, &t->e[u][il]));
        must(u == 0 ? b->ops->experts(b, &t->e[u][il]) : b->ops->share->experts(b, il, &t->e[u][il]));
    }
    must(b->ops->end(b, &again));
    must(b->ops->finish(b));
}

static void hold_some(int il)
{
    const struct pf_share_ops *share = units[1]->ops->share;
    for (int e = 0; e < N_EXPERT; e++) {
        bool held = il == 0 || way_of(e) == PF_BY_DEVICE;
        must(share->hold(units[1], il, e, held ? matrix_there(0, e) : NULL, held ? matrix_there(1, e) : NULL,
                         held ? matrix_there(2, e) : NULL));
    }
}

static void two_layers(struct two *t, int n, float *act, float *pick_y)
{
    t->w = random_pair(N_USED, 1);
    for (int il = 0; il < 2; il++) {
        int32_t picks[N_USED];
        for (int i = 0; i < N_USED; i++)
            picks[i] = (3 * il + i) % N_EXPERT;
        hold_some(il);
        t->at[il] = pair_new(picks, N_USED);
        t->x[il] = random_pair((size_t)n, 1);
        t->y[il] = random_pair((size_t)n, 1);
        for (int u = 0; u < 2; u++)
            t->e[u][il] = (struct pf_experts_op){
                .gate = &layer.w[0], .up = &layer.w[1], .down = &layer.w[2], .act = { .kind = PF_ACT_SWIGLU },
                .n_expert = N_EXPERT, .n_used = N_USED, .rows = 1, .weights = t->w.at[u], .x = t->x[il].at[u],
                .picks = (const int32_t *)(const void *)t->at[il].at[u], .y = t->y[il].at[u],
                .pick_act = u == 0 && il == 1 ? act : NULL, .pick_y = u == 0 && il == 1 ? pick_y : NULL };
    }
    layer.act = act;
    layer.y = pick_y;
    layer.next_x = t->x[1].at[0];
    layer.picks = (const int32_t *)(const void *)t->at[0].at[0];
}

static void free_two(struct two *t)
{
    for (int i = 0; i < 2; i++) {
        pair_free(&t->at[i]);
        pair_free(&t->x[i]);
        pair_free(&t->y[i]);
    }
    for (int i = 0; i < 3; i++)
        pair_free(&t->there[i]);
    pair_free(&t->w);
}

/* Where the GPU holds all that was picked it does not wait for the host, run plainly, captured or replayed. */
static void shared_ahead(void)
{
    enum { N = 256, N_FF = 96 };
    static const enum pf_pick_by ways[4] = { PF_BY_HOST, PF_BY_DEVICE, PF_BY_DOWN, PF_BY_COPY };
    static float act[N_USED * N_FF], pick_y[N_USED * N];
    struct two t;
    memcpy(layer.ways, ways, sizeof ways);
    for (int i = 0; i < 3; i++) {
        layer.w[i] = i < 2 ? expert_weights(PF_Q8_0, N, N_FF) : expert_weights(PF_Q8_0, N_FF, N);
        t.there[i] = pair_new(layer.w[i].data[0], matrix_at(i, N_EXPERT) / sizeof(float));
        layer.there[i] = (const uint8_t *)t.there[i].at[1];
    }
    two_layers(&t, N, act, pick_y);
    run_two(&t, 0);
    for (int times = 0; times < 4; times++) {
        run_two(&t, 1);
        same(&t.y[0], "a layer that the GPU holds", "Q8_0", 1);
        same(&t.y[1], "the layer after it", "Q8_0", 1);
    }
    layer.next_x = NULL;
    free_two(&t);
}

static void share(void)
{
    struct pf_handoff_stats stats;
    const struct pf_share_sizes sizes = { .n_layer = 2, .n_expert = N_EXPERT, .n_used = MOST_USED, .n_embd = 512,
                                          .n_ff = 768 };
    must(units[1]->ops->share->open(units[1], &sizes, &(struct pf_share_host){ serve, served, NULL, NULL }));
    shared_experts(PF_Q4_K, PF_Q4_K, PF_Q6_K, 512, 512);
    shared_experts(PF_Q4_K, PF_Q4_K, PF_Q4_K, 512, 768);
    shared_experts(PF_Q8_0, PF_Q8_0, PF_MXFP4, 256, 96);
    shared_experts(PF_Q8_0, PF_Q8_0, PF_F16, 256, 96);
    shared_experts(PF_Q8_0, PF_Q4_0, PF_Q8_0, 256, 96);
    shared_ahead();
    units[1]->ops->share->handoffs(units[1], &stats);
    CHECK(stats.n > 0 && stats.waited_ns > 0, "%d hand-offs in %d ns", (int)stats.n, (int)stats.waited_ns);
}

static void row_operations(void)
{
    static const int lengths[] = { 16, 100, 128, 2048, 2880, 4096, 4100 };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = lengths[i], rows = 5;
        float *weight = floats((size_t)n, 1);
        place(weight, (size_t)n * sizeof *weight);
        struct pair x = random_pair((size_t)rows * n, 3), d = random_pair((size_t)rows * n, 3),
                    y = random_pair((size_t)rows * n, 1), g = random_pair((size_t)rows, 2);
        if (n <= MAX_IN) {
            BOTH(rms_norm(b, x.at[u], weight, 1e-5f, n, rows, y.at[u]));
            same(&y, "norm", "", n);
            BOTH(add(b, x.at[u], 0.7f, d.at[u], (int64_t)rows * n));
            BOTH(rms_norm(b, x.at[u], NULL, 1e-6f, n, rows, y.at[u]));
            same(&y, "norm after an addition", "", n);
            same(&x, "added", "", n);
        }
        static const struct pf_act acts[] = { { .kind = PF_ACT_SWIGLU }, { PF_ACT_SWIGLU, 0.5f },
                                              { .kind = PF_ACT_SWIGLU_OAI }, { .kind = PF_ACT_SIGMOID },
                                              { .kind = PF_ACT_RELU }, { .kind = PF_ACT_PRODUCT },
                                              { .kind = PF_ACT_SWIGLU_CAPPED }, { PF_ACT_SWIGLU_CAPPED, 0.4f } };
        for (int k = 0; k < (int)(sizeof acts / sizeof *acts); k++) {
            BOTH(act(b, acts[k], x.at[u], d.at[u], (int64_t)rows * n, y.at[u]));
            same(&y, "activation", "", k);
        }
        BOTH(add_gated(b, x.at[u], g.at[u], d.at[u], n, rows));
        same(&x, "gated addition", "", n);
        BOTH(rms_norm(b, x.at[u], weight, 1e-5f, n, rows, y.at[u]));
        BOTH(add_bias(b, y.at[u], weight, n, rows));
        same(&y, "norm with a bias", "", n);
        BOTH(centre(b, x.at[u], n, rows, y.at[u]));
        BOTH(rms_norm(b, y.at[u], weight, 1e-5f, n, rows, d.at[u]));
        same(&d, "norm of rows without their mean", "", n);
        BOTH(centre(b, y.at[u], n, rows, y.at[u]));
        same(&y, "rows without their mean, in place", "", n);
        BOTH(gate(b, x.at[u], g.at[u], n, rows));
        same(&x, "gated rows", "", n);
        pair_free(&x);
        pair_free(&d);
        pair_free(&y);
        pair_free(&g);
    }
}

/* A norm, a product and an addition of few rows, which may become one kernel: where the addition goes to other rows, to
 * what was normed, and to what was multiplied, which blocks of that kernel still read. */
static void few_rows(enum pf_qtype type, int n, int rows)
{
    size_t all = (size_t)(rows * n);
    const char *name = pf_qtype_info(type)->name;
    float *weight = floats((size_t)n, 1);
    place(weight, (size_t)n * sizeof *weight);
    struct pf_weight w = { .data = weights(type, n, (size_t)n), .type = type, .n_in = n, .n_out = n, .scale = 1,
                           .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n) };
    struct pair x = random_pair(all, 3), h = random_pair(all, 1), y = random_pair(all, 1),
                sum = random_pair(all, 1);
    struct pf_linear l[2] = { { &w, y.at[0] }, { &w, y.at[1] } };
    struct { const struct pair *to; const char *what; } additions[] = {
        { &sum, "added" }, { &x, "added to what was normed" }, { &h, "added to what was multiplied" }
    };
    for (int i = 0; i < 3; i++) {
        BOTH(rms_norm(b, x.at[u], weight, 1e-5f, n, rows, h.at[u]));
        BOTH(linear(b, &l[u], 1, h.at[u], rows));
        BOTH(add(b, additions[i].to->at[u], 0.5f, y.at[u], (int64_t)all));
        same(&y, "product of few rows", name, rows);
        same(&h, "norm of few rows", name, rows);
        same(additions[i].to, additions[i].what, name, rows);
    }
    BOTH(rms_norm(b, x.at[u], NULL, 1e-5f, n, rows, h.at[u]));
    BOTH(linear(b, &l[u], 1, h.at[u], rows > 1 ? rows - 1 : 1));
    same(&y, "product of fewer rows than were normed", name, rows);
    same(&h, "more rows than were multiplied", name, rows);
    pair_free(&x);
    pair_free(&h);
    pair_free(&y);
    pair_free(&sum);
}

/* One long row, normed, and three matrices, of which one has a bias: rows of blocks do not end where matrices do. */
static void normed_parts(enum pf_qtype type, int n)
{
    static const int outs[3] = { 1001, 77, 333 };
    float *weight = floats((size_t)n, 1), *bias = floats(77, 1);
    place(weight, (size_t)n * sizeof *weight);
    struct pf_weight w[3];
    struct pf_linear l[2][3];
    struct pair x = random_pair((size_t)n, 3), h = random_pair((size_t)n, 1), y[3];
    for (int i = 0; i < 3; i++) {
        w[i] = (struct pf_weight){ .data = weights(type, n, (size_t)outs[i]), .type = type, .n_in = n,
                                   .n_out = outs[i], .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n), .scale = 1,
                                   .bias = i == 1 ? place(bias, 77 * sizeof *bias) : NULL };
        y[i] = random_pair((size_t)outs[i], 1);
        for (int u = 0; u < 2; u++)
            l[u][i] = (struct pf_linear){ &w[i], y[i].at[u] };
    }
    BOTH(rms_norm(b, x.at[u], weight, 1e-5f, n, 1, h.at[u]));
    BOTH(linear(b, l[u], 3, h.at[u], 1));
    same(&h, "norm of a long row", pf_qtype_info(type)->name, n);
    for (int i = 0; i < 3; i++) {
        same(&y[i], "product of a long row", pf_qtype_info(type)->name, i);
        pair_free(&y[i]);
    }
    pair_free(&x);
    pair_free(&h);
}

/* Norms and additions between two blocks, each of `steps` in order, then a product of the last norm's rows. */
static void some_between(const struct pf_weight *m, const float *w, int rows, unsigned steps)
{
    int n = m->n_in;
    size_t all = (size_t)(rows * n);
    struct pair x = random_pair(all, 3), y = random_pair(all, 3), plus = random_pair(all, 2),
                h = random_pair(all, 1), out = random_pair(all, 1);
    struct pair *pairs[] = { &x, &y, &plus, &h, &out };
    const char *names[] = { "x", "y", "plus", "h", "product" };
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        const struct pf_copy copy = { x.at[u], y.at[u], n, 1, 0, 0, n, n };
        if (steps & 1)
            must(b->ops->rms_norm(b, y.at[u], w, 1e-6f, n, rows, y.at[u]));
        if (steps & 2)
            must(b->ops->add(b, y.at[u], 0.5f, plus.at[u], (int64_t)all));
        if (steps & 4)
            must(b->ops->rms_norm(b, y.at[u], NULL, 1e-5f, n, rows, y.at[u]));
        if (steps & 8)
            must(b->ops->add(b, x.at[u], 0.7f, y.at[u], (int64_t)all));
        if (steps & 16)
            must(b->ops->copy(b, &copy, 1, rows));
        if (steps & 32)
            must(b->ops->add(b, x.at[u], -0.2f, y.at[u], (int64_t)all));
        if (steps & 64)
            must(b->ops->rms_norm(b, x.at[u], w + n, 1e-6f, n, rows, h.at[u]));
        if (n <= MAX_IN)
            must(b->ops->linear(b, &(struct pf_linear){ m, out.at[u] }, 1, h.at[u], rows));
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs - (n > MAX_IN); i++)
        same(pairs[i], "between blocks", names[i], (int)steps);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void between(void)
{
    static const struct { int n, rows; } sizes[] = { { 96, 1 }, { 64, 3 }, { 2816, 1 }, { 4096, 2 }, { 4128, 1 },
                                                     { 64, 17 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int n = sizes[i].n;
        bool all = i < 2 || !brief;
        float *w = place(floats(2 * (size_t)n, 1), 2 * (size_t)n * sizeof *w);
        struct pf_weight m = { .data = weights(PF_Q8_0, n, 8), .type = PF_Q8_0, .n_in = n, .n_out = 8, .scale = 1,
                               .row_bytes = pf_qtype_row_bytes(PF_Q8_0, (uint64_t)n) };
        for (unsigned steps = all ? 0 : 0x4f; steps < 128; steps += all ? 1 : 16)
            some_between(&m, w, sizes[i].rows, steps);
    }
}

/* Rows that are multiplied before and after an activation is. */
static void activated_between(enum pf_qtype type, int n, int rows)
{
    struct pf_weight w = { .data = weights(type, n, (size_t)n), .type = type, .n_in = n, .n_out = n, .scale = 1,
                           .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n) };
    struct pair x = random_pair((size_t)(rows * n), 2), h = random_pair((size_t)(rows * n), 1),
                up = random_pair((size_t)(rows * n), 1), y = random_pair((size_t)(rows * n), 1),
                z = random_pair((size_t)(rows * n), 1);
    BOTH(rms_norm(b, x.at[u], NULL, 1e-5f, n, rows, h.at[u]));
    BOTH(linear(b, &(struct pf_linear){ &w, up.at[u] }, 1, h.at[u], rows));
    BOTH(act(b, (struct pf_act){ .kind = PF_ACT_SWIGLU }, up.at[u], x.at[u], (int64_t)rows * n, up.at[u]));
    BOTH(linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, up.at[u], rows));
    BOTH(linear(b, &(struct pf_linear){ &w, z.at[u] }, 1, h.at[u], rows));
    same(&y, "product of an activation", pf_qtype_info(type)->name, rows);
    same(&z, "product after that of an activation", pf_qtype_info(type)->name, rows);
    struct pair *pairs[] = { &x, &h, &up, &y, &z };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

/* An activation, in place as it is used, and the product of what it gives; and one that nothing follows. */
static void activated(enum pf_qtype type, int n, int rows)
{
    const char *name = pf_qtype_info(type)->name;
    struct pf_weight w = { .data = weights(type, n, 40), .type = type, .n_in = n, .n_out = 40, .scale = 1,
                           .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n) };
    struct pair gate = random_pair((size_t)(rows * n), 2), up = random_pair((size_t)(rows * n), 2),
                y = random_pair((size_t)(rows * 40), 1);
    BOTH(act(b, (struct pf_act){ .kind = PF_ACT_SWIGLU }, gate.at[u], up.at[u], (int64_t)rows * n, gate.at[u]));
    BOTH(linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, gate.at[u], rows));
    same(&gate, "activation of a product", name, rows);
    same(&y, "product of an activation", name, rows);
    BOTH(act(b, (struct pf_act){ .kind = PF_ACT_SIGMOID }, gate.at[u], up.at[u], (int64_t)rows * n, up.at[u]));
    BOTH(linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, gate.at[u], rows));
    same(&up, "activation", name, rows);
    same(&y, "product of something else", name, rows);
    pair_free(&gate);
    pair_free(&up);
    pair_free(&y);
}

static void rotations(void)
{
    for (int way = 0; way < 4; way++) {
        int rows = 3, hd = way < 2 ? 64 : 80, n_pairs = way < 2 ? 32 : 20;
        struct pair x = random_pair((size_t)rows * 8 * (size_t)hd, 1),
                    y = random_pair((size_t)rows * 2 * (size_t)hd, 1),
                    cs = random_pair((size_t)rows * 2 * (size_t)n_pairs, 1);
        BOTH(rope(b, (struct pf_rope_op[]){ { x.at[u], cs.at[u], 8, hd, n_pairs, way % 2 },
                                            { y.at[u], cs.at[u], 2, hd, n_pairs, way % 2 } }, 2, rows));
        same(&x, "rotation", "", way);
        same(&y, "rotation", "", way);
        pair_free(&x);
        pair_free(&y);
        pair_free(&cs);
    }
}

struct attention_case {
    int hd_k, hd_v, n_head, n_kv_head, window;
    bool chunked, sinks, row_scale;
    int  ring;                            /* chunks of the ring; 0: all positions have a place */
};

/* n vectors of n_floats. bad: every 50th has an element that is infinite, too large or not a number. */
static struct pair vectors(size_t n, size_t n_floats, bool bad)
{
    static const float wrong[] = { INFINITY, 0x1p41f, NAN, -INFINITY };
    float *x = floats(n * n_floats, 2);
    for (size_t i = 20; bad && i < n; i += 50)
        x[i * n_floats + i % n_floats] = wrong[i / 50 % 4];
    struct pair p = pair_new(x, n * n_floats);
    free(x);
    return p;
}

/* bad: some queries, keys and values are out of range. latent: values are the beginnings of keys. */
static void attend(const struct attention_case *c, enum pf_kv_type type, int rows, int last, bool bad, bool latent)
{
    static const char *const names[] = { [PF_KV_I16] = "I16", [PF_KV_F16] = "F16", [PF_KV_F32] = "F32",
                                         [PF_KV_Q8_0] = "Q8_0" };
    enum { CHUNK = PF_KV_CHUNK_POSITIONS };
    int n_chunks = c->ring ? c->ring : last / CHUNK + 1, n_stored = last + 1;
    size_t positions = (size_t)n_chunks * CHUNK * (size_t)c->n_kv_head;
    size_t key_bytes = latent ? pf_kv_latent_bytes(type, c->hd_k) : pf_kv_key_bytes(type, c->hd_k);
    struct pair k = pair_new(NULL, positions * key_bytes / 4),
                v = pair_new(NULL, latent ? 1 : positions * pf_kv_value_bytes(type, c->hd_v) / 4);
    float *sinks = place(floats((size_t)c->n_head, 1), (size_t)c->n_head * sizeof(float));
    int32_t *pos = malloc((size_t)n_stored * sizeof *pos);
    for (int i = 0; i < n_stored; i++)
        pos[i] = i;
    struct pair all = pair_new(pos, (size_t)n_stored), of = pair_new(pos + n_stored - rows, (size_t)rows),
                nk = vectors((size_t)(n_stored * c->n_kv_head), (size_t)c->hd_k, bad),
                nv = vectors((size_t)(n_stored * c->n_kv_head), (size_t)c->hd_v, bad),
                q = vectors((size_t)(rows * c->n_head), (size_t)c->hd_k, bad), s = random_pair((size_t)rows, 1),
                out = random_pair((size_t)rows * (size_t)(c->n_head * c->hd_v), 1);
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        struct pf_kv_view kv = { .k = k.at[u], .v = latent ? NULL : v.at[u], .type = type,
                                 .n_kv_head = c->n_kv_head, .hd_k = c->hd_k, .hd_v = c->hd_v, .n_chunks = n_chunks };
        for (int p = 0; p < n_stored; p += CHUNK)         /* rows of one call must not share a place */
            must(b->ops->kv_store(b, &kv, nk.at[u] + (size_t)p * (size_t)(c->n_kv_head * c->hd_k),
                                  latent ? NULL : nv.at[u] + (size_t)p * (size_t)(c->n_kv_head * c->hd_v),
                                  (const int32_t *)(const void *)all.at[u] + p,
                                  n_stored - p < CHUNK ? n_stored - p : CHUNK));
        must(b->ops->attention(b, &(struct pf_attention_op){ .q = q.at[u], .out = out.at[u], .kv = &kv,
                               .pos = (const int32_t *)(const void *)of.at[u], .n_positions = n_stored, .rows = rows,
                               .n_head = c->n_head, .window = c->window, .chunked = c->chunked, .scale = 0.125f,
                               .sinks = c->sinks ? sinks : NULL, .row_scale = c->row_scale ? s.at[u] : NULL }));
        must(b->ops->finish(b));
    }
    compare(&k, bad, "keys", names[type], rows);
    compare(&v, bad, "values", names[type], rows);
    compare(&out, bad, "attention", names[type], rows * 10000 + c->hd_k);
    struct pair *pairs[] = { &k, &v, &all, &of, &nk, &nv, &q, &s, &out };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
    free(pos);
}

static void attention(const struct attention_case *c, enum pf_kv_type type, int rows, int last)
{
    attend(c, type, rows, last, false, false);
}

static void attentions(void)
{
    static const struct attention_case cases[] = {
        { 64, 64, 16, 2, 0, false, true, false, 0 },   { 128, 128, 8, 2, 0, false, false, true, 0 },
        { 64, 64, 8, 8, 128, false, true, false, 0 },  { 256, 256, 4, 1, 0, false, false, false, 0 },
        { 16, 16, 8, 4, 300, true, false, false, 0 },  { 40, 24, 12, 1, 0, false, false, false, 0 },
        { 576, 512, 4, 1, 0, false, false, false, 0 }, { 20, 20, 4, 2, 0, false, false, false, 0 },
        { 64, 64, 8, 8, 128, false, true, false, 1 },  { 64, 64, 16, 2, 200, false, true, false, 1 },
        { 128, 128, 8, 2, 600, false, false, true, 3 }, { 16, 16, 8, 4, 300, true, false, false, 2 },
        { 288, 288, 4, 1, 300, false, false, false, 2 }, { 96, 32, 6, 2, 0, false, true, true, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (enum pf_kv_type type = PF_KV_F32; type <= PF_KV_F16; type++) {
            if (type == PF_KV_Q8_0 && (cases[i].hd_k % 32 != 0 || cases[i].hd_v % 32 != 0))
                continue;
            attention(&cases[i], type, 1, 0);
            attention(&cases[i], type, 1, 700);
            attention(&cases[i], type, 3, 256);
            attention(&cases[i], type, 40, 1030);
        }
}

/* Attention to chosen runs of a cached latent's positions. */
static void chosen_latents(enum pf_kv_type type, int rows, int max_chosen, int run)
{
    enum { HD = 576, HD_V = 512, N_HEAD = 20, N_KEYS = 3 * PF_KV_CHUNK_POSITIONS, LAST = N_KEYS - 10 };
    int32_t at[N_KEYS], pos[MAX_ROWS], *chosen = malloc((size_t)(rows * max_chosen) * sizeof *chosen);
    for (int i = 0; i < N_KEYS; i++)
        at[i] = i;
    for (int r = 0; r < rows; r++) {
        pos[r] = LAST - 7 * (rows - 1 - r);
        for (int i = 0, n = (pos[r] + 1) / run; i < max_chosen; i++)
            chosen[r * max_chosen + i] = n <= max_chosen ? i : (i + 1) * n / max_chosen - 1;
    }
    struct pair k = pair_new(NULL, (size_t)N_KEYS * pf_kv_row_bytes(type, HD) / 4), all = pair_new(at, N_KEYS),
                of = pair_new(pos, (size_t)rows), some = pair_new(chosen, (size_t)(rows * max_chosen)),
                new_k = random_pair((size_t)N_KEYS * HD, 2), q = random_pair((size_t)rows * N_HEAD * HD, 2),
                out = random_pair((size_t)rows * N_HEAD * HD_V, 1);
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        const struct pf_kv_view kv = { .k = k.at[u], .type = type, .n_kv_head = 1, .hd_k = HD, .hd_v = HD_V,
                                       .n_chunks = N_KEYS / PF_KV_CHUNK_POSITIONS };
        must(b->ops->kv_store(b, &kv, new_k.at[u], NULL, (const int32_t *)(const void *)all.at[u], N_KEYS));
        must(b->ops->attention(b, &(struct pf_attention_op){
            .q = q.at[u], .out = out.at[u], .kv = &kv, .pos = (const int32_t *)(const void *)of.at[u],
            .n_positions = LAST + 1, .rows = rows, .n_head = N_HEAD, .scale = 0.0625f,
            .chosen = (const int32_t *)(const void *)some.at[u], .max_chosen = max_chosen, .n_lists = 1, .run = run }));
        must(b->ops->finish(b));
    }
    same(&out, "attention to a latent's chosen positions", "", rows * 10000 + max_chosen);
    struct pair *pairs[] = { &k, &all, &of, &some, &new_k, &q, &out };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
    free(chosen);
}

/* Attention to a cached latent. */
static void latents(void)
{
    static const struct attention_case cases[] = {
        { 576, 512, 16, 1, .window = 0 }, { 576, 512, 20, 1, .row_scale = true },
        { 320, 256, 5, 1, 300, .sinks = true }, { 320, 256, 32, 1, 300, .ring = 3 }, { 72, 40, 6, 1, .window = 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (enum pf_kv_type type = PF_KV_F32; type <= PF_KV_F16; type++) {
            if (type == PF_KV_Q8_0 && cases[i].hd_k % 32 != 0)
                continue;
            attend(&cases[i], type, 1, 0, false, true);
            attend(&cases[i], type, 1, 700, false, true);
            attend(&cases[i], type, 3, 256, false, true);
            attend(&cases[i], type, brief ? 6 : 40, 1030, false, true);
            if (!brief || (i == 0 && type == PF_KV_F16) || (i == 2 && type == PF_KV_F32))           /* as a prompt */
                attend(&cases[i], type, MOST_ROWS - 1, i == 0 ? 300 : 600, false, true);
        }
    attend(&cases[0], PF_KV_F16, 1, N_CTX - 1, false, true);
    attend(&cases[0], PF_KV_F16, 5, N_CTX - 1, false, true);
    for (enum pf_kv_type type = PF_KV_F32; type <= PF_KV_F16; type++) {
        chosen_latents(type, 1, 300, 1);
        chosen_latents(type, 6, 100, 4);
        chosen_latents(type, 2, 1000, 1);
    }
}

/* Attention to a latent in whole numbers: both parts of many sizes; few rows by blocks and by chunks, and prompts. */
static void latents_i16(void)
{
    static const struct attention_case cases[] = {
        { 576, 512, 16, 1, .window = 0 },      { 576, 512, 20, 1, .row_scale = true },
        { 320, 256, 5, 1, 300, .sinks = true }, { 320, 256, 32, 1, 300, .ring = 3 },
        { 32, 32, 8, 1, .sinks = true },       { 512, 512, 1, 1, .window = 0 },
        { 96, 32, 3, 1, .window = 0 },         { 160, 96, 33, 1, .row_scale = true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct attention_case *c = &cases[i];
        attend(c, PF_KV_I16, 1, 0, false, true);
        attend(c, PF_KV_I16, 1, 63, false, true);
        attend(c, PF_KV_I16, 1, 700, false, true);
        attend(c, PF_KV_I16, 2, 64, false, true);
        attend(c, PF_KV_I16, 3, 256, false, true);
        attend(c, PF_KV_I16, 8, 771, false, true);
        attend(c, PF_KV_I16, 16, 520, false, true);
        attend(c, PF_KV_I16, brief ? 21 : 40, 1030, false, true);
        if (!brief || i % 2 == 0)
            attend(c, PF_KV_I16, MOST_ROWS - 1, 600, false, true);
    }
    static const struct attention_case narrow = { 96, 64, 4, 1, 30, .sinks = true },
                                       wide = { 576, 512, 16, 1, .window = 0 },
                                       many = { 576, 512, 128, 1, .window = 0 };
    attend(&many, PF_KV_I16, 1, 300, false, true);
    attend(&many, PF_KV_I16, brief ? 2 : 17, 70, false, true);
    attend(&wide, PF_KV_I16, 1, N_CTX - 1, false, true);
    attend(&wide, PF_KV_I16, 2, N_CTX - 1, false, true);
    attend(&narrow, PF_KV_I16, 70, 300, true, true);     /* too long for a product to follow */
    attend(&wide, PF_KV_I16, 1, 180, true, true);
    attend(&wide, PF_KV_I16, 4, 300, true, true);
}

/* Attention of a tile of rows to more blocks of a latent than a GPU has multiprocessors, by blocks and by chunks: than
 * one of 16, and, if not brief, one of 132. */
static void latents_of_many_blocks(void)
{
    static const struct attention_case cases[] = {
        { 576, 512, 16, 1, .window = 0 },      { 320, 256, 5, 1, 1900, .sinks = true },
        { 96, 32, 3, 1, .row_scale = true },   { 512, 512, 1, 1, 1700, .ring = 8 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attend(&cases[i], PF_KV_I16, 16 / cases[i].n_head, 1500, false, true);
        attend(&cases[i], PF_KV_I16, 1, 2600, false, true);
        for (int last = 12000; !brief && last < 30000; last += 8000)
            attend(&cases[i], PF_KV_I16, 1, last, false, true);
    }
    attend(&cases[0], PF_KV_I16, 1, 1300, true, true);
}

/* Attention of three sequences, whose heads are normed and rotated together, and a product of what it puts out.
 * Something else comes behind the first `before` of them. */
static void attention_of_several(int hd, int n_head, int n_kv, int window, int before)
{
    enum { N = 3, ROWS = 6, CHUNK = PF_KV_CHUNK_POSITIONS, N_CHUNKS = 3, N_OUT = 40 };
    static const int rows[N] = { 2, 1, 3 }, olds[N] = { 600, 4, 300 };
    size_t n_kept = (size_t)(N_CHUNKS * CHUNK * n_kv) * pf_kv_key_bytes(PF_KV_I16, hd) / 4;
    int n_q = n_head * hd, n_k = n_kv * hd, n_pairs = hd / 2;
    int32_t pos[N_CHUNKS * CHUNK], of_rows[ROWS];
    for (int i = 0; i < N_CHUNKS * CHUNK; i++)
        pos[i] = i;
    for (int i = 0, r = 0; i < N; i++)
        for (int j = 0; j < rows[i]; j++)
            of_rows[r++] = olds[i] + j;
    float *weight = place(floats((size_t)hd, 1), (size_t)hd * sizeof *weight),
          *sinks = place(floats((size_t)n_head, 3), (size_t)n_head * sizeof *sinks);
    struct pf_weight w = { .data = weights(PF_Q8_0, n_q, N_OUT), .type = PF_Q8_0, .n_in = n_q, .n_out = N_OUT,
                           .row_bytes = pf_qtype_row_bytes(PF_Q8_0, (uint64_t)n_q), .scale = 1 };
    struct pair all = pair_new(pos, N_CHUNKS * CHUNK), of = pair_new(of_rows, ROWS), k[N], v[N],
                old = random_pair((size_t)(N_CHUNKS * CHUNK * n_k), 2), q = random_pair((size_t)(ROWS * n_q), 2),
                nk = random_pair((size_t)(ROWS * n_k), 2), nv = random_pair((size_t)(ROWS * n_k), 2),
                cs = random_pair((size_t)(ROWS * 2 * n_pairs), 1), scale = random_pair(ROWS, 2),
                out = random_pair((size_t)(ROWS * n_q), 1), y = random_pair((size_t)(ROWS * N_OUT), 1);
    for (int i = 0; i < N; i++)
        k[i] = pair_new(NULL, n_kept), v[i] = pair_new(NULL, n_kept);
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        struct pf_kv_view kv[N];
        for (int i = 0; i < N; i++) {
            kv[i] = (struct pf_kv_view){ .k = k[i].at[u], .v = v[i].at[u], .type = PF_KV_I16, .n_kv_head = n_kv,
                                         .hd_k = hd, .hd_v = hd, .n_chunks = N_CHUNKS - i % 2 };
            for (int p = 0; p < olds[i]; p += CHUNK)
                must(b->ops->kv_store(b, &kv[i], old.at[u] + p * n_k, old.at[u] + p * n_k,
                                      (const int32_t *)(const void *)all.at[u] + p,
                                      olds[i] - p < CHUNK ? olds[i] - p : CHUNK));
        }
        must(b->ops->finish(b));                                 /* so that older keys belong to earlier steps */
        must(b->ops->rms_norm(b, q.at[u], weight, 1e-6f, hd, ROWS * n_head, q.at[u]));
        must(b->ops->rms_norm(b, nk.at[u], weight, 1e-6f, hd, ROWS * n_kv, nk.at[u]));
        must(b->ops->rope(b, (struct pf_rope_op[]){ { q.at[u], cs.at[u], n_head, hd, n_pairs, true },
                                                    { nk.at[u], cs.at[u], n_kv, hd, n_pairs, true } }, 2, ROWS));
        for (int i = 0, r = 0; i < N; r += rows[i++]) {
            const int32_t *at = (const int32_t *)(const void *)of.at[u] + r;
            must(b->ops->kv_store(b, &kv[i], nk.at[u] + r * n_k, nv.at[u] + r * n_k, at, rows[i]));
            must(b->ops->attention(b, &(struct pf_attention_op){ .q = q.at[u] + r * n_q, .out = out.at[u] + r * n_q,
                                   .kv = &kv[i], .pos = at, .n_positions = olds[i] + rows[i], .rows = rows[i],
                                   .n_head = n_head, .window = window, .scale = 0.125f, .sinks = sinks,
                                   .row_scale = before == 1 ? scale.at[u] + r : NULL }));
            if (i + 1 == before)
                must(b->ops->softcap(b, y.at[u], 2, y.n));
        }
        must(b->ops->linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, out.at[u], ROWS));
        must(b->ops->finish(b));
    }
    for (int i = 0; i < N; i++) {
        same(&k[i], "keys of several sequences", "", hd);
        same(&v[i], "values of several sequences", "", hd);
    }
    same(&out, "attention of several sequences", "", hd * 10 + before);
    same(&y, "product of it", "", hd * 10 + before);
    struct pair *pairs[] = { &k[0], &k[1], &k[2], &v[0], &v[1], &v[2], &all, &of,    &old,
                             &q,    &nk,   &nv,   &cs,   &scale, &out, &y };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

/* Heads of all sizes that tiles take, and some that they do not; groups that a tile of 16 rows holds, or cuts. */
static void attentions_i16(void)
{
    static const struct attention_case cases[] = {
        { 64, 64, 16, 2, 0, false, true, false, 0 },    { 128, 128, 8, 2, 0, false, false, true, 0 },
        { 64, 64, 16, 2, 128, false, true, false, 1 },  { 96, 96, 6, 2, 200, false, false, false, 2 },
        { 192, 128, 5, 1, 0, false, false, false, 0 },  { 256, 256, 4, 1, 0, false, true, false, 0 },
        { 192, 192, 4, 2, 300, true, false, false, 2 }, { 32, 32, 12, 4, 600, false, false, true, 3 },
        { 160, 224, 2, 1, 0, false, false, false, 0 },  { 512, 512, 3, 1, 0, false, false, false, 0 },
        { 128, 128, 16, 1, 100, false, true, false, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attention(&cases[i], PF_KV_I16, 1, 0);
        attention(&cases[i], PF_KV_I16, 1, 700);
        attention(&cases[i], PF_KV_I16, 3, 256);
        attention(&cases[i], PF_KV_I16, 8, 771);
        attention(&cases[i], PF_KV_I16, brief ? 21 : 40, 1030);
    }
    static const struct attention_case near = { 64, 64, 16, 2, 0, false, true, false, 0 },
                                       near_pair = { 128, 128, 8, 2, 0, false, false, true, 0 },
                                       near_end = { 64, 64, 16, 2, 128, false, true, false, 0 };
    for (int last = 1300; last <= 2200; last += 300) {       /* six to nine chunks */
        attention(&near, PF_KV_I16, 1, last);
        attention(&near_pair, PF_KV_I16, 1, last);
        attention(&near_pair, PF_KV_I16, 2, last);
    }
    attention(&near_end, PF_KV_I16, 1, N_CTX - 1);
    static const struct attention_case far = { 64, 64, 4, 2, 0, false, true, false, 0 },
                                       far_pair = { 128, 128, 16, 2, 0, false, true, false, 0 },
                                       far_ring = { 128, 128, 7, 1, 1500, false, false, false, 7 },
                                       far_pairs = { 128, 128, 8, 8, 0, false, true, false, 0 },
                                       farthest = { 32, 32, 1, 1, 0, false, true, false, 0 };
    attention(&far, PF_KV_I16, 1, N_CTX - 1);
    attention(&far, PF_KV_I16, 2, N_CTX - 1);
    attention(&far, PF_KV_I16, 9, N_CTX - 1);
    attention(&far_pair, PF_KV_I16, 1, N_CTX - 1);
    attention(&far_ring, PF_KV_I16, 1, N_CTX - 1);
    attention(&far_pairs, PF_KV_I16, 1, N_CTX - 1);
    attention(&farthest, PF_KV_I16, 1, N_FAR - 1);
    /* Too long for a product to follow, which would call it a fault. */
    static const struct attention_case narrow = { 64, 64, 4, 1, 30, false, true, false, 0 },
                                       wide = { 512, 512, 9, 3, 20, false, false, false, 0 },
                                       pair = { 128, 128, 33, 11, 0, false, false, false, 0 };
    attend(&narrow, PF_KV_I16, 70, 300, true, false);
    attend(&wide, PF_KV_I16, 4, 300, true, false);
    attend(&pair, PF_KV_I16, 1, 180, true, false);
    attend(&pair, PF_KV_I16, 2, 300, true, false);
    for (int before = 0; before < 3; before++) {
        attention_of_several(64, 8, 2, before == 2 ? 100 : 0, before);
        attention_of_several(128, 8, 1, 0, before);
        attention_of_several(256, 4, 2, 0, before);
    }
}

/* Gated attention from its products on: queries and gates are dealt out, heads normed and a part of them rotated, keys
 * and values kept. */
static void gated_attention(enum pf_kv_type type, int hd, int n_pairs, int n_head, int n_kv, int rows, int last)
{
    enum { CHUNK = PF_KV_CHUNK_POSITIONS, N_CHUNKS = 4 };
    size_t n_kept = (size_t)(N_CHUNKS * CHUNK * n_kv) * pf_kv_key_bytes(type, hd) / 4;
    int n_q = n_head * hd, n_k = n_kv * hd, n_old = last + 1 - rows;
    int32_t pos[N_CHUNKS * CHUNK];
    for (int i = 0; i <= last; i++)
        pos[i] = i;
    float *weight = place(floats((size_t)hd, 1), (size_t)hd * sizeof *weight);
    struct pair k = pair_new(NULL, n_kept), v = pair_new(NULL, n_kept), all = pair_new(pos, (size_t)last + 1),
                of = pair_new(pos + last + 1 - rows, (size_t)rows), old = random_pair((size_t)(n_old * n_k + 1), 2),
                packed = random_pair((size_t)(rows * 2 * n_q), 2), q = random_pair((size_t)(rows * n_q), 1),
                gate = random_pair((size_t)(rows * n_q), 1), nk = random_pair((size_t)(rows * n_k), 2),
                nv = random_pair((size_t)(rows * n_k), 2), cs = random_pair((size_t)(rows * 2 * n_pairs), 1),
                out = random_pair((size_t)(rows * n_q), 1);
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        struct pf_kv_view kv = { .k = k.at[u], .v = v.at[u], .type = type,
                                 .n_kv_head = n_kv, .hd_k = hd, .hd_v = hd, .n_chunks = N_CHUNKS };
        const struct pf_copy deal[] = { { packed.at[u], q.at[u], hd, n_head, 2 * hd, hd, 2 * n_q, n_q },
                                        { packed.at[u] + hd, gate.at[u], hd, n_head, 2 * hd, hd, 2 * n_q, n_q } };
        for (int p = 0; p < n_old; p += CHUNK)
            must(b->ops->kv_store(b, &kv, old.at[u] + p * n_k, old.at[u] + p * n_k,
                                  (const int32_t *)(const void *)all.at[u] + p, n_old - p < CHUNK ? n_old - p : CHUNK));
        must(b->ops->finish(b));                                 /* so that older keys belong to earlier steps */
        must(b->ops->copy(b, deal, 2, rows));
        must(b->ops->rms_norm(b, q.at[u], weight, 1e-6f, hd, rows * n_head, q.at[u]));
        must(b->ops->rms_norm(b, nk.at[u], weight, 1e-6f, hd, rows * n_kv, nk.at[u]));
        must(b->ops->rope(b, (struct pf_rope_op[]){ { q.at[u], cs.at[u], n_head, hd, n_pairs, true },
                                                    { nk.at[u], cs.at[u], n_kv, hd, n_pairs, true } }, 2, rows));
        must(b->ops->kv_store(b, &kv, nk.at[u], nv.at[u], (const int32_t *)(const void *)of.at[u], rows));
        must(b->ops->attention(b, &(struct pf_attention_op){ .q = q.at[u], .out = out.at[u], .kv = &kv,
                               .pos = (const int32_t *)(const void *)of.at[u], .n_positions = last + 1, .rows = rows,
                               .n_head = n_head, .scale = 0.125f }));
        must(b->ops->act(b, (struct pf_act){ .kind = PF_ACT_SIGMOID }, gate.at[u], out.at[u], (int64_t)rows * n_q,
                         out.at[u]));
        must(b->ops->finish(b));
    }
    same(&k, "keys of gated attention", "", hd);
    same(&v, "values of gated attention", "", hd);
    same(&gate, "gates", "", hd);
    same(&out, "gated attention", "", rows * 10000 + hd);
    struct pair *pairs[] = { &k, &v, &all, &of, &old, &packed, &q, &gate, &nk, &nv, &cs, &out };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void gated_attentions(void)
{
    static const int lasts[] = { 2, 255, 256, 700 };
    for (enum pf_kv_type type = PF_KV_I16; type <= PF_KV_F16; type++)
        for (int rows = 1; rows <= 3; rows += 2)
            for (int i = 0; i < 4; i++) {
                gated_attention(type, 64, 16, 4, 2, rows, lasts[i]);
                gated_attention(type, 128, 32, 6, 2, rows, lasts[i]);
                gated_attention(type, 256, 32, 16, 2, rows, lasts[i]);
                if (!brief)
                    gated_attention(type, 256, 64, 4, 1, rows, lasts[i]);
            }
}

/* A window of positions, and keys of blocks of them: all, or some that were chosen. */
static void block_attention(enum pf_kv_type type, int rows, int ratio, bool choosing)
{
    enum { CHUNK = PF_KV_CHUNK_POSITIONS, HD = 96, N_HEAD = 20, N_KEYS = 2 * CHUNK, MAX_CHOSEN = 300,
           LAST = N_KEYS - 1 };
    size_t n_floats = N_KEYS * pf_kv_row_bytes(type, HD) / 4;
    float *sinks = place(floats(N_HEAD, 1), N_HEAD * sizeof(float));
    int32_t at[N_KEYS], pos[MAX_ROWS], chosen[MAX_ROWS][MAX_CHOSEN];
    for (int i = 0; i < N_KEYS; i++)
        at[i] = i;
    for (int r = 0; r < rows; r++) {
        pos[r] = LAST * ratio - 3 * (rows - 1 - r);
        for (int i = 0, n = (pos[r] + 1) / ratio; i < MAX_CHOSEN; i++)
            chosen[r][i] = n > MAX_CHOSEN ? i * n / MAX_CHOSEN : i;
    }
    struct pair k = pair_new(NULL, n_floats), blocks = pair_new(NULL, n_floats), all = pair_new(at, N_KEYS),
                of = pair_new(pos, (size_t)rows), some = pair_new(chosen, (size_t)rows * MAX_CHOSEN),
                new_keys = random_pair((size_t)N_KEYS * HD, 2), new_blocks = random_pair((size_t)N_KEYS * HD, 2),
                q = random_pair((size_t)rows * N_HEAD * HD, 2), out = random_pair((size_t)rows * N_HEAD * HD, 1);
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        const struct pf_kv_view kv = { .k = k.at[u], .v = NULL, .type = type,
                                       .n_kv_head = 1, .hd_k = HD, .hd_v = HD, .n_chunks = N_KEYS / CHUNK };
        struct pf_kv_view of_blocks = kv;
        const int32_t *keys = (const int32_t *)(const void *)all.at[u];
        of_blocks.k = blocks.at[u];
        must(b->ops->kv_store(b, &kv, new_keys.at[u], NULL, keys, N_KEYS));
        must(b->ops->kv_store(b, &of_blocks, new_blocks.at[u], NULL, keys, N_KEYS));
        must(b->ops->attention(b, &(struct pf_attention_op){
            .q = q.at[u], .out = out.at[u], .kv = &kv, .pos = (const int32_t *)(const void *)of.at[u],
            .n_positions = LAST * ratio + 1, .rows = rows, .n_head = N_HEAD, .window = 100, .scale = 0.125f,
            .sinks = sinks, .blocks = &of_blocks, .ratio = ratio,
            .chosen = choosing ? (const int32_t *)(const void *)some.at[u] : NULL, .max_chosen = MAX_CHOSEN,
            .n_lists = 1, .run = 1 }));
        must(b->ops->finish(b));
    }
    same(&out, "attention to blocks", choosing ? "chosen" : "all", rows * 1000 + ratio);
    struct pair *pairs[] = { &k, &blocks, &all, &of, &some, &new_keys, &new_blocks, &q, &out };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

/* Attention to runs of positions that were chosen for each head of keys and values, which lie apart. */
static void run_attention(enum pf_kv_type type, int rows, int run, bool open)
{
    enum { CHUNK = PF_KV_CHUNK_POSITIONS, HD = 64, HD_V = 32, N_HEAD = 10, N_KV = 2, N_KEYS = 3 * CHUNK,
           MAX_CHOSEN = 11, LAST = N_KEYS - 1 };
    int32_t at[N_KEYS], pos[MAX_ROWS], chosen[MAX_ROWS][N_KV][MAX_CHOSEN];
    for (int i = 0; i < N_KEYS; i++)
        at[i] = i;
    for (int r = 0; r < rows; r++) {
        pos[r] = LAST - 7 * (rows - 1 - r);
        for (int h = 0; h < N_KV; h++)
            for (int i = 0, n = (pos[r] + (open ? run : 1)) / run; i < MAX_CHOSEN; i++)
                chosen[r][h][i] = n <= MAX_CHOSEN ? i : h ? n - MAX_CHOSEN + i : (i + 1) * n / MAX_CHOSEN - 1;
    }
    struct pair k = pair_new(NULL, (size_t)N_KEYS * N_KV * pf_kv_row_bytes(type, HD) / 4),
                v = pair_new(NULL, (size_t)N_KEYS * N_KV * pf_kv_row_bytes(type, HD_V) / 4), all = pair_new(at, N_KEYS),
                of = pair_new(pos, (size_t)rows), some = pair_new(chosen, (size_t)rows * N_KV * MAX_CHOSEN),
                new_k = random_pair((size_t)N_KEYS * N_KV * HD, 2),
                new_v = random_pair((size_t)N_KEYS * N_KV * HD_V, 2),
                q = random_pair((size_t)rows * N_HEAD * HD, 2), out = random_pair((size_t)rows * N_HEAD * HD_V, 1);
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        const struct pf_kv_view kv = { .k = k.at[u], .v = v.at[u], .type = type,
                                       .n_kv_head = N_KV, .hd_k = HD, .hd_v = HD_V, .n_chunks = N_KEYS / CHUNK };
        must(b->ops->kv_store(b, &kv, new_k.at[u], new_v.at[u], (const int32_t *)(const void *)all.at[u], N_KEYS));
        must(b->ops->attention(b, &(struct pf_attention_op){
            .q = q.at[u], .out = out.at[u], .kv = &kv, .pos = (const int32_t *)(const void *)of.at[u],
            .n_positions = LAST + 1, .rows = rows, .n_head = N_HEAD, .scale = 0.125f,
            .chosen = (const int32_t *)(const void *)some.at[u], .max_chosen = MAX_CHOSEN, .n_lists = N_KV,
            .run = run, .open_run = open }));
        must(b->ops->finish(b));
    }
    same(&out, "attention to runs", open ? "open" : "full", rows * 1000 + run);
    struct pair *pairs[] = { &k, &v, &all, &of, &some, &new_k, &new_v, &q, &out };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void run_attentions(void)
{
    for (enum pf_kv_type type = PF_KV_F32; type <= PF_KV_F16; type++)
        for (int rows = 1; rows <= 21; rows += 20)
            for (int way = 0; way < 4; way++)
                run_attention(type, rows, way % 2 ? 4 : 48, way / 2);
}

static void block_attentions(void)
{
    for (enum pf_kv_type type = PF_KV_F32; type <= PF_KV_F16; type++)
        for (int rows = 1; rows <= 41; rows += 20)
            for (int way = 0; way < 4; way++)
                block_attention(type, rows, way % 2 ? 4 : 128, way / 2);
}

/* Blocks in two batches, the second of which begins in the middle of one. */
static void compressions(void)
{
    for (int way = 0; way < 4; way++) {
        int n = way % 2 ? 72 : 512, ratio = way < 2 ? 4 : 128, width = way < 2 ? 2 * n : n, rows = 41,
            n_out = rows / ratio + 2;
        size_t n_state = (size_t)3 * (size_t)width;
        float *ape = place(floats((size_t)(width * ratio), 1), (size_t)(width * ratio) * sizeof *ape);
        struct pair u_ = random_pair((size_t)(rows * width), 1), gate = random_pair((size_t)(rows * width), 3),
                    first = random_pair(n_state, 1), second = random_pair(n_state, 1),
                    out = random_pair((size_t)(n_out * n), 1);
        for (int i = 0; i < 2; i++) {
            int32_t pos[41];
            for (int r = 0; r < rows; r++)
                pos[r] = (ratio == 4 ? 0 : 100) + i * rows + r;
            struct pair at = pair_new(pos, (size_t)rows);
            BOTH(compress(b, &(struct pf_compress_op){
                .u = u_.at[u], .gate = gate.at[u], .ape = ape, .pos = (const int32_t *)(const void *)at.at[u],
                .before = i ? first.at[u] : NULL, .after = i ? second.at[u] : first.at[u], .out = out.at[u], .n = n,
                .ratio = ratio, .rows = rows, .n_out = n_out, .overlaps = ratio == 4 }));
            same(&out, "keys of blocks", "", way);
            same(i ? &second : &first, "unfinished blocks", "", way);
            pair_free(&at);
        }
        struct pair *pairs[] = { &u_, &gate, &first, &second, &out };
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            pair_free(pairs[i]);
    }
}

static void streams(void)
{
    enum { S = 4 };
    static const int widths[] = { 70, 4096 };
    for (int way = 0; way < 4; way++) {
        int n = widths[way % 2], n_weights = way < 2 ? S * (2 + S) : S, rows = 9;
        float *base = place(floats((size_t)n_weights, 1), (size_t)n_weights * sizeof *base),
               *scale = place(floats(3, 1), 3 * sizeof *scale);
        struct pair l = random_pair((size_t)(rows * n_weights), 2), w = random_pair((size_t)(rows * n_weights), 1),
                    x = random_pair((size_t)(rows * S * n), 1), y = random_pair((size_t)(rows * n), 1),
                    flat = random_pair((size_t)(rows * S * n), 1);
        BOTH(rms_norm(b, x.at[u], NULL, 1e-6f, S * n, rows, flat.at[u]));
        same(&flat, "norm of all streams", "", n);
        BOTH(mix(b, &(struct pf_mix_op){ .logits = l.at[u], .base = base, .scale = scale, .weights = w.at[u],
                                         .n_streams = S, .n_weights = n_weights, .rounds = 20, .rows = rows,
                                         .eps = 1e-6f }));
        same(&w, "weights of streams", "", n_weights);
        BOTH(streams_read(b, &(struct pf_streams_op){ x.at[u], y.at[u], w.at[u], n, S, n_weights, rows }));
        same(&y, "reading streams", "", n);
        for (int again = 0; n_weights > S && again < 2; again++) {
            BOTH(streams_write(b, &(struct pf_streams_op){ x.at[u], y.at[u], w.at[u], n, S, n_weights, rows }));
            same(&x, "writing streams", "", n);
        }
        struct pair *pairs[] = { &l, &w, &x, &y, &flat };
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            pair_free(pairs[i]);
    }
}

/* Streams gated element by element, and norms of each with weights of its own. */
static void gated_streams(void)
{
    static const int widths[] = { 70, 2560 };
    for (int way = 0; way < 4; way++) {
        int n = widths[way % 2], n_streams = way < 2 ? 4 : 3, rows = brief ? 3 : 9;
        float *norm = place(floats((size_t)(n_streams * n), 1), (size_t)(n_streams * n) * sizeof *norm);
        struct pair x = random_pair((size_t)(rows * n_streams * n), 2), y = random_pair((size_t)(rows * n), 1),
                    gates = random_pair((size_t)(rows * n_streams * n), 4), each = random_pair(x.n, 1),
                    w = random_pair((size_t)(rows * n_streams), 4);
        BOTH(norm_each(b, x.at[u], norm, 1e-6f, n, n_streams, rows, each.at[u]));
        same(&each, "norm of each stream", "", n);
        BOTH(gated_read(b, &(struct pf_gated_op){ each.at[u], y.at[u], gates.at[u], w.at[u], n, n_streams, rows }));
        same(&y, "reading gated streams", "", n);
        for (int again = 0; again < 2; again++) {
            BOTH(gated_write(b, &(struct pf_gated_op){ x.at[u], y.at[u], gates.at[u], w.at[u], n, n_streams, rows }));
            same(&x, "writing gated streams", "", n);
        }
        struct pair *pairs[] = { &x, &y, &gates, &each, &w };
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            pair_free(pairs[i]);
    }
}

/* What n-grams add to streams, in steps of some rows each, the first without a state. */
static void ngram_streams(int n, int taps, int step)
{
    enum { S = 4, ROWS = 5 };
    int width = S * n;
    size_t kept = (size_t)((taps - 1) * step * width);
    float *conv = place(floats((size_t)(taps * width), 1), (size_t)(taps * width) * sizeof *conv);
    struct pair key = random_pair((size_t)(ROWS * width), 1), query = random_pair(key.n, 1),
                value = random_pair((size_t)(ROWS * n), 1), v = random_pair(key.n, 1), x = random_pair(key.n, 1),
                before = random_pair(kept, 1), after = random_pair(kept, 1);
    BOTH(agree(b, &(struct pf_agree_op){ key.at[u], query.at[u], value.at[u], v.at[u], n, S, ROWS }));
    same(&v, "agreement of key and query", "", n);
    for (int way = 0; way < 3; way++) {
        int rows = way == 2 ? 1 : ROWS;
        const struct pair *from = way == 0 ? NULL : way == 1 ? &before : &after, *to = way == 1 ? &after : &before;
        BOTH(spread(b, &(struct pf_spread_op){ .u = key.at[u], .v = v.at[u], .conv = conv, .x = x.at[u], .n = width,
                                               .before = from ? from->at[u] : NULL, .after = to->at[u], .taps = taps,
                                               .step = step, .rows = rows }));
        same(&x, "a convolution with steps", "", rows);
        same(to, "its state", "", rows);
    }
    struct pair *pairs[] = { &key, &query, &value, &v, &x, &before, &after };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

struct routing_case {
    struct pf_routing how;
    bool bias, table;
    int  n_values;                        /* the logits have so many different ones; 0: any */
};

static void route_rows(const struct routing_case *c, int number)
{
    int n = c->how.n_expert, k = c->how.n_used, rows = 9;
    float *bias = place(floats((size_t)n, 1), (size_t)n * sizeof *bias), *logits = floats((size_t)(rows * n), 4);
    int32_t *table = malloc((size_t)(rows * k) * sizeof *table), token[] = { 8, 3, 5, 0, 2, 2, 7, 1, 6 };
    for (int i = 0; i < rows * k; i++)
        table[i] = i * 7 % n;
    for (int i = 0; c->n_values && i < rows * n; i++)
        logits[i] = (float)check_int(&rng, 0, c->n_values - 1) - 1;
    place(table, (size_t)(rows * k) * sizeof *table);
    struct pair ids = pair_new(token, (size_t)rows), l = pair_new(logits, (size_t)(rows * n)),
                picks = random_pair((size_t)(rows * k), 1), w = random_pair((size_t)(rows * k), 1);
    BOTH(route(b, &(struct pf_route_op){
        .how = &c->how, .logits = l.at[u], .select_bias = c->bias ? bias : NULL, .table = c->table ? table : NULL,
        .ids = (const int32_t *)(const void *)ids.at[u], .rows = rows, .picks = (int32_t *)(void *)picks.at[u],
        .weights = w.at[u] }));
    same(&picks, "picks", "", number);
    same(&w, "weights", "", number);
    pair_free(&ids);
    pair_free(&l);
    pair_free(&picks);
    pair_free(&w);
    free(logits);
}

static void routing(void)
{
    static const struct routing_case cases[] = {
        { { 128, 8, 0, 0, PF_GATE_SOFTMAX, false, 1 }, false, false, 0 },
        { { 128, 8, 0, 0, PF_GATE_SIGMOID, true, 1 }, true, false, 0 },
        { { 128, 8, 0, 0, PF_GATE_SOFTMAX_SELECTED, false, 1 }, false, false, 0 },
        { { 60, 8, 0, 0, PF_GATE_SOFTMAX, true, 2.5f }, true, false, 0 },
        { { 60, 8, 6, 3, PF_GATE_SIGMOID, false, 1 }, false, false, 0 },
        { { 60, 40, 0, 0, PF_GATE_SOFTMAX_SELECTED, true, 1 }, true, false, 0 },
        { { 60, 8, 0, 0, PF_GATE_SQRT_SOFTPLUS, false, 1 }, false, false, 0 },
        { { 60, 8, 0, 0, PF_GATE_SQRT_SOFTPLUS, true, 1 }, true, true, 0 },
        { { 512, 10, 0, 0, PF_GATE_SOFTMAX, true, 1 }, false, false, 0 },
        { { 512, 10, 0, 0, PF_GATE_SOFTMAX, true, 1 }, false, false, 3 },
        { { 512, 10, 0, 0, PF_GATE_SOFTMAX, true, 1 }, false, false, 1 },
        { { 32, 4, 0, 0, PF_GATE_SOFTMAX_SELECTED, false, 1 }, false, false, 0 },
        { { 8, 2, 0, 0, PF_GATE_SOFTMAX, true, 1 }, false, false, 2 },
        { { 128, 32, 0, 0, PF_GATE_SIGMOID, true, 1 }, true, false, 3 },
        { { 100, 8, 0, 0, PF_GATE_SOFTMAX_SELECTED, false, 1 }, false, false, 3 },
        { { 256, 8, 8, 4, PF_GATE_SIGMOID, true, 2.5f }, true, false, 0 },
        { { 256, 8, 8, 4, PF_GATE_SIGMOID, true, 2.5f }, false, false, 4 },
        { { 160, 6, 8, 3, PF_GATE_SOFTMAX, false, 16 }, false, false, 0 },
        { { 384, 32, 0, 0, PF_GATE_SOFTMAX, true, 1 }, false, false, 40 },
        { { MOST_EXPERTS, 16, 0, 0, PF_GATE_SOFTMAX, true, 1 }, false, false, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        route_rows(&cases[i], (int)i);
}

struct delta_case {
    int  d, n_k, n_v, taps, rows;
    bool tiled, packed, before;
    bool by_key;                         /* with the other gate, too */
    float least;
};

/* Floats of a row's beta and alpha. */
static int delta_rates(const struct delta_case *c)
{
    return c->n_v * (c->by_key ? 1 + c->d : 2);
}

/* Where the projections x and ba put what a net needs: dealt out, or packed by key head. */
static void lay_out(const struct delta_case *c, const float *x, const float *ba, struct pf_delta_op *op)
{
    int d = c->d, r = c->n_v / c->n_k, group = (2 + 2 * r) * d, n = c->n_k * group, n_ba = delta_rates(c);
    if (c->packed) {
        op->q = (struct pf_vectors){ x, n, d, 1, group };
        op->k = (struct pf_vectors){ x + d, n, d, 1, group };
        op->v = (struct pf_vectors){ x + 2 * d, n, d, r, group };
        op->z = (struct pf_vectors){ x + (2 + r) * d, n, d, r, group };
        op->beta = (struct pf_vectors){ ba, n_ba, 1, r, 2 * r };
        op->alpha = (struct pf_vectors){ ba + r, n_ba, 1, r, 2 * r };
    } else {
        op->q = (struct pf_vectors){ x, n, d, 1, d };
        op->k = (struct pf_vectors){ x + c->n_k * d, n, d, 1, d };
        op->v = (struct pf_vectors){ x + 2 * c->n_k * d, n, d, 1, d };
        op->z = (struct pf_vectors){ x + (2 * c->n_k + c->n_v) * d, n, d, 1, d };
        op->beta = (struct pf_vectors){ ba, n_ba, 1, 1, 1 };
        op->alpha = (struct pf_vectors){ ba + c->n_v, n_ba, c->by_key ? d : 1, 1, c->by_key ? d : 1 };
    }
}

/* But for what differs from batch to batch. */
static struct pf_delta_op delta_op(const struct delta_case *c)
{
    struct pf_delta_op op = { .d = c->d, .n_k_head = c->n_k, .n_v_head = c->n_v, .taps = c->taps, .rows = c->rows,
                              .tiled = c->tiled, .eps = 1e-6f, .by_key = c->by_key, .least = c->least,
                              .sigmoid_gate = c->by_key };
    int n = pf_delta_channels(&op);
    size_t n_dt = (size_t)(c->n_v * (c->by_key ? c->d : 1));
    op.conv = place(floats((size_t)(c->taps * n), 1), (size_t)(c->taps * n) * sizeof(float));
    float *a = floats((size_t)c->n_v, 1);
    for (int i = 0; i < c->n_v; i++)
        a[i] = -fabsf(a[i]);                 /* states decay, in models too */
    op.a = place(a, (size_t)c->n_v * sizeof(float));
    op.dt = place(floats(n_dt, 1), n_dt * sizeof(float));
    op.norm = place(floats((size_t)c->d, 1), (size_t)c->d * sizeof(float));
    return op;
}

/* Two batches, one after the other, and a product of what they put out. */
static void delta_net(const struct delta_case *c, int number)
{
    struct pf_delta_op op = delta_op(c);
    int n = pf_delta_channels(&op), n_x = 2 * (c->n_k + c->n_v) * c->d, n_out = c->n_v * c->d, rows = c->rows;
    size_t n_state = pf_delta_state_rows(&op) + (size_t)(n_out * c->d);
    enum pf_qtype type = n_out % 32 ? PF_F32 : PF_Q8_0;
    struct pf_weight w = { .data = weights(type, n_out, 9), .type = type, .n_in = n_out, .n_out = 9, .scale = 1,
                           .row_bytes = pf_qtype_row_bytes(type, (uint64_t)n_out) };
    struct pair states[] = { random_pair(n_state, 1), random_pair(n_state, 1) },
                mixed = random_pair((size_t)(rows * n), 1), out = random_pair((size_t)(rows * n_out), 1),
                y = random_pair((size_t)(rows * 9), 1);
    for (int i = 0; i < 2; i++) {
        struct pair x = random_pair((size_t)(rows * n_x), 1), ba = random_pair((size_t)(rows * delta_rates(c)), 1);
        for (int u = 0; u < 2; u++) {
            pf_backend *b = units[u];
            lay_out(c, x.at[u], ba.at[u], &op);
            op.before = i || c->before ? states[i].at[u] : NULL;
            op.after = states[1 - i].at[u];
            op.mixed = mixed.at[u];
            op.out = out.at[u];
            must(b->ops->delta(b, &op));
            must(b->ops->linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, out.at[u], rows));
        }
        same(&out, "delta net", "", number);
        same(&states[1 - i], "state", "", number);
        same(&y, "product of a delta net", "", number);
        pair_free(&x);
        pair_free(&ba);
    }
    struct pair *pairs[] = { &states[0], &states[1], &mixed, &out, &y };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

/* A batch in two parts, at once one after the other, the second from the state that the first leaves; the whole of it
 * on the CPU has the same bits. */
static void delta_parts(int first, int rest)
{
    const struct delta_case c = { .d = 128, .n_k = 2, .n_v = 4, .taps = 4, .rows = first + rest };
    struct pf_delta_op op = delta_op(&c);
    int n = pf_delta_channels(&op), n_out = c.n_v * c.d, n_x = 2 * (c.n_k + c.n_v) * c.d;
    size_t n_state = pf_delta_state_rows(&op) + (size_t)(n_out * c.d);
    struct pf_weight w = { .data = weights(PF_Q8_0, n_out, 9), .type = PF_Q8_0, .n_in = n_out, .n_out = 9, .scale = 1,
                           .row_bytes = pf_qtype_row_bytes(PF_Q8_0, (uint64_t)n_out) };
    struct pair before = random_pair(n_state, 1), between = random_pair(n_state, 1), after = random_pair(n_state, 1),
                mixed = random_pair((size_t)(c.rows * n), 1), out = random_pair((size_t)(c.rows * n_out), 1),
                y = random_pair((size_t)(c.rows * 9), 1), x = random_pair((size_t)(c.rows * n_x), 1),
                ba = random_pair((size_t)(c.rows * 2 * c.n_v), 1);
    struct pair *pairs[] = { &before, &between, &after, &mixed, &out, &y, &x, &ba };
    for (int u = 0; u < 2; u++) {
        pf_backend *b = units[u];
        int cut = u ? first : c.rows;
        op.mixed = mixed.at[u];
        for (int row = 0; row < c.rows; row += cut, cut = rest) {
            lay_out(&c, x.at[u] + row * n_x, ba.at[u] + row * 2 * c.n_v, &op);
            op.rows = cut;
            op.follows = row > 0;
            op.before = row > 0 ? between.at[u] : before.at[u];
            op.after = row + cut < c.rows ? between.at[u] : after.at[u];
            op.out = out.at[u] + row * n_out;
            must(b->ops->delta(b, &op));
        }
        must(b->ops->linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, out.at[u], c.rows));
    }
    same(&out, "delta net in two parts", "", 100 * first + rest);
    same(&after, "state of two parts", "", 100 * first + rest);
    same(&y, "product of two parts", "", 100 * first + rest);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void delta_nets(void)
{
    static const int parts[][2] = { { 1, 1 }, { 5, 3 }, { 8, 8 }, { 3, 20 }, { 20, 3 }, { 9, 32 } };
    static const int batches[] = { 1, 2, 3, 7, 8, 9, 33 };
    static const struct delta_case shapes[] = {
        { .d = 128, .n_k = 2, .n_v = 4, .taps = 4 }, { .d = 128, .n_k = 4, .n_v = 4, .taps = 4 },
        { .d = 128, .n_k = 2, .n_v = 8, .taps = 3 }, { .d = 64, .n_k = 2, .n_v = 4, .taps = 4 },
        { .d = 32, .n_k = 3, .n_v = 6, .taps = 2 },  { .d = 20, .n_k = 1, .n_v = 3, .taps = 4 },
    };
    static const struct delta_case keyed[] = {
        { .d = 128, .n_k = 3, .n_v = 3, .taps = 4, .by_key = true, .least = -5 },
        { .d = 128, .n_k = 2, .n_v = 2, .taps = 4, .by_key = true, .before = true },
        { .d = 16, .n_k = 4, .n_v = 4, .taps = 4, .by_key = true, .least = -5, .before = true },
        { .d = 20, .n_k = 2, .n_v = 2, .taps = 2, .by_key = true },
    };
    int number = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof batches / sizeof *batches; k++)
            for (int way = 0; way < 4; way++) {
                struct delta_case c = shapes[i];
                c.rows = batches[k];
                c.tiled = way == 1;
                c.packed = way >= 2;
                c.before = way % 2 == 0;
                delta_net(&c, number++);
            }
    for (size_t i = 0; i < sizeof keyed / sizeof *keyed; i++)
        for (int rows = 1; rows <= 33; rows += 8) {
            struct delta_case c = keyed[i];
            c.rows = rows;
            delta_net(&c, number++);
        }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        delta_parts(parts[i][0], parts[i][1]);
}

/* Two batches, one after the other. */
static void convolution(int n, int taps, int rows, bool bias, bool silu)
{
    size_t n_state = (size_t)(taps - 1) * (size_t)n, n_w = (size_t)(taps * n);
    struct pf_conv_op op = { .n = n, .taps = taps, .rows = rows, .silu = silu };
    op.w = place(floats(n_w, 1), n_w * sizeof(float));
    op.bias = bias ? place(floats((size_t)n, 1), (size_t)n * sizeof(float)) : NULL;
    struct pair first = random_pair(n_state, 1), second = random_pair(n_state, 1),
                y = random_pair((size_t)(rows * n), 1);
    for (int i = 0; i < 2; i++) {
        struct pair x = random_pair((size_t)(rows * n), 1);
        for (int u = 0; u < 2; u++) {
            op.x = x.at[u];
            op.y = y.at[u];
            op.before = i ? first.at[u] : NULL;
            op.after = i ? second.at[u] : first.at[u];
            must(units[u]->ops->conv(units[u], &op));
        }
        same(&y, "convolution", "", rows);
        same(i ? &second : &first, "rows of a convolution", "", rows);
        pair_free(&x);
    }
    struct pair *pairs[] = { &first, &second, &y };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void convolutions(void)
{
    static const int batches[] = { 1, 2, 9, 33 };
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        for (int way = 0; way < 4; way++)
            convolution(way < 2 ? 70 : 512, 2 + way, batches[i], way % 2, way > 0);
}

struct ssm_case {
    int d, p, n_head, n_group;
};

/* Two batches, one after the other, and a product of what they put out. */
static void mamba2(const struct ssm_case *c, int rows)
{
    int n_out = c->n_head * c->p, n = n_out + 2 * c->n_group * c->d;
    size_t n_state = (size_t)(n_out * c->d), n_head = (size_t)c->n_head;
    struct pf_ssm_op op = { .d = c->d, .p = c->p, .n_head = c->n_head, .n_group = c->n_group, .rows = rows,
                            .eps = 1e-6f };
    struct pf_weight w = { .data = weights(PF_Q8_0, n_out, 9), .type = PF_Q8_0, .n_in = n_out, .n_out = 9, .scale = 1,
                           .row_bytes = pf_qtype_row_bytes(PF_Q8_0, (uint64_t)n_out) };
    float *a = floats(n_head, 1);
    for (size_t i = 0; i < n_head; i++)
        a[i] = -fabsf(a[i]);
    op.a = place(a, n_head * sizeof(float));
    op.dt_bias = place(floats(n_head, 1), n_head * sizeof(float));
    op.skip = place(floats(n_head, 1), n_head * sizeof(float));
    op.norm = place(floats((size_t)n_out, 1), (size_t)n_out * sizeof(float));
    struct pair first = random_pair(n_state, 1), second = random_pair(n_state, 1),
                out = random_pair((size_t)(rows * n_out), 1), y = random_pair((size_t)(rows * 9), 1);
    for (int i = 0; i < 2; i++) {
        struct pair u_ = random_pair((size_t)(rows * n), 1), dt = random_pair((size_t)(rows * c->n_head), 1),
                    z = random_pair((size_t)(rows * n_out), 1);
        for (int u = 0; u < 2; u++) {
            pf_backend *b = units[u];
            op.u = u_.at[u];
            op.dt = dt.at[u];
            op.z = z.at[u];
            op.out = out.at[u];
            op.before = i ? first.at[u] : NULL;
            op.after = i ? second.at[u] : first.at[u];
            must(b->ops->ssm(b, &op));
            must(b->ops->linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, out.at[u], rows));
        }
        same(&out, "Mamba2", "", rows);
        same(i ? &second : &first, "state of Mamba2", "", rows);
        same(&y, "product of Mamba2", "", rows);
        struct pair *inputs[] = { &u_, &dt, &z };
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
            pair_free(inputs[k]);
    }
    struct pair *pairs[] = { &first, &second, &out, &y };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void mambas(void)
{
    static const int batches[] = { 1, 3, 33 };
    static const struct ssm_case shapes[] = { { 128, 64, 4, 2 }, { 128, 80, 2, 1 }, { 64, 64, 4, 4 },
                                              { 20, 32, 3, 1 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof batches / sizeof *batches; k++)
            mamba2(&shapes[i], batches[k]);
}

/* Blocks of floats that are put elsewhere. */
static void copies(void)
{
    struct pair x = random_pair(5 * 256, 1), dealt = random_pair(5 * 256, 1);
    BOTH(copy(b, (struct pf_copy[]){ { x.at[u], dealt.at[u], 10, 4, 25, 10, 256, 40 },
                                     { x.at[u] + 3, dealt.at[u] + 300, 7, 2, 9, 8, 256, 16 } }, 2, 5));
    same(&dealt, "copies", "", 5);
    pair_free(&x);
    pair_free(&dealt);
}

/* A product of some rows that is checked, and downloaded by one row and by several to memory that the device writes to
 * itself, in another order; the first row twice, and the last not at all if there are several. */
static void given_to_host(int rows)
{
    enum { N_IN = 256, N_OUT = 77 };
    uint64_t row_bytes = pf_qtype_row_bytes(PF_Q8_0, N_IN);
    struct pf_weight w = { .data = weights(PF_Q8_0, N_IN, N_OUT), .type = PF_Q8_0, .n_in = N_IN, .n_out = N_OUT,
                           .row_bytes = row_bytes, .scale = 1 };
    struct pair x = random_pair((size_t)rows * N_IN, 1), y = random_pair((size_t)rows * N_OUT, 1);
    const struct pf_backend_ops *ops = units[1]->ops;
    size_t row = N_OUT * sizeof(float), bytes = ((size_t)rows + 1) * row;
    float *shared;
    must(ops->buf_alloc(units[1], bytes, true, (void **)&shared));
    memset(shared, 0, bytes);
    BOTH(linear(b, &(struct pf_linear){ &w, y.at[u] }, 1, x.at[u], rows));
    must(ops->check_finite(units[1], y.at[1], (int64_t)rows * N_OUT));
    if (rows > 2)
        must(ops->download(units[1], shared + N_OUT, y.at[1] + N_OUT, ((size_t)rows - 2) * row));
    must(ops->download(units[1], shared, y.at[1], row));
    must(ops->download(units[1], shared + rows * N_OUT, y.at[1], row));
    must(ops->finish(units[1]));
    size_t n_wanted = rows > 2 ? (size_t)rows - 1 : 1;
    CHECK(memcmp(shared, y.at[0], n_wanted * row) == 0, "outputs that go to the host are others");
    CHECK(memcmp(shared + rows * N_OUT, y.at[0], row) == 0, "a row that goes to the host twice is another");
    CHECK(rows <= 2 || shared[(rows - 1) * N_OUT] == 0, "a row that nobody wants goes to the host");
    same(&y, "a product given to the host", "q8_0", rows);
    ops->buf_free(units[1], shared, bytes, true);
    pair_free(&x);
    pair_free(&y);
}

/* The largest of each few neighbours of rows, some of whose values are alike, each row to a place of its own. */
static void largest(int rows, int n)
{
    const struct pf_backend_ops *ops = units[1]->ops;
    int n_tops = pf_n_tops(n);
    size_t bytes = (size_t)(2 * rows * n_tops) * sizeof(float);
    struct pair x = random_pair((size_t)rows * (size_t)n, 9);
    float *shared, *to[PF_LOGIT_ROWS];
    must(ops->buf_alloc(units[1], bytes, true, (void **)&shared));
    for (int r = 0; r < rows; r++)
        to[r] = shared + 2 * (rows - 1 - r) * n_tops;
    must(ops->tops(units[1], x.at[1], n, rows, to));
    must(ops->finish(units[1]));
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n_tops; i++) {
            const float *row = x.at[0] + r * n;
            float most = row[i * PF_TOPS_OF];
            for (int k = i * PF_TOPS_OF; k < n && k < (i + 1) * PF_TOPS_OF; k++)
                most = row[k] > most ? row[k] : most;
            CHECK(to[r][i] == most, "piece %d of row %d of %d: %g, not %g", i, r, n, to[r][i], most);
            CHECK(to[r][n_tops + i] == 0, "something is written behind row %d of %d", r, n);
        }
    ops->buf_free(units[1], shared, bytes, true);
    pair_free(&x);
}

static void not_finite(void)
{
    float x[64] = { 1 };
    struct pf_weight w = { .data = weights(PF_Q8_0, 64, 3), .type = PF_Q8_0, .n_in = 64, .n_out = 3, .row_bytes = 68,
                           .scale = 1 };
    x[40] = 1e38f * 10;
    struct pair p = pair_new(x, 64), y = random_pair(3, 1);
    pf_status st = units[1]->ops->linear(units[1], &(struct pf_linear){ &w, y.at[1] }, 1, p.at[1], 1);
    st = st == PF_OK ? units[1]->ops->finish(units[1]) : st;
    CHECK(st == PF_ENUMERIC, "an infinite activation gives %d", (int)st);
    CHECK(units[1]->ops->finish(units[1]) == PF_OK, "%s", pf_last_error());
    st = units[1]->ops->check_finite(units[1], p.at[1], 40);
    st = st == PF_OK ? units[1]->ops->finish(units[1]) : st;
    CHECK(st == PF_OK, "%s", pf_last_error());
    st = units[1]->ops->check_finite(units[1], p.at[1], 64);
    st = st == PF_OK ? units[1]->ops->finish(units[1]) : st;
    CHECK(st == PF_ENUMERIC, "an infinite logit gives %d", (int)st);
    pair_free(&p);
    pair_free(&y);
}

/* Steps that are run plainly, captured, then replayed: finish waits for all of a step, whether its graph is the last
 * thing that the device was asked for or not, and whether a step before it was waited for or left alone. */
static void replayed_steps(void)
{
    enum { N = 40000, N_STEPS = 12 };
    pf_backend *b = units[1];
    struct pair x = random_pair(N, 1), plus = random_pair(N, 1);
    const struct pf_repeat step = { .rows = 1, .n_parts = 1, .part = { { .sequence = x.at[1], .n_positions = 1 } } };
    float *got = floats(N, 1);
    for (int i = 0; i < N_STEPS; i++) {
        bool replayed, again, downloads = i % 3 == 2;
        must(b->ops->begin(b, &step, &replayed));
        CHECK(replayed == (i >= 2), "step %d was replayed: %d", i, replayed);
        if (!replayed)
            must(b->ops->add(b, x.at[1], 1, plus.at[1], N));
        must(b->ops->end(b, &again));
        must(units[0]->ops->add(units[0], x.at[0], 1, plus.at[0], N));
        if (downloads)
            must(b->ops->download(b, got, x.at[1], N * sizeof *got));
        if (i % 4 != 3 || downloads)
            must(b->ops->finish(b));
        CHECK(!downloads || memcmp(got, x.at[0], N * sizeof *got) == 0, "step %d: not waited for", i);
    }
    same(&x, "replayed steps", "", 1);
    pair_free(&x);
    pair_free(&plus);
    free(got);
}

/* A step is no repetition of one in which other rows have logits, however many have. */
static void replayed_logits(void)
{
    pf_backend *b = units[1];
    struct pair x = random_pair(2 * 32, 1);
    struct pf_repeat step = { .rows = 3, .n_parts = 2, .n_logits = 1,
                              .part = { { .sequence = x.at[1], .n_positions = 9, .rows = 2, .n_logits = 1 },
                                        { .sequence = x.at[1] + 32, .n_positions = 8, .rows = 1 } } };
    for (int i = 0; i < 4; i++) {
        bool replayed, again;
        if (i == 3) {
            step.part[0].n_logits = 0;
            step.part[1].n_logits = 1;
        }
        must(b->ops->begin(b, &step, &replayed));
        CHECK(replayed == (i == 2), "step %d was replayed: %d", i, replayed);
        if (!replayed)
            must(b->ops->add(b, x.at[1], 1, x.at[1], 32));
        must(b->ops->end(b, &again));
        must(b->ops->finish(b));
    }
    pair_free(&x);
}

/* The scratch grows where there is no room for the old one beside the new; where it cannot, the old one stays. */
static void growing_scratch(void)
{
    enum { VRAM = 64 << 20, ROWS = 256, COLUMNS = 4096, SPARE = 1 << 20, N = 64 };
    struct pf_backend_sizes sizes = { .max_rows = ROWS, .max_n_in = COLUMNS, .max_picks = ROWS, .n_expert = 1,
                                      .n_ff = COLUMNS, .n_out = COLUMNS, .max_heads = 1, .n_ctx = 256 };
    pf_backend *b;
    void *rest;
    must(pf_backend_cuda_open(&b, 0, VRAM));
    must(b->ops->reserve(b, &sizes));
    struct pf_backend_sizes more = sizes, too_many = sizes;
    more.max_rows += ROWS / 8;
    too_many.max_rows *= 8;
    uint64_t had = b->ops->scratch_bytes(b, &sizes), wanted_bytes = b->ops->scratch_bytes(b, &more), fills = VRAM;
    do
        fills -= SPARE / 4;
    while (fills > 0 && b->ops->buf_alloc(b, fills, false, &rest) < 0);
    CHECK(fills > 0 && wanted_bytes > had, "%llu to fill, scratch %llu, then %llu", (unsigned long long)fills,
          (unsigned long long)had, (unsigned long long)wanted_bytes);
    b->ops->buf_free(b, rest, fills, false);
    fills -= wanted_bytes - had + SPARE;
    must(b->ops->buf_alloc(b, fills, false, &rest));
    pf_status st = b->ops->reserve(b, &more);
    CHECK(st == PF_OK, "growing: %s", pf_last_error());
    st = b->ops->reserve(b, &too_many);
    CHECK(st == PF_ENOMEM && strstr(pf_last_error(), "scratch"), "growing too much: %d, %s", (int)st, pf_last_error());
    float *x;
    must(b->ops->buf_alloc(b, 2 * N * sizeof *x, false, (void **)&x));
    must(b->ops->rms_norm(b, x, NULL, 1e-6f, N, 1, x + N));
    must(b->ops->finish(b));
    b->ops->buf_free(b, x, 2 * N * sizeof *x, false);
    b->ops->buf_free(b, rest, fills, false);
    b->ops->close(b);
}

int main(int argc, char **argv)
{
    struct pf_backend_sizes sizes = { .max_rows = MOST_ROWS, .max_n_in = MAX_IN, .max_head_dim = 576,
                                      .max_i16 = 128 * 576,
                                      .max_picks = MAX_ROWS * MOST_USED, .n_expert = MOST_EXPERTS, .n_ff = 1024,
                                      .n_out = 2048, .max_heads = 128, .max_latent_heads = 33, .n_choose_head = 1,
                                      .n_ctx = N_FAR };
    brief = argc > 1 && strcmp(argv[1], "--brief") == 0;
    only = argc > 1 + brief ? argv[1 + brief] : NULL;
    if (pf_backend_cuda_open(&units[1], 0, 0) < 0) {
        printf("skipped: %s\n", pf_last_error());
        return SKIP;
    }
    must(pf_backend_cpu_open(&units[0], 2, PF_ISA_ALL));
    for (int u = 0; u < 2; u++)
        must(units[u]->ops->reserve(units[u], &sizes));
    for (uint32_t t = 0; t < PF_N_QTYPES; t++) {
        const struct pf_qtype_info *info = pf_qtype_info(t);
        if (!info || !info->is_weight || !wanted(info->name))
            continue;
        products((enum pf_qtype)t);
        int n = brief ? 256 : 512, n_ff = brief ? 256 : 768;
        experts((enum pf_qtype)t, (enum pf_qtype)t, (enum pf_qtype)t, n, n_ff, N_USED);
    }
    if (wanted("experts")) {
        experts(PF_Q4_K, PF_Q4_K, PF_Q6_K, 512, 256, N_USED);
        experts(PF_Q4_K, PF_Q5_K, PF_Q8_0, 512, 256, N_USED);
        experts(PF_Q8_0, PF_Q8_0, PF_F16, 64, 96, N_USED);
        experts(PF_F16, PF_Q4_0, PF_Q4_0, 64, 96, N_USED);
    }
    shapes_alone = true;
    if (wanted("several rows of experts")) {
        experts(PF_Q4_K, PF_Q4_K, PF_Q6_K, 1280, 256, N_USED);
        experts(PF_Q4_K, PF_Q4_K, PF_Q6_K, 256, 1024, N_USED);
        experts(PF_Q4_K, PF_Q4_K, PF_F16, 1280, 100, N_USED);
        experts(PF_Q5_K, PF_Q5_K, PF_Q5_K, 768, 256, N_USED);
        experts(PF_Q6_K, PF_Q6_K, PF_Q4_K, 256, 512, N_USED);
        experts(PF_IQ4_XS, PF_IQ4_XS, PF_IQ3_S, 1280, 256, N_USED);
        experts(PF_Q5_0, PF_Q5_0, PF_IQ4_NL, 1120, 1056, N_USED);
        experts(PF_Q4_K, PF_Q4_K, PF_Q6_K, 2048, brief ? 512 : 768, brief ? N_USED : 10);
    }
    shapes_alone = false;
    if (wanted("experts with a shared one")) {
        experts_with_shared(PF_Q4_K, PF_Q6_K, 512, 256, 10);
        experts_with_shared(PF_Q4_K, PF_Q6_K, 256, 1024, 2);
        experts_with_shared(PF_MXFP4, PF_MXFP4, 96, 64, N_USED);
        experts_with_shared(PF_Q8_0, PF_Q4_0, 512, 96, N_USED);
        experts_with_shared(PF_F16, PF_F32, 100, 36, N_USED);
    }
    if (wanted("short rows"))
        short_rows();
    if (wanted("shared"))
        share();
    if (wanted("large")) {
        large_products(PF_Q6_K);
        large_products(PF_Q4_K);
        large_products(PF_Q5_K);
        static const enum pf_qtype types[] = { PF_Q4_K, PF_Q5_K, PF_Q6_K, PF_Q2_K, PF_Q3_K, PF_IQ1_M, PF_IQ2_XXS,
                                               PF_IQ3_S, PF_IQ4_XS, PF_Q8_0, PF_Q4_0, PF_MXFP4, PF_Q5_0, PF_Q5_1,
                                               PF_IQ4_NL };
        int n_out = brief ? 2405 : 70005;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            for (int rows = 3; rows <= 16; rows += rows == 8 ? 1 : rows < 8 ? 5 : 7)
                few_rows_of_large(types[i], pf_qtype_info(types[i])->block_len == 256 ? 512 : 544, n_out, rows);
        few_rows_of_large(PF_Q6_K, 4096, brief ? 2405 : 70005, 8);
    }
    if (wanted("rows")) {
        row_operations();
        for (int rows = 1; rows < 16; rows += 10) {
            few_rows(PF_Q8_0, rows == 1 ? 4096 : 544, rows);
            few_rows(PF_Q4_K, rows == 1 ? 2048 : 512, rows);
            few_rows(PF_F32, rows == 1 ? 1024 : 252, rows);
            few_rows(PF_BF16, 96, rows);
            few_rows(PF_F16, rows == 1 ? 768 : 256, rows);
        }
        static const enum pf_qtype several[] = { PF_Q4_K, PF_Q6_K, PF_Q8_0, PF_MXFP4, PF_F32, PF_BF16 };
        for (size_t i = 0; i < sizeof several / sizeof *several; i++)
            for (int rows = 2; rows <= 4; rows++)
                few_rows(several[i], several[i] == PF_Q4_K ? 2048 / rows / 256 * 256 : 256, rows);
        few_rows(PF_F32, 2048, 1);
        few_rows(PF_Q6_K, 3072, 1);
        few_rows(PF_Q5_K, brief ? 1280 : 8192, 1);
        for (int n = brief ? 1280 : 4352; n <= (brief ? 1280 : 8704); n += 256 * 17) {
            normed_parts(PF_Q4_K, n);
            normed_parts(PF_Q6_K, n);
        }
        few_rows(PF_Q6_K, 256, 5);
        for (int rows = 1; rows < 50; rows += 16) {
            activated(PF_Q8_0, 512, rows);
            activated(PF_Q4_K, 2048, rows);
            activated(PF_F16, 96, rows);
            activated(PF_F32, 100, rows);
            activated_between(PF_Q8_0, 512, rows);
        }
        between();
    }
    if (wanted("replayed logits"))
        replayed_logits();
    if (wanted("replayed"))
        replayed_steps();
    if (wanted("scratch"))
        growing_scratch();
    if (wanted("rope"))
        rotations();
    if (wanted("attention"))
        attentions();
    if (wanted("latent"))
        latents();
    if (wanted("latent in whole numbers"))
        latents_i16();
    if (wanted("latents of many blocks"))
        latents_of_many_blocks();
    if (wanted("attention in whole numbers"))
        attentions_i16();
    if (wanted("gated attention"))
        gated_attentions();
    if (wanted("blocks")) {
        block_attentions();
        run_attentions();
        compressions();
    }
    if (wanted("streams")) {
        streams();
        gated_streams();
        ngram_streams(70, 4, 3);
        ngram_streams(640, 2, 1);
    }
    if (wanted("route"))
        routing();
    if (wanted("delta"))
        delta_nets();
    if (wanted("mamba")) {
        convolutions();
        mambas();
    }
    if (wanted("copies"))
        copies();
    if (wanted("tops")) {
        for (int rows = 1; rows <= 16; rows += rows < 3 ? 2 : 13) {
            largest(rows, 1);
            largest(rows, 300);
            largest(rows, 49155);
        }
    }
    if (wanted("finite")) {
        for (int rows = 1; rows <= 16; rows += rows < 3 ? 2 : rows < 8 ? 5 : 8)
            given_to_host(rows);
        not_finite();
    }
    if (wanted("large rows")) {              /* of which eight fit a block's memory, but not sixteen, on some card */
        sizes.max_n_in = 14336;
        for (int u = 0; u < 2; u++)
            must(units[u]->ops->reserve(units[u], &sizes));
        few_rows_of_large(PF_Q4_K, sizes.max_n_in, 40, 9);
        few_rows_of_large(PF_Q6_K, sizes.max_n_in, 40, 16);
        few_rows_of_large(PF_Q4_K, 5120, 40, 13);
    }
    for (int u = 0; u < 2; u++)
        units[u]->ops->close(units[u]);
    return check_status();
}

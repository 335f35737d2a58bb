/* Attention at depth, by the CPU backend's operations: however rows, threads, instruction sets, runs of chunks and
 * rounds deal it out, the bits are the same; and what is out of range in whole numbers reaches those who see it, nobody
 * else. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "backend/backend.h"

enum { ROWS = 9, MAX_POS = 9000, ONE_CHUNK = 4, LATENT_CHUNK = 10 };

struct shape {
    const char *name;
    int  n_head, n_kv_head, hd_k, hd_v, n_pos, window;
    bool chunked, sinks, tempered;
    enum pf_kv_type type;
    bool latent;                             /* values lie in the keys */
};

static const struct shape shapes[] = {
    { "as usual", 8, 2, 64, 64, 5000, 0, false, false, false, PF_KV_I16, false },
    { "several rounds", 64, 1, 512, 512, 2300, 0, false, false, false, PF_KV_I16, false },
    { "a window and sinks", 8, 2, 32, 32, 3000, 700, false, true, false, PF_KV_I16, false },
    { "windows side by side", 4, 4, 96, 32, 2000, 512, true, false, true, PF_KV_I16, false },
    { "one chunk", 4, 2, 32, 64, 200, 0, false, true, false, PF_KV_I16, false },
    { "F32", 8, 2, 64, 64, 3000, 0, false, false, false, PF_KV_F32, false },
    { "F32, a window and sinks", 8, 2, 32, 32, 3000, 700, false, true, false, PF_KV_F32, false },
    { "Q8_0, windows side by side", 4, 1, 96, 32, 2000, 900, true, false, true, PF_KV_Q8_0, false },
    { "a latent, several rounds", 80, 1, 576, 512, 2300, 0, false, false, false, PF_KV_F16, true },
    { "a latent in whole numbers, several rounds", 80, 1, 576, 512, 2300, 0, false, false, false, PF_KV_I16, true },
    { "a latent in whole numbers, one chunk", 16, 1, 96, 64, 200, 0, false, true, false, PF_KV_I16, true },
    { "a latent in whole numbers, a window and sinks", 12, 1, 96, 32, 1500, 700, false, true, true, PF_KV_I16, true },
    { "a latent in whole numbers without positions", 5, 1, 64, 64, 1100, 0, false, false, true, PF_KV_I16, true },
};

static float *q, *k, *v, *sinks, *temper;
static int32_t *positions;

static float number(void)
{
    static unsigned state = 1;
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        state = state * 1664525u + 1013904223u;
        sum += (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    return 2 * sum;
}

static float *numbers(size_t n)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = number();
    return x;
}

/* A backend that holds keys and values of a shape. */
struct cache {
    pf_backend *be;
    struct pf_kv_view kv;
    size_t k_bytes, v_bytes;
};

static struct cache cache_new(const struct shape *s, int n_threads, uint32_t isa)
{
    struct cache c = { .kv = { .type = s->type, .n_kv_head = s->n_kv_head, .hd_k = s->hd_k, .hd_v = s->hd_v,
                               .n_chunks = s->n_pos / PF_KV_CHUNK_POSITIONS + 1 } };
    struct pf_backend_sizes sizes = { .max_rows = ROWS, .max_head_dim = s->hd_k > s->hd_v ? s->hd_k : s->hd_v,
                                      .max_heads = s->n_head, .max_latent_heads = s->latent ? s->n_head : 0,
                                      .n_ctx = s->n_pos };
    size_t rows = (size_t)c.kv.n_chunks * PF_KV_CHUNK_POSITIONS * (size_t)s->n_kv_head;
    c.k_bytes = rows * (s->latent ? pf_kv_latent_bytes : pf_kv_key_bytes)(s->type, s->hd_k);
    c.v_bytes = s->latent ? 0 : rows * pf_kv_value_bytes(s->type, s->hd_v);
    CHECK(pf_backend_cpu_open(&c.be, n_threads, isa) == PF_OK && c.be->ops->reserve(c.be, &sizes) == PF_OK &&
          c.be->ops->buf_alloc(c.be, c.k_bytes, false, &c.kv.k) == PF_OK &&
          (s->latent || c.be->ops->buf_alloc(c.be, c.v_bytes, false, &c.kv.v) == PF_OK), "%s", pf_last_error());
    memset(c.kv.k, 0xff, c.k_bytes);
    if (!s->latent)
        memset(c.kv.v, 0xff, c.v_bytes);
    c.be->ops->kv_store(c.be, &c.kv, k, v, positions, s->n_pos);
    return c;
}

static void cache_free(struct cache *c)
{
    c->be->ops->buf_free(c->be, c->kv.k, c->k_bytes, false);
    if (c->kv.v)
        c->be->ops->buf_free(c->be, c->kv.v, c->v_bytes, false);
    c->be->ops->close(c->be);
}

/* The last ROWS positions attend, `piece` at a time. */
static float *attend(const struct shape *s, const struct cache *c, int piece)
{
    float *out = malloc((size_t)(ROWS * s->n_head * s->hd_v) * sizeof *out);
    for (int r = 0; r < ROWS; r += piece) {
        int n = ROWS - r < piece ? ROWS - r : piece, first = s->n_pos - ROWS + r;
        c->be->ops->attention(c->be, &(struct pf_attention_op){
            .q = q + r * s->n_head * s->hd_k, .out = out + r * s->n_head * s->hd_v, .kv = &c->kv,
            .pos = positions + first, .n_positions = first + n, .rows = n, .n_head = s->n_head, .window = s->window,
            .chunked = s->chunked, .scale = 1 / sqrtf((float)s->hd_k), .sinks = s->sinks ? sinks : NULL,
            .row_scale = s->tempered ? temper + r : NULL });
    }
    return out;
}

static void compare(const struct shape *s, const float *want, int n_threads, int piece, uint32_t isa)
{
    struct cache c = cache_new(s, n_threads, isa);
    float *got = attend(s, &c, piece);
    CHECK(memcmp(want, got, (size_t)(ROWS * s->n_head * s->hd_v) * sizeof *got) == 0,
          "%s: %d threads, pieces of %d, instruction sets %x", s->name, n_threads, piece, isa);
    free(got);
    cache_free(&c);
}

static void fill(const struct shape *s)
{
    q = numbers((size_t)(ROWS * s->n_head * s->hd_k));
    k = numbers((size_t)s->n_pos * (size_t)(s->n_kv_head * s->hd_k));
    v = numbers((size_t)s->n_pos * (size_t)(s->n_kv_head * s->hd_v));
    sinks = numbers((size_t)s->n_head);
    temper = numbers(ROWS);
}

static void empty(void)
{
    free(q);
    free(k);
    free(v);
    free(sinks);
    free(temper);
}

static void test_shape(const struct shape *s)
{
    fill(s);
    struct cache c = cache_new(s, 1, UINT32_MAX);
    float *want = attend(s, &c, ROWS);
    for (int i = 0; i < ROWS * s->n_head * s->hd_v; i++)
        CHECK(isfinite(want[i]), "%s", s->name);
    cache_free(&c);
    compare(s, want, 5, ROWS, UINT32_MAX);
    compare(s, want, 3, 1, UINT32_MAX);
    compare(s, want, 16, 4, UINT32_MAX);
    compare(s, want, 2, 5, PF_ISA_SCALAR | PF_ISA_AVX2);
    if (s->hd_k < 100)
        compare(s, want, 2, ROWS, PF_ISA_SCALAR);
    free(want);
    empty();
}

/* Who sees the position, or is the query, gets NaN: of the heads, the first n. */
static void test_out_of_range(const struct shape *s, float *bad, float value, int n_heads)
{
    float before = *bad;
    *bad = value;
    struct cache c = cache_new(s, 2, UINT32_MAX);
    float *out = attend(s, &c, ROWS);
    int per_row = s->n_head * s->hd_v;
    for (int i = 0; i < ROWS * per_row; i++) {
        bool sees = i / per_row >= ROWS - 4 && i % per_row / s->hd_v < n_heads;
        CHECK(isfinite(out[i]) == !sees, "%s: row %d, element %d: %g", s->name, i / per_row, i % per_row,
              (double)out[i]);
    }
    free(out);
    cache_free(&c);
    *bad = before;
}

/* Of what the first KV head has at the fourth position from the end. */
static void test_all_out_of_range(const struct shape *s)
{
    static const float values[] = { INFINITY, -INFINITY, NAN, 0x1p60f };
    int at = s->n_pos - 4, n_heads = s->n_head / s->n_kv_head;
    fill(s);
    for (int i = 0; i < 4; i++) {
        test_out_of_range(s, k + at * s->n_kv_head * s->hd_k + 5, values[i], n_heads);
        if (s->latent)                       /* its other part */
            test_out_of_range(s, k + (at + 1) * s->hd_k - 5, values[i], n_heads);
        else
            test_out_of_range(s, v + at * s->n_kv_head * s->hd_v + 5, values[i], n_heads);
    }
    empty();
}

/* A query that is out of range in element e: its own head of its own row. */
static void test_query_out_of_range(const struct shape *s, int e)
{
    fill(s);
    q[3 * s->n_head * s->hd_k + e] = NAN;
    struct cache c = cache_new(s, 2, UINT32_MAX);
    float *out = attend(s, &c, ROWS);
    for (int i = 0; i < ROWS * s->n_head * s->hd_v; i++)
        CHECK(isfinite(out[i]) == (i / s->hd_v != 3 * s->n_head), "%s: element %d: %g", s->name, i, (double)out[i]);
    free(out);
    cache_free(&c);
    empty();
}

int main(void)
{
    positions = malloc(MAX_POS * sizeof *positions);
    for (int i = 0; i < MAX_POS; i++)
        positions[i] = i;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        test_shape(&shapes[i]);
    for (int latent = 0; latent < 2; latent++) {
        const struct shape *s = &shapes[latent ? LATENT_CHUNK : ONE_CHUNK];
        test_all_out_of_range(s);
        test_query_out_of_range(s, 7);
        test_query_out_of_range(s, s->hd_k - 1);
    }
    free(positions);
    return check_status();
}

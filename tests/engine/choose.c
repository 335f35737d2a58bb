/* The CPU backend's choice of positions, and attention to chosen ones. All numbers are small integers, so scores are
 * exact, ties are many, and what is expected can be worked out by sorting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "backend/backend.h"

enum { N_POS = 600, ROWS = 40, N_HEAD = 4, D = 32, D_V = 16, MAX = 300 };
enum { KV_BYTES = (N_POS / PF_KV_CHUNK_POSITIONS + 1) * PF_KV_CHUNK_POSITIONS * D * 4 };

static pf_backend *be;
static float   q[ROWS][N_HEAD][D], w[ROWS][N_HEAD], keys[N_POS][D];
static int32_t pos[ROWS], store_at[N_POS], chosen[ROWS][MAX];
static float   want_score[N_POS];

static float small(void)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int)(state >> 29) - 3;
}

static struct pf_kv_view filled(enum pf_kv_type type)
{
    struct pf_kv_view kv = { .type = type, .n_kv_head = 1, .hd_k = D, .hd_v = D_V,
                             .n_chunks = N_POS / PF_KV_CHUNK_POSITIONS + 1 };
    CHECK(be->ops->buf_alloc(be, KV_BYTES, false, &kv.k) == PF_OK, "%s", pf_last_error());
    be->ops->kv_store(be, &kv, &keys[0][0], NULL, store_at, N_POS);
    return kv;
}

static int better_first(const void *a, const void *b)
{
    int x = *(const int32_t *)a, y = *(const int32_t *)b;
    return want_score[x] != want_score[y] ? (want_score[x] < want_score[y] ? 1 : -1) : x - y;
}

static int rising(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* The positions row r should choose at most `max` of; returns how many. */
static int expected(int r, int max, int32_t *out)
{
    int n = pos[r] + 1, n_out = n < max ? n : max;
    for (int p = 0; p < n; p++) {
        out[p] = p;
        want_score[p] = 0;
        for (int h = 0; h < N_HEAD; h++) {
            float dot = 0;
            for (int i = 0; i < D; i++)
                dot += q[r][h][i] * keys[p][i];
            want_score[p] += w[r][h] * (dot > 0 ? dot : 0);
        }
    }
    qsort(out, (size_t)n, sizeof *out, better_first);
    qsort(out, (size_t)n_out, sizeof *out, rising);
    return n_out;
}

static void check_choices(const struct pf_kv_view *kv, int max)
{
    const struct pf_choose_op op = { .q = &q[0][0][0], .w = &w[0][0], .kv = kv, .pos = pos, .rows = ROWS,
                                     .n_head = N_HEAD, .max_chosen = max, .ratio = 1, .chosen = &chosen[0][0] };
    CHECK(be->ops->choose(be, &op) == PF_OK, "%s", pf_last_error());
    for (int r = 0; r < ROWS; r++) {
        int32_t want[N_POS];
        int n = expected(r, max, want);
        const int32_t *found = &chosen[0][0] + (size_t)r * (size_t)max;
        CHECK(memcmp(want, found, (size_t)n * sizeof *want) == 0, "row %d of %d", r, max);
    }
}

/* Attention to the first n positions, given as a choice, is attention at position n - 1. */
static void check_attention(const struct pf_kv_view *kv, int n)
{
    static float all[N_HEAD][D_V], some[N_HEAD][D_V];
    int32_t at = n - 1, last = N_POS - 1, first_n[MAX];
    for (int i = 0; i < n; i++)
        first_n[i] = i;
    struct pf_attention_op op = { .q = &q[0][0][0], .out = &all[0][0], .kv = kv, .pos = &at, .rows = 1,
                                  .n_head = N_HEAD, .scale = 0.01f };
    CHECK(be->ops->attention(be, &op) == PF_OK, "%s", pf_last_error());
    op.out = &some[0][0];
    op.pos = &last;
    op.chosen = first_n;
    op.max_chosen = n;
    op.n_lists = op.run = 1;
    CHECK(be->ops->attention(be, &op) == PF_OK, "%s", pf_last_error());
    CHECK(memcmp(all, some, sizeof all) == 0, "%d positions", n);
}

/* Attention to chosen runs of positions is attention to these positions, each of them chosen: full runs and the rest
 * behind them, or runs of which the last is open. */
static void check_runs(const struct pf_kv_view *kv, int run, bool open, int max)
{
    static float singly[N_HEAD][D_V], by_run[N_HEAD][D_V];
    for (int32_t at = MAX + 3; at < N_POS; at += 41) {
        int32_t runs[MAX], positions[N_POS];
        struct pf_attention_op op = { .q = &q[0][0][0], .out = &by_run[0][0], .kv = kv, .pos = &at, .rows = 1,
                                      .n_head = N_HEAD, .scale = 0.01f, .chosen = runs, .max_chosen = max,
                                      .n_lists = 1, .run = run, .open_run = open };
        int n_runs = open ? at / run + 1 : (at + 1) / run, n = 0;
        int n_listed = n_runs < max ? n_runs : max;
        for (int i = 0; i < n_listed; i++) {
            runs[i] = n_runs - 1 - (n_listed - 1 - i) * (n_runs / n_listed);
            for (int p = runs[i] * run; p < (runs[i] + 1) * run && p <= at; p++)
                positions[n++] = p;
        }
        for (int p = n_runs * run; p <= at; p++)
            positions[n++] = p;
        CHECK(be->ops->attention(be, &op) == PF_OK, "%s", pf_last_error());
        op.out = &singly[0][0];
        op.chosen = positions;
        op.max_chosen = n;
        op.run = 1;
        op.open_run = false;
        CHECK(be->ops->attention(be, &op) == PF_OK, "%s", pf_last_error());
        CHECK(memcmp(singly, by_run, sizeof singly) == 0, "runs of %d at %d", run, at);
    }
}

int main(void)
{
    const struct pf_backend_sizes sizes = { .max_rows = ROWS, .max_n_in = D, .max_head_rows = ROWS * N_HEAD,
                                            .max_head_n_in = D, .max_head_dim = D, .max_positions = N_POS,
                                            .n_choose_head = N_HEAD, .max_heads = N_HEAD, .n_ctx = N_POS };
    CHECK(pf_backend_cpu_open(&be, 3, UINT32_MAX) == PF_OK, "%s", pf_last_error());
    CHECK(be->ops->reserve(be, &sizes) == PF_OK, "%s", pf_last_error());
    for (int p = 0; p < N_POS; p++) {
        store_at[p] = p;
        for (int i = 0; i < D; i++)
            keys[p][i] = small();
    }
    for (int r = 0; r < ROWS; r++) {
        pos[r] = r * (N_POS - 1) / (ROWS - 1);
        for (int h = 0; h < N_HEAD; h++) {
            w[r][h] = r % 8 == 0 ? -1 : small();       /* rows whose best score is 0, of many positions */
            for (int i = 0; i < D; i++)
                q[r][h][i] = small();
        }
    }
    for (int type = PF_KV_F32; type <= PF_KV_F16; type += PF_KV_F16 - PF_KV_F32) {
        struct pf_kv_view kv = filled((enum pf_kv_type)type);
        for (int max = 1; max <= MAX; max = 2 * max + 3)
            check_choices(&kv, max);
        check_attention(&kv, 7);
        check_attention(&kv, 256);
        check_attention(&kv, MAX);
        for (int way = 0; way < 4; way++)
            check_runs(&kv, way % 2 ? 4 : 48, way / 2, way % 2 ? 70 : 8);
        be->ops->buf_free(be, kv.k, KV_BYTES, false);
    }
    be->ops->close(be);
    return check_status();
}

/* The CUDA backend: memory, the stream, and which kernels an operation becomes. Kernels are in cu_*.cu behind cu_api.h.
 *
 * Owner and thread as in backend.h: one thread at a time. All work goes to one stream; nothing waits for the device but
 * finish, and nothing is allocated after the first step but through buf_alloc.
 *
 * Invariants:
 *  1. Weights are named by their host addresses. placed[] maps host ranges to device copies, sorted by host address, never
 *     overlapping. A table of expert addresses is placed like a vector, under the address of the host's table.
 *  2. x_of: the rows at this address lie quantised in b->x. Whatever writes there forgets it (wrote()).
 *  3. held: operations that were asked for and not yet started, since the one that usually follows does them in the same
 *     kernel: an addition waits for the norm that reads its sum, norms of heads and rotation wait for kv_store. Any other
 *     operation starts them first, one by one (settle()).
 *  4. graphs[] hold device addresses of weights, scratch and a session's buffers: whatever frees one of those drops them
 *     (drop_graphs()). A step is run plainly when first met, captured the second time, replayed from then on, so that
 *     capturing never has to place a vector.
 *  5. CUDA's errors become PF_EDEVICE or PF_ENOMEM where they appear and never travel. */
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "kernels/cuda/cu_api.h"
#include "kernels/ref/iq_tables.h"

enum { MAX_GRAPHS = 16, GRAPH_ROWS = CU_VECTOR_ROWS };
enum { ALIGN = 256, OVERREAD = 64, SMALL_BYTES = 1 << 20, MAX_SMALL_BLOCKS = 4096 };

struct placed {
    const char *host;
    size_t      bytes;
    char       *dev;
};

struct held_add {
    float       *y;                      /* NULL: none */
    const float *x;
    float        a;
    int64_t      n;
};

struct held_heads {
    struct cu_norm    norm[2];
    struct pf_rope_op rope[2];
    int               n_norms, n_ropes, rows;
};

/* A kind of step, and, once it has been captured, what replays it. */
struct graph {
    struct pf_repeat step;               /* n_positions: the chunks it was launched for */
    cudaGraphExec_t  exec;
    uint64_t         weight_bytes, age;
};

struct cuda_backend {
    struct pf_backend base;
    int               device;
    cudaStream_t      stream;
    char              describe[32];
    bool              has_tiles;         /* enough shared memory for matrix products by tiles */
    uint64_t          budget, used;      /* bytes of device memory: may take, has taken */

    struct placed    *placed;
    size_t            n_placed, cap_placed;
    char             *small;             /* block that vectors and tables are cut from */
    size_t            small_used;
    void             *owned[MAX_SMALL_BLOCKS];
    int               n_owned;
    struct cu_tables  tables;

    struct pf_backend_sizes sizes;
    char             *scratch;
    size_t            scratch_bytes;
    struct cu_x       x, a;              /* inputs of dense and gate/up products; inputs of down products */
    float            *up;                /* [max_picks][n_ff] */
    float            *pick_out;          /* [max_picks][n_out] */
    float            *part;              /* attention's chunks */
    struct cu_groups *groups;            /* of the picks of a prompt; sorted and tile are b->sorted, b->tile */
    int32_t          *sorted;
    struct cu_tile   *tile;

    int              *fault;             /* enum cu_fault, in host memory that the device writes to */
    const float      *x_of;
    int64_t           x_floats;
    struct held_add   held;
    struct held_heads heads;

    struct graph      graphs[MAX_GRAPHS];
    struct graph     *capturing;
    uint64_t          n_begun, weight_bytes_before;
};

static struct cuda_backend *cuda_of(pf_backend *b)
{
    return (struct cuda_backend *)b;
}

/* Turns CUDA's answer into ours; clears its sticky error. */
static pf_status check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return PF_OK;
    cudaGetLastError();
    PF_FAIL(e == cudaErrorMemoryAllocation ? PF_ENOMEM : PF_EDEVICE, "%s failed on the GPU: %s", what, cudaGetErrorString(e));
}

#define CU_TRY(call, what) PF_TRY(check((call), (what)))

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

static pf_status device_alloc(struct cuda_backend *b, size_t bytes, const char *what, void **out)
{
    *out = NULL;
    if (bytes > b->budget - b->used)
        PF_FAIL(PF_ENOMEM, "no GPU memory for %s of %zu bytes: %llu of %llu are taken", what, bytes, (unsigned long long)b->used,
                (unsigned long long)b->budget);
    CU_TRY(cudaMalloc(out, bytes + OVERREAD), what);
    b->used += bytes;
    return PF_OK;
}

static void drop_graphs(struct cuda_backend *b)
{
    for (int i = 0; i < MAX_GRAPHS; i++) {
        if (b->graphs[i].exec)
            cudaGraphExecDestroy(b->graphs[i].exec);
        b->graphs[i] = (struct graph){ .exec = NULL };
    }
}

static void device_free(struct cuda_backend *b, void *p, size_t bytes)
{
    if (!p)
        return;
    cudaFree(p);
    b->used -= bytes;
}

static pf_status cuda_buf_alloc(pf_backend *backend, size_t bytes, bool shared, void **out)
{
    struct cuda_backend *b = cuda_of(backend);
    *out = NULL;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    if (shared) {
        CU_TRY(cudaMallocHost(out, bytes), "allocating pinned memory");
        memset(*out, 0, bytes);
        return PF_OK;
    }
    PF_TRY(device_alloc(b, bytes, "a buffer", out));
    return check(cudaMemsetAsync(*out, 0, bytes, b->stream), "clearing a buffer");
}

static void cuda_buf_free(pf_backend *backend, void *p, size_t bytes, bool shared)
{
    if (!p)
        return;
    cudaSetDevice(cuda_of(backend)->device);
    cudaStreamSynchronize(cuda_of(backend)->stream);
    if (shared) {
        cudaFreeHost(p);
        return;
    }
    drop_graphs(cuda_of(backend));
    device_free(cuda_of(backend), p, bytes);
}

/* ---- Weights ------------------------------------------------------------------------------------------------------ */

/* Where host belongs in placed[]: the first entry that begins past it. */
static size_t past(const struct cuda_backend *b, const void *host)
{
    size_t low = 0, high = b->n_placed;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (b->placed[mid].host <= (const char *)host)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void *find(const struct cuda_backend *b, const void *host)
{
    size_t i = past(b, host);
    if (i == 0)
        return NULL;
    const struct placed *p = &b->placed[i - 1];
    size_t at = (size_t)((const char *)host - p->host);
    return at < p->bytes ? p->dev + at : NULL;
}

static pf_status remember(struct cuda_backend *b, const void *host, size_t bytes, void *dev)
{
    if (b->n_placed == b->cap_placed) {
        size_t cap = b->cap_placed ? 2 * b->cap_placed : 256;
        struct placed *grown = pf_realloc(PF_MEM_KERNELS, b->placed, cap * sizeof *grown);
        if (!grown)
            PF_FAIL(PF_ENOMEM, "no memory for the list of weights on the GPU");
        b->placed = grown;
        b->cap_placed = cap;
    }
    size_t i = past(b, host);
    memmove(&b->placed[i + 1], &b->placed[i], (b->n_placed - i) * sizeof *b->placed);
    b->placed[i] = (struct placed){ .host = host, .bytes = bytes, .dev = dev };
    b->n_placed++;
    return PF_OK;
}

static pf_status own(struct cuda_backend *b, size_t bytes, void **out)
{
    if (b->n_owned == MAX_SMALL_BLOCKS)
        PF_FAIL(PF_ENOMEM, "the model has more than %d tensors, too many for the GPU", (int)MAX_SMALL_BLOCKS);
    PF_TRY(device_alloc(b, bytes, "weights", out));
    b->owned[b->n_owned++] = *out;
    return PF_OK;
}

/* Small things are cut from blocks of SMALL_BYTES. */
static pf_status cut(struct cuda_backend *b, size_t bytes, void **out)
{
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes > SMALL_BYTES)
        return own(b, bytes, out);
    if (!b->small || b->small_used + bytes > SMALL_BYTES) {
        void *block;
        PF_TRY(own(b, SMALL_BYTES, &block));
        b->small = block;
        b->small_used = 0;
    }
    *out = b->small + b->small_used;
    b->small_used += bytes;
    return PF_OK;
}

static pf_status copy_in(struct cuda_backend *b, const void *host, size_t bytes, void **dev)
{
    PF_TRY(cut(b, bytes, dev));
    return check(cudaMemcpy(*dev, host, bytes, cudaMemcpyHostToDevice), "copying weights");
}

static pf_status cuda_place(pf_backend *backend, const void *host, size_t bytes)
{
    struct cuda_backend *b = cuda_of(backend);
    void *dev;
    if (bytes == 0 || find(b, host))
        return PF_OK;
    PF_TRY(copy_in(b, host, bytes, &dev));
    return remember(b, host, bytes, dev);
}

/* The device address of a matrix, which was placed. */
static pf_status matrix_at(const struct cuda_backend *b, const void *host, const uint8_t **out)
{
    *out = find(b, host);
    if (!*out)
        PF_FAIL(PF_EDEVICE, "a weight is not in the GPU's memory");
    return PF_OK;
}

/* The device address of n floats, copied now if they were not; NULL stays NULL. */
static pf_status floats_at(struct cuda_backend *b, const float *host, size_t n, const float **out)
{
    *out = NULL;
    if (!host)
        return PF_OK;
    PF_TRY(cuda_place(&b->base, host, n * sizeof *host));
    *out = find(b, host);
    return PF_OK;
}

/* The table of the experts' device addresses. */
static pf_status table_at(struct cuda_backend *b, const uint8_t *const *host, int n, const uint8_t *const **out)
{
    *out = find(b, host);
    if (*out)
        return PF_OK;
    const uint8_t **table = pf_alloc_array(PF_MEM_KERNELS, (size_t)n, sizeof *table);
    pf_status st = PF_OK;
    void *dev;
    if (!table)
        PF_FAIL(PF_ENOMEM, "no memory for a table of %d experts", n);
    for (int e = 0; st == PF_OK && e < n; e++)
        st = matrix_at(b, host[e], &table[e]);
    if (st == PF_OK)
        st = copy_in(b, table, (size_t)n * sizeof *table, &dev);
    pf_free(table);
    PF_TRY(st);
    *out = dev;
    return remember(b, host, (size_t)n * sizeof *host, dev);
}

/* ---- Scratch ------------------------------------------------------------------------------------------------------ */

struct carver {
    char  *base;             /* NULL: only measure */
    size_t used;
};

static void *take(struct carver *c, size_t n, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (n * size + OVERREAD + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void take_x(struct carver *c, struct cu_x *x, size_t rows, size_t n)
{
    x->q = take(c, rows * n, sizeof *x->q);
    x->d = take(c, rows * (n / 32 + 1), sizeof *x->d);
    x->s = take(c, rows * (n / 16 + 2), sizeof *x->s);
}

static int n_chunks(int64_t n_ctx)
{
    return (int)((n_ctx + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS);
}

static size_t carve(struct cuda_backend *b, const struct pf_backend_sizes *s, char *base)
{
    struct carver c = { .base = base };
    take_x(&c, &b->x, (size_t)s->max_rows, (size_t)s->max_n_in);
    take_x(&c, &b->a, (size_t)s->max_picks, (size_t)s->n_ff);
    b->a.f = take(&c, (size_t)s->max_picks * (size_t)s->n_ff, sizeof *b->a.f);
    b->up = take(&c, (size_t)s->max_picks * (size_t)s->n_ff, sizeof *b->up);
    b->pick_out = take(&c, (size_t)s->max_picks * (size_t)s->n_out, sizeof *b->pick_out);
    b->groups = take(&c, 1, sizeof *b->groups);
    b->sorted = take(&c, (size_t)s->max_picks, sizeof *b->sorted);
    b->tile = take(&c, (size_t)pf_cu_max_tiles(s->max_picks, s->n_expert), sizeof *b->tile);
    b->part = take(&c, pf_cu_attention_floats(s->max_rows, s->max_heads, n_chunks(s->n_ctx), s->max_head_dim), sizeof *b->part);
    return c.used;
}

static uint64_t cuda_scratch_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct cuda_backend measure = *(const struct cuda_backend *)backend;
    return carve(&measure, sizes, NULL);
}

static void widen(int *to, int at_least)
{
    if (*to < at_least)
        *to = at_least;
}

static pf_status cuda_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct cuda_backend *b = cuda_of(backend);
    struct pf_backend_sizes s = b->sizes;
    void *scratch;
    widen(&s.max_rows, sizes->max_rows);
    widen(&s.max_n_in, sizes->max_n_in);
    widen(&s.max_head_dim, sizes->max_head_dim);
    widen(&s.max_picks, sizes->max_picks);
    widen(&s.n_expert, sizes->n_expert);
    widen(&s.n_ff, sizes->n_ff);
    widen(&s.n_out, sizes->n_out);
    widen(&s.max_heads, sizes->max_heads);
    s.n_ctx = s.n_ctx > sizes->n_ctx ? s.n_ctx : sizes->n_ctx;
    if (s.n_expert > CU_ROUTE_EXPERTS || s.max_head_dim > CU_HEAD_DIM)
        PF_FAIL(PF_EUNSUPPORTED, "a model of %d experts and heads of %d is more than the GPU kernels take (%d and %d)", s.n_expert,
                s.max_head_dim, (int)CU_ROUTE_EXPERTS, (int)CU_HEAD_DIM);
    if (b->scratch && memcmp(&s, &b->sizes, sizeof s) == 0)
        return PF_OK;
    size_t bytes = (size_t)cuda_scratch_bytes(backend, &s);
    PF_TRY(device_alloc(b, bytes, "scratch", &scratch));
    cudaStreamSynchronize(b->stream);
    drop_graphs(b);
    device_free(b, b->scratch, b->scratch_bytes);
    b->scratch = scratch;
    b->scratch_bytes = bytes;
    b->sizes = s;
    carve(b, &s, scratch);
    struct cu_groups groups = { 0, b->sorted, b->tile };
    return check(cudaMemcpy(b->groups, &groups, sizeof groups, cudaMemcpyHostToDevice), "setting up scratch");
}

/* ---- Between operations ------------------------------------------------------------------------------------------- */

/* Starts what was held back. */
static pf_status settle(struct cuda_backend *b)
{
    struct held_add add = b->held;
    struct held_heads heads = b->heads;
    b->held.y = NULL;
    b->heads.n_norms = b->heads.n_ropes = 0;
    if (add.y)
        CU_TRY(pf_cu_add(b->stream, add.y, add.a, add.x, add.n), "adding");
    for (int i = 0; i < heads.n_norms; i++)
        CU_TRY(pf_cu_norm(b->stream, &heads.norm[i]), "a norm");
    return heads.n_ropes ? check(pf_cu_rope(b->stream, heads.rope, heads.n_ropes, heads.rows), "a rotation") : PF_OK;
}

/* n floats at p change. */
static void wrote(struct cuda_backend *b, const float *p, int64_t n)
{
    if (b->x_of && p < b->x_of + b->x_floats && b->x_of < p + n)
        b->x_of = NULL;
}

static pf_status cuda_upload(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *b = cuda_of(backend);
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    PF_TRY(settle(b));
    b->x_of = NULL;
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->stream), "copying to the GPU");
}

static pf_status cuda_download(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *b = cuda_of(backend);
    PF_TRY(settle(b));
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, b->stream), "copying from the GPU");
}

static void cuda_buf_copy(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *b = cuda_of(backend);
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, b->stream);
}

/* Chunks to launch for: a power of two, so that few graphs serve all lengths. */
static int chunk_bucket(const struct cuda_backend *b, int64_t n_positions)
{
    int n = 1, most = n_chunks(b->sizes.n_ctx);
    while (n < n_chunks(n_positions))
        n *= 2;
    return n < most ? n : most;
}

static bool alike(const struct pf_repeat *a, const struct pf_repeat *b)
{
    return a->buffers == b->buffers && a->state == b->state && a->rows == b->rows && a->n_logits == b->n_logits &&
           a->n_positions == b->n_positions;
}

/* The graph of such a step, or the one to forget for it. */
static struct graph *graph_of(struct cuda_backend *b, const struct pf_repeat *step)
{
    struct graph *oldest = &b->graphs[0];
    for (int i = 0; i < MAX_GRAPHS; i++) {
        if (alike(&b->graphs[i].step, step))
            return &b->graphs[i];
        if (b->graphs[i].age < oldest->age)
            oldest = &b->graphs[i];
    }
    if (oldest->exec)
        cudaGraphExecDestroy(oldest->exec);
    *oldest = (struct graph){ .step = *step };
    return oldest;
}

static pf_status cuda_begin(pf_backend *backend, const struct pf_repeat *r, bool *replayed)
{
    struct cuda_backend *b = cuda_of(backend);
    struct pf_repeat step = *r;
    *replayed = false;
    PF_TRY(settle(b));
    b->x_of = NULL;
    if (r->rows > GRAPH_ROWS || r->n_logits > 1)
        return PF_OK;
    step.n_positions = chunk_bucket(b, r->n_positions);
    struct graph *g = graph_of(b, &step);
    bool met = g->age > 0;
    g->age = ++b->n_begun;
    if (g->exec) {
        *replayed = true;
        b->base.weight_bytes_read += g->weight_bytes;
        return check(cudaGraphLaunch(g->exec, b->stream), "replaying a step");
    }
    if (met) {
        CU_TRY(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capturing a step");
        b->capturing = g;
        b->weight_bytes_before = b->base.weight_bytes_read;
    }
    return PF_OK;
}

/* Ends a capture; *graph is NULL if it came to nothing. */
static cudaError_t end_capture(struct cuda_backend *b, cudaGraph_t *graph)
{
    *graph = NULL;
    b->capturing = NULL;
    cudaError_t e = cudaStreamEndCapture(b->stream, graph);
    if (e != cudaSuccess)
        cudaGetLastError();
    return e;
}

static pf_status cuda_end(pf_backend *backend)
{
    struct cuda_backend *b = cuda_of(backend);
    struct graph *g = b->capturing;
    cudaGraph_t graph;
    PF_TRY(settle(b));
    b->x_of = NULL;
    if (!g)
        return PF_OK;
    CU_TRY(end_capture(b, &graph), "capturing a step");
    cudaError_t e = cudaGraphInstantiate(&g->exec, graph, 0);
    cudaGraphDestroy(graph);
    CU_TRY(e, "making a graph of a step");
    g->weight_bytes = b->base.weight_bytes_read - b->weight_bytes_before;
    return check(cudaGraphLaunch(g->exec, b->stream), "replaying a step");
}

static pf_status cuda_finish(pf_backend *backend)
{
    struct cuda_backend *b = cuda_of(backend);
    pf_status st = settle(b);
    cudaGraph_t unfinished;
    if (b->capturing && end_capture(b, &unfinished) == cudaSuccess)
        cudaGraphDestroy(unfinished);
    b->x_of = NULL;
    CU_TRY(cudaStreamSynchronize(b->stream), "a step");
    PF_TRY(st);
    int fault = *b->fault;
    *b->fault = CU_FINE;
    if (fault == CU_ACTIVATION_NOT_FINITE)
        PF_FAIL(PF_ENUMERIC, "an activation in front of a quantised product is not finite");
    if (fault == CU_ROUTER_NOT_FINITE)
        PF_FAIL(PF_ENUMERIC, "a router logit is not finite");
    return PF_OK;
}

/* ---- Operations --------------------------------------------------------------------------------------------------- */

static bool is_quantised(enum pf_qtype type)
{
    return !pf_qtype_info(type)->is_float;
}

static pf_status cuda_embed(pf_backend *backend, const struct pf_weight *w, const int32_t *ids, int rows, float *x)
{
    struct cuda_backend *b = cuda_of(backend);
    const uint8_t *data;
    PF_TRY(settle(b));
    PF_TRY(matrix_at(b, w->data, &data));
    wrote(b, x, (int64_t)rows * w->n_in);
    return check(pf_cu_embed(b->stream, w->type, data, w->row_bytes, w->n_in, w->scale, ids, rows, x, &b->tables), "embedding");
}

static pf_status cuda_rms_norm(pf_backend *backend, const float *x, const float *w, float eps, int n, int rows, float *y)
{
    struct cuda_backend *b = cuda_of(backend);
    struct cu_norm o = { .x = (float *)(uintptr_t)x, .eps = eps, .n = n, .rows = rows, .y = y, .fault = b->fault };
    bool with_add = b->held.y == x && b->held.n == (int64_t)n * rows;
    bool for_product = y != x && n % 32 == 0 && n <= b->sizes.max_n_in && rows <= b->sizes.max_rows;
    if (with_add) {
        o.add = b->held.x;
        o.a = b->held.a;
        b->held.y = NULL;
    }
    PF_TRY(floats_at(b, w, (size_t)n, &o.w));
    wrote(b, y, o.n * (int64_t)rows);
    if (y == x && !with_add && !b->held.y && b->heads.n_ropes == 0 && b->heads.n_norms < 2) {
        b->heads.norm[b->heads.n_norms++] = o;
        return PF_OK;
    }
    PF_TRY(settle(b));
    if (for_product) {
        o.q = b->x;
        b->x_of = y;
        b->x_floats = (int64_t)n * rows;
    }
    return check(pf_cu_norm(b->stream, &o), "a norm");
}

/* Makes sure that b->x holds the rows x. */
static pf_status quantise_x(struct cuda_backend *b, const float *x, int n, int rows, bool quantised, struct cu_x *out)
{
    if (quantised && !(b->x_of == x && b->x_floats >= (int64_t)n * rows)) {
        struct cu_x to = b->x;
        to.f = x;
        CU_TRY(pf_cu_quantise(b->stream, &to, n, rows, b->fault), "quantising");
        b->x_of = x;
        b->x_floats = (int64_t)n * rows;
    }
    *out = b->x;
    out->f = x;
    return PF_OK;
}

/* The products of l that share the type of the first which is not yet done; marks them. */
static pf_status same_type(struct cuda_backend *b, const struct pf_linear *l, int n_l, unsigned *done, struct cu_linear *out)
{
    out->n_parts = 0;
    for (int i = 0; i < n_l && out->n_parts < CU_MAX_PARTS; i++) {
        const struct pf_weight *w = l[i].w;
        if (*done >> i & 1 || (out->n_parts > 0 && w->type != out->type))
            continue;
        struct cu_part *p = &out->part[out->n_parts++];
        *p = (struct cu_part){ .y = l[i].y, .scale = w->scale, .n_out = w->n_out };
        PF_TRY(matrix_at(b, w->data, &p->w));
        PF_TRY(floats_at(b, w->bias, (size_t)w->n_out, &p->bias));
        out->type = w->type;
        out->row_bytes = w->row_bytes;
        *done |= 1u << i;
    }
    return PF_OK;
}

/* A quantised matrix against the rows of a prompt. */
static pf_status linear_tiles(struct cuda_backend *b, const struct pf_linear *l, const struct cu_x *x, int rows)
{
    const struct pf_weight *w = l->w;
    struct cu_tiles o = { .type = w->type, .row_bytes = w->row_bytes, .n = w->n_in, .n_out = w->n_out, .n_columns = rows, .x = *x,
                          .y = l->y, .tables = b->tables, .scale = w->scale };
    PF_TRY(matrix_at(b, w->data, &o.w));
    PF_TRY(floats_at(b, w->bias, (size_t)w->n_out, &o.bias));
    return check(pf_cu_tiles(b->stream, &o), "a product");
}

static pf_status cuda_linear(pf_backend *backend, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    struct cuda_backend *b = cuda_of(backend);
    struct cu_linear o = { .n = l[0].w->n_in, .rows = rows, .tables = b->tables };
    bool quantised = false;
    unsigned done = 0;
    PF_TRY(settle(b));
    for (int i = 0; i < n_l; i++) {
        quantised |= is_quantised(l[i].w->type);
        b->base.weight_bytes_read += l[i].w->row_bytes * (uint64_t)l[i].w->n_out;
    }
    PF_TRY(quantise_x(b, x, o.n, rows, quantised, &o.x));
    for (int i = 0; b->has_tiles && rows > CU_VECTOR_ROWS && i < n_l; i++)
        if (is_quantised(l[i].w->type)) {
            PF_TRY(linear_tiles(b, &l[i], &o.x, rows));
            done |= 1u << i;
        }
    while (done != (1u << n_l) - 1) {
        PF_TRY(same_type(b, l, n_l, &done, &o));
        CU_TRY(pf_cu_linear(b->stream, &o), "a product");
    }
    for (int i = 0; i < n_l; i++)
        wrote(b, l[i].y, (int64_t)rows * l[i].w->n_out);
    return PF_OK;
}

static pf_status cuda_act(pf_backend *backend, enum pf_act act, const float *gate, const float *up, int64_t n, float *y)
{
    struct cuda_backend *b = cuda_of(backend);
    PF_TRY(settle(b));
    wrote(b, y, n);
    return check(pf_cu_act(b->stream, act, gate, up, n, y), "an activation");
}

static pf_status cuda_add(pf_backend *backend, float *y, float a, const float *x, int64_t n)
{
    struct cuda_backend *b = cuda_of(backend);
    PF_TRY(settle(b));
    wrote(b, y, n);
    b->held = (struct held_add){ y, x, a, n };
    return PF_OK;
}

static pf_status cuda_add_gated(pf_backend *backend, float *y, const float *gate, const float *x, int n, int rows)
{
    struct cuda_backend *b = cuda_of(backend);
    PF_TRY(settle(b));
    wrote(b, y, (int64_t)n * rows);
    return check(pf_cu_add_gated(b->stream, y, gate, x, n, rows), "adding");
}

static pf_status cuda_rope(pf_backend *backend, const struct pf_rope_op *ropes, int n_ropes, int rows)
{
    struct cuda_backend *b = cuda_of(backend);
    for (int i = 0; i < n_ropes; i++)
        wrote(b, ropes[i].x, (int64_t)rows * ropes[i].n_head * ropes[i].hd);
    if (n_ropes == 2 && !b->held.y && b->heads.n_ropes == 0) {
        memcpy(b->heads.rope, ropes, sizeof b->heads.rope);
        b->heads.n_ropes = n_ropes;
        b->heads.rows = rows;
        return PF_OK;
    }
    PF_TRY(settle(b));
    return check(pf_cu_rope(b->stream, ropes, n_ropes, rows), "a rotation");
}

/* Whether what is held is all that happens to the heads before k is stored; then *out says it. */
static bool heads_together(const struct held_heads *h, const float *k, int rows, struct cu_heads *out)
{
    if (h->n_ropes != 2 || h->rows != rows || h->rope[1].x != k || h->rope[1].n_head != out->kv.n_kv_head ||
        h->rope[1].hd != out->kv.hd_k || h->rope[0].hd > CU_HEAD_DIM || h->rope[1].hd > CU_HEAD_DIM)
        return false;
    memcpy(out->rope, h->rope, sizeof out->rope);
    for (int i = 0; i < h->n_norms; i++) {
        const struct cu_norm *norm = &h->norm[i];
        int part = norm->x == h->rope[1].x;
        const struct pf_rope_op *r = &h->rope[part];
        if (norm->x != r->x || norm->n != r->hd || norm->rows != rows * r->n_head || norm->eps != h->norm[0].eps)
            return false;
        out->norm[part] = true;
        out->weight[part] = norm->w;
        out->eps = norm->eps;
    }
    return true;
}

static pf_status cuda_kv_store(pf_backend *backend, const struct pf_kv_view *kv, const float *k, const float *v,
                               const int32_t *pos, int rows)
{
    struct cuda_backend *b = cuda_of(backend);
    struct cu_heads o = { .kv = *kv, .v = v, .pos = pos, .rows = rows };
    if (heads_together(&b->heads, k, rows, &o)) {
        b->heads.n_norms = b->heads.n_ropes = 0;
        return check(pf_cu_heads(b->stream, &o), "queries and keys");
    }
    PF_TRY(settle(b));
    return check(pf_cu_kv_store(b->stream, kv, k, v, pos, rows), "storing keys and values");
}

static pf_status cuda_attention(pf_backend *backend, const struct pf_attention_op *a)
{
    struct cuda_backend *b = cuda_of(backend);
    struct pf_attention_op o = *a;
    PF_TRY(settle(b));
    PF_TRY(floats_at(b, a->sinks, (size_t)a->n_head, &o.sinks));
    int64_t n_out = (int64_t)a->n_head * a->kv->hd_v;
    bool for_product = a->rows <= CU_VECTOR_ROWS && a->kv->hd_v % 32 == 0 && n_out <= b->sizes.max_n_in;
    struct cu_x x = b->x;
    wrote(b, a->out, a->rows * n_out);
    if (for_product) {
        b->x_of = a->out;
        b->x_floats = a->rows * n_out;
    } else {
        x.q = NULL;
    }
    return check(pf_cu_attention(b->stream, &o, chunk_bucket(b, a->n_positions), b->part, &x, b->fault), "attention");
}

static pf_status cuda_route(pf_backend *backend, const struct pf_routing *r, const float *logits, const float *select_bias,
                            int rows, int32_t *picks, float *weights)
{
    struct cuda_backend *b = cuda_of(backend);
    const float *bias;
    PF_TRY(settle(b));
    PF_TRY(floats_at(b, select_bias, (size_t)r->n_expert, &bias));
    return check(pf_cu_route(b->stream, r, logits, bias, rows, picks, weights, b->fault), "routing");
}

static pf_status cuda_copy(pf_backend *backend, const struct pf_copy *copies, int n_copies, int rows)
{
    struct cuda_backend *b = cuda_of(backend);
    PF_TRY(settle(b));
    for (int i = 0; i < n_copies; i++)
        wrote(b, copies[i].to, (rows - 1) * copies[i].to_row + (int64_t)copies[i].n_blocks * copies[i].to_block);
    return check(pf_cu_copy(b->stream, copies, n_copies, rows), "a copy");
}

static pf_status cuda_conv(pf_backend *backend, const struct pf_conv_op *c)
{
    struct cuda_backend *b = cuda_of(backend);
    struct pf_conv_op o = *c;
    PF_TRY(settle(b));
    PF_TRY(floats_at(b, c->w, (size_t)c->n * (size_t)c->taps, &o.w));
    wrote(b, c->y, (int64_t)c->rows * c->n);
    return check(pf_cu_conv(b->stream, &o), "a convolution");
}

static pf_status cuda_delta(pf_backend *backend, const struct pf_delta_op *d)
{
    struct cuda_backend *b = cuda_of(backend);
    struct pf_delta_op o = *d;
    PF_TRY(settle(b));
    PF_TRY(floats_at(b, d->a, (size_t)d->n_v_head, &o.a));
    PF_TRY(floats_at(b, d->dt, (size_t)d->n_v_head, &o.dt));
    wrote(b, d->out, (int64_t)d->rows * d->n_v_head * d->d);
    return check(pf_cu_delta(b->stream, &o), "a delta net");
}

/* ---- Experts ------------------------------------------------------------------------------------------------------ */

static pf_status expert_weight(struct cuda_backend *b, const struct pf_expert_weight *w, int n_expert, struct cu_expert_weight *out)
{
    *out = (struct cu_expert_weight){ .type = w->type, .row_bytes = w->row_bytes };
    PF_TRY(table_at(b, w->data, n_expert, &out->data));
    PF_TRY(floats_at(b, w->scale, (size_t)n_expert, &out->scale));
    return floats_at(b, w->bias, (size_t)n_expert * (size_t)w->n_out, &out->bias);
}

/* a = act(gate x, up x) for every pick, quantised if down wants that. */
static pf_status gate_up(struct cuda_backend *b, const struct pf_experts_op *e, bool quantised)
{
    int n_ff = e->gate->n_out, n_picks = e->rows * e->n_used;
    struct cu_experts o = { .act = e->act, .weigh_input = e->weigh_input, .n = e->gate->n_in, .n_out = n_ff, .n_used = e->n_used,
                            .rows = e->rows, .picks = e->picks, .weights = e->weights, .tables = b->tables };
    struct cu_x out = b->a;
    PF_TRY(quantise_x(b, e->x, o.n, e->rows, is_quantised(e->gate->type) || is_quantised(e->up->type), &o.x));
    PF_TRY(expert_weight(b, e->gate, e->n_expert, &o.w));
    PF_TRY(expert_weight(b, e->up, e->n_expert, &o.w2));
    if (e->gate->type == e->up->type) {
        out.q = quantised ? out.q : NULL;
        return check(pf_cu_gate_up(b->stream, &o, &out, b->fault), "gate and up");
    }
    float *gate = (float *)(uintptr_t)out.f;
    CU_TRY(pf_cu_expert_rows(b->stream, &o, gate), "gate");
    o.w = o.w2;
    CU_TRY(pf_cu_expert_rows(b->stream, &o, b->up), "up");
    CU_TRY(pf_cu_act(b->stream, e->act, gate, b->up, (int64_t)n_picks * n_ff, gate), "an activation");
    return quantised ? check(pf_cu_quantise(b->stream, &out, n_ff, n_picks, b->fault), "quantising") : PF_OK;
}

/* One matrix of every expert, for the picks of a prompt, which lie grouped in b->groups. */
static pf_status expert_tiles(struct cuda_backend *b, const struct pf_experts_op *e, const struct pf_expert_weight *w,
                              const struct cu_x *x, int x_divisor, const float *weights, float *y)
{
    struct cu_expert_weight cw;
    PF_TRY(expert_weight(b, w, e->n_expert, &cw));
    struct cu_tiles o = { .type = w->type, .row_bytes = w->row_bytes, .n = w->n_in, .n_out = w->n_out,
                          .n_columns = e->rows * e->n_used, .x = *x, .bias = cw.bias, .y = y, .tables = b->tables,
                          .groups = b->groups, .table = cw.data, .scales = cw.scale, .weights = weights,
                          .n_expert = e->n_expert, .x_divisor = x_divisor };
    return check(pf_cu_tiles(b->stream, &o), "a product of experts");
}

static pf_status experts_of_prompt(struct cuda_backend *b, const struct pf_experts_op *e)
{
    int n_ff = e->gate->n_out, n_picks = e->rows * e->n_used;
    const float *weights = e->weigh_input ? e->weights : NULL;
    float *gate = (float *)(uintptr_t)b->a.f;
    struct cu_x x;
    PF_TRY(quantise_x(b, e->x, e->gate->n_in, e->rows, true, &x));
    CU_TRY(pf_cu_group(b->stream, e->picks, n_picks, e->n_expert, b->groups), "sorting picks");
    PF_TRY(expert_tiles(b, e, e->gate, &x, e->n_used, weights, gate));
    PF_TRY(expert_tiles(b, e, e->up, &x, e->n_used, weights, b->up));
    CU_TRY(pf_cu_act(b->stream, e->act, gate, b->up, (int64_t)n_picks * n_ff, gate), "an activation");
    CU_TRY(pf_cu_quantise(b->stream, &b->a, n_ff, n_picks, b->fault), "quantising");
    PF_TRY(expert_tiles(b, e, e->down, &b->a, 1, NULL, b->pick_out));
    return check(pf_cu_combine(b->stream, b->pick_out, e->weigh_input ? NULL : e->weights, e->down->n_out, e->n_used, e->rows, e->y),
                 "adding experts");
}

static uint64_t expert_bytes(const struct pf_expert_weight *w)
{
    return w->row_bytes * (uint64_t)w->n_out;
}

static pf_status cuda_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cuda_backend *b = cuda_of(backend);
    struct cu_experts o = { .weigh_input = e->weigh_input, .n = e->gate->n_out, .n_out = e->down->n_out, .n_used = e->n_used,
                            .rows = e->rows, .picks = e->picks, .weights = e->weights, .x = b->a, .tables = b->tables };
    PF_TRY(settle(b));
    b->base.weight_bytes_read += (uint64_t)(e->rows * e->n_used) * (expert_bytes(e->gate) + expert_bytes(e->up) + expert_bytes(e->down));
    if (b->has_tiles && e->rows > CU_VECTOR_ROWS && is_quantised(e->gate->type) && is_quantised(e->up->type) && is_quantised(e->down->type)) {
        wrote(b, e->y, (int64_t)e->rows * e->down->n_out);
        return experts_of_prompt(b, e);
    }
    PF_TRY(gate_up(b, e, is_quantised(e->down->type)));
    PF_TRY(expert_weight(b, e->down, e->n_expert, &o.w));
    wrote(b, e->y, (int64_t)e->rows * e->down->n_out);
    return check(pf_cu_down(b->stream, &o, e->y), "down");
}

/* ---- Opening and closing ------------------------------------------------------------------------------------------ */

static void cuda_close(pf_backend *backend)
{
    struct cuda_backend *b = cuda_of(backend);
    if (!b)
        return;
    cudaSetDevice(b->device);
    if (b->stream)
        cudaStreamSynchronize(b->stream);
    for (int i = 0; i < b->n_owned; i++)
        cudaFree(b->owned[i]);
    drop_graphs(b);
    cudaFree(b->scratch);
    cudaFreeHost(b->fault);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    cudaGetLastError();
    pf_free(b->placed);
    pf_free(b);
}

static const char *cuda_describe(const pf_backend *backend)
{
    return ((const struct cuda_backend *)backend)->describe;
}

static const struct pf_backend_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .describe = cuda_describe,
    .place = cuda_place,
    .buf_alloc = cuda_buf_alloc,
    .buf_free = cuda_buf_free,
    .buf_copy = cuda_buf_copy,
    .upload = cuda_upload,
    .download = cuda_download,
    .finish = cuda_finish,
    .begin = cuda_begin,
    .end = cuda_end,
    .scratch_bytes = cuda_scratch_bytes,
    .reserve = cuda_reserve,
    .embed = cuda_embed,
    .rms_norm = cuda_rms_norm,
    .linear = cuda_linear,
    .act = cuda_act,
    .add = cuda_add,
    .add_gated = cuda_add_gated,
    .rope = cuda_rope,
    .kv_store = cuda_kv_store,
    .attention = cuda_attention,
    .route = cuda_route,
    .copy = cuda_copy,
    .conv = cuda_conv,
    .delta = cuda_delta,
    .experts = cuda_experts,
};

/* Kernels look numbers up in copies of the host's tables. */
static pf_status copy_tables(struct cuda_backend *b)
{
    const struct { const void *host; size_t bytes; const void **to; } tables[] = {
        { pf_grid_iq2_xxs, sizeof pf_grid_iq2_xxs, (const void **)&b->tables.iq2_xxs },
        { pf_grid_iq2_xs, sizeof pf_grid_iq2_xs, (const void **)&b->tables.iq2_xs },
        { pf_grid_iq2_s, sizeof pf_grid_iq2_s, (const void **)&b->tables.iq2_s },
        { pf_grid_iq1, sizeof pf_grid_iq1, (const void **)&b->tables.iq1 },
        { pf_grid_iq3_xxs, sizeof pf_grid_iq3_xxs, (const void **)&b->tables.iq3_xxs },
        { pf_grid_iq3_s, sizeof pf_grid_iq3_s, (const void **)&b->tables.iq3_s },
        { pf_codebook_iq4, sizeof pf_codebook_iq4, (const void **)&b->tables.iq4 },
        { pf_codebook_e2m1, sizeof pf_codebook_e2m1, (const void **)&b->tables.e2m1 },
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        void *dev;
        PF_TRY(copy_in(b, tables[i].host, tables[i].bytes, &dev));
        *tables[i].to = dev;
    }
    return PF_OK;
}

static pf_status open_parts(struct cuda_backend *b, uint64_t vram_bytes)
{
    enum { LEAVE_BYTES = 256 << 20 };        /* for the driver's own needs and for other programs */
    struct cudaDeviceProp prop;
    size_t free_bytes, total_bytes;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    CU_TRY(cudaGetDeviceProperties(&prop, b->device), "asking the GPU");
    CU_TRY(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
    b->budget = free_bytes > LEAVE_BYTES ? free_bytes - LEAVE_BYTES : 0;
    if (vram_bytes && vram_bytes < b->budget)
        b->budget = vram_bytes;
    b->has_tiles = prop.sharedMemPerBlockOptin >= pf_cu_tile_bytes();
    snprintf(b->describe, sizeof b->describe, "sm_%d%d", prop.major, prop.minor);
    CU_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "opening a stream");
    CU_TRY(cudaHostAlloc((void **)&b->fault, sizeof *b->fault, cudaHostAllocMapped), "allocating pinned memory");
    *b->fault = CU_FINE;
    CU_TRY(pf_cu_probe(b->stream), "running a kernel");
    CU_TRY(cudaStreamSynchronize(b->stream), "running a kernel");
    return copy_tables(b);
}

pf_status pf_backend_cuda_open(pf_backend **out, int device, uint64_t vram_bytes)
{
    int n = 0;
    *out = NULL;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        n = 0;
    cudaGetLastError();
    if (device < 0 || device >= n)
        PF_FAIL(PF_EDEVICE, "there is no GPU %d: this machine has %d that CUDA can use", device, n);
    struct cuda_backend *b = pf_alloc(PF_MEM_KERNELS, sizeof *b);
    if (!b)
        PF_FAIL(PF_ENOMEM, "no memory for the CUDA backend");
    b->base.ops = &cuda_ops;
    b->device = device;
    pf_status st = open_parts(b, vram_bytes);
    if (st < 0) {
        cuda_close(&b->base);
        return st;
    }
    *out = &b->base;
    return PF_OK;
}

bool pf_backend_cuda_device(int i, struct pf_device *out)
{
    struct cudaDeviceProp prop;
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || i >= n || cudaGetDeviceProperties(&prop, i) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    *out = (struct pf_device){ .backend = "cuda", .memory_bytes = prop.totalGlobalMem, .n_units = prop.multiProcessorCount };
    snprintf(out->name, sizeof out->name, "%.63s", prop.name);
    return true;
}

/* The best of a few runs over much more than the cache holds. */
static cudaError_t measure_read(char *memory, size_t bytes, float *best_ms)
{
    enum { RUNS = 4 };
    cudaEvent_t begin, end;
    cudaError_t e = cudaEventCreate(&begin);
    if (e != cudaSuccess)
        return e;
    e = cudaEventCreate(&end);
    for (int i = 0; e == cudaSuccess && i < RUNS; i++) {
        float ms = 0;
        cudaEventRecord(begin, 0);
        pf_cu_read(0, memory, bytes, (uint32_t *)(void *)(memory + bytes));
        cudaEventRecord(end, 0);
        e = cudaEventSynchronize(end);
        if (e == cudaSuccess)
            e = cudaEventElapsedTime(&ms, begin, end);
        if (i == 0 || ms < *best_ms)
            *best_ms = ms;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return e;
}

double pf_backend_cuda_bandwidth(int i)
{
    struct pf_device gpu;
    size_t bytes = (size_t)1 << 30;
    void *memory = NULL;
    float ms = 0;
    if (!pf_backend_cuda_device(i, &gpu) || cudaSetDevice(i) != cudaSuccess || cudaMalloc(&memory, bytes + ALIGN) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    cudaError_t e = cudaMemset(memory, 0, bytes + ALIGN);
    if (e == cudaSuccess)
        e = measure_read(memory, bytes, &ms);
    cudaFree(memory);
    cudaGetLastError();
    return e == cudaSuccess && ms > 0 ? (double)bytes / ms * 1e3 : 0;
}

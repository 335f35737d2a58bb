/* Scratch: one piece of device memory, cut up for the largest batch that any session may ask for. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda_backend.h"

struct carver {
    char  *base;             /* NULL: only measure */
    size_t used;
};

static void *take(struct carver *c, size_t n, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (n * size + CUDA_OVERREAD + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    return p;
}

static void take_x(struct carver *c, struct cu_x *x, size_t rows, size_t n)
{
    x->q = take(c, rows * n, sizeof *x->q);
    x->d = take(c, rows * (n / 32 + 1), sizeof *x->d);
    x->s = take(c, rows * (n / 16 + 2), sizeof *x->s);
}

static size_t n_counts(const struct pf_backend_sizes *s)
{
    return (size_t)CU_VECTOR_ROWS * (size_t)s->max_heads;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t carve(struct cuda_backend *b, const struct pf_backend_sizes *s, char *base)
{
    struct carver c = { .base = base };
    take_x(&c, &b->x, (size_t)s->max_rows, (size_t)s->max_n_in);
    take_x(&c, &b->acts, (size_t)(s->max_rows < CU_VECTOR_ROWS ? s->max_rows : CU_VECTOR_ROWS), (size_t)s->max_n_in);
    take_x(&c, &b->a, (size_t)s->max_picks, (size_t)s->n_ff);
    take_x(&c, &b->h, (size_t)s->max_head_rows, (size_t)s->max_head_n_in);
    b->scores = take(&c, (size_t)CU_CHOOSE_ROWS * (size_t)s->max_positions, sizeof *b->scores);
    b->a.f = take(&c, (size_t)s->max_picks * (size_t)s->n_ff, sizeof *b->a.f);
    b->up = take(&c, (size_t)s->max_picks * (size_t)s->n_ff, sizeof *b->up);
    b->pick_out = take(&c, (size_t)s->max_picks * (size_t)s->n_out, sizeof *b->pick_out);
    b->low = take(&c, (size_t)s->max_picks * (size_t)s->expert_rank, sizeof *b->low);
    b->groups = take(&c, 1, sizeof *b->groups);
    b->sorted = take(&c, (size_t)s->max_picks, sizeof *b->sorted);
    b->tile = take(&c, b->has_tiles ? (size_t)pf_cu_max_tiles(s->max_picks, s->n_expert, b->shape.width) : 0,
                   sizeof *b->tile);
    size_t n_x = (size_t)s->max_rows, n_a = (size_t)s->max_picks, in = (size_t)s->max_n_in, ff = (size_t)s->n_ff;
    b->halves = take(&c, b->shape.groups ? max_size(n_x * in, n_a * ff) : 0, sizeof *b->halves);
    b->block_scales = take(&c, b->shape.groups ? 4 * max_size(n_x * (in / 128 + 1), n_a * (ff / 128 + 1)) : 0,
                           sizeof *b->block_scales);
    size_t part = pf_cu_attention_floats(s->max_rows, s->max_heads, pf_cuda_n_chunks(s->n_ctx), s->max_head_dim);
    b->part = take(&c, part, sizeof *b->part);
    b->n_part = part;
    size_t latent = pf_cu_latent_floats(s->max_rows, s->max_latent_heads, pf_cuda_n_chunks(s->n_ctx));
    b->latent_scores = latent ? take(&c, latent, sizeof *b->latent_scores) : NULL;
    b->count = take(&c, n_counts(s), sizeof *b->count);
    b->q16 = take(&c, (size_t)s->max_rows * (size_t)s->max_i16 + (s->max_i16 ? CU_LATENT_SPARE : 0), 2);
    b->cq = take(&c, s->max_i16 ? 2 * (size_t)s->max_rows * (size_t)s->max_heads : 0, sizeof *b->cq);
    return c.used;
}

/* From any thread, also while a step runs: so nothing is read but what opening settled. */
uint64_t pf_cuda_scratch_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    const struct cuda_backend *b = (const struct cuda_backend *)backend;
    struct cuda_backend measure = { .has_tiles = b->has_tiles, .shape = b->shape };
    return carve(&measure, sizes, NULL);
}

static void widen(int *to, int at_least)
{
    if (*to < at_least)
        *to = at_least;
}

/* What serves such batches and those that the scratch is made for. */
static struct pf_backend_sizes widest(const struct cuda_backend *b, const struct pf_backend_sizes *sizes)
{
    struct pf_backend_sizes s = b->sizes;
    widen(&s.max_rows, sizes->max_rows);
    widen(&s.max_n_in, sizes->max_n_in);
    widen(&s.max_head_rows, sizes->max_head_rows);
    widen(&s.max_head_n_in, sizes->max_head_n_in);
    widen(&s.max_positions, sizes->max_positions);
    widen(&s.max_head_dim, sizes->max_head_dim);
    widen(&s.max_latent_heads, sizes->max_latent_heads);
    widen(&s.max_i16, sizes->max_i16);
    widen(&s.max_picks, sizes->max_picks);
    widen(&s.n_expert, sizes->n_expert);
    widen(&s.n_ff, sizes->n_ff);
    widen(&s.n_out, sizes->n_out);
    widen(&s.max_heads, sizes->max_heads);
    widen(&s.expert_rank, sizes->expert_rank);
    s.n_ctx = s.n_ctx > sizes->n_ctx ? s.n_ctx : sizes->n_ctx;
    return s;
}

uint64_t pf_cuda_scratch_more(const pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    const struct cuda_backend *b = (const struct cuda_backend *)backend;
    struct pf_backend_sizes s = widest(b, sizes);
    uint64_t bytes = pf_cuda_scratch_bytes(backend, &s);
    return bytes > b->scratch_bytes ? bytes - b->scratch_bytes : 0;
}

/* Gives the scratch back; nothing that it held is of use after a step. */
static void give_back(struct cuda_backend *b)
{
    pf_cuda_free(b, b->scratch, b->scratch_bytes);
    b->scratch = NULL;
    b->scratch_bytes = 0;
}

/* Takes a scratch for such sizes, where there is none. */
static pf_status take_scratch(struct cuda_backend *b, const struct pf_backend_sizes *s)
{
    size_t bytes = (size_t)pf_cuda_scratch_bytes(&b->base, s);
    void *scratch;
    PF_TRY(pf_cuda_alloc(b, bytes, "scratch", &scratch));
    b->scratch = scratch;
    b->scratch_bytes = bytes;
    b->sizes = *s;
    carve(b, s, scratch);
    CU_TRY(cudaMemsetAsync(b->count, 0, n_counts(s) * sizeof *b->count, b->stream), "setting up scratch");
    struct cu_groups groups = { 0, b->sorted, b->tile };
    return pf_cuda_check(cudaMemcpyAsync(b->groups, &groups, sizeof groups, cudaMemcpyHostToDevice, b->stream),
                         "setting up scratch");
}

/* Makes the scratch larger. The old one goes first, as there may be no room for both; where the larger one is not to be
 * had, one like it comes back. */
static pf_status grow(struct cuda_backend *b, const struct pf_backend_sizes *s)
{
    struct pf_backend_sizes old = b->sizes;
    bool had = b->scratch;
    give_back(b);
    pf_status st = take_scratch(b, s);
    if (st == PF_OK || !had)
        return st;
    char why[256];
    snprintf(why, sizeof why, "%s", pf_last_error());
    give_back(b);
    if (take_scratch(b, &old) != PF_OK)
        PF_FAIL(PF_EDEVICE, "%s; nor is there memory for the scratch that the GPU had before", why);
    PF_FAIL(st, "%s", why);
}

pf_status pf_cuda_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_backend_sizes s = widest(b, sizes);
    if (s.n_expert > CU_ROUTE_EXPERTS || s.max_head_dim > CU_HEAD_DIM)
        PF_FAIL(PF_EUNSUPPORTED, "a model of %d experts and heads of %d is more than the GPU kernels take (%d and %d)",
                s.n_expert, s.max_head_dim, (int)CU_ROUTE_EXPERTS, (int)CU_HEAD_DIM);
    if (b->scratch && memcmp(&s, &b->sizes, sizeof s) == 0)
        return PF_OK;
    PF_TRY(pf_cuda_settle(b));
    cudaStreamSynchronize(b->stream);
    pf_cuda_drop_graphs(b);
    return grow(b, &s);
}

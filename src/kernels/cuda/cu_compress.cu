/* Rows of blocks (struct pf_compress_op in backend.h): a thread a channel, which goes over the rows in order. */
#include "kernels/cuda/cu_device.h"

enum { THREADS = 64 };

/* A running softmax. */
struct sums {
    float m, z, a;
};

CU_INLINE void add(struct sums &s, float u, float t)
{
    float top = s.m > t ? s.m : t, old = pf_expf(s.m - top), fresh = pf_expf(t - top);
    s.z = fmaf(s.z, old, fresh);
    s.a = fmaf(s.a, old, fresh * u);
    s.m = top;
}

CU_INLINE struct sums load(const float *state, int n, int block, int c)
{
    if (!state)
        return { -INFINITY, 0, 0 };
    const float *m = state + (size_t)block * 3 * n + c;
    return { m[0], m[n], m[2 * n] };
}

CU_INLINE void store(float *state, int n, int block, int c, struct sums s)
{
    float *m = state + (size_t)block * 3 * n + c;
    m[0] = s.m, m[n] = s.z, m[2 * n] = s.a;
}

static __global__ void compress(const __grid_constant__ struct pf_compress_op o)
{
    wait_turn();
    int c = blockIdx.x * THREADS + threadIdx.x, n = o.n, width = o.overlaps ? 2 * n : n, n_full = 0;
    if (c >= n)
        return;
    const struct sums nothing = { -INFINITY, 0, 0 };
    struct sums own = load(o.before, n, 0, c), next = o.overlaps ? load(o.before, n, 1, c) : nothing;
    for (int r = 0; r < o.rows; r++) {
        const float *u = o.u + (size_t)r * width + c, *gate = o.gate ? o.gate + (size_t)r * width + c : NULL;
        const float *ape = o.ape + (size_t)(o.pos[r] % o.ratio) * width + c;
        int at = width - n;                  /* the channel's place among those of the own block */
        add(own, u[at], gate ? gate[at] + ape[at] : 0.0f);
        if (o.overlaps)
            add(next, u[0], gate[0] + ape[0]);
        if ((o.pos[r] + 1) % o.ratio == 0) {
            o.out[(size_t)n_full++ * n + c] = own.a / own.z;
            own = next;
            next = nothing;
        }
    }
    for (; n_full < o.n_out; n_full++)
        o.out[(size_t)n_full * n + c] = 0;
    store(o.after, n, 0, c, own);
    if (o.overlaps)
        store(o.after, n, 1, c, next);
}

extern "C" cudaError_t pf_cu_compress(cudaStream_t st, const struct pf_compress_op *o)
{
    return launch_early(compress, ceil_div(o->n, THREADS), THREADS, 0, st, *o);
}

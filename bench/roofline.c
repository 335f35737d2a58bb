/* See roofline.h. */
#include "roofline.h"

#include <math.h>

#include "pfmoe.h"

struct reading {
    struct membw *bw;
    int    n_threads;
    double bytes_s;
};

static void read_memory(void *ctx)
{
    struct reading *r = ctx;
    r->bytes_s = membw_read(r->bw, r->n_threads) * 1e9;
}

void rates_measure(struct rates *r, struct membw *bw, int n_threads, int gpu, bool beside, bool copies)
{
    struct reading alone = { bw, n_threads, 0 }, joint = alone;
    size_t bytes;
    void *memory = membw_memory(bw, &bytes);
    *r = (struct rates){ .vram = gpu >= 0 ? pf_gpu_bandwidth(gpu) : 0 };
    if (gpu >= 0 && !beside)
        return;
    read_memory(&alone);
    r->ram = alone.bytes_s;
    if (!copies)
        return;
    r->pcie = pf_gpu_copy_bandwidth(gpu, memory, bytes, NULL, NULL);
    double beside_reading = pf_gpu_copy_bandwidth(gpu, memory, bytes, read_memory, &joint);
    r->joint = beside_reading > 0 ? beside_reading + joint.bytes_s : 0;
}

/* Seconds; infinite if nobody knows how fast it goes. */
static double seconds(double bytes, double bytes_s)
{
    return bytes <= 0 ? 0 : bytes_s > 0 ? bytes / bytes_s : INFINITY;
}

double roofline_tok_s(const struct rates *r, const struct token_work *w)
{
    double t = seconds(w->gpu_bytes, r->vram), together = fmin(r->ram + r->pcie, r->joint);
    if (w->shared) {
        double held = seconds(w->held * w->rest_bytes, r->vram), missed = (1 - w->held) * w->rest_bytes;
        t += w->handoffs_ns * 1e-9 + fmax(held, seconds(missed, together)) + seconds(w->far_bytes, together);
    } else {
        t += seconds(w->rest_bytes, r->ram) + seconds(w->far_bytes, r->pcie);
    }
    return t > 0 && isfinite(t) ? 1 / t : 0;
}

/* The fastest a token could be: what it has to read, and how fast this machine reads it, measured beside the run.
 *
 *     T = what the GPU always reads / B_vram  +  shared layers * hand-off  +  max(held / B_vram, missed / B_missed)
 *         + far keys and values / B_missed
 *
 * B_missed = min(B_cpu + B_pcie, B_joint): main memory is read by the CPU and by copies to the GPU at once, and has to
 * feed both. Without a GPU, or where it takes whole layers, the rest is the CPU's alone: rest / B_cpu, one after the
 * other; far keys and values are read over PCIe alone then. */
#ifndef ROOFLINE_H
#define ROOFLINE_H

#include <stdbool.h>

#include "membw.h"

/* Bytes a second. 0: it could not be measured, or nobody needs it. */
struct rates {
    double vram, ram, pcie;              /* each alone: the GPU's memory, main memory, copies to the GPU */
    double joint;                        /* main memory, read by the CPU and by such copies at once */
};

/* gpu -1: none. beside: the CPU computes, too; copies: experts, or keys and values, cross to the GPU. */
void rates_measure(struct rates *r, struct membw *bw, int n_threads, int gpu, bool beside, bool copies);

/* The bytes and hand-offs of one decoded token. */
struct token_work {
    double gpu_bytes, rest_bytes;        /* weights that the GPU reads whatever is picked; all other weights */
    bool   shared;                       /* rest_bytes are experts that GPU and CPU share */
    double held;                         /* the fraction of rest_bytes in the GPU's memory */
    double far_bytes;                    /* keys and values of the GPU's layers that lie in main memory */
    double handoffs_ns;                  /* time of all hand-offs between GPU and CPU */
};

/* Tokens a second; 0 if a rate is missing. */
double roofline_tok_s(const struct rates *r, const struct token_work *w);

#endif

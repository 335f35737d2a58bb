/* The kernel harness: every entry of every level that this CPU can run, held bit for bit against the scalar level.
 *
 *     kernel_check [--seed N] [--only NAME] [--bench]
 *
 * A family of kernels is one file with a check and a bench over the same list; check.c calls them in turn. Inputs come
 * from a seed that is printed, never hold NaN, and never make one: differing NaNs would be a fault of the input.
 * Buffers end at a page that cannot be touched, so that a read past the end is a named failure. One thread. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct check_opts {
    uint64_t    seed;
    const char *only;            /* a type or entry, NULL: all */
    uint32_t    isa;             /* levels that need other bits are left out */
};

/* The families. check: prints a line per entry and returns the number of failures. */
int  check_products(const struct check_opts *o);
void bench_products(const struct check_opts *o);
int  check_float(const struct check_opts *o);
void bench_float(const struct check_opts *o);
int  check_i16(const struct check_opts *o);
void bench_i16(const struct check_opts *o);
int  check_latent(const struct check_opts *o);
void bench_latent(const struct check_opts *o);

/* ---- check.c ---------------------------------------------------------------------------------------------------- */

bool check_wants(const struct check_opts *o, const char *name);          /* --only, letters of either case */
bool check_runs(const struct check_opts *o, const struct pf_kernels *level);

/* Notes the call that comes next, for the message if it crashes. */
void check_doing(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t check_now_ns(void);

/* ---- check_data.c ----------------------------------------------------------------------------------------------- */

struct check_rng { uint64_t state; };

uint64_t check_bits(struct check_rng *rng);
int      check_int(struct check_rng *rng, int lo, int hi);               /* lo <= value <= hi */
float    check_real(struct check_rng *rng, int lo, int hi);              /* either sign, lo <= exponent <= hi */

/* Memory behind whose last byte an access faults; free it with the same size. */
uint8_t *check_fenced_new(size_t bytes);
void     check_fenced_free(uint8_t *p, size_t bytes);

/* Floats between guards: n may be written, and the words around them must stay as they are. */
enum { CHECK_GUARD = 64 };
float *check_guarded_new(struct check_rng *rng, size_t n);               /* not aligned to more than 4 bytes */
bool   check_guarded_intact(const float *p, size_t n);
void   check_guarded_free(float *p);

/* Kinds of rows of weights. fp16 scales are finite in all kinds. */
enum check_mood {
    CHECK_MIXED,                 /* random codes; each block's scales normal, zero, subnormal, negative or huge */
    CHECK_PLAIN,                 /* random codes, scales as in a model */
    CHECK_ONES, CHECK_ZEROS,     /* every bit outside the scales 1 or 0 */
    CHECK_ANY                    /* as CHECK_MIXED, and MXFP4 exponents whose sums overflow: for dequantisation */
};
void check_weights(struct check_rng *rng, enum pf_qtype type, enum check_mood mood, void *row, int n);

/* n_x rows of activations of several kinds (normal, extreme, zero, tiny, steps of 127), quantised as kernels.h says,
 * with rubbish in the padding. f of the last row is fenced; n need not be a multiple of 32 (then only f is set). */
struct check_acts {
    struct pf_xrow *x;
    int             n_x, n;
    uint8_t        *f_fence, *q_all;
    size_t          f_bytes;
};
struct check_acts check_acts_new(struct check_rng *rng, int n, int n_x, bool plain);
void              check_acts_free(struct check_acts *a);

#endif

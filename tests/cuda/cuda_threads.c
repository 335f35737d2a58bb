/* Two backends on one GPU, each with a thread of its own, launch the same kernel with different amounts of shared
 * memory, which is one setting of the process: no launch fails for what the other thread asked for. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "backend/backend.h"

enum { SKIP = 77, N_ROUNDS = 1000, N_QUEUED = 100, MOST = 8000 };

struct one {
    pf_backend *b;
    int         n;                           /* length of a norm's row: twice so many floats of shared memory */
    int         n_failed;
    char        why[256];
};

static void *norms(void *ctx)
{
    static const float w[MOST];
    struct one *o = ctx;
    size_t bytes = (size_t)o->n * sizeof(float);
    void *x = NULL, *y = NULL;
    pf_status st = o->b->ops->buf_alloc(o->b, bytes, false, &x);
    if (st == PF_OK)
        st = o->b->ops->buf_alloc(o->b, bytes, false, &y);
    for (int i = 0; i < N_ROUNDS && st == PF_OK; i++) {
        st = o->b->ops->rms_norm(o->b, x, w, 1e-5f, o->n, 1, y);
        if (st == PF_OK && i % N_QUEUED == 0)
            st = o->b->ops->finish(o->b);
    }
    if (st != PF_OK) {
        o->n_failed++;
        snprintf(o->why, sizeof o->why, "%s", pf_last_error());
    }
    o->b->ops->finish(o->b);
    o->b->ops->buf_free(o->b, y, bytes, false);
    o->b->ops->buf_free(o->b, x, bytes, false);
    return NULL;
}

int main(void)
{
    struct one one[2] = { { .n = 6400 }, { .n = MOST } };
    struct pf_backend_sizes sizes = { .max_rows = 1, .max_n_in = 256, .max_head_dim = 64, .max_picks = 1, .n_expert = 1,
                                      .n_ff = 256, .n_out = 256, .max_heads = 1, .n_ctx = 256 };
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        if (pf_backend_cuda_open(&one[i].b, 0, 256 << 20) < 0) {
            printf("skipped: %s\n", pf_last_error());
            return SKIP;
        }
        CHECK(one[i].b->ops->reserve(one[i].b, &sizes) == PF_OK, "%s", pf_last_error());
    }
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, norms, &one[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        CHECK(one[i].n_failed == 0, "rows of %d: %s", one[i].n, one[i].why);
        one[i].b->ops->close(one[i].b);
    }
    return check_status();
}

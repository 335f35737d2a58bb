/* The promise that output never depends on how it was computed: the logits of one prompt, evaluated whole, in pieces,
 * token by token, with any number of threads and any instruction set, are the same bits.
 *
 * Types of keys and values differ in attention alone, so with the second type each session takes over what another has
 * computed of most positions, and goes on over a chunk's end. So do scalar kernels, which take longer than all others,
 * with every type; tests/cli/check_score.py tries them from the first position on.
 *
 * usage: bits MODEL.gguf [q8_0]           with keys and values of I16 and F32, or of Q8_0 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "memory_file.h"
#include "pfmoe.h"

enum { N_TOKENS = 272, N_CTX = 288,        /* more than one chunk of 256 positions */
       N_TAKEN = 208 };                    /* positions that are taken over */

static int32_t tokens[N_TOKENS];

struct way {
    const char *name;
    int         n_threads, n_batch;
    int         first, piece;                /* tokens of the first eval, 0: as of the others; of those, 0: all */
    uint32_t    isa;
};

static bool open_both(const char *path, const struct way *w, enum pf_kv_type kv, pf_model **m, pf_session **s)
{
    struct pf_model_opts mo;
    struct pf_session_opts so;
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    mo.n_threads = w->n_threads;
    mo.isa = w->isa;
    so.n_ctx = N_CTX;
    so.n_batch = w->n_batch;
    so.kv_type = kv;
    bool open = pf_model_open(m, path, &mo) == PF_OK && pf_session_open(s, *m, &so) == PF_OK;
    CHECK(open, "%s", pf_last_error());
    return open;
}

/* Logits of every position behind those that are taken over (NULL: none are), to be freed; NULL on failure. */
static float *logits_of(const char *path, const struct way *w, enum pf_kv_type kv, struct file *taken, size_t *n_vocab)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    if (!open_both(path, w, kv, &m, &s))
        return NULL;
    *n_vocab = (size_t)pf_model_info(m)->n_vocab;
    float *all = malloc(N_TOKENS * *n_vocab * sizeof *all);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % *n_vocab);
    if (taken)
        taken->at = 0;
    CHECK(!taken || pf_session_load(s, read_file, taken) == PF_OK, "%s: %s", w->name, pf_last_error());
    for (int done = taken ? N_TAKEN : 0; done < N_TOKENS;) {
        int most = done < w->first ? w->first - done : w->piece ? w->piece : N_TOKENS;
        int n = most < N_TOKENS - done ? most : N_TOKENS - done;
        CHECK(pf_session_eval(s, tokens + done, (size_t)n, PF_LOGITS_ALL) == PF_OK, "%s: %s", w->name, pf_last_error());
        for (int i = 0; i < n; i++)
            memcpy(all + (size_t)(done + i) * *n_vocab, pf_session_logits_at(s, (size_t)i), *n_vocab * sizeof *all);
        done += n;
    }
    pf_session_close(&s);
    pf_model_close(&m);
    return all;
}

/* A session's first positions, to be taken over. */
static void save_some(const char *path, const struct way *w, enum pf_kv_type kv, struct file *f)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    if (open_both(path, w, kv, &m, &s))
        CHECK(pf_session_eval(s, tokens, N_TAKEN, 0) == PF_OK && pf_session_save(s, write_file, f) == PF_OK, "%s",
              pf_last_error());
    pf_session_close(&s);
    pf_model_close(&m);
}

static void compare(const char *path, const struct way *w, enum pf_kv_type kv, struct file *taken,
                    const float *expected)
{
    size_t n_vocab;
    float *found = logits_of(path, w, kv, taken, &n_vocab);
    if (!found)
        return;
    size_t n = N_TOKENS * n_vocab, i = taken ? N_TAKEN * n_vocab : 0;
    while (i < n && memcmp(&found[i], &expected[i], sizeof *found) == 0)
        i++;
    CHECK(i == n, "%s: position %zu, token %zu: %.9g, expected %.9g", w->name, i / n_vocab, i % n_vocab, found[i],
          expected[i]);
    free(found);
}

int main(int argc, char **argv)
{
    static const struct way ways[] = {
        { "two threads",            2, 512, 0,   0,  PF_ISA_ALL },
        { "five threads",           5, 512, 0,   0,  PF_ISA_ALL },
        { "token by token",         2, 512, 0,   1,  PF_ISA_ALL },
        { "pieces of 7",            3, 512, 0,   7,  PF_ISA_ALL },
        { "batches of 33",          2, 33,  0,   0,  PF_ISA_ALL },
        /* Some, then single tokens from before the first chunk's end on. */
        { "scalar, then by 1",      1, 512, 240, 1,  PF_ISA_SCALAR },
        { "AVX2",                   1, 512, 0,   0,  PF_ISA_SCALAR | PF_ISA_AVX2 },
        { "AVX2, by 1",             1, 512, 0,   1,  PF_ISA_SCALAR | PF_ISA_AVX2 },
        { "AVX2 with VNNI, by 5",   1, 512, 0,   5,  PF_ISA_SCALAR | PF_ISA_AVX2 | PF_ISA_AVXVNNI },
        { "AVX-512 without VNNI",   1, 512, 0,   0,  PF_ISA_SCALAR | PF_ISA_AVX2 | PF_ISA_AVX512 },
        { "AVX-512, by 5",          1, 512, 0,   5,  PF_ISA_SCALAR | PF_ISA_AVX2 | PF_ISA_AVX512 },
        { "without VBMI, by 1",     1, 512, 0,   1,  ~(unsigned)PF_ISA_VBMI },
        { "without AMX",            1, 512, 0,   5,  ~(unsigned)PF_ISA_AMX },
    };
    static const struct way usual = { "as usual", 1, 512, 0, 0, PF_ISA_ALL };
    if (argc < 2)
        return 2;
    for (enum pf_kv_type kv = argc > 2 ? PF_KV_Q8_0 : PF_KV_I16; kv <= (argc > 2 ? PF_KV_Q8_0 : PF_KV_F32); kv++) {
        size_t n_vocab, n_finite = 0;
        float *expected = logits_of(argv[1], &usual, kv, NULL, &n_vocab);
        if (!expected)
            return check_status();
        for (size_t i = 0; i < N_TOKENS * n_vocab; i++)
            n_finite += expected[i] - expected[i] == 0;
        CHECK(n_finite == N_TOKENS * n_vocab, "%zu logits are not finite", N_TOKENS * n_vocab - n_finite);
        struct file some = { 0 };
        save_some(argv[1], &usual, kv, &some);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            bool takes_over = kv == PF_KV_F32 || ways[i].isa == PF_ISA_SCALAR;
            compare(argv[1], &ways[i], kv, takes_over ? &some : NULL, expected);
        }
        free(some.data);
        free(expected);
    }
    return check_status();
}

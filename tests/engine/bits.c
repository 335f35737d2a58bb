/* The promise that output never depends on how it was computed: the logits of one prompt, evaluated whole, in pieces,
 * token by token, with any number of threads and any instruction set, are the same bits.
 *
 * usage: bits MODEL.gguf [q8_0]           with keys and values of F16 and F32, or of Q8_0 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "memory_file.h"
#include "pfmoe.h"

enum { N_TOKENS = 300, N_CTX = 320 };      /* more than one chunk of 256 positions */

static int32_t tokens[N_TOKENS];
static size_t  n_vocab;

struct way {
    const char *name;
    int         n_threads, n_batch, piece;   /* piece: tokens an eval; 0: all */
    uint32_t    isa;
    int         n_whole;                     /* types of keys and values with which it is shown all of the text */
};

/* What a slow way is shown with the other types: where the text begins, where windows of 128 positions are full, and
 * where the second chunk of keys begins and a model that chooses 270 positions begins to choose. Each part goes on from
 * a session that was saved there, evaluated as usual. */
struct part {
    int from, end;
};
static const struct part whole = { 0, N_TOKENS }, parts[] = { { 0, 24 }, { 120, 140 }, { 248, N_TOKENS } };
enum { N_PARTS = sizeof parts / sizeof *parts };
static struct file saved[N_PARTS];

static const struct way usual = { "as usual", 2, 512, 0, PF_ISA_ALL, 2 };

static bool open_way(const char *path, const struct way *w, enum pf_kv_type kv, pf_model **m, pf_session **s)
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
    bool ok = pf_model_open(m, path, &mo) == PF_OK && pf_session_open(s, *m, &so) == PF_OK;
    CHECK(ok, "%s: %s", w->name, pf_last_error());
    return ok;
}

/* Logits of the positions of a part, to their places among those of all. */
static void eval(pf_session *s, const struct way *w, struct part p, float *all)
{
    for (int done = p.from; done < p.end;) {
        int n = w->piece && w->piece < p.end - done ? w->piece : p.end - done;
        CHECK(pf_session_eval(s, tokens + done, (size_t)n, PF_LOGITS_ALL) == PF_OK, "%s: %s", w->name, pf_last_error());
        for (int i = 0; i < n; i++)
            memcpy(all + (size_t)(done + i) * n_vocab, pf_session_logits_at(s, (size_t)i), n_vocab * sizeof *all);
        done += n;
    }
}

/* Logits of every position, and what parts go on from. */
static bool make_expected(const char *path, enum pf_kv_type kv, float **expected)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    size_t n_finite = 0;
    bool ok = open_way(path, &usual, kv, &m, &s);
    if (ok) {
        n_vocab = (size_t)pf_model_info(m)->n_vocab;
        for (int i = 0; i < N_TOKENS; i++)
            tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
        *expected = malloc(N_TOKENS * n_vocab * sizeof **expected);
        eval(s, &usual, whole, *expected);
        for (size_t i = 0; i < N_TOKENS * n_vocab; i++)
            n_finite += (*expected)[i] - (*expected)[i] == 0;
        CHECK(n_finite == N_TOKENS * n_vocab, "%zu logits are not finite", N_TOKENS * n_vocab - n_finite);
        CHECK(pf_session_rewind(s, 0) == PF_OK, "%s", pf_last_error());
    }
    for (int i = 1; i < N_PARTS && ok; i++) {
        int64_t pos = pf_session_pos(s);
        saved[i].n = saved[i].at = 0;
        CHECK(pf_session_eval(s, tokens + pos, (size_t)(parts[i].from - pos), 0) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_save(s, write_file, &saved[i]) == PF_OK, "%s", pf_last_error());
    }
    pf_session_close(&s);
    pf_model_close(&m);
    return ok;
}

static void check_part(const struct way *w, struct part p, const float *found, const float *expected)
{
    size_t i = (size_t)p.from * n_vocab, end = (size_t)p.end * n_vocab;
    while (i < end && memcmp(&found[i], &expected[i], sizeof *found) == 0)
        i++;
    CHECK(i == end, "%s: position %zu, token %zu: %.9g, expected %.9g", w->name, i / n_vocab, i % n_vocab, found[i],
          expected[i]);
}

static void compare(const char *path, const struct way *w, enum pf_kv_type kv, bool in_parts, const float *expected)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    float *found = malloc(N_TOKENS * n_vocab * sizeof *found);
    bool ok = open_way(path, w, kv, &m, &s);
    for (int i = 0; ok && i < (in_parts ? N_PARTS : 1); i++) {
        struct part p = in_parts ? parts[i] : whole;
        saved[i].at = 0;
        CHECK(i == 0 || pf_session_load(s, read_file, &saved[i]) == PF_OK, "%s: %s", w->name, pf_last_error());
        eval(s, w, p, found);
        check_part(w, p, found, expected);
    }
    free(found);
    pf_session_close(&s);
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    static const struct way ways[] = {
        { "one thread",            1, 512, 0,  PF_ISA_ALL, 2 },
        { "five threads",          5, 512, 0,  PF_ISA_ALL, 2 },
        { "token by token",        2, 512, 1,  PF_ISA_ALL, 2 },
        { "pieces of 7",           3, 512, 7,  PF_ISA_ALL, 2 },
        { "batches of 33",         2, 33,  0,  PF_ISA_ALL, 2 },
        { "scalar",                2, 512, 0,  PF_ISA_SCALAR, 1 },
        { "scalar, by 1",          1, 512, 1,  PF_ISA_SCALAR, 0 },
        { "AVX2",                  2, 512, 0,  PF_ISA_SCALAR | PF_ISA_AVX2, 2 },
        { "AVX2, by 1",            2, 512, 1,  PF_ISA_SCALAR | PF_ISA_AVX2, 2 },
        { "AVX-512 without VNNI",  2, 512, 0,  PF_ISA_SCALAR | PF_ISA_AVX2 | PF_ISA_AVX512, 2 },
        { "AVX-512, by 5",         2, 512, 5,  PF_ISA_SCALAR | PF_ISA_AVX2 | PF_ISA_AVX512, 2 },
    };
    if (argc < 2)
        return 2;
    enum pf_kv_type first = argc > 2 ? PF_KV_Q8_0 : PF_KV_F16, last = argc > 2 ? PF_KV_Q8_0 : PF_KV_F32;
    for (enum pf_kv_type kv = first; kv <= last; kv++) {
        float *expected = NULL;
        if (!make_expected(argv[1], kv, &expected))
            break;
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            compare(argv[1], &ways[i], kv, (int)(kv - first) >= ways[i].n_whole, expected);
        free(expected);
    }
    for (int i = 0; i < N_PARTS; i++)
        free(saved[i].data);
    return check_status();
}

/* Two devices hold a model by layers, but not the keys and values of a long context: then the CPU computes the last
 * layers, and x is handed over to it, of all residual streams and as many rows as a step may have. Every token has the
 * bits of the CPU alone.
 *
 * usage: test_handed MODEL.gguf */
#include <stdlib.h>
#include <string.h>

#include "by_layers.h"
#include "check.h"
#include "expected.h"
#include "moe/session/session.h"

enum { N_PROMPT = 600, N_TOKENS = N_PROMPT + 3, N_PIECES = 4, N_BATCH = 512, N_CTX = 120000, N_GPUS = 2 };

static const char *path;
static int32_t     tokens[N_TOKENS];
static float      *expected;                 /* [N_PIECES][n_vocab] */
static size_t      n_vocab;

static size_t piece_at(int i)
{
    return i == 0 ? 0 : (size_t)(N_PROMPT + i - 1);
}

static pf_session *open_long(pf_model *m)
{
    pf_session *s = NULL;
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = N_CTX;
    so.n_batch = N_BATCH;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s", pf_last_error());
    return s;
}

static void run(pf_session *s)
{
    for (int i = 0; s && i < N_PIECES; i++) {
        size_t from = piece_at(i);
        CHECK(pf_session_eval(s, tokens + from, piece_at(i + 1) - from, 0) == PF_OK, "piece %d: %s", i,
              pf_last_error());
        const float *found = pf_session_logits(s);
        CHECK(found && memcmp(found, expected + (size_t)i * n_vocab, n_vocab * sizeof *found) == 0,
              "piece %d: other bits", i);
    }
}

/* Returns whether the devices compute some layers, and the CPU the others. */
static bool run_in(uint64_t memory_bytes)
{
    struct devices d = { .n_opened = 0 };
    for (int k = 0; k < N_GPUS; k++)
        d.sim[k].memory_bytes = memory_bytes;
    pf_model *m = open_by_layers(&d, N_GPUS, false, path, "two devices");
    pf_session *s = m ? open_long(m) : NULL;
    bool handed = s && s->n_units == N_GPUS + 1 && s->units[0].end > 0;
    if (handed)
        run(s);
    pf_session_close(&s);
    pf_model_close(&m);
    return handed;
}

int main(int argc, char **argv)
{
    enum { FIRST = 12 << 20, LAST = 64 << 20, STEP = 1 << 20 };
    int n_handed = 0;
    if (argc < 2)
        return 2;
    path = argv[1];
    expected = expected_logits(path, tokens, N_TOKENS, piece_at, N_PIECES, &n_vocab);
    for (uint64_t bytes = FIRST; bytes <= LAST && n_handed < 2; bytes += STEP)
        n_handed += run_in(bytes);
    CHECK(n_handed > 0, "no size of memory was too small for the context alone");
    free(expected);
    return check_status();
}

/* Every budget of GPU memory from too little to more than enough: a model has sessions of longer and shorter contexts,
 * of larger and smaller batches, in turn, and two at once. What a session that is alone finds room for on the GPU, it
 * finds behind others, too: the GPU is not given up for want of memory that they had. All have the bits of the CPU.
 *
 * usage: budgets MODEL.gguf LEAST MOST STEP
 *        bytes of the GPU's memory, in KiB */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "emulated.h"
#include "pfmoe.h"

static const struct {
    int n_ctx, n_batch, n_prompt;
} shapes[] = {
    { 48, 16, 20 }, { 700, 64, 70 }, { 2500, 256, 40 }, { 300, 48, 60 }, { 300, 512, 40 }, { 6000, 512, 20 },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_DECODE = 2, N_STEPS = 1 + N_DECODE, MOST_PROMPT = 70 };

static const char *path;
static float      *expected[N_SHAPES];       /* [N_STEPS][n_vocab]; NULL: not known yet */
static size_t      n_vocab;

static pf_model *open_model(int device, uint64_t bytes)
{
    struct pf_model_opts o;
    pf_model *m = NULL;
    pf_model_opts_init(&o);
    o.device = device;
    o.n_threads = 2;
    o.vram_bytes = bytes;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    n_vocab = m ? (size_t)pf_model_info(m)->n_vocab : 0;
    return m;
}

static bool is_given_up(const pf_model *m)
{
    struct pf_stats stats;
    pf_stats_get(m, &stats);
    return stats.device_lost;
}

/* What is opened beside another session may be refused for want of memory. */
static pf_session *open_session(pf_model *m, int shape, bool beside, const char *name)
{
    struct pf_session_opts so;
    pf_session *s = NULL;
    pf_session_opts_init(&so);
    so.n_ctx = shapes[shape].n_ctx;
    so.n_batch = shapes[shape].n_batch;
    pf_status st = pf_session_open(&s, m, &so);
    CHECK(st == PF_OK || (beside && st == PF_ENOMEM), "%s, session %d: %s", name, shape, pf_last_error());
    return s;
}

/* A prompt and some tokens; the first time it is noted what comes of them. */
static void answer(pf_session *s, int shape, const char *name)
{
    bool first = !expected[shape];
    if (first)
        expected[shape] = malloc(N_STEPS * n_vocab * sizeof **expected);
    for (int step = 0, at = 0, n = shapes[shape].n_prompt; s && step < N_STEPS; step++, at += n, n = 1) {
        int32_t tokens[MOST_PROMPT];
        for (int i = 0; i < n; i++)
            tokens[i] = (int32_t)((unsigned)(at + i) * 2654435761u % n_vocab);
        pf_status st = pf_session_eval(s, tokens, (size_t)n, 0);
        CHECK(st == PF_OK, "%s, session %d, step %d: %s", name, shape, step, pf_last_error());
        float *want = expected[shape] + (size_t)step * n_vocab;
        if (st == PF_OK && first)
            memcpy(want, pf_session_logits(s), n_vocab * sizeof *want);
        CHECK(st != PF_OK || memcmp(want, pf_session_logits(s), n_vocab * sizeof *want) == 0,
              "%s, session %d: other bits in step %d", name, shape, step);
    }
}

/* Whether the session has its place on the GPU if it is a new model's only one. */
static bool fits_alone(int shape, uint64_t bytes, const char *name)
{
    pf_model *m = open_model(0, bytes);
    pf_session *s = m ? open_session(m, shape, false, name) : NULL;
    bool fits = s && !is_given_up(m);
    pf_session_close(&s);
    pf_model_close(&m);
    return fits;
}

/* All sessions on one model; counts those that the GPU has room for. */
static int take_turns(uint64_t bytes, const char *name)
{
    pf_model *m = open_model(0, bytes);
    int n_fit = 0;
    for (int shape = 0; m && shape < N_SHAPES && !is_given_up(m); shape++) {
        bool fits = fits_alone(shape, bytes, name);
        pf_session *beside = fits && shape == 3 ? open_session(m, 0, false, name) : NULL,
                   *s = open_session(m, shape, beside, name);
        CHECK(!fits || !is_given_up(m), "%s, session %d: the GPU is given up", name, shape);
        answer(s, shape, name);
        if (beside)
            answer(beside, 0, name);
        n_fit += fits;
        pf_session_close(&beside);
        pf_session_close(&s);
        if (!fits && is_given_up(m)) {                   /* as it has to be; another model for the next ones */
            pf_model_close(&m);
            m = open_model(0, bytes);
        }
    }
    pf_model_close(&m);
    CHECK(emu_n_live() == 0, "%s: %d pieces of memory are left", name, emu_n_live());
    return n_fit;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    path = argv[1];
    long least = atol(argv[2]), most = atol(argv[3]), by = atol(argv[4]);
    int n_fit = 0, n = 0;
    pf_model *m = open_model(-1, 0);
    for (int shape = 0; m && shape < N_SHAPES; shape++) {
        pf_session *s = open_session(m, shape, false, "CPU");
        answer(s, shape, "CPU");
        pf_session_close(&s);
    }
    pf_model_close(&m);
    for (long kib = least; kib <= most && n_vocab; kib += by, n++) {
        char name[64];
        snprintf(name, sizeof name, "%ld KiB", kib);
        n_fit += take_turns((uint64_t)kib << 10, name);
    }
    printf("%d of %d sessions found room on the GPU\n", n_fit, n * N_SHAPES);
    CHECK(n_fit > 0, "none found room");
    for (int shape = 0; shape < N_SHAPES; shape++)
        free(expected[shape]);
    return check_status();
}

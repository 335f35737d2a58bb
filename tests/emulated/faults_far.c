/* CUDA's calls fail, one after the other, in steps whose far keys and values the CPU attends to beside the GPU: once,
 * and with all that follow, as when the device is lost. Each time a session gets another one's sequence, a part of
 * which moves from near to far, and goes on by one row, by four, by one and by two. Whatever failed, the bits are those
 * of the CPU, and nothing is left behind.
 *
 * usage: faults_far MODEL.gguf [EVERY [FIRST]]        every EVERY'th call, from FIRST on */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "emulated.h"
#include "memory_file.h"
#include "pfmoe.h"

enum { CHUNK = 256, N_PROMPT = 3 * CHUNK - 4, N_STEPS = 9, N_TOKENS = N_PROMPT + 20 };
static const size_t step_rows[N_STEPS] = { 1, 1, 1, 4, 4, 4, 1, 1, 2 };      /* the fourth ends behind a chunk's end */

static const char *path;
static float      *expected;                 /* [N_STEPS][n_vocab] */
static size_t      n_vocab;
static int32_t     tokens[N_TOKENS];
static struct file saved;                    /* the sequence after N_PROMPT tokens */

static pf_model *open_model(int device)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.device = device;
    o.n_threads = 2;
    o.streaming = device >= 0;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    if (!m)
        exit(check_status());
    return m;
}

static pf_session *open_session(pf_model *m, int64_t n_near)
{
    pf_session *s = NULL;
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = N_TOKENS;
    so.n_batch = CHUNK;
    so.n_near = n_near;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s", pf_last_error());
    if (!s)
        exit(check_status());
    return s;
}

static void make_expected(void)
{
    pf_model *m = open_model(-1);
    pf_session *s = open_session(m, 0);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    expected = malloc(N_STEPS * n_vocab * sizeof *expected);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    CHECK(pf_session_eval(s, tokens, N_PROMPT, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_save(s, write_file, &saved) == PF_OK, "%s", pf_last_error());
    for (size_t k = 0, at = N_PROMPT; k < N_STEPS; at += step_rows[k++]) {
        CHECK(pf_session_eval(s, tokens + at, step_rows[k], 0) == PF_OK, "%s", pf_last_error());
        memcpy(expected + k * n_vocab, pf_session_logits(s), n_vocab * sizeof *expected);
    }
    pf_session_close(&s);
    pf_model_close(&m);
}

/* With the call of that number from here on failing, if it is not 0; the number of calls. */
static uint64_t run(const char *name, uint64_t at, bool is_lost, struct pf_stats *stats)
{
    emu_fail_at(0, false);
    pf_model *m = open_model(0);
    pf_session *from = open_session(m, 2 * CHUNK), *s = open_session(m, CHUNK);
    saved.at = 0;
    CHECK(pf_session_load(from, read_file, &saved) == PF_OK, "%s: %s", name, pf_last_error());
    emu_fail_at(at, is_lost);
    CHECK(pf_session_copy(s, from, N_PROMPT, NULL, NULL) == PF_OK, "%s: %s", name, pf_last_error());
    for (size_t k = 0, pos = N_PROMPT; k < N_STEPS; pos += step_rows[k++]) {
        CHECK(pf_session_eval(s, tokens + pos, step_rows[k], 0) == PF_OK, "%s, step %d: %s", name, (int)k,
              pf_last_error());
        const float *logits = pf_session_logits(s);
        CHECK(logits && memcmp(logits, expected + k * n_vocab, n_vocab * sizeof *logits) == 0,
              "%s: other bits in step %d", name, (int)k);
    }
    uint64_t n_calls = emu_n_calls();
    pf_stats_get(m, stats);
    pf_session_close(&from);
    pf_session_close(&s);
    pf_model_close(&m);
    CHECK(emu_n_live() == 0, "%s: %d pieces of memory are left", name, emu_n_live());
    return n_calls;
}

int main(int argc, char **argv)
{
    struct pf_stats stats;
    if (argc < 2)
        return 2;
    path = argv[1];
    uint64_t every = argc > 2 ? (uint64_t)atoll(argv[2]) : 1, first = argc > 3 ? (uint64_t)atoll(argv[3]) : 1;
    make_expected();
    uint64_t n_calls = run("no fault", 0, false, &stats), n = 0, n_lost = 0;
    CHECK(stats.far_cpu_bytes > 0 && !stats.device_lost, "the CPU attends to nothing, or the GPU is lost");
    for (uint64_t at = first; at <= n_calls; at += every)
        for (int is_lost = 0; is_lost < 2; is_lost++, n++) {
            char name[64];
            snprintf(name, sizeof name, "%s at call %d", is_lost ? "lost" : "a fault", (int)at);
            run(name, at, is_lost, &stats);
            n_lost += stats.device_lost;
        }
    printf("%d of %d calls failed; the device was lost %d of %d times\n", (int)n / 2, (int)n_calls, (int)n_lost,
           (int)n);
    free(expected);
    free(saved.data);
    return check_status();
}

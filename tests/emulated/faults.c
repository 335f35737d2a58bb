/* CUDA's calls fail, one after the other: once, and with all that follow, as when the device is lost. A model that
 * shares experts with the GPU, or layers, which visit it in prompts, or has its layers, its experts or its rows on
 * several, is opened, evaluates a prompt and some tokens, and is closed. Whatever failed, the bits are those of the
 * CPU, every token comes, and nothing is left behind.
 *
 * usage: faults MODEL.gguf [EVERY [FIRST [GPUS [shared|pipeline|experts|apart|rows|visits|auto]]]]
 *        every EVERY'th call, from FIRST on; pipeline: shared, steps long enough to be on several cards at once;
 *        apart: experts are divided, and shared with the CPU; auto: what exchanges take is measured, and one card has
 *        everything */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "emulated.h"
#include "pfmoe.h"

enum { N_PROMPT = 10, N_VISIT = 33, N_LONG = 52, N_DECODE = 4, N_STEPS = 1 + N_DECODE };
enum { VISIT_BYTES = 11500000, N_ROWS = 2048 };      /* bytes of which tiny-llama-thin takes layers, but not all */

static const char *path;
static float      *expected;                 /* [N_STEPS][n_vocab] */
static size_t      n_vocab;
static int         n_gpus;                   /* 0: one */
static bool        shared;                   /* experts or layers, with the CPU */
static bool        visits, pipeline;
static enum pf_layout layout = PF_LAYOUT_LAYERS;

/* Compares, or, if `expected` is not filled yet, fills it. */
static void check_logits(int step, const float *logits, bool first, const char *name)
{
    float *want = expected + (size_t)step * n_vocab;
    if (first)
        memcpy(want, logits, n_vocab * sizeof *want);
    else
        CHECK(memcmp(want, logits, n_vocab * sizeof *want) == 0, "%s: other bits in step %d", name, step);
}

static void run(const char *name, int device, bool first, struct pf_stats *stats)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.device = device;
    o.n_threads = 2;
    o.streaming = device >= 0 && shared && !visits;
    o.vram_bytes = visits ? VISIT_BYTES : 0;
    o.n_gpus = device >= 0 ? n_gpus : 0;
    o.layout = layout;
    for (int i = 0; i < n_gpus; i++)
        o.gpus[i] = i;
    memset(stats, 0, sizeof *stats);
    if (pf_model_open(&m, path, &o) < 0) {
        CHECK(device >= 0, "%s: %s", name, pf_last_error());
        return;
    }
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    if (first)
        expected = malloc(N_STEPS * n_vocab * sizeof *expected);
    struct pf_session_opts so;
    pf_session *s = NULL;
    pf_session_opts_init(&so);
    int n_prompt = visits ? N_VISIT : pipeline ? N_LONG : N_PROMPT;
    so.n_ctx = visits ? N_ROWS : n_prompt + N_DECODE;
    /* The prompt has several steps; or more rows than there is room for. */
    so.n_batch = pipeline ? 17 : n_gpus > 0 ? 4 : N_ROWS;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s: %s", name, pf_last_error());
    for (int step = 0, at = 0, n = n_prompt; s && step < N_STEPS; step++, at += n, n = 1) {
        int32_t tokens[N_LONG];
        for (int i = 0; i < n; i++)
            tokens[i] = (int32_t)((unsigned)(at + i) * 2654435761u % n_vocab);
        pf_status st = pf_session_eval(s, tokens, (size_t)n, 0);
        CHECK(st == PF_OK, "%s, step %d: %s", name, step, pf_last_error());
        if (st == PF_OK)
            check_logits(step, pf_session_logits(s), first, name);
    }
    pf_stats_get(m, stats);
    pf_session_close(&s);
    pf_model_close(&m);
    CHECK(emu_n_live() == 0, "%s: %d pieces of memory are left", name, emu_n_live());
}

int main(int argc, char **argv)
{
    struct pf_stats stats;
    if (argc < 2)
        return 2;
    path = argv[1];
    uint64_t every = argc > 2 ? (uint64_t)atoll(argv[2]) : 1, first = argc > 3 ? (uint64_t)atoll(argv[3]) : 1;
    n_gpus = argc > 4 ? atoi(argv[4]) : 0;
    const char *how = argc > 5 ? argv[5] : "";
    bool apart = strcmp(how, "apart") == 0;
    layout = apart || strcmp(how, "experts") == 0 ? PF_LAYOUT_EXPERTS : layout;
    layout = strcmp(how, "rows") == 0 ? PF_LAYOUT_ROWS : layout;
    layout = strcmp(how, "auto") == 0 ? PF_LAYOUT_AUTO : layout;
    visits = strcmp(how, "visits") == 0;
    pipeline = strcmp(how, "pipeline") == 0;
    shared = n_gpus == 0 || apart || pipeline || strcmp(how, "shared") == 0;
    run("CPU", -1, true, &stats);
    emu_fail_at(0, false);
    run("no fault", 0, false, &stats);
    CHECK((!shared || stats.n_transfers + stats.stream_bytes > 0) && !stats.device_lost,
          "nothing is shared, or the GPU is lost");
    uint64_t n_calls = emu_n_calls(), n_lost = 0, n = 0;
    for (uint64_t at = first; at <= n_calls; at += every)
        for (int is_lost = 0; is_lost < 2; is_lost++, n++) {
            char name[64];
            snprintf(name, sizeof name, "%s at call %d", is_lost ? "lost" : "a fault", (int)at);
            emu_fail_at(at, is_lost);
            run(name, 0, false, &stats);
            n_lost += stats.device_lost;
        }
    emu_fail_at(0, false);
    printf("%d of %d calls failed; the device was lost %d of %d times\n", (int)n / 2, (int)n_calls, (int)n_lost,
           (int)n);
    free(expected);
    return check_status();
}

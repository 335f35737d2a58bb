/* Same bits whoever computes an expert, by the CUDA backend: a text as a prompt, in a piece of a few rows and token by
 * token, with experts shared between the GPU and the CPU in every way, against the same with everything on the GPU.
 *
 * usage: cuda_offload MODEL.gguf [TOKENS [PROMPT [VRAM_MB [PART OF [GPUS [experts]]]]]]   77: there are too few GPUs
 *        VRAM_MB: so much holds the dense part, but not all experts, which RAM does: then some are read in place,
 *        too; 0: none are
 *        PART OF: only every OF'th setting, from PART on
 *        GPUS: experts are read in place by so many, with VRAM_MB each; experts: they divide the experts, and share
 *        them with the CPU in every way */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "open_session.h"
#include "pfmoe.h"

enum { N_FEW = 12, SKIPPED = 77 };

static const char *path;
static int      n_decode = 24, n_prompt = 300, part, n_parts = 1, n_gpus = 1;
static int32_t *tokens;
static float   *expected;                    /* [2 + n_decode][n_vocab] after each piece */
static size_t   n_vocab;
static bool     by_experts;
static bool     preloads;                    /* experts lie in VRAM before the first token, as many as have room */

static bool eval_piece(pf_session *s, int i)
{
    int at = i == 0 ? 0 : i == 1 ? n_prompt : n_prompt + N_FEW + i - 2, n = i == 0 ? n_prompt : i == 1 ? N_FEW : 1;
    bool fine = pf_session_eval(s, tokens + at, (size_t)n, 0) == PF_OK;
    CHECK(fine, "piece %d: %s", i, pf_last_error());
    return fine;
}

static void log_line(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    if (level <= PF_LOG_WARN)
        printf("  %s\n", text);
}

/* As if n_placed experts in place and n_down downs had been seen to be by far the best, whatever number is missed. */
static void prefer(pf_model *m, int n_placed, int n_down)
{
    static struct pf_learned l;
    l = (struct pf_learned){ .cpu_bytes_s = 1e11, .pcie_bytes_s = 5e10 };
    for (int n = 1; n <= 16; n++)
        for (int w = 0; w <= n; w++)
            for (int d = 0; d <= n - w && l.n_deals < PF_MAX_LEARNED_DEALS - 1; d++) {
                bool best = w == (n_placed < n ? n_placed : n) && d == (n_down < n - w ? n_down : n - w);
                l.deals[l.n_deals++] = (struct pf_learned_deal){ n, w, d, w > 0, 9, best ? 1e-3 : 1e3 };
            }
    pf_learned_set(m, &l);
}

static int placed = -1, downs;               /* prefer these; -1: whatever the solver does */

static void run(const char *name, struct pf_model_opts *o, bool first)
{
    pf_model *m = NULL;
    struct pf_stats stats;
    o->log = log_line;
    CHECK(pf_model_open(&m, path, o) == PF_OK, "%s: %s", name, pf_last_error());
    if (!m)
        return;
    CHECK(strcmp(pf_model_info(m)->backend, "cuda") == 0, "%s: the model runs on %s", name, pf_model_info(m)->backend);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    if (first) {
        tokens = malloc((size_t)(n_prompt + N_FEW + n_decode) * sizeof *tokens);
        expected = malloc((size_t)(2 + n_decode) * n_vocab * sizeof *expected);
        for (int i = 0; i < n_prompt + N_FEW + n_decode; i++)
            tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    }
    pf_session *s = open_session(m, n_prompt + N_FEW + n_decode);
    if (preloads || placed >= 0)
        CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK, "%s: %s", name, pf_last_error());
    if (placed >= 0)
        prefer(m, placed, downs);
    for (int i = 0; s && i < 2 + n_decode && eval_piece(s, i); i++) {
        float *want = expected + (size_t)i * n_vocab;
        if (first)
            memcpy(want, pf_session_logits(s), n_vocab * sizeof *want);
        else if (memcmp(want, pf_session_logits(s), n_vocab * sizeof *want) != 0) {
            CHECK(false, "%s: other bits after piece %d", name, i);
            break;
        }
    }
    pf_stats_get(m, &stats);
    CHECK(!stats.device_lost, "%s: the GPU was lost", name);
    printf("%s: %llu hits, %llu transfers, %llu fallbacks, %llu in place\n", name, (unsigned long long)stats.vram_hits,
           (unsigned long long)stats.n_transfers, (unsigned long long)stats.n_fallbacks,
           (unsigned long long)stats.n_in_place);
    CHECK(o->n_gpus == 0 || pf_model_info(m)->n_gpus == o->n_gpus, "%s: %d GPUs", name, pf_model_info(m)->n_gpus);
    CHECK(placed <= 0 || stats.n_in_place > 0, "%s: nothing was read in place", name);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Several GPUs with so much memory each; 0: with what they have. */
static void divide(struct pf_model_opts *o, uint64_t vram_bytes)
{
    o->n_gpus = n_gpus;
    o->layout = by_experts ? PF_LAYOUT_EXPERTS : PF_LAYOUT_LAYERS;
    for (int k = 0; k < n_gpus; k++) {
        o->gpus[k] = k;
        o->gpu_bytes[k] = vram_bytes;
    }
}

static struct pf_model_opts shared(void)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.streaming = true;
    if (by_experts)
        divide(&o, 0);
    return o;
}

static void run_settings(void)
{
    static const int limits[] = { PF_AUTO, 0, 1, 2 };
    int number = 0;
    for (int post = 0; post < 2; post++)
        for (int block = -1; block < 2; block++)
            for (int limit = 0; limit < 4; limit++) {
                struct pf_model_opts o = shared();
                if (number++ % n_parts != part)
                    continue;
                char name[96];
                o.n_threads = 1 + (block + 1) * 3 + limit;
                o.postfetch.enable = post;
                o.postfetch.block_on_miss = block;
                o.postfetch.cpu_limit = limits[limit];
                o.vram_bytes = limit == 2 ? 700000000 : 0;
                snprintf(name, sizeof name, "post-fetch %d, block %d, CPU limit %d", post, block, limits[limit]);
                run(name, &o, false);
            }
}

static void run_in_place(uint64_t vram_bytes)
{
    static const int ways[][2] = { { 2, 1 }, { 1, 0 }, { 16, 0 }, { 0, 2 } };
    for (size_t i = 0; i < (n_gpus > 1 && !by_experts ? 1 : sizeof ways / sizeof *ways); i++) {
        struct pf_model_opts o;
        char name[64];
        pf_model_opts_init(&o);
        o.vram_bytes = vram_bytes;
        if (n_gpus > 1)
            divide(&o, vram_bytes);
        placed = ways[i][0];
        downs = ways[i][1];
        snprintf(name, sizeof name, "%d experts in place, %d downs", placed, downs);
        run(name, &o, false);
    }
    placed = -1;
}

/* All ways of sharing with one GPU, or with several that divide the experts. */
static void run_alone(uint64_t vram_bytes)
{
    struct pf_model_opts o = shared();
    run_settings();
    o.postfetch.force_cpu = true;
    run("all experts on the CPU", &o, false);
    o = shared();
    o.postfetch.dedicated_streams = false;
    run("one stream", &o, false);
    if (vram_bytes > 0)
        run_in_place(vram_bytes);
    o = shared();
    preloads = true;
    for (int i = 0; i < 2; i++)
        run("experts in VRAM from the start", &o, false);
}

int main(int argc, char **argv)
{
    struct pf_device devices[1 + PF_MAX_GPUS];
    if (argc < 2 || argc == 6 || argc > 9)
        return 2;
    path = argv[1];
    n_decode = argc > 2 ? atoi(argv[2]) : n_decode;
    n_prompt = argc > 3 ? atoi(argv[3]) : n_prompt;
    double vram_mb = argc > 4 ? atof(argv[4]) : 0;
    part = argc > 5 ? atoi(argv[5]) : part;
    n_parts = argc > 5 ? atoi(argv[6]) : n_parts;
    n_gpus = argc > 7 ? atoi(argv[7]) : n_gpus;
    by_experts = argc > 8;
    if (pf_devices(devices, 1 + PF_MAX_GPUS) < 1 + n_gpus) {
        printf("there are not so many GPUs\n");
        return SKIPPED;
    }
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    run("everything on the GPU", &o, true);
    if (!expected)
        return check_status();
    if (n_gpus > 1 && !by_experts)
        run_in_place((uint64_t)(vram_mb * 1e6));
    else
        run_alone((uint64_t)(vram_mb * 1e6));
    free(tokens);
    free(expected);
    return check_status();
}

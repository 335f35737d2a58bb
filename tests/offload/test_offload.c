/* Same bits whoever computes an expert: one text, evaluated as a prompt, in a piece of a few rows and token by token,
 * on the simulated device beside the CPU, gives the logits that the CPU alone gives; for every setting of post-fetch,
 * sizes of the expert cache, thread counts and budgets of RAM, with copies that are late, refused or broken, with
 * allocations that fail, and with the device lost at every one of its operations.
 *
 * usage: test_offload MODEL.gguf [STRIDE|long [THREADS]]
 *        STRIDE: each so manyth setting and fault is tried; long: 256 tokens, a few settings only; THREADS: of the CPU,
 *        default 1, but where settings have numbers of their own; 77: there is no such file */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "check.h"
#include "expected.h"
#include "kernels/sim/sim.h"
#include "memory_file.h"
#include "moe/place/placement.h"

enum { N_PROMPT = 20, N_FEW = 12, SHORT = 14, LONG = 256, MOST_TOKENS = N_PROMPT + N_FEW + LONG };

static const char *path;
static int      n_decode = SHORT, step = 1;      /* each so manyth setting and fault is tried */
static int      n_threads_usual = 1;
static int32_t  tokens[MOST_TOKENS];
static float  *expected;                     /* [2 + n_decode][n_vocab] after each piece */
static size_t  n_vocab;

static size_t piece_at(int i)
{
    return i == 0 ? 0 : i == 1 ? N_PROMPT : (size_t)(N_PROMPT + N_FEW + i - 2);
}

static size_t piece_size(int i)
{
    return i == 0 ? N_PROMPT : i == 1 ? N_FEW : 1;
}

static void run(pf_session *s, int from, int to, const char *name)
{
    for (int i = from; s && i < to; i++) {
        if (pf_session_eval(s, tokens + piece_at(i), piece_size(i), 0) < 0) {
            CHECK(false, "%s, piece %d: %s", name, i, pf_last_error());
            return;
        }
        if (memcmp(pf_session_logits(s), expected + (size_t)i * n_vocab, n_vocab * sizeof(float)) != 0) {
            CHECK(false, "%s: other bits after piece %d", name, i);
            return;
        }
    }
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

struct setting {
    struct pf_postfetch_opts post;
    int      n_threads;
    uint64_t ram_bytes;
    int      n_spans;                        /* of a timeline */
    bool     whole;                          /* RAM takes all experts; the device must be too small for the model */
};

static struct setting usual(void)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    return (struct setting){ .post = o.postfetch, .n_threads = n_threads_usual };
}

/* NULL when it cannot be opened, which is the caller's to judge. */
static pf_model *open_model(const struct setting *set, struct pf_sim *sim)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = sim };
    pf_model_opts_init(&o);
    o.streaming = !set->whole;               /* without it everything would fit the device */
    o.n_threads = set->n_threads;
    o.ram_bytes = set->ram_bytes;
    o.postfetch = set->post;
    o.timeline_spans = set->n_spans;
    return pf_model_open_with(&m, path, &o, &setup) == PF_OK ? m : NULL;
}

/* Opens, runs everything, closes; checks the bits, that nothing is left behind, and that the device took part or was
 * lost. */
static void check_run(const char *name, const struct setting *set, struct pf_sim *sim, struct pf_stats *stats)
{
    struct pf_mem_stats before, after;
    pf_mem_stats_get(&before);
    memset(stats, 0, sizeof *stats);
    pf_model *m = open_model(set, sim);
    CHECK(m, "%s: %s", name, pf_last_error());
    if (!m)
        return;
    pf_session *s = open_session(m, MOST_TOKENS);
    run(s, 0, 2 + n_decode, name);
    if (s && pf_session_rewind(s, 0) == PF_OK)
        run(s, 0, 2, name);          /* with experts in RAM from the beginning: the next layer's are copied ahead */
    pf_stats_get(m, stats);
    pf_session_close(&s);
    pf_model_close(&m);
    pf_mem_stats_get(&after);
    CHECK(before.n_live == after.n_live, "%s: memory is left behind", name);
    CHECK(sim->n_pinned == 0, "%s: host memory stays pinned", name);
}

/* Memory for everything but the expert cache, found by trying. */
static uint64_t least_memory(void)
{
    uint64_t lo = 0, hi = (uint64_t)1 << 30;
    while (hi - lo > 4096) {
        struct setting set = usual();
        struct pf_sim sim = { .memory_bytes = (lo + hi) / 2 };
        pf_model *m = open_model(&set, &sim);
        bool fits = m && strcmp(pf_model_info(m)->backend, "sim") == 0;
        pf_session *s = NULL;
        struct pf_session_opts so;
        pf_session_opts_init(&so);
        so.n_ctx = MOST_TOKENS;
        fits = fits && pf_session_open(&s, m, &so) == PF_OK && strcmp(pf_model_info(m)->backend, "sim") == 0;
        pf_session_close(&s);
        pf_model_close(&m);
        *(fits ? &hi : &lo) = (lo + hi) / 2;
    }
    return hi;
}

static void test_settings(uint64_t least)
{
    static const int limits[] = { PF_AUTO, 0, 1, 2 };
    struct pf_stats stats;
    int n = 0;
    uint64_t n_fallbacks = 0, n_transfers = 0, n_hits = 0, stream_bytes = 0;
    for (int post = 0; post < 2; post++)
        for (int block = -1; block < 2; block++)
            for (int limit = 0; limit < 4; limit++)
                for (uint64_t late = 0; late < 4; late++) {
                    struct setting set = usual();
                    if (n++ % step)
                        continue;
                    struct pf_sim sim = { .late_every = late, .late_for = 1 + late * 1000,
                                          .break_every = late == 3 ? 5 : 0,
                                          .memory_bytes = n % 3 ? least + (uint64_t)(n % 3 - 1) * (64u << 20) : 0 };
                    char name[128];
                    set.post.enable = post;
                    set.post.block_on_miss = block;
                    set.post.cpu_limit = limits[limit];
                    set.post.max_transfers = n % 4 == 0 ? 1 : 8;
                    set.n_threads = 1 + n % 3;
                    snprintf(name, sizeof name, "post-fetch %d, block %d, CPU limit %d, late every %d, case %d", post,
                             block, limits[limit], (int)late, n);
                    check_run(name, &set, &sim, &stats);
                    CHECK(!stats.device_lost, "%s: the device was lost", name);
                    n_fallbacks += stats.n_fallbacks;
                    n_transfers += stats.n_transfers;
                    n_hits += stats.vram_hits;
                    stream_bytes += stats.stream_bytes;
                    CHECK(stats.n_launches >= stats.n_tokens, "%s: %d launches", name, (int)stats.n_launches);
                }
    CHECK(n_fallbacks > 0 && n_transfers > n_fallbacks && n_hits > 0, "%d transfers, %d fallbacks, %d hits",
          (int)n_transfers, (int)n_fallbacks, (int)n_hits);
    CHECK(stream_bytes > 0, "prompts sent no experts");
}

/* gpu_bytes_per_token: all weights but the experts', until the device is lost. */
static void test_facts(void)
{
    struct setting set = usual();
    struct pf_sim sim = { 0 };
    pf_model *m = open_model(&set, &sim);
    const struct pf_model_info *info = pf_model_info(m);
    CHECK(info->gpu_bytes_per_token > 0 && info->gpu_bytes_per_token < info->bytes_per_token, "%d of %d bytes a token",
          (int)info->gpu_bytes_per_token, (int)info->bytes_per_token);
    CHECK(info->n_expert_layers > 0 && info->n_expert_layers <= info->n_layers, "%d layers with experts",
          (int)info->n_expert_layers);
    pf_session *s = open_session(m, MOST_TOKENS);
    sim.lose_in_serve = true;
    run(s, 0, 4, "lost");
    CHECK(info->gpu_bytes_per_token > 0, "what was said changes under whoever reads it");
    CHECK(pf_model_info(m)->gpu_bytes_per_token == 0, "a lost device reads %d bytes",
          (int)pf_model_info(m)->gpu_bytes_per_token);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* A second model that is told what a first one has learned begins with its best deal: here one that was made up, so
 * that nothing hangs on how long things take; and what was told is what is known. */
static void test_learned(uint64_t least)
{
    static struct pf_learned l, known;
    struct setting set = usual();
    struct pf_sim sim = { .memory_bytes = least };           /* no cache: every pick is missed */
    struct pf_stats stats;
    set.whole = true;                                        /* all experts of a layer are dealt out at once, too */
    pf_model *m = open_model(&set, &sim);
    int n_used = (int)pf_model_info(m)->n_experts_used;
    uint64_t n_layers = (uint64_t)pf_model_info(m)->n_expert_layers;
    pf_session *s = open_session(m, MOST_TOKENS);
    pf_learned_get(m, &l);
    CHECK(l.n_deals == 0, "%d deals before the first", l.n_deals);
    run(s, 0, 3, "learning");
    pf_learned_get(m, &l);
    CHECK(l.n_deals > 0 && l.cpu_bytes_s > 0, "%d deals, %.0f bytes/s", l.n_deals, l.cpu_bytes_s);
    pf_session_close(&s);
    pf_model_close(&m);

    l = (struct pf_learned){ .cpu_bytes_s = 1e9, .pcie_bytes_s = 1e9 };
    for (int w = 0; w <= n_used; w++)
        for (int d = 0; d <= n_used - w; d++)
            l.deals[l.n_deals++] = (struct pf_learned_deal){ n_used, w, d, false, 9, w == 0 && d == 1 ? 1e-3 : 1e3 };
    m = open_model(&set, &sim);
    s = open_session(m, MOST_TOKENS);
    CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK, "%s", pf_last_error());
    pf_learned_set(m, &l);
    pf_learned_get(m, &known);
    CHECK(known.n_deals == l.n_deals && known.pcie_bytes_s == 1e9, "%d deals are known", known.n_deals);
    run(s, 0, 2, "having learned");
    pf_stats_reset(m);
    run(s, 2, 3, "having learned");
    pf_stats_get(m, &stats);
    CHECK(stats.n_transfers == n_layers, "%d transfers in %d layers", (int)stats.n_transfers, (int)n_layers);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Measuring before the first token: deals are known afterwards, nothing of it is counted, and no bit is changed. */
static void test_measure(uint64_t least)
{
    static struct pf_learned l;
    struct setting set = usual();
    struct pf_sim sim = { .memory_bytes = least };
    struct pf_stats stats;
    set.whole = true;
    pf_model *m = open_model(&set, &sim);
    CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK, "%s", pf_last_error());
    CHECK(pf_model_measure(m) == PF_OK, "%s", pf_last_error());
    pf_learned_get(m, &l);
    pf_stats_get(m, &stats);
    CHECK(l.n_deals > 1 && l.cpu_bytes_s > 0, "%d deals were measured", l.n_deals);
    CHECK(stats.n_tokens == 0 && stats.n_transfers == 0, "%d tokens were counted", (int)stats.n_tokens);
    uint64_t n_steps = sim.n_steps;
    CHECK(pf_model_measure(m) == PF_OK && sim.n_steps == n_steps, "it was measured twice");
    pf_session *s = open_session(m, MOST_TOKENS);
    run(s, 0, 2 + n_decode, "measured");
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Every number of experts read in place, alone and beside post-fetch; only where all experts are in memory for good,
 * and for one row. */
static void test_in_place(uint64_t least)
{
    static struct pf_learned l;
    struct setting set = usual();
    struct pf_sim sim = { .memory_bytes = least, .sees_host = true };
    struct pf_stats stats;
    set.whole = true;
    for (int way = 0; way < 3; way++) {
        pf_model *m = open_model(&set, &sim);
        int n_used = (int)pf_model_info(m)->n_experts_used;
        uint64_t n_layers = (uint64_t)pf_model_info(m)->n_expert_layers;
        int n_placed = way == 0 ? n_used : 1, n_down = way == 2 && n_used > 1;
        l = (struct pf_learned){ .cpu_bytes_s = 1e9, .pcie_bytes_s = 1e9 };
        for (int w = 0; w <= n_used; w++)
            for (int k = 0; k < 2 * (n_used - w + 1); k++)
                if (w > 0 || k % 2 == 0) {
                    bool best = w == n_placed && k / 2 == n_down && k % 2;
                    l.deals[l.n_deals++] = (struct pf_learned_deal){ n_used, w, k / 2, k % 2, 9, best ? 1e-3 : 1e3 };
                }
        pf_session *s = open_session(m, MOST_TOKENS);
        CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK, "%s", pf_last_error());
        pf_learned_set(m, &l);
        run(s, 0, 2, "in place");
        pf_stats_reset(m);
        run(s, 2, 3, "in place");
        pf_stats_get(m, &stats);
        CHECK(stats.n_in_place == n_layers * (uint64_t)n_placed && stats.n_transfers == n_layers * (uint64_t)n_down,
              "way %d: %d experts in place and %d transfers in %d layers", way, (int)stats.n_in_place,
              (int)stats.n_transfers, (int)n_layers);
        run(s, 3, 2 + n_decode, "in place");
        pf_session_close(&s);
        pf_model_close(&m);
    }
}

/* A device with much room holds all experts, in little more than these take: slots are of the sizes that there are. */
static void test_room(void)
{
    struct setting set = usual();
    struct pf_sim sim = { 0 };
    struct pf_stats stats;
    struct pf_file_info info;
    CHECK(pf_file_inspect(path, 0, &info) == PF_OK, "%s", pf_last_error());
    pf_model *m = open_model(&set, &sim);
    const struct pf_model_info *facts = pf_model_info(m);
    pf_session *s = open_session(m, MOST_TOKENS);
    pf_stats_get(m, &stats);
    uint64_t n = (uint64_t)(facts->n_experts * facts->n_expert_layers);
    CHECK(stats.vram_slots == n, "room for %d of %d experts", (int)stats.vram_slots, (int)n);
    CHECK((double)stats.vram_slot_bytes <= 1.05 * (double)info.expert_bytes + 3 * 320.0 * (double)n,
          "%.0f bytes for %.0f", (double)stats.vram_slot_bytes, (double)info.expert_bytes);
    pf_session_close(&s);
    pf_model_close(&m);
}

struct text {
    char  *at;
    size_t n, cap;
};

static bool keep(void *ctx, const void *data, size_t bytes)
{
    struct text *t = ctx;
    if (t->n + bytes >= t->cap) {
        t->cap = 2 * (t->n + bytes) + 1;
        t->at = realloc(t->at, t->cap);
    }
    memcpy(t->at + t->n, data, bytes);
    t->n += bytes;
    t->at[t->n] = 0;
    return true;
}

struct span {
    double begin, end;
    int    layer, expert;
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->end > y->end) - (x->end < y->end);
}

/* The number behind a key of a line, or -1. */
static double number(const char *line, const char *key)
{
    const char *end = strchr(line, '\n'), *at = strstr(line, key);
    return at && (!end || at < end) ? strtod(at + strlen(key), NULL) : -1;
}

/* The *n spans of the track of that name. */
static struct span *spans_of(const char *json, const char *track, int *n)
{
    char name[64];
    snprintf(name, sizeof name, "\"args\":{\"name\":\"%s\"}", track);
    const char *at = strstr(json, name);
    struct span *spans = calloc(strlen(json) / 64 + 1, sizeof *spans);
    *n = 0;
    if (!at)
        return spans;
    while (at > json && at[-1] != '\n')
        at--;
    double tid = number(at, "\"tid\":");
    for (const char *line = json; line; line = strchr(line, '\n'), line += line != NULL)
        if (number(line, "\"tid\":") == tid && number(line, "\"dur\":") >= 0) {
            double ts = number(line, "\"ts\":");
            spans[(*n)++] = (struct span){ ts, ts + number(line, "\"dur\":"), (int)number(line, "\"layer\":"),
                                           (int)number(line, "\"expert\":") };
        }
    qsort(spans, (size_t)*n, sizeof *spans, by_begin);
    return spans;
}

/* The device and its two queues of copies have tracks of their own, on which one thing follows the other; the device
 * has been at every layer, and each copy of a step has a layer and an expert. */
static void test_timeline(uint64_t least)
{
    static const char *const tracks[] = { "GPU", "copies", "cache fills" };
    struct setting set = usual();
    struct pf_sim sim = { .memory_bytes = least + (96u << 20), .late_every = 3, .late_for = 2 };
    struct text json = { 0 };
    set.n_spans = 1 << 16;
    pf_model *m = open_model(&set, &sim);
    pf_session *s = open_session(m, MOST_TOKENS);
    int n_layers = (int)pf_model_info(m)->n_layers, n_expert_layers = (int)pf_model_info(m)->n_expert_layers, n;
    run(s, 0, 2 + n_decode, "watched");
    CHECK(pf_timeline_write(m, keep, &json) == PF_OK, "%s", pf_last_error());
    for (int t = 0; t < 3; t++) {
        bool seen[1024] = { false };
        int n_seen = 0;
        struct span *spans = spans_of(json.at, tracks[t], &n);
        CHECK(n > 0, "nothing on the track %s", tracks[t]);
        for (int i = 0; i < n; i++) {
            CHECK(i == 0 || spans[i].begin >= spans[i - 1].end - 0.0015, "%s: span %d begins before the last one ended",
                  tracks[t], i);
            CHECK(spans[i].layer < n_layers && (t != 2 || (spans[i].layer >= 0 && spans[i].expert >= 0)),
                  "%s: span %d is of layer %d", tracks[t], i, spans[i].layer);
            n_seen += spans[i].layer >= 0 && !seen[spans[i].layer];
            seen[spans[i].layer >= 0 ? spans[i].layer : n_layers] = true;
        }
        CHECK(t != 0 || n_seen == n_expert_layers, "the device was at %d layers of %d", n_seen, n_expert_layers);
        free(spans);
    }
    free(json.at);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_force_cpu(void)
{
    struct setting set = usual();
    struct pf_sim sim = { 0 };
    struct pf_stats stats;
    set.post.force_cpu = true;
    check_run("all experts on the CPU", &set, &sim, &stats);
    CHECK(stats.n_transfers == 0 && stats.vram_hits == 0 && sim.n_fetches == 0, "the device computed experts");
}

static void test_begun_again(void)
{
    for (int whole = 0; whole < 2; whole++) {
        struct setting set = usual();
        struct pf_sim sim = { .again_every = 2 };
        struct pf_stats stats;
        set.whole = whole;
        check_run("every second step is begun again", &set, &sim, &stats);
        CHECK(sim.n_steps > (uint64_t)n_decode, "only %llu steps", (unsigned long long)sim.n_steps);
    }
}

/* Little RAM: experts come from the drive, and cross from the slots they are read into. */
static void test_three_tiers(void)
{
    for (int i = 0; i < 3; i++) {
        struct setting set = usual();
        struct pf_sim sim = { .late_every = (uint64_t)i };
        struct pf_stats stats;
        uint64_t lo = 1, hi = (uint64_t)1 << 30;
        while (lo + 1 < hi) {
            set.ram_bytes = (lo + hi) / 2;
            pf_model *m = open_model(&set, &sim);
            bool fits = m && strcmp(pf_model_info(m)->backend, "sim") == 0;
            pf_model_close(&m);
            *(fits ? &hi : &lo) = set.ram_bytes;
        }
        set.ram_bytes = hi + (uint64_t)i * (hi / 8);
        check_run("three tiers", &set, &sim, &stats);
        CHECK(stats.slab_misses > 0, "nothing was read while running");
    }
}

/* Copies that cannot be begun, one after the other; allocations that fail: the CPU alone, or a clear error and then
 * success. */
static void test_refusals(uint64_t least)
{
    struct setting set = usual();
    struct pf_sim sim = { 0 };
    struct pf_stats stats;
    char name[64];
    check_run("counting", &set, &sim, &stats);
    uint64_t n_fetches = sim.n_fetches, n_allocs = sim.n_allocs;
    for (uint64_t i = 1; i <= n_fetches; i += 1 + n_fetches * (uint64_t)step / 40) {
        sim = (struct pf_sim){ .refuse_fetch = i };
        snprintf(name, sizeof name, "copy %d refused", (int)i);
        check_run(name, &set, &sim, &stats);
    }
    set.whole = true;
    for (uint64_t i = 2; i <= 9; i++) {       /* in prompts too, with more copied ahead behind the broken one */
        sim = (struct pf_sim){ .break_every = i, .memory_bytes = least };      /* no cache */
        snprintf(name, sizeof name, "every copy of %d broken", (int)i);
        check_run(name, &set, &sim, &stats);
        CHECK(stats.n_fallbacks > 0 && !stats.device_lost, "%s: %d fallbacks", name, (int)stats.n_fallbacks);
    }
    set.whole = false;
    for (uint64_t i = 1; i <= n_allocs; i += step > 1 ? 3 : 1) {
        struct pf_mem_stats before, after;
        sim = (struct pf_sim){ .fail_alloc = i };
        pf_mem_stats_get(&before);
        pf_model *m = open_model(&set, &sim);
        CHECK(m, "allocation %d: %s", (int)i, pf_last_error());
        pf_session *s = NULL;
        struct pf_session_opts so;
        pf_session_opts_init(&so);
        so.n_ctx = MOST_TOKENS;
        if (m && pf_session_open(&s, m, &so) < 0) {
            CHECK(pf_session_open(&s, m, &so) == PF_OK, "allocation %d, again: %s", (int)i, pf_last_error());
        }
        snprintf(name, sizeof name, "allocation %d fails", (int)i);
        run(s, 0, 2 + n_decode, name);
        pf_session_close(&s);
        pf_model_close(&m);
        pf_mem_stats_get(&after);
        CHECK(before.n_live == after.n_live, "%s: memory is left behind", name);
    }
}

/* The device is lost: two sessions go on on the CPU from where they were, with the same bits. */
static void test_loss(uint64_t least)
{
    struct setting set = usual();
    struct pf_sim sim = { 0 };
    struct pf_stats stats;
    check_run("counting", &set, &sim, &stats);
    uint64_t n_ops = sim.n_ops, n_lost = 0;
    for (uint64_t i = 1; i <= n_ops; i += 1 + n_ops * (uint64_t)step / 150) {
        char name[64];
        sim = (struct pf_sim){ .lose_at = i, .late_every = 2, .late_for = 3 };
        snprintf(name, sizeof name, "lost at operation %d", (int)i);
        check_run(name, &set, &sim, &stats);
        n_lost += stats.device_lost;
    }
    CHECK(n_lost > 10, "the device was lost %d times", (int)n_lost);

    set.whole = true;                        /* so that the CPU has a part in prompts, and what it does is taken */
    const struct pf_sim slow_bus = { .memory_bytes = least, .fetch_ns = 1000000000 };
    sim = slow_bus;
    check_run("counting", &set, &sim, &stats);
    n_ops = sim.n_ops;
    for (uint64_t i = 1; i <= n_ops; i += 1 + n_ops * (uint64_t)step / 50) {
        char name[64];
        sim = slow_bus;
        sim.lose_at = i;
        snprintf(name, sizeof name, "with a part of the CPU, lost at operation %d", (int)i);
        check_run(name, &set, &sim, &stats);
    }
    set.whole = false;

    sim = (struct pf_sim){ 0 };
    pf_model *m = open_model(&set, &sim);
    pf_session *a = open_session(m, MOST_TOKENS), *b = open_session(m, MOST_TOKENS);
    run(a, 0, 5, "the first of two");
    run(b, 0, 3, "the second of two");
    sim.lose_in_serve = true;
    run(a, 5, 2 + n_decode, "the first of two, its device lost");
    pf_stats_get(m, &stats);
    CHECK(stats.device_lost, "the device was not lost");
    run(b, 3, 2 + n_decode, "the second of two, its device lost");
    pf_session_close(&a);
    pf_session_close(&b);
    pf_model_close(&m);
}

/* The device is lost at the i-th operation from now on. */
static void lose_in(struct pf_sim *sim, uint64_t i)
{
    sim->lose_at = sim->n_ops + i;
}

enum { SAVING, LOADING, COPYING };

/* One session saves and another loads, or copies, and goes on, in a model whose device is lost at that operation of
 * one of these (0: never). Returns how many operations it took. */
static uint64_t hand_on(int what, uint64_t at)
{
    static const char *const names[] = { "saving", "loading", "copying" };
    struct setting set = usual();
    struct pf_sim sim = { 0 };
    struct pf_stats stats;
    struct file f = { 0 };
    int first = what == COPYING ? COPYING : SAVING, last = what == COPYING ? COPYING : LOADING;
    char name[64];
    snprintf(name, sizeof name, "lost at operation %d of %s", (int)at, names[what]);
    pf_model *m = open_model(&set, &sim);
    pf_session *a = open_session(m, MOST_TOKENS), *b = open_session(m, MOST_TOKENS);
    run(a, 0, 3, name);
    uint64_t n_ops = 0;
    for (int i = first; i <= last; i++) {
        uint64_t from = sim.n_ops;
        if (i == what && at)
            lose_in(&sim, at);
        pf_status st = i == SAVING    ? pf_session_save(a, write_file, &f)
                       : i == LOADING ? pf_session_load(b, read_file, &f)
                                      : pf_session_copy(b, a, (int64_t)piece_at(3), NULL, NULL);
        CHECK(st == PF_OK, "%s: %s", name, pf_last_error());
        n_ops = i == what ? sim.n_ops - from : n_ops;
    }
    CHECK(pf_session_pos(b) == (int64_t)piece_at(3), "%s: %d positions", name, (int)pf_session_pos(b));
    run(b, 3, 6, name);
    run(a, 3, 6, name);
    pf_stats_get(m, &stats);
    CHECK(stats.device_lost == (at > 0), "%s: the device was%s lost", name, stats.device_lost ? "" : " not");
    pf_session_close(&a);
    pf_session_close(&b);
    pf_model_close(&m);
    free(f.data);
    return n_ops;
}

static void test_loss_while_handing_on(void)
{
    for (int what = SAVING; what <= COPYING; what++) {
        uint64_t n_ops = hand_on(what, 0);
        CHECK(n_ops > (what == COPYING ? 0 : 1), "%d operations", (int)n_ops);
        for (uint64_t i = 1; i <= n_ops; i += 1 + n_ops * (uint64_t)step / 100)
            hand_on(what, i);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4)
        return 2;
    path = argv[1];
    if (access(path, R_OK) != 0) {
        printf("skipped: no %s\n", path);
        return 77;
    }
    bool is_long = argc > 2 && strcmp(argv[2], "long") == 0;
    n_decode = is_long ? LONG : SHORT;
    step = is_long ? 13 : argc > 2 ? atoi(argv[2]) : 1;
    n_threads_usual = argc > 3 ? atoi(argv[3]) : 1;
    if (step < 1 || n_threads_usual < 1)
        return 2;
    expected = expected_logits(path, tokens, MOST_TOKENS, piece_at, 2 + n_decode, &n_vocab);
    uint64_t least = least_memory();
    printf("the dense part takes %llu bytes of the device\n", (unsigned long long)least);
    test_settings(least);
    test_facts();
    test_timeline(least);
    test_learned(least);
    test_measure(least);
    test_in_place(least);
    test_room();
    test_force_cpu();
    test_begun_again();
    if (is_long) {
        free(expected);
        return check_status();
    }
    test_three_tiers();
    test_refusals(least);
    test_loss(least);
    test_loss_while_handing_on();
    free(expected);
    return check_status();
}

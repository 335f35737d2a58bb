/* A model on several GPUs against the same on the CPU: logits of a prompt, evaluated whole, in pieces and token by
 * token, by two sessions in one step, after going back and after a session was saved and loaded, are the same bits. The
 * GPUs have the whole model by layers, and by experts, and share its experts with the CPU, if it has any; or they have
 * it by rows.
 *
 * usage: cuda_cards MODEL.gguf [TOKENS [[LEAST_GPUS-]MOST_GPUS [whole|rows|pipeline|rings]]]
 *        whole: experts are not shared; rows: by rows; pipeline: prompts of several steps with shared experts alone;
 *        rings: such prompts, cancelled, with more than 256 tokens
 *        77: there are not two GPUs */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "memory_file.h"
#include "pfmoe.h"

enum { MOST_TOKENS = 300, SKIP = 77, CHUNK = 256, RING_CTX = 2048 };

static const char *path;
static int n_tokens = 80, least_gpus = 2, most_gpus = PF_MAX_GPUS;
static int32_t tokens[MOST_TOKENS];
static float  *expected;                     /* [n_tokens][n_vocab] */
static size_t  n_vocab;
static bool    has_experts;
static enum pf_layout layout = PF_LAYOUT_LAYERS;
static const char *const layouts[] = { [PF_LAYOUT_LAYERS] = "", [PF_LAYOUT_EXPERTS] = ", by experts",
                                       [PF_LAYOUT_ROWS] = ", by rows" };

static void print(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    if (level <= PF_LOG_WARN)
        printf("%s\n", text);
}

/* Whether layers need what earlier ones have left on their card, so that the first card has them all. */
static bool stays_on_one(const struct pf_model_info *info)
{
    static const char *const stay[] = { "glm-dsa", "gemma4" };
    bool stays = false;
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        stays |= strcmp(info->architecture, stay[i]) == 0;
    return stays;
}

/* On so many GPUs, of which the later ones may take less than the first; 0: the CPU. */
static pf_model *open_on(int n_gpus, bool uneven, bool shared)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.device = -1;
    o.log = print;
    o.n_gpus = n_gpus;
    o.layout = layout;
    o.streaming = shared;
    for (int i = 0; i < n_gpus; i++) {
        o.gpus[i] = n_gpus - 1 - i;          /* in an order of their own */
        o.gpu_bytes[i] = uneven ? (uint64_t)(2000 - 500 * i) * 1000000 : 0;
    }
    if (pf_model_open(&m, path, &o) < 0) {
        CHECK(false, "%d GPUs: %s", n_gpus, pf_last_error());
        return NULL;
    }
    const struct pf_model_info *info = pf_model_info(m);
    int fits = info->n_layers < n_gpus ? (int)info->n_layers : n_gpus;
    if (n_gpus > 0 && stays_on_one(info))
        fits = 1;
    if (layout != PF_LAYOUT_LAYERS)
        fits = n_gpus;
    CHECK(fits < 2 || info->layout == layout, "the layout is %d", (int)info->layout);
    CHECK(info->n_gpus == fits, "it runs on %d of %d GPUs", info->n_gpus, fits);
    n_vocab = (size_t)info->n_vocab;
    has_experts = info->n_experts > 0;
    return m;
}

static pf_session *open_session_of(pf_model *m, int n_ctx, int n_batch)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = n_ctx;
    o.n_batch = n_batch;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

static pf_session *open_session_on(pf_model *m, int n_batch)
{
    return open_session_of(m, MOST_TOKENS + 20, n_batch);
}

static void compare(const float *found, int pos, const char *name)
{
    const float *want = expected + (size_t)pos * n_vocab;
    CHECK(found && memcmp(found, want, n_vocab * sizeof *want) == 0, "%s: other bits at position %d", name, pos);
}

/* Evaluates [from, n_tokens) in pieces. If there are tokens past the first chunk, larger ones lead to its end. */
static void run(pf_session *s, int from, int piece, const char *name)
{
    for (int n; from < n_tokens; from += n) {
        int least = n_tokens > CHUNK && from < CHUNK - 40 ? 32 : 1;
        n = piece > least ? piece : least;
        n = n < n_tokens - from ? n : n_tokens - from;
        CHECK(pf_session_eval(s, tokens + from, (size_t)n, n > 1 ? PF_LOGITS_ALL : 0) == PF_OK, "%s: %s", name,
              pf_last_error());
        for (int i = 0; i < n; i++)
            compare(n > 1 ? pf_session_logits_at(s, (size_t)i) : pf_session_logits(s), from + i, name);
    }
}

static void expect(void)
{
    pf_model *m = open_on(0, false, false);
    if (!m)
        exit(1);
    pf_session *s = open_session_on(m, 512);
    expected = malloc((size_t)n_tokens * n_vocab * sizeof *expected);
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    CHECK(pf_session_eval(s, tokens, (size_t)n_tokens, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < n_tokens; i++)
        memcpy(expected + (size_t)i * n_vocab, pf_session_logits_at(s, (size_t)i), n_vocab * sizeof *expected);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_together(pf_session *a, pf_session *b, const char *name)
{
    int half = n_tokens / 2;
    CHECK(pf_session_rewind(a, 0) == PF_OK && pf_session_rewind(b, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(a, tokens, (size_t)half, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(b, tokens, 3, 0) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < 4; i++) {
        struct pf_batch_part parts[] = { { .session = a, .tok = tokens + half + i, .n = 1 },
                                               { .session = b, .tok = tokens + 3 + i, .n = 1 } };
        CHECK(pf_batch_eval(parts, 2) == PF_OK, "%s: %s", name, pf_last_error());
        compare(pf_session_logits(a), half + i, name);
        compare(pf_session_logits(b), 3 + i, name);
    }
}

static void test_saving(pf_session *s, const char *name)
{
    struct file f = { 0 };
    int half = n_tokens / 2;
    CHECK(pf_session_rewind(s, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(s, tokens, (size_t)half, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_save(s, write_file, &f) == PF_OK, "%s: %s", name, pf_last_error());
    CHECK(pf_session_rewind(s, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_load(s, read_file, &f) == PF_OK, "%s: %s", name, pf_last_error());
    run(s, half, 1, name);
    free(f.data);
}

static void test_copying(pf_session *a, pf_session *b, const char *name)
{
    int half = n_tokens / 2;
    CHECK(pf_session_rewind(a, 0) == PF_OK && pf_session_rewind(b, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_eval(a, tokens, (size_t)half, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_copy(b, a, half, NULL, NULL) == PF_OK && pf_session_computed(b) == half, "%s: %s", name,
          pf_last_error());
    run(b, half, 1, name);
    run(a, half, MOST_TOKENS, name);
}

/* A prompt in several steps, of which the cards have some at once; it can be gone back into. */
static void test_following(pf_model *m, int n_batch, const char *name)
{
    pf_session *s = open_session_on(m, n_batch);
    int half = n_tokens / 2;
    CHECK(pf_session_eval(s, tokens, (size_t)n_tokens, 0) == PF_OK, "%s: %s", name, pf_last_error());
    compare(pf_session_logits(s), n_tokens - 1, name);
    CHECK(pf_session_rewind(s, half) == PF_OK, "%s", pf_last_error());
    run(s, half, MOST_TOKENS, name);
    pf_session_close(&s);
}

struct beside {
    pf_session *s;
    atomic_bool ends;
    int         n_tokens;
};

/* One token after the other, as long as the other thread's prompts last. */
static void *decode(void *arg)
{
    struct beside *b = arg;
    for (int i = 0; !atomic_load(&b->ends); i = (i + 1) % 8, b->n_tokens++) {
        CHECK(i > 0 || pf_session_rewind(b->s, 0) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_eval(b->s, tokens + i, 1, 0) == PF_OK, "beside a prompt: %s", pf_last_error());
        compare(pf_session_logits(b->s), i, "a token beside a prompt");
    }
    return NULL;
}

/* Prompts in several steps beside a session of another thread, whose steps come in between, and one that does nothing;
 * sessions open and close meanwhile. */
static void test_beside(pf_model *m, int n_batch, const char *name)
{
    enum { PROMPTS = 4 };
    pf_session *s = open_session_on(m, n_batch), *idle = open_session_on(m, 512);
    struct beside b = { .s = open_session_on(m, n_batch) };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, decode, &b) == 0, "%s: there is no thread", name);
    for (int i = 0; i < PROMPTS; i++) {
        CHECK(pf_session_rewind(s, 0) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_eval(s, tokens, (size_t)n_tokens, 0) == PF_OK, "%s: %s", name, pf_last_error());
        compare(pf_session_logits(s), n_tokens - 1, name);
        pf_session_close(&idle);
        idle = open_session_on(m, 512);
    }
    atomic_store(&b.ends, true);
    pthread_join(thread, NULL);
    CHECK(b.n_tokens > PROMPTS, "%s: %d tokens beside %d prompts", name, b.n_tokens, PROMPTS);
    pf_session_close(&s);
    pf_session_close(&idle);
    pf_session_close(&b.s);
}

static void test_gpus(int n_gpus, bool uneven, bool shared)
{
    char name[64];
    struct pf_stats stats;
    pf_model *m = open_on(n_gpus, uneven, shared);
    if (!m)
        return;
    pf_session *a = open_session_on(m, 512), *b = open_session_on(m, 512);
    static const int pieces[] = { MOST_TOKENS, 7, 1 };
    for (int i = 0; a && b && i < 3; i++) {
        snprintf(name, sizeof name, "%d GPUs%s%s%s, pieces of %d", n_gpus, uneven ? ", uneven" : "",
                 shared ? ", shared" : "", layouts[layout], pieces[i]);
        CHECK(pf_session_rewind(a, 0) == PF_OK, "%s", pf_last_error());
        run(a, 0, pieces[i], name);
    }
    test_together(a, b, name);
    test_saving(b, name);
    test_copying(a, b, name);
    pf_stats_get(m, &stats);
    CHECK(shared == (stats.vram_transit_bytes > 0), "%s: %llu bytes for transfers", name,
          (unsigned long long)stats.vram_transit_bytes);
    CHECK(pf_model_info(m)->n_gpus > 0, "%s: it ended on %s", name, pf_model_info(m)->backend);
    test_following(m, 3, name);
    pf_session_close(&a);
    pf_session_close(&b);
    test_following(m, 3, name);
    test_beside(m, 3, name);
    pf_model_close(&m);
}

struct cancelling {
    pf_session *s;
    unsigned    us;
};

static void *cancel_later(void *arg)
{
    const struct cancelling *c = arg;
    usleep(c->us);
    pf_session_cancel(c->s);
    return NULL;
}

/* What is kept of a prompt in steps of n_batch rows: of an eval nothing, of a sync the steps that were through. */
static void check_kept(pf_session *s, int first, int n_batch, bool syncs, const char *name)
{
    int pos = (int)pf_session_pos(s);
    CHECK(syncs ? (pos - first) % n_batch == 0 : pos == first, "%s: %d of %d tokens are kept", name, pos, n_tokens);
    CHECK(pf_session_logits(s) == NULL && memcmp(pf_session_tokens(s), tokens, (size_t)pos * sizeof *tokens) == 0,
          "%s: other tokens", name);
}

/* A prompt that is cancelled some time after it has begun, or after its first part, goes on from where the session says
 * that it is. True: it ended sooner. */
static bool test_cancelled(pf_session *s, int first, int n_batch, bool syncs, unsigned us)
{
    struct cancelling c = { s, us };
    pthread_t thread;
    char name[64];
    snprintf(name, sizeof name, "cancelled after %u us", us);
    CHECK(pf_session_rewind(s, 0) == PF_OK, "%s", pf_last_error());
    CHECK(first == 0 || pf_session_eval(s, tokens, (size_t)first, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pthread_create(&thread, NULL, cancel_later, &c) == 0, "%s: there is no thread", name);
    pf_status st = syncs ? pf_session_sync(s, tokens, (size_t)n_tokens, NULL)
                         : pf_session_eval(s, tokens + first, (size_t)(n_tokens - first), 0);
    pthread_join(thread, NULL);
    CHECK(st == PF_OK || st == PF_ECANCEL, "%s: %s", name, pf_last_error());
    if (st == PF_OK) {
        pf_session_eval(s, tokens, 1, 0);    /* which the cancelling means, if it came too late */
        return true;
    }
    check_kept(s, first, n_batch, syncs, name);
    int pos = (int)pf_session_pos(s);
    CHECK(pf_session_eval(s, tokens + pos, (size_t)(n_tokens - pos), 0) == PF_OK, "%s: %s", name, pf_last_error());
    compare(pf_session_logits(s), n_tokens - 1, name);
    return false;
}

/* At all times of a prompt of several steps, with another session open. */
static void test_cancelling(pf_model *m, int n_batch)
{
    pf_session *s = open_session_on(m, n_batch), *idle = open_session_on(m, n_batch);
    for (unsigned us = 2000; s && !test_cancelled(s, 0, n_batch, false, us); us *= 2)
        ;
    for (unsigned us = 2000; s && !test_cancelled(s, 0, n_batch, true, us); us += us / 2)
        ;
    pf_session_close(&idle);
    pf_session_close(&s);
}

/* Where cards share experts with the CPU, steps of more than 16 rows; where they have all of them, too. */
static void test_pipeline(int n_gpus)
{
    pf_model *m = open_on(n_gpus, false, true), *whole = open_on(n_gpus, false, false);
    if (!m || !whole)
        return;
    test_following(m, 17, "one step behind the other");
    test_following(m, 40, "one step behind the other");
    test_beside(m, 17, "steps on several cards beside another thread's");
    test_cancelling(m, 17);
    test_cancelling(whole, 17);
    pf_model_close(&whole);
    const struct pf_model_info *info = pf_model_info(m);
    CHECK(info->n_gpus > (stays_on_one(info) ? 0 : 1), "it ended on %s", info->backend);
    pf_model_close(&m);
}

/* Where windows have rings, what was not committed may have taken the place of what a checkpoint has. */
static void test_rings(int n_gpus)
{
    pf_model *m = open_on(n_gpus, false, true);
    pf_session *s = m ? open_session_of(m, RING_CTX, 60) : NULL;
    for (unsigned us = 1000; s && !test_cancelled(s, 45, 60, false, us); us *= 8)
        ;
    for (unsigned us = 1000; s && !test_cancelled(s, 45, 60, true, us); us *= 8)
        ;
    pf_session_close(&s);
    pf_model_close(&m);
}

static void find_experts(void *ctx, enum pf_log_level level, const char *text)
{
    *(bool *)ctx |= level == PF_LOG_WARN && strstr(text, "not divided by experts") != NULL;
}

/* A model without experts, or too little memory for what every token needs: a sentence says so. */
static void check_noted(uint64_t gpu_bytes)
{
    pf_model *m = NULL;
    bool noted = false;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.log = find_experts;
    o.log_ctx = &noted;
    o.layout = PF_LAYOUT_EXPERTS;
    o.n_gpus = 2;
    o.gpus[1] = 1;
    o.gpu_bytes[0] = o.gpu_bytes[1] = gpu_bytes;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    CHECK(noted && pf_model_info(m)->layout != PF_LAYOUT_EXPERTS, "with %llu bytes nothing is said, or it is divided",
          (unsigned long long)gpu_bytes);
    pf_model_close(&m);
}

static void check_refused(int n, int first, int second, const char *why)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_gpus = n;
    o.gpus[0] = first;
    o.gpus[1] = second;
    CHECK(pf_model_open(&m, path, &o) == PF_EINVAL, "GPUs %d and %d were opened", first, second);
    CHECK(strstr(pf_last_error(), why), "GPUs %d and %d: %s", first, second, pf_last_error());
}

int main(int argc, char **argv)
{
    n_tokens = argc > 2 ? atoi(argv[2]) : n_tokens;
    if (argc > 3 && sscanf(argv[3], "%d-%d", &least_gpus, &most_gpus) == 1) {
        most_gpus = least_gpus;
        least_gpus = 2;
    }
    if (argc < 2 || n_tokens < 10 || n_tokens > MOST_TOKENS)
        return 2;
    path = argv[1];
    int n = pf_devices(NULL, 0) - 1;
    if (n < 2) {
        printf("skipped: this machine has not two GPUs that CUDA can use\n");
        return SKIP;
    }
    check_refused(2, 0, 0, "named twice");
    check_refused(2, 0, n, "there is no GPU");
    check_refused(2, -1, 0, "there is no GPU");
    check_refused(PF_MAX_GPUS + 1, 0, 1, "at most");
    expect();
    const char *how = argc > 4 ? argv[4] : "";
    for (int i = least_gpus; has_experts && i <= n && i <= most_gpus && (argc < 5 || strcmp(how, "pipeline") == 0); i++)
        test_pipeline(i);
    if (strcmp(how, "rings") == 0)
        test_rings(least_gpus);
    if (strcmp(how, "pipeline") == 0 || strcmp(how, "rings") == 0) {
        free(expected);
        return check_status();
    }
    if (strcmp(how, "rows") == 0)
        layout = PF_LAYOUT_ROWS;
    for (int i = least_gpus; i <= n && i <= most_gpus; i++)
        test_gpus(i, i == 2, false);
    for (int i = least_gpus; has_experts && argc < 5 && i <= n && i <= most_gpus; i++)
        test_gpus(i, i == 2, true);
    layout = PF_LAYOUT_EXPERTS;
    check_noted(has_experts ? 5000000 : 0);
    if (has_experts)
        test_gpus(n < most_gpus ? n : most_gpus, true, false);
    if (has_experts && strcmp(how, "rows") != 0)
        test_gpus(n < most_gpus ? n : most_gpus, true, true);
    free(expected);
    return check_status();
}

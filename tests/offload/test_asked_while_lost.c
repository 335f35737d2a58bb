/* While a device is lost in the middle of a step and the model goes over to the CPU, other threads ask for statistics,
 * set them back, ask what is in memory and what a session takes, and load: nothing of it fails, and every token has the
 * bits of the CPU alone. With experts shared, with all of the model on the device, and cut by layers. Meant for the
 * thread sanitizer, too.
 *
 * usage: test_asked_while_lost MODEL.gguf */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "expected.h"
#include "kernels/sim/sim.h"
#include "moe/place/placement.h"

enum { N_TOKENS = 8, N_ASKING = 6 };

static const char *path;
static int32_t     tokens[N_TOKENS];
static float      *expected;                 /* [N_TOKENS][n_vocab] */
static size_t      n_vocab;

struct asked {
    pf_model   *m;
    atomic_bool over;
    atomic_int  n[N_ASKING];                 /* times that each of them has asked */
};

/* Whether all of it is about the device, or all about the CPU. */
static bool is_whole(const struct pf_model_info *info)
{
    bool on_device = strcmp(info->backend, "sim") == 0;
    return (on_device || strcmp(info->backend, "cpu") == 0) && (info->n_gpu_layers > 0) == on_device &&
           (info->gpu_bytes_per_token > 0) == on_device && info->isa[0];
}

static void ask(struct asked *a, int which)
{
    struct pf_stats stats;
    uint64_t kv_bytes, work_bytes;
    switch (which) {
    case 0:
        pf_stats_get(a->m, &stats);
        break;
    case 1:
        pf_stats_reset(a->m);
        break;
    case 2:
        for (int il = 0; il < (int)pf_model_info(a->m)->n_layers; il++)
            pf_model_is_resident(a->m, il);
        break;
    case 3:
        CHECK(pf_session_bytes(a->m, NULL, &kv_bytes, &work_bytes) == PF_OK, "%s", pf_last_error());
        break;
    case 4:
        CHECK(is_whole(pf_model_info(a->m)), "it computes on %s", pf_model_info(a->m)->backend);
        break;
    default:
        CHECK(pf_model_preload(a->m, NULL, 0, NULL, NULL) == PF_OK, "%s", pf_last_error());
    }
    a->n[which]++;
}

struct asking {
    struct asked *a;
    int           which;
    pthread_t     thread;
};

static void *ask_all_the_time(void *ctx)
{
    struct asking *k = ctx;
    while (!k->a->over)
        ask(k->a, k->which);
    return NULL;
}

static size_t piece_at(int i)
{
    return (size_t)i;
}

static void eval(pf_session *s, const char *name)
{
    for (int i = 0; i < N_TOKENS; i++) {
        if (pf_session_eval(s, tokens + i, 1, 0) < 0) {
            CHECK(false, "%s, token %d: %s", name, i, pf_last_error());
            return;
        }
        CHECK(memcmp(pf_session_logits(s), expected + (size_t)i * n_vocab, n_vocab * sizeof *expected) == 0,
              "%s: other bits after token %d", name, i);
    }
}

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

/* Returns the operations that the device did. */
static uint64_t lose(const char *name, bool streaming, uint64_t memory_bytes, uint64_t lose_at)
{
    struct pf_sim sim = { .memory_bytes = memory_bytes, .lose_at = lose_at };
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = &sim };
    struct asked a = { .m = NULL };
    struct asking asking[N_ASKING];
    struct pf_model_opts o;
    struct pf_stats stats;
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.streaming = streaming;
    if (pf_model_open_with(&a.m, path, &o, &setup) < 0) {
        CHECK(false, "%s: %s", name, pf_last_error());
        return 0;
    }
    pf_session *s = open_session(a.m, 64);
    for (int i = 0; i < N_ASKING; i++) {
        asking[i] = (struct asking){ &a, i, 0 };
        pthread_create(&asking[i].thread, NULL, ask_all_the_time, &asking[i]);
    }
    for (int i = 0; i < N_ASKING; i++)               /* on a busy machine the step might end before they begin */
        while (a.n[i] == 0)
            sched_yield();
    eval(s, name);
    a.over = true;
    for (int i = 0; i < N_ASKING; i++)
        pthread_join(asking[i].thread, NULL);
    pf_stats_get(a.m, &stats);
    CHECK(stats.device_lost == (lose_at > 0), "%s: the device was%s lost", name, lose_at ? " not" : "");
    pf_session_close(&s);
    pf_model_close(&a.m);
    return sim.n_ops;
}

static void lose_here_and_there(const char *name, bool streaming, uint64_t memory_bytes)
{
    uint64_t n = lose(name, streaming, memory_bytes, 0);
    for (uint64_t part = 1; part < 4; part++)
        lose(name, streaming, memory_bytes, n * part / 4);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    path = argv[1];
    expected = expected_logits(path, tokens, N_TOKENS, piece_at, N_TOKENS, &n_vocab);
    lose_here_and_there("all on the device", false, 0);
    lose_here_and_there("a part of it", true, 0);
    return check_status();
}

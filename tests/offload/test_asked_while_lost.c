/* While a device is lost in the middle of a step and the model goes over to the CPU, or to the CPU and another device,
 * other threads ask for statistics, set them back, ask what is in memory and what a session takes, and load: nothing of
 * it fails, and every token has the bits of the CPU alone. With experts shared, with all of the model on the device,
 * and cut by layers, on one device and on two, which are lost one after the other. Meant for the thread sanitizer, too.
 *
 * usage: test_asked_while_lost MODEL.gguf */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "by_layers.h"
#include "check.h"
#include "expected.h"

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

static void eval_while_asked(struct asked *a, pf_session *s, const char *name)
{
    struct asking asking[N_ASKING];
    for (int i = 0; i < N_ASKING; i++) {
        asking[i] = (struct asking){ a, i, 0 };
        pthread_create(&asking[i].thread, NULL, ask_all_the_time, &asking[i]);
    }
    for (int i = 0; i < N_ASKING; i++)               /* on a busy machine the step might end before they begin */
        while (a->n[i] == 0)
            sched_yield();
    eval(s, name);
    a->over = true;
    for (int i = 0; i < N_ASKING; i++)
        pthread_join(asking[i].thread, NULL);
}

/* With the devices lost where d says so. */
static void lose(const char *name, int n_gpus, bool streaming, struct devices *d)
{
    struct asked a = { .m = open_by_layers(d, n_gpus, streaming, path, name) };
    struct pf_stats stats;
    int n_lost = 0;
    if (!a.m)
        return;
    int n_used = pf_model_info(a.m)->n_gpus;
    pf_session *s = open_session(a.m, 64);
    eval_while_asked(&a, s, name);
    for (int i = 0; i < n_used; i++)
        n_lost += d->sim[i].lose_at > 0;
    pf_stats_get(a.m, &stats);
    CHECK(stats.device_lost == (n_lost > 0), "%s: a device was%s lost", name, n_lost ? " not" : "");
    CHECK(pf_model_info(a.m)->n_gpus == n_used - n_lost, "%s: %d devices are left", name, pf_model_info(a.m)->n_gpus);
    pf_session_close(&s);
    pf_model_close(&a.m);
}

static void lose_here_and_there(const char *name, int n_gpus, bool streaming)
{
    struct devices all = { .n_opened = 0 };
    lose(name, n_gpus, streaming, &all);
    for (uint64_t part = 1; part < 4; part++) {
        struct devices d = { .n_opened = 0 };
        d.sim[part % (unsigned)n_gpus].lose_at = all.sim[part % (unsigned)n_gpus].n_ops * part / 4;
        if (part == 3)
            for (int i = 0; i < n_gpus; i++)
                d.sim[i].lose_at = all.sim[i].n_ops * (uint64_t)(1 + i) / 3;
        lose(name, n_gpus, streaming, &d);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    path = argv[1];
    expected = expected_logits(path, tokens, N_TOKENS, piece_at, N_TOKENS, &n_vocab);
    lose_here_and_there("all on the device", 1, false);
    lose_here_and_there("a part of it", 1, true);
    lose_here_and_there("all on two devices", 2, false);
    lose_here_and_there("a part of it, on two devices", 2, true);
    return check_status();
}

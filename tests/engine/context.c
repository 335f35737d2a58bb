/* How long a context is that nobody gives a length: the model's own as far as there is memory, a share of it where
 * experts pass through, and never less than what is usual.
 *
 * usage: context MODEL.gguf FOLDER (a model whose file says "context_length" once; copied with another number) */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kernels/sim/sim.h"
#include "moe/layout/layout.h"
#include "moe/place/placement.h"

enum { OWN = 131072, LEAST = 8192 };

static char path[4096];

/* The model with a context of OWN positions. */
static bool make_model(const char *from, const char *folder)
{
    static const char key[] = "context_length";
    const uint32_t own = OWN;
    snprintf(path, sizeof path, "%s/long-context.gguf", folder);
    FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
    if (!in || !out)
        return false;
    fseek(in, 0, SEEK_END);
    size_t n = (size_t)ftell(in);
    rewind(in);
    char *all = malloc(n);
    bool ok = all && fread(all, 1, n, in) == n;
    char *at = ok ? memmem(all, n, key, sizeof key - 1) : NULL;
    if (at)
        memcpy(at + sizeof key - 1 + sizeof(uint32_t), &own, sizeof own);    /* behind the type */
    ok = at && fwrite(all, 1, n, out) == n;
    free(all);
    fclose(in);
    return fclose(out) == 0 && ok;
}

static pf_status open_sim(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

static pf_model *open_model(uint64_t ram_bytes, bool streaming, struct pf_sim *sim)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    struct pf_residency_setup setup = { .device = sim ? open_sim : NULL, .device_ctx = sim };
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.ram_bytes = ram_bytes;
    o.streaming = streaming;
    o.device = -1;
    CHECK(pf_model_open_with(&m, path, &o, &setup) == PF_OK, "%s", pf_last_error());
    return m;
}

/* The context of a session that is one of so many, and its bytes. */
static int64_t context_of(pf_model *m, int n_sessions, uint64_t *bytes)
{
    struct pf_session_opts o;
    struct pf_stats stats;
    pf_session *s = NULL;
    uint64_t kv, work;
    pf_session_opts_init(&o);
    o.n_sessions = n_sessions;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    int64_t n = s ? pf_session_n_ctx(s) : 0;
    pf_stats_get(m, &stats);
    CHECK(stats.n_ctx == n, "statistics say %lld", (long long)stats.n_ctx);
    o.n_ctx = n;
    CHECK(pf_session_bytes(m, &o, &kv, &work) == PF_OK, "%s", pf_last_error());
    *bytes = kv + work;
    pf_session_close(&s);
    return n;
}

static uint64_t weight_bytes(void)
{
    pf_model *m = open_model((uint64_t)1 << 40, false, NULL);
    uint64_t bytes = m->info.weight_bytes;
    pf_model_close(&m);
    return bytes;
}

/* With ever more memory the context grows, from the least to the model's own, and fits. */
static void test_cpu(uint64_t weights)
{
    int64_t before = 0, n = 0;
    int n_between = 0;
    for (uint64_t left = 1 << 20; left <= (uint64_t)1 << 33; left *= 2) {
        struct pf_plan plan;
        struct pf_model_opts o;
        uint64_t bytes, bytes4;
        pf_model *m = open_model(weights + left + (64 << 20), false, NULL);
        n = context_of(m, 1, &bytes);
        CHECK(n >= before && n >= LEAST && n <= OWN, "%lld after %lld", (long long)n, (long long)before);
        CHECK(n == LEAST || bytes <= left + (64 << 20), "%llu bytes where there are %llu", (unsigned long long)bytes,
              (unsigned long long)left);
        n_between += n > LEAST && n < OWN;
        int64_t n4 = context_of(m, 4, &bytes4);
        CHECK(n4 <= n && (n == LEAST || n4 == OWN || n4 < n), "one of four has %lld", (long long)n4);
        pf_model_close(&m);
        pf_model_opts_init(&o);
        o.n_threads = 2;
        o.ram_bytes = weights + left + (64 << 20);
        o.device = -1;
        o.speeds = (struct pf_speeds){ 1e12, 3e10, 5e10, 5e9 };
        CHECK(pf_model_plan(path, &o, NULL, &plan) == PF_OK && plan.n_ctx == n, "the plan says %lld instead of %lld",
              (long long)plan.n_ctx, (long long)n);
        before = n;
    }
    CHECK(n == OWN && n_between > 0, "%lld at last, %d between", (long long)n, n_between);
}

/* Streamed weights leave a share, and the slots with it stay within the budget. */
static void test_streamed(uint64_t weights)
{
    uint64_t bytes;
    pf_model *m = open_model(weights / 4 * 3 + (64 << 20), true, NULL);
    int64_t n = context_of(m, 1, &bytes);
    CHECK(n >= LEAST && n < OWN, "%lld", (long long)n);
    pf_model_close(&m);
}

/* A device that holds everything gives most of the rest; one that shares experts a quarter at most, and what steps take
 * that have more rows than are planned for. Sessions after the first find what is left. */
static void test_device(uint64_t weights)
{
    static const bool shares[] = { false, true };
    for (int i = 0; i < 2; i++) {
        struct pf_sim sim = { .memory_bytes = weights + (120 << 20) };
        struct pf_session_opts o;
        pf_session *s[6] = { NULL };
        uint64_t bytes;
        pf_model *m = open_model((uint64_t)1 << 36, shares[i], &sim);
        CHECK(m->place->device != m->cpu && m->place->experts_apart == shares[i], "placed otherwise");
        int64_t n = context_of(m, 1, &bytes);
        CHECK(n > LEAST && n <= OWN, "%lld", (long long)n);
        uint64_t most = shares[i] ? sim.memory_bytes / 4 + pf_more_rows_bytes(m, m->backend) : (uint64_t)120 << 20;
        CHECK(bytes <= most, "%llu bytes of %llu", (unsigned long long)bytes, (unsigned long long)most);
        pf_session_opts_init(&o);
        int64_t last = n;
        int n_open = 0;
        for (; n_open < 6 && pf_session_open(&s[n_open], m, &o) == PF_OK; n_open++) {
            CHECK(pf_session_n_ctx(s[n_open]) <= last && pf_session_n_ctx(s[n_open]) >= LEAST, "%lld",
                  (long long)pf_session_n_ctx(s[n_open]));
            last = pf_session_n_ctx(s[n_open]);
        }
        CHECK(n_open > 1, "only %d", n_open);
        CHECK(m->backend != m->cpu, "the device was left");
        while (n_open-- > 0)
            pf_session_close(&s[n_open]);
        pf_model_close(&m);
    }
}

static void test_refusals(void)
{
    struct pf_session_opts o;
    pf_session *s = NULL;
    pf_model *m = open_model((uint64_t)1 << 40, false, NULL);
    pf_session_opts_init(&o);
    o.n_sessions = -1;
    CHECK(pf_session_open(&s, m, &o) == PF_EINVAL && !s && strstr(pf_last_error(), "n_sessions"), "%s",
          pf_last_error());
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc != 3 || !make_model(argv[1], argv[2])) {
        fprintf(stderr, "usage: context MODEL.gguf FOLDER\n");
        return 2;
    }
    uint64_t weights = weight_bytes();
    test_cpu(weights);
    test_streamed(weights);
    test_device(weights);
    test_refusals();
    remove(path);
    return check_status();
}

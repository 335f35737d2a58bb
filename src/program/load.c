/* See load.h. */
#define _GNU_SOURCE
#include "program/load.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "program/hosts.h"
#include "program/learned.h"
#include "program/io/term.h"

void die_failed(const char *what)
{
    if (what)
        die(EXIT_FAILED, "%s: %s", what, pf_last_error());
    die(EXIT_FAILED, "%s", pf_last_error());
}

/* The folder of the program's own file, into out; false if that cannot be told. */
static bool program_folder(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    if (n <= 0)
        return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

/* An installed program has it in share/; one in its build folder, in the source tree. */
static const char *bundled_model(void)
{
    enum { PLACES = 3, PATH_BYTES = 4200 };
    static char places[PLACES][PATH_BYTES];
    char folder[4096];
    if (program_folder(folder, sizeof folder))
        snprintf(places[0], PATH_BYTES, "%s/../share/pfmoe/fables.gguf", folder);
    snprintf(places[1], PATH_BYTES, "%s/fables.gguf", PFMOE_DATADIR);
    snprintf(places[2], PATH_BYTES, "%s/models/fables.gguf", PFMOE_SOURCE_ROOT);
    for (int i = 0; i < PLACES; i++)
        if (access(places[i], R_OK) == 0)
            return places[i];
    die(EXIT_FAILED, "no model: give one with -m FILE.gguf (the bundled one is not at %s)", places[1]);
}

const char *load_path(const struct settings *s)
{
    return s->model ? s->model : bundled_model();
}

void load_need_file(const struct settings *s)
{
    const char *path = load_path(s);
    if (access(path, R_OK) != 0)
        die(EXIT_FAILED, "%s: cannot be opened: %s", path, strerror(errno));
}

static void log_all(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    complain("%s%s", level == PF_LOG_WARN ? "warning: " : "", text);
}

static void log_warnings(void *ctx, enum pf_log_level level, const char *text)
{
    if (level <= PF_LOG_WARN)
        log_all(ctx, level, text);
}

static bool cancelled(void *ctx)
{
    (void)ctx;
    return interrupted();
}

/* One budget of several GPUs is that of each. */
static void gpu_opts(const struct settings *s, struct pf_model_opts *o)
{
    const struct whole_list *gpus = &s->gpus, *mb = &s->vram_mb;
    opts_check_gpus(gpus);
    if (mb->n > 1 && mb->n != gpus->n)
        die(EXIT_USAGE, "--vram-mb has %d numbers and --gpus %d: one for each GPU is wanted, or one for all", mb->n,
            gpus->n);
    o->vram_bytes = mb->n ? (uint64_t)mb->v[0] * 1000000 : 0;
    o->device = gpus->n ? gpus->v[0] : 0;
    o->n_gpus = o->device < 0 ? 0 : gpus->n;
    o->layout = (enum pf_layout)s->layout;
    for (int i = 0; i < o->n_gpus; i++) {
        o->gpus[i] = gpus->v[i];
        o->gpu_bytes[i] = mb->n > 1 ? (uint64_t)mb->v[i] * 1000000 : o->vram_bytes;
    }
}

/* Processes on one machine have GPUs one by one, if nobody says otherwise. */
static void hosts_opts(const struct settings *s, struct pf_model_opts *o)
{
    struct hosts h = hosts_of(s);
    if (h.n == 1)
        return;
    o->n_ranks = h.n;
    o->rank = h.rank;
    if (s->gpus.n == 0)
        o->device = h.beside;
    hosts_tell_nccl(s);
}

void load_model_opts(const struct settings *s, struct pf_model_opts *o)
{
    pf_model_opts_init(o);
    o->n_threads = (int)s->n_threads;
    gpu_opts(s, o);
    hosts_opts(s, o);
    o->ram_bytes = (uint64_t)s->ram_mb * 1000000;
    o->speeds = (struct pf_speeds){ s->vram_gb_s * 1e9, s->pcie_gb_s * 1e9, s->ram_gb_s * 1e9, s->disk_gb_s * 1e9 };
    o->streaming = s->streaming;
    o->no_nvme = s->no_nvme;
    opts_shared_model(s, o);
    o->cancel = cancelled;
    o->log = s->postfetch_debug ? log_all : log_warnings;
}

void load_session_opts(const struct settings *s, int64_t n_ctx, struct pf_session_opts *o)
{
    pf_session_opts_init(o);
    o->n_ctx = n_ctx;
    opts_shared_session(s, o);
    o->kv_type = s->kv == KV_F32 ? PF_KV_F32 : s->kv == KV_Q8_0 ? PF_KV_Q8_0 : PF_KV_I16;
}

void load_check(const struct settings *s)
{
    const char *why;
    if (!report_allows(&s->report, &why))
        die(EXIT_FAILED, "%s", why);
}

/* A model goes on past the length that it was trained to, and what it says there is of little worth. */
static void warn_of_context(const struct settings *s, const struct pf_model_info *info)
{
    if (info->n_ctx_train > 0 && s->n_ctx > info->n_ctx_train)
        complain("warning: a context of %" PRId64 " tokens is asked for; the model was trained to %" PRId64, s->n_ctx,
                 info->n_ctx_train);
}

pf_status load_plan(const struct settings *s, int n_sessions, struct pf_plan *p)
{
    struct pf_model_opts o;
    struct pf_session_opts so;
    load_model_opts(s, &o);
    load_session_opts(s, s->n_ctx, &so);
    so.n_sessions = n_sessions;
    o.log = NULL;                            /* opening the model warns of it */
    o.speeds = (struct pf_speeds){ 500e9, 20e9, 30e9, 2e9 };     /* any: what is given is not measured */
    return pf_model_plan(load_path(s), &o, &so, p);
}

/* Keys and values take memory as they come, so that it may be short only when a context is half full. To be asked
 * before the model is opened, which takes some of that, and told once it is open: a model that has no room itself says
 * that alone. The caller frees it; NULL: there is enough. */
static char *short_of_memory(const struct settings *s)
{
    struct pf_plan p;
    return s->n_ctx > 0 && load_plan(s, 1, &p) == PF_ENOMEM ? xstrdup(pf_last_error()) : NULL;
}

pf_status load_model_try(const struct settings *s, bool vocab_only, pf_model **m)
{
    struct pf_model_opts o;
    const char *why;
    load_check(s);
    load_model_opts(s, &o);
    o.vocab_only = vocab_only;
    char *is_short = vocab_only || o.n_ranks > 1 ? NULL : short_of_memory(s);
    pf_status st = pf_model_open(m, load_path(s), &o);
    if (st == PF_OK && is_short)
        complain("warning: with a context of %" PRId64 " tokens %s", s->n_ctx, is_short);
    free(is_short);
    if (st < 0)
        return st;
    if (!vocab_only)
        warn_of_context(s, pf_model_info(*m));
    if (o.n_ranks < 2)                       /* what is learned is that of a whole model */
        learned_load(*m, o.device);
    if (!vocab_only && !report_begin(&s->report, *m, &why))
        die(EXIT_FAILED, "%s", why);
    return PF_OK;
}

pf_model *load_model(const struct settings *s, bool vocab_only)
{
    pf_model *m;
    if (load_model_try(s, vocab_only, &m) < 0)
        die_failed(NULL);
    return m;
}

struct reading {
    int      percent;                        /* the bar's */
    uint64_t bytes;                          /* in memory */
};

static void on_read(void *ctx, uint64_t done, uint64_t total)
{
    struct reading *r = ctx;
    r->bytes = done;
    if (term_err_is_tty())
        progress_bar(&r->percent, done, total);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static pf_status read_weights(pf_model *m)
{
    struct reading r = { .percent = -1 };
    double begun = now();
    pf_status st = pf_model_preload(m, NULL, 0, on_read, &r);
    if (st < 0)
        return st;
    if (!term_err_is_tty() && r.bytes > 0)
        note("%s: %.0f MB of weights in memory after %.1f s", program_invocation_short_name, (double)r.bytes * 1e-6,
             now() - begun);
    return pf_model_measure(m);
}

pf_status load_weights_try(pf_model *m)
{
    return term_err_is_tty() ? read_weights(m) : PF_OK;
}

void load_weights(pf_model *m)
{
    if (load_weights_try(m) < 0)
        die_failed(NULL);
}

void load_weights_always(pf_model *m)
{
    if (read_weights(m) < 0)
        die_failed(NULL);
}

pf_status load_session_try(const struct settings *s, pf_model *m, int64_t n_ctx, pf_session **session)
{
    struct pf_session_opts o;
    load_session_opts(s, n_ctx, &o);
    return pf_session_open(session, m, &o);
}

pf_session *load_session(const struct settings *s, pf_model *m, int64_t n_ctx)
{
    pf_session *session;
    if (load_session_try(s, m, n_ctx, &session) < 0)
        die_failed(NULL);
    return session;
}

void load_report(const struct settings *s, pf_model *m)
{
    const char *why;
    struct pf_model_opts o;
    load_model_opts(s, &o);
    if (o.n_ranks < 2)
        learned_store(m, o.device);
    if (!report_end(&s->report, m, NULL, &why))
        die(EXIT_FAILED, "%s", why);
}

bool load_follows(const struct settings *s)
{
    return hosts_of(s).rank > 0;
}

int load_follow(const struct settings *s)
{
    pf_model *m = load_model(s, false);
    pf_status st = pf_model_follow(m);
    if (st < 0)
        die_failed(NULL);
    load_report(s, m);
    pf_model_close(&m);
    return EXIT_DONE;
}

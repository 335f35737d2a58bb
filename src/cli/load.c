/* See load.h. */
#define _GNU_SOURCE
#include "load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "learned.h"
#include "modes.h"
#include "term.h"

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

static uint32_t isa_mask(int level)
{
    static const uint32_t bits[] = { PF_ISA_SCALAR, PF_ISA_AVX2, PF_ISA_AVX512, PF_ISA_VNNI };
    if (level == ISA_VNNI)
        return PF_ISA_ALL;
    uint32_t mask = 0;
    for (int i = 0; i <= level; i++)
        mask |= bits[i];
    return mask;
}

static bool cancelled(void *ctx)
{
    (void)ctx;
    return interrupted();
}

static void model_opts(const struct settings *s, struct pf_model_opts *o)
{
    pf_model_opts_init(o);
    o->n_threads = (int)s->n_threads;
    o->isa = isa_mask(s->isa);
    o->vram_bytes = (uint64_t)s->vram_mb * 1000000;
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
    o->kv_type = s->kv == KV_F32 ? PF_KV_F32 : s->kv == KV_Q8_0 ? PF_KV_Q8_0 : PF_KV_F16;
}

static void print_tier(struct buf *out, const char *name, const struct pf_plan_tier *t)
{
    static const char *const from[] = { [PF_PRICE_ASSUMED] = "assumed", [PF_PRICE_MEASURED] = "measured",
                                        [PF_PRICE_GIVEN] = "given" };
    buf_printf(out, "%-7s %7" PRIu64 " %10.2f %12.1f %9.1f %-9s", name, t->n_slabs, (double)t->bytes * 1e-9,
               t->token_bytes * 1e-6, t->bytes_s * 1e-9, from[t->price]);
    if (t->tok_s > 0)
        buf_printf(out, " %10.1f\n", t->tok_s);
    else
        buf_printf(out, " %10s\n", "-");
}

static void print_plan(struct buf *out, const struct pf_plan *p)
{
    static const char *const names[] = { [PF_TIER_VRAM] = "GPU", [PF_TIER_RAM] = "memory", [PF_TIER_DISK] = "drive" };
    bool gpu = p->vram_budget_bytes > 0;
    buf_printf(out, "tier      slabs         GB   MB a token      GB/s           tok/s alone\n");
    for (int t = gpu ? PF_TIER_VRAM : PF_TIER_RAM; t < PF_N_TIERS; t++)
        print_tier(out, names[t], &p->tiers[t]);
    if (gpu)
        buf_printf(
            out, "the GPU's memory: %.2f GB, of it %.2f for keys, values and scratch, %.2f for experts or layers\n",
            (double)p->vram_budget_bytes * 1e-9, (double)p->other_bytes * 1e-9, (double)p->vram_slot_bytes * 1e-9);
    buf_printf(out, "main memory: %.2f GB, of it ", (double)p->ram_budget_bytes * 1e-9);
    if (!gpu)
        buf_printf(out, "%.2f for keys, values and scratch, ", (double)p->other_bytes * 1e-9);
    buf_printf(out, "%.2f for weights that come and go\n", (double)p->slot_bytes * 1e-9);
    buf_printf(out, "%s; at most %.1f tok/s, limited by %s\n",
               p->resident ? "everything is in memory" : "part of the weights is read while running", p->tok_s,
               p->limit == PF_TIER_VRAM ? "the GPU's memory" : p->limit == PF_TIER_RAM ? "main memory" : "the drive");
}

int mode_plan(const struct settings *s)
{
    struct pf_model_opts o;
    struct pf_session_opts so;
    struct pf_plan p;
    model_opts(s, &o);
    load_session_opts(s, s->n_ctx, &so);
    if (pf_model_plan(load_path(s), &o, &so, &p) < 0)
        die_failed(NULL);
    struct buf out = { 0 };
    print_plan(&out, &p);
    out_puts(buf_text(&out));
    buf_free(&out);
    return EXIT_DONE;
}

pf_model *load_model(const struct settings *s, bool vocab_only)
{
    struct pf_model_opts o;
    pf_model *m;
    const char *why;
    model_opts(s, &o);
    o.vocab_only = vocab_only;
    if (pf_model_open(&m, load_path(s), &o) < 0)
        die_failed(NULL);
    learned_load(m, o.device);
    if (!vocab_only && !report_begin(&s->report, m, &why))
        die(EXIT_FAILED, "%s", why);
    return m;
}

void load_weights(pf_model *m)
{
    int percent = -1;
    if (!term_err_is_tty())
        return;
    if (pf_model_preload(m, NULL, 0, progress_bar, &percent) < 0 || pf_model_measure(m) < 0)
        die_failed(NULL);
}

pf_session *load_session(const struct settings *s, pf_model *m, int64_t n_ctx)
{
    struct pf_session_opts o;
    pf_session *session;
    load_session_opts(s, n_ctx, &o);
    if (pf_session_open(&session, m, &o) < 0)
        die_failed(NULL);
    return session;
}

void load_report(const struct settings *s, pf_model *m)
{
    const char *why;
    struct pf_model_opts o;
    model_opts(s, &o);
    learned_store(m, o.device);
    if (!report_end(&s->report, m, NULL, &why))
        die(EXIT_FAILED, "%s", why);
}

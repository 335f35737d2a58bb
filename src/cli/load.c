/* See load.h. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "term.h"

void die_failed(const char *what)
{
    if (what)
        die(EXIT_FAILED, "%s: %s", what, pf_last_error());
    die(EXIT_FAILED, "%s", pf_last_error());
}

static char *joined(const char *a, const char *b)
{
    struct buf path = { 0 };
    buf_printf(&path, "%s/%s", a, b);
    return path.p;
}

/* Where the program's file lies; NULL if that cannot be told. */
static char *program_folder(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return NULL;
    path[n] = 0;
    char *slash = strrchr(path, '/');
    if (!slash)
        return NULL;
    *slash = 0;
    return xstrdup(path);
}

/* An installed program has it in share/; one in its build folder, in the source tree. */
static const char *bundled_model(void)
{
    char *folder = program_folder();
    char *places[] = {
        folder ? joined(folder, "../share/pfmoe/fables.gguf") : NULL,
        joined(PFMOE_DATADIR, "fables.gguf"),
        joined(PFMOE_SOURCE_ROOT, "models/fables.gguf"),
    };
    const size_t n = sizeof places / sizeof *places;
    free(folder);
    for (size_t i = 0; i < n; i++)
        if (places[i] && access(places[i], R_OK) == 0)
            return places[i];
    die(EXIT_FAILED, "no model: give one with -m FILE.gguf (the bundled one is not at %s)", places[1]);
}

const char *load_path(const struct settings *s)
{
    return s->model ? s->model : bundled_model();
}

static void log_line(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    if (level <= PF_LOG_WARN)
        complain("%s%s", level == PF_LOG_WARN ? "warning: " : "", text);
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

pf_model *load_model(const struct settings *s, bool vocab_only)
{
    struct pf_model_opts o;
    pf_model *m;
    pf_model_opts_init(&o);
    o.n_threads = (int)s->n_threads;
    o.isa = isa_mask(s->isa);
    o.vocab_only = vocab_only;
    o.log = log_line;
    if (pf_model_open(&m, load_path(s), &o) < 0)
        die_failed(NULL);
    return m;
}

void load_weights(pf_model *m)
{
    int percent = -1;
    if (term_err_is_tty() && pf_model_preload(m, NULL, 0, progress_bar, &percent) < 0)
        die_failed(NULL);
}

pf_session *load_session(const struct settings *s, pf_model *m, int64_t n_ctx)
{
    struct pf_session_opts o;
    pf_session *session;
    pf_session_opts_init(&o);
    o.n_ctx = n_ctx;
    o.kv_type = s->kv == KV_F32 ? PF_KV_F32 : PF_KV_F16;
    if (pf_session_open(&session, m, &o) < 0)
        die_failed(NULL);
    return session;
}

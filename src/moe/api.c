/* The bodies of pfmoe.h that are about machines and models: they translate, and the rooms beside this file do the work
 * (opening is open/open.c). Sessions and sampling are session/ and run/evaluate.c; text and files are text/ and
 * gguf/. */
#include <string.h>

#include "base/pf_cpu.h"
#include "gguf/inspect.h"
#include "moe/open/open.h"
#include "moe/place/placement.h"
#include "version.h"

const char *pf_version(void)
{
    return PF_VERSION;
}

int pf_devices(struct pf_device *out, int cap)
{
    int n = 1;
    struct pf_device gpu;
    struct pf_device cpu = { .backend = "cpu", .memory_bytes = pf_cpu_memory_bytes(), .isa = pf_cpu_isa(),
                             .n_units = pf_cpu_n_cores() };
    pf_cpu_name(cpu.name, sizeof cpu.name);
    if (cap > 0)
        out[0] = cpu;
    for (int i = 0; pf_backend_cuda_device(i, &gpu); i++, n++)
        if (n < cap)
            out[n] = gpu;
    return n;
}

double pf_gpu_bandwidth(int gpu)
{
    return pf_backend_cuda_bandwidth(gpu);
}

double pf_gpu_copy_bandwidth(int gpu, void *host, size_t bytes, void (*meanwhile)(void *ctx), void *ctx)
{
    return pf_backend_cuda_copy_bandwidth(gpu, host, bytes, meanwhile, ctx);
}

pf_status pf_file_inspect(const char *path, unsigned flags, struct pf_file_info *out)
{
    pf_gguf *g;
    PF_TRY(pf_gguf_inspect(path, flags, out));
    PF_TRY(pf_gguf_open(&g, path, PF_GGUF_EMPTY_OK));
    out->supported = pf_arch_find(out->architecture, strlen(out->architecture)) != NULL;
    pf_model_liken(g, out->architecture, out->likeness, sizeof out->likeness);
    pf_gguf_close(&g);
    return PF_OK;
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

void pf_model_opts_init(struct pf_model_opts *o)
{
    *o = (struct pf_model_opts){ .isa = PF_ISA_ALL,
                                 .postfetch = { .enable = true, .block_on_miss = PF_AUTO, .max_transfers = 8,
                                                .dedicated_streams = true, .cpu_limit = PF_AUTO } };
}

pf_status pf_model_open(pf_model **out, const char *path, const struct pf_model_opts *opts)
{
    return pf_open_model(out, path, opts, NULL, true);
}

pf_status pf_model_open_with(pf_model **out, const char *path, const struct pf_model_opts *opts,
                             const struct pf_residency_setup *setup)
{
    return pf_open_model(out, path, opts, setup, true);
}

pf_status pf_model_plan(const char *path, const struct pf_model_opts *opts, const struct pf_session_opts *so,
                        struct pf_plan *out)
{
    return pf_open_plan(path, opts, so, NULL, out);
}

const struct pf_model_info *pf_model_info(const pf_model *m)
{
    int n = atomic_load(&m->n_losses);
    return n > 0 ? &m->info_left[n - 1] : &m->info;
}

pf_status pf_timeline_write(pf_model *m, pf_write_fn *write, void *ctx)
{
    if (!m->spans)
        PF_FAIL(PF_EINVAL, "the model was opened without a timeline");
    pf_lock_take(&m->step_lock);
    bool ok = pf_spans_write(m->spans, write, ctx);
    pf_lock_give(&m->step_lock);
    if (!ok)
        PF_FAIL(PF_EIO, "writing the timeline failed");
    return PF_OK;
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

static pf_status need_vocab(const pf_model *m)
{
    if (!m->vocab)
        PF_FAIL(PF_EUNSUPPORTED, "%s has no tokenizer", pf_gguf_path(m->file));
    return PF_OK;
}

pf_status pf_tokenize(const pf_model *m, const char *text, size_t len, unsigned flags, int32_t *out, size_t cap,
                      size_t *n)
{
    PF_TRY(need_vocab(m));
    return pf_vocab_tokenize(m->vocab, text, len, flags, out, cap, n);
}

pf_status pf_detokenize(const pf_model *m, const int32_t *tok, size_t n, unsigned flags, char *out, size_t cap,
                        size_t *need)
{
    PF_TRY(need_vocab(m));
    return pf_vocab_detokenize(m->vocab, tok, n, flags, out, cap, need);
}

int32_t pf_token_find(const pf_model *m, const char *text, size_t len)
{
    return m->vocab ? pf_vocab_find(m->vocab, text, len) : -1;
}

bool pf_token_is_end(const pf_model *m, int32_t tok)
{
    return m->vocab && pf_vocab_is_end(m->vocab, tok);
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

void pf_stats_get(const pf_model *m, struct pf_stats *out)
{
    *out = (struct pf_stats){ .n_steps = m->n_steps, .n_tokens = m->n_tokens, .n_ctx = m->last_n_ctx,
                              .step_ns = m->step_ns, .far_bytes = m->far_bytes,
                              .weight_bytes_read = m->counted.weight_bytes - m->counted_before.weight_bytes,
                              .n_launches = m->counted.launches - m->counted_before.launches,
                              .n_drafted = m->drafts.drafted, .n_accepted = m->drafts.accepted,
                              .n_draft_steps = m->drafts.steps, .draft_step_ns = m->drafts.step_ns,
                              .draft_alone_ns = m->drafts.alone_ns };
    pf_place_stats(m->place, out);
    out->device_lost = atomic_load(&m->n_losses) > 0;
}

void pf_stats_reset(pf_model *m)
{
    pf_lock_take(&m->step_lock);             /* who counts holds it, too */
    m->n_steps = 0;
    m->n_tokens = 0;
    m->step_ns = 0;
    m->far_bytes = 0;
    m->drafts.drafted = m->drafts.accepted = m->drafts.steps = m->drafts.step_ns = m->drafts.alone_ns = 0;
    atomic_store(&m->counted_before.weight_bytes, m->counted.weight_bytes);
    atomic_store(&m->counted_before.launches, m->counted.launches);
    pf_place_stats_reset(m->place);
    pf_lock_give(&m->step_lock);
}

void pf_learned_get(pf_model *m, struct pf_learned *out)
{
    pf_lock_take(&m->step_lock);
    pf_place_tell(m->place, out);
    pf_lock_give(&m->step_lock);
}

void pf_learned_set(pf_model *m, const struct pf_learned *l)
{
    pf_lock_take(&m->step_lock);
    pf_place_recall(m->place, l);
    pf_lock_give(&m->step_lock);
}

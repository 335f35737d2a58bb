/* The bodies of pfmoe.h that are about models: opening and closing, facts, residency, statistics. Sessions, sampling
 * and chat have files of their own (session.c, save.c, sampler.c, chat.c); text and files live in text/ and gguf/. */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/pf_cpu.h"
#include "base/pf_mem.h"
#include "gguf/inspect.h"
#include "moe/model/lora.h"
#include "moe/offload/offload.h"
#include "moe/place/cut.h"
#include "moe/run/watch.h"
#include "version.h"

enum { MAX_DEFAULT_THREADS = 64 };

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
    PF_TRY(pf_gguf_inspect(path, flags, out));
    out->supported = pf_arch_find((struct pf_str){ out->architecture, strlen(out->architecture) }) != NULL;
    return PF_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

void pf_model_opts_init(struct pf_model_opts *o)
{
    *o = (struct pf_model_opts){ .isa = PF_ISA_ALL,
                                 .postfetch = { .enable = true, .block_on_miss = PF_AUTO, .max_transfers = 8,
                                                .dedicated_streams = true, .cpu_limit = PF_AUTO } };
}

static void read_string(const pf_gguf *g, const char *key, char *out, size_t cap)
{
    struct pf_str s;
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    out[0] = 0;
    if (kv && kv->type == PF_GGUF_STRING && pf_gguf_str(g, key, &s) == PF_OK)
        snprintf(out, cap, "%.*s", (int)s.n, s.p);
}

/* A template that does not parse is no reason to refuse the model: pf_chat_render will say so. */
static pf_status open_template(struct pf_model *m)
{
    struct pf_str text = { 0 };
    PF_TRY(pf_gguf_str_opt(m->file, "tokenizer.chat_template", &text));
    if (text.n == 0)
        return PF_OK;
    pf_status st = pf_tmpl_parse(&m->tmpl, text.p, text.n);
    if (st != PF_ETEMPLATE)
        return st;
    pf_model_logf(m, PF_LOG_WARN, "the model's chat template does not parse: %s", pf_last_error());
    char message[600];
    int n = snprintf(message, sizeof message, "the model's chat template does not parse (%s)", pf_last_error());
    m->tmpl_error = pf_strndup(PF_MEM_MODEL, message, (size_t)n < sizeof message ? (size_t)n : sizeof message - 1);
    if (!m->tmpl_error)
        PF_FAIL(PF_ENOMEM, "no memory for the chat template of %s", pf_gguf_path(m->file));
    return PF_OK;
}

static void log_warnings(const struct pf_model *m)
{
    for (int i = 0; pf_gguf_warning(m->file, i); i++)
        pf_model_logf(m, PF_LOG_WARN, "%s", pf_gguf_warning(m->file, i));
}

static pf_status read_sampling(struct pf_model *m)
{
    int64_t top_k = -1;
    struct pf_model_info *info = &m->info;
    info->temp = info->top_p = info->min_p = -1;
    PF_TRY(pf_gguf_real_opt(m->file, "general.sampling.temp", &info->temp));
    PF_TRY(pf_gguf_real_opt(m->file, "general.sampling.top_p", &info->top_p));
    PF_TRY(pf_gguf_real_opt(m->file, "general.sampling.min_p", &info->min_p));
    PF_TRY(pf_gguf_int_opt(m->file, "general.sampling.top_k", 0, INT32_MAX, &top_k));
    info->top_k = (int)top_k;
    return PF_OK;
}

static uint64_t ffn_bytes(const struct pf_dense_ffn *f)
{
    return pf_weight_bytes(&f->gate) + pf_weight_bytes(&f->up) + pf_weight_bytes(&f->down);
}

static uint64_t picked_bytes(const struct pf_model *m, const struct pf_layer *l)
{
    const struct pf_moe *moe = &l->moe;
    uint64_t expert =
        pf_expert_weight_bytes(&moe->gate) + pf_expert_weight_bytes(&moe->up) + pf_expert_weight_bytes(&moe->down);
    return l->is_moe ? (uint64_t)m->n_used * expert : 0;
}

/* Weights of a layer that every token needs. */
static uint64_t layer_bytes(const struct pf_layer *l)
{
    const struct pf_weight *used[] = {
        &l->attn.q, &l->attn.k, &l->attn.v, &l->attn.out,
        &l->mla.q, &l->mla.q_a, &l->mla.q_b, &l->mla.kv, &l->mla.k_b, &l->mla.v_b,
        &l->compressed.q_a, &l->compressed.q_b, &l->compressed.kv, &l->compressed.out_a, &l->compressed.blocks.u,
        &l->compressed.blocks.gate, &l->indexer.q, &l->indexer.k, &l->indexer.w, &l->indexer.blocks.u,
        &l->indexer.blocks.gate,
        &l->attn_mix.fn, &l->ffn_mix.fn,
        &l->delta.qkv, &l->delta.z, &l->delta.packed, &l->delta.beta, &l->delta.alpha, &l->delta.ba, &l->delta.out,
    };
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        bytes += pf_weight_bytes(used[i]);
    if (!l->is_moe)
        return bytes + ffn_bytes(&l->dense);
    return bytes + pf_weight_bytes(&l->moe.router) + ffn_bytes(&l->moe.shared) + pf_weight_bytes(&l->moe.shared_gate);
}

/* Weights gone over to decode one token. */
static uint64_t bytes_per_token(const struct pf_model *m)
{
    uint64_t bytes = pf_weight_bytes(&m->output) + m->embed.row_bytes + pf_weight_bytes(&m->output_mix.fn);
    for (int il = 0; il < m->n_layer; il++)
        bytes += layer_bytes(&m->layers[il]) + picked_bytes(m, &m->layers[il]);
    return bytes;
}

/* What of them the device reads whatever is picked. */
static uint64_t device_bytes_per_token(const struct pf_model *m)
{
    uint64_t bytes = (m->cut.output ? pf_weight_bytes(&m->output) + pf_weight_bytes(&m->output_mix.fn) : 0) +
                     (m->cut.whole ? m->embed.row_bytes : 0);
    for (int il = 0; il < m->cut.n_layers; il++)
        bytes += layer_bytes(&m->layers[il]) + (m->offload ? 0 : picked_bytes(m, &m->layers[il]));
    return bytes;
}

static void fill_info(struct pf_model *m)
{
    struct pf_model_info *info = &m->info;
    read_string(m->file, "general.name", m->name, sizeof m->name);
    read_string(m->file, "general.architecture", m->arch_name, sizeof m->arch_name);
    info->name = m->name;
    info->architecture = m->arch_name;
    info->has_tokenizer = m->vocab != NULL;
    info->has_chat_template = m->tmpl != NULL;
    info->n_vocab = m->backend ? m->n_vocab : m->vocab ? pf_vocab_size(m->vocab) : 0;
    info->backend = m->backend ? m->backend->ops->name : "";
    info->isa = m->backend ? m->backend->ops->describe(m->backend) : "";
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++)
        info->weight_bytes += pf_gguf_tensor_at(m->file, i)->n_bytes;
    if (!m->backend)
        return;
    info->n_layers = m->n_layer;
    info->n_ctx_train = m->n_ctx_train;
    info->n_embd = m->n_embd;
    for (int il = m->n_layer - 1; il >= 0; il--)
        if (!m->layers[il].is_delta) {
            info->n_heads = m->layers[il].attn.n_head;
            info->n_kv_heads = m->layers[il].attn.n_kv_head;
        }
    info->n_experts = m->n_expert;
    info->n_experts_used = m->n_used;
    info->n_expert_layers = m->n_moe;
    info->bytes_per_token = bytes_per_token(m);
}

static pf_status place_all(struct pf_model *m)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        PF_TRY(m->backend->ops->place(m->backend, t->data, t->n_bytes));
    }
    return pf_model_place_extra(m);
}

/* Why this model cannot run on a GPU, or NULL. */
static const char *gpu_lacks(const struct pf_model *m)
{
    const struct pf_backend_ops *ops = m->backend->ops;
    if (m->arch->mla && !ops->heads)
        return "there are no GPU kernels for latent attention yet";
    if (m->arch->indexer && (!ops->choose || !ops->layer_norm))
        return "there are no GPU kernels for indexers yet";
    if (m->arch->compressed && (!ops->heads || !ops->choose || !ops->compress))
        return "there are no GPU kernels for compressed attention yet";
    if (m->arch->streams && (!ops->mix || !ops->streams_read || !ops->streams_write))
        return "there are no GPU kernels for several residual streams yet";
    if (m->lora_expert_rank && m->arch->weigh_input)
        return "an adapter changes experts whose inputs are weighed, which GPU kernels cannot do";
    return NULL;
}

/* Puts all weights on the device, or, if it has no room for them, all but the routed experts; of a model without
 * any, some of the layers. */
static pf_status place_on_device(struct pf_model *m, const struct pf_model_opts *o,
                                 const struct pf_residency_setup *setup)
{
    const struct pf_backend_ops *ops = m->backend->ops;
    uint64_t kv, work, room = ops->room(m->backend);
    if (m->n_expert == 0)
        return pf_split_open(m, o, setup);
    PF_TRY(pf_session_bytes(m, NULL, &kv, &work));
    work += pf_model_extra_bytes(m);
    if (!o->streaming && m->info.weight_bytes + kv + work <= room)
        return place_all(m);
    if (ops->share)
        return pf_offload_open(m, o, setup);
    PF_FAIL(PF_ENOMEM, "it needs %llu MB of the GPU's memory, which has %llu",
            (unsigned long long)((m->info.weight_bytes + kv + work) / 1000000), (unsigned long long)(room / 1000000));
}

static pf_status open_backend(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    const char *lacks;
    PF_TRY(setup && setup->device ? setup->device(&m->backend, setup->device_ctx)
                                  : pf_backend_cuda_open(&m->backend, o->device, o->vram_bytes));
    lacks = gpu_lacks(m);
    if (lacks)
        PF_FAIL(PF_EUNSUPPORTED, "%s", lacks);
    return place_on_device(m, o, setup);
}

static void run_on_cpu(struct pf_model *m)
{
    m->backend = m->cpu;
    m->info.n_gpu_layers = 0;
    m->info.gpu_bytes_per_token = 0;
    m->cut = (struct pf_cut){ .n_layers = m->n_layer, .output = true, .whole = true };
}

static void close_backend(struct pf_model *m)
{
    pf_offload_close(m);
    pf_residency_close(m);
    if (m->backend && m->backend != m->cpu)
        m->backend->ops->close(m->backend);
    run_on_cpu(m);
}

/* Makes a GPU the model's backend, if there is one and it takes at least what every token needs. */
static void open_gpu(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_device gpu;
    bool given = setup && setup->device;
    if (!given && (o->device < 0 || (o->device == 0 && !pf_backend_cuda_device(0, &gpu))))
        return;
    if (open_backend(m, o, setup) == PF_OK) {
        m->info.n_gpu_layers = m->cut.n_layers;
        m->info.gpu_bytes_per_token = device_bytes_per_token(m);
        return;
    }
    pf_model_logf(m, PF_LOG_WARN, "the model runs on the CPU: %s", pf_last_error());
    close_backend(m);
}

bool pf_model_leave_device(struct pf_model *m)
{
    if (m->backend == m->cpu)
        return false;
    pf_model_logf(m, PF_LOG_ERROR, "the GPU failed (%s); the CPU goes on", pf_last_error());
    pf_offload_close(m);
    m->lost = m->backend;
    run_on_cpu(m);
    m->info.backend = m->backend->ops->name;
    m->info.isa = m->backend->ops->describe(m->backend);
    return true;
}

static pf_status open_cpu(struct pf_model *m, const struct pf_model_opts *o)
{
    int n = o->n_threads;
    if (n == 0) {
        n = pf_cpu_n_cores();
        n = n > MAX_DEFAULT_THREADS ? MAX_DEFAULT_THREADS : n;
    }
    PF_TRY(pf_backend_cpu_open(&m->cpu, n, o->isa | PF_ISA_SCALAR));
    m->info.n_threads = n;
    return PF_OK;
}

static pf_status open_spans(struct pf_model *m, const struct pf_model_opts *o)
{
    if (o->timeline_spans <= 0)
        return PF_OK;
    PF_TRY(pf_spans_open(&m->spans, (size_t)o->timeline_spans));
    m->cpu->ops->watch(m->cpu, m->spans);
    return PF_OK;
}

/* All but the placement of the weights. */
static pf_status open_all(struct pf_model *m, const char *path, const struct pf_model_opts *o)
{
    PF_TRY(pf_gguf_open(&m->file, path, o->vocab_only ? PF_GGUF_VOCAB_ONLY : 0));
    log_warnings(m);
    PF_TRY(pf_cancel_check(&m->cancel));
    PF_TRY(pf_vocab_open(&m->vocab, m->file));
    if (m->vocab)
        pf_vocab_set_cancel(m->vocab, &m->cancel);
    PF_TRY(pf_cancel_check(&m->cancel));
    PF_TRY(open_template(m));
    if (!o->vocab_only) {
        read_string(m->file, "general.architecture", m->arch_name, sizeof m->arch_name);
        PF_TRY(open_cpu(m, o));
        PF_TRY(pf_lora_open(m, o->adapters, o->n_adapters));
        PF_TRY(pf_model_bind(m));
        run_on_cpu(m);
        if (o->routing)
            PF_TRY(pf_watch_inject(m, o->routing));
        PF_TRY(open_spans(m, o));
    }
    PF_TRY(read_sampling(m));
    fill_info(m);
    return PF_OK;
}

/* Decides where the weights will be. */
static pf_status place(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    if (!m->backend)
        return PF_OK;
    PF_TRY(pf_cancel_check(&m->cancel));
    open_gpu(m, o, setup);
    m->info.backend = m->backend->ops->name;
    m->info.isa = m->backend->ops->describe(m->backend);
    return m->backend == m->cpu ? pf_residency_open(m, o, setup) : PF_OK;
}

static pf_status open_model(pf_model **out, const char *path, const struct pf_model_opts *opts,
                            const struct pf_residency_setup *setup, bool placed)
{
    struct pf_model_opts o;
    *out = NULL;
    pf_model_opts_init(&o);
    if (opts)
        o = *opts;
    if (setup)                                 /* that is about the CPU's tiers, or a device of its own */
        o.device = -1;
    struct pf_model *m = pf_alloc(PF_MEM_MODEL, sizeof *m);
    if (!m)
        PF_FAIL(PF_ENOMEM, "no memory to open %s", path);
    pthread_mutex_init(&m->step_lock, NULL);
    m->log = o.log;
    m->log_ctx = o.log_ctx;
    m->cancel = (struct pf_cancel){ o.cancel, o.cancel_ctx };
    pf_status st = open_all(m, path, &o);
    if (st == PF_OK && placed)
        st = place(m, &o, setup);
    if (st < 0) {
        pf_model_close(&m);
        return st;
    }
    if (m->backend)
        pf_model_logf(m, PF_LOG_INFO, "%s: %s, %d threads, %s kernels", path, m->arch_name, m->info.n_threads,
                      m->info.isa);
    *out = m;
    return PF_OK;
}

pf_status pf_model_open(pf_model **out, const char *path, const struct pf_model_opts *opts)
{
    return open_model(out, path, opts, NULL, true);
}

pf_status pf_model_open_with(pf_model **out, const char *path, const struct pf_model_opts *opts,
                             const struct pf_residency_setup *setup)
{
    return open_model(out, path, opts, setup, true);
}

pf_status pf_model_plan(const char *path, const struct pf_model_opts *opts, const struct pf_session_opts *so,
                        struct pf_plan *out)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    if (opts)
        o = *opts;
    if (o.vocab_only)
        PF_FAIL(PF_EINVAL, "a vocabulary has no weights to plan for");
    PF_TRY(open_model(&m, path, &o, NULL, false));
    pf_status st = pf_residency_plan(m, &o, so, out);
    pf_model_close(&m);
    return st;
}

void pf_model_close(pf_model **mp)
{
    struct pf_model *m = *mp;
    if (!m)
        return;
    assert(atomic_load(&m->n_sessions) == 0 && "sessions must be closed before their model");
    pf_watch_close(m);
    close_backend(m);
    if (m->lost)
        m->lost->ops->close(m->lost);
    if (m->cpu)
        m->cpu->ops->close(m->cpu);
    pf_spans_close(&m->spans);
    pf_lora_close(m);
    pf_tmpl_close(&m->tmpl);
    pf_vocab_close(&m->vocab);
    pf_gguf_close(&m->file);
    for (size_t i = 0; i < m->n_owned; i++)
        pf_free(m->owned[i]);
    pf_free(m->owned);
    pf_free(m->layers);
    pf_free(m->tmpl_error);
    pthread_mutex_destroy(&m->step_lock);
    pf_free(m);
    *mp = NULL;
}

const struct pf_model_info *pf_model_info(const pf_model *m)
{
    return &m->info;
}

pf_status pf_timeline_write(pf_model *m, pf_write_fn *write, void *ctx)
{
    if (!m->spans)
        PF_FAIL(PF_EINVAL, "the model was opened without a timeline");
    pthread_mutex_lock(&m->step_lock);
    bool ok = pf_spans_write(m->spans, write, ctx);
    pthread_mutex_unlock(&m->step_lock);
    if (!ok)
        PF_FAIL(PF_EIO, "writing the timeline failed");
    return PF_OK;
}

/* ---- Residency: the page cache holds what the store does not ----------------------------------------------------- */

int pf_tensor_layer(const struct pf_tensor *t)
{
    char name[16];
    int il;
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    return sscanf(name, "blk.%d.", &il) == 1 ? il : -1;
}

/* Calls fn for every mapped tensor of the layer (-1: tensors of no layer; -2: all) that the CPU may read
 * until it returns false. */
typedef bool visit_fn(void *ctx, const struct pf_tensor *t);

static bool visit(const struct pf_model *m, int layer, visit_fn *fn, void *ctx)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        int il = pf_tensor_layer(t);
        if ((layer == -2 || il == layer) && !pf_is_on_device(m, il) && !pf_residency_streams(m, t) && !fn(ctx, t))
            return false;
    }
    return true;
}

struct preload {
    pf_progress_fn *progress;
    void    *ctx;
    const struct pf_cancel *cancel;
    uint64_t done, total;
    uint8_t  sum;            /* what was read must go somewhere, or it would not be read */
};

static bool add_size(void *ctx, const struct pf_tensor *t)
{
    ((struct preload *)ctx)->total += t->n_bytes;
    return true;
}

/* Asks for the pages ahead, then touches each. False: cancelled. */
static bool touch(void *ctx, const struct pf_tensor *t)
{
    enum { STRIDE = 4096, WINDOW = 16 << 20 };
    struct preload *p = ctx;
    for (uint64_t at = 0; at < t->n_bytes; at += WINDOW) {
        if (pf_cancel_check(p->cancel) < 0)
            return false;
        uint64_t n = t->n_bytes - at < WINDOW ? t->n_bytes - at : WINDOW;
        uintptr_t begin = (uintptr_t)(t->data + at) / STRIDE * STRIDE, end = (uintptr_t)(t->data + at) + n;
        madvise((void *)begin, end - begin, MADV_WILLNEED);
        for (uint64_t i = 0; i < n; i += STRIDE)
            p->sum ^= *(const volatile uint8_t *)(t->data + at + i);
        p->sum ^= *(const volatile uint8_t *)(t->data + at + n - 1);
        p->done += n;
        if (p->progress)
            p->progress(p->ctx, p->done, p->total);
    }
    return true;
}

pf_status pf_model_preload(pf_model *m, const int *layers, int n, pf_progress_fn *progress, void *ctx)
{
    struct preload p = { .progress = progress, .ctx = ctx, .cancel = &m->cancel };
    if (!m->backend)
        PF_FAIL(PF_EINVAL, "the model was opened for its vocabulary only; it has no weights");
    for (int i = 0; layers && i < n; i++)
        if (layers[i] < 0 || layers[i] >= m->n_layer)
            PF_FAIL(PF_EINVAL, "there is no layer %d; the model has 0 to %d", layers[i], m->n_layer - 1);
    PF_TRY(pf_gguf_unchanged(m->file));
    for (int i = 0; i < (layers ? n : 1); i++) {
        visit(m, layers ? layers[i] : -2, add_size, &p);
        p.total += pf_residency_bytes(m, layers ? layers[i] : -1);
    }
    for (int i = 0; i < (layers ? n : 1); i++) {
        if (!visit(m, layers ? layers[i] : -2, touch, &p))
            return PF_ECANCEL;
        PF_TRY(pf_residency_load(m, layers ? layers[i] : -1, progress, ctx, p.done, p.total));
        p.done += pf_residency_bytes(m, layers ? layers[i] : -1);
    }
    pthread_mutex_lock(&m->step_lock);
    pf_status st = layers ? PF_OK : pf_offload_preload(m);
    pthread_mutex_unlock(&m->step_lock);
    return st;
}

static bool in_memory(void *ctx, const struct pf_tensor *t)
{
    enum { PAGE = 4096, PAGES = 4096 };
    unsigned char map[PAGES];
    (void)ctx;
    uintptr_t begin = (uintptr_t)t->data / PAGE * PAGE, end = (uintptr_t)t->data + t->n_bytes;
    for (; begin < end; begin += (uintptr_t)PAGES * PAGE) {
        size_t n = end - begin < (size_t)PAGES * PAGE ? end - begin : (size_t)PAGES * PAGE;
        if (mincore((void *)begin, n, map) != 0)
            return false;
        for (size_t i = 0; i < (n + PAGE - 1) / PAGE; i++)
            if (!(map[i] & 1))
                return false;
    }
    return true;
}

bool pf_model_is_resident(const pf_model *m, int layer)
{
    return m->backend && layer >= 0 && layer < m->n_layer && visit(m, layer, in_memory, NULL) &&
           pf_residency_holds(m, layer);
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
    *out = (struct pf_stats){ .n_steps = m->n_steps, .n_tokens = m->n_tokens, .step_ns = m->step_ns,
                              .weight_bytes_read = m->counted.weight_bytes - m->counted_before.weight_bytes,
                              .n_launches = m->counted.launches - m->counted_before.launches };
    pf_residency_stats(m, out);
    pf_offload_stats(m, out);
    out->device_lost = m->lost != NULL;
}

void pf_stats_reset(pf_model *m)
{
    m->n_steps = 0;
    m->n_tokens = 0;
    m->step_ns = 0;
    atomic_store(&m->counted_before.weight_bytes, m->counted.weight_bytes);
    atomic_store(&m->counted_before.launches, m->counted.launches);
    pf_residency_stats_reset(m);
    pf_offload_stats_reset(m);
}

void pf_learned_get(pf_model *m, struct pf_learned *out)
{
    pthread_mutex_lock(&m->step_lock);
    pf_offload_tell(m, out);
    pthread_mutex_unlock(&m->step_lock);
}

void pf_learned_set(pf_model *m, const struct pf_learned *l)
{
    pthread_mutex_lock(&m->step_lock);
    pf_offload_recall(m, l);
    pthread_mutex_unlock(&m->step_lock);
}

/* Opening a model: file, vocabulary, template, backends, weights bound, then placed; and closing it. A model that no
 * GPU takes runs on the CPU, with a warning that says why. */
#include "moe/open/open.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/meet.h"
#include "base/pf_cpu.h"
#include "base/pf_mem.h"
#include "grammar/tokens.h"
#include "moe/model/lora.h"
#include "moe/model/same_tokens.h"
#include "moe/offload/offload.h"
#include "moe/place/among.h"
#include "moe/place/cut.h"
#include "moe/place/on_device.h"
#include "moe/place/planning.h"
#include "moe/place/rows.h"
#include "moe/session/crew.h"
#include "moe/session/watch.h"

enum { DRAFTER_SHARE = 4 };                  /* a model that drafts takes a 4th of a GPU's memory at most */

enum { MAX_DEFAULT_THREADS = 64 };

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

/* ---- Placing ---------------------------------------------------------------------------------------------------- */

/* Why this model cannot run on the device, or NULL. */
static const char *device_lacks(const struct pf_model *m, const pf_backend *device)
{
    const struct pf_backend_ops *ops = device->ops;
    if (m->arch->mla && !ops->heads)
        return "there are no GPU kernels for latent attention yet";
    if (m->arch->indexer && (!ops->choose || !ops->layer_norm))
        return "there are no GPU kernels for indexers yet";
    if (m->is_centred && !ops->centre)
        return "there are no GPU kernels for norms that subtract the mean yet";
    if (m->mamba.n_head && (!ops->conv || !ops->ssm))
        return "there are no GPU kernels for Mamba2 yet";
    if (m->conv_taps && !ops->conv)
        return "there are no GPU kernels for convolutions yet";
    if (m->arch->compressed && (!ops->heads || !ops->choose || !ops->compress))
        return "there are no GPU kernels for compressed attention yet";
    if (m->arch->streams && (!ops->mix || !ops->streams_read || !ops->streams_write))
        return "there are no GPU kernels for several residual streams yet";
    if (m->arch->gated_streams && (!ops->norm_each || !ops->gated_read || !ops->gated_write))
        return "there are no GPU kernels for gated residual streams yet";
    if (m->arch->index_means && (!ops->choose || !ops->compress))
        return "there are no GPU kernels for indexers of runs yet";
    if (m->arch->ngrams && (!ops->norm_each || !ops->agree || !ops->spread))
        return "there are no GPU kernels for n-gram embeddings yet";
    if (m->lora_expert_rank && m->arch->weigh_input)
        return "an adapter changes experts whose inputs are weighed, which GPU kernels cannot do";
    return NULL;
}

static void close_cards(struct pf_cards *c, int from)
{
    for (; c->n > from; c->n--)
        c->at[c->n - 1]->ops->close(c->at[c->n - 1]);
}

static pf_status open_card(struct pf_cards *c, int gpu, uint64_t bytes, const struct pf_residency_setup *setup)
{
    PF_TRY(setup && setup->device ? setup->device(&c->at[c->n], setup->device_ctx)
                                  : pf_backend_cuda_open(&c->at[c->n], gpu, bytes));
    c->gpu[c->n] = gpu;
    c->room[c->n] = c->at[c->n]->ops->room(c->at[c->n]);
    c->bytes_s[c->n] = setup && setup->device ? 0 : pf_backend_cuda_rate(gpu);
    c->n++;
    return PF_OK;
}

/* The cards that the options name. */
static pf_status open_cards(struct pf_cards *c, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    *c = (struct pf_cards){ .n = 0 };
    if (o->n_gpus == 0)
        return open_card(c, o->device, o->vram_bytes, setup);
    for (int i = 0; i < o->n_gpus; i++) {
        pf_status st = open_card(c, o->gpus[i], o->gpu_bytes[i], setup);
        if (st < 0) {
            close_cards(c, 0);
            return st;
        }
    }
    bool priced = o->link.seconds > 0 && o->link.bytes_s > 0;
    if (c->n > 1 && o->layout == PF_LAYOUT_AUTO && !priced && !(setup && setup->device))
        c->link = pf_backend_cuda_link(c->at, c->n, &c->swap_seconds);
    return PF_OK;
}

/* A list of GPUs that cannot be meant is a mistake; one that fails to open is not. */
static pf_status check_gpus(const struct pf_model_opts *o)
{
    struct pf_device gpu;
    if (o->n_gpus < 0 || o->n_gpus > PF_MAX_GPUS)
        PF_FAIL(PF_EINVAL, "%d GPUs: at most %d can work together", o->n_gpus, (int)PF_MAX_GPUS);
    for (int i = 0; i < o->n_gpus; i++)
        for (int j = 0; j < i; j++)
            if (o->gpus[i] == o->gpus[j])
                PF_FAIL(PF_EINVAL, "GPU %d is named twice", o->gpus[i]);
    for (int i = 0; i < o->n_gpus; i++)
        if (o->gpus[i] < 0 || !pf_backend_cuda_device(o->gpus[i], &gpu))
            PF_FAIL(PF_EINVAL, "there is no GPU %d that CUDA can use", o->gpus[i]);
    return PF_OK;
}

/* Why one of several cards is to work alone. */
static void explain_one(struct pf_model *m, const struct pf_cards *cards, const struct pf_plan *plan)
{
    static const char *const names[] = { [PF_LAYOUT_AUTO] = "with it", [PF_LAYOUT_LAYERS] = "by layers",
                                         [PF_LAYOUT_EXPERTS] = "by experts", [PF_LAYOUT_ROWS] = "by rows" };
    char text[200] = "";
    size_t n = 0;
    for (int i = 0; i < plan->n_layouts; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %.2f", i > 0 ? ", " : "",
                              names[plan->layouts[i].layout], 1000 / plan->layouts[i].tok_s);
    pf_model_logf(m, PF_LOG_WARN, "of %d GPUs one is used, since more would not be faster: ms a token, %s", cards->n,
                  text);
}

/* Gives back the cards that the model does not need. */
static void leave_alone(struct pf_model *m, struct pf_cards *cards, const struct pf_placing *what,
                        const struct pf_plan *plan)
{
    int used = 1 + what->cut.n_more;
    if (used < cards->n && plan->n_layouts > 1)
        explain_one(m, cards, plan);
    else if (used < cards->n)
        pf_model_logf(m, PF_LOG_WARN, "of %d GPUs %d %s used: its layers cannot be divided between them", cards->n,
                      used, used == 1 ? "is" : "are");
    close_cards(cards, used);
}

/* A layout that was asked for and cannot be had. */
static void note_layout(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                        const struct pf_placing *what)
{
    const char *lacks = pf_rows_lack(m);
    if (o->layout == PF_LAYOUT_ROWS && cards->n > 1 && !what->cut.by_rows)
        pf_model_logf(m, PF_LOG_WARN, "the model is not divided by rows: %s",
                      lacks ? lacks : o->streaming ? "it is to be streamed" : "the GPUs have no room for it so");
    if (o->layout == PF_LAYOUT_EXPERTS && cards->n > 1 && !what->cut.by_experts)
        pf_model_logf(m, PF_LOG_WARN, "the model is not divided by experts: %s",
                      m->n_expert == 0 ? "it has none" : "the GPUs have no room for what is to be on each");
}

static bool on_device_whole(const struct pf_placing *what)
{
    return what->how == PF_HOW_DEVICE || (what->how == PF_HOW_CUT && what->cut.whole);
}

/* Puts the cards' part of the model there, if they can compute any of it; those that are not needed are closed. */
static pf_status place_on(struct pf_placement **out, struct pf_model *m, struct pf_cards *cards,
                          const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    pf_backend *device = cards->at[0];
    const char *lacks = device_lacks(m, device);
    struct pf_placing what;
    struct pf_plan plan;
    if (lacks)
        PF_FAIL(PF_EUNSUPPORTED, "%s", lacks);
    PF_TRY(pf_place_decide(m, cards, o, NULL, NULL, &what, &plan));
    if (m->is_beside && (!on_device_whole(&what) || m->info.weight_bytes > cards->room[0] / DRAFTER_SHARE))
        PF_FAIL(PF_ENOMEM, "it would take too much of the GPU's memory");
    bool gives_way = what.how == PF_HOW_SHARED && o->n_batch == 0;     /* the cache of experts, to steps of more rows */
    m->context_bytes = what.context_bytes + (gives_way ? pf_more_rows_bytes(m, device) : 0);
    note_layout(m, cards, o, &what);
    leave_alone(m, cards, &what, &plan);
    if (what.how == PF_HOW_DEVICE && what.cut.by_rows)
        return pf_rows_open(out, m, cards, &what.cut, NULL, 0);
    if (what.how == PF_HOW_DEVICE && what.cut.by_experts)
        return pf_among_open(out, m, cards, &what.cut);
    if (what.how == PF_HOW_CUT || (what.how == PF_HOW_DEVICE && (m->n_expert == 0 || what.cut.n_more > 0)))
        return pf_cut_open(out, m, cards, &what, setup);
    if (what.how == PF_HOW_DEVICE)
        return pf_on_device_open(out, m, device);
    if (what.how == PF_HOW_SHARED && device->ops->share)
        return pf_offload_open(out, m, cards, &what, o, setup);
    PF_FAIL(PF_ENOMEM, "its smallest part for a GPU needs %llu MB of its memory, which has room for %llu",
            (unsigned long long)((what.least_bytes + 999999) / 1000000),
            (unsigned long long)(cards->room[0] / 1000000));
}

static pf_status open_device(struct pf_placement **out, struct pf_model *m, const struct pf_model_opts *o,
                             const struct pf_residency_setup *setup)
{
    struct pf_cards cards;
    PF_TRY(open_cards(&cards, o, setup));
    pf_status st = place_on(out, m, &cards, o, setup);
    if (st < 0)
        close_cards(&cards, 0);
    m->info.n_gpus = cards.n;
    m->info.layout = st < 0 || cards.n < 2 ? PF_LAYOUT_AUTO
                     : (*out)->by_rows     ? PF_LAYOUT_ROWS
                     : (*out)->n_among     ? PF_LAYOUT_EXPERTS
                                           : PF_LAYOUT_LAYERS;
    memcpy(m->info.gpus, cards.gpu, sizeof m->info.gpus);
    return st;
}

/* Of several processes that divide rows, this one's share, on its GPU: nobody can take its place. */
static pf_status place_rows(struct pf_placement **out, struct pf_model *m, const struct pf_model_opts *o,
                            const struct pf_residency_setup *setup)
{
    const struct pf_crew *crew = m->crew;
    struct pf_cards cards;
    PF_TRY(open_cards(&cards, o, setup));
    pf_status st = pf_rows_open(out, m, &cards, &crew->cut, crew->ranks, crew->rank);
    if (st < 0) {
        close_cards(&cards, 0);
        return st;
    }
    m->info.n_gpus = 1;
    m->info.gpus[0] = cards.gpu[0];
    m->info.layout = PF_LAYOUT_ROWS;
    uint64_t left = cards.at[0]->ops->room(cards.at[0]) / 4 * 3;
    st = pf_rows_context_bytes(m, &crew->cut, crew->rank, left, &m->context_bytes);
    if (st < 0) {
        pf_place_close(*out);
        *out = NULL;
    }
    return st;
}

/* The CPU alone. */
static pf_status place_on_cpu(struct pf_placement **out, struct pf_model *m, const struct pf_model_opts *o,
                              const struct pf_residency_setup *setup)
{
    struct pf_placing what;
    struct pf_plan plan;
    PF_TRY(pf_place_decide(m, &(struct pf_cards){ .n = 0 }, o, NULL, NULL, &what, &plan));
    m->context_bytes = what.context_bytes;
    return pf_cpu_place_open(out, m, &what, setup);
}

static bool wants_device(const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_device gpu;
    bool given = setup && setup->device;
    return given || o->n_gpus > 0 || (o->device >= 0 && (o->device > 0 || pf_backend_cuda_device(0, &gpu)));
}

/* Decides where the weights will be: on a GPU as far as there is one, and it takes at least what every token needs. */
static pf_status place(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_placement *p = NULL;
    PF_TRY(pf_cancel_check(&m->cancel));
    if (pf_crew_by_rows(m))
        PF_TRY(place_rows(&p, m, o, setup));
    else if (wants_device(o, setup) && open_device(&p, m, o, setup) < 0) {
        pf_model_logf(m, PF_LOG_WARN, "%s runs on the CPU: %s",
                      m->is_beside ? "the model that drafts" : "the model", pf_last_error());
        p = NULL;
    }
    if (!p)
        PF_TRY(place_on_cpu(&p, m, o, setup));
    pf_place_set(p);
    pf_info_placed(m);
    return PF_OK;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* A model that drafts works with the threads of the one that it drafts for, under whose step lock all its steps are. */
static pf_status open_cpu(struct pf_model *m, const struct pf_model_opts *o, const struct pf_model *whole)
{
    int n = whole ? whole->info.n_threads : o->n_threads;
    if (n == 0) {
        n = pf_cpu_n_cores();
        n = n > MAX_DEFAULT_THREADS ? MAX_DEFAULT_THREADS : n;
    }
    PF_TRY(whole ? pf_backend_cpu_beside(&m->cpu, whole->cpu, o->isa | PF_ISA_SCALAR)
                 : pf_backend_cpu_open(&m->cpu, n, o->isa | PF_ISA_SCALAR));
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

/* All but the placement of the weights. whole: the model that m drafts for, or NULL. */
static pf_status open_all(struct pf_model *m, const char *path, const struct pf_model_opts *o,
                          const struct pf_model *whole)
{
    PF_TRY(pf_gguf_open(&m->file, path, o->vocab_only ? PF_GGUF_VOCAB_ONLY : 0));
    log_warnings(m);
    PF_TRY(pf_cancel_check(&m->cancel));
    if (!m->is_nextn) {
        PF_TRY(pf_vocab_open(&m->vocab, m->file));
        if (m->vocab)
            pf_vocab_set_cancel(m->vocab, &m->cancel);
        PF_TRY(pf_cancel_check(&m->cancel));
        PF_TRY(open_template(m));
    }
    if (!o->vocab_only) {
        pf_info_names(m);
        PF_TRY(open_cpu(m, o, whole));
        PF_TRY(pf_lora_open(m, o->adapters, o->n_adapters));
        PF_TRY(pf_model_bind(m));
        m->backend = m->cpu;
        if (o->routing)
            PF_TRY(pf_watch_inject(m, o->routing));
        PF_TRY(open_spans(m, o));
    }
    return pf_info_fill(m);
}

static pf_status open_one(pf_model **out, const char *path, const struct pf_model_opts *opts,
                          const struct pf_residency_setup *setup, bool placed, const struct pf_model *whole,
                          bool nextn);

/* The layer that guesses ahead. A file without one, or one that cannot run, is no reason to refuse the model. */
static pf_status open_nextn(struct pf_model *m, const char *path, const struct pf_model_opts *o,
                            const struct pf_residency_setup *setup, bool placed)
{
    pf_status st = open_one(&m->nextn, path, o, setup, placed, m, true);
    if (st == PF_OK && m->nextn->n_vocab != m->n_vocab) {
        pf_model_logf(m, PF_LOG_WARN, "the layer that guesses ahead has %d tokens instead of %d, and is left out",
                      m->nextn->n_vocab, m->n_vocab);
        pf_model_close(&m->nextn);
    }
    if (st != PF_EUNSUPPORTED && st != PF_EFORMAT)
        return st;
    pf_model_logf(m, PF_LOG_INFO, "%s", pf_last_error());
    return PF_OK;
}

static void leave_vram(struct pf_model_opts *o, const struct pf_model *taken)
{
    uint64_t *budget = o->n_gpus > 0 ? &o->gpu_bytes[0] : &o->vram_bytes;
    if (taken && taken->backend != taken->cpu && *budget > taken->info.weight_bytes)
        *budget -= taken->info.weight_bytes;
}

/* Opens the models that draft for m, before m itself takes what memory is left. */
static pf_status open_drafters(struct pf_model *m, const char *path, struct pf_model_opts *o,
                               const struct pf_residency_setup *setup, bool placed)
{
    struct pf_model_opts plain = *o;
    plain.nextn = false;
    plain.n_ranks = 0;
    plain.n_gpus = o->n_gpus > 1 ? 1 : o->n_gpus;
    plain.draft_path = plain.routing = NULL;
    plain.adapters = NULL;
    plain.n_adapters = plain.timeline_spans = 0;
    if (o->nextn)
        PF_TRY(open_nextn(m, path, &plain, setup, placed));
    if (o->draft_path) {
        PF_TRY(open_one(&m->second, o->draft_path, &plain, setup, placed, m, false));
        PF_TRY(pf_same_tokens(m, m->second));
    }
    leave_vram(o, m->nextn);
    leave_vram(o, m->second);
    return PF_OK;
}

/* With the setup's options. whole: the model that this one is to draft for, as its layer that guesses ahead or as a
 * second one; NULL: none. */
static pf_status open_one(pf_model **out, const char *path, const struct pf_model_opts *opts,
                          const struct pf_residency_setup *setup, bool placed, const struct pf_model *whole, bool nextn)
{
    struct pf_model_opts o = *opts;
    struct pf_model *m = pf_alloc(PF_MEM_MODEL, sizeof *m);
    if (!m)
        PF_FAIL(PF_ENOMEM, "no memory to open %s", path);
    m->is_nextn = nextn;
    m->is_beside = whole != NULL;
    pf_lock_init(&m->step_lock);
    pthread_mutex_init(&m->identity_lock, NULL);
    m->log = o.log;
    m->log_ctx = o.log_ctx;
    m->cancel = (struct pf_cancel){ o.cancel, o.cancel_ctx };
    pf_status st = open_all(m, path, &o, whole);
    if (st == PF_OK && placed && m->cpu && o.n_ranks > 1)
        st = pf_crew_open(m, &o);
    if (st == PF_OK && m->cpu && !pf_crew_follows(m))
        st = open_drafters(m, path, &o, setup, placed);
    if (st == PF_OK && placed && m->cpu)
        st = place(m, &o, setup);
    if (m->crew)
        st = pf_crew_begin(m, st);
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

pf_status pf_open_model(pf_model **out, const char *path, const struct pf_model_opts *opts,
                        const struct pf_residency_setup *setup, bool placed)
{
    struct pf_model_opts o;
    *out = NULL;
    pf_model_opts_init(&o);
    if (opts)
        o = *opts;
    if (setup)                                 /* a test's setup is about the CPU's tiers, or a device of its own */
        o.device = -1;
    if (!setup || !setup->device)
        PF_TRY(check_gpus(&o));
    return open_one(out, path, &o, setup, placed, NULL, false);
}

/* Asks the device that would be opened, in the same way; without one, what is said of another machine's. */
static pf_status plan(const struct pf_model *m, const struct pf_model_opts *o, const struct pf_session_opts *so,
                      const struct pf_residency_setup *setup, struct pf_plan *out)
{
    struct pf_cards cards;
    if (!wants_device(o, setup) || open_cards(&cards, o, setup) < 0)
        return pf_place_plan(m, &(struct pf_cards){ .room = { o->vram_bytes } }, o, so, out);
    if (device_lacks(m, cards.at[0]))
        cards.room[0] = 0;
    pf_status st = pf_place_plan(m, &cards, o, so, out);
    close_cards(&cards, 0);
    return st;
}

pf_status pf_open_plan(const char *path, const struct pf_model_opts *opts, const struct pf_session_opts *so,
                       const struct pf_residency_setup *setup, struct pf_plan *out)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    if (opts)
        o = *opts;
    if (o.vocab_only)
        PF_FAIL(PF_EINVAL, "a vocabulary has no weights to plan for");
    PF_TRY(pf_open_model(&m, path, &o, setup, false));
    pf_status st = plan(m, &o, so, setup, out);
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
    pf_crew_close(m);
    pf_place_close(m->left ? m->left : m->place);
    pf_model_close(&m->nextn);
    pf_model_close(&m->second);
    if (m->cpu)
        m->cpu->ops->close(m->cpu);
    pf_spans_close(&m->spans);
    pf_lora_close(m);
    pf_tmpl_close(&m->tmpl);
    struct pf_tokens *tokens = m->tokens;
    pf_tokens_close(&tokens);
    pf_vocab_close(&m->vocab);
    pf_gguf_close(&m->file);
    for (size_t i = 0; i < m->n_owned; i++)
        pf_free(m->owned[i]);
    pf_free(m->owned);
    pf_free(m->all_layers);
    pf_free(m->used);
    pf_free(m->tmpl_error);
    pf_lock_destroy(&m->step_lock);
    pthread_mutex_destroy(&m->identity_lock);
    pf_free(m);
    *mp = NULL;
}

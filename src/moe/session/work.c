/* See work.h. */
#include "moe/session/work.h"

#include "base/pf_mem.h"

static size_t inputs_bytes(const struct pf_model *m, const struct pf_work *w)
{
    return pf_inputs_at(m, w->sizes.max_rows, NULL).bytes;
}

static size_t handed_bytes(const struct pf_model *m, const struct pf_work *w)
{
    return (size_t)w->sizes.max_rows * (size_t)m->streams.n * (size_t)m->n_embd * sizeof *w->handed;
}

static void close_unit(struct pf_work_unit *u)
{
    if (u->backend) {
        u->backend->ops->buf_free(u->backend, u->stage, u->stage_bytes, false);
        u->backend->ops->buf_free(u->backend, u->buf.base, u->buf.bytes, false);
    }
    *u = (struct pf_work_unit){ .backend = NULL };
}

static void close_cpu(const struct pf_model *m, struct pf_work *w)
{
    w->owner->ops->buf_free(w->owner, w->handed, handed_bytes(m, w), true);
    w->handed = NULL;
    close_unit(&w->units[w->n_cards]);
}

static void close_work(const struct pf_model *m, struct pf_work *w)
{
    close_cpu(m, w);
    w->owner->ops->buf_free(w->owner, w->inputs, inputs_bytes(m, w), true);
    for (int k = w->n_cards - 1; k >= 0; k--)
        close_unit(&w->units[k]);
    pf_free(w);
}

static pf_status open_unit(const struct pf_model *m, struct pf_work *w, struct pf_work_unit *u, pf_backend *b)
{
    int rows = w->sizes.max_rows;
    *u = (struct pf_work_unit){ .backend = b };
    u->buf.bytes = pf_buffers_cut(m, rows, NULL, &u->buf);
    u->buf.base = NULL;
    PF_TRY(b->ops->buf_alloc(b, u->buf.bytes, false, &u->buf.base));
    pf_buffers_cut(m, rows, u->buf.base, &u->buf);
    return PF_OK;
}

static pf_status open_cards(const struct pf_model *m, struct pf_work *w)
{
    for (int k = 0; k < w->n_cards; k++)
        PF_TRY(open_unit(m, w, &w->units[k], pf_place_unit(m->place, k)));
    return w->owner->ops->buf_alloc(w->owner, inputs_bytes(m, w), true, &w->inputs);
}

/* The CPU's buf.x, which is handed over, lies in memory that devices can copy from and to. */
static pf_status open_cpu(const struct pf_model *m, struct pf_work *w)
{
    struct pf_work_unit *u = &w->units[w->n_cards];
    void *handed = NULL;
    PF_TRY(open_unit(m, w, u, m->cpu));
    PF_TRY(w->owner->ops->buf_alloc(w->owner, handed_bytes(m, w), true, &handed));
    w->handed = handed;
    u->buf.x = handed;
    return PF_OK;
}

static pf_status add_cpu(const struct pf_model *m, struct pf_work *w)
{
    pf_status st = open_cpu(m, w);
    if (st < 0)
        close_cpu(m, w);
    return st;
}

/* Stages stay as they are. */
static void keep_stages(struct pf_work *w, struct pf_work *old)
{
    for (int k = 0; k < w->n_cards; k++) {
        w->units[k].stage = old->units[k].stage;
        w->units[k].stage_bytes = old->units[k].stage_bytes;
        old->units[k].stage = NULL;
    }
}

/* Puts buffers for such a session in the place of those that m has. */
static pf_status replace(struct pf_model *m, const struct pf_session_opts *o, bool cpu)
{
    struct pf_work *w = pf_alloc(PF_MEM_SESSION, sizeof *w);
    if (!w)
        PF_FAIL(PF_ENOMEM, "no memory for the buffers of a step");
    w->sizes = pf_backend_sizes_of(m, o);
    w->owner = m->backend;
    w->n_losses = m->n_losses;
    w->n_cards = pf_place_n_cards(m->place);
    pf_status st = open_cards(m, w);
    if (st == PF_OK && cpu)
        st = open_cpu(m, w);
    if (st < 0) {
        close_work(m, w);
        return st;
    }
    if (m->work)
        keep_stages(w, m->work);
    pf_work_close(m);
    m->work = w;
    return PF_OK;
}

pf_status pf_work_fit(struct pf_model *m, const struct pf_session_opts *o, bool cpu)
{
    const struct pf_work *w = m->work;
    if (w && w->n_losses != m->n_losses)
        pf_work_close(m);                    /* first: the other cards may be full */
    if (!m->work)
        return replace(m, o, cpu);
    if (w->sizes.max_rows < o->n_batch)
        return replace(m, o, cpu || w->handed);
    return cpu && !w->handed ? add_cpu(m, m->work) : PF_OK;
}

struct pf_there pf_work_there(const struct pf_model *m, const struct pf_session_opts *o, int card)
{
    const struct pf_work *w = m->work;
    struct pf_buffers buf;
    if (!w || w->n_losses != m->n_losses || card >= w->n_cards)
        return (struct pf_there){ 0, 0 };
    bool enough = w->sizes.max_rows >= o->n_batch;
    return (struct pf_there){ enough ? pf_buffers_cut(m, o->n_batch, NULL, &buf) : 0, w->units[card].stage_bytes };
}

pf_status pf_work_stage(struct pf_model *m, int card, size_t bytes)
{
    struct pf_work_unit *u = &m->work->units[card];
    pf_backend *b = u->backend;
    void *stage;
    if (bytes <= u->stage_bytes)
        return PF_OK;
    PF_TRY(b->ops->buf_alloc(b, bytes, false, &stage));
    b->ops->buf_free(b, u->stage, u->stage_bytes, false);
    u->stage = stage;
    u->stage_bytes = bytes;
    return PF_OK;
}

void pf_work_close(struct pf_model *m)
{
    if (m->work)
        close_work(m, m->work);
    m->work = NULL;
}

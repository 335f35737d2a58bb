/* See work.h. */
#include "moe/session/work.h"

#include "base/pf_mem.h"

static size_t inputs_bytes(const struct pf_model *m, const struct pf_work *w)
{
    return pf_inputs_at(m, w->sizes.max_rows, NULL).bytes;
}

static size_t handed_bytes(const struct pf_model *m, const struct pf_work *w)
{
    return (size_t)w->sizes.max_rows * (size_t)m->n_embd * sizeof *w->handed;
}

static void close_unit(struct pf_work_unit *u)
{
    if (u->backend)
        u->backend->ops->buf_free(u->backend, u->buf.base, u->buf.bytes, false);
    *u = (struct pf_work_unit){ .backend = NULL };
}

static void close_second(const struct pf_model *m, struct pf_work *w)
{
    pf_backend *b = w->units[0].backend;
    if (b)
        b->ops->buf_free(b, w->handed, handed_bytes(m, w), true);
    w->handed = NULL;
    close_unit(&w->units[1]);
}

static void close_work(const struct pf_model *m, struct pf_work *w)
{
    pf_backend *b = w->units[0].backend;
    close_second(m, w);
    if (b)
        b->ops->buf_free(b, w->inputs, inputs_bytes(m, w), true);
    if (b)
        b->ops->buf_free(b, w->stage, w->stage_bytes, false);
    close_unit(&w->units[0]);
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

static pf_status open_first(const struct pf_model *m, struct pf_work *w)
{
    pf_backend *b = m->backend;
    PF_TRY(open_unit(m, w, &w->units[0], b));
    return b->ops->buf_alloc(b, inputs_bytes(m, w), true, &w->inputs);
}

/* The CPU's unit. Its buf.x, which is handed over, lies in memory that the device can copy from and to. */
static pf_status open_second(const struct pf_model *m, struct pf_work *w)
{
    pf_backend *b = w->units[0].backend;
    void *handed = NULL;
    PF_TRY(open_unit(m, w, &w->units[1], m->cpu));
    PF_TRY(b->ops->buf_alloc(b, handed_bytes(m, w), true, &handed));
    w->handed = handed;
    w->units[1].buf.x = handed;
    return PF_OK;
}

static pf_status add_second(const struct pf_model *m, struct pf_work *w)
{
    pf_status st = open_second(m, w);
    if (st < 0)
        close_second(m, w);
    return st;
}

/* Puts buffers for such a session in the place of those that m has. */
static pf_status replace(struct pf_model *m, const struct pf_session_opts *o, bool second)
{
    struct pf_work *w = pf_alloc(PF_MEM_SESSION, sizeof *w);
    if (!w)
        PF_FAIL(PF_ENOMEM, "no memory for the buffers of a step");
    w->sizes = pf_backend_sizes_of(m, o);
    pf_status st = open_first(m, w);
    if (st == PF_OK && second)
        st = open_second(m, w);
    if (st < 0) {
        close_work(m, w);
        return st;
    }
    if (m->work && m->work->units[0].backend == m->backend) {
        w->stage = m->work->stage;
        w->stage_bytes = m->work->stage_bytes;
        m->work->stage = NULL;
    }
    pf_work_close(m);
    m->work = w;
    return PF_OK;
}

pf_status pf_work_fit(struct pf_model *m, const struct pf_session_opts *o, bool second)
{
    const struct pf_work *w = m->work;
    if (!w || w->units[0].backend != m->backend)
        return replace(m, o, second);
    if (w->sizes.max_rows < o->n_batch)
        return replace(m, o, second || w->handed);
    return second && !w->handed ? add_second(m, m->work) : PF_OK;
}

pf_status pf_work_stage(struct pf_model *m, size_t bytes)
{
    struct pf_work *w = m->work;
    pf_backend *b = w->units[0].backend;
    void *stage;
    if (bytes <= w->stage_bytes)
        return PF_OK;
    PF_TRY(b->ops->buf_alloc(b, bytes, false, &stage));
    b->ops->buf_free(b, w->stage, w->stage_bytes, false);
    w->stage = stage;
    w->stage_bytes = bytes;
    return PF_OK;
}

void pf_work_close(struct pf_model *m)
{
    if (m->work)
        close_work(m, m->work);
    m->work = NULL;
}

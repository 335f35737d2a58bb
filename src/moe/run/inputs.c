/* What a step's layers read besides x: tokens, positions, what depends on positions alone, rows of tables that belong
 * to tokens. The host puts them together in one piece, which each unit gets as it is. */
#include <math.h>
#include <string.h>

#include "moe/blocks/blocks.h"
#include "moe/run/forward.h"
#include "moe/session/watch.h"

static void cut_inputs(struct pf_work_unit *u, const struct pf_model *m, int rows)
{
    struct pf_inputs to = pf_inputs_at(m, rows, u->buf.inputs);
    u->buf.injected = to.picks;
    u->buf.injected_weights = to.weights;
    u->buf.ids = to.ids;
    u->buf.pos = to.pos;
    u->buf.temper = to.temper;
    u->buf.far_range = to.far_range;
    u->buf.cs = to.cs;
    u->buf.near_cs = to.near_cs;
    u->buf.blocks = to.blocks;
    u->buf.gathered = to.gathered;
    u->buf.hidden = to.hidden;
}

static pf_status upload_inputs(struct pf_work_unit *u, const struct pf_model *m, int rows, const void *inputs)
{
    cut_inputs(u, m, rows);
    size_t bytes = pf_inputs_at(m, rows, NULL).bytes;
    return u->backend->ops->upload(u->backend, u->buf.inputs, inputs, bytes);
}

/* The blocks that a part's rows may touch. */
static void fill_blocks(const struct pf_model *m, const struct pf_part *p, const struct pf_block_inputs *to)
{
    size_t table = 2 * (size_t)m->far_rope.n_pairs;
    for (int i = 0; i < PF_MAX_RATIOS; i++) {
        int ratio = m->compressed.ratio[i], n = ratio ? pf_block_rows(ratio, p->rows) : 0;
        for (int j = 0; j < n; j++)
            to->number[i][p->first + j] = (int32_t)(p->from / ratio) + j;
        if (n)
            pf_rope_table(&m->far_rope, to->number[i] + p->first, ratio, n, to->cs[i] + (size_t)p->first * table);
    }
}

static void fill_block_inputs(const struct pf_step *t, const struct pf_inputs *in)
{
    const struct pf_model *m = t->m;
    const struct pf_block_inputs *to = &in->blocks;
    pf_rope_back(&m->rope, in->cs, t->rows, to->back);
    pf_rope_table(&m->far_rope, in->pos, 1, t->rows, to->far);
    pf_rope_back(&m->far_rope, to->far, t->rows, to->far_back);
}

/* Which rows of the table belong to a token: those of its n-grams, or its own. */
static void rows_of_token(const struct pf_session *s, int64_t pos, int32_t *rows)
{
    if (s->m->ngrams.n)
        pf_ngrams_at(&s->m->ngrams, s->tokens, pos, rows);
    else
        *rows = s->tokens[pos];
}

/* Looks up what belongs to each row's last tokens. The table stays where it is mapped; who computes gets the rows. */
static pf_status gather(struct pf_step *t, const struct pf_inputs *in)
{
    const struct pf_gather *g = &t->m->gather;
    pf_backend *cpu = t->m->cpu;
    if (!g->table.data)
        return PF_OK;
    for (const struct pf_part *p = t->parts; p < t->parts + t->n_parts; p++)
        for (int r = 0; r < p->rows; r++)
            rows_of_token(p->s, p->from + r, in->gather_ids + (p->first + r) * g->per_token);
    return cpu->ops->embed(cpu, &g->table, in->gather_ids, t->rows * g->per_token, in->gathered);
}

/* A part's tokens, positions, factors of queries and rotary table. */
static void fill_rows(const struct pf_part *p, const struct pf_inputs *in)
{
    const struct pf_rope *rope = pf_session_rope(p->s);
    const struct pf_temper *t = &p->s->m->temper;
    for (int r = 0; r < p->rows; r++) {
        int64_t pos = p->from + r;
        in->ids[p->first + r] = p->s->tokens[pos];
        in->pos[p->first + r] = (int32_t)pos;
        if (t->every)
            in->temper[p->first + r] = (float)(1 + t->scale * log((double)((pos + t->from) / t->every + 1)));
    }
    pf_rope_table(rope, in->pos + p->first, 1, p->rows, in->cs + (size_t)p->first * 2 * (size_t)rope->n_pairs);
}

/* What the whole model has put out in front of each row; 0 where nobody has it, as in front of the first position. */
static void fill_hidden(const struct pf_part *p, const struct pf_inputs *in)
{
    const struct pf_given_rows *g = &p->s->given;
    size_t n = pf_hidden_width(p->s->m);
    for (int r = 0; r < p->rows; r++) {
        int64_t at = p->from + r - 1 - g->first;
        float *to = in->hidden + (size_t)(p->first + r) * n;
        if (at >= 0 && at < g->n)
            memcpy(to, g->rows + (size_t)at * n, n * sizeof *to);
        else
            memset(to, 0, n * sizeof *to);
    }
}

pf_status pf_inputs_put(struct pf_step *t)
{
    struct pf_work *work = t->m->work;
    struct pf_inputs in = pf_inputs_at(t->m, t->rows, work->inputs);
    memcpy(in.far_range, t->far_by_host, sizeof t->far_by_host);
    for (int i = 0; i < t->n_parts; i++)
        fill_rows(&t->parts[i], &in);
    pf_rope_table(&t->m->near_rope, in.pos, 1, t->rows, in.near_cs);
    if (t->m->arch->compressed)
        fill_block_inputs(t, &in);
    for (int i = 0; i < t->n_parts; i++)
        fill_blocks(t->m, &t->parts[i], &in.blocks);
    PF_TRY(gather(t, &in));
    for (int i = 0; t->m->is_nextn && i < t->n_parts; i++)
        fill_hidden(&t->parts[i], &in);
    if (t->m->injected.n_tokens)
        pf_watch_fill(t, &in);
    for (int i = 0; i < t->parts->s->n_units; i++)
        if (i == 0 || i == work->n_cards)    /* the other cards may be at work: they get theirs with x */
            PF_TRY(upload_inputs(&work->units[i], t->m, t->rows, work->inputs));
    return PF_OK;
}

pf_status pf_inputs_hand(struct pf_step *t, struct pf_work_unit *from, struct pf_work_unit *to)
{
    struct pf_work *work = t->m->work;
    size_t bytes = pf_inputs_at(t->m, t->rows, NULL).bytes;
    if (to == &work->units[0] || to == &work->units[work->n_cards])
        return PF_OK;
    if (from->backend == t->m->cpu || to->backend == t->m->cpu)
        return upload_inputs(to, t->m, t->rows, work->inputs);
    cut_inputs(to, t->m, t->rows);
    return from->backend->ops->pass(from->backend, to->backend, to->buf.inputs, from->buf.inputs, bytes);
}

/* Far keys and values. To those of few rows of a session device and CPU attend at the same time, each to its own chunks
 * (backend/share.h); several sessions of a step take their turns.
 *
 * In a prompt each tile of queries would read them over the bus, so those of a layer come once to the stage, and its
 * attention reads them there. What earlier steps have written is copied; this step's rows are stored on the stage, and
 * go from there to main memory in whole places: a kernel that stores them there sends one and four bytes at a time over
 * the bus.
 *
 *     far      | places of earlier steps | this step's |        main memory
 *                    copied |                   ^ copied behind attention
 *     stage    | ..         v            | stored      |        the card's memory, one layer's at a time
 *
 * Where a prompt's experts cross the bus, too, the copy of the next layer that has any begins when this layer's
 * attention leaves the stage: in front of the experts that are asked for from then on, not behind them.
 *
 *     operations    | attention 0 |   router, experts 0   |   | attention 1 |   router, experts 1
 *     copies         experts 0 .. | far 1 | experts 0, 1 ..                 | far 2 | experts 1, 2 .. */
#include "backend/share.h"
#include "moe/blocks/blocks.h"
#include "moe/place/placement.h"

enum { IN_PLACE_ROWS = 8 };              /* so few rows of a part read each far place once, where it is */

/* ---- Few rows ---------------------------------------------------------------------------------------------------- */

/* Floats of the partials that a step of one row has of a chunk in a layer with far places, at most; *n_near: its near
 * places, the same in all layers. 0: no layer has any. */
static size_t partial_floats(const struct pf_session *s, int *n_near)
{
    size_t most = 0;
    for (int il = 0; il < s->m->n_layer; il++) {
        const struct pf_attention *a = &s->m->layers[il].attn;
        if (s->m->layers[il].mixer != PF_MIXER_ATTENTION || !s->kv[a->kv_layer].far)
            continue;
        size_t n = (size_t)a->n_head * pf_partial_floats(a->hd_v);
        *n_near = s->kv[a->kv_layer].view.n_near;
        most = n > most ? n : most;
    }
    return most;
}

static void begin_part(struct pf_step *t, int part)
{
    const struct pf_part *p = &t->parts[part];
    int n_near = 0;
    size_t floats = partial_floats(p->s, &n_near);
    const struct pf_far_step step = { .part = part, .rows = p->rows, .first = n_near,
                                      .end = (int)(p->from / PF_KV_CHUNK_POSITIONS),
                                      .floats = floats * (size_t)p->rows };
    struct pf_far_range range;
    if (floats > 0 && p->rows <= PF_BY_HOST_ROWS && step.first < step.end &&
        pf_place_attends(t->m->place, &step, &range))
        t->far_by_host[part] = range;
}

/* Of several processes each would have its own number of near places, and what one replays all have to. In a step of
 * more rows than a device shares experts of, the CPU has other things to do. */
void pf_far_begin(struct pf_step *t)
{
    memset(t->far_by_host, 0, sizeof t->far_by_host);
    if (t->m->crew || t->n_parts > PF_BY_HOST_PARTS || t->rows > PF_SHARE_ROWS)
        return;
    for (int i = 0; i < t->n_parts; i++)
        begin_part(t, i);
}

bool pf_far_is_shared(const struct pf_step *t, const struct pf_part *p)
{
    ptrdiff_t part = p - t->parts;
    return part < PF_BY_HOST_PARTS && t->far_by_host[part].end > 0;
}

/* ---- Prompts ----------------------------------------------------------------------------------------------------- */

/* A layer's far places up to a part's last position, and where they are on the stage. */
struct far {
    char  *k, *v, *k_to, *v_to;
    size_t k_place, v_place;             /* bytes of one */
    size_t n, n_copied, first_new;       /* places; the first ones, which the stage gets; the first that has new rows */
};

static size_t far_places(const struct pf_kv_layer *kv, int64_t end)
{
    int64_t n = (end + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS - kv->view.n_near;
    return n > 0 ? (size_t)n : 0;
}

/* Whether layer il reads any by way of the stage, which has room for them. A step of so few rows that a device may
 * record and replay it does not: what is copied follows from where the step begins. The stage gets those places that
 * earlier steps have written to, and also the last one if this step does not fill it: attention wants numbers behind
 * its rows. A layer with another's keys and values gets all, as that one has stored this step's; such layers are
 * the model's last (n_shared_kv), so that none of them takes the stage from a copy that was sent ahead. */
static bool reads_far(const struct pf_step *t, int il, const struct pf_part *p, struct far *f)
{
    const struct pf_attention *a = &t->m->layers[il].attn;
    const struct pf_kv_layer *kv = &p->s->kv[a->kv_layer];
    size_t n = far_places(kv, pf_part_end(p)), n_far = (size_t)(kv->view.n_chunks - kv->view.n_near);
    if (!kv->far || !t->unit->stage || n == 0 || p->rows <= IN_PLACE_ROWS || t->rows <= PF_SHARE_ROWS)
        return false;
    bool fills = pf_part_end(p) % PF_KV_CHUNK_POSITIONS == 0 && a->kv_layer == il;
    int64_t filled = p->from / PF_KV_CHUNK_POSITIONS * PF_KV_CHUNK_POSITIONS;
    *f = (struct far){ .k = kv->far, .v = (char *)kv->far + kv->k_far, .k_to = t->unit->stage,
                       .k_place = kv->k_far / n_far, .v_place = kv->v_far / n_far, .n = n,
                       .n_copied = fills ? far_places(kv, p->from) : n, .first_new = far_places(kv, filled) };
    f->v_to = f->k_to + n * f->k_place;
    return n * (f->k_place + f->v_place) <= t->unit->stage_bytes;
}

/* Begins behind what was asked for so far, and later operations come behind it. */
static pf_status copy_now(struct pf_step *t, const struct far *f)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    pf_status (*copy)(pf_backend *, void *, const void *, size_t) = ops->bring ? ops->bring : ops->upload;
    if (f->n_copied == 0)
        return PF_OK;
    PF_TRY(copy(be, f->k_to, f->k, f->n_copied * f->k_place));
    return copy(be, f->v_to, f->v, f->n_copied * f->v_place);
}

pf_status pf_far_take(struct pf_step *t, int il, const struct pf_part *p, struct pf_kv_view *at_hand)
{
    struct far f;
    bool sent = il > 0 && t->far_ahead == il;
    if (!reads_far(t, il, p, &f))
        return PF_OK;
    t->far_ahead = sent ? 0 : t->far_ahead;
    if (!sent || ops_of(t)->share->use(t->unit->backend, PF_SHARE_STAGE) < 0)
        PF_TRY(copy_now(t, &f));
    at_hand->k_far += (intptr_t)f.k_to - (intptr_t)f.k;
    at_hand->v_far += (intptr_t)f.v_to - (intptr_t)f.v;
    return PF_OK;
}

/* The next layer of the unit at work that reads far places; 0: none. */
static int next_far(const struct pf_step *t, int il, const struct pf_part *p, struct far *f)
{
    int end = p->s->units[t->unit - t->m->work->units].end;
    for (il++; il < end; il++)
        if (t->m->layers[il].mixer == PF_MIXER_ATTENTION && t->m->layers[il].attn.kv_layer == il &&
            reads_far(t, il, p, f))
            return il;
    return 0;
}

/* A copy that cannot begin now is made when the layer wants it. */
static pf_status send_next(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_share_ops *share = ops_of(t)->share;
    struct far f;
    int next;
    if (!t->m->place->experts_apart || !share || t->n_parts > 1 || p->rows <= PF_SHARE_ROWS)
        return PF_OK;
    if (!(next = next_far(t, il, p, &f)) || f.n_copied == 0)
        return PF_OK;
    const struct pf_piece pieces[] = { { f.k_to, f.k, f.n_copied * f.k_place },
                                       { f.v_to, f.v, f.n_copied * f.v_place } };
    PF_TRY(share->release(t->unit->backend, PF_SHARE_STAGE));
    if (share->fetch(t->unit->backend, PF_SHARE_STAGE, pieces, 2) == PF_OK)
        t->far_ahead = next;
    return PF_OK;
}

pf_status pf_far_give_back(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_backend_ops *ops = ops_of(t);
    struct far f;
    if (reads_far(t, il, p, &f) && t->m->layers[il].attn.kv_layer == il) {
        size_t k = f.first_new * f.k_place, v = f.first_new * f.v_place, n = f.n - f.first_new;
        PF_TRY(ops->download(t->unit->backend, f.k + k, f.k_to + k, n * f.k_place));
        PF_TRY(ops->download(t->unit->backend, f.v + v, f.v_to + v, n * f.v_place));
    }
    return send_next(t, il, p);
}

void pf_far_drop(struct pf_step *t)
{
    if (t->far_ahead)
        ops_of(t)->share->fetch_wait(t->unit->backend, PF_SHARE_STAGE);
    t->far_ahead = 0;
}

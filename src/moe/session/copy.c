/* A sequence becomes another session's, by the device that holds both; what lies in memory shared with the host, by the
 * host. By the thread that has both sessions; a layer at a time with the step lock, so that steps of other sessions are
 * made in between.
 *
 *     from    0 ======== origin ==== n ==== pos
 *     to      0 ======== origin ---- n             its tokens up to n; evaluates the rest when it goes on
 *
 *     keys and values of all positions     up to the origin, in whole chunks
 *     recurrent state, windows in rings    at the origin, as `from` has them now, or before its last step, or in a
 *                                          checkpoint: they become a checkpoint of `to`, which it then goes back to
 *
 * The origin is the last position up to n that `from` has the state of, and the windows. Until all is copied `to` is an
 * empty session. A device that is lost on the way costs what it held: `to` then has the tokens, and no more. */
#include <string.h>

#include "base/pf_mem.h"
#include "moe/place/placement.h"
#include "moe/session/crew.h"

/* Up to where a copied sequence is that of the session it comes from, with what state and windows. */
struct origin {
    int64_t pos;                             /* 0: nothing */
    const struct pf_checkpoint *kept;        /* has the state and the windows; NULL: the session has */
    bool    is_before;                       /* the state is that before the last step */
};

struct copying {
    struct pf_session       *to;
    const struct pf_session *from;
    struct origin            origin;
};

/* ---- What is copied ---------------------------------------------------------------------------------------------- */

/* From what the session has without its checkpoints. */
static struct origin origin_now(const struct pf_session *s, int64_t n)
{
    int64_t end = s->computed < n ? s->computed : n;
    bool is_before = s->m->recurrent && s->state_holds > end;
    end = is_before ? s->next_holds : end;
    bool there = end <= n && pf_ring_holds(s, end);
    return there ? (struct origin){ end, NULL, is_before } : (struct origin){ 0 };
}

/* With the step lock. */
static struct origin origin_of(const struct pf_session *s, int64_t n)
{
    if (!pf_session_is_here(s))
        return (struct origin){ 0 };
    struct origin now = origin_now(s, n);
    const struct pf_checkpoint *kept = pf_state_checkpoint(s, s->computed < n ? s->computed : n);
    return kept && kept->pos > now.pos ? (struct origin){ kept->pos, kept, false } : now;
}

/* ---- Keys and values --------------------------------------------------------------------------------------------- */

/* Keys, or values, of a layer in both sessions: so many bytes of a head in each place. */
struct heads {
    char   *to, *from;
    int64_t to_far, from_far;                /* as in struct pf_kv_view; added to places that are far */
    int     to_near, from_near, n_head;
    size_t  bytes;
};

static struct heads keys_of(const struct pf_kv_view *to, const struct pf_kv_view *from)
{
    size_t row = (to->v ? pf_kv_key_bytes : pf_kv_latent_bytes)(to->type, to->hd_k);
    return (struct heads){ to->k, from->k, to->k_far, from->k_far, to->n_near, from->n_near, to->n_kv_head,
                           PF_KV_CHUNK_POSITIONS * row };
}

static struct heads values_of(const struct pf_kv_view *to, const struct pf_kv_view *from)
{
    return (struct heads){ to->v, from->v, to->v_far, from->v_far, to->n_near, from->n_near, to->n_kv_head,
                           PF_KV_CHUNK_POSITIONS * pf_kv_value_bytes(to->type, to->hd_v) };
}

/* A place of which a session's part is far is the host's own once the device has done what was asked of it, and is
 * again when it has done this. */
static pf_status copy_far(pf_backend *b, char *to, bool to_far, const char *from, bool from_far, size_t bytes)
{
    if (!to_far)
        return b->ops->upload(b, to, from, bytes);
    if (!from_far)
        return b->ops->download(b, to, from, bytes);
    memcpy(to, from, bytes);
    return PF_OK;
}

/* Near places of both, in as few copies as may be: one for each where a team of cards may have heads apart. */
static void copy_near(pf_backend *b, const struct heads *h, int n)
{
    static const size_t MOST_BYTES = 1 << 30;
    bool apart = b->ops->heads_alloc != NULL;
    size_t place = (size_t)h->n_head * h->bytes, at_once = apart || place > MOST_BYTES ? 1 : MOST_BYTES / place;
    for (size_t i = 0, k; i < (size_t)n; i += k) {
        k = (size_t)n - i < at_once ? (size_t)n - i : at_once;
        size_t bytes = apart ? h->bytes : k * place;
        b->ops->buf_copy(b, &(struct pf_buf_copy){ h->to + i * place, h->from + i * place, bytes, bytes, bytes,
                                                   apart ? h->n_head : 1 });
    }
}

/* The first n places, which hold the same positions in both. */
static pf_status copy_places(pf_backend *b, const struct heads *h, int n)
{
    size_t place = (size_t)h->n_head * h->bytes;
    int to_near = h->to_far && h->to_near < n ? h->to_near : n,
        from_near = h->from_far && h->from_near < n ? h->from_near : n;
    int both_near = to_near < from_near ? to_near : from_near;
    copy_near(b, h, both_near);
    for (int i = both_near; i < n; i++) {
        bool to_far = i >= to_near, from_far = i >= from_near;
        PF_TRY(copy_far(b, h->to + (size_t)i * place + (to_far ? h->to_far : 0), to_far,
                        h->from + (size_t)i * place + (from_far ? h->from_far : 0), from_far, place));
    }
    return PF_OK;
}

static pf_status copy_positions(pf_backend *b, const struct pf_kv_view *to, const struct pf_kv_view *from, int64_t n)
{
    int64_t n_chunks = (n + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS;
    int n_places = n_chunks < from->n_chunks ? (int)n_chunks : from->n_chunks;
    bool is_far = to->k_far != 0 || from->k_far != 0;
    struct heads keys = keys_of(to, from), values = values_of(to, from);
    PF_TRY(is_far ? b->ops->finish(b) : PF_OK);
    PF_TRY(copy_places(b, &keys, n_places));
    PF_TRY(to->v ? copy_places(b, &values, n_places) : PF_OK);
    return is_far ? b->ops->finish(b) : PF_OK;
}

static bool is_in_ring(const struct pf_session *s, int il)
{
    return s->ring_positions > 0 && s->m->layers[il].attn.window > 0;
}

static pf_status copy_layer(const struct copying *c, int il)
{
    const struct pf_layer *layer = &c->to->m->layers[il];
    pf_backend *b = pf_unit_of(c->to, il)->backend;
    int64_t n = c->origin.pos;
    if (c->to->kv[il].view.n_chunks && !is_in_ring(c->from, il))
        PF_TRY(copy_positions(b, &c->to->kv[il].view, &c->from->kv[il].view, n));
    if (layer->compressed.blocks.ratio)
        PF_TRY(copy_positions(b, &c->to->block_kv[il].view, &c->from->block_kv[il].view,
                              n / layer->compressed.blocks.ratio));
    if (layer->has_indexer)
        PF_TRY(copy_positions(b, &c->to->index_kv[il].view, &c->from->index_kv[il].view, n / c->to->m->index.ratio));
    return PF_OK;
}

/* ---- State ------------------------------------------------------------------------------------------------------- */

enum { CHECKPOINT = 0 };                     /* of `to`, all of which are free */

static void copy_bytes(pf_backend *b, void *to, const void *from, size_t n)
{
    if (n)
        b->ops->buf_copy(b, &(struct pf_buf_copy){ to, from, n, n, n, 1 });
}

/* A unit's state and windows, to a checkpoint. */
static void copy_kept(const struct copying *c, int i)
{
    const struct pf_unit *from = &c->from->units[i];
    char *to = c->to->units[i].kept[CHECKPOINT];
    if (c->origin.kept) {
        copy_bytes(from->backend, to, from->kept[c->origin.kept - c->from->checkpoints], from->kept_bytes);
        return;
    }
    copy_bytes(from->backend, to, c->origin.is_before ? from->next : from->state, from->state_bytes);
    if (from->kept_bytes > from->state_bytes)
        pf_ring_copy(c->from, from, c->origin.pos, to + from->state_bytes, true);
}

static void copy_state(const struct copying *c)
{
    for (int i = 0; i < c->to->n_units; i++)
        copy_kept(c, i);
    if (c->to->n_checkpoints > 0)
        pf_state_copy_kept(c->to, CHECKPOINT, c->origin.pos, true, false);
}

/* Layer il, or, behind the last one, the state, and waits until all is done. With the step lock. */
static pf_status copy_some(const struct copying *c, int il)
{
    if (!pf_session_is_here(c->to) || !pf_session_is_here(c->from))
        PF_FAIL(PF_EDEVICE, "the device that has the sequence was lost");
    if (il < c->to->m->n_layer)
        return copy_layer(c, il);
    copy_state(c);
    for (int i = 0; i < c->to->n_units; i++)
        PF_TRY(c->to->units[i].backend->ops->finish(c->to->units[i].backend));
    return PF_OK;
}

/* Without what a lost device held, and without the device, if nobody left it yet. */
static pf_status go_on_without(struct copying *c, pf_status st)
{
    if (st != PF_EDEVICE)
        return st;
    if (pf_session_is_here(c->to) && pf_session_is_here(c->from))
        pf_model_leave_device(c->to->m);
    c->origin = (struct origin){ 0 };
    return pf_session_follow(c->to);
}

static pf_status copy_memory(struct copying *c, pf_cancel_fn *cancel, void *ctx)
{
    struct pf_model *m = c->to->m;
    for (int il = 0; il <= m->n_layer && c->origin.pos > 0; il++) {
        if (cancel && cancel(ctx))
            PF_FAIL(PF_ECANCEL, "copying a sequence was cancelled");
        pf_lock_take(&m->step_lock);
        pf_status st = go_on_without(c, copy_some(c, il));
        pf_lock_give(&m->step_lock);
        PF_TRY(st);
    }
    return PF_OK;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Whether chunks, states and checkpoints of both are alike. */
static bool are_alike(const struct pf_session *a, const struct pf_session *b)
{
    bool alike = a->opts.kv_type == b->opts.kv_type && pf_session_rope(a) == pf_session_rope(b) &&
                 (a->ring_positions > 0) == (b->ring_positions > 0) && a->n_units == b->n_units;
    for (int i = 0; i < a->n_units && alike; i++)
        alike = a->units[i].backend == b->units[i].backend && a->units[i].end == b->units[i].end;
    return alike;
}

static pf_status check(const pf_session *to, const pf_session *from, int64_t n)
{
    PF_TRY(pf_crew_refuse(to->m, "no sequence can be copied"));
    if (to == from || to->m != from->m)
        PF_FAIL(PF_EINVAL, "a sequence is copied from another session of the same model");
    if (n < 0 || n > from->pos)
        PF_FAIL(PF_EINVAL, "cannot copy the first %lld of %lld tokens", (long long)n, (long long)from->pos);
    if (n > to->opts.n_ctx)
        PF_FAIL(PF_ECONTEXT, "cannot copy %lld tokens into a context of %lld positions", (long long)n,
                (long long)to->opts.n_ctx);
    return PF_OK;
}

/* What is to be copied of the sequence, once `to` is where the model computes. With the step lock. */
static pf_status begin(struct copying *c, int64_t n)
{
    PF_TRY(pf_session_follow(c->to));
    c->origin = origin_of(c->from, n);
    if (c->origin.pos > 0 && !are_alike(c->to, c->from))
        PF_FAIL(PF_EINVAL, "the two sessions keep keys and values in different ways");
    return PF_OK;
}

/* Makes the empty session what was copied. */
static void finish(const struct copying *c, int64_t n)
{
    struct pf_session *to = c->to;
    memcpy(to->tokens, c->from->tokens, (size_t)n * sizeof *to->tokens);
    to->pos = n;
    to->computed = to->state_holds = c->origin.pos;
    to->next_holds = 0;
    to->held_from = to->ring_positions == 0 ? c->from->held_from : to->computed > to->window ? to->computed - to->window
                                                                                            : 0;
    if (to->n_checkpoints > 0)
        to->checkpoints[CHECKPOINT].pos = to->computed;
}

/* What the other session's drafts are made with has its tokens, or fewer. */
static void copy_drafts(const struct copying *c, int64_t n, pf_cancel_fn *cancel, void *ctx)
{
    struct pf_session *to = pf_session_drafting(c->to);
    const struct pf_session *from = pf_session_drafting(c->from);
    if (to && from)
        (void)pf_session_copy(to, from, from->pos < n ? from->pos : n, cancel, ctx);
}

pf_status pf_session_copy(pf_session *to, const pf_session *from, int64_t n, pf_cancel_fn *cancel, void *ctx)
{
    struct copying c = { .to = to, .from = from };
    PF_TRY(check(to, from, n));
    pf_lock_take(&to->m->step_lock);
    pf_status st = begin(&c, n);
    pf_lock_give(&to->m->step_lock);
    PF_TRY(st);
    PF_TRY(pf_session_rewind(to, 0));
    PF_TRY(copy_memory(&c, cancel, ctx));
    copy_drafts(&c, n, cancel, ctx);
    finish(&c, n);
    return PF_OK;
}

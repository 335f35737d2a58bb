/* See save_stream.h. A device that is lost on the way costs what it held: from then on, zeros are written, and what is
 * read is dropped. */
#include "moe/session/save_stream.h"

#include <string.h>

#include "moe/place/placement.h"

enum { STAGE_BYTES = 2 * PF_SAVE_PIECE };

/* A stage that no device shares serves as well, but for its speed. */
pf_status pf_save_open(struct pf_save_stream *f, const struct pf_session *s, pf_write_fn *write, pf_read_fn *read,
                       void *ctx)
{
    void *stage = NULL;
    *f = (struct pf_save_stream){ .s = s, .write = write, .read = read, .ctx = ctx };
    pf_lock_take(&s->m->step_lock);
    f->owner = s->m->backend;
    pf_status st = f->owner->ops->buf_alloc(f->owner, STAGE_BYTES, true, &stage);
    if (st < 0 && f->owner != s->m->cpu) {
        f->owner = s->m->cpu;
        st = f->owner->ops->buf_alloc(f->owner, STAGE_BYTES, true, &stage);
    }
    pf_lock_give(&s->m->step_lock);
    if (st < 0)
        PF_FAIL(PF_ENOMEM, "no memory to move a saved session");
    f->stage = stage;
    pf_digest_begin(&f->hash);
    return PF_OK;
}

pf_status pf_save_transfer(struct pf_save_stream *f, void *p, size_t n)
{
    if (n == 0)
        return PF_OK;
    if (!(f->write ? f->write(f->ctx, p, n) : f->read(f->ctx, p, n)))
        PF_FAIL(PF_EIO, "%s a saved session failed after part of it", f->write ? "writing" : "reading");
    pf_digest_add(&f->hash, p, n);
    return PF_OK;
}

/* Once the device is lost nothing of it is copied. What another session has left is left already. */
static pf_status go_on_without(struct pf_save_stream *f, pf_status st)
{
    if (st != PF_EDEVICE)
        return st;
    pf_lock_take(&f->s->m->step_lock);
    if (pf_session_is_here(f->s))
        pf_model_leave_device(f->s->m);
    pf_lock_give(&f->s->m->step_lock);
    memset(f->stage, 0, STAGE_BYTES);
    f->lost = true;
    return PF_OK;
}

/* Until the stage's copies have ended. */
static pf_status wait_for_copies(struct pf_save_stream *f)
{
    if (!f->copies)
        return PF_OK;
    pf_lock_take(&f->s->m->step_lock);
    pf_status st = f->copies->ops->finish(f->copies);
    pf_lock_give(&f->s->m->step_lock);
    f->copies = NULL;
    return go_on_without(f, st);
}

/* Far memory is the host's own once the device has done what was asked of it. */
static pf_status copy_far(pf_backend *b, void *to, const void *from, size_t bytes)
{
    PF_TRY(b->ops->finish(b));
    memcpy(to, from, bytes);
    return PF_OK;
}

/* With the step lock. */
static pf_status begin_copy(pf_backend *b, char *here, const struct pf_save_move *m, bool to_there)
{
    if (m->far)
        return copy_far(b, to_there ? m->there : here, to_there ? here : m->there, m->bytes);
    return to_there ? b->ops->upload(b, m->there, here, m->bytes) : b->ops->download(b, here, m->there, m->bytes);
}

/* Begins to copy between memory and `here`, where the moves lie one behind the other. */
static pf_status begin_copies(struct pf_save_stream *f, pf_backend *b, char *here, const struct pf_save_move *moves,
                              int n, bool to_there)
{
    if (f->lost || n == 0)
        return PF_OK;
    pf_status st = PF_OK;
    pf_lock_take(&f->s->m->step_lock);
    for (int i = 0; i < n && st == PF_OK; here += moves[i++].bytes)
        st = begin_copy(b, here, &moves[i], to_there);
    pf_lock_give(&f->s->m->step_lock);
    st = go_on_without(f, st);
    f->copies = f->lost ? NULL : b;
    return st;
}

static char *piece(struct pf_save_stream *f, int i)
{
    return f->stage + (size_t)i * PF_SAVE_PIECE;
}

static pf_status begin_piece(struct pf_save_stream *f)
{
    return begin_copies(f, f->backend, piece(f, f->filling), f->moves, f->n_moves, f->read);
}

static pf_status write_other(struct pf_save_stream *f)
{
    size_t n = f->n_copied;
    f->n_copied = 0;
    return pf_save_transfer(f, piece(f, !f->filling), n);
}

static pf_status save_piece(struct pf_save_stream *f)
{
    PF_TRY(begin_piece(f));
    PF_TRY(write_other(f));
    f->n_copied = f->n_staged;
    return wait_for_copies(f);
}

static pf_status load_piece(struct pf_save_stream *f)
{
    PF_TRY(pf_save_transfer(f, piece(f, f->filling), f->n_staged));
    PF_TRY(wait_for_copies(f));
    return begin_piece(f);
}

/* The other piece is filled from here on. */
static pf_status pass_on(struct pf_save_stream *f)
{
    PF_TRY(f->write ? save_piece(f) : load_piece(f));
    f->n_moves = 0;
    f->n_staged = 0;
    f->filling = !f->filling;
    return PF_OK;
}

/* Afterwards nothing is staged. */
static pf_status settle(struct pf_save_stream *f)
{
    PF_TRY(pass_on(f));
    return f->write ? write_other(f) : wait_for_copies(f);
}

void pf_save_close(struct pf_save_stream *f)
{
    if (!f->stage)
        return;
    (void)wait_for_copies(f);
    pf_lock_take(&f->s->m->step_lock);
    f->owner->ops->buf_free(f->owner, f->stage, STAGE_BYTES, true);
    pf_lock_give(&f->s->m->step_lock);
    f->stage = NULL;
}

/* Saves or loads n bytes of a unit's memory at p, or notes that they are to be. */
static pf_status transfer_buffer(struct pf_save_stream *f, const struct pf_unit *u, void *p, size_t n)
{
    for (size_t at = 0, bytes; at < n; at += bytes) {
        if (f->n_staged == PF_SAVE_PIECE || f->n_moves == PF_SAVE_MOST_MOVES || f->backend != u->backend)
            PF_TRY(pass_on(f));
        size_t room = PF_SAVE_PIECE - f->n_staged;
        bytes = n - at < room ? n - at : room;
        f->moves[f->n_moves++] = (struct pf_save_move){ (char *)p + at, bytes, f->far };
        f->n_staged += bytes;
        f->backend = u->backend;
    }
    return PF_OK;
}

enum kept { KEYS, VALUES, LATENT };

/* Keys or values of one head, or a latent, as whole numbers, and those of its positions in a chunk that are in use. */
struct i16_part {
    char     *chunk;
    int       hd, lo, hi;
    enum kept kept;
};

static size_t block_bytes(const struct i16_part *c)
{
    return PF_I16_BLOCK * (c->kept == KEYS ? pf_i16_key_bytes(c->hd) :
                           c->kept == VALUES ? pf_i16_value_bytes(c->hd) : pf_latent_bytes(c->hd));
}

static void copy_position(char *to, const char *from, const struct i16_part *b, int p)
{
    if (b->kept == LATENT)
        pf_latent_copy_position(to, from, b->hd, p);
    else
        pf_i16_copy_position(to, from, b->hd, p, b->kept == KEYS);
}

/* Positions [lo, hi) of one block: in the stream, the others are zeros; in memory, they stay. */
static pf_status transfer_part_block(struct pf_save_stream *f, const struct pf_unit *u, const struct i16_part *b,
                                     char *block, size_t bytes)
{
    PF_TRY(settle(f));
    char *here = f->stage, *there = f->stage + bytes;        /* in memory, in the stream */
    struct pf_save_move move = { block, bytes, f->far };
    if (f->read)
        PF_TRY(pf_save_transfer(f, there, bytes));
    else
        memset(there, 0, bytes);
    PF_TRY(begin_copies(f, u->backend, here, &move, 1, false));
    PF_TRY(wait_for_copies(f));
    for (int p = b->lo; p < b->hi; p++)
        copy_position(f->read ? here : there, f->read ? there : here, b, p);
    if (f->write)
        return pf_save_transfer(f, there, bytes);
    PF_TRY(begin_copies(f, u->backend, here, &move, 1, true));
    return wait_for_copies(f);
}

/* Blocks that are in use whole go as they are, and so does a whole chunk. */
static pf_status transfer_blocks(struct pf_save_stream *f, const struct pf_unit *u,
                                 const struct i16_part *c)
{
    size_t bytes = block_bytes(c);
    if (c->hi - c->lo == PF_I16_CHUNK)
        return transfer_buffer(f, u, c->chunk, bytes * (PF_I16_CHUNK / PF_I16_BLOCK));
    for (int at = c->lo / PF_I16_BLOCK * PF_I16_BLOCK; at < c->hi; at += PF_I16_BLOCK) {
        char *block = c->chunk + (size_t)(at / PF_I16_BLOCK) * bytes;
        int lo = c->lo > at ? c->lo - at : 0, hi = c->hi - at < PF_I16_BLOCK ? c->hi - at : PF_I16_BLOCK;
        struct i16_part b = { .hd = c->hd, .lo = lo, .hi = hi, .kept = c->kept };
        if (lo == 0 && hi == PF_I16_BLOCK)
            PF_TRY(transfer_buffer(f, u, block, bytes));
        else
            PF_TRY(transfer_part_block(f, u, &b, block, bytes));
    }
    return PF_OK;
}

static pf_status transfer_i16_chunk(struct pf_save_stream *f, const struct pf_unit *u,
                                    const struct pf_kv_view *kv, int64_t first, size_t n)
{
    int lo = (int)(first % PF_KV_CHUNK_POSITIONS), hi = lo + (int)n;
    if (pf_kv_is_latent(kv))
        return transfer_blocks(f, u, &(struct i16_part){ pf_kv_latent(kv, (int)first), kv->hd_k, lo, hi, LATENT });
    f->far = kv->k_far != 0 && first / PF_KV_CHUNK_POSITIONS >= kv->n_near;
    for (int h = 0; h < kv->n_kv_head; h++) {
        PF_TRY(transfer_blocks(f, u, &(struct i16_part){ pf_kv_i16_keys(kv, (int)first, h), kv->hd_k, lo, hi,
                                                            KEYS }));
        PF_TRY(transfer_blocks(f, u, &(struct i16_part){ pf_kv_i16_values(kv, (int)first, h), kv->hd_v, lo, hi,
                                                            VALUES }));
    }
    f->far = false;
    return PF_OK;
}

/* Keys and values of one layer at n positions of one chunk, from position first on. */
static pf_status transfer_chunk(struct pf_save_stream *f, const struct pf_unit *u,
                                const struct pf_kv_view *kv, int64_t first, size_t n)
{
    if (kv->type == PF_KV_I16)
        return transfer_i16_chunk(f, u, kv, first, n);
    size_t k_bytes = pf_kv_row_bytes(kv->type, kv->hd_k), v_bytes = pf_kv_row_bytes(kv->type, kv->hd_v);
    for (int h = 0; h < kv->n_kv_head; h++) {
        size_t row = pf_kv_row(kv, (int)first, h);
        PF_TRY(transfer_buffer(f, u, (char *)kv->k + row * k_bytes, n * k_bytes));
        if (kv->v)                           /* NULL: values are part of the keys, or there are none */
            PF_TRY(transfer_buffer(f, u, (char *)kv->v + row * v_bytes, n * v_bytes));
    }
    return PF_OK;
}

/* A state that is ahead of what is computed is not saved: the one before the last step is, and its rows are evaluated
 * again. */
pf_status pf_save_transfer_state(struct pf_save_stream *f)
{
    const struct pf_session *s = f->s;
    bool ahead = f->write && pf_state_behind(s) > 0;
    for (int i = 0; i < s->n_units; i++)
        PF_TRY(transfer_buffer(f, &s->units[i], ahead ? s->units[i].next : s->units[i].state,
                               s->units[i].state_bytes));
    return settle(f);
}

/* Transfers keys and values of positions [from, n). In a ring shorter than the saved one, the later positions stay. */
static pf_status transfer_chunks(struct pf_save_stream *f, const struct pf_unit *u,
                                 const struct pf_kv_view *kv, int64_t from, int64_t n)
{
    for (int64_t p = from, next; p < n; p = next) {
        next = (p / PF_KV_CHUNK_POSITIONS + 1) * PF_KV_CHUNK_POSITIONS;
        next = next < n ? next : n;
        PF_TRY(transfer_chunk(f, u, kv, p, (size_t)(next - p)));
    }
    return PF_OK;
}

/* Whatever is kept of the positions [from, n). */
pf_status pf_save_transfer_kv(struct pf_save_stream *f, int64_t from, int64_t n, int64_t held_from)
{
    const struct pf_session *s = f->s;
    int64_t in_window = from > held_from ? from : held_from;
    for (int il = 0; il < s->m->n_layer; il++) {
        const struct pf_layer *layer = &s->m->layers[il];
        const struct pf_unit *u = pf_unit_of(s, il);
        if (s->kv[il].view.n_chunks)
            PF_TRY(transfer_chunks(f, u, &s->kv[il].view, layer->attn.window ? in_window : from, n));
        if (layer->compressed.blocks.ratio)
            PF_TRY(transfer_chunks(f, u, &s->block_kv[il].view, from / layer->compressed.blocks.ratio,
                                   n / layer->compressed.blocks.ratio));
        if (layer->has_indexer)
            PF_TRY(transfer_chunks(f, u, &s->index_kv[il].view, from / s->m->index.ratio,
                                   n / s->m->index.ratio));
    }
    return settle(f);
}

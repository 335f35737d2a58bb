/* Sessions on disk. Little-endian, packed:
 *
 *     "PFMOESES"  u32 version  u16 kv_type  u16 long_rope  u64[2] identity of the model  u64 n_tokens  u64 computed
 *     u64 held_from
 *     i32 tokens[n_tokens]
 *     the recurrent state after computed positions, if the model has one and computed is not 0
 *     per layer, per chunk that holds positions, per KV head:  keys, then values, of the positions in use: those below
 *         computed, and not below held_from if the layer has a window. I16: their blocks as pf_i16.h has them, with
 *         zeros for positions that are not in use
 *       then, likewise, the keys of its full blocks, and then those of its indexer
 *     u64 whole: 1, or 0 if what is between the tokens and here was lost with its device while it was written
 *     u64[2] XXH3, 128 bits, of everything before it
 *
 * What was saved goes on in a continuation of the same form, with "PFMOEMOR" in front and, behind held_from:
 *
 *     u64 tokens_there  u64 computed_there  u64[2] XXH3 of tokens[0 .. tokens_there)
 *
 * of which the tokens and the keys and values of positions below computed_there are left out; the state is there whole.
 * Since a token's keys and values depend on the tokens up to it and on nothing else, it fits whatever holds these
 * tokens.
 *
 * A device that is lost on the way costs what it held and nothing else: the file, or the session, then has the tokens,
 * and the next evaluation computes the rest anew, on the CPU. */
#include <string.h>

#include "base/pf_mem.h"
#include "moe/model/identity.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"

static const char magic[8] = { 'P', 'F', 'M', 'O', 'E', 'S', 'E', 'S' };
static const char more_magic[8] = { 'P', 'F', 'M', 'O', 'E', 'M', 'O', 'R' };
enum { VERSION = 5, PIECE = 1 << 20 };

struct save_header {
    char     magic[8];
    uint32_t version;
    uint16_t kv_type, long_rope;             /* long_rope: 1 if keys are rotated by m->long_rope */
    struct pf_digest identity;
    uint64_t n_tokens, computed, held_from;
};
_Static_assert(sizeof(struct save_header) == 56, "the header is packed");

struct more_header {
    uint64_t tokens_there, computed_there;   /* 0 and 0: nothing is */
    struct pf_digest of_tokens;
};
_Static_assert(sizeof(struct more_header) == 32, "the header is packed");

/* Moves bytes between the caller's stream and memory, hashing them. */
struct stream {
    pf_write_fn *write;
    pf_read_fn  *read;
    void        *ctx;
    struct pf_digester hash;
    char        *piece;      /* [PIECE] what passes between the backend's memory and the stream */
    bool         far;        /* what is moved now lies in memory shared with the host */
    bool         lost;       /* the device is lost: zeros are written, and bytes that are read are dropped */
};

static pf_status transfer(struct stream *f, void *p, size_t n)
{
    if (n == 0)
        return PF_OK;
    if (!(f->write ? f->write(f->ctx, p, n) : f->read(f->ctx, p, n)))
        PF_FAIL(PF_EIO, "%s a saved session failed after part of it", f->write ? "writing" : "reading");
    pf_digest_add(&f->hash, p, n);
    return PF_OK;
}

typedef pf_status move_fn(pf_backend *b, void *to, const void *from, size_t bytes);

static pf_status move(const struct pf_session *s, pf_backend *b, move_fn *fn, void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&s->m->step_lock);
    pf_status st = fn(b, to, from, bytes);
    st = st == PF_OK ? b->ops->finish(b) : st;
    pthread_mutex_unlock(&s->m->step_lock);
    return st;
}

/* Far memory is the host's own once the device has done what was asked of it. */
static pf_status move_far(const struct pf_session *s, pf_backend *b, void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&s->m->step_lock);
    pf_status st = b->ops->finish(b);
    if (st == PF_OK)
        memcpy(to, from, bytes);
    pthread_mutex_unlock(&s->m->step_lock);
    return st;
}

/* Copies to f->piece from a unit's memory, or back; once the device is lost, nothing. */
static pf_status move_piece(struct stream *f, const struct pf_session *s, const struct pf_unit *u, void *p,
                            size_t bytes, bool back)
{
    const struct pf_backend_ops *ops = u->backend->ops;
    if (f->lost)
        return PF_OK;
    pf_status st = f->far ? move_far(s, u->backend, back ? p : f->piece, back ? f->piece : p, bytes)
                   : back ? move(s, u->backend, ops->upload, p, f->piece, bytes)
                          : move(s, u->backend, ops->download, f->piece, p, bytes);
    if (st != PF_EDEVICE)
        return st;
    pthread_mutex_lock(&s->m->step_lock);
    pf_model_leave_device(s->m);             /* unless another session has */
    pthread_mutex_unlock(&s->m->step_lock);
    memset(f->piece, 0, PIECE);
    f->lost = true;
    return PF_OK;
}

/* Saves or loads a unit's memory, piece by piece. */
static pf_status transfer_buffer(struct stream *f, const struct pf_session *s, const struct pf_unit *u, void *p,
                                 size_t n)
{
    for (size_t at = 0; at < n; at += PIECE) {
        size_t bytes = n - at < PIECE ? n - at : PIECE;
        if (f->write)
            PF_TRY(move_piece(f, s, u, (char *)p + at, bytes, false));
        PF_TRY(transfer(f, f->piece, bytes));
        if (f->read)
            PF_TRY(move_piece(f, s, u, (char *)p + at, bytes, true));
    }
    return PF_OK;
}

/* Keys or values of one head, as whole numbers, and those of its positions in a chunk that are in use. */
struct i16_part {
    char *chunk;
    int   hd, lo, hi;
    bool  keys;
};

/* Positions [lo, hi) of one block: in the stream, the others are zeros; in memory, they stay. */
static pf_status transfer_part_block(struct stream *f, const struct pf_session *s, const struct pf_unit *u,
                                     const struct i16_part *b, char *block, size_t bytes)
{
    char *here = f->piece, *there = f->piece + bytes;        /* in memory, in the stream */
    if (f->read)
        PF_TRY(transfer(f, there, bytes));
    else
        memset(there, 0, bytes);
    PF_TRY(move_piece(f, s, u, block, bytes, false));
    for (int p = b->lo; p < b->hi; p++)
        pf_i16_copy_position(f->read ? here : there, f->read ? there : here, b->hd, p, b->keys);
    return f->read ? move_piece(f, s, u, block, bytes, true) : transfer(f, there, bytes);
}

/* Blocks that are in use whole go as they are, and so does a whole chunk. */
static pf_status transfer_blocks(struct stream *f, const struct pf_session *s, const struct pf_unit *u,
                                 const struct i16_part *c)
{
    size_t bytes = PF_I16_BLOCK * (c->keys ? pf_i16_key_bytes(c->hd) : pf_i16_value_bytes(c->hd));
    if (c->hi - c->lo == PF_I16_CHUNK)
        return transfer_buffer(f, s, u, c->chunk, bytes * (PF_I16_CHUNK / PF_I16_BLOCK));
    for (int at = c->lo / PF_I16_BLOCK * PF_I16_BLOCK; at < c->hi; at += PF_I16_BLOCK) {
        char *block = c->chunk + (size_t)(at / PF_I16_BLOCK) * bytes;
        int lo = c->lo > at ? c->lo - at : 0, hi = c->hi - at < PF_I16_BLOCK ? c->hi - at : PF_I16_BLOCK;
        struct i16_part b = { .hd = c->hd, .lo = lo, .hi = hi, .keys = c->keys };
        if (lo == 0 && hi == PF_I16_BLOCK)
            PF_TRY(transfer_buffer(f, s, u, block, bytes));
        else
            PF_TRY(transfer_part_block(f, s, u, &b, block, bytes));
    }
    return PF_OK;
}

static pf_status transfer_i16_chunk(struct stream *f, const struct pf_session *s, const struct pf_unit *u,
                                    const struct pf_kv_view *kv, int64_t first, size_t n)
{
    int lo = (int)(first % PF_KV_CHUNK_POSITIONS), hi = lo + (int)n;
    f->far = kv->k_far != 0 && first / PF_KV_CHUNK_POSITIONS >= kv->n_near;
    for (int h = 0; h < kv->n_kv_head; h++) {
        PF_TRY(transfer_blocks(f, s, u, &(struct i16_part){ pf_kv_i16_keys(kv, (int)first, h), kv->hd_k, lo, hi,
                                                            true }));
        PF_TRY(transfer_blocks(f, s, u, &(struct i16_part){ pf_kv_i16_values(kv, (int)first, h), kv->hd_v, lo, hi,
                                                            false }));
    }
    f->far = false;
    return PF_OK;
}

/* Keys and values of one layer at n positions of one chunk, from position first on. */
static pf_status transfer_chunk(struct stream *f, const struct pf_session *s, const struct pf_unit *u,
                                const struct pf_kv_view *kv, int64_t first, size_t n)
{
    if (kv->type == PF_KV_I16)
        return transfer_i16_chunk(f, s, u, kv, first, n);
    size_t k_bytes = pf_kv_row_bytes(kv->type, kv->hd_k), v_bytes = pf_kv_row_bytes(kv->type, kv->hd_v);
    for (int h = 0; h < kv->n_kv_head; h++) {
        size_t row = pf_kv_row(kv, (int)first, h);
        PF_TRY(transfer_buffer(f, s, u, (char *)kv->k + row * k_bytes, n * k_bytes));
        if (kv->v)                           /* NULL: values are part of the keys, or there are none */
            PF_TRY(transfer_buffer(f, s, u, (char *)kv->v + row * v_bytes, n * v_bytes));
    }
    return PF_OK;
}

/* A state that is ahead of what is computed is not saved: the one before the last step is, and its rows are evaluated
 * again. */
static pf_status transfer_state(struct stream *f, const struct pf_session *s)
{
    bool ahead = f->write && pf_state_behind(s) > 0;
    for (int i = 0; i < s->n_units; i++)
        PF_TRY(transfer_buffer(f, s, &s->units[i], ahead ? s->units[i].next : s->units[i].state,
                               s->units[i].state_bytes));
    return PF_OK;
}

/* Transfers keys and values of positions [from, n). In a ring shorter than the saved one, the later positions stay. */
static pf_status transfer_chunks(struct stream *f, const struct pf_session *s, const struct pf_unit *u,
                                 const struct pf_kv_view *kv, int64_t from, int64_t n)
{
    for (int64_t p = from, next; p < n; p = next) {
        next = (p / PF_KV_CHUNK_POSITIONS + 1) * PF_KV_CHUNK_POSITIONS;
        next = next < n ? next : n;
        PF_TRY(transfer_chunk(f, s, u, kv, p, (size_t)(next - p)));
    }
    return PF_OK;
}

/* Whatever is kept of the positions [from, n). */
static pf_status transfer_kv(struct stream *f, const struct pf_session *s, int64_t from, int64_t n, int64_t held_from)
{
    int64_t in_window = from > held_from ? from : held_from;
    for (int il = 0; il < s->m->n_layer; il++) {
        const struct pf_layer *layer = &s->m->layers[il];
        const struct pf_unit *u = pf_unit_of(s, il);
        if (s->kv[il].view.n_chunks)
            PF_TRY(transfer_chunks(f, s, u, &s->kv[il].view, layer->attn.window ? in_window : from, n));
        if (layer->compressed.blocks.ratio)
            PF_TRY(transfer_chunks(f, s, u, &s->block_kv[il].view, from / layer->compressed.blocks.ratio,
                                   n / layer->compressed.blocks.ratio));
        if (layer->has_indexer)
            PF_TRY(transfer_chunks(f, s, u, &s->index_kv[il].view, from / s->m->index.ratio,
                                   n / s->m->index.ratio));
    }
    return PF_OK;
}

/* The header: which positions keys, values and state hold, unless lost with their device; the model's identity. */
static pf_status fill_header(const pf_session *s, struct save_header *h)
{
    *h = (struct save_header){ .version = VERSION, .kv_type = (uint16_t)s->opts.kv_type,
                               .long_rope = pf_session_rope(s) != &s->m->rope, .n_tokens = (uint64_t)s->pos };
    memcpy(h->magic, magic, sizeof magic);
    pthread_mutex_lock(&s->m->step_lock);
    if (s->units[0].backend == s->m->backend && s->computed > 0) {
        h->computed = (uint64_t)(pf_state_behind(s) > 0 ? s->next_holds : s->computed);
        h->held_from = (uint64_t)s->held_from;
    }
    pf_status st = pf_model_identity(s->m, &h->identity);
    pthread_mutex_unlock(&s->m->step_lock);
    return st;
}

static struct pf_digest digest_of_tokens(const struct pf_session *s, int64_t n)
{
    struct pf_digester d;
    pf_digest_begin(&d);
    pf_digest_add(&d, s->tokens, (size_t)n * sizeof *s->tokens);
    return pf_digest_of(&d);
}

/* Makes the header that of a continuation, if something is there already. */
static pf_status fill_more(const pf_session *s, const struct pf_saved *since, struct save_header *h,
                           struct more_header *more)
{
    *more = (struct more_header){ .tokens_there = since->n_tokens,
                                  .of_tokens = { since->digest[0], since->digest[1] } };
    if (since->n_tokens == 0)
        return PF_OK;
    bool begins = since->n_tokens <= h->n_tokens &&
                  pf_digest_equal(digest_of_tokens(s, (int64_t)since->n_tokens), more->of_tokens);
    if (!begins || since->held_from > h->held_from)
        PF_FAIL(PF_EINVAL, "the sequence does not go on where it was saved, at position %llu",
                (unsigned long long)since->n_tokens);
    more->computed_there = since->computed < h->computed ? since->computed : h->computed;
    memcpy(h->magic, more_magic, sizeof more_magic);
    return PF_OK;
}

/* What is between the tokens and the digest. */
static pf_status transfer_body(struct stream *f, const struct pf_session *s, const struct save_header *h,
                               const struct more_header *more, uint64_t *whole)
{
    PF_TRY(h->computed > 0 ? transfer_state(f, s) : PF_OK);
    PF_TRY(transfer_kv(f, s, (int64_t)more->computed_there, (int64_t)h->computed, (int64_t)h->held_from));
    *whole = f->write ? !f->lost : 0;
    return transfer(f, whole, sizeof *whole);
}

static pf_status save(const pf_session *s, struct stream *f, struct pf_saved *since)
{
    struct save_header header;
    struct more_header more;
    uint64_t whole;
    PF_TRY(fill_header(s, &header));
    PF_TRY(fill_more(s, since, &header, &more));
    PF_TRY(transfer(f, &header, sizeof header));
    PF_TRY(more.tokens_there ? transfer(f, &more, sizeof more) : PF_OK);
    size_t n_new = (size_t)(header.n_tokens - more.tokens_there);
    PF_TRY(transfer(f, s->tokens + more.tokens_there, n_new * sizeof *s->tokens));
    PF_TRY(transfer_body(f, s, &header, &more, &whole));
    struct pf_digest digest = pf_digest_of(&f->hash), of_tokens = digest_of_tokens(s, s->pos);
    PF_TRY(transfer(f, &digest, sizeof digest));
    *since = (struct pf_saved){ .n_tokens = header.n_tokens, .computed = whole ? header.computed : 0,
                                .held_from = header.held_from, .digest = { of_tokens.low, of_tokens.high } };
    return PF_OK;
}

static pf_status open_piece(struct stream *f)
{
    f->piece = pf_alloc(PF_MEM_SESSION, PIECE);
    if (!f->piece)
        PF_FAIL(PF_ENOMEM, "no memory to move a saved session");
    pf_digest_begin(&f->hash);
    return PF_OK;
}

pf_status pf_session_save_more(const pf_session *s, struct pf_saved *since, pf_write_fn *write, void *ctx)
{
    struct stream f = { .write = write, .ctx = ctx };
    PF_TRY(open_piece(&f));
    pf_status st = save(s, &f, since);
    pf_free(f.piece);
    return st;
}

pf_status pf_session_save(const pf_session *s, pf_write_fn *write, void *ctx)
{
    struct pf_saved nothing = { 0 };
    return pf_session_save_more(s, &nothing, write, ctx);
}

static pf_status check_header(const struct pf_session *s, const struct save_header *h, struct pf_digest identity)
{
    bool more = memcmp(h->magic, more_magic, sizeof more_magic) == 0;
    if (!more && memcmp(h->magic, magic, sizeof magic) != 0)
        PF_FAIL(PF_EFORMAT, "this is not a saved session");
    if (more != (s->pos > 0))
        PF_FAIL(PF_EINVAL, more ? "the saved session is the continuation of another, which is to be loaded first"
                                : "the saved session is no continuation");
    if (h->version != VERSION)
        PF_FAIL(PF_EUNSUPPORTED, "the saved session has version %u; version %d can be loaded", h->version, VERSION);
    if (!pf_digest_equal(h->identity, identity))
        PF_FAIL(PF_EINVAL, "the saved session belongs to another model, or to other adapters, than %s",
                pf_gguf_path(s->m->file));
    if (h->kv_type != (uint32_t)s->opts.kv_type)
        PF_FAIL(PF_EINVAL, "the saved session has keys and values of another type");
    if (h->long_rope != (pf_session_rope(s) != &s->m->rope))
        PF_FAIL(PF_EINVAL, "the saved session is from a context of up to, or of more than, %lld positions, which this "
                "model rotates otherwise", (long long)s->m->long_from - 1);
    if (h->n_tokens > (uint64_t)s->opts.n_ctx)
        PF_FAIL(PF_ECONTEXT, "the saved session has %llu positions; this context has %lld",
                (unsigned long long)h->n_tokens, (long long)s->opts.n_ctx);
    if (h->computed > h->n_tokens)
        PF_FAIL(PF_EFORMAT, "the saved session holds %llu of %llu positions", (unsigned long long)h->computed,
                (unsigned long long)h->n_tokens);
    if (h->held_from > 0 &&
        (s->window == 0 || h->held_from > h->computed || h->computed - h->held_from < (uint64_t)s->window))
        PF_FAIL(PF_EFORMAT, "the saved session holds windows from position %llu on, too late for position %llu",
                (unsigned long long)h->held_from, (unsigned long long)h->computed);
    return PF_OK;
}

/* Makes the session ready to be filled. */
static pf_status begin_load(pf_session *s, struct pf_digest *identity)
{
    pthread_mutex_lock(&s->m->step_lock);
    pf_status st = pf_session_follow(s);
    st = st == PF_OK ? pf_model_identity(s->m, identity) : st;
    pthread_mutex_unlock(&s->m->step_lock);
    return st;
}

static pf_status load_tokens(pf_session *s, struct stream *f, uint64_t from, uint64_t n)
{
    PF_TRY(transfer(f, s->tokens + from, (size_t)(n - from) * sizeof *s->tokens));
    for (uint64_t i = from; i < n; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->m->n_vocab)
            PF_FAIL(PF_EFORMAT, "token %llu of the saved session is %d; the vocabulary has ids 0 to %d",
                    (unsigned long long)i, s->tokens[i], s->m->n_vocab - 1);
    return PF_OK;
}

static pf_status check_digest(struct stream *f)
{
    struct pf_digest expected = pf_digest_of(&f->hash), found;
    PF_TRY(transfer(f, &found, sizeof found));
    if (!pf_digest_equal(found, expected))
        PF_FAIL(PF_EFORMAT, "the saved session is damaged: its checksum does not match");
    return PF_OK;
}

/* The header of a continuation, which fits what the session holds. */
static pf_status load_more_header(const pf_session *s, struct stream *f, const struct save_header *h,
                                  struct more_header *more)
{
    PF_TRY(transfer(f, more, sizeof *more));
    if (more->tokens_there != (uint64_t)s->pos || !pf_digest_equal(digest_of_tokens(s, s->pos), more->of_tokens))
        PF_FAIL(PF_EINVAL, "the saved session goes on from %llu tokens, which are not the %lld that are there",
                (unsigned long long)more->tokens_there, (long long)s->pos);
    if (more->computed_there > h->computed || h->n_tokens < more->tokens_there)
        PF_FAIL(PF_EFORMAT, "the saved session goes on from position %llu to %llu",
                (unsigned long long)more->computed_there, (unsigned long long)h->computed);
    return PF_OK;
}

/* Into an empty session, or one that holds what a continuation goes on from. */
static pf_status load(pf_session *s, struct stream *f)
{
    struct save_header header;
    struct more_header more = { 0 };
    struct pf_digest identity;
    uint64_t whole;
    PF_TRY(begin_load(s, &identity));
    PF_TRY(transfer(f, &header, sizeof header));
    PF_TRY(check_header(s, &header, identity));
    PF_TRY(s->pos > 0 ? load_more_header(s, f, &header, &more) : PF_OK);
    uint64_t held_from = (uint64_t)s->held_from > header.held_from ? (uint64_t)s->held_from : header.held_from;
    /* Not if a device was lost in between, or if a ring shorter than the saved one has too little after going back. */
    bool fits = more.computed_there <= (uint64_t)s->computed &&
                (held_from == 0 || held_from + (uint64_t)s->window <= header.computed);
    s->computed = s->state_holds = s->next_holds = 0;
    PF_TRY(load_tokens(s, f, more.tokens_there, header.n_tokens));
    PF_TRY(transfer_body(f, s, &header, &more, &whole));
    PF_TRY(check_digest(f));
    s->pos = (int64_t)header.n_tokens;
    if (whole == 1 && !f->lost && fits) {
        s->computed = s->state_holds = (int64_t)header.computed;
        s->held_from = (int64_t)held_from;
    }
    pf_ring_advance(s, 0);
    return PF_OK;
}

/* A load that failed leaves the session empty. */
static pf_status load_from(pf_session *s, pf_read_fn *read, void *ctx)
{
    struct stream f = { .read = read, .ctx = ctx };
    pf_status st = open_piece(&f);
    st = st == PF_OK ? load(s, &f) : st;
    pf_free(f.piece);
    if (st < 0) {
        s->pos = s->computed = s->state_holds = s->held_from = 0;
        pf_state_rewind(s, 0);
    }
    return st;
}

pf_status pf_session_load(pf_session *s, pf_read_fn *read, void *ctx)
{
    PF_TRY(pf_session_rewind(s, 0));
    return load_from(s, read, ctx);
}

pf_status pf_session_load_more(pf_session *s, pf_read_fn *read, void *ctx)
{
    if (s->pos == 0 || s->has_logits)
        PF_FAIL(PF_EINVAL, "a continuation goes on from what was just loaded");
    return load_from(s, read, ctx);
}

/* Sessions on disk. Little-endian, packed:
 *
 *     "PFMOESES"  u32 version  u32 kv_type  u64 fingerprint of the model  u64 n_tokens  u64 computed  u64 held_from
 *     i32 tokens[n_tokens]
 *     the recurrent state after computed positions, if the model has one and computed is not 0
 *     per layer, per chunk that holds positions, per KV head:  keys, then values, of the positions in use: those below
 *         computed, and not below held_from if the layer has a window
 *       then, likewise, the keys of its full blocks, and then those of its indexer
 *     u64 FNV-1a of everything before it, taken over 8-byte words (the last padded with zeros) of each write
 */
#include <string.h>

#include "base/pf_mem.h"
#include "moe/run/session.h"

static const char magic[8] = { 'P', 'F', 'M', 'O', 'E', 'S', 'E', 'S' };
enum { VERSION = 3, PIECE = 1 << 20 };

struct save_header {
    char     magic[8];
    uint32_t version, kv_type;
    uint64_t fingerprint, n_tokens, computed, held_from;
};
_Static_assert(sizeof(struct save_header) == 48, "the header is packed");

/* Moves bytes between the caller's stream and memory, hashing them. */
struct stream {
    pf_write_fn *write;
    pf_read_fn  *read;
    void        *ctx;
    uint64_t     hash;
    char        *piece;      /* [PIECE] what passes between the backend's memory and the stream */
};

static void hash_block(uint64_t *h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)p + i, n - i < 8 ? n - i : 8);
        *h = (*h ^ word) * 0x100000001b3u;
    }
}

static pf_status transfer(struct stream *f, void *p, size_t n)
{
    if (n == 0)
        return PF_OK;
    if (!(f->write ? f->write(f->ctx, p, n) : f->read(f->ctx, p, n)))
        PF_FAIL(PF_EIO, "%s a saved session failed after part of it", f->write ? "writing" : "reading");
    hash_block(&f->hash, p, n);
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

/* The same for a unit's memory, by way of a piece that can be read. */
static pf_status transfer_buffer(struct stream *f, const struct pf_session *s, const struct pf_unit *u, void *p,
                                 size_t n)
{
    for (size_t at = 0; at < n; at += PIECE) {
        size_t bytes = n - at < PIECE ? n - at : PIECE;
        if (f->write)
            PF_TRY(move(s, u->backend, u->backend->ops->download, f->piece, (char *)p + at, bytes));
        PF_TRY(transfer(f, f->piece, bytes));
        if (f->read)
            PF_TRY(move(s, u->backend, u->backend->ops->upload, (char *)p + at, f->piece, bytes));
    }
    return PF_OK;
}

/* Keys and values of one layer at n positions of one chunk, from position first on. */
static pf_status transfer_chunk(struct stream *f, const struct pf_session *s, const struct pf_unit *u,
                                const struct pf_kv_view *kv, int64_t first, size_t n)
{
    size_t k_bytes = pf_kv_row_bytes(kv->type, kv->hd_k), v_bytes = pf_kv_row_bytes(kv->type, kv->hd_v);
    for (int h = 0; h < kv->n_kv_head; h++) {
        size_t row = pf_kv_row(kv, (int)first, h);
        PF_TRY(transfer_buffer(f, s, u, (char *)kv->k + row * k_bytes, n * k_bytes));
        if (kv->v)                           /* else the values are in the keys, or there are none */
            PF_TRY(transfer_buffer(f, s, u, (char *)kv->v + row * v_bytes, n * v_bytes));
    }
    return PF_OK;
}

static pf_status transfer_state(struct stream *f, const struct pf_session *s)
{
    for (int i = 0; i < 2; i++)
        PF_TRY(transfer_buffer(f, s, &s->units[i], s->units[i].state, s->units[i].state_bytes));
    return PF_OK;
}

/* The same of positions [from, n). In a ring shorter than the one they come from, the later ones stay. */
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

/* Whatever is kept of the positions below n. */
static pf_status transfer_kv(struct stream *f, const struct pf_session *s, int64_t n, int64_t held_from)
{
    for (int il = 0; il < s->m->n_layer; il++) {
        const struct pf_layer *layer = &s->m->layers[il];
        const struct pf_unit *u = &s->units[il >= s->units[0].end];
        PF_TRY(transfer_chunks(f, s, u, &s->kv[il].view, layer->attn.window ? held_from : 0, n));
        if (layer->compressed.blocks.ratio)
            PF_TRY(transfer_chunks(f, s, u, &s->block_kv[il].view, 0, n / layer->compressed.blocks.ratio));
        if (layer->has_indexer)
            PF_TRY(transfer_chunks(f, s, u, &s->index_kv[il].view, 0, n / s->m->index.ratio));
    }
    return PF_OK;
}

static pf_status save(const pf_session *s, struct stream *f)
{
    int64_t computed = s->units[0].backend == s->m->backend ? s->computed : 0;       /* or lost with its device */
    struct save_header header = { .version = VERSION, .kv_type = s->opts.kv_type, .fingerprint = s->m->fingerprint,
                                  .n_tokens = (uint64_t)s->pos, .computed = (uint64_t)computed,
                                  .held_from = computed ? (uint64_t)s->held_from : 0 };
    memcpy(header.magic, magic, sizeof magic);
    PF_TRY(transfer(f, &header, sizeof header));
    PF_TRY(transfer(f, s->tokens, (size_t)s->pos * sizeof *s->tokens));
    PF_TRY(computed > 0 ? transfer_state(f, s) : PF_OK);
    PF_TRY(transfer_kv(f, s, computed, (int64_t)header.held_from));
    uint64_t hash = f->hash;
    return transfer(f, &hash, sizeof hash);
}

static pf_status open_piece(struct stream *f)
{
    f->piece = pf_alloc(PF_MEM_SESSION, PIECE);
    if (!f->piece)
        PF_FAIL(PF_ENOMEM, "no memory to move a saved session");
    return PF_OK;
}

pf_status pf_session_save(const pf_session *s, pf_write_fn *write, void *ctx)
{
    struct stream f = { .write = write, .ctx = ctx };
    PF_TRY(open_piece(&f));
    pf_status st = save(s, &f);
    pf_free(f.piece);
    return st;
}

static pf_status check_header(const struct pf_session *s, const struct save_header *h)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        PF_FAIL(PF_EFORMAT, "this is not a saved session");
    if (h->version != VERSION)
        PF_FAIL(PF_EUNSUPPORTED, "the saved session has version %u; version %d can be loaded", h->version, VERSION);
    if (h->fingerprint != s->m->fingerprint)
        PF_FAIL(PF_EINVAL, "the saved session belongs to another model file");
    if (h->kv_type != (uint32_t)s->opts.kv_type)
        PF_FAIL(PF_EINVAL, "the saved session has keys and values of another type");
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

static pf_status load(pf_session *s, struct stream *f)
{
    struct save_header header;
    PF_TRY(pf_session_rewind(s, 0));
    pthread_mutex_lock(&s->m->step_lock);
    pf_status st = pf_session_follow(s);
    pthread_mutex_unlock(&s->m->step_lock);
    PF_TRY(st);
    PF_TRY(transfer(f, &header, sizeof header));
    PF_TRY(check_header(s, &header));
    PF_TRY(transfer(f, s->tokens, (size_t)header.n_tokens * sizeof *s->tokens));
    for (uint64_t i = 0; i < header.n_tokens; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->m->n_vocab)
            PF_FAIL(PF_EFORMAT, "token %llu of the saved session is %d; the vocabulary has ids 0 to %d",
                    (unsigned long long)i, s->tokens[i], s->m->n_vocab - 1);
    PF_TRY(header.computed > 0 ? transfer_state(f, s) : PF_OK);
    PF_TRY(transfer_kv(f, s, (int64_t)header.computed, (int64_t)header.held_from));
    uint64_t expected = f->hash, found;
    PF_TRY(transfer(f, &found, sizeof found));
    if (found != expected)
        PF_FAIL(PF_EFORMAT, "the saved session is damaged: its checksum does not match");
    s->pos = (int64_t)header.n_tokens;
    s->computed = (int64_t)header.computed;
    s->held_from = (int64_t)header.held_from;
    pf_ring_advance(s, 0);
    return PF_OK;
}

pf_status pf_session_load(pf_session *s, pf_read_fn *read, void *ctx)
{
    struct stream f = { .read = read, .ctx = ctx };
    PF_TRY(open_piece(&f));
    pf_status st = load(s, &f);
    pf_free(f.piece);
    return st;
}

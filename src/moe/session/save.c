/* Sessions on disk. Little-endian, packed:
 *
 *     "PFMOESES"  u32 version  u16 kv_type  u16 long_rope  u64[2] identity of the model  u64 n_tokens  u64 computed
 *     u64 held_from
 *     i32 tokens[n_tokens]
 *     the recurrent state after computed positions, if the model has one and computed is not 0
 *     per layer, per chunk that holds positions, per KV head:  keys, then values, of the positions in use: those below
 *         computed, and not below held_from if the layer has a window. I16: their blocks as pf_i16.h and pf_latent.h
 *         have them, with zeros for positions that are not in use
 *       then, likewise, the keys of its full blocks, and then those of its indexer
 *     u64 whole: 1, or 0 if what is between the tokens and here was lost with its device while it was written
 *     the session that drafts are made with, if there is one, in such a form of its own, which may continue what was
 *         saved of it: cut into pieces, u64 n and n bytes each; then u64 0
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
#include "moe/session/crew.h"
#include "moe/session/save_stream.h"

static const char magic[8] = { 'P', 'F', 'M', 'O', 'E', 'S', 'E', 'S' };
static const char more_magic[8] = { 'P', 'F', 'M', 'O', 'E', 'M', 'O', 'R' };
enum { VERSION = 6 };

struct save_header {
    char     magic[8];
    uint32_t version;
    uint16_t kv_type, long_rope;             /* see type_of; long_rope: 1 if keys are rotated by m->long_rope */
    struct pf_digest identity;
    uint64_t n_tokens, computed, held_from;
};
_Static_assert(sizeof(struct save_header) == 56, "the header is packed");

struct more_header {
    uint64_t tokens_there, computed_there;   /* 0 and 0: nothing is */
    struct pf_digest of_tokens;
};
_Static_assert(sizeof(struct more_header) == 32, "the header is packed");

/* The option, and whether latents are whole numbers by it: a file that has them as F16, by the same option, is of
 * another type. */
static uint16_t type_of(const struct pf_session *s)
{
    enum { WHOLE_LATENTS = 256 };
    bool whole = false;
    for (int il = 0; il < s->m->n_layer; il++)
        whole |= s->m->layers[il].attn.v_in_k && pf_kv_layer_of(s->m, il, &s->opts).view.type == PF_KV_I16;
    return (uint16_t)((int)s->opts.kv_type + (whole ? WHOLE_LATENTS : 0));
}

/* The header: which positions keys, values and state hold, unless lost with their device; the model's identity. */
static pf_status fill_header(const pf_session *s, struct save_header *h)
{
    *h = (struct save_header){ .version = VERSION, .kv_type = type_of(s),
                               .long_rope = pf_session_rope(s) != &s->m->rope, .n_tokens = (uint64_t)s->pos };
    memcpy(h->magic, magic, sizeof magic);
    PF_TRY(pf_model_identity(s->m, &h->identity));
    pf_lock_take(&s->m->step_lock);
    if (pf_session_is_here(s) && s->computed > 0) {
        h->computed = (uint64_t)(pf_state_behind(s) > 0 ? s->next_holds : s->computed);
        h->held_from = (uint64_t)s->held_from;
    }
    pf_lock_give(&s->m->step_lock);
    return PF_OK;
}

static struct pf_digest digest_of_tokens(const struct pf_session *s, int64_t n)
{
    struct pf_digester d;
    pf_digest_begin(&d);
    pf_digest_add(&d, s->tokens, (size_t)n * sizeof *s->tokens);
    return pf_digest_of(&d);
}

/* Makes the header that of a continuation, if something is there already. */
static pf_status fill_more(const pf_session *s, const struct pf_saved_sequence *since, struct save_header *h,
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
static pf_status transfer_body(struct pf_save_stream *f, const struct save_header *h, const struct more_header *more,
                               uint64_t *whole)
{
    PF_TRY(h->computed > 0 ? pf_save_transfer_state(f) : PF_OK);
    PF_TRY(pf_save_transfer_kv(f, (int64_t)more->computed_there, (int64_t)h->computed, (int64_t)h->held_from));
    *whole = f->write ? !f->lost : 0;
    return pf_save_transfer(f, whole, sizeof *whole);
}

static pf_status save_sequence(const pf_session *s, struct pf_save_stream *f, struct pf_saved_sequence *since)
{
    struct save_header header;
    struct more_header more;
    uint64_t whole;
    PF_TRY(fill_header(s, &header));
    PF_TRY(fill_more(s, since, &header, &more));
    PF_TRY(pf_save_transfer(f, &header, sizeof header));
    PF_TRY(more.tokens_there ? pf_save_transfer(f, &more, sizeof more) : PF_OK);
    size_t n_new = (size_t)(header.n_tokens - more.tokens_there);
    PF_TRY(pf_save_transfer(f, s->tokens + more.tokens_there, n_new * sizeof *s->tokens));
    PF_TRY(transfer_body(f, &header, &more, &whole));
    struct pf_digest of_tokens = digest_of_tokens(s, s->pos);
    *since = (struct pf_saved_sequence){ .n_tokens = header.n_tokens, .computed = whole ? header.computed : 0,
                                         .held_from = header.held_from, .digest = { of_tokens.low, of_tokens.high } };
    return PF_OK;
}

/* ---- The session that drafts are made with ----------------------------------------------------------------------- */

/* Its stream inside of the other one. */
struct pieces {
    struct pf_save_stream *f;
    uint64_t       left;             /* of the piece that is read */
    bool           ended;
    pf_status      st;               /* why it could not be read on; ended is true then */
};

static bool write_piece(void *ctx, const void *data, size_t bytes)
{
    struct pieces *p = ctx;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PF_SAVE_PIECE ? bytes - at : PF_SAVE_PIECE;
        uint64_t n_piece = n;
        if (pf_save_transfer(p->f, &n_piece, sizeof n_piece) < 0 ||
            pf_save_transfer(p->f, (char *)(uintptr_t)data + at, n) < 0)
            return false;
    }
    return true;
}

static pf_status save_drafts(const pf_session *s, struct pf_save_stream *f, struct pf_saved_sequence *since)
{
    struct pieces p = { .f = f };
    struct pf_saved now = { .session = *since };
    const pf_session *own = pf_session_drafting(s);
    uint64_t end = 0;
    /* Not if it holds less than before, or windows that lie elsewhere: nothing is written of it then. */
    pf_status st = own && own->pos > 0 ? pf_session_save_more(own, &now, write_piece, &p) : PF_EINVAL;
    if (st != PF_EINVAL)
        PF_TRY(st);
    *since = now.session;
    return pf_save_transfer(f, &end, sizeof end);
}

static pf_status length_of_next(struct pieces *p)
{
    PF_TRY(pf_save_transfer(p->f, &p->left, sizeof p->left));
    if (p->left > PF_SAVE_PIECE)
        PF_FAIL(PF_EFORMAT, "the saved session is damaged: a piece of it has %llu bytes", (unsigned long long)p->left);
    return PF_OK;
}

static void next_piece(struct pieces *p)
{
    p->st = length_of_next(p);
    p->left = p->st < 0 ? 0 : p->left;
    p->ended = p->left == 0;
}

static bool read_pieces(void *ctx, void *data, size_t bytes)
{
    struct pieces *p = ctx;
    for (char *to = data; bytes > 0;) {
        if (p->left == 0 && !p->ended)
            next_piece(p);
        size_t n = bytes < p->left ? bytes : (size_t)p->left;
        if (p->ended || pf_save_transfer(p->f, to, n) < 0)
            return false;
        p->left -= n;
        to += n;
        bytes -= n;
    }
    return true;
}

/* What does not fit the session that drafts are made with, if there is one, is passed over, and that one is empty. */
static pf_status load_drafts(const pf_session *s, struct pf_save_stream *f)
{
    struct pieces p = { .f = f };
    pf_session *own = pf_session_drafting(s);
    if (own)
        (void)(own->pos > 0 ? pf_session_load_more : pf_session_load)(own, read_pieces, &p);
    while (!p.ended) {
        PF_TRY(pf_save_transfer(f, f->stage, (size_t)p.left));
        next_piece(&p);
    }
    return p.st;
}

/* A file that says otherwise: what drafts are made with follows the session. */
static void check_drafts(const pf_session *s)
{
    pf_session *own = pf_session_drafting(s);
    if (own && (own->pos > s->pos || memcmp(own->tokens, s->tokens, (size_t)own->pos * sizeof *s->tokens) != 0))
        pf_session_rewind(own, 0);
}

/* ---- Whole files ------------------------------------------------------------------------------------------------- */

static pf_status save(const pf_session *s, struct pf_save_stream *f, struct pf_saved *since)
{
    struct pf_saved now = *since;
    PF_TRY(save_sequence(s, f, &now.session));
    PF_TRY(save_drafts(s, f, &now.drafts));
    struct pf_digest digest = pf_digest_of(&f->hash);
    PF_TRY(pf_save_transfer(f, &digest, sizeof digest));
    *since = now;
    return PF_OK;
}

pf_status pf_session_save_more(const pf_session *s, struct pf_saved *since, pf_write_fn *write, void *ctx)
{
    struct pf_save_stream f;
    PF_TRY(pf_crew_refuse(s->m, "no session can be saved"));
    PF_TRY(pf_save_open(&f, s, write, NULL, ctx));
    pf_status st = save(s, &f, since);
    pf_save_close(&f);
    return st;
}

/* A load that goes back to n moves the end of what is computed, and nothing else. */
static bool can_be_cut(const struct pf_model *m, const struct pf_saved_sequence *saved, uint64_t n)
{
    return n == 0 || n == saved->n_tokens ||
           (!m->recurrent && (saved->held_from == 0 || saved->held_from + (uint64_t)pf_widest_window(m) <= n));
}

bool pf_saved_can_cut(const pf_model *m, const struct pf_saved *saved, int64_t n)
{
    return n >= 0 && (uint64_t)n <= saved->session.n_tokens && can_be_cut(m, &saved->session, (uint64_t)n);
}

bool pf_session_save_can_cut(const pf_session *s, int64_t n)
{
    struct pf_saved_sequence now = { .n_tokens = (uint64_t)s->pos, .held_from = (uint64_t)s->held_from };
    return n >= 0 && n <= s->pos && can_be_cut(s->m, &now, (uint64_t)n);
}

static struct pf_saved_sequence first_of(const pf_session *s, const struct pf_saved_sequence *saved, uint64_t n)
{
    struct pf_digest of_tokens = digest_of_tokens(s, (int64_t)n);
    return (struct pf_saved_sequence){ .n_tokens = n, .computed = saved->computed < n ? saved->computed : n,
                                       .held_from = saved->held_from, .digest = { of_tokens.low, of_tokens.high } };
}

/* What drafts are made with has tokens of the session alone, and goes back with it. If it cannot be cut, it is saved
 * anew. */
pf_status pf_saved_cut(const pf_session *s, struct pf_saved *since, int64_t n)
{
    uint64_t end = (uint64_t)n;
    if (n < 0 || n > s->pos || end > since->session.n_tokens)
        PF_FAIL(PF_EINVAL, "cannot cut a saved sequence of %llu tokens to %lld",
                (unsigned long long)since->session.n_tokens, (long long)n);
    if (n == 0) {
        *since = (struct pf_saved){ 0 };
        return PF_OK;
    }
    if (!can_be_cut(s->m, &since->session, end))
        PF_FAIL(PF_EINVAL, "the model's sequences cannot be cut at position %lld", (long long)n);
    const pf_session *own = pf_session_drafting(s);
    since->session = first_of(s, &since->session, end);
    if (end < since->drafts.n_tokens)
        since->drafts = own && can_be_cut(own->m, &since->drafts, end) ? first_of(s, &since->drafts, end)
                                                                    : (struct pf_saved_sequence){ 0 };
    return PF_OK;
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
    if (h->kv_type != type_of(s))
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
    PF_TRY(pf_model_identity(s->m, identity));
    pf_lock_take(&s->m->step_lock);
    pf_status st = pf_session_follow(s);
    pf_lock_give(&s->m->step_lock);
    return st;
}

static pf_status load_tokens(pf_session *s, struct pf_save_stream *f, uint64_t from, uint64_t n)
{
    PF_TRY(pf_save_transfer(f, s->tokens + from, (size_t)(n - from) * sizeof *s->tokens));
    for (uint64_t i = from; i < n; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->m->n_vocab)
            PF_FAIL(PF_EFORMAT, "token %llu of the saved session is %d; the vocabulary has ids 0 to %d",
                    (unsigned long long)i, s->tokens[i], s->m->n_vocab - 1);
    return PF_OK;
}

static pf_status check_digest(struct pf_save_stream *f)
{
    struct pf_digest expected = pf_digest_of(&f->hash), found;
    PF_TRY(pf_save_transfer(f, &found, sizeof found));
    if (!pf_digest_equal(found, expected))
        PF_FAIL(PF_EFORMAT, "the saved session is damaged: its checksum does not match");
    return PF_OK;
}

/* The header of a continuation, which fits what the session holds. */
static pf_status load_more_header(const pf_session *s, struct pf_save_stream *f, const struct save_header *h,
                                  struct more_header *more)
{
    PF_TRY(pf_save_transfer(f, more, sizeof *more));
    if (more->tokens_there != (uint64_t)s->pos || !pf_digest_equal(digest_of_tokens(s, s->pos), more->of_tokens))
        PF_FAIL(PF_EINVAL, "the saved session goes on from %llu tokens, which are not the %lld that are there",
                (unsigned long long)more->tokens_there, (long long)s->pos);
    if (more->computed_there > h->computed || h->n_tokens < more->tokens_there)
        PF_FAIL(PF_EFORMAT, "the saved session goes on from position %llu to %llu",
                (unsigned long long)more->computed_there, (unsigned long long)h->computed);
    return PF_OK;
}

/* Into an empty session, or one that holds what a continuation goes on from. */
static pf_status load(pf_session *s, struct pf_save_stream *f)
{
    struct save_header header;
    struct more_header more = { 0 };
    struct pf_digest identity;
    uint64_t whole;
    PF_TRY(begin_load(s, &identity));
    PF_TRY(pf_save_transfer(f, &header, sizeof header));
    PF_TRY(check_header(s, &header, identity));
    PF_TRY(s->pos > 0 ? load_more_header(s, f, &header, &more) : PF_OK);
    uint64_t held_from = (uint64_t)s->held_from > header.held_from ? (uint64_t)s->held_from : header.held_from;
    /* Not if a device was lost in between, or if a ring shorter than the saved one has too little after going back. */
    bool fits = more.computed_there <= (uint64_t)s->computed &&
                (held_from == 0 || held_from + (uint64_t)s->window <= header.computed);
    s->computed = s->state_holds = s->next_holds = 0;
    PF_TRY(load_tokens(s, f, more.tokens_there, header.n_tokens));
    PF_TRY(transfer_body(f, &header, &more, &whole));
    PF_TRY(load_drafts(s, f));
    PF_TRY(check_digest(f));
    s->pos = (int64_t)header.n_tokens;
    check_drafts(s);
    if (whole == 1 && !f->lost && fits) {
        s->computed = s->state_holds = (int64_t)header.computed;
        s->held_from = (int64_t)held_from;
    }
    pf_ring_advance(s, 0);
    pf_lock_take(&s->m->step_lock);
    pf_state_keep(s, s->computed);           /* from here a conversation may be taken up more than once */
    pf_lock_give(&s->m->step_lock);
    return PF_OK;
}

/* A load that failed leaves the session empty. */
static pf_status load_from(pf_session *s, pf_read_fn *read, void *ctx)
{
    struct pf_save_stream f;
    pf_status st = pf_save_open(&f, s, NULL, read, ctx);
    st = st == PF_OK ? load(s, &f) : st;
    pf_save_close(&f);
    if (st < 0) {
        s->computed = s->state_holds = s->held_from = 0;
        pf_session_rewind(s, 0);             /* and that which drafts are made with */
    }
    return st;
}

pf_status pf_session_load(pf_session *s, pf_read_fn *read, void *ctx)
{
    PF_TRY(pf_crew_refuse(s->m, "no saved session can be loaded"));
    PF_TRY(pf_session_rewind(s, 0));
    return load_from(s, read, ctx);
}

pf_status pf_session_load_more(pf_session *s, pf_read_fn *read, void *ctx)
{
    PF_TRY(pf_crew_refuse(s->m, "no saved session can be loaded"));
    if (s->pos == 0 || s->has_logits)
        PF_FAIL(PF_EINVAL, "a continuation goes on from what was just loaded");
    return load_from(s, read, ctx);
}

/* Layers that see a window of the context keep a ring of positions instead of all of them. See session.h.
 *
 *     the sequence     0 ........ held_from ............... computed ....... computed + rows
 *     the ring                        |== a row's window ======|== a batch ====|
 *                                     `------ ring.positions, at least --------'
 *
 * A step writes its rows over positions that lie at least the window before the first of them, so that after a step
 * that failed, the next one finds everything it sees. Of steps that are made at once (run/pipeline.c) later ones may
 * write over that: pf_state_abandon. The ring is a multiple of the chunk, and a chunk keeps its shape
 * and its order in it, so the order of attention's sums does not depend on the ring.
 *
 * Positions before held_from are overwritten. To go back to a position that sees them, a checkpoint has a copy of one
 * window, in whole blocks where positions lie in blocks: what else is in them is of the past before the window, which
 * is not looked at, or is still to come. Where ring and checkpoints would take no less memory than all positions, there
 * is no ring. */
#include "moe/session/session.h"

bool pf_ring_holds(const struct pf_session *s, int64_t pos)
{
    return s->held_from == 0 || pos - s->window >= s->held_from;
}

void pf_ring_advance(struct pf_session *s, int rows)
{
    int64_t from = s->computed + rows - s->ring_positions;
    if (s->ring_positions && from > s->held_from)
        s->held_from = from;
}

/* Where copying stands: a checkpoint has, layer by layer, head by head, a window of keys, then of values. */
struct copying {
    const struct pf_unit *u;
    char   *kept;
    bool    keep;
    int64_t from, end;           /* positions */
};

/* Keys or values of a layer: in the ring, a chunk's rows of one head are as many rows from those of the next. */
static void copy_rows(struct copying *c, const struct pf_kv_view *kv, char *base, size_t row_bytes, int span)
{
    int block = pf_kv_block(kv->type);
    int64_t from = c->from / block * block, end = (c->end + block - 1) / block * block;
    size_t in_ring = PF_KV_CHUNK_POSITIONS * row_bytes, in_kept = (size_t)span * row_bytes;
    for (int64_t p = from, next; p < end; p = next) {
        next = (p / PF_KV_CHUNK_POSITIONS + 1) * PF_KV_CHUNK_POSITIONS;
        next = next < end ? next : end;
        char *ring = base + pf_kv_row(kv, (int)p, 0) * row_bytes, *kept = c->kept + (size_t)(p - from) * row_bytes;
        struct pf_buf_copy copy = { ring, kept, (size_t)(next - p) * row_bytes, in_ring, in_kept, kv->n_kv_head };
        if (c->keep)
            copy = (struct pf_buf_copy){ kept, ring, copy.bytes, in_kept, in_ring, kv->n_kv_head };
        c->u->backend->ops->buf_copy(c->u->backend, &copy);
    }
    c->kept += (size_t)kv->n_kv_head * in_kept;
}

void pf_ring_copy(const struct pf_session *s, const struct pf_unit *u, int64_t pos, void *kept, bool keep)
{
    int64_t from = pos > s->window ? pos - s->window : 0;
    struct copying c = { .u = u, .kept = kept, .keep = keep, .from = from, .end = pos };
    for (int il = u->first; s->ring_positions && il < u->end; il++) {
        const struct pf_kv_view *kv = &s->kv[il].view;
        if (s->m->layers[il].attn.window == 0 || kv->n_chunks == 0)
            continue;
        int span = pf_window_span(kv->type, s->window);
        copy_rows(&c, kv, kv->k, (kv->v ? pf_kv_key_bytes : pf_kv_latent_bytes)(kv->type, kv->hd_k), span);
        if (kv->v)
            copy_rows(&c, kv, kv->v, pf_kv_value_bytes(kv->type, kv->hd_v), span);
    }
}

/* Keys and values of a layer of the CPU that visits a card (place/visits.h): what a part of the step may see goes to
 * the card's stage, and what it has written comes back. Places are those of struct pf_kv_view, in one layout on both
 * sides; the host's lie in two pieces where a session has some far.
 *
 *     host     | keys of the first places |   | far ones |   | values |   | far ones |
 *     stage    | keys of all places that have been written to | their values |            */
#include "moe/blocks/blocks.h"

static size_t keys_bytes(const struct pf_kv_view *kv)
{
    return (size_t)kv->n_kv_head * PF_KV_CHUNK_POSITIONS * pf_kv_key_bytes(kv->type, kv->hd_k);
}

static size_t values_bytes(const struct pf_kv_view *kv)
{
    return (size_t)kv->n_kv_head * PF_KV_CHUNK_POSITIONS * pf_kv_value_bytes(kv->type, kv->hd_v);
}

static char *keys_at(const struct pf_kv_view *kv, int place)
{
    return (char *)kv->k + (size_t)place * keys_bytes(kv) + (place >= kv->n_near ? kv->k_far : 0);
}

static char *values_at(const struct pf_kv_view *kv, int place)
{
    return (char *)kv->v + (size_t)place * values_bytes(kv) + (place >= kv->n_near ? kv->v_far : 0);
}

/* Places that positions before `end` have. */
static int places_to(const struct pf_kv_view *kv, int64_t end)
{
    int64_t n = (end + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS;
    return n < kv->n_chunks ? (int)n : kv->n_chunks;
}

/* Copies places [first, end) between the host and a card. */
static pf_status copy(struct pf_step *t, const struct pf_kv_view *to, const struct pf_kv_view *from, int first, int end,
                      pf_status (*one)(pf_backend *b, void *to, const void *from, size_t bytes))
{
    for (int i = first, next; i < end; i = next) {
        int near = to->n_near < from->n_near ? to->n_near : from->n_near;
        next = i < near && near < end ? near : end;
        size_t n = (size_t)(next - i);
        PF_TRY(one(t->unit->backend, keys_at(to, i), keys_at(from, i), n * keys_bytes(to)));
        PF_TRY(one(t->unit->backend, values_at(to, i), values_at(from, i), n * values_bytes(to)));
    }
    return PF_OK;
}

size_t pf_lent_bytes(const struct pf_step *t, int first, int end)
{
    size_t most = 0;
    for (int i = 0; i < t->n_parts; i++)
        for (int il = first; il < end; il++) {
            const struct pf_kv_view *kv = &t->parts[i].s->kv[il].view;
            size_t bytes = (size_t)places_to(kv, pf_part_end(&t->parts[i])) * (keys_bytes(kv) + values_bytes(kv));
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Places that nobody has written to go along: kernels may look at what lies behind the last position. */
pf_status pf_lent_take(struct pf_step *t, const struct pf_part *p, const struct pf_kv_view *kv, struct pf_kv_view *lent)
{
    int n = places_to(kv, pf_part_end(p));
    *lent = *kv;
    lent->k = t->unit->stage;
    lent->v = (char *)t->unit->stage + (size_t)n * keys_bytes(kv);
    lent->n_near = kv->n_chunks;
    lent->k_far = lent->v_far = 0;
    return copy(t, lent, kv, 0, n, ops_of(t)->upload);
}

pf_status pf_lent_give_back(struct pf_step *t, const struct pf_part *p, const struct pf_kv_view *kv,
                            const struct pf_kv_view *lent)
{
    int64_t from = p->from / PF_KV_CHUNK_POSITIONS, last = (pf_part_end(p) - 1) / PF_KV_CHUNK_POSITIONS;
    int first = (int)(from % kv->n_chunks), end = (int)(last % kv->n_chunks) + 1;
    bool wraps = first >= end || last - from >= kv->n_chunks;
    PF_TRY(copy(t, kv, lent, wraps ? 0 : first, end, ops_of(t)->download));
    return wraps ? copy(t, kv, lent, first > end ? first : end, places_to(kv, pf_part_end(p)), ops_of(t)->download)
                 : PF_OK;
}

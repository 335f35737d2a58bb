/* See rows.h. */
#include "moe/place/rows.h"

#include <string.h>

#include "backend/meet.h"
#include "backend/team.h"
#include "base/pf_mem.h"
#include "moe/place/among.h"
#include "moe/place/cut.h"
#include "moe/place/on_device.h"

enum { ROWS_TOGETHER = 8, GATES_TOGETHER = 32 };     /* of matrices that are not divided by heads; of experts' gates,
                                                        as many as a block of kernels takes of a pick */

const char *pf_rows_lack(const struct pf_model *m)
{
    bool plain = m->streams.n == 1 && m->ngrams.n == 0 && !m->is_nextn;
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_layer *l = &m->layers[il];
        plain &= (l->mixer == PF_MIXER_ATTENTION || l->mixer == PF_MIXER_NONE) && !l->has_indexer;
    }
    return plain ? NULL : "only models of attention and feed-forward, dense or of experts, can be";
}

/* ---- What is divided --------------------------------------------------------------------------------------------- */

/* A matrix of which each card has some units of `unit` rows, or such a matrix of each expert of a layer. */
struct divided_weight {
    const struct pf_weight        *w;        /* NULL: it is one of experts */
    const struct pf_expert_weight *of_experts;
    int      il, unit, n_out;                /* il: the layer's number, -1: of none */
    uint64_t row_bytes;
};

struct divided_weights {
    const struct pf_model *m;
    struct divided_weight *v;
    int  n;
    bool by_heads;
    int  widest;                             /* most rows of any */
    pf_ranks *ranks;                         /* the cards are those of processes; NULL: of this one */
};

static bool is_plain(const struct pf_weight *w, int n_units)
{
    return !w->data || (!w->lora && w->n_out % n_units == 0);
}

/* Whether queries, keys and values of all layers with attention can be divided by KV heads: a norm over all heads of a
 * row, or a layer that sees another's keys, wants them together. */
static bool can_divide_heads(const struct pf_model *m)
{
    bool can = true;
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_attention *a = &m->layers[il].attn;
        if (m->layers[il].mixer != PF_MIXER_ATTENTION)
            continue;
        can &= a->kv_layer == il && !a->v_in_k && !(a->norm && m->arch->norm_whole_row);
        can = can && is_plain(&a->q, a->n_kv_head) && is_plain(&a->k, a->n_kv_head) && is_plain(&a->v, a->n_kv_head) &&
              is_plain(&a->gate, a->n_kv_head);
    }
    return can;
}

/* Rows of w that stay together; 0: it is not divided. */
static int unit_of(const struct pf_layer *l, const struct pf_weight *w, bool by_heads)
{
    const struct pf_attention *a = &l->attn;
    const struct pf_dense_ffn *d = l->is_moe ? &l->moe.shared : &l->dense;
    bool of_heads = w == &a->q || w == &a->k || w == &a->v || w == &a->gate;
    if (w->lora)
        return 0;
    if (of_heads)
        return by_heads ? w->n_out / a->n_kv_head : 0;
    bool alone = w == &a->out || w == &d->gate || w == &d->up || w == &d->down;
    return alone && w->n_out >= ROWS_TOGETHER ? ROWS_TOGETHER : 0;
}

static void add(struct divided_weights *d, const struct divided_weight *v, int n_cards, const int *first)
{
    int bounds[PF_MAX_GPUS + 1];
    if (v->unit == 0 || !pf_team_bounds(first, n_cards, v->n_out / v->unit, bounds))
        return;
    d->v[d->n++] = *v;
    d->widest = v->n_out > d->widest ? v->n_out : d->widest;
}

static void add_weight(struct divided_weights *d, int il, const struct pf_weight *w, int unit, int n_cards,
                       const int *first)
{
    add(d, &(struct divided_weight){ .w = w, .il = il, .unit = unit, .n_out = w->n_out, .row_bytes = w->row_bytes },
        n_cards, first);
}

/* Where adapters change experts, every card has all of them. Without gates the ups are in both places. */
static void add_experts(struct divided_weights *d, int il, int n_cards, const int *first)
{
    const struct pf_moe *moe = &d->m->layers[il].moe;
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    bool are_plain = !moe->gate.lora && !moe->up.lora && !moe->down.lora;
    for (int i = moe->gate.data == moe->up.data; are_plain && i < 3; i++)
        add(d, &(struct divided_weight){ .of_experts = w[i], .il = il, .unit = i < 2 ? GATES_TOGETHER : ROWS_TOGETHER,
                                         .n_out = w[i]->n_out, .row_bytes = w[i]->row_bytes }, n_cards, first);
}

static pf_status find_divided(const struct pf_model *m, int n_cards, const int *first, struct divided_weights *d)
{
    *d = (struct divided_weights){ .m = m, .by_heads = can_divide_heads(m) };
    d->v = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer * (PF_LAYER_WEIGHTS + 3) + 1, sizeof *d->v);
    if (!d->v)
        PF_FAIL(PF_ENOMEM, "no memory for the matrices of %d layers", m->n_layer);
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_layer *l = &m->layers[il];
        for (int i = 0; i < l->n_weights; i++)
            add_weight(d, il, l->weights[i], unit_of(l, l->weights[i], d->by_heads), n_cards, first);
        if (l->is_moe)
            add_experts(d, il, n_cards, first);
    }
    add_weight(d, -1, &m->output, m->output.lora ? 0 : ROWS_TOGETHER, n_cards, first);
    return PF_OK;
}

/* Of how many experts a tensor that begins at `from` has v's matrix: 1 if it is a matrix by itself, 0 if it has not. */
static int count_in(const struct divided_weights *d, const struct divided_weight *v, const char *from, uint64_t bytes)
{
    int n = 0;
    for (int e = 0; e < (v->w ? 1 : d->m->n_expert); e++) {
        const char *at = v->w ? v->w->data : (const char *)v->of_experts->data[e];
        n += at >= from && at < from + bytes;
    }
    return n;
}

/* Bytes of a tensor that belong to divided matrices; those of them that card k has. */
static void divided_bytes(const struct divided_weights *d, const struct pf_tensor *t, const struct pf_cut *cut, int k,
                          uint64_t *all, uint64_t *mine)
{
    const char *from = (const char *)t->data;
    int il = pf_tensor_layer(d->m, t);
    *all = *mine = 0;
    for (int i = 0; i < d->n; i++) {
        const struct divided_weight *v = &d->v[i];
        if (v->il != il)
            continue;
        uint64_t n = (uint64_t)count_in(d, v, from, t->n_bytes);
        int bounds[PF_MAX_GPUS + 1], n_units = v->n_out / v->unit;
        pf_team_bounds(cut->first_share, cut->n_more + 1, n_units, bounds);
        int end = bounds[k + 1] == n_units ? v->n_out : bounds[k + 1] * v->unit;
        *all += n * v->row_bytes * (uint64_t)v->n_out;
        *mine += n * v->row_bytes * (uint64_t)(end - bounds[k] * v->unit);
    }
}

/* Whether card k has all of a tensor. The first embeds; a tensor that is the output matrix, too, is so twice. Of one
 * that is divided in part, every card has all. */
static bool has_whole(const struct pf_model *m, const struct pf_tensor *t, uint64_t divided, int k)
{
    if (!pf_model_places(m, t))
        return false;
    if (t->data == m->embed.data && (divided == t->n_bytes || t->data != m->output.data))
        return k == 0;
    return divided < t->n_bytes;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static uint64_t kv_bytes_on(const struct pf_model *m, const struct divided_weights *d, const struct pf_cut *cut, int k,
                            const struct pf_session_opts *so)
{
    uint64_t bytes = 0;
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_kv_layer kv = pf_kv_layer_of(m, il, so);
        int bounds[PF_MAX_GPUS + 1], n = kv.view.n_kv_head;
        uint64_t all = kv.k_bytes + kv.v_bytes;
        bool divided = all > 0 && d->by_heads && pf_team_bounds(cut->first_share, cut->n_more + 1, n, bounds);
        bytes += divided ? all / (uint64_t)n * (uint64_t)(bounds[k + 1] - bounds[k]) : all;
    }
    return bytes;
}

/* Bytes of card k's memory that model and session take. */
static pf_status bytes_on(const struct pf_model *m, const struct pf_cards *cards, const struct divided_weights *d,
                          const struct pf_cut *cut, int k, const struct pf_session_opts *so, uint64_t *bytes)
{
    struct pf_backend_sizes sizes = pf_backend_sizes_of(m, so);
    const struct pf_team_shape shape = { .n = cards->n, .widest = d->widest, .ranks = d->ranks };
    uint64_t kv, work, all, mine;
    PF_TRY(pf_session_part_bytes(m, so, cards->at[0], 0, 0, &kv, &work));
    *bytes = PF_CUT_SPARE_BYTES + pf_model_extra_bytes(m) + work + pf_team_bytes(&sizes, &shape) +
             kv_bytes_on(m, d, cut, k, so);
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        divided_bytes(d, t, cut, k, &all, &mine);
        *bytes += has_whole(m, t, all, k) ? t->n_bytes : all == t->n_bytes ? mine : 0;
    }
    return PF_OK;
}

/* Bytes of all matrices that are divided, and of keys and values. */
static uint64_t divisible_bytes(const struct pf_model *m, const struct divided_weights *d,
                                const struct pf_session_opts *so)
{
    uint64_t bytes = 0;
    for (int i = 0; i < d->n; i++)
        bytes += d->v[i].row_bytes * (uint64_t)d->v[i].n_out * (uint64_t)(d->v[i].w ? 1 : m->n_expert);
    for (int il = 0; d->by_heads && il < m->n_layer; il++) {
        struct pf_kv_layer kv = pf_kv_layer_of(m, il, so);
        bytes += kv.k_bytes + kv.v_bytes;
    }
    return bytes;
}

/* The cut with shares as they are, if all cards have room for theirs; leaves in `most` the shares that each has room
 * for. */
static pf_status try_shares(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                            pf_ranks *ranks, struct pf_cut *cut, uint64_t *most)
{
    struct divided_weights d;
    pf_status st = find_divided(m, cards->n, cut->first_share, &d);
    d.ranks = ranks;
    uint64_t divisible = st == PF_OK ? divisible_bytes(m, &d, so) / PF_TEAM_SHARES + 1 : 1;
    cut->by_rows = d.n > 0;
    for (int k = 0; st == PF_OK && k < cards->n; k++) {
        uint64_t bytes;
        int end = k < cut->n_more ? cut->first_share[k + 1] : PF_TEAM_SHARES;
        uint64_t shared = divisible * (uint64_t)(end - cut->first_share[k]);
        st = bytes_on(m, cards, &d, cut, k, so, &bytes);
        if (st < 0)
            break;
        uint64_t fixed = bytes > shared ? bytes - shared : 0;
        most[k] = cards->room[k] > fixed ? (cards->room[k] - fixed) / divisible : 0;
        cut->by_rows &= bytes <= cards->room[k];
    }
    pf_free(d.v);
    return st;
}

static pf_status cut_evenly(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                            pf_ranks *ranks, struct pf_cut *out)
{
    uint64_t most[PF_MAX_GPUS];
    struct pf_cut cut = pf_cut_all(m);
    cut.n_more = cards->n - 1;
    for (int k = 0; k < cards->n; k++)
        cut.first_share[k] = PF_TEAM_SHARES * k / cards->n;
    PF_TRY(try_shares(m, cards, so, ranks, &cut, most));
    if (!cut.by_rows && pf_among_deal(PF_TEAM_SHARES, most, cards->n, cut.first_share))
        PF_TRY(try_shares(m, cards, so, ranks, &cut, most));
    if (cut.by_rows)
        *out = cut;
    return PF_OK;
}

pf_status pf_rows_cut(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                      struct pf_cut *out)
{
    *out = (struct pf_cut){ .n_layers = 0 };
    if (pf_rows_lack(m) || !pf_backend_cuda_meet(cards->at[0]))
        return PF_OK;
    return cut_evenly(m, cards, so, NULL, out);
}

pf_status pf_rows_cut_ranks(const struct pf_model *m, const uint64_t *room, int n, pf_ranks *ranks, struct pf_cut *out)
{
    struct pf_cards cards = { .n = n, .at = { m->cpu } };        /* the CPU stands for a card of another machine */
    struct pf_session_opts so;
    const char *lacks = pf_rows_lack(m);
    *out = (struct pf_cut){ .n_layers = 0 };
    if (lacks)
        PF_FAIL(PF_EUNSUPPORTED, "%s models cannot be divided by rows between processes: %s", m->arch->name, lacks);
    PF_TRY(pf_session_opts_resolve(m, NULL, &so));
    so.n_ctx = pf_least_context(m);
    memcpy(cards.room, room, (size_t)n * sizeof *room);
    PF_TRY(cut_evenly(m, &cards, &so, ranks, out));
    if (!out->by_rows)
        PF_FAIL(PF_ENOMEM, "%d processes have too little memory of GPUs for the model's rows", n);
    return PF_OK;
}

pf_status pf_rows_token_bytes(const struct pf_model *m, const struct pf_cut *cut, uint64_t *bytes)
{
    struct divided_weights d;
    *bytes = 0;
    PF_TRY(find_divided(m, cut->n_more + 1, cut->first_share, &d));
    for (int i = 0; i < d.n; i++)
        *bytes += d.v[i].row_bytes * (uint64_t)d.v[i].n_out * (uint64_t)(d.v[i].w ? 1 : m->n_used);
    pf_free(d.v);
    return PF_OK;
}

pf_status pf_rows_context_bytes(const struct pf_model *m, const struct pf_cut *cut, int rank, uint64_t left,
                                uint64_t *bytes)
{
    struct divided_weights d;
    struct pf_session_opts so;
    uint64_t all = 0, mine;
    *bytes = 0;
    PF_TRY(pf_session_opts_resolve(m, NULL, &so));
    so.n_ctx = pf_least_context(m);
    PF_TRY(find_divided(m, cut->n_more + 1, cut->first_share, &d));
    mine = kv_bytes_on(m, &d, cut, rank, &so);
    for (int il = 0; il < m->n_layer; il++)
        all += pf_kv_bytes_of(m, il, &so);
    pf_free(d.v);
    *bytes = mine > 0 ? (uint64_t)((double)all / (double)mine * (double)left) : left;
    return PF_OK;
}

/* ---- The placement ----------------------------------------------------------------------------------------------- */

/* rank: of the first of the cards, as the cut counts them. */
static pf_status place_rows(const struct pf_model *m, pf_backend *team, const struct pf_cards *cards,
                            const struct divided_weights *d, const struct pf_cut *cut, int rank)
{
    uint64_t all, mine;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        divided_bytes(d, t, cut, 0, &all, &mine);
        for (int k = 0; k < cards->n; k++)
            if (has_whole(m, t, all, rank + k))
                PF_TRY(cards->at[k]->ops->place(cards->at[k], t->data, t->n_bytes));
    }
    for (int i = 0; i < d->n; i++)
        PF_TRY(d->v[i].w ? pf_team_divide(team, d->v[i].w, d->v[i].unit)
                         : pf_team_divide_experts(team, d->v[i].of_experts, m->n_expert, d->v[i].unit));
    return pf_model_place_extra(m, team);
}

static void rows_close(struct pf_placement *p)
{
    pf_free(p);
}

static const struct pf_place_ops ops = { .ended = pf_on_device_ended, .close = rows_close };

static pf_status open_team(struct pf_placement *p, const struct pf_cards *cards, const struct pf_cut *cut,
                           pf_ranks *ranks, int rank)
{
    struct divided_weights d;
    struct pf_team_shape shape = { .n = cut->n_more + 1, .ranks = ranks, .rank = rank };
    memcpy(shape.first, cut->first_share, sizeof shape.first);
    pf_status st = find_divided(p->m, shape.n, shape.first, &d);
    shape.by_heads = d.by_heads;
    shape.widest = d.widest;
    if (st == PF_OK)
        st = pf_team_open(&p->device, cards->at, &shape);
    if (st == PF_OK)
        st = place_rows(p->m, p->device, cards, &d, cut, rank);
    pf_free(d.v);
    PF_TRY(st);
    return pf_plain_open(&p->under, p->m);
}

pf_status pf_rows_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                       const struct pf_cut *cut, pf_ranks *ranks, int rank)
{
    struct pf_placement *p = pf_alloc(PF_MEM_MODEL, sizeof *p);
    *out = NULL;
    if (!p)
        PF_FAIL(PF_ENOMEM, "no memory for dividing rows between GPUs");
    *p = (struct pf_placement){ .ops = &ops, .m = m, .cut = pf_cut_all(m), .by_rows = true, .has_ranks = ranks };
    pf_status st = open_team(p, cards, cut, ranks, rank);
    if (st < 0) {
        pf_team_dissolve(p->device);
        rows_close(p);
        return st;
    }
    p->cards[0] = p->device;
    *out = p;
    return PF_OK;
}

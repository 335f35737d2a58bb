/* See among.h. */
#include "moe/place/among.h"

#include "backend/among.h"
#include "base/pf_mem.h"
#include "moe/place/cut.h"
#include "moe/place/on_device.h"

struct among {
    struct pf_placement base;
    const struct pf_among_ops *ops;
    const int32_t      *lent;            /* the picks that the other cards are at work on; NULL: none */
};

static struct among *among_of(struct pf_placement *p)
{
    return (struct among *)p;
}

/* ---- Dealing ----------------------------------------------------------------------------------------------------- */

bool pf_among_deal(int n_experts, const uint64_t *room, int n, int *first)
{
    int left = n_experts;
    for (int i = 0; i < n; i++) {
        uint64_t others = 0;
        for (int k = i + 1; k < n; k++)
            others += room[k] < (uint64_t)left ? room[k] : (uint64_t)left;
        int even = (left + n - i - 1) / (n - i), must = others < (uint64_t)left ? left - (int)others : 0;
        int mine = even > must ? even : must;
        mine = (uint64_t)mine < room[i] ? mine : (int)room[i];
        if (mine == 0 || mine < must)
            return false;
        first[i] = n_experts - left;
        left -= mine;
    }
    return left == 0;
}

static uint64_t factor_bytes(const struct pf_expert_weight *w, int n_expert)
{
    uint64_t rows = (w->bias ? (uint64_t)w->n_out : 0) + (w->scale ? 1 : 0);
    return rows * (uint64_t)n_expert * sizeof(float);
}

/* Bytes of one expert of every layer, of factors and biases of all experts, and of all other tensors. */
struct sizes {
    uint64_t expert, factors, dense;
};

static struct sizes sizes_of(const struct pf_model *m)
{
    struct sizes s = { .dense = pf_model_extra_bytes(m) };
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_moe *moe = &m->layers[il].moe;
        uint64_t bytes[3];
        if (!m->layers[il].is_moe)
            continue;
        pf_expert_bytes(m, il, bytes);
        s.expert += bytes[0] + bytes[1] + bytes[2];
        s.factors += factor_bytes(&moe->gate, m->n_expert) + factor_bytes(&moe->up, m->n_expert) +
                     factor_bytes(&moe->down, m->n_expert);
    }
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (pf_model_places(m, t))
            s.dense += t->n_bytes;
    }
    uint64_t experts = s.expert * (uint64_t)m->n_expert;
    s.dense -= experts < s.dense ? experts : s.dense;
    return s;
}

pf_status pf_among_cut(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                       struct pf_cut *out)
{
    const pf_backend *b = cards->at[0];
    const struct pf_among_ops *among = pf_backend_cuda_among(b);
    struct pf_backend_sizes sizes = pf_backend_sizes_of(m, so);
    struct sizes s = sizes_of(m);
    uint64_t kv, work, room[PF_MAX_GPUS];
    struct pf_cut cut = pf_cut_all(m);
    *out = (struct pf_cut){ .n_layers = 0 };
    if (!among || s.expert == 0)
        return PF_OK;
    PF_TRY(pf_session_part_bytes(m, so, b, 0, m->n_layer, &kv, &work));
    for (int k = 0; k < cards->n; k++) {
        uint64_t taken = PF_CUT_SPARE_BYTES + among->bytes(b, &sizes, k == 0);
        taken += k == 0 ? s.dense + kv + work : s.factors + pf_model_extra_bytes(m);
        room[k] = cards->room[k] > taken ? (cards->room[k] - taken) / s.expert : 0;
    }
    cut.by_experts = pf_among_deal(m->n_expert, room, cards->n, cut.first_expert);
    cut.n_more = cards->n - 1;
    if (cut.by_experts)
        *out = cut;
    return PF_OK;
}

pf_status pf_among_cut_apart(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                             uint64_t transit_bytes, struct pf_cut *out)
{
    const pf_backend *b = cards->at[0];
    const struct pf_among_ops *among = pf_backend_cuda_among(b);
    struct pf_backend_sizes sizes = pf_backend_sizes_of(m, so);
    struct sizes s = sizes_of(m);
    struct pf_cut cut = pf_cut_all(m);
    uint64_t kv, work;
    *out = (struct pf_cut){ .n_layers = 0 };
    if (!among || s.expert == 0 || !b->ops->share)
        return PF_OK;
    PF_TRY(pf_session_part_bytes(m, so, b, 0, m->n_layer, &kv, &work));
    cut.by_experts = cut.apart = true;
    cut.n_more = cards->n - 1;
    for (int k = 0; k < cards->n; k++) {
        uint64_t taken = PF_NEAR_SPARE_BYTES + transit_bytes + among->bytes(b, &sizes, k == 0);
        taken += k == 0 ? s.dense + kv + work : s.factors + pf_model_extra_bytes(m);
        cut.by_experts &= taken <= cards->room[k];
    }
    if (cut.by_experts)
        *out = cut;
    return PF_OK;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static pf_status among_between(struct pf_placement *p, int rows)
{
    (void)rows;
    among_of(p)->lent = NULL;        /* a step that failed may have left some */
    return PF_OK;
}

static pf_status among_want(struct pf_placement *p, int il, const struct pf_experts_op *e)
{
    (void)il;
    PF_TRY(among_of(p)->ops->lend(p->device, e));
    among_of(p)->lent = e->picks;
    return PF_OK;
}

static pf_status among_experts(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e)
{
    if (b != p->device)
        return b->ops->experts(b, e);
    if (among_of(p)->lent != e->picks)
        PF_TRY(among_want(p, il, e));
    among_of(p)->lent = NULL;
    return among_of(p)->ops->experts(b, e);
}

static pf_status among_reserve(struct pf_placement *p, const struct pf_backend_sizes *sizes)
{
    return among_of(p)->ops->reserve(p->device, sizes);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

struct run {
    const uint8_t *begin, *end;
};

/* Places the card's experts of a layer, which lie one after the other; gates and ups may lie between each other. */
static pf_status place_experts(const struct pf_moe *moe, pf_backend *device, int first, int end)
{
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    struct run runs[3];
    int n = 0;
    for (int i = 0; i < 3; i++) {
        if (!w[i]->data)
            continue;
        struct run r = { w[i]->data[first], w[i]->data[end - 1] + pf_expert_weight_bytes(w[i]) };
        if (n > 0 && r.begin < runs[n - 1].end && runs[n - 1].begin < r.end) {
            runs[n - 1].begin = r.begin < runs[n - 1].begin ? r.begin : runs[n - 1].begin;
            runs[n - 1].end = r.end > runs[n - 1].end ? r.end : runs[n - 1].end;
        } else {
            runs[n++] = r;
        }
    }
    for (int i = 0; i < n; i++)
        PF_TRY(device->ops->place(device, runs[i].begin, (size_t)(runs[i].end - runs[i].begin)));
    return PF_OK;
}

/* Whether the tensor is a stack of routed experts. */
static bool is_stack(const struct pf_model *m, const struct pf_tensor *t)
{
    int il = pf_tensor_layer(m, t);
    if (il < 0 || il >= m->n_layer || !m->layers[il].is_moe)
        return false;
    const struct pf_moe *moe = &m->layers[il].moe;
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    bool is = false;
    for (int i = 0; i < 3; i++)
        is |= w[i]->data && w[i]->data[0] >= (const uint8_t *)t->data &&
              w[i]->data[0] < (const uint8_t *)t->data + t->n_bytes;
    return is;
}

static pf_status place_dense(const struct pf_model *m, pf_backend *device)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (pf_model_places(m, t) && !is_stack(m, t))
            PF_TRY(device->ops->place(device, t->data, t->n_bytes));
    }
    return PF_OK;
}

static pf_status place_card(const struct pf_model *m, pf_backend *device, const struct pf_cut *cut, int k)
{
    int end = k < cut->n_more ? cut->first_expert[k + 1] : m->n_expert;
    PF_TRY(k == 0 ? place_dense(m, device) : PF_OK);
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].is_moe)
            PF_TRY(place_experts(&m->layers[il].moe, device, cut->first_expert[k], end));
    return pf_model_place_extra(m, device);
}

/* Each layer wants experts of every card. */
static bool among_lose(struct pf_placement *p, unsigned lost)
{
    (void)p;
    (void)lost;
    return false;
}

static void among_close(struct pf_placement *p)
{
    pf_free(p);
}

static const struct pf_place_ops ops = {
    .between = among_between, .ended = pf_on_device_ended, .want = among_want, .experts = among_experts,
    .reserve = among_reserve, .lose = among_lose, .close = among_close,
};

static pf_status open_cards(struct pf_placement *p, const struct pf_cut *cut)
{
    for (int k = 0; k <= cut->n_more; k++)
        PF_TRY(place_card(p->m, p->cards[k], cut, k));
    PF_TRY(among_of(p)->ops->open(p->device, p->cards + 1, cut->n_more));
    return pf_plain_open(&p->under, p->m);
}

pf_status pf_among_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                        const struct pf_cut *cut)
{
    struct among *a = pf_alloc(PF_MEM_MODEL, sizeof *a);
    *out = NULL;
    if (!a)
        PF_FAIL(PF_ENOMEM, "no memory for dividing experts between GPUs");
    a->base = (struct pf_placement){ .ops = &ops, .m = m, .device = cards->at[0], .cut = pf_cut_all(m),
                                     .n_among = cut->n_more };
    a->ops = pf_backend_cuda_among(cards->at[0]);
    for (int k = 0; k <= cut->n_more; k++)
        a->base.cards[k] = cards->at[k];
    pf_status st = open_cards(&a->base, cut);
    if (st < 0) {
        among_close(&a->base);
        return st;
    }
    *out = &a->base;
    return PF_OK;
}

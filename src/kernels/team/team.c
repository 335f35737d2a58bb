/* A team of cards opens and closes here; its memory; its steps. See team.h. */
#include "kernels/team/team.h"

#include <string.h>

#include "base/pf_mem.h"

enum { CROSSING_FLOATS = 1 << 22 };       /* that cross between processes at once: the time of an exchange is then that
                                             of its bytes */

bool pf_team_bounds(const int *first, int n_cards, int n_units, int *bounds)
{
    bool all = true;
    for (int k = 0; k < n_cards; k++)
        bounds[k] = (int)((int64_t)n_units * first[k] / PF_TEAM_SHARES);
    bounds[n_cards] = n_units;
    for (int k = 0; k < n_cards; k++)
        all &= bounds[k] < bounds[k + 1];
    return all;
}

/* ---- Sorted lists ------------------------------------------------------------------------------------------------ */

size_t pf_team_behind(const void *list, size_t n, size_t size, const void *p)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        const void *at;
        memcpy(&at, (const char *)list + middle * size, sizeof at);
        if ((const char *)at <= (const char *)p)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

pf_status pf_team_grow(void **list, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return PF_OK;
    size_t more = *cap ? 2 * *cap : 64;
    void *p = pf_realloc(PF_MEM_KERNELS, *list, more * size);
    if (!p)
        PF_FAIL(PF_ENOMEM, "no memory for what several GPUs divide");
    *list = p;
    *cap = more;
    return PF_OK;
}

const struct team_buffer *pf_team_buffer(const struct team *t, const void *p)
{
    size_t i = pf_team_behind(t->buffers, t->n_buffers, sizeof *t->buffers, p);
    const struct team_buffer *b = i > 0 ? &t->buffers[i - 1] : NULL;
    return b && (const char *)p < b->at + b->bytes ? b : NULL;
}

const struct team_weight *pf_team_weight(const struct team *t, const void *data)
{
    size_t i = pf_team_behind(t->weights, t->n_weights, sizeof *t->weights, data);
    return i > 0 && t->weights[i - 1].data == data ? &t->weights[i - 1] : NULL;
}

/* Of a head's keys or values the card must be the one that has the head. */
static char *in_heads(const struct team_buffer *b, int k, size_t at)
{
    size_t chunk = at / b->chunk_bytes, place = chunk / (size_t)b->n_head, head = chunk % (size_t)b->n_head;
    size_t here = place * (size_t)pf_team_columns(b->first, k) + head - (size_t)b->first[k];
    return b->on[k] + here * b->chunk_bytes + at % b->chunk_bytes;
}

void *pf_team_here(const struct team *t, int k, const void *p)
{
    const struct team_buffer *b = p ? pf_team_buffer(t, p) : NULL;
    if (!b)
        return (void *)(uintptr_t)p;
    size_t at = (size_t)((const char *)p - b->at);
    return b->chunk_bytes ? in_heads(b, k, at) : b->on[k] + at;
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

static size_t bytes_on(const struct team_buffer *b, int k)
{
    return b->chunk_bytes ? b->bytes / (size_t)b->n_head * (size_t)pf_team_columns(b->first, k) : b->bytes;
}

static void free_buffer(struct team *t, struct team_buffer *b)
{
    for (int k = t->from; k < t->end; k++)
        t->card[k]->ops->buf_free(t->card[k], b->on[k], bytes_on(b, k), false);
    if (b->chunk_bytes)
        pf_pages_free(b->at, b->bytes);
}

/* Divided heads have an address that no card's memory is at. */
static pf_status alloc_on_cards(struct team *t, struct team_buffer *b)
{
    if (b->chunk_bytes && !(b->at = pf_pages_alloc(b->bytes)))
        PF_FAIL(PF_ENOMEM, "no addresses for %zu bytes of keys and values", b->bytes);
    for (int k = t->from; k < t->end; k++) {
        void *p;
        PF_TRY(t->card[k]->ops->buf_alloc(t->card[k], bytes_on(b, k), false, &p));
        b->on[k] = p;
    }
    b->at = b->chunk_bytes ? b->at : b->on[t->from];
    return PF_OK;
}

static pf_status add_buffer(struct team *t, struct team_buffer *b, void **out)
{
    void *list = t->buffers;
    PF_TRY(pf_team_grow(&list, t->n_buffers, &t->cap_buffers, sizeof *t->buffers));
    t->buffers = list;
    pf_status st = alloc_on_cards(t, b);
    if (st < 0) {
        free_buffer(t, b);
        return st;
    }
    size_t i = pf_team_behind(t->buffers, t->n_buffers, sizeof *t->buffers, b->at);
    memmove(t->buffers + i + 1, t->buffers + i, (t->n_buffers++ - i) * sizeof *t->buffers);
    t->buffers[i] = *b;
    *out = b->at;
    return PF_OK;
}

static pf_status team_buf_alloc(pf_backend *backend, size_t bytes, bool shared, void **out)
{
    struct team *t = pf_team_of(backend);
    pf_backend *first = t->card[t->from];
    *out = NULL;
    return shared ? first->ops->buf_alloc(first, bytes, true, out)
                  : add_buffer(t, &(struct team_buffer){ .bytes = bytes }, out);
}

static pf_status team_heads_alloc(pf_backend *backend, size_t bytes, size_t chunk_bytes, int n_head, void **out)
{
    struct team *t = pf_team_of(backend);
    struct team_buffer b = { .bytes = bytes, .chunk_bytes = chunk_bytes, .n_head = n_head };
    *out = NULL;
    if (!t->shape.by_heads || !pf_team_bounds(t->shape.first, t->n, n_head, b.first))
        return team_buf_alloc(backend, bytes, false, out);
    return add_buffer(t, &b, out);
}

static void team_buf_free(pf_backend *backend, void *p, size_t bytes, bool shared)
{
    struct team *t = pf_team_of(backend);
    if (!p)
        return;
    if (shared) {
        t->card[t->from]->ops->buf_free(t->card[t->from], p, bytes, true);
        return;
    }
    struct team_buffer *b = t->buffers + (pf_team_buffer(t, p) - t->buffers);
    t->n_divided = 0;
    t->meet->forget(t->card[t->from]);
    free_buffer(t, b);
    memmove(b, b + 1, (size_t)(t->buffers + --t->n_buffers - b) * sizeof *b);
}

/* Rows of heads, each on the card that has the head; or rows that all cards have. */
static void team_buf_copy(pf_backend *backend, const struct pf_buf_copy *c)
{
    struct team *t = pf_team_of(backend);
    const struct team_buffer *to = pf_team_buffer(t, c->to), *from = pf_team_buffer(t, c->from);
    const struct team_buffer *heads = to && to->chunk_bytes ? to : from && from->chunk_bytes ? from : NULL;
    for (int k = t->from; k < t->end; k++) {
        int first = heads ? heads->first[k] : 0, rows = heads ? pf_team_columns(heads->first, k) : c->rows;
        struct pf_buf_copy mine = *c;
        mine.to = pf_team_here(t, k, (char *)c->to + (size_t)first * c->to_stride);
        mine.from = pf_team_here(t, k, (const char *)c->from + (size_t)first * c->from_stride);
        mine.rows = rows;
        t->card[k]->ops->buf_copy(t->card[k], &mine);
    }
}

/* The one card that has the head at p, or -1: all have what is there. */
static int owner_of(const struct team *t, const void *p)
{
    const struct team_buffer *b = pf_team_buffer(t, p);
    if (!b || !b->chunk_bytes)
        return -1;
    int head = (int)((size_t)((const char *)p - b->at) / b->chunk_bytes % (size_t)b->n_head), k = 0;
    while (head >= b->first[k + 1])
        k++;
    return k;
}

static pf_status team_upload(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct team *t = pf_team_of(backend);
    int owner = owner_of(t, to);
    PF_TRY(pf_team_wrote(t, to, (int64_t)(bytes / sizeof(float))));
    for (int k = t->from; k < t->end; k++)
        if (owner < 0 || k == owner)
            PF_TRY(t->card[k]->ops->upload(t->card[k], pf_team_here(t, k, to), from, bytes));
    return PF_OK;
}

/* Exchanges with other processes are waited for first: a copy to the host may wait for them itself, and does not notice
 * a process that is gone. */
static pf_status team_download(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct team *t = pf_team_of(backend);
    int owner = owner_of(t, from), k = owner < 0 ? t->from : owner;
    if (k < t->from || k >= t->end)
        PF_FAIL(PF_EUNSUPPORTED, "keys and values of another process's heads are not at hand");
    PF_TRY(pf_team_whole(t, from, (int64_t)(bytes / sizeof(float))));
    PF_TRY(t->shape.ranks ? pf_ranks_settle(t->shape.ranks) : PF_OK);
    return t->card[k]->ops->download(t->card[k], to, pf_team_here(t, k, from), bytes);
}

/* ---- What is shown ----------------------------------------------------------------------------------------------- */

/* Floats of a half: any rows that are gathered at once, and one of the widest; between processes a fixed number, and a
 * row of which one card has nearly all. */
static size_t shown_floats(const struct pf_backend_sizes *s, const struct pf_team_shape *shape)
{
    size_t rows = (size_t)s->max_rows * (size_t)s->max_n_in, row = (size_t)shape->widest;
    size_t least = shape->ranks ? CROSSING_FLOATS / 2 : rows, most = shape->ranks ? row * (size_t)shape->n : row;
    return least > most ? least : most;
}

/* Picks whose activations trays have room for. */
static size_t whole_bytes(size_t pick_bytes, int n_cards)
{
    size_t most = (size_t)n_cards * PF_TRAY_BLOCKS * PF_TRAY_FLOATS * sizeof(float);
    return pick_bytes < most ? pick_bytes : most;
}

/* Bytes of what few rows are exchanged by: between the cards of one process. */
static size_t tray_bytes(size_t pick_bytes, const struct pf_team_shape *shape)
{
    return shape->ranks ? 0 : whole_bytes(pick_bytes, shape->n) + pf_tray_bytes(shape->n);
}

uint64_t pf_team_bytes(const struct pf_backend_sizes *sizes, const struct pf_team_shape *shape)
{
    size_t picks = pf_team_pick_bytes(sizes);
    return 2 * sizeof(float) * (uint64_t)shown_floats(sizes, shape) + picks + tray_bytes(picks, shape);
}

static void free_shown(struct team *t, float **shown, size_t floats)
{
    for (int k = t->from; k < t->end; k++) {
        pf_backend *b = t->card[t->all_reach ? k : t->from];
        b->ops->buf_free(b, shown[k], 2 * floats * sizeof(float), !t->all_reach);
        shown[k] = NULL;
    }
}

static pf_status alloc_shown(struct team *t, size_t floats, float **shown)
{
    for (int k = t->from; k < t->end; k++) {
        pf_backend *b = t->card[t->all_reach ? k : t->from];
        void *p;
        PF_TRY(b->ops->buf_alloc(b, 2 * floats * sizeof(float), !t->all_reach, &p));
        shown[k] = p;
    }
    return PF_OK;
}

static uint64_t team_scratch_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    const struct team *t = (const struct team *)backend;
    const pf_backend *first = t->card[t->from];
    return first->ops->scratch_bytes(first, sizes) + pf_team_bytes(sizes, &t->shape);
}

/* As large a buffer of the team as wanted, whose contents may go. */
static pf_status widen(struct team *t, void **p, size_t *bytes, size_t wanted)
{
    void *more;
    if (wanted <= *bytes)
        return PF_OK;
    PF_TRY(team_buf_alloc(&t->base, wanted, false, &more));
    team_buf_free(&t->base, *p, *bytes, false);
    *p = more;
    *bytes = wanted;
    return PF_OK;
}

static void free_trays(struct team *t)
{
    for (int k = 0; k < t->n && t->tray[k]; k++) {
        t->card[k]->ops->buf_free(t->card[k], t->tray[k], pf_tray_bytes(t->n), false);
        t->tray[k] = NULL;
    }
}

static pf_status reserve_trays(struct team *t, size_t pick_bytes)
{
    pf_status st = widen(t, &t->pick_whole, &t->pick_whole_bytes, whole_bytes(pick_bytes, t->n));
    if (st < 0 || t->tray[0])
        return st;
    for (int k = 0; k < t->n && st == PF_OK; k++)
        st = t->card[k]->ops->buf_alloc(t->card[k], pf_tray_bytes(t->n), false, &t->tray[k]);
    if (st < 0)
        free_trays(t);
    t->apart = t->tray[0];                       /* to be cleared */
    return st;
}

static pf_status team_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct team *t = pf_team_of(backend);
    size_t floats = shown_floats(sizes, &t->shape), picks = pf_team_pick_bytes(sizes);
    float *shown[PF_MAX_GPUS] = { NULL };
    t->meet->forget(t->card[t->from]);
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->reserve(t->card[k], sizes));
    PF_TRY(widen(t, &t->pick_act, &t->pick_act_bytes, picks));
    if (t->all_reach && !t->shape.ranks)
        PF_TRY(reserve_trays(t, picks));
    if (floats <= t->shown_floats)
        return PF_OK;
    pf_status st = alloc_shown(t, floats, shown);
    if (st < 0) {
        free_shown(t, shown, floats);
        return st;
    }
    free_shown(t, t->shown, t->shown_floats);
    memcpy(t->shown, shown, sizeof shown);
    t->shown_floats = floats;
    return PF_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* The first card comes after all others, or they after it. */
static pf_status wait_on(struct team *t, bool first)
{
    pf_backend *one = t->card[t->from];
    for (int k = t->from + 1; k < t->end; k++)
        PF_TRY(first ? t->meet->after(one, t->card[k]) : t->meet->after(t->card[k], one));
    return PF_OK;
}

/* The step is the first card's: it may record it with what the others are asked for, as these come after it. */
static pf_status team_begin(pf_backend *backend, const struct pf_repeat *r, bool *replayed)
{
    struct team *t = pf_team_of(backend);
    pf_backend *first = t->card[t->from];
    struct pf_repeat once = *r;
    once.once = true;
    t->n_divided = 0;
    t->acted.y = NULL;
    PF_TRY(pf_team_clear(t));
    t->in_step = true;
    for (int k = t->from + 1; k < t->end; k++)
        PF_TRY(t->card[k]->ops->begin(t->card[k], &once, replayed));
    PF_TRY(wait_on(t, true));
    PF_TRY(first->ops->begin(first, r, replayed));
    return *replayed ? PF_OK : wait_on(t, false);
}

static enum pf_repeat_how team_repeats(const pf_backend *backend, const struct pf_repeat *r)
{
    const struct team *t = (const struct team *)backend;
    const pf_backend *first = t->card[t->from];
    return first->ops->repeats(first, r);
}

static pf_status team_end(pf_backend *backend, bool *again)
{
    struct team *t = pf_team_of(backend);
    pf_backend *first = t->card[t->from];
    PF_TRY(pf_team_settle(t));
    for (int k = t->from + 1; k < t->end; k++)
        PF_TRY(t->card[k]->ops->end(t->card[k], again));
    PF_TRY(wait_on(t, true));
    PF_TRY(first->ops->end(first, again));
    return wait_on(t, false);
}

/* Until the first card has done its part, behind which it waits for the others. If one of them fails meanwhile, no card
 * waits for it any longer. */
static void watch(struct team *t)
{
    enum { LOOK_NS = 1000000 };
    while (t->tray[0] && !t->apart && !t->meet->has_ended(t->card[0], LOOK_NS))
        for (int k = 0; k < t->n && !t->apart; k++)
            if (t->meet->has_failed(t->card[k]))
                pf_team_give_up(t);
}

/* The first card first, as it may have been recording. A rank that is lost is noticed while its exchange is waited for;
 * after that no card waits for it any more. Returns the first failure. */
static pf_status team_finish(pf_backend *backend)
{
    struct team *t = pf_team_of(backend);
    char why[1024] = "";
    pf_status st = t->shape.ranks ? pf_ranks_settle(t->shape.ranks) : PF_OK;
    if (st < 0)
        strncpy(why, pf_last_error(), sizeof why - 1);
    t->in_step = false;
    watch(t);
    t->base.weight_bytes_read = t->base.n_launches = 0;
    for (int k = t->from; k < t->end; k++) {
        pf_status finished = t->card[k]->ops->finish(t->card[k]);
        if (st == PF_OK && finished < 0) {
            st = finished;
            strncpy(why, pf_last_error(), sizeof why - 1);
        }
        t->base.weight_bytes_read += t->card[k]->weight_bytes_read;
        t->base.n_launches += t->card[k]->n_launches;
    }
    if (st < 0) {
        t->apart = t->tray[0];
        PF_FAIL(st, "%s", why);
    }
    return PF_OK;
}

/* No step can do without one of the cards. */
static bool team_is_lost(pf_backend *backend)
{
    struct team *t = pf_team_of(backend);
    bool lost = false;
    for (int k = t->from; k < t->end; k++)
        lost |= t->card[k]->ops->is_lost(t->card[k]);
    return lost;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static const char *team_describe(const pf_backend *backend)
{
    const struct team *t = (const struct team *)backend;
    return t->card[t->from]->ops->describe(t->card[t->from]);
}

static uint64_t team_room(const pf_backend *backend)
{
    const struct team *t = (const struct team *)backend;
    uint64_t least = UINT64_MAX;
    for (int k = t->from; k < t->end; k++) {
        uint64_t room = t->card[k]->ops->room(t->card[k]);
        least = room < least ? room : least;
    }
    return least;
}

static pf_status team_place(pf_backend *backend, const void *host, size_t bytes)
{
    struct team *t = pf_team_of(backend);
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->place(t->card[k], host, bytes));
    return PF_OK;
}

pf_status pf_team_divide(pf_backend *team, const struct pf_weight *w, int unit)
{
    struct team *t = pf_team_of(team);
    struct team_weight d = { .data = w->data };
    void *list = t->weights;
    if (pf_team_weight(t, w->data) || !pf_team_bounds(t->shape.first, t->n, w->n_out / unit, d.first))
        return PF_OK;
    for (int k = 0; k < t->n; k++)
        d.first[k] *= unit;
    d.first[t->n] = w->n_out;
    PF_TRY(pf_team_grow(&list, t->n_weights, &t->cap_weights, sizeof *t->weights));
    t->weights = list;
    for (int k = t->from; k < t->end; k++)
        PF_TRY(t->card[k]->ops->place(t->card[k], (const char *)w->data + w->row_bytes * (uint64_t)d.first[k],
                                      w->row_bytes * (uint64_t)pf_team_columns(d.first, k)));
    size_t i = pf_team_behind(t->weights, t->n_weights, sizeof *t->weights, w->data);
    memmove(t->weights + i + 1, t->weights + i, (t->n_weights++ - i) * sizeof *t->weights);
    t->weights[i] = d;
    return PF_OK;
}

void pf_team_dissolve(pf_backend *team)
{
    struct team *t = pf_team_of(team);
    if (!t)
        return;
    free_shown(t, t->shown, t->shown_floats);
    team_buf_free(team, t->pick_act, t->pick_act_bytes, false);
    team_buf_free(team, t->pick_whole, t->pick_whole_bytes, false);
    free_trays(t);
    pf_team_free_experts(t);
    pf_free(t->buffers);
    pf_free(t->weights);
    pf_free(t);
}

static void team_close(pf_backend *backend)
{
    struct team *t = pf_team_of(backend);
    pf_backend *card[PF_MAX_GPUS];
    int from = t->from, end = t->end;
    memcpy(card, t->card, sizeof card);
    pf_team_dissolve(backend);
    for (int k = from; k < end; k++)
        card[k]->ops->close(card[k]);
}

static bool do_reach(const struct team *t)
{
    bool all = true;
    for (int k = t->from; k < t->end; k++)
        for (int i = t->from; i < t->end; i++)
            all &= i == k || t->meet->reaches(t->card[k], t->card[i]);
    return all;
}

pf_status pf_team_open(pf_backend **out, pf_backend *const *cards, const struct pf_team_shape *shape)
{
    struct team *t = pf_alloc(PF_MEM_KERNELS, sizeof *t);
    *out = NULL;
    if (!t)
        PF_FAIL(PF_ENOMEM, "no memory for several GPUs that work together");
    t->ops = pf_team_ops;
    t->ops.name = cards[0]->ops->name;
    t->ops.close = team_close;
    t->ops.describe = team_describe;
    t->ops.room = team_room;
    t->ops.place = team_place;
    t->ops.buf_alloc = team_buf_alloc;
    t->ops.heads_alloc = team_heads_alloc;
    t->ops.buf_free = team_buf_free;
    t->ops.buf_copy = team_buf_copy;
    t->ops.upload = team_upload;
    t->ops.download = team_download;
    t->ops.scratch_bytes = team_scratch_bytes;
    t->ops.reserve = team_reserve;
    t->ops.begin = team_begin;
    t->ops.repeats = team_repeats;
    t->ops.end = team_end;
    t->ops.finish = team_finish;
    t->ops.is_lost = team_is_lost;
    t->base.ops = &t->ops;
    t->meet = pf_backend_cuda_meet(cards[0]);
    t->shape = *shape;
    t->n = shape->n;
    t->from = shape->ranks ? shape->rank : 0;
    t->end = shape->ranks ? shape->rank + 1 : shape->n;
    memcpy(t->card + t->from, cards, (size_t)(t->end - t->from) * sizeof *cards);
    t->all_reach = do_reach(t);
    if (shape->ranks)
        pf_ranks_use(shape->ranks, cards[0]);
    *out = &t->base;
    return PF_OK;
}

/* A call to a model's placement goes to the first one, from the top, whose table has the function. See placement.h. */
#include "moe/place/placement.h"

#include <stdio.h>
#include <string.h>

#define FIRST_WITH(p, fn)           \
    while ((p) && !(p)->ops->fn)    \
        (p) = (p)->under

/* ---- A step ------------------------------------------------------------------------------------------------------ */

pf_status pf_place_between(struct pf_placement *p, int rows)
{
    FIRST_WITH(p, between);
    return p ? p->ops->between(p, rows) : PF_OK;
}

bool pf_place_attends(struct pf_placement *p, const struct pf_far_step *s, struct pf_far_range *out)
{
    FIRST_WITH(p, attends);
    return p && p->ops->attends(p, s, out);
}

void pf_place_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    FIRST_WITH(p, ended);
    if (p)
        p->ops->ended(p, begun_ns, well);
}

pf_status pf_place_enter(struct pf_placement *p, int il)
{
    FIRST_WITH(p, enter);
    return p ? p->ops->enter(p, il) : PF_OK;
}

void pf_place_leave(struct pf_placement *p, int il)
{
    FIRST_WITH(p, leave);
    if (p)
        p->ops->leave(p, il);
}

pf_status pf_place_want(struct pf_placement *p, int il, const struct pf_experts_op *e)
{
    FIRST_WITH(p, want);
    return p ? p->ops->want(p, il, e) : PF_OK;
}

pf_status pf_place_experts(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e)
{
    FIRST_WITH(p, experts);
    return p ? p->ops->experts(p, b, il, e) : b->ops->experts(b, e);
}

pf_status pf_place_copied(struct pf_placement *p)
{
    FIRST_WITH(p, copied);
    return p ? p->ops->copied(p) : PF_OK;
}

enum pf_guess pf_place_guesses(const struct pf_placement *p, int il, int rows)
{
    FIRST_WITH(p, guesses);
    return p ? p->ops->guesses(p, il, rows) : PF_GUESS_NOTHING;
}

void pf_place_guess(struct pf_placement *p, int il, const int32_t *picks, int rows, int depth)
{
    FIRST_WITH(p, guess);
    if (p)
        p->ops->guess(p, il, picks, rows, depth);
}

/* ---- Around it --------------------------------------------------------------------------------------------------- */

struct pf_cut pf_place_cut_for(const struct pf_placement *p, const struct pf_session_opts *o)
{
    struct pf_cut cut = p->cut;
    FIRST_WITH(p, cut_for);
    return p ? p->ops->cut_for(p, o) : cut;
}

pf_status pf_place_reserve(struct pf_placement *p, const struct pf_backend_sizes *sizes)
{
    FIRST_WITH(p, reserve);
    return p ? p->ops->reserve(p, sizes) : PF_OK;
}

void pf_place_use_room(struct pf_placement *p)
{
    FIRST_WITH(p, use_room);
    if (p)
        p->ops->use_room(p);
}

pf_status pf_place_fill(struct pf_placement *p)
{
    FIRST_WITH(p, fill);
    return p ? p->ops->fill(p) : PF_OK;
}

/* What cards have all of takes no place in memory. When one of them is lost, the CPU reads the file where it is mapped,
 * as far as it needs. */
static bool all_on_cards(const struct pf_placement *p)
{
    return p && p->cards[0] && p->cut.whole && !p->experts_apart && atomic_load(&p->lost) == 0;
}

bool pf_place_maps(const struct pf_placement *p, const struct pf_tensor *t)
{
    if (all_on_cards(p))
        return false;
    FIRST_WITH(p, maps);
    return p ? p->ops->maps(p, t) : true;
}

uint64_t pf_place_bytes(const struct pf_placement *p, int layer)
{
    FIRST_WITH(p, bytes);
    return p ? p->ops->bytes(p, layer) : 0;
}

pf_status pf_place_load(struct pf_placement *p, int layer, pf_progress_fn *progress, void *ctx, uint64_t done,
                        uint64_t total)
{
    FIRST_WITH(p, load);
    return p ? p->ops->load(p, layer, progress, ctx, done, total) : PF_OK;
}

bool pf_place_holds(const struct pf_placement *p, int layer)
{
    FIRST_WITH(p, holds);
    return p ? p->ops->holds(p, layer) : true;
}

bool pf_place_can_measure(const struct pf_placement *p)
{
    FIRST_WITH(p, measure);
    return p && !p->ops->knows(p);
}

uint64_t pf_place_measure(struct pf_placement *p, bool on)
{
    FIRST_WITH(p, measure);
    return p ? p->ops->measure(p, on) : 0;
}

void pf_place_tell(const struct pf_placement *p, struct pf_learned *out)
{
    *out = (struct pf_learned){ 0 };
    FIRST_WITH(p, tell);
    if (p)
        p->ops->tell(p, out);
}

void pf_place_recall(struct pf_placement *p, const struct pf_learned *l)
{
    FIRST_WITH(p, recall);
    if (p)
        p->ops->recall(p, l);
}

void pf_place_stats(const struct pf_placement *p, struct pf_stats *out)
{
    for (; p; p = p->under)
        if (p->ops->stats)
            p->ops->stats(p, out);
}

void pf_place_stats_reset(struct pf_placement *p)
{
    for (; p; p = p->under)
        if (p->ops->stats_reset)
            p->ops->stats_reset(p);
}

/* ---- The model's placement --------------------------------------------------------------------------------------- */

void pf_place_set(struct pf_placement *p)
{
    p->m->backend = p->device;
    p->m->place = p;
}

void pf_place_share(const struct pf_placement *p, int *n_layers, uint64_t *token_bytes)
{
    const struct pf_model *m = p->m;
    const pf_backend *last = pf_place_unit(p, p->cut.n_more);
    *n_layers = 0;
    *token_bytes = p->cut.whole && pf_place_unit(p, 0) != m->cpu ? m->embed.row_bytes : 0;
    if (p->cut.output && last != m->cpu)
        *token_bytes += pf_weight_bytes(&m->output) + pf_weight_bytes(&m->output_mix.fn);
    for (int k = 0; k < pf_place_n_cards(p); k++) {
        int first, end;
        pf_cut_card(&p->cut, k, &first, &end);
        for (int il = first; il < end && pf_place_unit(p, k) != m->cpu; il++, ++*n_layers)
            *token_bytes += pf_layer_bytes(&m->layers[il]) + (p->experts_apart ? 0 : pf_picked_bytes(&m->layers[il]));
    }
}

/* ---- Losses ------------------------------------------------------------------------------------------------------ */

/* The cards that answer no more and did before. */
static unsigned ask_cards(const struct pf_placement *p)
{
    unsigned lost = 0;
    for (int k = 0; k < PF_MAX_GPUS; k++)
        if (p->cards[k] && !pf_place_has_lost(p, k) && p->cards[k]->ops->is_lost(p->cards[k]))
            lost |= 1u << k;
    return lost;
}

static int n_there(const struct pf_placement *p, unsigned lost)
{
    int n = 0;
    for (int k = 0; k < PF_MAX_GPUS; k++)
        n += p->cards[k] && !(lost >> k & 1);
    return n;
}

/* From now on pf_model_info says what is computed on m->place. */
static void tell_info(struct pf_model *m)
{
    const struct pf_placement *p = m->place;
    int n = atomic_load(&m->n_losses);
    struct pf_model_info *info = &m->info_left[n];
    *info = n > 0 ? m->info_left[n - 1] : m->info;
    info->backend = m->backend->ops->name;
    info->isa = m->backend->ops->describe(m->backend);
    pf_place_share(p, &info->n_gpu_layers, &info->gpu_bytes_per_token);
    info->n_gpus = 0;
    for (int k = 0; k < PF_MAX_GPUS; k++)
        if (p->cards[k] && !pf_place_has_lost(p, k))
            info->gpus[info->n_gpus++] = m->info.gpus[k];
    info->layout = info->n_gpus < 2 ? PF_LAYOUT_AUTO : info->layout;
    atomic_store(&m->n_losses, n + 1);
}

/* The placement goes on without some of its cards, if it can. */
static bool lose_cards(struct pf_placement *p, unsigned lost, const char *why)
{
    unsigned all = atomic_load(&p->lost) | lost;
    if (lost == 0 || n_there(p, all) == 0 || (p->ops->lose && !p->ops->lose(p, lost)))
        return false;
    for (int k = PF_MAX_GPUS - 1; k >= 0; k--) {
        if (lost >> k & 1)
            pf_model_logf(p->m, PF_LOG_ERROR, "GPU %d failed (%s); the CPU computes in its place", p->m->info.gpus[k],
                          why);
        if (p->cards[k] && !(all >> k & 1))
            p->device = p->cards[k];
    }
    atomic_store(&p->lost, all);
    return true;
}

static void leave(struct pf_placement *p, const char *why)
{
    pf_model_logf(p->m, PF_LOG_ERROR, "the GPU failed (%s); the CPU goes on", why);
    if (p->ops->leave_device)
        p->ops->leave_device(p);
    p->m->left = p;
}

bool pf_model_leave_device(struct pf_model *m)
{
    struct pf_placement *p = m->place;
    char why[512];
    if (p->device == m->cpu || p->has_ranks)
        return false;
    snprintf(why, sizeof why, "%s", pf_last_error());
    bool stays = lose_cards(p, ask_cards(p), why);
    if (!stays)
        leave(p, why);
    pf_place_set(stays ? p : p->under);
    tell_info(m);
    return true;
}

pf_status pf_place_session_bytes(const struct pf_model *m, const struct pf_cut *cut, const pf_backend *device,
                                 const struct pf_session_opts *opts, uint64_t *kv_bytes, uint64_t *work_bytes)
{
    struct pf_session_opts o;
    uint64_t kv = 0, work = 0;
    PF_TRY(pf_session_opts_resolve(m, opts, &o));
    *kv_bytes = *work_bytes = 0;
    for (int k = 0; k <= cut->n_more; k++) {
        int first, end;
        pf_cut_card(cut, k, &first, &end);
        PF_TRY(pf_session_part_bytes(m, &o, device, first, end, &kv, &work));
        *kv_bytes += kv;
        *work_bytes += work;
    }
    kv = work = 0;
    if (!cut->whole)
        PF_TRY(pf_session_part_bytes(m, &o, m->cpu, cut->n_layers, m->n_layer, &kv, &work));
    *kv_bytes += kv;
    *work_bytes += work + pf_session_host_bytes(m, &o);
    struct pf_session_opts own;
    const struct pf_model *follower = pf_session_follower(m, &o, &own);
    if (!follower)
        return PF_OK;
    PF_TRY(pf_session_bytes(follower, &own, &kv, &work));
    *kv_bytes += kv;
    *work_bytes += work;
    return PF_OK;
}

pf_status pf_session_bytes(const pf_model *m, const struct pf_session_opts *opts, uint64_t *kv_bytes,
                           uint64_t *work_bytes)
{
    const struct pf_placement *p = m->place;
    const struct pf_cut all = pf_cut_all(m);
    return pf_place_session_bytes(m, p ? &p->cut : &all, p ? m->backend : m->cpu, opts, kv_bytes, work_bytes);
}

/* Of the bytes that a session takes on a card, those that are not taken yet: a card's scratch serves all sessions. */
static uint64_t not_there(const struct pf_model *m, const pf_backend *card, const struct pf_session_opts *opts,
                          uint64_t bytes)
{
    struct pf_session_opts o;
    if (!card->ops->scratch_more || pf_session_opts_resolve(m, opts, &o) < 0)
        return bytes;
    struct pf_backend_sizes sizes = pf_backend_sizes_of(m, &o);
    return bytes - card->ops->scratch_bytes(card, &sizes) + card->ops->scratch_more(card, &sizes);
}

static struct pf_session_opts with_near(const struct pf_session_opts *o, int64_t n_chunks)
{
    struct pf_session_opts with = *o;
    with.n_near = n_chunks * PF_KV_CHUNK_POSITIONS;
    return with;
}

/* Bytes of a card's memory that the session takes with so many chunks there, beside what is there. */
static uint64_t near_bytes(const struct pf_placement *p, int card, const struct pf_session_opts *o, int64_t n_chunks,
                           const struct pf_there *there)
{
    struct pf_session_opts with = with_near(o, n_chunks);
    uint64_t kv, work;
    int first, end;
    pf_cut_card(&p->cut, card, &first, &end);
    if (pf_session_part_bytes(p->m, &with, p->cards[card], first, end, &kv, &work) < 0)
        return UINT64_MAX;
    uint64_t stage = pf_kv_stage_bytes(p->m, &with, first, end);
    return not_there(p->m, p->cards[card], &with, kv + work) - there->buffers - (stage <= there->stage ? stage : 0);
}

pf_status pf_place_make_room(struct pf_model *m, const struct pf_session_opts *o)
{
    struct pf_placement *p = m->place;
    uint64_t kv, work;
    PF_TRY(pf_session_bytes(m, o, &kv, &work));
    FIRST_WITH(p, make_room);
    if (p)
        p->ops->make_room(p, not_there(m, p->device, o, kv + work));
    return PF_OK;
}

uint64_t pf_place_visits_stage(const struct pf_placement *p, int card, const struct pf_session_opts *o)
{
    return p->visits && card == p->cut.n_more ? pf_visits_stage_bytes(p->m, o, p->cut.n_layers) : 0;
}

/* What a session of several has on a card besides what all share, with so many chunks near: recurrent states, keys,
 * values. */
static uint64_t own_bytes(const struct pf_placement *p, int first, int end, const struct pf_session_opts *o,
                          int64_t n_chunks)
{
    struct pf_session_opts with = with_near(o, n_chunks);
    uint64_t bytes = pf_states_bytes(p->m, first, end, &with);
    for (int il = first; il < end; il++)
        bytes += pf_kv_bytes_of(p->m, il, &with);
    return bytes;
}

/* The fewest chunks near with which a prompt's far ones have a stage. */
static int64_t staged_chunks(const struct pf_placement *p, int first, int end, const struct pf_session_opts *o,
                             int64_t all)
{
    int64_t n = 1;
    struct pf_session_opts with = with_near(o, n);
    while (n < all && pf_kv_stage_bytes(p->m, &with, first, end) == 0)
        with = with_near(o, ++n);
    return n;
}

/* What the stage of sessions with few chunks near takes, if that is more than there is: they have more that is far than
 * one which opens with more room. */
static uint64_t stage_to_come(const struct pf_placement *p, int first, int end, const struct pf_session_opts *o,
                              int64_t n_staged, const struct pf_there *there)
{
    struct pf_session_opts with = with_near(o, n_staged);
    uint64_t bytes = pf_kv_stage_bytes(p->m, &with, first, end);
    return bytes > there->stage ? bytes : 0;
}

/* What a card keeps of `room` bytes for those of o->n_sessions sessions that are not open yet. With a chunk near each
 * they open. So that prompts have a stage, this session first, then the others have n_staged; theirs is half of what is
 * left then at most, since they may never come. least, staged: bytes of this session with 1 and with n_staged. */
static uint64_t for_others(const struct pf_placement *p, int card, const struct pf_session_opts *o, int64_t n_staged,
                           uint64_t room, uint64_t least, uint64_t staged, const struct pf_there *there)
{
    int n_open = atomic_load(&p->m->n_sessions), first, end;
    uint64_t n = o->n_sessions > n_open ? (uint64_t)(o->n_sessions - n_open) : 0;
    if (n == 0 || least >= room)
        return 0;
    pf_cut_card(&p->cut, card, &first, &end);
    uint64_t one = own_bytes(p, first, end, o, 1), wish = own_bytes(p, first, end, o, n_staged) - one,
             need = n * one + stage_to_come(p, first, end, o, n_staged, there);
    if (need >= room - least)
        return room - least;
    uint64_t left = room - need;
    left = staged < left ? (left - staged) / 2 : 0;
    return need + (wish < left / n ? n * wish : left);
}

/* pf_place_near of one card. A session that comes when others have all but a little does with a chunk. */
static int64_t near_of(const struct pf_placement *p, int card, const struct pf_session_opts *o,
                       const struct pf_there *there)
{
    pf_backend *device = p->cards[card];
    uint64_t room = device->ops->room(device), stage = pf_place_visits_stage(p, card, o),
             spare = atomic_load(&p->m->n_sessions) > 1 ? 0 : PF_NEAR_SPARE_BYTES;
    int64_t all = (o->n_ctx + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS, fits = 1, not = all;
    int first, end;
    pf_cut_card(&p->cut, card, &first, &end);
    int64_t n_staged = staged_chunks(p, first, end, o, all);
    uint64_t least = near_bytes(p, card, o, 1, there) + spare,
             staged = near_bytes(p, card, o, n_staged, there) + spare;
    room -= stage < room ? stage : 0;
    room -= for_others(p, card, o, n_staged, room, least, staged, there);
    if (near_bytes(p, card, o, all, there) <= room || least > room)
        return 0;
    while (fits + 1 < not) {
        int64_t middle = fits + (not - fits) / 2;
        *(near_bytes(p, card, o, middle, there) + spare <= room ? &fits : &not) = middle;
    }
    return fits * PF_KV_CHUNK_POSITIONS;
}

int64_t pf_place_near(const struct pf_placement *p, const struct pf_session_opts *o, const struct pf_there *there)
{
    int64_t least = 0;
    if (!p || p->device == p->m->cpu || p->by_rows)
        return 0;
    for (int k = 0; k < pf_place_n_cards(p); k++) {
        int64_t n = pf_place_has_lost(p, k) ? 0 : near_of(p, k, o, &there[k]);
        least = n > 0 && (least == 0 || n < least) ? n : least;
    }
    return least;
}

void pf_place_close(struct pf_placement *p)
{
    while (p) {
        struct pf_placement *under = p->under;
        pf_backend *cards[PF_MAX_GPUS];
        memcpy(cards, p->cards, sizeof cards);
        p->ops->close(p);
        for (int k = 0; k < PF_MAX_GPUS; k++)
            if (cards[k])
                cards[k]->ops->close(cards[k]);
        p = under;
    }
}

/* See vcache.h. */
#define _GNU_SOURCE                      /* qsort_r */
#include "moe/offload/vcache.h"

#include <stdlib.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "backend/share.h"
#include "moe/offload/postfetch.h"
#include "moe/place/cut.h"
#include "moe/place/transit.h"

enum { CHUNK_BYTES = 64 << 20, MAX_CHUNKS = 4096, MAX_CLASSES = 32, NONE = -1 };
enum { FIRST_TICKET = PF_SHARE_BACKGROUND, N_FILLING = PF_SHARE_TICKETS - FIRST_TICKET };
enum { LEAST_PIECE = 256 << 10 };
enum { TRIAL_STEPS = 256, PAUSE_STEPS = 4096, SLOTS_PER_PICK = 3 };
static const double ALIKE = 0.97;        /* experts of a class are at least this fraction of its largest */
static const double AGEING = 1.005, HOTTER = 1.5, HEAT_MAX = 1e12;

struct slot {
    int  key;                            /* layer * n_expert + expert, or NONE */
    int  chunk;
    bool held, replaced;                 /* the device computes with the expert; it replaced another one */
};

struct chunk {
    char  *memory;
    size_t bytes;
    int    class, first, n;              /* its n slots are slots[first .. first + n) */
};

/* A copy into a slot, or into none (NONE). It crosses in pieces; `sent` of its bytes have been sent. */
struct fill {
    int            slot;
    const uint8_t *from[3];
    uint64_t       sent, bytes, begun_ns;
    bool           failed;               /* a piece was refused */
};

/* Layers whose experts are alike in size. */
struct class {
    uint64_t slot_bytes;
    int      n_experts, n_slots;         /* the class's experts in the model; its slots in all chunks */
    int      first_free;                 /* no slot before it is free */
    int      coldest;                    /* coldest slot that is held, or NONE; valid if knows_coldest */
};

struct pf_vcache {
    const struct pf_model *m;
    pf_backend   *device;
    struct pf_residency *ram;            /* where experts are copied from */
    const int    *home;                  /* see pf_vcache_setup */
    int           card;
    struct pf_vcache_counts *counts;
    struct class  classes[MAX_CLASSES];  /* in order of falling size */
    int           n_classes;
    int           first, end, n_moe;     /* the layers whose experts may be here; those that have any */
    int          *class_of;              /* [n_layer] */
    struct chunk *chunks;                /* [MAX_CHUNKS] */
    int           n_chunks;
    struct slot  *slots;                 /* [n_slots] chunk by chunk */
    int           n_slots, cap_slots;
    bool          chooses;               /* pf_vcache_fill is at work: whatever is hotter replaces what is colder */
    bool          is_astray;             /* the device may believe that it holds an expert whose slot was emptied */
    bool          knows_coldest;         /* every `coldest` holds, until heats change or a slot is emptied */
    int          *index;                 /* [n_layer * n_expert] */
    bool         *held;                  /* [n_layer * n_expert] */
    float        *heat;                  /* [n_layer * n_expert] */
    double        warmth;                /* heat that a use adds now */
    int          *wanted;                /* [n_layer * n_expert] missed since the last fills, each once; all experts
                                            while pf_vcache_fill is at work */
    bool         *is_wanted;
    int           n_wanted;
    struct fill   filling[N_FILLING];
    uint64_t      piece_bytes;           /* of a fill, to be sent at once */
    uint64_t      over_ns;               /* see pf_spans_add_queued */
    uint64_t      trial_fills, trial_hits, n_steps, paused_until;
};

static int key_of(const struct pf_vcache *c, int il, int expert)
{
    return il * c->m->n_expert + expert;
}

static bool is_mine(const struct pf_vcache *c, int expert)
{
    return !c->home || c->home[expert] == c->card;
}

static struct class *class_at(struct pf_vcache *c, int slot)
{
    return &c->classes[c->chunks[c->slots[slot].chunk].class];
}

static char *slot_at(const struct pf_vcache *c, int slot)
{
    const struct chunk *chunk = &c->chunks[c->slots[slot].chunk];
    return chunk->memory + (uint64_t)(slot - chunk->first) * c->classes[chunk->class].slot_bytes;
}

static void parts_at(const struct pf_vcache *c, int il, int slot, uint8_t *parts[3], uint64_t bytes[3])
{
    uint8_t *at = (uint8_t *)slot_at(c, slot);
    pf_expert_bytes(c->m, il, bytes);
    for (int i = 0; i < 3; i++) {
        parts[i] = at;
        at += pf_share_room(bytes[i]);
    }
}

/* ---- Opening, closing, memory ------------------------------------------------------------------------------------ */

static uint64_t expert_room(const struct pf_vcache *c, int il)
{
    uint64_t bytes[3];
    if (!c->m->layers[il].is_moe)
        return 0;
    pf_expert_bytes(c->m, il, bytes);
    return pf_expert_room(bytes);
}

/* The largest expert that is too small for the last class, or 0. */
static uint64_t next_size(const struct pf_vcache *c)
{
    uint64_t largest = 0;
    for (int il = c->first; il < c->end; il++) {
        uint64_t room = expert_room(c, il);
        bool taken = c->n_classes > 0 && (double)room >= ALIKE * (double)c->classes[c->n_classes - 1].slot_bytes;
        largest = !taken && room > largest ? room : largest;
    }
    return largest;
}

/* From the largest down; if they were more than MAX_CLASSES, the last would take all that is smaller. */
static void make_classes(struct pf_vcache *c)
{
    for (uint64_t size; c->n_classes < MAX_CLASSES && (size = next_size(c)) > 0;)
        c->classes[c->n_classes++] = (struct class){ .slot_bytes = size };
    for (int il = c->first; il < c->end; il++) {
        uint64_t room = expert_room(c, il);
        if (room == 0)
            continue;
        while (c->class_of[il] + 1 < c->n_classes && c->classes[c->class_of[il] + 1].slot_bytes >= room)
            c->class_of[il]++;
        for (int x = 0; x < c->m->n_expert; x++)
            c->classes[c->class_of[il]].n_experts += is_mine(c, x);
    }
}

pf_status pf_vcache_open(struct pf_vcache **out, const struct pf_vcache_setup *setup, struct pf_vcache_counts *counts)
{
    const struct pf_model *m = setup->m;
    size_t n = (size_t)m->n_layer * (size_t)m->n_expert;
    struct pf_vcache *c = pf_alloc(PF_MEM_MODEL, sizeof *c);
    *out = c;
    if (!c)
        PF_FAIL(PF_ENOMEM, "no memory for the GPU's expert cache");
    c->m = m;
    c->device = setup->device;
    c->first = setup->first;
    c->end = setup->end;
    for (int il = c->first; il < c->end; il++)
        c->n_moe += m->layers[il].is_moe;
    c->ram = setup->ram;
    c->home = setup->home;
    c->card = setup->card;
    c->counts = counts;
    c->warmth = 1;
    c->chunks = pf_alloc_array(PF_MEM_MODEL, MAX_CHUNKS, sizeof *c->chunks);
    c->class_of = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *c->class_of);
    c->index = pf_alloc_array(PF_MEM_MODEL, n, sizeof *c->index);
    c->held = pf_alloc_array(PF_MEM_MODEL, n, sizeof *c->held);
    c->heat = pf_alloc_array(PF_MEM_MODEL, n, sizeof *c->heat);
    c->wanted = pf_alloc_array(PF_MEM_MODEL, n, sizeof *c->wanted);
    c->is_wanted = pf_alloc_array(PF_MEM_MODEL, n, sizeof *c->is_wanted);
    if (!c->chunks || !c->class_of || !c->index || !c->held || !c->heat || !c->wanted || !c->is_wanted) {
        pf_vcache_close(out);
        PF_FAIL(PF_ENOMEM, "no memory for the GPU's expert cache");
    }
    for (size_t i = 0; i < n; i++)
        c->index[i] = NONE;
    for (int i = 0; i < N_FILLING; i++)
        c->filling[i].slot = NONE;
    make_classes(c);
    return PF_OK;
}

void pf_vcache_close(struct pf_vcache **cp)
{
    struct pf_vcache *c = *cp;
    if (!c)
        return;
    pf_backend *device = c->device;
    for (int i = 0; i < N_FILLING; i++)
        if (c->filling[i].slot != NONE) {
            int key = c->slots[c->filling[i].slot].key;
            device->ops->share->fetch_wait(device, FIRST_TICKET + i);
            pf_residency_drop(c->ram, key / c->m->n_expert, key % c->m->n_expert);
        }
    for (int i = 0; i < c->n_chunks; i++)
        device->ops->buf_free(device, c->chunks[i].memory, c->chunks[i].bytes, false);
    void *tables[] = { c->chunks, c->slots, c->class_of, c->index, c->held, c->heat, c->wanted, c->is_wanted };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        pf_free(tables[i]);
    pf_free(c);
    *cp = NULL;
}

static bool add_chunk(struct pf_vcache *c, int class)
{
    pf_backend *device = c->device;
    struct chunk *chunk = &c->chunks[c->n_chunks];
    struct class *of = &c->classes[class];
    int most = (int)(CHUNK_BYTES / of->slot_bytes), left = of->n_experts - of->n_slots;
    int n = most < 1 ? 1 : most < left ? most : left;
    void *memory;
    if (c->n_chunks == MAX_CHUNKS)
        return false;
    if (c->n_slots + n > c->cap_slots) {
        int cap = c->n_slots + n > 2 * c->cap_slots ? c->n_slots + n : 2 * c->cap_slots;
        struct slot *grown = pf_realloc(PF_MEM_MODEL, c->slots, (size_t)cap * sizeof *grown);
        if (!grown)
            return false;
        c->slots = grown;
        c->cap_slots = cap;
    }
    size_t bytes = (size_t)n * of->slot_bytes;
    if (device->ops->room(device) < bytes + PF_CUT_SPARE_BYTES ||
        device->ops->buf_alloc(device, bytes, false, &memory) < 0)
        return false;
    *chunk = (struct chunk){ memory, bytes, class, c->n_slots, n };
    of->first_free = of->first_free < chunk->first ? of->first_free : chunk->first;
    for (int i = 0; i < n; i++)
        c->slots[c->n_slots++] = (struct slot){ .key = NONE, .chunk = c->n_chunks };
    c->n_chunks++;
    of->n_slots += n;
    pf_count(&c->counts->n_slots, (uint64_t)n);
    pf_count(&c->counts->bytes, bytes);
    return true;
}

/* The class with slots for the smallest share of its experts that is not full and not refused; NONE: there is none. */
static int neediest(const struct pf_vcache *c, const bool *refused)
{
    int best = NONE;
    for (int i = 0; i < c->n_classes; i++) {
        const struct class *k = &c->classes[i], *b = best == NONE ? NULL : &c->classes[best];
        if (!refused[i] && k->n_slots < k->n_experts &&
            (!b || (double)k->n_slots * b->n_experts < (double)b->n_slots * k->n_experts))
            best = i;
    }
    return best;
}

void pf_vcache_grow(struct pf_vcache *c)
{
    bool refused[MAX_CLASSES] = { false };
    for (int class; (class = neediest(c, refused)) != NONE;)
        refused[class] = !add_chunk(c, class);
}

/* The slot's expert is no longer the device's. A copy into it is waited for. */
static void empty_slot(struct pf_vcache *c, int slot)
{
    struct slot *s = &c->slots[slot];
    const struct pf_share_ops *share = c->device->ops->share;
    if (s->key == NONE)
        return;
    int il = s->key / c->m->n_expert, expert = s->key % c->m->n_expert;
    for (int i = 0; i < N_FILLING; i++)
        if (c->filling[i].slot == slot) {
            share->fetch_wait(c->device, FIRST_TICKET + i);
            pf_residency_drop(c->ram, il, expert);
            c->filling[i].slot = NONE;
        }
    if (s->held && share->hold(c->device, il, expert, NULL, NULL, NULL) < 0)
        c->is_astray = true;
    struct class *of = class_at(c, slot);
    of->first_free = of->first_free < slot ? of->first_free : slot;
    c->knows_coldest = false;
    pf_count(&c->counts->n_held, -(uint64_t)s->held);
    c->held[s->key] = false;
    c->index[s->key] = NONE;
    *s = (struct slot){ .key = NONE, .chunk = s->chunk };
}

void pf_vcache_make_room(struct pf_vcache *c, uint64_t bytes)
{
    pf_backend *device = c->device;
    while (c->n_chunks > 0 && device->ops->room(device) < bytes) {
        struct chunk *last = &c->chunks[c->n_chunks - 1];
        for (int i = last->n - 1; i >= 0; i--)
            empty_slot(c, last->first + i);
        device->ops->buf_free(device, last->memory, last->bytes, false);
        c->classes[last->class].n_slots -= last->n;
        pf_count(&c->counts->n_slots, -(uint64_t)last->n);
        pf_count(&c->counts->bytes, -(uint64_t)last->bytes);
        c->n_slots -= last->n;
        c->n_chunks--;
    }
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

const bool *pf_vcache_held(const struct pf_vcache *c, int il)
{
    return c->held + (size_t)key_of(c, il, 0);
}

void pf_vcache_at(const struct pf_vcache *c, int il, int expert, const uint8_t *parts[3])
{
    uint8_t *at[3];
    uint64_t bytes[3];
    parts_at(c, il, c->index[key_of(c, il, expert)], at, bytes);
    for (int i = 0; i < 3; i++)
        parts[i] = at[i];
}

void pf_vcache_warm(struct pf_vcache *c, int il, int expert)
{
    c->heat[key_of(c, il, expert)] += (float)c->warmth;
}

void pf_vcache_use(struct pf_vcache *c, int il, int expert)
{
    int key = key_of(c, il, expert);
    pf_vcache_warm(c, il, expert);
    if (c->held[key]) {
        pf_count(&c->counts->n_hits, 1);
        c->trial_hits += c->slots[c->index[key]].replaced;
    } else if (c->index[key] == NONE && !c->is_wanted[key] && is_mine(c, expert)) {
        c->is_wanted[key] = true;
        c->wanted[c->n_wanted++] = key;
    }
}

/* ---- Between steps ----------------------------------------------------------------------------------------------- */

static void note_fill(struct pf_vcache *c, int i, int il, int expert)
{
    if (!c->m->spans)
        return;
    struct pf_span span = { "fill", PF_TRACK_FILLS, il, expert, c->filling[i].begun_ns, pf_now_ns() };
    bool whole = c->piece_bytes >= c->filling[i].bytes;          /* else the time of the last piece alone is known */
    uint64_t took = whole ? c->device->ops->share->fetch_ns(c->device, FIRST_TICKET + i) : 0;
    pf_spans_add_queued(c->m->spans, &span, took, &c->over_ns);
}

/* Sends the next bytes of a fill, `most` at most, when those before have arrived. */
static pf_status send(struct pf_vcache *c, int i, uint64_t most)
{
    struct fill *f = &c->filling[i];
    struct pf_piece pieces[3];
    uint64_t bytes[3], begin = 0, at = f->sent;
    uint8_t *to[3];
    int n = 0;
    parts_at(c, c->slots[f->slot].key / c->m->n_expert, f->slot, to, bytes);
    for (int p = 0; p < 3; begin += bytes[p++]) {
        uint64_t skip = at - begin;
        if (at < begin || skip >= bytes[p] || most == 0)
            continue;
        uint64_t left = bytes[p] - skip, take = left < most ? left : most;
        pieces[n++] = (struct pf_piece){ to[p] + skip, f->from[p] + skip, take };
        most -= take;
        at += take;
    }
    f->sent = at;
    return c->device->ops->share->fetch(c->device, FIRST_TICKET + i, pieces, n);
}

/* How a fill is; if `wait`, all of it is sent and waited for. */
static enum pf_fetch_state state_of(struct pf_vcache *c, int i, bool wait)
{
    const struct pf_share_ops *share = c->device->ops->share;
    const struct fill *f = &c->filling[i];
    enum pf_fetch_state state = (wait ? share->fetch_wait : share->fetch_state)(c->device, FIRST_TICKET + i);
    if (f->failed)
        return PF_FETCH_FAILED;
    if (state != PF_FETCH_READY || f->sent == f->bytes)
        return state;
    if (!wait)
        return PF_FETCH_IN_FLIGHT;
    return send(c, i, f->bytes) < 0 ? PF_FETCH_FAILED : share->fetch_wait(c->device, FIRST_TICKET + i);
}

/* Experts whose copies have arrived are held from now on. */
static pf_status take_up(struct pf_vcache *c, bool wait)
{
    pf_backend *device = c->device;
    const struct pf_share_ops *share = device->ops->share;
    for (int i = 0; i < N_FILLING; i++) {
        int slot = c->filling[i].slot;
        if (slot == NONE)
            continue;
        enum pf_fetch_state state = state_of(c, i, wait);
        if (state == PF_FETCH_IN_FLIGHT)
            continue;
        int key = c->slots[slot].key, il = key / c->m->n_expert, expert = key % c->m->n_expert;
        const uint8_t *at[3];
        pf_vcache_at(c, il, expert, at);
        note_fill(c, i, il, expert);
        c->filling[i].slot = NONE;
        pf_residency_drop(c->ram, il, expert);
        pf_status st = state == PF_FETCH_READY ? share->hold(device, il, expert, at[0], at[1], at[2]) : PF_OK;
        if (state == PF_FETCH_FAILED || st < 0) {
            empty_slot(c, slot);
            PF_TRY(st);
            continue;
        }
        c->slots[slot].held = true;
        pf_count(&c->counts->n_held, 1);
        c->held[key] = true;
    }
    return PF_OK;
}

static int free_slot(struct pf_vcache *c, int class)
{
    int *slot = &c->classes[class].first_free;
    while (*slot < c->n_slots && (c->slots[*slot].key != NONE || class_at(c, *slot) != &c->classes[class]))
        (*slot)++;
    return *slot < c->n_slots ? *slot : NONE;
}

static void find_coldest(struct pf_vcache *c)
{
    for (int i = 0; i < c->n_classes; i++)
        c->classes[i].coldest = NONE;
    for (int i = 0; i < c->n_slots; i++) {
        int *coldest = &class_at(c, i)->coldest;
        if (c->slots[i].held && (*coldest == NONE || c->heat[c->slots[i].key] < c->heat[c->slots[*coldest].key]))
            *coldest = i;
    }
    c->knows_coldest = true;
}

static bool may_replace(const struct pf_vcache *c)
{
    return c->chooses || (c->n_slots >= SLOTS_PER_PICK * c->m->n_used * c->n_moe && c->n_steps >= c->paused_until);
}

/* A slot that the expert may have, free or held by a colder one; or NONE. */
static int slot_for(struct pf_vcache *c, int key)
{
    int class = c->class_of[key / c->m->n_expert], slot = free_slot(c, class);
    double hotter = c->chooses ? 1 : HOTTER;
    if (slot != NONE || !may_replace(c))
        return slot;
    if (!c->knows_coldest)
        find_coldest(c);
    slot = c->classes[class].coldest;
    if (slot == NONE || c->heat[key] <= c->heat[c->slots[slot].key])
        return NONE;
    return (double)c->heat[key] >= hotter * (double)c->heat[c->slots[slot].key] ? slot : NONE;
}

static int free_ticket(const struct pf_vcache *c)
{
    for (int i = 0; i < N_FILLING; i++)
        if (c->filling[i].slot == NONE)
            return i;
    return NONE;
}

/* Begins to copy the expert into a slot. Returns the bytes; 0: not now. Most of what is wanted finds no slot, so an
 * expert is pinned in RAM only when it has one. */
static uint64_t begin_fill(struct pf_vcache *c, int key)
{
    int il = key / c->m->n_expert, expert = key % c->m->n_expert;
    int ticket = free_ticket(c), slot = ticket == NONE ? NONE : slot_for(c, key);
    const uint8_t *from[3];
    uint64_t bytes[3];
    if (slot == NONE || !pf_residency_take(c->ram, il, expert, from))
        return 0;
    bool replaces = c->slots[slot].key != NONE && !c->chooses;
    empty_slot(c, slot);
    pf_expert_bytes(c->m, il, bytes);
    c->slots[slot].key = key;
    c->filling[ticket] = (struct fill){ .slot = slot, .from = { from[0], from[1], from[2] },
                                        .bytes = bytes[0] + bytes[1] + bytes[2], .begun_ns = pf_now_ns() };
    if (send(c, ticket, c->piece_bytes) < 0) {
        c->slots[slot].key = c->filling[ticket].slot = NONE;
        pf_residency_drop(c->ram, il, expert);
        return 0;
    }
    c->slots[slot].replaced = replaces;
    c->trial_fills += replaces;
    c->index[key] = slot;
    pf_count(&c->counts->n_fills, 1);
    return c->filling[ticket].bytes;
}

void pf_vcache_go_on(struct pf_vcache *c)
{
    for (int i = 0; i < N_FILLING; i++) {
        struct fill *f = &c->filling[i];
        if (f->slot == NONE || f->failed || f->sent == f->bytes)
            continue;
        if (c->device->ops->share->fetch_state(c->device, FIRST_TICKET + i) == PF_FETCH_READY &&
            send(c, i, c->piece_bytes) < 0)
            f->failed = true;
        return;
    }
}

/* Old uses count less because new ones count more. */
static void age(struct pf_vcache *c)
{
    c->warmth *= AGEING;
    if (c->warmth < HEAT_MAX)
        return;
    for (int i = 0; i < c->m->n_layer * c->m->n_expert; i++)
        c->heat[i] = (float)((double)c->heat[i] / c->warmth);
    c->warmth = 1;
}

/* Replacing goes on only if what it brought in was used more often than it cost copies. */
static void judge(struct pf_vcache *c)
{
    c->n_steps++;
    if (c->n_steps % TRIAL_STEPS)
        return;
    if (c->trial_hits < c->trial_fills)
        c->paused_until = c->n_steps + PAUSE_STEPS;
    c->trial_fills = c->trial_hits = 0;
}

/* No step may run on a device that would compute with what lies in an emptied slot. */
static pf_status be_sure(const struct pf_vcache *c)
{
    if (c->is_astray)
        PF_FAIL(PF_EDEVICE, "the GPU could not be told that it no longer holds an expert");
    return PF_OK;
}

pf_status pf_vcache_between(struct pf_vcache *c, uint64_t bytes)
{
    uint64_t used = 0;
    if (c->n_slots == 0)
        return be_sure(c);
    c->piece_bytes = bytes / (uint64_t)c->n_moe > LEAST_PIECE ? bytes / (uint64_t)c->n_moe : LEAST_PIECE;
    age(c);
    judge(c);
    c->knows_coldest = false;
    PF_TRY(take_up(c, false));
    for (int i = 0; i < c->n_wanted; i++) {
        if (used < bytes)
            used += begin_fill(c, c->wanted[i]);
        c->is_wanted[c->wanted[i]] = false;
    }
    c->n_wanted = 0;
    PF_TRY(be_sure(c));
    /* Where RAM is short, a slot that is pinned for a copy might be the one that the step has to read into. */
    return pf_residency_is_short(c->ram) ? take_up(c, true) : PF_OK;
}

/* The hottest first; of experts that are alike, expert 0 of all layers, then expert 1: every layer gets its share. */
static int by_heat(const void *a, const void *b, void *ctx)
{
    const struct pf_vcache *c = ctx;
    int x = *(const int *)a, y = *(const int *)b, n = c->m->n_expert;
    if (c->heat[x] != c->heat[y])
        return c->heat[x] > c->heat[y] ? -1 : 1;
    return x % n != y % n ? x % n - y % n : x / n - y / n;
}

static pf_status fill_with(struct pf_vcache *c, const int *keys, int n)
{
    for (int i = 0; i < n; i++) {
        if (c->index[keys[i]] != NONE || slot_for(c, keys[i]) == NONE || begin_fill(c, keys[i]) > 0)
            continue;
        PF_TRY(take_up(c, true));            /* all tickets were in use, maybe */
        begin_fill(c, keys[i]);
    }
    return take_up(c, true);
}

pf_status pf_vcache_fill(struct pf_vcache *c)
{
    int n_expert = c->m->n_expert, n = 0;
    c->piece_bytes = UINT64_MAX;
    for (int i = 0; i < c->n_wanted; i++)
        c->is_wanted[c->wanted[i]] = false;
    c->n_wanted = 0;
    for (int key = c->first * n_expert; key < c->end * n_expert; key++)
        if (c->m->layers[key / n_expert].is_moe && is_mine(c, key % n_expert))
            c->wanted[n++] = key;
    qsort_r(c->wanted, (size_t)n, sizeof *c->wanted, by_heat, c);
    c->chooses = true;
    pf_status st = fill_with(c, c->wanted, n);
    c->chooses = false;
    return st;
}

/* See visits.h. Prices are learned from the visits themselves and from what the CPU computes: the time that a layer's
 * copies take, and what a row of a layer takes on either unit. */
#include "moe/place/visits.h"

#include "backend/share.h"
#include "base/pf_count.h"
#include "base/pf_mem.h"

enum {
    LEAST_ROWS = 32,                     /* from here on twice the rows take the CPU twice as long */
    TRIAL_ROWS = 128,                    /* steps of fewer rows show what the CPU takes, as long as nobody knows */
    FIRST_TICKET = 0
};
static const double GAIN = 0.9;          /* visits have to take less than this part of the CPU's time */

struct pf_visits {
    const struct pf_model *m;
    pf_backend *card;
    int         first;
    void       *room[PF_VISIT_PARTS];
    uint64_t    room_bytes[PF_VISIT_PARTS];
    struct pf_piece pieces[PF_VISIT_PARTS][PF_LAYER_WEIGHTS];        /* of the layer at work: its matrices */
    int         n_pieces[PF_VISIT_PARTS], n_lent[PF_VISIT_PARTS];    /* the first n_lent are lent */
    struct pinned {
        char *begin, *end;
    }          *pinned;                  /* [shards of the file] */
    int         n_pinned;
    bool        is_pinned;
    bool        is_over;
    uint64_t    copied_ns;               /* since the last call of pf_visits_learn */
    double      copy_ns;                 /* of a layer; 0: not known, as for: */
    double      row_ns, cpu_row_ns;      /* of a row of a layer on the card, if copies take no time; on the CPU */
    pf_counter  bytes_sent;
};

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* The part of a layer that a matrix belongs to; PF_VISIT_PARTS: none that may visit. */
static enum pf_visit_part part_of(const struct pf_layer *l, const struct pf_weight *w)
{
    const struct pf_weight *of_mixer[] = { &l->attn.q, &l->attn.k, &l->attn.v, &l->attn.gate, &l->attn.out },
                           *of_ffn[] = { &l->dense.gate, &l->dense.up, &l->dense.down };
    for (size_t i = 0; i < sizeof of_mixer / sizeof *of_mixer; i++)
        if (w == of_mixer[i])
            return PF_VISIT_MIXER;
    for (size_t i = 0; i < sizeof of_ffn / sizeof *of_ffn; i++)
        if (w == of_ffn[i])
            return PF_VISIT_FFN;
    return PF_VISIT_PARTS;
}

static bool may_visit(const struct pf_model *m, int il)
{
    const struct pf_layer *l = &m->layers[il];
    bool may = l->mixer == PF_MIXER_ATTENTION && l->attn.kv_layer == il && l->has_ffn && !l->is_moe &&
               !l->has_indexer;
    for (int i = 0; may && i < l->n_weights; i++)
        may = part_of(l, l->weights[i]) != PF_VISIT_PARTS;
    return may && il != m->ngrams.layer && m->streams.n == 1;
}

/* Room for each part of any of the layers from `first` on. */
static void measure_rooms(const struct pf_model *m, int first, uint64_t rooms[PF_VISIT_PARTS])
{
    rooms[PF_VISIT_MIXER] = rooms[PF_VISIT_FFN] = 0;
    for (int il = first; il < m->n_layer; il++) {
        const struct pf_layer *l = &m->layers[il];
        uint64_t here[PF_VISIT_PARTS] = { 0 };
        for (int i = 0; i < l->n_weights; i++)
            here[part_of(l, l->weights[i])] += pf_share_room(pf_weight_bytes(l->weights[i]));
        for (int k = 0; k < PF_VISIT_PARTS; k++)
            rooms[k] = here[k] > rooms[k] ? here[k] : rooms[k];
    }
}

/* Whether t is a vector of a layer from `first` on: those stay on the card. */
static bool stays(const struct pf_model *m, int first, const struct pf_tensor *t)
{
    int il = pf_tensor_layer(m, t);
    bool is_vector = il >= first && il < m->n_layer;
    for (int i = 0; is_vector && i < m->layers[il].n_weights; i++) {
        const uint8_t *data = m->layers[il].weights[i]->data;
        is_vector = data < t->data || data >= t->data + t->n_bytes;
    }
    return is_vector;
}

static uint64_t vectors_bytes(const struct pf_model *m, int first)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        bytes += stays(m, first, t) ? pf_share_room(t->n_bytes) : 0;
    }
    return bytes;
}

size_t pf_visits_stage_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first)
{
    size_t most = 0;
    for (int il = first; il < m->n_layer; il++) {
        struct pf_kv_layer kv = pf_kv_layer_of(m, il, o);
        size_t bytes = kv.k_bytes + kv.v_bytes + kv.k_far + kv.v_far;
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t pf_visits_bytes(const struct pf_model *m, const struct pf_session_opts *o)
{
    uint64_t rooms[PF_VISIT_PARTS];
    bool may = o->n_batch >= LEAST_ROWS;
    for (int il = 0; may && il < m->n_layer; il++)
        may = may_visit(m, il);
    if (!may)
        return 0;
    measure_rooms(m, 0, rooms);
    return rooms[PF_VISIT_MIXER] + rooms[PF_VISIT_FFN] + vectors_bytes(m, 0) + pf_visits_stage_bytes(m, o, 0);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_status open_parts(struct pf_visits *v)
{
    const struct pf_backend_ops *ops = v->card->ops;
    measure_rooms(v->m, v->first, v->room_bytes);
    v->pinned = pf_alloc_array(PF_MEM_MODEL, (size_t)pf_gguf_n_shards(v->m->file), sizeof *v->pinned);
    if (!v->pinned)
        PF_FAIL(PF_ENOMEM, "no memory for layers that visit the GPU");
    PF_TRY(ops->share->open_copies(v->card));
    for (int k = 0; k < PF_VISIT_PARTS; k++)
        PF_TRY(ops->buf_alloc(v->card, v->room_bytes[k], false, &v->room[k]));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(v->m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(v->m->file, i);
        if (stays(v->m, v->first, t))
            PF_TRY(ops->place(v->card, t->data, t->n_bytes));
    }
    return PF_OK;
}

pf_status pf_visits_open(struct pf_visits **out, const struct pf_model *m, pf_backend *card, int first)
{
    struct pf_visits *v = pf_alloc(PF_MEM_MODEL, sizeof *v);
    *out = NULL;
    if (!v)
        PF_FAIL(PF_ENOMEM, "no memory for layers that visit the GPU");
    *v = (struct pf_visits){ .m = m, .card = card, .first = first };
    pf_status st = open_parts(v);
    if (st < 0) {
        pf_visits_close(v);
        return st;
    }
    *out = v;
    return PF_OK;
}

static void free_rooms(struct pf_visits *v)
{
    for (int k = 0; k < PF_VISIT_PARTS; k++) {
        v->card->ops->buf_free(v->card, v->room[k], v->room_bytes[k], false);
        v->room[k] = NULL;
    }
}

void pf_visits_close(struct pf_visits *v)
{
    if (!v)
        return;
    free_rooms(v);
    while (v->n_pinned > 0)
        v->card->ops->share->unpin(v->card, v->pinned[--v->n_pinned].begin);
    pf_free(v->pinned);
    pf_free(v);
}

/* ---- Pinning ----------------------------------------------------------------------------------------------------- */

void pf_visits_pin(struct pf_visits *v, void *slots, size_t bytes)
{
    v->card->ops->share->pin(v->card, slots, bytes);
    v->pinned[v->n_pinned++] = (struct pinned){ slots, (char *)slots + bytes };
    v->is_pinned = true;
}

/* The whole pages of a shard in which nothing lies but these layers, if there is little else among them: what is copied
 * from either side of them, in one piece, must not be pinned in part. */
static void pin_shard(struct pf_visits *v, int shard)
{
    enum { PAGE = 4096 };
    uint64_t bytes = 0;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(v->m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(v->m->file, i);
        int il = pf_tensor_layer(v->m, t);
        uintptr_t at = (uintptr_t)t->data;
        if (t->shard != shard || il < v->first || il >= v->m->n_layer)
            continue;
        bytes += t->n_bytes;
        begin = at < begin ? at : begin;
        end = at + t->n_bytes > end ? at + t->n_bytes : end;
    }
    bool has_pages = bytes > 0 && end - begin <= bytes + bytes / 8;
    begin = (begin + PAGE - 1) / PAGE * PAGE;
    end = end / PAGE * PAGE;
    if (has_pages && begin < end)
        pf_visits_pin(v, (void *)begin, end - begin);
}

static void pin_file(struct pf_visits *v)
{
    v->is_pinned = true;
    for (int i = 0; i < pf_gguf_n_shards(v->m->file); i++)
        pin_shard(v, i);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* A copy lies on one side of where pinned memory begins, and of where it ends. Returns the number of copies. */
static int cut_copy(const struct pf_visits *v, struct pf_piece whole, struct pf_piece *copies)
{
    int n = 0;
    for (int i = 0; i < 2 * v->n_pinned; i++) {
        const char *from = whole.from, *edge = i % 2 ? v->pinned[i / 2].end : v->pinned[i / 2].begin;
        if (edge <= from || edge >= from + whole.bytes)
            continue;
        size_t before = (size_t)(edge - from);
        copies[n++] = (struct pf_piece){ whole.to, from, before };
        whole = (struct pf_piece){ (char *)whole.to + before, edge, whole.bytes - before };
    }
    copies[n++] = whole;
    return n;
}

static pf_status begin_part(struct pf_visits *v, const struct pf_layer *l, enum pf_visit_part part)
{
    struct pf_piece *pieces = v->pieces[part];
    struct pf_piece copies[3 * PF_LAYER_WEIGHTS];
    char *to = v->room[part];
    int n = 0, n_copies = 0;
    for (int i = 0; i < l->n_weights; i++) {
        if (part_of(l, l->weights[i]) != part)
            continue;
        pieces[n] = (struct pf_piece){ to, l->weights[i]->data, pf_weight_bytes(l->weights[i]) };
        pf_count(&v->bytes_sent, pieces[n].bytes);
        n_copies += cut_copy(v, pieces[n], copies + n_copies);
        to += pf_share_room(pieces[n++].bytes);
    }
    v->n_pieces[part] = n;
    return v->card->ops->share->fetch(v->card, FIRST_TICKET + (int)part, copies, n_copies);
}

pf_status pf_visits_begin(struct pf_visits *v, int il)
{
    if (il < v->first)
        return PF_OK;
    if (!v->is_pinned)
        pin_file(v);
    for (int k = 0; k < PF_VISIT_PARTS; k++)
        PF_TRY(begin_part(v, &v->m->layers[il], (enum pf_visit_part)k));
    return PF_OK;
}

pf_status pf_visits_lend(struct pf_visits *v, int il, enum pf_visit_part part)
{
    const struct pf_share_ops *share = v->card->ops->share;
    if (il < v->first)
        return PF_OK;
    PF_TRY(share->use(v->card, FIRST_TICKET + (int)part));
    for (int *n = &v->n_lent[part]; *n < v->n_pieces[part]; ++*n) {
        const struct pf_piece *p = &v->pieces[part][*n];
        PF_TRY(share->lend(v->card, p->from, p->bytes, p->to));
    }
    return PF_OK;
}

static pf_status take_back(struct pf_visits *v, enum pf_visit_part part)
{
    pf_status st = PF_OK;
    while (v->n_lent[part] > 0) {
        pf_status taken = v->card->ops->share->lend(v->card, v->pieces[part][--v->n_lent[part]].from, 0, NULL);
        st = st < 0 ? st : taken;
    }
    return st;
}

pf_status pf_visits_take_back(struct pf_visits *v, int il, enum pf_visit_part part)
{
    if (il < v->first)
        return PF_OK;
    PF_TRY(take_back(v, part));
    return v->card->ops->share->release(v->card, FIRST_TICKET + (int)part);
}

pf_status pf_visits_copied(struct pf_visits *v, int il)
{
    const struct pf_share_ops *share = v->card->ops->share;
    for (int k = 0; il >= v->first && k < PF_VISIT_PARTS; k++) {
        if (share->fetch_wait(v->card, FIRST_TICKET + k) == PF_FETCH_FAILED)
            PF_FAIL(PF_EDEVICE, "a copy of layer %d to the GPU failed", il);
        v->copied_ns += share->fetch_ns(v->card, FIRST_TICKET + k);
    }
    return PF_OK;
}

void pf_visits_drop(struct pf_visits *v)
{
    for (int k = 0; k < PF_VISIT_PARTS; k++) {
        (void)take_back(v, (enum pf_visit_part)k);
        (void)v->card->ops->share->fetch_wait(v->card, FIRST_TICKET + k);
    }
}

/* ---- Prices ------------------------------------------------------------------------------------------------------ */

/* What is slow once may be so for reasons that pass: a first step reads the drive and loads kernels. */
static void learn(double *price, double ns)
{
    *price += *price == 0 || ns < *price ? ns - *price : (ns - *price) / 4;
}

void pf_visits_learn(struct pf_visits *v, int rows, int n_layers, uint64_t ns)
{
    double row_ns = (double)ns / n_layers / rows;
    bool copies_hide_it = (double)ns < 1.25 * (double)v->copied_ns;      /* then a row takes that much at most */
    learn(&v->copy_ns, (double)v->copied_ns / n_layers);
    if (!copies_hide_it || v->row_ns == 0 || row_ns < v->row_ns)
        learn(&v->row_ns, row_ns);
    v->copied_ns = 0;
}

void pf_visits_learn_cpu(struct pf_visits *v, int rows, int n_layers, uint64_t ns)
{
    if (rows >= LEAST_ROWS)
        learn(&v->cpu_row_ns, (double)ns / n_layers / rows);
}

/* Prices of the card that stand against visits become lower each time, so that they are tried again some day. */
bool pf_visits_pay(struct pf_visits *v, int rows, int n_layers)
{
    if (v->is_over || rows < LEAST_ROWS || n_layers == 0)
        return false;
    if (v->row_ns == 0 || v->cpu_row_ns == 0)
        return v->row_ns == 0 || rows >= TRIAL_ROWS;
    double card = rows * v->row_ns > v->copy_ns ? rows * v->row_ns : v->copy_ns;
    bool pays = card < GAIN * rows * v->cpu_row_ns;
    v->copy_ns *= pays ? 1 : 0.95;
    v->row_ns *= pays ? 1 : 0.95;
    return pays;
}

void pf_visits_end(struct pf_visits *v)
{
    v->is_over = true;
}

bool pf_visits_give_way(struct pf_visits *v)
{
    bool had_room = v->room[0] != NULL;
    free_rooms(v);
    v->is_over = true;
    return had_room;
}

uint64_t pf_visits_bytes_sent(const struct pf_visits *v)
{
    return pf_counted(&v->bytes_sent);
}

void pf_visits_reset(struct pf_visits *v)
{
    pf_count_anew(&v->bytes_sent);
}

/* See crew.h. */
#include "moe/session/crew.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"

enum { BLOCK_BYTES = 4096, MOST_BYTES = 1 << 26, HEAD_BYTES = 8 };   /* of a message: its first part; the whole; in
                                                                        front of the first thing */

struct fared {
    int32_t status;
    char    why[508];
};

/* ---- Agreeing ---------------------------------------------------------------------------------------------------- */

static struct fared fared_of(pf_status st)
{
    struct fared f = { .status = st };
    if (st < 0)
        snprintf(f.why, sizeof f.why, "%s", pf_last_error());
    return f;
}

pf_status pf_crew_agree(struct pf_crew *crew, pf_status st)
{
    struct fared mine = fared_of(st), all[PF_MAX_GPUS];
    PF_TRY(pf_ranks_gather(crew->ranks, &mine, all, sizeof mine));
    for (int k = 0; k < crew->n; k++)
        if (all[k].status < 0 && k == crew->rank)
            PF_FAIL(all[k].status, "%s", all[k].why);
        else if (all[k].status < 0)
            PF_FAIL(all[k].status, "rank %d: %s", k, all[k].why);
    return PF_OK;
}

pf_status pf_crew_refuse(const struct pf_model *m, const char *what)
{
    if (m->crew)
        PF_FAIL(PF_EUNSUPPORTED, "of a model that several processes run %s", what);
    return PF_OK;
}

/* ---- Telling and hearing ----------------------------------------------------------------------------------------- */

/* Messages have room for BLOCK_BYTES at least, and begin with the bytes of all things in them. */
static pf_status fit_message(struct pf_crew *crew, size_t bytes)
{
    size_t wanted = bytes < BLOCK_BYTES ? BLOCK_BYTES : 2 * bytes;
    if (bytes <= crew->message_bytes && crew->message)
        return PF_OK;
    char *p = pf_alloc(PF_MEM_SESSION, wanted);
    if (!p)
        PF_FAIL(PF_ENOMEM, "no memory for a message of %zu bytes to other ranks", bytes);
    if (crew->message)
        memcpy(p, crew->message, crew->message_bytes);
    pf_free(crew->message);
    crew->message = p;
    crew->message_bytes = wanted;
    return PF_OK;
}

/* Puts a thing behind the others that are to be told, with `more` bytes behind it that the caller fills in. */
static pf_status add(struct pf_crew *crew, struct pf_told *told, size_t more, void **behind)
{
    size_t at = crew->used ? crew->used : HEAD_BYTES;
    told->committed = crew->committed;
    told->bytes = (uint32_t)((sizeof *told + more + 7) / 8 * 8);
    PF_TRY(fit_message(crew, at + told->bytes));
    memset(crew->message + at, 0, told->bytes);
    memcpy(crew->message + at, told, sizeof *told);
    if (behind)
        *behind = crew->message + at + sizeof *told;
    crew->used = at + told->bytes;
    crew->committed = false;
    return PF_OK;
}

/* Like add, for what nobody waits for. The others would go on without what they were not told, so nothing may be told
 * behind it. */
static void add_unasked(struct pf_crew *crew, struct pf_told *told)
{
    if (add(crew, told, 0, NULL) < 0)
        crew->is_incomplete = true;
}

/* Ranks whose sessions hold different things cannot go on together. */
static pf_status refuse_incomplete(struct pf_crew *crew)
{
    const char *why = "no memory for what other ranks had to be told";
    pf_fail(PF_ENOMEM, "%s", why);
    pf_ranks_abandon(crew->ranks, PF_ENOMEM);
    PF_FAIL(PF_ENOMEM, "%s", why);
}

/* Tells all that is to be told. */
static pf_status flush(struct pf_crew *crew)
{
    assert(!crew->owes);
    if (crew->is_incomplete)
        return refuse_incomplete(crew);
    uint64_t bytes = crew->used;
    memcpy(crew->message, &bytes, sizeof bytes);
    crew->used = 0;
    PF_TRY(pf_ranks_broadcast(crew->ranks, crew->message, BLOCK_BYTES));
    return bytes <= BLOCK_BYTES
               ? PF_OK
               : pf_ranks_broadcast(crew->ranks, crew->message + BLOCK_BYTES, (size_t)bytes - BLOCK_BYTES);
}

static pf_status hear_message(struct pf_crew *crew)
{
    uint64_t bytes;
    PF_TRY(fit_message(crew, BLOCK_BYTES));
    PF_TRY(pf_ranks_broadcast(crew->ranks, crew->message, BLOCK_BYTES));
    memcpy(&bytes, crew->message, sizeof bytes);
    if (bytes < HEAD_BYTES || bytes > MOST_BYTES || bytes % 8 != 0)
        PF_FAIL(PF_EIO, "rank 0 sent a message of %llu bytes, which cannot be", (unsigned long long)bytes);
    PF_TRY(fit_message(crew, (size_t)bytes));
    if (bytes > BLOCK_BYTES)
        PF_TRY(pf_ranks_broadcast(crew->ranks, crew->message + BLOCK_BYTES, (size_t)bytes - BLOCK_BYTES));
    crew->used = (size_t)bytes;
    crew->at = HEAD_BYTES;
    return PF_OK;
}

pf_status pf_crew_hear(struct pf_model *m, const struct pf_told **told)
{
    struct pf_crew *crew = m->crew;
    while (crew->at >= crew->used)
        PF_TRY(hear_message(crew));
    *told = (const struct pf_told *)(crew->message + crew->at);
    if (crew->used - crew->at < sizeof **told || (*told)->bytes < sizeof **told ||
        (*told)->bytes > crew->used - crew->at || (*told)->bytes % 8 != 0)
        PF_FAIL(PF_EIO, "rank 0 tells something of %u bytes, which cannot be", (*told)->bytes);
    crew->at += (*told)->bytes;
    return PF_OK;
}

pf_status pf_crew_tell_open(struct pf_session *s)
{
    struct pf_told told = { .kind = PF_TOLD_OPEN, .opts = s->opts };
    struct pf_crew *crew = s->m->crew;
    int number = 1;
    if (!pf_crew_leads(s->m))
        return PF_OK;
    while (number < PF_CREW_SESSIONS && crew->taken[number])
        number++;
    if (number == PF_CREW_SESSIONS)
        PF_FAIL(PF_ENOMEM, "more than %d sessions of several processes", PF_CREW_SESSIONS - 1);
    told.session = number;
    told.opts.draft_fn = NULL;
    told.opts.draft_ctx = NULL;
    told.opts.n_near = 0;                    /* each rank's own affair */
    PF_TRY(add(crew, &told, 0, NULL));
    crew->taken[number] = true;
    s->number = number;
    PF_TRY(flush(crew));
    return pf_crew_agree(crew, PF_OK);
}

void pf_crew_tell_close(struct pf_session *s)
{
    struct pf_told told = { .kind = PF_TOLD_CLOSE, .session = s->number };
    if (!pf_crew_leads(s->m) || s->number == 0)
        return;
    add_unasked(s->m->crew, &told);
    s->m->crew->taken[s->number] = false;
    s->number = 0;
}

void pf_crew_tell_state(const struct pf_session *s, enum pf_told_kind kind, int number, int64_t pos, bool state)
{
    struct pf_told told = { .kind = kind, .session = s->number, .number = number, .pos = pos, .state = state };
    if (pf_crew_leads(s->m))
        add_unasked(s->m->crew, &told);
}

void pf_crew_note_commit(struct pf_model *m)
{
    if (pf_crew_leads(m))
        m->crew->committed = true;
}

pf_status pf_crew_tell_step(const struct pf_step *t)
{
    struct pf_told told = { .kind = PF_TOLD_STEP, .n_parts = t->n_parts, .rows = t->rows, .back = t->back,
                            .how = (int32_t)t->how, .hands_out = t->hands_out };
    size_t parts_bytes = (size_t)t->n_parts * sizeof(struct pf_told_part);
    void *behind;
    PF_TRY(add(t->m->crew, &told, parts_bytes + (size_t)t->rows * sizeof(int32_t), &behind));
    struct pf_told_part *parts = behind;
    int32_t *tokens = (int32_t *)(parts + t->n_parts);
    for (int i = 0; i < t->n_parts; i++) {
        const struct pf_part *p = &t->parts[i];
        const struct pf_session *s = p->s;
        parts[i] = (struct pf_told_part){ .session = s->number, .rows = p->rows, .n_logits = p->n_logits,
                                          .planned = s->planned ? (int32_t)(s->planned - s->checkpoints) : -1,
                                          .hidden = p->hidden, .computed = s->computed,
                                          .planned_pos = s->planned_pos };
        memcpy(tokens + p->first, s->tokens + s->computed, (size_t)p->rows * sizeof *tokens);
    }
    return flush(t->m->crew);
}

/* ---- x ----------------------------------------------------------------------------------------------------------- */

static size_t x_floats(const struct pf_model *m)
{
    return (size_t)m->streams.n * (size_t)m->n_embd;
}

static void free_room(struct pf_crew *crew)
{
    if (crew->room)
        crew->owner->ops->buf_free(crew->owner, crew->room, crew->room_bytes, true);
    crew->room = NULL;
}

pf_status pf_crew_fit(struct pf_model *m)
{
    struct pf_crew *crew = m->crew;
    if (!crew || crew->cut.by_rows)
        return PF_OK;
    size_t bytes = sizeof(struct fared) + (size_t)m->work->sizes.max_rows * x_floats(m) * sizeof(float);
    if (crew->room && bytes <= crew->room_bytes)
        return PF_OK;
    free_room(crew);
    crew->owner = m->backend;
    crew->room_bytes = bytes;
    return crew->owner->ops->buf_alloc(crew->owner, bytes, true, &crew->room);
}

/* Rows [*first, t->rows) go from a rank to the next one. */
static size_t rows_to(const struct pf_step *t, int rank, int *first)
{
    *first = rank == 0 ? t->back : 0;
    return (size_t)(t->rows - *first) * x_floats(t->m);
}

static pf_status put_x(struct pf_step *t, float *to, int first, size_t n)
{
    pf_backend *b = t->unit->backend;
    const float *x = t->unit->buf.x + (size_t)first * x_floats(t->m);
    if (n == 0)
        return PF_OK;
    if (b == t->m->cpu) {
        memcpy(to, x, n * sizeof *to);
        return PF_OK;
    }
    PF_TRY(b->ops->download(b, to, x, n * sizeof *to));
    return b->ops->finish(b);
}

static pf_status get_x(struct pf_step *t, const float *from, int first, size_t n)
{
    pf_backend *b = t->unit->backend;
    float *x = t->unit->buf.x + (size_t)first * x_floats(t->m);
    if (b != t->m->cpu)
        return n ? b->ops->upload(b, x, from, n * sizeof *x) : PF_OK;
    memcpy(x, from, n * sizeof *x);
    return PF_OK;
}

pf_status pf_crew_hand_on(struct pf_step *t, pf_status st)
{
    struct pf_crew *crew = t->m->crew;
    int next = (crew->rank + 1) % crew->n, first;
    size_t n = rows_to(t, next, &first);
    struct fared fared = fared_of(st);
    struct fared *room = crew->room;
    if (st == PF_OK) {
        st = put_x(t, (float *)(room + 1), first, n);
        fared = fared_of(st);
    }
    *room = fared;
    PF_TRY(pf_ranks_send(crew->ranks, next, room, sizeof *room + n * sizeof(float)));
    if (st < 0)
        PF_FAIL(st, "%s", fared.why);
    return PF_OK;
}

/* A device that another rank has lost is none of this one's. */
static pf_status failed_before(int from, const struct fared *f)
{
    pf_status st = f->status == PF_EDEVICE ? PF_EIO : f->status;
    if (strncmp(f->why, "rank ", 5) == 0)    /* which had it from another one */
        PF_FAIL(st, "%s", f->why);
    PF_FAIL(st, "rank %d: %s", from, f->why);
}

pf_status pf_crew_take(struct pf_step *t)
{
    struct pf_crew *crew = t->m->crew;
    int from = (crew->rank + crew->n - 1) % crew->n, first;
    size_t n = rows_to(t, crew->rank, &first);
    const struct fared *room = crew->room;
    PF_TRY(pf_ranks_receive(crew->ranks, from, crew->room, sizeof *room + n * sizeof(float)));
    if (room->status < 0)
        return failed_before(from, room);
    return get_x(t, (const float *)(room + 1), first, n);
}

pf_status pf_crew_take_owed(struct pf_model *m)
{
    struct pf_crew *crew = m->crew;
    struct fared fared;
    if (!crew->owes)
        return PF_OK;
    crew->owes = false;
    PF_TRY(pf_ranks_receive(crew->ranks, crew->n - 1, &fared, sizeof fared));
    return fared.status < 0 ? failed_before(crew->n - 1, &fared) : PF_OK;
}

/* ---- By rows ----------------------------------------------------------------------------------------------------- */

pf_status pf_crew_leave_step(struct pf_model *m, pf_status st)
{
    return pf_ranks_abandon(m->crew->ranks, st);
}

pf_status pf_crew_end_step(struct pf_model *m, pf_status st)
{
    struct pf_crew *crew = m->crew;
    struct fared mine = fared_of(st), theirs, first = mine;
    int from = crew->rank;
    if (crew->rank > 0)
        PF_TRY(pf_ranks_send(crew->ranks, 0, &mine, sizeof mine));
    for (int k = 1; crew->rank == 0 && k < crew->n; k++) {
        PF_TRY(pf_ranks_receive(crew->ranks, k, &theirs, sizeof theirs));
        from = first.status < 0 ? from : k;
        first = first.status < 0 ? first : theirs;
    }
    if (first.status < 0 && from != crew->rank)
        return failed_before(from, &first);
    if (first.status < 0)
        PF_FAIL(first.status, "%s", first.why);
    return PF_OK;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void pf_crew_close(struct pf_model *m)
{
    struct pf_crew *crew = m->crew;
    struct pf_told told = { .kind = PF_TOLD_END };
    if (!crew)
        return;
    if (crew->rank == 0 && crew->is_together && add(crew, &told, 0, NULL) == PF_OK && flush(crew) == PF_OK)
        pf_crew_agree(crew, PF_OK);
    free_room(crew);
    pf_ranks_close(crew->ranks);
    pf_free(crew->message);
    pf_free(crew);
    m->crew = NULL;
}

/* A process that follows rank 0 (session/crew.h): has a session for each of its sessions, and does what it is told. */
#include "base/pf_mem.h"
#include "moe/run/batch.h"
#include "moe/session/crew.h"

struct follower {
    struct pf_model   *m;
    struct pf_session *sessions[PF_CREW_SESSIONS];
    struct pf_session *stepped[PF_MAX_BATCH_PARTS];      /* had a part in the last step, of which nobody knows yet
                                                            whether it counts */
    int                n_stepped;
};

static pf_status session_of(const struct follower *f, int number, struct pf_session **out)
{
    *out = number > 0 && number < PF_CREW_SESSIONS ? f->sessions[number] : NULL;
    if (!*out)
        PF_FAIL(PF_EIO, "rank 0 names a session %d, which this rank does not have", number);
    return PF_OK;
}

static pf_status open_one(struct follower *f, const struct pf_told *told)
{
    int number = told->session;
    if (number <= 0 || number >= PF_CREW_SESSIONS || f->sessions[number])
        PF_FAIL(PF_EIO, "rank 0 opens a session %d, which cannot be", number);
    return pf_crew_agree(f->m->crew, pf_session_open_so(&f->sessions[number], f->m, &told->opts));
}

static void close_one(struct follower *f, int number)
{
    if (number > 0 && number < PF_CREW_SESSIONS)
        pf_session_close(&f->sessions[number]);
    f->n_stepped = 0;
}

/* The parts that are told of, for sessions as they are before the step. */
static pf_status take_parts(struct follower *f, const struct pf_told *told, struct pf_part *parts)
{
    const struct pf_told_part *told_parts = pf_told_parts(told);
    const int32_t *tokens = pf_told_tokens(told);
    int rows = 0;
    for (int i = 0; i < told->n_parts; i++) {
        const struct pf_told_part *p = &told_parts[i];
        struct pf_session *s;
        PF_TRY(session_of(f, p->session, &s));
        if (p->rows < 1 || p->n_logits < 0 || p->n_logits > p->rows || p->computed < 0 ||
            p->computed > s->opts.n_ctx - p->rows || p->planned >= s->n_checkpoints)
            PF_FAIL(PF_EIO, "rank 0 tells of a step that cannot be");
        for (int r = 0; r < p->rows; r++)
            s->tokens[p->computed + r] = tokens[rows + r];
        s->computed = p->computed;
        s->planned = p->planned >= 0 ? &s->checkpoints[p->planned] : NULL;
        s->planned_pos = p->planned_pos;
        parts[i] = (struct pf_part){ .s = s, .from = s->computed, .first = rows, .rows = p->rows };
        if (pf_crew_by_rows(f->m)) {
            parts[i].n_logits = p->n_logits;
            parts[i].hidden = p->hidden;
        }
        f->stepped[i] = s;
        rows += p->rows;
    }
    return PF_OK;
}

/* Whether a step of so many parts and rows fits what was sent of it and the buffers, before anything of it is read. */
static bool can_be(const struct pf_model *m, const struct pf_told *told)
{
    if (told->rows < 1 || !m->work || told->rows > m->work->sizes.max_rows)
        return false;
    size_t behind = (size_t)told->n_parts * sizeof(struct pf_told_part) + (size_t)told->rows * sizeof(int32_t);
    int64_t rows = 0;
    if (behind > told->bytes - sizeof *told)
        return false;
    for (int i = 0; i < told->n_parts; i++)
        rows += pf_told_parts(told)[i].rows;
    return rows == told->rows && told->back >= 0 && told->back <= told->rows;
}

/* A step that fails here rank 0 hears of; what remains of it is rank 0's. */
static pf_status make_step(struct follower *f, const struct pf_told *told)
{
    struct pf_part parts[PF_MAX_BATCH_PARTS];
    struct pf_step t = { .m = f->m, .parts = parts, .n_parts = told->n_parts, .rows = told->rows, .back = told->back,
                         .is_told = pf_crew_by_rows(f->m), .how = (enum pf_repeat_how)told->how,
                         .hands_out = told->hands_out };
    uint64_t ns;
    f->n_stepped = 0;
    if (told->n_parts < 1 || told->n_parts > PF_MAX_BATCH_PARTS)
        PF_FAIL(PF_EIO, "rank 0 tells of a step of %d sequences", told->n_parts);
    if (told->how < PF_REPEAT_ANY || told->how > PF_REPEAT_REPLAY)
        PF_FAIL(PF_EIO, "rank 0 tells of a step that is made in a way that cannot be");
    if (!can_be(f->m, told))
        PF_FAIL(PF_EIO, "rank 0 tells of a step of %d rows that cannot be", told->rows);
    PF_TRY(take_parts(f, told, parts));
    f->n_stepped = told->n_parts;
    for (int i = 0; i < t.n_parts; i++)
        t.n_logits += parts[i].n_logits;
    pf_step_make(&t, &ns);
    return PF_OK;
}

static void commit(struct follower *f)
{
    for (int i = 0; i < f->n_stepped; i++)
        pf_state_swap(f->stepped[i]);
    f->n_stepped = 0;
}

static pf_status keep(struct follower *f, const struct pf_told *told)
{
    struct pf_session *s;
    PF_TRY(session_of(f, told->session, &s));
    if (told->number < 0 || told->number >= s->n_checkpoints)
        PF_FAIL(PF_EIO, "rank 0 names a checkpoint %d, which this rank does not have", told->number);
    pf_state_copy_kept(s, told->number, told->pos, told->state, told->kind == PF_TOLD_KEEP);
    return PF_OK;
}

static pf_status change_state(struct follower *f, const struct pf_told *told)
{
    struct pf_session *s;
    PF_TRY(session_of(f, told->session, &s));
    if (told->kind == PF_TOLD_SETTLE)
        return pf_settle_rows(s, told->number);
    pf_state_swap(s);
    return PF_OK;
}

static pf_status obey(struct follower *f, const struct pf_told *told)
{
    if (told->committed)
        commit(f);
    switch ((enum pf_told_kind)told->kind) {
    case PF_TOLD_OPEN:
        open_one(f, told);                   /* that it failed rank 0 knows */
        return PF_OK;
    case PF_TOLD_CLOSE:
        close_one(f, told->session);
        return PF_OK;
    case PF_TOLD_STEP:
        return make_step(f, told);
    case PF_TOLD_KEEP:
    case PF_TOLD_TAKE_BACK:
        return keep(f, told);
    case PF_TOLD_SWAP:
    case PF_TOLD_SETTLE:
        return change_state(f, told);
    case PF_TOLD_END:
        return pf_crew_agree(f->m->crew, PF_OK);
    }
    PF_FAIL(PF_EIO, "rank 0 wants something that this rank does not know");
}

static pf_status follow(struct follower *f)
{
    const struct pf_told *told;
    do {
        PF_TRY(pf_crew_hear(f->m, &told));
        PF_TRY(obey(f, told));
    } while (told->kind != PF_TOLD_END);
    return PF_OK;
}

pf_status pf_model_follow(pf_model *m)
{
    if (!m->crew || m->crew->rank == 0)
        PF_FAIL(PF_EINVAL, "the model was not opened as one that follows another process");
    struct follower *f = pf_alloc(PF_MEM_SESSION, sizeof *f);
    if (!f)
        PF_FAIL(PF_ENOMEM, "no memory to follow another process");
    f->m = m;
    pf_status st = follow(f);
    for (int i = 0; i < PF_CREW_SESSIONS; i++)
        pf_session_close(&f->sessions[i]);
    pf_free(f);
    return st;
}

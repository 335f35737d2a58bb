/* Appends tokens to sessions by steps that all of them share.
 *
 *     session a   | new token |                                        step 1: a's token, b's first rows
 *     session b   | catching up | new tokens ........ | tail |         step 2: more of b ...
 *                               ^                     ^      ^
 *                               stop                  stop   stop: checkpoints are made
 *
 * A step has as many rows as the largest n_batch of its sessions; each session takes what is left to its next stop, in
 * the order of the pieces. A step that succeeds is committed in all its sessions, one that fails in none; of steps that
 * are on several cards at once none is, if any fails. Where a step
 * of several sessions fails, each of them gets a step of its own: whose fault it was fails, the others go on together.
 * If the device is lost, the CPU computes anew what went with it, and goes on. */
#include "moe/run/batch.h"

#include <stdio.h>
#include <string.h>

#include "base/pf_fp.h"
#include "base/pf_time.h"
#include "moe/place/placement.h"
#include "moe/run/forward.h"
#include "moe/session/crew.h"
#include "moe/session/watch.h"

enum { TAIL = 32 };

/* Takes over what the backends have counted. */
static void take_counts(struct pf_model *m)
{
    const struct pf_placement *left = m->left;
    const struct pf_placement *p = left ? left : m->place;
    uint64_t bytes = m->cpu->weight_bytes_read, launches = m->cpu->n_launches;
    for (int k = 0; k < pf_place_n_cards(p); k++) {
        bytes += p->cards[k] ? p->cards[k]->weight_bytes_read : 0;
        launches += p->cards[k] ? p->cards[k]->n_launches : 0;
    }
    atomic_store(&m->counted.weight_bytes, bytes);
    atomic_store(&m->counted.launches, launches);
}

/* Bytes of a layer's keys and values beyond its card's memory that rows up to position `end` see. */
static uint64_t far_bytes_of(const struct pf_kv_layer *kv, int64_t end)
{
    int64_t n_far = kv->view.n_chunks - kv->view.n_near;
    int64_t n = (end + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS - kv->view.n_near;
    return kv->far && n > 0 ? (kv->k_far + kv->v_far) / (uint64_t)n_far * (uint64_t)n : 0;
}

static uint64_t far_bytes(const struct pf_step *t)
{
    uint64_t bytes = 0;
    for (const struct pf_part *p = t->parts; p < t->parts + t->n_parts; p++)
        for (int il = 0; il < t->m->n_layer; il++)
            if (t->m->layers[il].mixer == PF_MIXER_ATTENTION)
                bytes += far_bytes_of(&p->s->kv[t->m->layers[il].attn.kv_layer], pf_part_end(p));
    return bytes;
}

/* A step took part in what was made. */
static void count_step(const struct pf_step *t, bool well)
{
    struct pf_model *m = t->m;
    atomic_fetch_add(&m->n_steps, 1);
    atomic_fetch_add(&m->n_tokens, well ? (uint64_t)t->rows : 0);
    atomic_fetch_add(&m->far_bytes, far_bytes(t));
}

pf_status pf_step_make(struct pf_step *t, uint64_t *ns)
{
    struct pf_model *m = t->m;
    uint64_t begin = pf_now_ns();
    unsigned fp = pf_fp_begin();
    pf_status st = pf_forward(t);
    pf_fp_end(fp);
    pf_place_ended(m->place, begin, st == PF_OK);
    *ns = pf_now_ns() - begin;
    atomic_fetch_add(&m->step_ns, *ns);
    if (st == PF_OK && t->n_logits == t->rows)
        pf_prices_learn(&m->row_prices, t->rows, (double)*ns);
    count_step(t, st == PF_OK);
    take_counts(m);
    return st;
}

/* ---- Rows of a step ---------------------------------------------------------------------------------------------- */

/* Whether the same units compute the same layers of both. */
static bool cut_alike(const struct pf_session *a, const struct pf_session *b)
{
    bool alike = a->n_units == b->n_units && a->output_unit - a->units == b->output_unit - b->units;
    for (int i = 0; alike && i < a->n_units; i++)
        alike = a->units[i].end == b->units[i].end;
    return alike;
}

/* A piece's rows at positions from .., `room` at most. If all are to have logits, those do that are the piece's own,
 * otherwise the last one does. */
static struct pf_part part_of(const struct pf_piece *p, int64_t from, int first, int room)
{
    struct pf_session *s = p->s;
    int64_t left = p->stop - from;
    int most = s->opts.n_batch < room ? s->opts.n_batch : room, rows = left < most ? (int)left : most;
    struct pf_part part = { .s = s, .from = from, .first = first, .rows = rows, .n_logits = from + rows == p->end,
                            .logits = s->logits };
    part.n_drafts = p->n_drafts;
    part.hidden = s->hidden != NULL;
    float *all = p->n_drafts ? s->logits : p->logits;
    if (all) {
        int64_t begin = from > p->first ? from : p->first;
        part.n_logits = from + rows > begin ? (int)(from + rows - begin) : 0;
        part.logits = all + (size_t)(begin - p->first) * (size_t)s->m->n_vocab;
    }
    return part;
}

/* The largest batches that a session of these pieces has. */
static int most_rows(const struct pf_piece *pieces, int n)
{
    int most = 0;
    for (int i = 0; i < n; i++)
        most = pieces[i].s->opts.n_batch > most ? pieces[i].s->opts.n_batch : most;
    return most;
}

/* How many pieces the next step takes. A device that holds the whole model repeats steps of up to PF_REPEAT_PARTS
 * sequences, and launches the kernels of a larger one singly; rows are dealt evenly to the steps. */
static int most_parts(const struct pf_piece *pieces, int n)
{
    enum { STEPS = 3 };                  /* that are repeated are done sooner than one that is not */
    const struct pf_placement *p = pieces->s->m->place;
    int n_rows = 0;
    if (p->device == p->m->cpu || !p->cut.whole || p->experts_apart)
        return n;
    for (int i = 0; i < n; i++) {
        if (!pieces[i].done && pieces[i].stop - pieces[i].s->computed != 1)
            return n;
        n_rows += !pieces[i].done;
    }
    int steps = (n_rows + PF_REPEAT_PARTS - 1) / PF_REPEAT_PARTS;
    return steps <= STEPS ? (n_rows + steps - 1) / steps : n;
}

/* Fills parts with the rows of the next step. Pieces whose sessions are cut otherwise than the first one that is not
 * done wait for a step of their own. */
static void gather(const struct pf_piece *pieces, int n, struct pf_part *parts, struct pf_step *t)
{
    const struct pf_piece *like = pieces;
    while (like->done)
        like++;
    int most = most_rows(pieces, n), n_parts = most_parts(pieces, n);
    *t = (struct pf_step){ .m = like->s->m, .parts = parts };
    for (int i = 0; i < n && t->rows < most && t->n_parts < n_parts; i++) {
        if (pieces[i].done || !cut_alike(pieces[i].s, like->s))
            continue;
        parts[t->n_parts] = part_of(&pieces[i], pieces[i].s->computed, t->rows, most - t->rows);
        t->rows += parts[t->n_parts].rows;
        t->n_logits += parts[t->n_parts++].n_logits;
    }
}

/* Tells those who draft for the part's session of what it has evaluated. Of single tokens that is at their expense, but
 * for what is made up for, as after loading. */
static void tell_sources(const struct pf_part *p)
{
    struct pf_session *s = p->s;
    s->n_hidden = p->rows;
    for (struct pf_source *from = s->sources; from < s->sources + s->n_sources; from++) {
        uint64_t begin = pf_now_ns();
        if (!from->drafter->ops->went)
            continue;
        from->drafter->ops->went(from->drafter, s->computed - p->rows, p->rows, p->rows - p->n_drafts);
        double ns = (double)(pf_now_ns() - begin), most = from->account.token_ns;
        if (p->rows - p->n_drafts == 1)
            from->account.balance_ns -= ns < most ? ns : most;
    }
}

static bool has_cards(const struct pf_session *s)
{
    const struct pf_placement *p = s->m->place;
    return p->cut.n_more > 0 && !p->lost && s->n_units == pf_place_n_cards(p);
}

/* Whether somebody wants what a step of the session has made before the next one begins. */
static bool is_watched(const struct pf_session *s)
{
    return s->hidden || pf_watch_any(s->m);
}

/* Whether the step is one of a prompt that several cards or processes compute, one after the other, and not its last:
 * then the next one can begin on the first while the others are still at work. No other session's step may come
 * between, so the step lock is held meanwhile: not if anyone waits for it. */
static bool may_follow(const struct pf_step *t, const struct pf_piece *p)
{
    const struct pf_session *s = p->s;
    bool ranks = t->m->crew && !pf_crew_by_rows(t->m), cards = has_cards(s) && !s->m->place->experts_apart;
    bool is_last = t->n_logits > 0 || pf_part_end(t->parts) == p->stop;
    return !is_last && (cards || ranks) && !is_watched(s) && !pf_lock_is_wanted(&t->m->step_lock);
}

static void commit(const struct pf_part *p, uint64_t ns)
{
    struct pf_session *s = p->s;
    pf_state_commit(s, p->rows);
    s->pos = s->computed > s->pos ? s->computed : s->pos;
    s->step_ns = ns;
}

/* ---- Steps of a pipeline (pipeline.c) ---------------------------------------------------------------------------- */

struct several {
    struct pf_part parts[PF_PIPELINE_STEPS];
    struct pf_step steps[PF_PIPELINE_STEPS];
    int            n;
};

/* The next steps of a prompt, if they can be on several cards at once; else n is 0 or 1. What has state goes step by
 * step. */
static void gather_several(const struct pf_piece *p, struct several *out)
{
    const struct pf_session *s = p->s;
    struct pf_model *m = s->m;
    int most = s->ring_positions ? PF_PIPELINE_RING_STEPS : PF_PIPELINE_STEPS;
    out->n = 0;
    if (p->one_by_one || m->crew || m->recurrent || !has_cards(s) || !m->place->experts_apart || is_watched(s))
        return;
    for (int64_t from = s->computed; from < p->stop && out->n < most;) {
        struct pf_part *part = &out->parts[out->n];
        *part = part_of(p, from, 0, s->opts.n_batch);
        if (!pf_pipeline_takes(part))
            return;
        out->steps[out->n++] = (struct pf_step){ .m = m, .parts = part, .n_parts = 1, .rows = part->rows,
                                                 .n_logits = part->n_logits };
        from += part->rows;
    }
}

static pf_status make_several(struct several *v, int *n_done, uint64_t *ns)
{
    struct pf_model *m = v->steps->m;
    uint64_t begin = pf_now_ns();
    unsigned fp = pf_fp_begin();
    pf_status st = pf_pipeline(v->steps, v->n, n_done);
    pf_fp_end(fp);
    pf_place_ended(m->place, begin, st == PF_OK);
    *ns = pf_now_ns() - begin;
    atomic_fetch_add(&m->step_ns, *ns);
    for (int i = 0; i < *n_done; i++)
        count_step(&v->steps[i], true);
    take_counts(m);
    return st;
}

/* Evaluates them, and commits those that were through when one was cancelled, or when somebody waited. */
static pf_status run_several(struct several *v)
{
    struct pf_session *s = v->parts->s;
    int n_done;
    uint64_t ns;
    pf_status st = make_several(v, &n_done, &ns), unchanged = pf_gguf_unchanged(s->m->file);
    for (int i = 0; i < n_done && unchanged == PF_OK; i++) {
        commit(&v->parts[i], ns);
        tell_sources(&v->parts[i]);
    }
    PF_TRY(unchanged);
    return st;
}

/* Makes as many steps of the piece as can be made at once. False: none, and *st says nothing. Where a copy, a card or a
 * number was bad, single steps find out which step it was, and how to go on. With the step lock held. */
static bool make_at_once(struct pf_piece *p, pf_status *st)
{
    struct several v = { .n = 0 };
    *st = pf_session_follow(p->s);
    if (*st == PF_OK)
        gather_several(p, &v);
    if (v.n < 2)
        return false;
    *st = run_several(&v);
    pf_state_abandon(p->s, pf_part_end(&v.parts[v.n - 1]));
    p->one_by_one = *st == PF_EDEVICE || *st == PF_ENUMERIC;
    return !p->one_by_one;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* Evaluates the next rows and commits them, if the file stayed what it is. With the step lock held. */
static pf_status step_of(struct pf_piece *pieces, int n)
{
    struct pf_part parts[PF_MAX_BATCH_PARTS];
    struct pf_step t;
    for (int i = 0; i < n; i++)
        PF_TRY(pieces[i].done ? PF_OK : pf_session_follow(pieces[i].s));
    gather(pieces, n, parts, &t);
    for (int i = 0; i < t.n_parts; i++)
        pf_state_begin(parts[i].s, parts[i].rows);
    t.follows = n == 1 && may_follow(&t, pieces);
    uint64_t ns;
    pf_status st = pf_step_make(&t, &ns);
    PF_TRY(pf_gguf_unchanged(t.m->file));        /* whatever st is: the weights may have been others than before */
    PF_TRY(st);
    pf_crew_note_commit(t.m);
    for (int i = 0; i < t.n_parts; i++)
        commit(&parts[i], ns);
    for (int i = 0; i < t.n_parts; i++)
        tell_sources(&parts[i]);
    return PF_OK;
}

/* ---- The way of a piece: with the step lock held ----------------------------------------------------------------- */

/* Where a conversation may be taken up again, checkpoints are made, if there are any: where the tokens begin, unless
 * the last one is little before that; where they end; and a little before that, since what a template puts in front of
 * an answer is not always what it leaves there afterwards. A recurrent state must be kept as it passes there; of
 * windows, the rings still have it at the end. */
static bool has_tail(const struct pf_piece *p)
{
    return p->end - p->first > 2 * TAIL;
}

/* A long way leaves checkpoints at ends of its steps, too; most of them give way to later ones (session/state.c). */
static void keep_on_the_way(struct pf_piece *p)
{
    enum { APART = 256 };                /* a copy of the state is little beside so many positions */
    if (!p->keeps || p->s->computed - p->kept_at < APART)
        return;
    p->kept_at = p->s->computed;
    pf_state_keep(p->s, p->s->computed);
}

static void leave_first(struct pf_piece *p)
{
    struct pf_session *s = p->s;
    p->catches_up = false;
    p->stop = p->end;
    pf_state_keep(s, s->computed);
    if (has_tail(p) && pf_state_can_cut(s->m))
        pf_state_plan(s, p->end - TAIL);
    else if (has_tail(p) && s->m->recurrent)
        p->stop = p->end - TAIL;
}

static void begin_piece(struct pf_piece *p)
{
    struct pf_session *s = p->s;
    p->first = s->pos;
    p->end = p->first + (int64_t)p->n;
    p->stop = p->end;
    p->done = false;
    memmove(s->tokens + p->first, p->tok, p->n * sizeof *p->tok);
    p->keeps = p->n - (size_t)p->n_drafts > 1 || s->computed < p->first;
    p->kept_at = s->computed;
    p->catches_up = p->first - s->computed > TAIL;
    if (p->catches_up)
        p->stop = p->first;
    else if (p->keeps)
        leave_first(p);
}

static void end_piece(struct pf_piece *p)
{
    pf_state_plan(p->s, 0);
    if (p->keeps && has_tail(p))
        pf_state_keep(p->s, p->end - TAIL);
    if (p->keeps)
        pf_state_keep(p->s, p->end);
    p->done = true;
}

/* After each step: what there is to do where the session stands now. */
static void go_on(struct pf_piece *p)
{
    if (p->done)
        return;
    if (p->s->computed < p->stop) {
        keep_on_the_way(p);
    } else if (p->catches_up) {
        leave_first(p);
    } else if (p->stop < p->end) {
        pf_state_keep(p->s, p->stop);
        p->stop = p->end;
    } else {
        end_piece(p);
    }
}

/* ---- All pieces -------------------------------------------------------------------------------------------------- */

void pf_piece_fail(struct pf_piece *p, pf_status st)
{
    snprintf(p->s->why, sizeof p->s->why, "%s", pf_last_error());
    p->status = st;
    p->done = true;
    pf_state_plan(p->s, 0);
    if (st == PF_ECANCEL)
        atomic_store(&p->s->cancel, false);
}

static int n_to_do(const struct pf_piece *pieces, int n)
{
    int left = 0;
    for (int i = 0; i < n; i++)
        left += !pieces[i].done;
    return left;
}

/* The session is on the model's backend, and its state is that of what it has computed. */
static pf_status follow(struct pf_session *s)
{
    struct pf_model *m = s->m;
    pf_status st = pf_session_follow(s);
    st = st == PF_OK ? pf_settle(s) : st;
    if (st == PF_EDEVICE && pf_model_leave_device(m))
        st = pf_session_follow(s);
    return st;
}

static pf_status begin(struct pf_piece *p)
{
    pf_lock_take(&p->s->m->step_lock);
    pf_status st = follow(p->s);
    if (st == PF_OK)
        begin_piece(p);
    pf_lock_give(&p->s->m->step_lock);
    return st;
}

/* A step of all pieces that are not done, or several of the only one. A lost device is left: the step is to be made
 * again. */
static pf_status make(struct pf_piece *pieces, int n)
{
    pf_status st;
    if (n > 1 || !make_at_once(pieces, &st))
        st = step_of(pieces, n);
    if (st == PF_EDEVICE && pf_model_leave_device(pieces->s->m))
        st = PF_OK;
    for (int i = 0; st == PF_OK && i < n; i++)
        go_on(&pieces[i]);
    return st;
}

/* A step, and those that follow while cards are still at work on the one before: when others get the lock none is. */
static pf_status run_step(struct pf_piece *pieces, int n)
{
    struct pf_model *m = pieces->s->m;
    pf_lock_take(&m->step_lock);
    pf_status st = make(pieces, n);
    while (st == PF_OK && pf_forward_is_open(m))
        st = make(pieces, n);
    if (st < 0)
        st = pf_forward_close(pieces->s, st);
    pf_lock_give(&m->step_lock);
    return st;
}

void pf_append(struct pf_piece *pieces, int n)
{
    for (int i = 0; i < n; i++) {
        pf_status st = pieces[i].done ? PF_OK : begin(&pieces[i]);
        if (st < 0)
            pf_piece_fail(&pieces[i], st);
    }
    for (int left; (left = n_to_do(pieces, n)) > 0;) {
        bool went_well = left > 1 && run_step(pieces, n) == PF_OK;
        for (int i = 0; !went_well && i < n; i++) {
            pf_status st = pieces[i].done ? PF_OK : run_step(&pieces[i], 1);
            if (st < 0)
                pf_piece_fail(&pieces[i], st);
        }
    }
}

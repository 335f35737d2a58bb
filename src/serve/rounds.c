/* See scheduler_impl.h: what is evaluated in a step, and how long that may be. */
#define _GNU_SOURCE
#include "serve/metrics.h"
#include "serve/scheduler_impl.h"

enum { STEPS_AT_ONCE = 16 };

size_t sched_lone_rows(const struct sched *s)
{
    bool by_layers = pf_model_info(s->o.m)->layout == PF_LAYOUT_LAYERS;
    return (by_layers ? STEPS_AT_ONCE : 1) * s->pace.most_rows;
}

bool sched_is_ready(const struct sched *sched, int i)
{
    const struct slot *s = &sched->slots[i];
    const struct place *p = &sched->places[i];
    return s->job && !p->moves && !p->awaits.slot && !sched_has_parted(s) &&
           !(sched->moved.slot && sched_stays_for_choices(sched, s));
}

static bool all_done(const struct round *r)
{
    bool done = true;
    for (size_t i = 0; i < r->n; i++)
        done = done && r->parts[i].status == PF_OK;
    return done;
}

static void add_part(struct round *r, struct slot *s, const int32_t *tok, size_t n)
{
    r->parts[r->n] = (struct pf_batch_part){ .session = s->session, .tok = tok, .n = n };
    r->of[r->n++] = s;
    r->rows += n;
}

/* Makes the slot's sequence as much of what is wanted as it has. */
static pf_status take_up(struct sched *sched, struct slot *s)
{
    size_t shared = s->n_shared ? s->n_shared : sched_shared(sched, s);
    pf_status st = slot_take_prefix(s);
    s->n_shared = st == PF_OK ? sched_keeps_at(sched, s, shared) : 0;
    return st;
}

/* Whether the slot's sequence is to be evaluated further before it can answer, and can be now. */
static bool is_behind(struct sched *sched, struct slot *s)
{
    if (!s->job || s->answering)
        return false;
    pf_status st = s->fresh ? take_up(sched, s) : PF_OK;
    if (st < 0)
        slot_fail(s, st, NULL);
    return st == PF_OK && !s->answering && !sched_has_parted(s);
}

static bool is_sooner(const struct place *a, const struct place *b)
{
    const struct party *x = a->client, *y = b->client;
    return x == y ? a->served < b->served
                  : x->address == y->address ? x->served < y->served : x->address->served < y->address->served;
}

/* The slot whose prompt is to have the next slice: the address, there the client, there the slot that had one longest
 * ago. before: what has a slice of this round is passed over. -1: none. */
static int next_prompt(struct sched *sched, uint64_t before)
{
    int best = -1;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->places[i].served <= before && sched_is_ready(sched, i) && is_behind(sched, &sched->slots[i]) &&
            (best < 0 || is_sooner(&sched->places[i], &sched->places[best])))
            best = i;
    return best;
}

/* Where a slot's slices end, those that come next: what other choices or other prompts are to go on from ends where
 * they do, since a sequence that cannot be cut short is as long then as they want it. */
static size_t end_of_slices(const struct sched *sched, const struct slot *s, size_t end)
{
    bool stops = sched_leads(s) && (sched_any_free(sched) || !sched->keeper.cuts);
    end = stops && s->n_done < sched_n_led(sched, s) ? sched_n_led(sched, s) : end;
    return s->n_shared > s->n_done && s->n_shared < end ? s->n_shared : end;
}

/* Slices of prompts, in turns, as long as rows are left. */
static void add_prompts(struct sched *sched, struct round *r, size_t rows)
{
    uint64_t before = sched->n_slices;
    for (int i; rows > 0 && (i = next_prompt(sched, before)) >= 0;) {
        struct slot *s = &sched->slots[i];
        struct place *p = &sched->places[i];
        size_t end, from = s->n_done;
        const int32_t *tok = slot_wants(s, &end);
        end = end_of_slices(sched, s, end);
        size_t n = end - from < rows ? end - from : rows;
        add_part(r, s, tok + from, n);
        r->prompt_rows += n;
        rows -= n;
        p->served = p->client->served = p->client->address->served = ++sched->n_slices;
    }
}

/* A prompt that is alone has slices of as many rows as are fastest, and several, while nobody is answered, rounds of
 * more than beside answers: which may take longer than others are to wait. So such a round is broken off when somebody
 * comes who has a slot, a free one or by claim, and the round does not end by itself soon. Of a prompt that is alone
 * the steps that were through are kept; what was under way is lost, which may be all of it. Rounds with who has come
 * are short at first and double, so that prompts get on however often they are disturbed: what is lost is never more
 * than what was done since the last time. The end is far away as long as nobody knows how long such rounds take, and
 * one takes no less than the last of its kind that had no more rows. One that is no longer than a pause is not broken
 * off for a claim, nor are several prompts, of which one may be claimed when the round is over. */
static void begin_alone(struct sched *s, const struct round *r)
{
    bool is_short = r->rows <= pace_rows(&s->pace), is_free = sched_any_free(s), is_lone = r->n == 1;
    double takes = s->pace.lone_s > 0 ? pace_row_s(&s->pace) * (double)r->rows : NEVER / 2;
    takes = s->took[!is_lone].s > takes && r->rows >= s->took[!is_lone].rows ? s->took[!is_lone].s : takes;
    pthread_mutex_lock(&s->lock);
    s->alone.round = (is_lone ? is_free || !is_short : is_free && !is_short) ? r : NULL;
    s->alone.place = is_free ? NULL : &s->places[r->of[0] - s->slots];
    s->alone.end = now_s() + takes;
    s->alone.broken_off = s->alone.is_joined = false;
    for (struct queued *t = s->turns.first; t; t = t->next)
        sched_break_off(s, waiting_of(t));
    pthread_mutex_unlock(&s->lock);
}

/* Whether somebody waits who may claim the slot of what is alone: its slices are to be short. */
static bool is_claimed(struct sched *s)
{
    bool is = false;
    pthread_mutex_lock(&s->lock);
    for (const struct queued *t = s->turns.first; t && !is; t = t->next)
        for (int i = 0; i < s->n_slots && !is; i++)
            is = s->slots[i].job && sched_claimed_at(&s->places[i], t->client) < NEVER;
    pthread_mutex_unlock(&s->lock);
    return is;
}

static void took_alone(struct sched *s, const struct round *r, double seconds)
{
    s->took[r->n > 1].s = seconds;
    s->took[r->n > 1].rows = r->rows;
    if (r->n == 1)
        pace_took_lone(&s->pace, r->rows, seconds);
}

static void end_alone(struct sched *s, const struct round *r, double seconds)
{
    size_t most = sched_lone_rows(s);
    pthread_mutex_lock(&s->lock);
    s->alone.round = NULL;
    pthread_mutex_unlock(&s->lock);
    if (s->alone.is_joined)
        s->lone_rows = pace_rows(&s->pace);
    else if (all_done(r))
        s->lone_rows = 2 * s->lone_rows < most ? 2 * s->lone_rows : most;
    if (s->alone.broken_off)
        atomic_fetch_add(&metrics.broken_off, 1);
    else if (all_done(r))
        took_alone(s, r, seconds);
}

/* Reading weights or another process may fail for good: steps say whether they can still be made. */
static void take_health(struct sched *s, const struct round *r)
{
    const char *why = NULL;
    bool fine = false;
    for (size_t i = 0; i < r->n; i++) {
        why = r->parts[i].status == PF_EIO ? r->parts[i].why : why;
        fine = fine || r->parts[i].status == PF_OK;
    }
    if (fine ? s->ill.n == 0 : !why)
        return;
    pthread_mutex_lock(&s->lock);
    buf_clear(&s->ill);
    buf_puts(&s->ill, fine ? "" : why);
    pthread_mutex_unlock(&s->lock);
}

/* A slice of a prompt that is alone, after what its session has. */
static void sync_lone(struct round *r)
{
    struct pf_batch_part *p = r->parts;
    const struct slot *s = r->of[0];
    size_t end;
    const int32_t *tok = slot_wants(s, &end);
    p->status = pf_session_sync(s->session, tok, s->n_done + p->n, NULL);
    p->why = p->status < 0 ? pf_last_error() : NULL;
}

/* Returns how long it took. */
static double run(struct sched *sched, struct round *r, bool lone)
{
    bool alone = lone || r->prompt_rows == r->rows;
    if (alone)
        begin_alone(sched, r);
    double begin = now_s();
    if (lone)
        sync_lone(r);
    else
        pf_batch_eval(r->parts, r->n);           /* a part's failure is its own */
    double seconds = now_s() - begin;
    if (alone)
        end_alone(sched, r, seconds);
    return seconds;
}

static void evaluate(struct sched *sched, struct round *r)
{
    bool lone = r->n == 1 && !r->of[0]->answering;
    double seconds = run(sched, r, lone);
    take_health(sched, r);
    if (r->n > 1 && r->prompt_rows <= pace_rows(&sched->pace) && all_done(r))
        pace_took(&sched->pace, r->rows, r->prompt_rows, seconds);
    for (size_t i = 0; i < r->n; i++) {
        if (r->parts[i].status == PF_ECANCEL && !lone)       /* meant a slice that was over: it is as it was before */
            continue;
        r->of[i]->unsaved = true;
        if (r->parts[i].status == PF_ECANCEL)
            slot_broken_off(r->of[i]);
        else if (r->parts[i].status < 0)
            slot_fail(r->of[i], r->parts[i].status, r->parts[i].why);
        else
            slot_took(r->of[i], r->parts[i].n);
    }
}

/* Tokens that were drafted need no step: a slot whose next ones are such is not held up by the others. */
static void take_ahead(struct slot *s)
{
    while (s->job && s->answering && pf_session_is_ahead(s->session, s->next)) {
        pf_status st = pf_session_eval(s->session, &s->next, 1, 0);
        if (st == PF_ECANCEL)                    /* meant a step that was over */
            continue;
        s->unsaved = true;
        if (st < 0)
            slot_fail(s, st, NULL);
        else
            slot_took(s, 1);
    }
}

/* How many rows of prompts go with the answers' rows of a round, which others wait for. */
static size_t bounded_rows(const struct sched *sched, const struct round *r, int n_running)
{
    size_t few = pace_rows(&sched->pace), many = pace_rows_of_prompts(&sched->pace);
    many = many < sched->lone_rows ? many : sched->lone_rows;
    return r->n == 0 && n_running > 1 && many > few ? many : few;
}

void sched_round(struct sched *sched)
{
    struct round r = { .n = 0 };
    int n_running = 0;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched_is_ready(sched, i))
            take_ahead(&sched->slots[i]);
    for (int i = 0; i < sched->n_slots; i++)
        n_running += sched->slots[i].job && !sched->places[i].awaits.slot;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched_is_ready(sched, i) && sched->slots[i].answering)
            add_part(&r, &sched->slots[i], &sched->slots[i].next, 1);
    bool is_bounded = n_running > 1 || is_claimed(sched);
    add_prompts(sched, &r, is_bounded ? bounded_rows(sched, &r, n_running) : sched->lone_rows);
    pthread_mutex_lock(&sched->lock);
    sched_settle_places(sched);      /* what is back from memory does not count this step as its return */
    pthread_mutex_unlock(&sched->lock);
    double begin = now_s();
    if (r.n > 0)
        evaluate(sched, &r);
    sched->step_s = is_bounded ? now_s() - begin : 0;
}

/* See scheduler.h. The queue is guarded by the lock; all else is the thread's own. */
#define _GNU_SOURCE
#include "serve/scheduler.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/answer.h"
#include "serve/metrics.h"

enum { WORTH_TOKENS = 64, STACK_BYTES = 4 << 20, LEAST_ROWS = 16, ALONE_ROWS = 512 };

struct slot {
    pf_session *session;             /* NULL: not opened yet */
    struct job *job;                 /* NULL: free; the sequence stays, for the next prompt that begins like it */
    bool        answering;           /* the prompt is evaluated */
    bool        unsaved;             /* the sequence is not among the saved ones */
    bool        fresh;               /* nothing of the prompt was evaluated yet */
    size_t      n_done;              /* prompt tokens that the session has */
    int         choice;
    int64_t     n_answer;            /* of this choice */
    int32_t     next;                /* sampled, to be evaluated */
    struct pf_sampler sampler;
    struct answer     answer;
    double      begun, first;        /* when it got the slot; when its prompt was done */
    uint64_t    used;
};

struct sched {
    struct sched_opts o;
    struct slot      *slots;
    int               n_slots;       /* that there is memory for */
    int               turn;          /* slot whose prompt had the last slice */
    uint64_t          n_used;
    double            row_s;         /* time of a prompt's row, lately; 0: not known */
    pthread_t         thread;
    pthread_mutex_t   lock;
    pthread_cond_t    more;
    struct job       *first, *last;
    int               n_waiting;
    bool              ending;
};

/* ---- Ends of jobs ------------------------------------------------------------------------------------------------ */

static void leave_slot(struct slot *s)
{
    struct job *j = s->job;
    struct usage *u = &j->usage;
    answer_free(&s->answer);             /* its matchers, before the job's grammar */
    atomic_fetch_add(&metrics.prompt_tokens, u->n_prompt);
    atomic_fetch_add(&metrics.cached_tokens, u->n_cached);
    atomic_fetch_add(&metrics.answer_tokens, u->n_answer);
    atomic_fetch_add(&metrics.prompt_us, (unsigned long long)(u->prompt_s * 1e6));
    atomic_fetch_add(&metrics.answer_us, (unsigned long long)(u->answer_s * 1e6));
    atomic_fetch_sub(&metrics.running, 1);
    job_free(j);
    s->job = NULL;
}

static void fail_job(struct slot *s, pf_status st)
{
    struct trouble t = { st == PF_ENOMEM ? 503 : 500, NULL, NULL, pf_last_error() };
    atomic_fetch_add(&metrics.failed, 1);
    job_fail(s->job, &t);
    leave_slot(s);
}

static void take_times(struct slot *s)
{
    struct usage *u = &s->job->usage;
    u->queued_s = s->begun - s->job->since;
    u->prompt_s = (s->first > 0 ? s->first : now_s()) - s->begun;
    u->answer_s = s->first > 0 ? now_s() - s->first : 0;
}

static void begin_prompt(struct slot *s);

static void end_choice(struct slot *s, enum finish why)
{
    struct job *j = s->job;
    pf_status st = answer_end(&s->answer, why);
    if (st < 0) {
        fail_job(s, st);
        return;
    }
    take_times(s);
    if (++s->choice < j->req.n) {
        begin_prompt(s);
        return;
    }
    j->protocol->end(j);
    exchange_end(j->x);
    leave_slot(s);
}

/* ---- Prompts ----------------------------------------------------------------------------------------------------- */

static uint64_t seed_of(const struct request *q, int choice)
{
    uint32_t any = 0;
    if (q->seed != UNSET)
        return (uint64_t)q->seed + (uint64_t)choice;
    if (getrandom(&any, sizeof any, 0) < 0)
        any = (uint32_t)(now_s() * 1e6);
    return any;
}

static void set_sampler(struct pf_sampler *sp, const struct request *q, int choice)
{
    pf_sampler_init(sp, seed_of(q, choice));
    sp->temp = (float)q->temp;
    sp->top_p = q->top_p > 0 ? (float)q->top_p : 1e-6f;
    sp->min_p = (float)q->min_p;
    sp->top_k = (int)q->top_k;
    sp->repeat_penalty = (float)q->repeat_penalty;
    sp->presence_penalty = (float)q->presence_penalty;
    sp->frequency_penalty = (float)q->frequency_penalty;
    sp->bias = q->bias;
    sp->n_bias = q->n_bias;
}

static void begin_prompt(struct slot *s)
{
    s->answering = false;
    s->fresh = true;
    s->n_done = 0;
    s->n_answer = 0;
    set_sampler(&s->sampler, &s->job->req, s->choice);
}

static size_t common_prefix(const pf_session *session, const int32_t *tok, size_t n)
{
    const int32_t *have = pf_session_tokens(session);
    size_t n_have = (size_t)pf_session_pos(session), i = 0;
    while (i < n && i < n_have && have[i] == tok[i])
        i++;
    return i;
}

static void sample_next(struct slot *s);

/* Makes a slot's sequence what the prompt begins with. At least the prompt's last token is left to evaluate. */
static pf_status take_prefix(struct slot *s)
{
    struct request *q = &s->job->req;
    size_t common = common_prefix(s->session, q->tok, q->n_tok);
    common = common == q->n_tok ? common - 1 : common;
    pf_status st = pf_session_rewind(s->session, (int64_t)common);
    if (st < 0)
        return st;
    if (s->choice == 0)
        s->job->usage.n_cached = (size_t)pf_session_computed(s->session);
    s->n_done = common;
    s->fresh = false;
    return PF_OK;
}

/* More of the prompt was evaluated; if it is all of it, the answer begins. */
static void prompt_done(struct sched *sched, struct slot *s)
{
    struct job *j = s->job;
    if (s->n_done < j->req.n_tok)
        return;
    s->answering = true;
    s->first = s->first > 0 ? s->first : now_s();
    take_times(s);
    if (!j->begun && j->req.stream) {
        exchange_open(j->x);
        j->protocol->begin(j);
    }
    j->begun = true;
    pf_status st = answer_begin(&s->answer, sched->o.m, sched->o.family, j, s->choice);
    if (st < 0)
        fail_job(s, st);
    else
        sample_next(s);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/* Samples from the logits that are there, and tells; s->next is to be evaluated if the choice is not at its end. */
static void sample_next(struct slot *s)
{
    struct request *q = &s->job->req;
    enum finish why;
    int32_t tok;
    if (q->max_tokens != UNSET && s->n_answer >= q->max_tokens) {
        end_choice(s, FINISH_LENGTH);
        return;
    }
    pf_matcher *mt = answer_matcher(&s->answer);
    pf_status st = mt ? pf_sample_matching(&s->sampler, s->session, mt, &tok)
                      : pf_sample(&s->sampler, s->session, &tok);
    if (st == PF_OK && !q->ignore_eos && pf_token_is_end(s->answer.m, tok)) {
        end_choice(s, FINISH_STOP);
        return;
    }
    s->n_answer++;
    s->job->usage.n_answer++;
    if (st == PF_OK)
        st = answer_token(&s->answer, s->session, tok);
    s->next = tok;
    if (st < 0)
        fail_job(s, st);
    else if (answer_stopped(&s->answer, &why))
        end_choice(s, why);
    else if (pf_session_pos(s->session) >= pf_session_n_ctx(s->session) ||
             (q->max_tokens != UNSET && s->n_answer >= q->max_tokens))
        end_choice(s, FINISH_LENGTH);
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* A slot's session, opened when it is first needed. False: there is no memory for it, and the slots end here. */
static bool open_slot(struct sched *sched, int i)
{
    struct slot *s = &sched->slots[i];
    if (s->session)
        return true;
    if (pf_session_open(&s->session, sched->o.m, &sched->o.session) == PF_OK)
        return true;
    complain("slot %d and those after it stay closed: %s", i + 1, pf_last_error());
    sched->n_slots = i;
    return false;
}

/* The free slot for a prompt: the one that saves most by what its sequence has of it, less what is lost of the sequence
 * (which may never be wanted again: it counts a quarter); else one without a sequence, else the one that was used
 * longest ago. -1: none is free. */
static int choose_slot(struct sched *sched, const struct request *q)
{
    int best = -1, oldest = -1;
    int64_t most = 0;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (s->job || (!s->session && !open_slot(sched, i)))
            continue;
        int64_t common = (int64_t)common_prefix(s->session, q->tok, q->n_tok);
        int64_t worth = common - (pf_session_pos(s->session) - common) / 4;
        if (common > 0 && worth > most) {
            most = worth;
            best = i;
        }
        if (oldest < 0 || s->used < sched->slots[oldest].used)
            oldest = i;
    }
    return best >= 0 ? best : oldest;
}

static void save(struct sched *sched, struct slot *s)
{
    if (s->unsaved && pf_session_pos(s->session) >= WORTH_TOKENS && !saved_put(sched->o.saved, s->session))
        complain("a conversation of %lld tokens was not saved: %s", (long long)pf_session_pos(s->session),
                 pf_last_error());
    s->unsaved = false;
}

/* What a slot loses for a prompt is saved, and a saved conversation that has more of the prompt is taken up. */
static void exchange_sequences(struct sched *sched, struct slot *s, const struct request *q)
{
    size_t common = common_prefix(s->session, q->tok, q->n_tok), saved_common;
    if (!sched->o.saved)
        return;
    if ((size_t)pf_session_pos(s->session) >= common + WORTH_TOKENS)
        save(sched, s);
    int i = saved_find(sched->o.saved, q->tok, q->n_tok, pf_session_n_ctx(s->session), &saved_common);
    if (i < 0 || saved_common < common + WORTH_TOKENS)
        return;
    saved_load(sched->o.saved, i, s->session);
    s->unsaved = false;
}

static void give_slot(struct sched *sched, struct slot *s, struct job *j)
{
    exchange_sequences(sched, s, &j->req);
    s->job = j;
    s->choice = 0;
    s->used = ++sched->n_used;
    s->begun = now_s();
    s->first = 0;
    j->usage.n_prompt = j->req.n_tok;
    atomic_fetch_add(&metrics.running, 1);
    begin_prompt(s);
}

/* ---- The queue --------------------------------------------------------------------------------------------------- */

bool sched_add(struct sched *s, struct job *j)
{
    pthread_mutex_lock(&s->lock);
    bool room = s->n_waiting < s->o.queue && !s->ending;
    if (room) {
        j->next = NULL;
        j->since = now_s();
        *(s->last ? &s->last->next : &s->first) = j;
        s->last = j;
        s->n_waiting++;
        atomic_fetch_add(&metrics.requests, 1);
        atomic_store(&metrics.waiting, s->n_waiting);
        pthread_cond_signal(&s->more);
    }
    pthread_mutex_unlock(&s->lock);
    return room;
}

static struct job *take_first(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    struct job *j = s->first;
    if (j) {
        s->first = j->next;
        s->last = s->first ? s->last : NULL;
        atomic_store(&metrics.waiting, --s->n_waiting);
    }
    pthread_mutex_unlock(&s->lock);
    return j;
}

static bool any_running(const struct sched *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].job)
            return true;
    return false;
}

static bool any_free(const struct sched *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (!s->slots[i].job)
            return true;
    return false;
}

static bool is_idle(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    bool idle = !s->first;
    pthread_mutex_unlock(&s->lock);
    return idle && !any_running(s);
}

/* One after the other, as long as nobody waits; at the end all. */
static void save_idle(struct sched *s, bool all)
{
    if (!s->o.saved || !s->o.outlive)
        return;
    for (int i = 0; i < s->n_slots && (all || (is_idle(s) && !saved_is_busy(s->o.saved))); i++)
        if (s->slots[i].session && !s->slots[i].job)
            save(s, &s->slots[i]);
}

/* Waits until there is something to do; false: the end. */
static bool wait_for_work(struct sched *s)
{
    save_idle(s, false);
    pthread_mutex_lock(&s->lock);
    while (!s->first && !s->ending && !any_running(s))
        pthread_cond_wait(&s->more, &s->lock);
    bool more = s->first || any_running(s);
    pthread_mutex_unlock(&s->lock);
    return more;
}

static void fill_slots(struct sched *s)
{
    struct job *j;
    while (any_free(s) && (j = take_first(s))) {
        if (exchange_gone(j->x)) {
            atomic_fetch_add(&metrics.cancelled, 1);
            job_free(j);
            continue;
        }
        int i = choose_slot(s, &j->req);
        if (i >= 0) {
            give_slot(s, &s->slots[i], j);
            continue;
        }
        pthread_mutex_lock(&s->lock);        /* slots turned out to be fewer: back to the queue's head */
        j->next = s->first;
        s->first = j;
        s->last = s->last ? s->last : j;
        s->n_waiting++;
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* A connection that sleeps is not watched by the http thread: whether its client has closed is asked here. */
static bool has_closed(struct exchange *x)
{
    struct pollfd p = { .fd = exchange_fd(x), .events = POLLRDHUP };
    return p.fd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static void drop_the_gone(struct sched *sched)
{
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (!s->job)
            continue;
        if (has_closed(s->job->x))
            exchange_leave(s->job->x);
        if (!exchange_gone(s->job->x))
            continue;
        atomic_fetch_add(&metrics.cancelled, 1);
        take_times(s);
        exchange_end(s->job->x);
        leave_slot(s);
    }
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

/* Rows of a prompt's slice: all that a step takes where nobody waits, else what the bound on pauses allows. */
static size_t slice_rows(const struct sched *s, int n_running)
{
    size_t most = s->o.session.n_batch > 0 ? (size_t)s->o.session.n_batch : ALONE_ROWS;
    if (n_running <= 1 || s->row_s <= 0)
        return n_running <= 1 ? most : LEAST_ROWS;
    double rows = (double)s->o.pause_ms * 1e-3 / s->row_s;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > (double)most ? most : (size_t)rows;
}

/* What is evaluated together. */
struct round {
    struct pf_batch_part parts[PF_MAX_BATCH_PARTS];
    struct slot         *of[PF_MAX_BATCH_PARTS];
    size_t n, rows;
};

static void add_part(struct round *r, struct slot *s, const int32_t *tok, size_t n)
{
    r->parts[r->n] = (struct pf_batch_part){ s->session, tok, n, 0 };
    r->of[r->n++] = s;
    r->rows += n;
}

/* Slices of prompts, from the one after that which had the last slice, as long as rows are left. */
static void add_prompts(struct sched *sched, struct round *r, size_t rows)
{
    int turn = sched->turn;
    for (int k = 1; k <= sched->n_slots && rows > 0; k++) {
        int i = (turn + k) % sched->n_slots;
        struct slot *s = &sched->slots[i];
        if (!s->job || s->answering)
            continue;
        pf_status st = s->fresh ? take_prefix(s) : PF_OK;
        if (st < 0) {
            fail_job(s, st);
            continue;
        }
        size_t left = s->job->req.n_tok - s->n_done, n = left < rows ? left : rows;
        add_part(r, s, s->job->req.tok + s->n_done, n);
        rows -= n;
        sched->turn = i;
    }
}

/* A part was evaluated. */
static void take_part(struct sched *sched, struct slot *s, const struct pf_batch_part *part)
{
    if (s->answering) {
        sample_next(s);
        return;
    }
    s->n_done += part->n;
    prompt_done(sched, s);
}

/* If the parts together fail, each is tried alone: one's failure is not the others'. */
static void evaluate(struct sched *sched, struct round *r)
{
    double begin = now_s();
    pf_status together = pf_batch_eval(r->parts, r->n), st = together;
    double took = (now_s() - begin) / (double)r->rows;
    if (r->rows >= LEAST_ROWS)
        sched->row_s = sched->row_s > 0 ? 0.75 * sched->row_s + 0.25 * took : took;
    for (size_t i = 0; i < r->n; i++) {
        r->of[i]->unsaved = true;
        if (together < 0 && r->n > 1)
            st = pf_batch_eval(&r->parts[i], 1);
        if (st < 0)
            fail_job(r->of[i], st);
        else
            take_part(sched, r->of[i], &r->parts[i]);
    }
}

static void round_of_steps(struct sched *sched)
{
    struct round r = { .n = 0 };
    int n_running = 0;
    for (int i = 0; i < sched->n_slots; i++)
        n_running += sched->slots[i].job != NULL;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->slots[i].job && sched->slots[i].answering)
            add_part(&r, &sched->slots[i], &sched->slots[i].next, 1);
    add_prompts(sched, &r, slice_rows(sched, n_running));
    if (r.n > 0)
        evaluate(sched, &r);
}

static void *run(void *ctx)
{
    struct sched *s = ctx;
    while (wait_for_work(s)) {
        fill_slots(s);
        drop_the_gone(s);
        round_of_steps(s);
    }
    save_idle(s, true);
    return NULL;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static void free_sched(struct sched *s)
{
    for (int i = 0; i < s->o.n_slots; i++) {
        pf_session_close(&s->slots[i].session);
        answer_free(&s->slots[i].answer);
    }
    if (s->o.saved)
        saved_close(s->o.saved);
    free(s->slots);
    free(s);
}

pf_status sched_open(struct sched **out, const struct sched_opts *o)
{
    struct sched *s = xrealloc(NULL, 1, sizeof *s);
    *s = (struct sched){ .o = *o, .n_slots = o->n_slots };
    s->slots = xrealloc(NULL, (size_t)o->n_slots, sizeof *s->slots);
    memset(s->slots, 0, (size_t)o->n_slots * sizeof *s->slots);
    pf_status st = pf_session_open(&s->slots[0].session, o->m, &o->session);
    if (st < 0) {
        free_sched(s);
        return st;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int error = pthread_create(&s->thread, &attr, run, s);
    pthread_attr_destroy(&attr);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    *out = s;
    return PF_OK;
}

int64_t sched_n_ctx(const struct sched *s)
{
    return pf_session_n_ctx(s->slots[0].session);
}

void sched_close(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    free_sched(s);
}

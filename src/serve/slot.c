/* See slot.h. */
#include "serve/slot.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/journal.h"
#include "serve/metrics.h"

/* ---- Ends of jobs ------------------------------------------------------------------------------------------------ */

static void free_job(struct job *j)
{
    const struct usage *u = &j->usage;
    atomic_fetch_add(&metrics.prompt_tokens, u->n_prompt);
    atomic_fetch_add(&metrics.cached_tokens, u->n_cached);
    atomic_fetch_add(&metrics.answer_tokens, u->n_answer);
    atomic_fetch_add(&metrics.prompt_us, (unsigned long long)(u->prompt_s * 1e6));
    atomic_fetch_add(&metrics.answer_us, (unsigned long long)(u->answer_s * 1e6));
    atomic_fetch_sub(&metrics.running, 1);
    job_free(j);
}

void slot_leave(struct slot *s)
{
    struct job *j = s->job;
    answer_free(&s->answer);             /* its matchers, before the job's grammar */
    free(s->left);
    s->left = NULL;
    s->job = NULL;
    if (--j->n_slots == 0)
        free_job(j);
}

static void fail(struct slot *s, const struct trouble *t)
{
    if (!s->job->over) {
        atomic_fetch_add(&metrics.failed, 1);
        job_fail(s->job, t);
    }
    s->job->over = true;
    slot_leave(s);
}

void slot_fail(struct slot *s, pf_status st, const char *why)
{
    fail(s, &(struct trouble){ st == PF_ENOMEM ? 503 : 500, NULL, NULL, why ? why : pf_last_error() });
}

/* The answer cannot begin or go on. Where a grammar holds it, that may be the grammar's: it is too ambiguous for what
 * there is so far, or wants bytes that no token has. */
static void fail_held(struct slot *s, pf_status st)
{
    const struct request *q = &s->job->req;
    bool held = s->answer.arguments || q->grammar;
    if (held && (st == PF_EUNSUPPORTED || st == PF_EINVAL))
        fail(s, &(struct trouble){ 400, answer_held_by(&s->answer), NULL, pf_last_error() });
    else
        slot_fail(s, st, NULL);
}

void slot_take_times(struct slot *s)
{
    const struct job *j = s->job;
    struct usage *u = &s->job->usage;
    uint64_t drafted = s->drafted, accepted = s->accepted;
    u->queued_s = j->taken - j->since;
    u->prompt_s = (j->first > 0 ? j->first : now_s()) - j->taken;
    u->answer_s = j->first > 0 ? now_s() - j->first : 0;
    pf_session_drafts(s->session, &s->drafted, &s->accepted);
    u->n_drafted += s->drafted - drafted;
    u->n_accepted += s->accepted - accepted;
}

static void begin_choice(struct slot *s);

static void end_choice(struct slot *s, enum finish why)
{
    struct job *j = s->job;
    j->n_ended++;
    pf_status st = answer_end(&s->answer, why);
    if (st < 0) {
        slot_fail(s, st, NULL);
        return;
    }
    slot_take_times(s);
    if (j->n_given < j->n_choices && !(j->yields && j->n_slots > 1)) {
        begin_choice(s);
        return;
    }
    if (j->n_ended == j->n_choices) {
        journal_answered(j);             /* first: who has the answer may ask again, which has its line behind this */
        j->protocol->end(j);
        exchange_end(j->x);
    }
    slot_leave(s);
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
    sp->top_p = q->top_p > 1e-6 ? (float)q->top_p : 1e-6f;
    sp->min_p = (float)q->min_p;
    sp->top_k = (int)q->top_k;
    sp->repeat_penalty = (float)q->repeat_penalty;
    sp->presence_penalty = (float)q->presence_penalty;
    sp->frequency_penalty = (float)q->frequency_penalty;
    sp->bias = q->bias;
    sp->n_bias = q->n_bias;
}

static void begin_choice(struct slot *s)
{
    s->choice = s->job->n_given++;
    s->answering = false;
    s->fresh = true;
    s->n_done = s->n_reused = s->n_shared = 0;
    s->n_answer = 0;
    set_sampler(&s->sampler, &s->job->req, s->choice % (int)s->job->req.n);      /* as if the prompt were alone */
}

size_t slot_common(const struct slot *s, const int32_t *tok, size_t n)
{
    const int32_t *have = pf_session_tokens(s->session);
    size_t n_have = (size_t)pf_session_pos(s->session), i = 0;
    while (i < n && i < n_have && have[i] == tok[i])
        i++;
    return i;
}

size_t slot_spares(const struct slot *s, const int32_t *tok, size_t n)
{
    return (size_t)pf_session_computed_at(s->session, (int64_t)slot_common(s, tok, n));
}

static void sample_next(struct slot *s);

const int32_t *slot_wants(const struct slot *s, size_t *n)
{
    const struct prompt *q = job_prompt(s->job, s->choice);
    *n = s->left ? s->n_left : q->n_tok;
    return s->left ? s->left : q->tok;
}

struct prompt slot_goal(const struct slot *s)
{
    return s->left ? (struct prompt){ .tok = s->left, .n_tok = s->n_left + 1 } : *job_prompt(s->job, s->choice);
}

/* The sequence is what it was before the slot was given to others: in an answer, or in the middle of a prompt. */
static void is_back(struct slot *s)
{
    size_t n_prompt = job_prompt(s->job, s->choice)->n_tok;
    s->answering = s->n_left >= n_prompt;
    s->prompt_end = s->answering ? (int64_t)n_prompt : s->prompt_end;
    free(s->left);
    s->left = NULL;
}

/* What a recurrent state or a window cannot go back to is evaluated again by slices, as the rest is. */
pf_status slot_take_prefix(struct slot *s)
{
    size_t n;
    const int32_t *tok = slot_wants(s, &n);
    size_t common = slot_common(s, tok, n), n_had = (size_t)pf_session_pos(s->session);
    common = common == n && !s->left ? n - 1 : common;
    pf_status st = pf_session_rewind(s->session, (int64_t)common);
    if (st == PF_OK && pf_session_computed(s->session) < (int64_t)common) {
        common = (size_t)pf_session_computed(s->session);
        st = pf_session_rewind(s->session, (int64_t)common);
    }
    if (st < 0)
        return st;
    s->prompt_end = (int64_t)common < s->prompt_end ? 0 : s->prompt_end;
    s->unsaved = s->unsaved || common < n_had;
    if (!s->left)
        s->n_reused = common;
    if (!s->left && s->choice % s->job->req.n == 0)
        s->job->usage.n_cached += common;
    s->n_done = common;
    s->fresh = false;
    if (s->left && common == n)
        is_back(s);
    return PF_OK;
}

/* More of the prompt was evaluated; if it is all of it, the answer begins. */
static void prompt_done(struct slot *s)
{
    struct job *j = s->job;
    if (s->n_done < job_prompt(j, s->choice)->n_tok)
        return;
    s->answering = true;
    s->prompt_end = (int64_t)s->n_done;
    j->first = j->first > 0 ? j->first : now_s();
    slot_take_times(s);
    if (!j->begun && j->req.stream) {
        exchange_open(j->x);
        j->protocol->begin(j);
    }
    j->begun = true;
    pf_status st = answer_begin(&s->answer, s->m, s->family, j, s->choice);
    if (st < 0)
        fail_held(s, st);
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
        fail_held(s, st);
    else if (answer_stopped(&s->answer, &why))
        end_choice(s, why);
    else if (pf_session_pos(s->session) >= pf_session_n_ctx(s->session) ||
             (q->max_tokens != UNSET && s->n_answer >= q->max_tokens))
        end_choice(s, FINISH_LENGTH);
}

/* ---- From outside ------------------------------------------------------------------------------------------------ */

void slot_give(struct slot *s, struct job *j)
{
    s->job = j;
    pf_session_drafts(s->session, &s->drafted, &s->accepted);
    if (j->n_slots++ == 0) {
        j->taken = now_s();
        for (size_t i = 0; i < j->req.n_prompts; i++)
            j->usage.n_prompt += j->req.prompts[i].n_tok;
        atomic_fetch_add(&metrics.running, 1);
    }
    begin_choice(s);
}

static bool is_given_up(void *ctx)
{
    return !aside_pause(ctx);
}

void slot_copy(struct slot *s, const struct slot *from, size_t n, struct aside *a)
{
    s->prompt_end = 0;
    if (pf_session_copy(s->session, from->session, (int64_t)n, is_given_up, a) == PF_OK)
        s->unsaved = false;
}

void slot_took(struct slot *s, size_t n)
{
    if (s->job->over) {
        slot_leave(s);
    } else if (s->answering) {
        sample_next(s);
    } else {
        s->n_done += n;
        if (!s->left)
            prompt_done(s);
        else if (s->n_done == s->n_left)
            is_back(s);
    }
}

/* Tokens that are to be evaluated again, as after going back to a checkpoint, are part of the next slice. */
void slot_broken_off(struct slot *s)
{
    int64_t n = pf_session_computed(s->session);
    pf_session_rewind(s->session, n);
    s->n_done = (size_t)n;
}

/* ---- Slots given to others --------------------------------------------------------------------------------------- */

struct slot *slot_park(struct slot *s)
{
    struct slot *p = xrealloc(NULL, 1, sizeof *p);
    slot_take_times(s);
    *p = *s;
    p->session = NULL;
    p->n_left = (size_t)pf_session_pos(s->session);
    p->left = NULL;
    if (!s->fresh && p->n_left > 0) {
        p->left = xrealloc(NULL, p->n_left + 1, sizeof *p->left);
        memcpy(p->left, pf_session_tokens(s->session), p->n_left * sizeof *p->left);
        p->left[p->n_left] = s->answering ? s->next : job_prompt(s->job, s->choice)->tok[s->n_done];
    }
    s->job = NULL;
    s->answer = (struct answer){ .m = NULL };
    return p;
}

void slot_resume(struct slot *s, struct slot *parked)
{
    struct slot had = *s;
    *s = *parked;
    s->session = had.session;
    s->unsaved = had.unsaved;
    s->prompt_end = had.prompt_end;
    s->used = had.used;
    s->answering = false;
    s->fresh = true;
    s->n_done = s->n_shared = 0;
    pf_session_drafts(s->session, &s->drafted, &s->accepted);
    free(parked);
}

void slot_forget(struct slot *parked)
{
    slot_leave(parked);
    free(parked);
}

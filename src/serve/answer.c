/* See answer.h. */
#define _GNU_SOURCE
#include "serve/answer.h"

#include <math.h>
#include <string.h>

static void show(void *ctx, enum part part, const char *text, size_t n)
{
    struct answer *a = ctx;
    struct job *j = a->job;
    struct choice *c = &j->choices[a->choice];
    buf_add(part == PART_ANSWER ? &c->content : &c->reasoning, text, n);
    if (j->req.stream)
        j->protocol->delta(j, &(struct delta){ part == PART_ANSWER ? DELTA_CONTENT : DELTA_REASONING, a->choice, 0,
                                               text, n });
}

void answer_begin(struct answer *a, const pf_model *m, struct job *j, int choice)
{
    struct request *q = &j->req;
    a->job = j;
    a->choice = choice;
    a->reply.m = m;
    a->reply.stops = &q->stops;
    a->reply.show = show;
    a->reply.show_ctx = a;
    reply_begin(&a->reply, q->chat ? &q->prompt : NULL);
    if (q->echo)
        show(a, PART_ANSWER, buf_text(&q->prompt), q->prompt.n);
}

/* ---- Log-probabilities ------------------------------------------------------------------------------------------- */

/* Puts a token into its place among the n best so far; returns how many there are now. */
static int insert(struct token_logprob *top, int n, int most, int32_t tok, double logit)
{
    int at = n;
    if (n == most && (most == 0 || logit <= top[most - 1].logprob))
        return n;
    at = n < most ? n : most - 1;
    for (; at > 0 && top[at - 1].logprob < logit; at--)
        top[at] = top[at - 1];
    top[at] = (struct token_logprob){ tok, logit };
    return n < most ? n + 1 : n;
}

static void tell_logprobs(struct answer *a, const pf_session *s, int32_t tok)
{
    struct job *j = a->job;
    struct token_logprob top[MOST_TOP_LOGPROBS], chosen = { tok, 0 };
    const float *logits = pf_session_logits(s);
    int64_t n = pf_model_info(a->reply.m)->n_vocab;
    int n_top = 0;
    double sum = 0;
    float best = logits[0];
    for (int64_t i = 0; i < n; i++) {
        best = logits[i] > best ? logits[i] : best;
        n_top = insert(top, n_top, (int)j->req.top_logprobs, (int32_t)i, (double)logits[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)best);
    double whole = (double)best + log(sum);
    for (int i = 0; i < n_top; i++)
        top[i].logprob -= whole;
    chosen.logprob = (double)logits[tok] - whole;
    j->protocol->logprob(j, a->choice, &chosen, top, n_top);
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

pf_status answer_token(struct answer *a, const pf_session *s, int32_t tok)
{
    if (a->job->req.logprobs && a->job->protocol->logprob)
        tell_logprobs(a, s, tok);
    return reply_token(&a->reply, tok);
}

bool answer_stopped(const struct answer *a)
{
    return a->reply.stopped;
}

void answer_end(struct answer *a, enum finish why)
{
    struct choice *c = &a->job->choices[a->choice];
    reply_end(&a->reply);
    c->finish = why;
    if (a->job->req.stream)
        a->job->protocol->choice_end(a->job, a->choice);
}

void answer_free(struct answer *a)
{
    reply_free(&a->reply);
}

/* See reply.h. */
#define _GNU_SOURCE
#include "cli/modes/reply.h"

#include <string.h>

/* ---- Whole characters, made harmless ----------------------------------------------------------------------------- */

static void show(struct reply *r, enum part part, const char *text, size_t n)
{
    struct buf whole = { 0 }, clean = { 0 };
    buf_add_utf8(&whole, text, n);
    buf_add(part == PART_ANSWER ? &r->answer : &r->reasoning, buf_text(&whole), whole.n);
    if (r->to_terminal)
        buf_add_clean(&clean, buf_text(&whole), whole.n);
    const struct buf *seen = r->to_terminal ? &clean : &whole;
    if (seen->n)
        r->show(r->show_ctx, part, seen->p, seen->n);
    buf_free(&whole);
    buf_free(&clean);
}

/* ---- Stop strings ------------------------------------------------------------------------------------------------ */

/* Length of the longest end of text that is a proper beginning of mark. */
static size_t overlap(const char *text, size_t n, const char *mark)
{
    size_t longest = strlen(mark) - 1;
    for (size_t k = longest < n ? longest : n; k > 0; k--)
        if (memcmp(text + n - k, mark, k) == 0)
            return k;
    return 0;
}

/* Cuts the held answer at the first stop string, if one is there. */
static void find_stop(struct reply *r, struct buf *held)
{
    const char *first = NULL;
    for (int i = 0; i < r->stops->n; i++) {
        const char *at = memmem(buf_text(held), held->n, r->stops->v[i], strlen(r->stops->v[i]));
        if (at && (!first || at < first))
            first = at;
    }
    if (first) {
        held->n = (size_t)(first - held->p);
        r->stopped = true;
    }
}

static size_t may_be_stop(const struct reply *r, const struct buf *held)
{
    size_t most = 0;
    for (int i = 0; i < r->stops->n; i++) {
        size_t k = overlap(held->p, held->n, r->stops->v[i]);
        most = k > most ? k : most;
    }
    return most;
}

/* More of the answer: what may become a stop string waits. */
static void put_answer(struct reply *r, const char *text, size_t n)
{
    if (r->stopped)
        return;
    buf_add(&r->held, text, n);
    find_stop(r, &r->held);
    size_t ready = r->held.n - (r->stopped ? 0 : may_be_stop(r, &r->held));
    ready = pf_utf8_complete(buf_text(&r->held), ready);
    show(r, PART_ANSWER, buf_text(&r->held), ready);
    buf_drop(&r->held, ready);
}

static void take(void *ctx, const struct pf_reply_event *e)
{
    struct reply *r = ctx;
    if (e->kind == PF_REPLY_CONTENT)
        put_answer(r, e->text, e->n);
    else if (e->kind == PF_REPLY_REASONING && !r->stopped)
        show(r, PART_REASONING, e->text, e->n);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

void reply_begin(struct reply *r, const struct buf *prompt)
{
    struct pf_reply_opts o = { .family = r->family };
    buf_clear(&r->answer);
    buf_clear(&r->reasoning);
    buf_clear(&r->held);
    r->stopped = false;
    pf_reply_close(&r->parser);
    if (!prompt)
        return;
    o.in_reasoning = pf_reply_is_open(r->family, buf_text(prompt), prompt->n);
    if (pf_reply_open(&r->parser, &o) < 0)
        die(EXIT_FAILED, "%s", pf_last_error());
}

static pf_status piece_of(const struct reply *r, int32_t tok, unsigned flags, struct buf *out)
{
    size_t need = 0;
    buf_reserve(out, 256);
    pf_status st = pf_detokenize(r->m, &tok, 1, flags, out->p + out->n, out->cap - out->n - 1, &need);
    if (st == PF_ESPACE) {
        buf_reserve(out, need + 1);
        st = pf_detokenize(r->m, &tok, 1, flags, out->p + out->n, out->cap - out->n - 1, &need);
    }
    if (st == PF_OK)
        out->n += need;
    out->p[out->n] = 0;
    return st;
}

bool reply_in_answer(const struct reply *r)
{
    return !r->parser || pf_reply_in_content(r->parser);
}

pf_status reply_token(struct reply *r, int32_t tok)
{
    struct buf plain = { 0 }, special = { 0 };
    pf_status st = piece_of(r, tok, PF_DETOK_CONTINUE, &plain);
    if (st == PF_OK && plain.n == 0 && r->parser)
        st = piece_of(r, tok, PF_DETOK_CONTINUE | PF_DETOK_SPECIAL, &special);
    if (st == PF_OK && special.n && pf_reply_is_mark(r->parser, special.p, special.n))
        st = pf_reply_feed(r->parser, special.p, special.n, take, r);
    else if (st == PF_OK && r->parser)
        st = pf_reply_feed(r->parser, plain.p, plain.n, take, r);
    else if (st == PF_OK)
        put_answer(r, plain.p, plain.n);
    buf_free(&plain);
    buf_free(&special);
    return st;
}

void reply_end(struct reply *r)
{
    if (r->parser && pf_reply_end(r->parser, take, r) < 0)
        die(EXIT_FAILED, "%s", pf_last_error());
    show(r, PART_ANSWER, buf_text(&r->held), r->held.n);
    buf_clear(&r->held);
}

void reply_free(struct reply *r)
{
    pf_reply_close(&r->parser);
    buf_free(&r->answer);
    buf_free(&r->reasoning);
    buf_free(&r->held);
}

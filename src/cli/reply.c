/* See reply.h. */
#include "cli/reply.h"

#include "program/piece.h"

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

/* ---- The answer and the reasoning -------------------------------------------------------------------------------- */

/* More of the answer: what may become a stop string waits. */
static void put_answer(struct reply *r, const char *text, size_t n)
{
    if (r->stopped)
        return;
    buf_add(&r->held, text, n);
    const char *held = buf_text(&r->held), *which, *stop = stop_find(r->stops, held, r->held.n, &which);
    if (stop) {
        r->held.n = (size_t)(stop - held);
        r->stopped = true;
    }
    size_t ready = r->held.n - (stop ? 0 : stop_overlap(r->stops, held, r->held.n));
    ready = pf_utf8_complete(held, ready);
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

bool reply_in_answer(const struct reply *r)
{
    return !r->parser || pf_reply_in_content(r->parser);
}

pf_status reply_token(struct reply *r, int32_t tok)
{
    struct buf piece = { 0 };
    pf_status st = r->parser ? piece_add_reply(&piece, r->m, r->parser, tok)
                             : piece_add(&piece, r->m, tok, PF_DETOK_CONTINUE);
    if (st == PF_OK && r->parser)
        st = pf_reply_feed(r->parser, piece.p, piece.n, take, r);
    else if (st == PF_OK)
        put_answer(r, piece.p, piece.n);
    buf_free(&piece);
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

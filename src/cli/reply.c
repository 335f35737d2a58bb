/* See reply.h. */
#define _GNU_SOURCE
#include "reply.h"

#include <string.h>

enum { START, THINKING, ANSWERING, HEADER };

static const struct { const char *open, *close; } pairs[] = {
    { "<think>", "</think>" },
    { "[THINK]", "[/THINK]" },
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

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

static void put(struct reply *r, enum part part, const char *text, size_t n)
{
    struct buf *held = &r->held[part];
    if (r->skip_space) {
        size_t space = 0;
        while (space < n && (text[space] == '\n' || text[space] == ' ' || text[space] == '\r'))
            space++;
        text += space;
        n -= space;
        r->skip_space = n == 0;
    }
    if (n == 0 || r->stopped)
        return;
    buf_add(held, text, n);
    if (part == PART_ANSWER)
        find_stop(r, held);
    size_t ready = held->n - (part == PART_ANSWER && !r->stopped ? may_be_stop(r, held) : 0);
    ready = pf_utf8_complete(held->p, ready);
    show(r, part, held->p, ready);
    buf_drop(held, ready);
}

static void flush_part(struct reply *r, enum part part)
{
    show(r, part, buf_text(&r->held[part]), r->held[part].n);
    buf_clear(&r->held[part]);
}

/* ---- Which part -------------------------------------------------------------------------------------------------- */

static void enter(struct reply *r, int state)
{
    if (r->state == THINKING)
        flush_part(r, PART_REASONING);
    if (state == THINKING || r->state == THINKING)
        r->skip_space = true;
    r->state = state;
}

/* At the start only space may stand before the opening mark. False: more bytes are needed. */
static bool try_start(struct reply *r)
{
    size_t space = strspn(buf_text(&r->raw), " \t\r\n"), n = r->raw.n - space;
    for (int i = 0; i < N_PAIRS; i++) {
        size_t len = strlen(pairs[i].open), common = n < len ? n : len;
        if (memcmp(r->raw.p + space, pairs[i].open, common) != 0)
            continue;
        if (n < len)
            return false;
        r->pair = i;
        buf_drop(&r->raw, space + len);
        enter(r, THINKING);
        return true;
    }
    enter(r, ANSWERING);
    return true;
}

static bool try_close(struct reply *r)
{
    if (r->pair == N_PAIRS) {
        put(r, PART_REASONING, r->raw.p, r->raw.n);
        buf_clear(&r->raw);
        return false;
    }
    const char *mark = pairs[r->pair].close, *at = memmem(buf_text(&r->raw), r->raw.n, mark, strlen(mark));
    size_t n = at ? (size_t)(at - r->raw.p) : r->raw.n - overlap(r->raw.p, r->raw.n, mark);
    put(r, PART_REASONING, r->raw.p, n);
    buf_drop(&r->raw, n + (at ? strlen(mark) : 0));
    if (at)
        enter(r, ANSWERING);
    return at != NULL;
}

static void advance(struct reply *r)
{
    if (r->state == START && (r->raw.n == 0 || !try_start(r)))
        return;
    if (r->state == THINKING && (r->raw.n == 0 || !try_close(r)))
        return;
    if (r->state == HEADER)
        buf_add(&r->header, buf_text(&r->raw), r->raw.n);
    else
        put(r, PART_ANSWER, buf_text(&r->raw), r->raw.n);
    buf_clear(&r->raw);
}

/* Harmony. After <|channel|> comes the channel's name, after <|message|> its text. */
static bool is_token(const char *text, size_t n, const char *name)
{
    return n == strlen(name) && memcmp(text, name, n) == 0;
}

/* In some vocabularies <think> is a control token, in others it is text. */
static bool is_mark(const char *text, size_t n)
{
    for (int i = 0; i < N_PAIRS; i++)
        if (is_token(text, n, pairs[i].open) || is_token(text, n, pairs[i].close))
            return true;
    return false;
}

/* Some vocabularies have harmony's marks as control tokens, others as tokens that render as text. */
static bool is_harmony(const char *text, size_t n)
{
    static const char *const marks[] = { "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>",
                                         "<|return|>", "<|call|>" };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (is_token(text, n, marks[i]))
            return true;
    return false;
}

static void control_token(struct reply *r, const char *text, size_t n)
{
    if (is_token(text, n, "<|channel|>") || is_token(text, n, "<|start|>")) {
        enter(r, HEADER);
        buf_clear(&r->header);
    } else if (is_token(text, n, "<|message|>") && r->state == HEADER) {
        bool is_final = strncmp(buf_text(&r->header), "final", 5) == 0 || r->header.n == 0;
        r->pair = N_PAIRS;                       /* no closing mark: the next control token ends it */
        enter(r, is_final ? ANSWERING : THINKING);
    } else if (is_mark(text, n)) {
        buf_add(&r->raw, text, n);
        advance(r);
    }
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Templates of some reasoning models end the prompt inside the reasoning. */
static int open_pair(const struct buf *prompt)
{
    size_t n = prompt->n;
    while (n && strchr(" \t\r\n", prompt->p[n - 1]))
        n--;
    for (int i = 0; i < N_PAIRS; i++) {
        size_t len = strlen(pairs[i].open);
        if (n >= len && memcmp(prompt->p + n - len, pairs[i].open, len) == 0)
            return i;
    }
    return -1;
}

void reply_begin(struct reply *r, const struct buf *prompt)
{
    int open = prompt ? open_pair(prompt) : -1;
    buf_clear(&r->answer);
    buf_clear(&r->reasoning);
    buf_clear(&r->raw);
    buf_clear(&r->held[PART_ANSWER]);
    buf_clear(&r->held[PART_REASONING]);
    r->stopped = false;
    r->state = open >= 0 ? THINKING : prompt ? START : ANSWERING;
    r->pair = open >= 0 ? open : 0;
    r->skip_space = prompt != NULL;
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

pf_status reply_token(struct reply *r, int32_t tok)
{
    struct buf plain = { 0 }, special = { 0 };
    pf_status st = piece_of(r, tok, PF_DETOK_CONTINUE, &plain);
    if (st == PF_OK)
        st = piece_of(r, tok, PF_DETOK_CONTINUE | PF_DETOK_SPECIAL, &special);
    if (st == PF_OK && ((plain.n == 0 && special.n > 0) || is_harmony(special.p, special.n))) {
        control_token(r, special.p, special.n);
    } else if (st == PF_OK) {
        buf_add(&r->raw, plain.p, plain.n);
        advance(r);
    }
    buf_free(&plain);
    buf_free(&special);
    return st;
}

void reply_end(struct reply *r)
{
    if (r->raw.n && (r->state == START || r->state == THINKING))
        put(r, r->state == START ? PART_ANSWER : PART_REASONING, r->raw.p, r->raw.n);
    buf_clear(&r->raw);
    flush_part(r, PART_REASONING);
    flush_part(r, PART_ANSWER);
}

void reply_free(struct reply *r)
{
    struct buf *all[] = { &r->answer, &r->reasoning, &r->raw, &r->header, &r->held[0], &r->held[1] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_free(all[i]);
}

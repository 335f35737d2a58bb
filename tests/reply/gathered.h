/* For tests of replies: what a reply's events add up to, and a judge of each event. The judge knows no family: events
 * are whole UTF-8, calls count up, a call has its name first and is over before anything else comes, its arguments are
 * one JSON object. */
#ifndef TEST_GATHERED_H
#define TEST_GATHERED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pfmoe.h"

struct piece {
    char  *p;
    size_t n, cap;
};

struct gathered {
    struct piece content, reasoning, calls, arguments;       /* calls: name, id and arguments of each, a line each */
    int          n_calls;
    bool         in_call;
    const char  *wrong;          /* the first rule that was broken */
};

static inline void piece_add(struct piece *t, const char *s, size_t n)
{
    if (n > t->cap - t->n || !t->p) {
        t->cap = 2 * t->cap + n + 64;
        t->p = realloc(t->p, t->cap);
    }
    if (n)
        memcpy(t->p + t->n, s, n);
    t->n += n;
}

static inline void piece_puts(struct piece *t, const char *s)
{
    piece_add(t, s, strlen(s));
}

static inline void gathered_free(struct gathered *g)
{
    free(g->content.p);
    free(g->reasoning.p);
    free(g->calls.p);
    free(g->arguments.p);
    *g = (struct gathered){ 0 };
}

static inline bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
        if (len == 0 || len > n - i)
            return false;
        for (size_t k = 1; k < len; k++)
            if ((s[i + k] & 0xC0) != 0x80)
                return false;
        unsigned char d = len > 1 ? (unsigned char)s[i + 1] : 0;
        if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F))
            return false;
        i += len;
    }
    return true;
}

/* ---- Strict JSON: each function returns what follows, NULL if it is not there ------------------------------------ */

static inline const char *json_any(const char *p, const char *end, int depth);

static inline const char *json_space(const char *p, const char *end)
{
    while (p && p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

static inline const char *json_text(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++) {
        if ((unsigned char)*p < 0x20)
            return NULL;
        if (*p != '\\')
            continue;
        if (++p == end || !strchr("\"\\/bfnrtu", *p))
            return NULL;
        for (int k = 0; *p == 'u' && k < 4; k++)
            if (end - p < 5 || !strchr("0123456789abcdefABCDEF", p[k + 1]))
                return NULL;
    }
    return p < end ? p + 1 : NULL;
}

static inline const char *json_digits(const char *p, const char *end)
{
    const char *from = p;
    while (p && p < end && *p >= '0' && *p <= '9')
        p++;
    return p == from ? NULL : p;
}

static inline const char *json_number(const char *p, const char *end)
{
    p += *p == '-';
    if (p < end && *p == '0')
        p++;
    else
        p = json_digits(p, end);
    if (p && p < end && *p == '.')
        p = json_digits(p + 1, end);
    if (p && p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        p = json_digits(p, end);
    }
    return p;
}

static inline const char *json_list(const char *p, const char *end, int depth)
{
    char close = *p == '{' ? '}' : ']';
    p = json_space(p + 1, end);
    if (p < end && *p == close)
        return p + 1;
    for (;;) {
        if (close == '}') {
            p = p < end && *p == '"' ? json_space(json_text(p, end), end) : NULL;
            if (!p || p == end || *p++ != ':')
                return NULL;
        }
        p = json_space(json_any(json_space(p, end), end, depth + 1), end);
        if (!p || p == end || (*p != ',' && *p != close))
            return NULL;
        if (*p++ == close)
            return p;
        p = json_space(p, end);
    }
}

static inline const char *json_any(const char *p, const char *end, int depth)
{
    static const char *const words[] = { "true", "false", "null" };
    if (!p || p == end || depth > 1000)
        return NULL;
    if (*p == '"')
        return json_text(p, end);
    if (*p == '{' || *p == '[')
        return json_list(p, end, depth);
    for (int i = 0; i < 3; i++)
        if ((size_t)(end - p) >= strlen(words[i]) && memcmp(p, words[i], strlen(words[i])) == 0)
            return p + strlen(words[i]);
    return json_number(p, end);
}

static inline bool is_json_object(const char *s, size_t n)
{
    return n && s[0] == '{' && json_any(s, s + n, 0) == s + n;
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

static inline void judge(struct gathered *g, const struct pf_reply_event *e)
{
    bool of_call = e->kind >= PF_REPLY_CALL;
    const char *wrong = NULL;
    if (!is_utf8(e->text, e->n))
        wrong = "an event is no UTF-8";
    else if (e->n == 0 && e->kind != PF_REPLY_CALL_END)
        wrong = "an event is empty";
    else if (of_call ? e->call != g->n_calls : e->call != -1)
        wrong = "an event belongs to another call";
    else if (g->in_call != (e->kind == PF_REPLY_ARGUMENTS || e->kind == PF_REPLY_CALL_END))
        wrong = "an event comes inside a call, or outside of one";
    else if (e->kind == PF_REPLY_CALL_END && !is_json_object(g->arguments.p, g->arguments.n))
        wrong = "arguments are no JSON object";
    g->wrong = g->wrong ? g->wrong : wrong;
}

static inline void gather(void *ctx, const struct pf_reply_event *e)
{
    struct gathered *g = ctx;
    judge(g, e);
    if (e->kind == PF_REPLY_CONTENT)
        piece_add(&g->content, e->text, e->n);
    if (e->kind == PF_REPLY_REASONING)
        piece_add(&g->reasoning, e->text, e->n);
    if (e->kind == PF_REPLY_CALL) {
        piece_add(&g->calls, e->text, e->n);
        piece_puts(&g->calls, "#");
        piece_add(&g->calls, e->id, e->n_id);
        piece_puts(&g->calls, " ");
        g->arguments.n = 0;
    }
    if (e->kind == PF_REPLY_ARGUMENTS) {
        piece_add(&g->calls, e->text, e->n);
        piece_add(&g->arguments, e->text, e->n);
    }
    if (e->kind == PF_REPLY_CALL_END) {
        piece_puts(&g->calls, "\n");
        g->n_calls++;
    }
    g->in_call = e->kind == PF_REPLY_CALL || e->kind == PF_REPLY_ARGUMENTS;
}

static inline bool piece_is(const struct piece *t, const char *s)
{
    return t->n == strlen(s) && memcmp(t->n ? t->p : s, s, t->n) == 0;
}

static inline bool piece_equals(const struct piece *a, const struct piece *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

static inline bool gathered_equals(const struct gathered *a, const struct gathered *b)
{
    return piece_equals(&a->content, &b->content) && piece_equals(&a->reasoning, &b->reasoning) &&
           piece_equals(&a->calls, &b->calls);
}

/* Feeds text in pieces of up to `longest` bytes that random chooses (NULL: all of `longest`), and ends the reply. */
static inline pf_status gather_reply(struct gathered *g, const struct pf_reply_opts *o, const char *text, size_t n,
                                     size_t longest, unsigned *random)
{
    pf_reply *r;
    pf_status st = pf_reply_open(&r, o);
    for (size_t at = 0, len; at < n && st == PF_OK; at += len) {
        if (random)
            *random = *random * 1664525 + 1013904223;
        len = random ? 1 + (*random >> 8) % longest : longest;
        len = len < n - at ? len : n - at;
        st = pf_reply_feed(r, text + at, len, gather, g);
    }
    if (st == PF_OK)
        st = pf_reply_end(r, gather, g);
    if (st == PF_OK && g->in_call && !g->wrong)
        g->wrong = "the last call is not over";
    pf_reply_close(&r);
    return st;
}

#endif

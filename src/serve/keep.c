/* See keep.h. */
#include "serve/keep.h"

enum { BEFORE_ANSWER = 32 };             /* tokens: more than templates put in front of an answer */

/* What a step goes over is what is kept, as far as windows go, or less. */
struct keeper keep_open(struct saved *saved, const pf_model *m, const struct pf_session_opts *o, bool cuts)
{
    struct keeper k = { .saved = saved, .cuts = cuts };
    int64_t most = saved ? o->n_ctx : 0;
    uint64_t all = 0;
    if (saved && pf_session_read_bytes(m, o, most - 1, &all) == PF_OK)
        saved_expect(saved, m, all / (uint64_t)most);
    while (k.most_tok < most) {
        int64_t n = k.most_tok + (most - k.most_tok + 1) / 2;
        uint64_t bytes = 0;
        bool is_known = pf_session_read_bytes(m, o, n - 1, &bytes) == PF_OK;
        if (is_known && bytes > saved_most(saved))
            most = n - 1;
        else
            k.most_tok = n;
    }
    return k;
}

bool keep_sequence(struct keeper *k, struct slot *s, bool is_shared)
{
    int64_t n = pf_session_pos(s->session);
    enum put put = PUT_DONE;
    if (s->unsaved && n >= WORTH_TOKENS)
        put = n > k->most_tok ? PUT_NO_ROOM : saved_put(k->saved, s->session, is_shared);
    if (put == PUT_NO_ROOM && k->most_tok >= 0) {
        k->most_tok = n - 1 < k->most_tok ? n - 1 : k->most_tok;
        complain("a conversation of %lld tokens was not saved: none of more than %lld is (--cache-mb)", (long long)n,
                 (long long)k->most_tok);
    } else if (put == PUT_NEVER || put == PUT_FAILED) {
        k->most_tok = put == PUT_NEVER ? -1 : k->most_tok;
        complain("a conversation of %lld tokens was not saved: %s", (long long)n, pf_last_error());
    }
    s->unsaved = s->unsaved && put == PUT_GIVEN_UP;
    return put != PUT_GIVEN_UP;
}

/* A recurrent state cannot be cut short, nor can windows far, and a saved sequence has no checkpoints: what is to be of
 * use to a later prompt must end where that one may still be the same, before what the template put in front of the
 * answer. */
static int64_t beginning_of(const struct slot *s)
{
    return s->prompt_end > BEFORE_ANSWER ? s->prompt_end - BEFORE_ANSWER : 0;
}

bool keep_beginning(struct keeper *k, struct slot *s)
{
    int64_t end = beginning_of(s);
    if (pf_session_pos(s->session) <= end || pf_session_save_can_cut(s->session, end) ||
        pf_session_rewind(s->session, end) < 0 ||
        pf_session_rewind(s->session, pf_session_computed(s->session)) < 0)
        return true;
    s->unsaved = true;
    return keep_sequence(k, s, false);
}

/* Whether a slot that keeps `common` tokens loses so little behind them that it is sooner evaluated again than saved,
 * since what is in front of it would have to be saved with it. */
static bool is_little(const struct keeper *k, const struct slot *s, size_t common)
{
    enum { SAVED_FOR_ONE = 8 };              /* tokens */
    size_t n = (size_t)pf_session_pos(s->session);
    if (!k->cuts || !pf_session_save_can_cut(s->session, (int64_t)common))
        return false;
    size_t n_new = n - saved_common(k->saved, pf_session_tokens(s->session), n);
    return n_new > SAVED_FOR_ONE * (n - common);
}

bool keep_lost(struct keeper *k, struct slot *s, size_t common, bool leaves)
{
    bool has_more = (size_t)pf_session_pos(s->session) >= common + WORTH_TOKENS;
    if (!k->saved || !has_more || (!leaves && is_little(k, s, common)))
        return true;
    return keep_sequence(k, s, false) && ((!leaves && common >= WORTH_TOKENS) || keep_beginning(k, s));
}

static struct part *find(const struct keeper *k, const struct slot *s, const struct prompt *q, size_t *common)
{
    return saved_find(k->saved, q->tok, q->n_tok, pf_session_n_ctx(s->session), !k->cuts, common);
}

/* What is saved of the prompt, if that is worth more than what the slot's sequence spares of it; else NULL. */
static struct part *find_better(const struct keeper *k, const struct slot *s, const struct prompt *q)
{
    size_t saved_common;
    struct part *part = find(k, s, q, &saved_common);
    return part && saved_common >= slot_spares(s, q->tok, q->n_tok) + WORTH_TOKENS ? part : NULL;
}

bool keep_would_exchange(const struct keeper *k, const struct slot *s, const struct prompt *q)
{
    size_t common = slot_common(s, q->tok, q->n_tok), n = (size_t)pf_session_pos(s->session);
    if (!k->saved)
        return false;
    int64_t end = beginning_of(s);
    bool cuts_off = common < WORTH_TOKENS && (int64_t)n > end && !pf_session_save_can_cut(s->session, end);
    bool keeps = n >= common + WORTH_TOKENS && (s->unsaved || cuts_off) && !is_little(k, s, common);
    return keeps || find_better(k, s, q);
}

size_t keep_spares(const struct keeper *k, const struct slot *s, const struct prompt *q)
{
    size_t common = 0;
    if (k->saved)
        (void)find(k, s, q, &common);
    return common;
}

size_t keep_common(const struct keeper *k, const struct prompt *q)
{
    return k->saved ? saved_common(k->saved, q->tok, q->n_tok) : 0;
}

bool keep_goes_on(const struct slot *s, const struct prompt *q)
{
    int64_t end = beginning_of(s);
    return end > 0 && (int64_t)slot_common(s, q->tok, q->n_tok) >= end;
}

void keep_exchange(struct keeper *k, struct slot *s, const struct prompt *q)
{
    size_t common = slot_common(s, q->tok, q->n_tok);
    if (!k->saved)
        return;
    if (!keep_lost(k, s, common, find_better(k, s, q) != NULL))
        return;
    struct part *part = find_better(k, s, q);
    if (!part)
        return;
    s->prompt_end = 0;                   /* of what was there */
    if (saved_load(k->saved, part, s->session))
        s->unsaved = false;
}

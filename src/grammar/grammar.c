/* Grammars and matchers. See grammar.h. */
#include "grammar/grammar.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"

struct worker {
    struct pf_runner run;
    struct pf_masks  masks;
    uint64_t        *bits;               /* a mask with end tokens */
    struct worker   *next;               /* in the grammar's list */
};

enum {
    MOST_IDLE = 4,
    FIRST_EFFORT = 4 * PF_MOST_EFFORT,   /* what an output has at first, and at most later: less than a second */
    TOKEN_EFFORT = 1 << 17               /* what a token brings: some milliseconds */
};

struct pf_grammar {
    struct pf_automaton     a;
    const struct pf_tokens *t;
    pthread_mutex_t         lock;        /* of idle, n_idle */
    struct worker          *idle;
    int                     n_idle;
    atomic_int              n_matchers;
};

struct pf_matcher {
    pf_grammar    *g;
    struct worker *w;
    int32_t        position;
    uint64_t       effort_left;          /* as of the end of the call before the present one */
    bool           ended;                /* an end token was taken */
};

/* ---- Grammars ---------------------------------------------------------------------------------------------------- */

static void worker_close(struct worker *w)
{
    if (!w)
        return;
    pf_masks_forget(&w->masks);
    pf_runner_close(&w->run);
    pf_free(w->bits);
    pf_free(w);
}

static pf_status worker_open(struct worker **out, const pf_grammar *g)
{
    struct worker *w = pf_alloc(PF_MEM_TEXT, sizeof *w);
    *out = w;
    if (w)
        w->bits = pf_alloc_array(PF_MEM_TEXT, g->t->n_vocab / 64 + 1, sizeof *w->bits);
    if (!w || !w->bits)
        PF_FAIL(PF_ENOMEM, "no memory to match a grammar");
    w->masks.t = g->t;
    return pf_runner_open(&w->run, &g->a);
}

pf_status pf_grammar_make(pf_grammar **out, const struct pf_tokens *t, struct pf_rules *r, int32_t root)
{
    *out = NULL;
    pf_grammar *g = pf_alloc(PF_MEM_TEXT, sizeof *g);
    if (!g)
        PF_FAIL(PF_ENOMEM, "no memory for a grammar");
    g->t = t;
    pthread_mutex_init(&g->lock, NULL);
    pf_status st = pf_automaton_make(&g->a, r, root);
    if (st == PF_OK)
        *out = g;
    else
        pf_grammar_close(&g);
    return st;
}

pf_status pf_grammar_compile(pf_grammar **out, const struct pf_tokens *t, pf_language_fn *language, const char *text,
                             size_t n)
{
    struct pf_rules r = { 0 };
    int32_t root = 0;
    *out = NULL;
    pf_status st = language(&r, text, n, &root);
    if (st == PF_OK)
        st = pf_grammar_make(out, t, &r, root);
    pf_rules_free(&r);
    return st;
}

size_t pf_grammar_bytes(const pf_grammar *g)
{
    return sizeof *g + pf_automaton_bytes(&g->a);
}

void pf_grammar_close(pf_grammar **gp)
{
    pf_grammar *g = *gp;
    if (!g)
        return;
    assert(atomic_load(&g->n_matchers) == 0 && "matchers must be closed before their grammar");
    while (g->idle) {
        struct worker *w = g->idle;
        g->idle = w->next;
        worker_close(w);
    }
    pf_automaton_free(&g->a);
    pthread_mutex_destroy(&g->lock);
    pf_free(g);
    *gp = NULL;
}

/* ---- Matchers ---------------------------------------------------------------------------------------------------- */

pf_status pf_matcher_open(pf_matcher **out, const pf_grammar *shared)
{
    pf_grammar *g = (pf_grammar *)(uintptr_t)shared;         /* only what the lock guards changes */
    *out = NULL;
    pf_matcher *mt = pf_alloc(PF_MEM_TEXT, sizeof *mt);
    if (!mt)
        PF_FAIL(PF_ENOMEM, "no memory for a matcher");
    pthread_mutex_lock(&g->lock);
    mt->w = g->idle;
    if (mt->w) {
        g->idle = mt->w->next;
        g->n_idle--;
    }
    pthread_mutex_unlock(&g->lock);
    pf_status st = mt->w ? PF_OK : worker_open(&mt->w, g);
    if (st == PF_OK) {
        mt->effort_left = FIRST_EFFORT;
        pf_runner_begin(&mt->w->run, PF_MOST_EFFORT);
        st = pf_runner_start(&mt->w->run, &mt->position);
    }
    if (st < 0) {
        worker_close(mt->w);
        pf_free(mt);
        return st;
    }
    mt->g = g;
    atomic_fetch_add(&g->n_matchers, 1);
    *out = mt;
    return PF_OK;
}

void pf_matcher_close(pf_matcher **mp)
{
    pf_matcher *mt = *mp;
    if (!mt)
        return;
    pf_grammar *g = mt->g;
    pthread_mutex_lock(&g->lock);
    bool keep = g->n_idle < MOST_IDLE;
    if (keep) {
        mt->w->next = g->idle;
        g->idle = mt->w;
        g->n_idle++;
    }
    pthread_mutex_unlock(&g->lock);
    if (!keep)
        worker_close(mt->w);
    atomic_fetch_sub(&g->n_matchers, 1);
    pf_free(mt);
    *mp = NULL;
}

bool pf_matcher_may_end(const pf_matcher *mt)
{
    return mt->ended || pf_runner_may_end(&mt->w->run, mt->position);
}

bool pf_matcher_must_end(const pf_matcher *mt)
{
    return mt->ended || pf_runner_must_end(&mt->w->run, mt->position);
}

/* A call's work is drawn from what the matcher has left, so that an output takes no more for each of its tokens in the
 * long run than one brings in, whatever its grammar: others may be waiting for the thread. A full worker begins anew
 * from where its matcher is; if there is no memory for that it goes on as it is. */
static void begin(pf_matcher *mt)
{
    struct worker *w = mt->w;
    mt->effort_left -= w->run.effort < mt->effort_left ? w->run.effort : mt->effort_left;
    pf_runner_begin(&w->run, mt->effort_left < PF_MOST_EFFORT ? mt->effort_left : PF_MOST_EFFORT);
    if (pf_runner_is_full(&w->run) && pf_runner_shrink(&w->run, &mt->position, 1) == PF_OK)
        pf_masks_forget(&w->masks);
}

/* In the middle of a text, which may turn out not to follow: the matcher's position is kept, too. */
static void make_room(pf_matcher *mt, int32_t *position)
{
    int32_t kept[PF_MOST_KEPT] = { mt->position, *position };
    if (!pf_runner_is_full(&mt->w->run) || pf_runner_shrink(&mt->w->run, kept, PF_MOST_KEPT) < 0)
        return;
    pf_masks_forget(&mt->w->masks);
    mt->position = kept[0];
    *position = kept[1];
}

/* The position after a text; 0 where the text may not follow. A text may be longer than a worker has positions. */
static pf_status after(pf_matcher *mt, const char *text, size_t n, int32_t *position)
{
    enum { BETWEEN = 4096 };             /* bytes, of which each makes a position at most */
    *position = mt->position;
    for (size_t i = 0; i < n && *position; i++) {
        if (i % BETWEEN == BETWEEN - 1)
            make_room(mt, position);
        PF_TRY(pf_runner_next(&mt->w->run, *position, (uint8_t)text[i], position));
    }
    return PF_OK;
}

static void go_on(pf_matcher *mt, int32_t position)
{
    uint64_t left = mt->effort_left + TOKEN_EFFORT;
    mt->position = position;
    mt->effort_left = left < FIRST_EFFORT ? left : FIRST_EFFORT;
}

static pf_status after_token(pf_matcher *mt, int32_t tok, int32_t *position)
{
    size_t n = 0;
    const char *text = NULL;
    *position = 0;
    if (mt->ended)
        return PF_OK;
    if (pf_vocab_is_end(mt->g->t->vocab, tok)) {
        *position = pf_matcher_may_end(mt) ? mt->position : 0;
        return PF_OK;
    }
    text = pf_tokens_text(mt->g->t, tok, &n);
    return n ? after(mt, text, n, position) : PF_OK;
}

pf_status pf_matcher_fits(pf_matcher *mt, int32_t tok, bool *fits)
{
    int32_t position;
    begin(mt);
    PF_TRY(after_token(mt, tok, &position));
    *fits = position != 0;
    return PF_OK;
}

pf_status pf_matcher_take(pf_matcher *mt, int32_t tok)
{
    int32_t position;
    begin(mt);
    PF_TRY(after_token(mt, tok, &position));
    if (position == 0)
        PF_FAIL(PF_EINVAL, "token %d may not follow by the grammar", tok);
    go_on(mt, position);
    mt->ended = mt->ended || pf_vocab_is_end(mt->g->t->vocab, tok);
    return PF_OK;
}

pf_status pf_matcher_take_text(pf_matcher *mt, const char *text, size_t n)
{
    int32_t position = 0;
    if (n == 0)
        return PF_OK;
    begin(mt);
    if (!mt->ended)
        PF_TRY(after(mt, text, n, &position));
    if (position == 0)
        PF_FAIL(PF_EINVAL, "a text of %zu bytes may not follow by the grammar", n);
    go_on(mt, position);
    return PF_OK;
}

pf_status pf_matcher_mask(pf_matcher *mt, const uint64_t **bits)
{
    const struct pf_tokens *t = mt->g->t;
    const uint64_t *texts;
    size_t bytes = (t->n_vocab + 63) / 64 * sizeof *texts;
    begin(mt);
    *bits = mt->w->bits;
    if (mt->ended) {
        memset(mt->w->bits, 0, bytes);
        return PF_OK;
    }
    PF_TRY(pf_masks_get(&mt->w->masks, &mt->w->run, mt->position, &texts));
    memcpy(mt->w->bits, texts, bytes);
    for (size_t i = 0; i < t->n_ends && pf_matcher_may_end(mt); i++)
        mt->w->bits[t->ends[i] / 64] |= UINT64_C(1) << t->ends[i] % 64;
    return PF_OK;
}

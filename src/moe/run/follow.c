/* A drafter that has a session of its own, which follows the session that it drafts for: a session of the layer that
 * guesses ahead (nextn), which belongs to the model, or of a second, smaller model, which has no use for rows.
 *
 *     s            t0 t1 t2 ... | p                 tokens that s has, p being next
 *     rows            h0 h1 ... | h(p-1)            what s has put out at positions [first, first + n)
 *     own             [t1 h0] [t2 h1] ... [p h(p-1)] -> a guess at the token after p
 *     then                    [guess, own row] -> the guess after that, and so on; own goes back to p
 *
 * Every row that s evaluates is noted. `own` goes over them after a prompt's steps; of single tokens, when LAZY of them
 * wait or drafts are wanted, so that following costs little while nobody drafts. A row that is not there (in front of
 * the first position; after a session was loaded) counts as 0: guesses are worse, and that is all. Whatever fails in
 * here ends the drafts, not the step.
 *
 * Owns `own` and `rows`. Used by the thread that evaluates s. */
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "moe/run/batch.h"

enum { LAZY = 32 };

struct follower {
    struct pf_drafter  base;
    struct pf_session *s, *own;
    float             *rows;                 /* [n_batch + LAZY][pf_hidden_width]; NULL: `own` has no use for them */
    int64_t            first;
    int                n;
    struct pf_odds     odds[PF_MAX_DRAFT];   /* by the place in a proposal, if those before it were right */
    int32_t            proposed[PF_MAX_DRAFT];
    int                n_proposed;
    int64_t            from;                 /* position of proposed[0] */
    int                n_timed;              /* how often it has proposed */
    bool               failed;
};

static struct follower *follower_of(struct pf_drafter *d)
{
    return (struct follower *)d;
}

/* ---- Following --------------------------------------------------------------------------------------------------- */

static void give_up(struct follower *f)
{
    f->failed = true;
    f->n = f->n_proposed = 0;
    pf_model_logf(f->s->m, PF_LOG_WARN, "no more drafts of %s: %s",
                  f->rows ? "the layer that guesses ahead" : "the second model", pf_last_error());
}

/* Makes `own` hold the first end positions, of which the tokens are there. */
static void catch_up(struct follower *f, int64_t end)
{
    struct pf_session *own = f->own;
    if (f->failed || own->pos >= end)
        return;
    own->given = (struct pf_given_rows){ f->rows, f->first, f->n };
    if (pf_session_eval(own, f->s->tokens + own->pos, (size_t)(end - own->pos), 0) < 0)
        give_up(f);
}

/* Drops rows that `own` has gone over, but the last one, which stands in front of its next position. */
static void drop_rows(struct follower *f)
{
    size_t width = pf_hidden_width(f->s->m);
    int64_t done = f->own->pos - 1 - f->first;
    int n = done < 0 ? 0 : done < f->n ? (int)done : f->n;
    memmove(f->rows, f->rows + (size_t)n * width, (size_t)(f->n - n) * width * sizeof *f->rows);
    f->first += n;
    f->n -= n;
}

/* Notes what s has put out. */
static void keep_rows(struct follower *f, int64_t from, int rows)
{
    size_t width = pf_hidden_width(f->s->m);
    bool joins = from >= f->first && from <= f->first + f->n;
    f->n = joins ? (int)(from - f->first) : 0;
    f->first = joins ? f->first : from;
    if (f->n + rows > f->s->opts.n_batch + LAZY) {
        catch_up(f, from);
        drop_rows(f);
    }
    if (f->failed)
        return;
    memcpy(f->rows + (size_t)f->n * width, f->s->hidden, (size_t)rows * width * sizeof *f->rows);
    f->n += rows;
}

static void went(struct pf_drafter *d, int64_t from, int rows, int certain)
{
    struct follower *f = follower_of(d);
    if (f->rows && !f->failed)
        keep_rows(f, from, rows);
    if (certain == 1 && from + certain - f->own->pos < LAZY)
        return;
    catch_up(f, from + certain);
    if (f->rows)
        drop_rows(f);
}

static void see(struct pf_drafter *d, int32_t tok)
{
    struct follower *f = follower_of(d);
    int64_t i = d->n - f->from;
    if (i >= 0 && i < f->n_proposed) {
        pf_odds_add(&f->odds[i], f->proposed[i] == tok);
        if (f->proposed[i] != tok)
            f->n_proposed = 0;
    }
    d->n++;
}

static void cut(struct pf_drafter *d, int64_t pos)
{
    struct follower *f = follower_of(d);
    int64_t n = pos - f->first;
    f->n = n < 0 ? 0 : n < f->n ? (int)n : f->n;
    if (f->own->pos > pos && pf_session_rewind(f->own, pos) < 0)
        give_up(f);
    if (pos < d->n) {
        d->n = pos;
        f->n_proposed = 0;
    }
}

/* ---- Guessing ---------------------------------------------------------------------------------------------------- */

static int expect(struct pf_drafter *d, float *chance, int most)
{
    struct follower *f = follower_of(d);
    for (int i = 0; !f->failed && i < most; i++)
        chance[i] = f->odds[i].hits / f->odds[i].tries;
    return f->failed ? 0 : most;
}

static int32_t likeliest(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Guesses one after the other; false: it failed. */
static bool guess_all(struct follower *f, int n)
{
    struct pf_session *own = f->own;
    int64_t end = f->base.n;
    catch_up(f, end);
    pf_lock_take(&own->m->step_lock);
    if (own->m->recurrent)                   /* which is gone back to */
        pf_state_keep(own, end);
    pf_lock_give(&own->m->step_lock);
    for (int i = 0; !f->failed && i < n; i++) {
        f->proposed[i] = likeliest(pf_session_logits(own), own->m->n_vocab);
        if (i + 1 == n)
            break;
        if (f->rows)
            own->given = (struct pf_given_rows){ own->hidden + (size_t)(own->n_hidden - 1) * pf_hidden_width(own->m),
                                                 end + i - 1, 1 };
        if (pf_session_eval(own, &f->proposed[i], 1, 0) < 0)
            give_up(f);
    }
    if (!f->failed && pf_session_rewind(own, end) < 0)
        give_up(f);
    if (!f->failed && f->rows)
        drop_rows(f);
    return !f->failed;
}

/* A guess took ns. The first may be slow for a reason of its own, as what is captured for a GPU. */
static void learn(struct follower *f, double ns)
{
    double *known = &f->base.draft_ns, most = 2 * *known;
    if (f->n_timed++ == 0)                   /* not known yet: the next one is tried as if it took nothing */
        return;
    *known += *known == 0 ? ns : ((ns < most ? ns : most) - *known) / 8;
}

static int propose(struct pf_drafter *d, int32_t *out, int n)
{
    struct follower *f = follower_of(d);
    uint64_t begin = pf_now_ns();
    if (!guess_all(f, n))
        return 0;
    learn(f, (double)(pf_now_ns() - begin) / n);
    f->from = d->n;
    f->n_proposed = n;
    memcpy(out, f->proposed, (size_t)n * sizeof *out);
    return n;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_session *own_session(const struct pf_drafter *d)
{
    const struct follower *f = (const struct follower *)d;
    return f->failed ? NULL : f->own;
}

static void close(struct pf_drafter *d)
{
    struct follower *f = follower_of(d);
    pf_session_close(&f->own);
    pf_free(f->rows);
    pf_free(f);
}

static const struct pf_drafter_ops ops = { see, cut, expect, propose, close, went, own_session };

static pf_status open_parts(struct follower *f)
{
    const struct pf_session *s = f->s;
    struct pf_session_opts o;
    const struct pf_model *m = pf_session_follower(s->m, &s->opts, &o);
    if (m->is_nextn) {
        f->rows = pf_alloc_array(PF_MEM_SESSION, (size_t)(s->opts.n_batch + LAZY) * pf_hidden_width(s->m),
                                 sizeof *f->rows);
        if (!f->rows)
            PF_FAIL(PF_ENOMEM, "no memory for what the layer that guesses ahead reads");
    }
    return pf_session_open(&f->own, m == s->m->second ? s->m->second : s->m->nextn, &o);
}

pf_status pf_drafter_follower(struct pf_drafter **out, struct pf_session *s)
{
    struct follower *f = pf_alloc(PF_MEM_SESSION, sizeof *f);
    *out = NULL;
    if (!f)
        PF_FAIL(PF_ENOMEM, "no memory for drafts");
    f->base.ops = &ops;
    f->s = s;
    for (int i = 0; i < PF_MAX_DRAFT; i++)
        f->odds[i] = (struct pf_odds){ 2, 1.4f };
    pf_status st = open_parts(f);
    if (st < 0) {
        close(&f->base);
        return st;
    }
    *out = &f->base;
    return PF_OK;
}

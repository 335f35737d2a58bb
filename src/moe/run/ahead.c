/* Evals of one token that take drafts along, and those whose token was drafted.
 *
 *     eval(t)        a step of t and drafts d e f       logits of all four rows are there; the sequence ends with t
 *     eval(d)        is ahead: no step                  the second row's
 *     eval(x)        a step of x and new drafts         e and f were wrong: what they left is written over
 *
 * Parts of single tokens take drafts along beside parts of many, such as a slice of another session's prompt.
 *
 * A row's bits depend on the rows in front of it and on nothing behind, so no bit of an answer depends on drafts. The
 * sequence, `computed` and the sampler know nothing of them: their keys and values lie past computed, where anything
 * may lie, and recurrent state goes back by settle.c. A step that fails with drafts is done again without: what is bad
 * with a draft is not the answer's. How many drafts a step takes along is the gate's (draft/gate.h) to say. */
#include "base/pf_time.h"
#include "moe/place/placement.h"
#include "moe/run/batch.h"
#include "moe/session/watch.h"

/* ---- Tokens that are there --------------------------------------------------------------------------------------- */

bool pf_session_is_ahead(const pf_session *s, int32_t tok)
{
    return s->n_ahead > 0 && s->has_logits && s->pos < s->ahead_from + s->n_ahead && s->computed == s->pos &&
           pf_session_is_here(s) && s->tokens[s->pos] == tok;
}

void pf_session_drafts(const pf_session *s, uint64_t *drafted, uint64_t *accepted)
{
    *drafted = s->n_drafted;
    *accepted = s->n_accepted;
}

static void advance(struct pf_session *s)
{
    s->pos++;
    s->computed++;
    struct pf_draft_account *account = &s->sources[s->source].account;
    pf_account_hit(account);
    s->n_accepted++;
    atomic_fetch_add(&s->m->drafts.accepted, 1);
    atomic_fetch_add(&s->m->drafts.alone_ns, (uint64_t)account->token_ns);
}

/* ---- Drafts for a step ------------------------------------------------------------------------------------------- */

static bool is_caught_up(const struct pf_session *s)
{
    return s->pos > 0 && s->computed == s->pos && pf_session_is_here(s);
}

/* Tells the drafters of all that they have not seen, tok being next. */
static void tell(struct pf_session *s, int32_t tok)
{
    s->tokens[s->pos] = tok;
    for (int i = 0; i < s->n_sources; i++)
        for (struct pf_drafter *d = s->sources[i].drafter; d->n <= s->pos;)
            d->ops->see(d, s->tokens[d->n]);
}

/* Drafts of one drafter, as many as pay, behind the token that is next; returns how many. What they take to make is
 * theirs to pay, and part of the step. */
static int drafts_of(struct pf_session *s, struct pf_source *from, int rows, int cap)
{
    struct pf_drafter *d = from->drafter;
    struct pf_model *m = s->m;
    int32_t *to = s->tokens + s->pos + 1;
    float chance[PF_MAX_DRAFT];
    int n = d->ops->expect(d, chance, cap), n_valid = 0;
    n = pf_gate_choose(&m->row_prices, &from->account, rows, chance, n, d->draft_ns);
    uint64_t begin = pf_now_ns();
    n = n > 0 ? d->ops->propose(d, to, n) : 0;
    uint64_t ns = pf_now_ns() - begin;
    from->account.balance_ns -= (double)ns;
    atomic_fetch_add(&m->drafts.step_ns, ns);
    while (n_valid < n && to[n_valid] >= 0 && to[n_valid] < m->n_vocab)
        n_valid++;
    return n_valid;
}

/* Adds drafts to the piece of a session that is given one token; `rows` of such sessions are in the step so far, `room`
 * is left in it. */
static void add_drafts(struct pf_piece *p, int rows, int room)
{
    struct pf_session *s = p->s;
    int64_t left = s->opts.n_ctx - s->pos - 1;
    int cap = room < s->opts.draft_max ? room : s->opts.draft_max;
    cap = cap < left ? cap : (int)left;
    tell(s, *p->tok);
    if (cap <= 0 || !is_caught_up(s))
        return;
    for (int i = 0; p->n_drafts == 0 && i < s->n_sources; i++) {
        p->n_drafts = drafts_of(s, &s->sources[i], rows, cap);
        s->source = p->n_drafts ? i : s->source;
    }
    p->tok = s->tokens + s->pos;
    p->n = 1 + (size_t)p->n_drafts;
}

/* The first `singles` pieces are of one token. What rows of other pieces cost is not known, nor what drafts cost beside
 * them, but no more than alone: they are chosen as if the others were not there. They take the others no room. */
static void draft(struct pf_piece *pieces, int n, int singles)
{
    struct pf_model *m = pieces->s->m;
    int64_t room = 0;
    int rows = singles;
    for (int i = 0; i < n; i++)
        room = pieces[i].s->opts.n_batch > room ? pieces[i].s->opts.n_batch : room;
    for (int i = 0; i < n; i++)
        room -= (int64_t)pieces[i].n;
    pf_lock_take(&m->step_lock);
    for (int i = 0; i < singles && !pf_watch_any(m); i++)
        if (pieces[i].s->n_sources) {
            add_drafts(&pieces[i], rows, room > 0 ? (int)room : 0);
            rows += pieces[i].n_drafts;
            room -= pieces[i].n_drafts;
        }
    pf_lock_give(&m->step_lock);
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* The step of a session's piece went well: the sequence ends with what was given. */
static void take(struct pf_piece *p, int64_t before)
{
    struct pf_session *s = p->s;
    s->has_logits = true;
    s->n_all = s->all_logits ? p->n : 0;
    if (p->n_drafts == 0)
        return;
    s->pos = before + 1;
    pf_state_rewind(s, s->pos);
    s->ahead_from = before;
    s->n_ahead = (int)p->n;
    s->n_drafted += (uint64_t)p->n_drafts;
}

static int n_drafts_of(const struct pf_piece *pieces, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += pieces[i].n_drafts;
    return sum;
}

/* What the step took is shared out by drafts; sessions without any pay what it takes without drafts. */
static void account(struct pf_piece *pieces, int n, int drafts, double ns)
{
    struct pf_model *m = pieces->s->m;
    pf_lock_take(&m->step_lock);
    double alone = drafts ? pf_price_of(&m->row_prices, n) : ns,
           price = drafts ? pf_price_expected(&m->row_prices, n + drafts) : ns;
    bool begins = pf_prices_begin(&m->row_prices, n + drafts);
    for (int i = 0; i < n; i++) {
        double share = drafts ? (double)pieces[i].n_drafts / drafts : 0;
        struct pf_session *s = pieces[i].s;
        for (int k = 0; k < s->n_sources; k++) {
            double part = k == s->source ? share : 0;
            pf_account_step(&s->sources[k].account, alone, n, alone + part * (ns - alone),
                            alone + part * (price - alone), begins);
        }
    }
    pf_lock_give(&m->step_lock);
    if (drafts == 0)
        return;
    atomic_fetch_add(&m->drafts.drafted, (uint64_t)drafts);
    atomic_fetch_add(&m->drafts.steps, 1);
    atomic_fetch_add(&m->drafts.step_ns, (uint64_t)ns);
    atomic_fetch_add(&m->drafts.alone_ns, (uint64_t)alone);
}

static void go_back(struct pf_piece *p, int64_t before)
{
    pf_drop_logits(p->s);
    pf_go_back(p->s, before);
}

/* A piece that failed with drafts is tried without. */
static void again_without(struct pf_piece *p, int64_t before)
{
    go_back(p, before);
    p->n = 1;
    p->n_drafts = 0;
    p->status = PF_OK;
    pf_append(p, 1);
}

static void run_pieces(struct pf_piece *pieces, int n, int singles)
{
    int64_t before[PF_MAX_BATCH_PARTS];
    bool caught_up = true, went_well = true;
    for (int i = 0; i < n; i++) {
        before[i] = pieces[i].s->pos;
        caught_up &= i >= singles || is_caught_up(pieces[i].s);
    }
    draft(pieces, n, singles);
    pf_append(pieces, n);
    for (int i = 0; i < n; i++) {
        struct pf_piece *p = &pieces[i];
        went_well &= p->status == PF_OK;
        if (p->status < 0 && p->status != PF_ECANCEL && p->n_drafts > 0)
            again_without(p, before[i]);
        if (p->status < 0)
            go_back(p, before[i]);
        else
            take(p, before[i]);
    }
    int drafts = n_drafts_of(pieces, n);
    if (caught_up && went_well && singles == n)
        account(pieces, n, drafts, (double)pieces->s->step_ns);
    else if (caught_up && went_well && drafts > 0)
        account(pieces, singles, drafts, pf_price_of(&pieces->s->m->row_prices, singles + drafts));
}

/* ---- Evals ------------------------------------------------------------------------------------------------------- */

static bool is_single(const struct pf_batch_part *p)
{
    return p->n == 1 && p->flags == 0;
}

bool pf_ahead_suits(const struct pf_batch_part *parts, size_t n_parts)
{
    bool any = false;
    for (size_t i = 0; i < n_parts; i++)
        any |= parts[i].session->n_sources > 0 && is_single(&parts[i]);
    return any;
}

/* The part's token was drafted: no step is needed, and none can fail. */
static pf_status take_drafted(struct pf_session *s)
{
    struct pf_piece p = { .s = s };
    if (atomic_load(&s->cancel))
        pf_piece_fail(&p, pf_fail(PF_ECANCEL, "cancelled in front of a token that was drafted"));
    else
        advance(s);
    return p.status;
}

void pf_ahead_eval(struct pf_batch_part *parts, size_t n_parts)
{
    struct pf_piece pieces[PF_MAX_BATCH_PARTS];
    size_t of[PF_MAX_BATCH_PARTS];
    int n = 0, singles = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (!is_single(&parts[i]))
            continue;
        if (pf_session_is_ahead(parts[i].session, *parts[i].tok)) {
            parts[i].status = take_drafted(parts[i].session);
            continue;
        }
        of[singles] = i;
        pieces[singles++] = pf_piece_of(&parts[i]);
    }
    n = singles;
    for (size_t i = 0; i < n_parts; i++)
        if (!is_single(&parts[i])) {
            of[n] = i;
            pieces[n++] = pf_piece_of(&parts[i]);
        }
    if (n > 0)
        run_pieces(pieces, n, singles);
    for (int i = 0; i < n; i++)
        parts[of[i]].status = pieces[i].status;
}

/* Which rows are divided between the cards, and gathering them: invariants 2 to 4 of team.h. */
#include <string.h>

#include "kernels/team/team.h"

static const float *end_of(const struct divided *d)
{
    return d->at + (size_t)d->rows * (size_t)d->n;
}

const struct divided *pf_team_divided(const struct team *t, const float *p)
{
    for (int i = 0; i < t->n_divided; i++)
        if (p >= t->divided[i].at && p < end_of(&t->divided[i]))
            return &t->divided[i];
    return NULL;
}

float *pf_team_part(const struct team *t, int k, const struct divided *d, const float *p)
{
    ptrdiff_t at = p - d->at, row = at / d->n, first = d->rows == 1 ? d->first[k] : 0;
    return (float *)pf_team_here(t, k, d->at) + first + row * pf_team_columns(d->first, k) + at % d->n;
}

float *pf_team_at(const struct team *t, int k, const float *p)
{
    const struct divided *d = p ? pf_team_divided(t, p) : NULL;
    return d ? pf_team_part(t, k, d, p) : pf_team_here(t, k, p);
}

pf_status pf_team_settle(struct team *t)
{
    struct held_act h = t->acted;
    t->acted.y = NULL;
    for (int k = t->from; k < t->end && h.y; k++) {
        const struct divided *d = pf_team_divided(t, h.y);
        float *y = pf_team_at(t, k, h.y);
        PF_TRY(t->card[k]->ops->act(t->card[k], h.act, y, pf_team_at(t, k, h.up),
                                    h.n / d->n * pf_team_columns(d->first, k), y));
    }
    return PF_OK;
}

/* ---- Gathering --------------------------------------------------------------------------------------------------- */

static pf_status wait_for_all(struct team *t)
{
    for (int k = 0; k < t->n; k++)
        for (int i = 0; i < t->n; i++)
            if (i != k)
                PF_TRY(t->meet->after(t->card[k], t->card[i]));
    return PF_OK;
}

/* Rows [row, row + rows) of d, for which there is room in the half. */
static pf_status gather_rows(struct team *t, const struct divided *d, int row, int rows)
{
    struct pf_gather_op g = { .n_cards = t->n, .rows = rows, .n = d->n };
    memcpy(g.first, d->first, sizeof g.first);
    t->half = !t->half;
    for (int k = 0; k < t->n; k++) {
        size_t n = (size_t)pf_team_columns(d->first, k);
        const float *mine = pf_team_part(t, k, d, d->at) + (size_t)row * n;
        float *to = t->shown[k] + (t->half ? t->shown_floats : 0);
        g.shown[k] = to;
        if (n > 0)
            PF_TRY(t->meet->show(t->card[k], mine, to, (int64_t)n * rows));
    }
    PF_TRY(wait_for_all(t));
    for (int k = 0; k < t->n; k++) {
        g.y = (float *)pf_team_here(t, k, d->at) + (size_t)row * (size_t)d->n;
        PF_TRY(t->meet->gather(t->card[k], &g));
    }
    return PF_OK;
}

/* Most columns of a card. */
static int most_columns(const struct team *t, const struct divided *d)
{
    int most = 0;
    for (int k = 0; k < t->n; k++)
        most = pf_team_columns(d->first, k) > most ? pf_team_columns(d->first, k) : most;
    return most;
}

/* gather_rows between processes, whose parts are all as long as the longest. */
static pf_status cross_rows(struct team *t, const struct divided *d, int row, int rows)
{
    struct pf_gather_op g = { .n_cards = t->n, .rows = rows, .n = d->n };
    int me = t->from;
    size_t n = (size_t)pf_team_columns(d->first, me), part = (size_t)most_columns(t, d) * (size_t)rows;
    float *at = pf_team_here(t, me, d->at), *mine = pf_team_part(t, me, d, d->at), *shown = t->shown[me];
    memcpy(g.first, d->first, sizeof g.first);
    for (int k = 0; k < t->n; k++)
        g.shown[k] = shown + (size_t)k * part;
    if (n > 0)
        PF_TRY(t->meet->show(t->card[me], mine + (size_t)row * n, shown + (size_t)me * part, (int64_t)n * rows));
    PF_TRY(pf_ranks_share(t->shape.ranks, shown, (int64_t)part));
    g.y = at + (size_t)row * (size_t)d->n;
    return t->meet->gather(t->card[me], &g);
}

/* The one card that has made whole rows, or -1. */
static int made_by_one(const struct team *t, const struct divided *d)
{
    for (int k = 0; k < t->n; k++)
        if (pf_team_columns(d->first, k) == d->n)
            return k;
    return -1;
}

/* How many rows there is room for. */
static size_t rows_at_once(const struct team *t, const struct divided *d)
{
    if (t->shape.ranks)
        return 2 * t->shown_floats / ((size_t)t->n * (size_t)most_columns(t, d));
    return t->shown_floats / (size_t)d->n;
}

bool pf_team_swaps(const struct team *t, const struct divided *d)
{
    bool do_fit = t->tray[0] != NULL;
    for (int k = 0; k < t->n; k++)
        do_fit &= (int64_t)d->rows * pf_team_columns(d->first, k) <= PF_TRAY_BLOCKS * PF_TRAY_FLOATS;
    return do_fit;
}

pf_status pf_team_clear(struct team *t)
{
    for (int k = 0; k < t->n && t->apart; k++)
        PF_TRY(t->meet->clear(t->card[k], t->tray[k], pf_tray_bytes(t->n)));
    t->apart = false;
    return PF_OK;
}

void pf_team_give_up(struct team *t)
{
    t->apart = true;
    for (int k = 0; k < t->n; k++)
        t->meet->give_up(t->card[k]);
}

pf_status pf_team_swap(struct team *t, const struct divided *d, float *y, const float *a, bool for_down)
{
    struct pf_swap_op s = { .n_cards = t->n, .rows = d->rows, .n = d->n, .adds = a, .a = a ? *a : 1,
                            .for_down = for_down };
    memcpy(s.first, d->first, sizeof s.first);
    memcpy(s.tray, t->tray, sizeof s.tray);
    const float *up = t->acted.y == d->at ? t->acted.up : NULL;
    PF_TRY(t->in_step ? PF_OK : pf_team_clear(t));
    s.act = t->acted.act;
    t->acted.y = up ? NULL : t->acted.y;
    for (int k = 0; k < t->n; k++) {
        s.card = k;
        s.up = up ? pf_team_at(t, k, up) : NULL;
        s.y = pf_team_here(t, k, y);
        s.mine = pf_team_part(t, k, d, d->at);
        pf_status st = t->meet->swap(t->card[k], &s);
        if (st < 0) {
            pf_team_give_up(t);              /* cards that have been asked wait for the one that was not */
            return st;
        }
    }
    return PF_OK;
}

/* The last rows first: whole rows lie over the parts of later ones. */
static pf_status gather(struct team *t, const struct divided *d)
{
    if (pf_team_swaps(t, d))
        return pf_team_swap(t, d, (float *)(uintptr_t)d->at, NULL, false);
    int at_once = (int)rows_at_once(t, d), maker = t->shape.ranks ? made_by_one(t, d) : -1;
    if (maker >= 0)
        return pf_ranks_spread(t->shape.ranks, pf_team_here(t, t->from, d->at), (int64_t)d->rows * d->n, maker);
    if (at_once == 0)
        PF_FAIL(PF_EDEVICE, "rows of %d columns are divided between GPUs, more than there is room to gather", d->n);
    for (int end = d->rows, n; end > 0; end -= n) {
        n = end < at_once ? end : at_once;
        PF_TRY(t->shape.ranks ? cross_rows(t, d, end - n, n) : gather_rows(t, d, end - n, n));
    }
    return PF_OK;
}

/* ---- What is divided --------------------------------------------------------------------------------------------- */

static struct divided take(struct team *t, int i)
{
    struct divided d = t->divided[i];
    t->divided[i] = t->divided[--t->n_divided];
    return d;
}

static bool overlaps(const struct divided *d, const float *p, int64_t n)
{
    return p < end_of(d) && d->at < p + n;
}

pf_status pf_team_whole(struct team *t, const void *p, int64_t n)
{
    for (int i = t->n_divided - 1; i >= 0; i--)
        if (overlaps(&t->divided[i], p, n)) {
            struct divided d = take(t, i);
            PF_TRY(gather(t, &d));
        }
    return PF_OK;
}

pf_status pf_team_wrote(struct team *t, const void *p, int64_t n)
{
    const float *from = p;
    PF_TRY(pf_team_settle(t));
    for (int i = t->n_divided - 1; i >= 0; i--)
        if (overlaps(&t->divided[i], from, n)) {
            struct divided d = take(t, i);
            PF_TRY(from <= d.at && end_of(&d) <= from + n ? PF_OK : gather(t, &d));
        }
    return PF_OK;
}

pf_status pf_team_add(struct team *t, const struct divided *d)
{
    for (int i = 0; i < t->n_divided; i++)
        if (t->divided[i].at == d->at) {
            t->divided[i] = *d;
            return PF_OK;
        }
    if (t->n_divided == TEAM_MAX_DIVIDED) {
        struct divided oldest = take(t, 0);
        PF_TRY(gather(t, &oldest));
    }
    t->divided[t->n_divided++] = *d;
    return PF_OK;
}

pf_status pf_team_write(struct team *t, const struct divided *d)
{
    PF_TRY(pf_team_wrote(t, d->at, (int64_t)d->rows * d->n));
    return pf_team_add(t, d);
}

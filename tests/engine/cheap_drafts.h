/* Prices by which drafts are always worth it, whatever the machine, so that what is drafted depends on the text alone.
 * To be set before each step. */
#ifndef TEST_CHEAP_DRAFTS_H
#define TEST_CHEAP_DRAFTS_H

#include "moe/model/model.h"
#include "moe/session/session.h"

/* The more rows, the less they take. */
static void make_cheap(pf_session *s)
{
    struct pf_row_prices *p = &s->m->row_prices;
    for (int i = 1; i <= PF_PRICE_ROWS; i++) {
        p->of[i].ns = 1e6 / i;
        p->of[i].n = 8;
        p->of[i].at = p->n_learned;
    }
    p->least = 1;
    p->most = PF_PRICE_ROWS;
    for (int i = 0; i < s->n_sources; i++) {
        s->sources[i].account = (struct pf_draft_account){ .balance_ns = 1e15, .total_ns = 1, .token_ns = 1000 };
        s->sources[i].drafter->draft_ns = 0;
    }
}

#endif

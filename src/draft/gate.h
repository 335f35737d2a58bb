/* Whether drafts pay: what steps of so many rows take, as measured, against the tokens that they are expected to bring.
 *
 *     prices     one a model, under its step lock: ns of a step by its rows. Rows that were not measured are estimated
 *                from their neighbours, and rows are tried only up to about twice what was measured
 *     account    one a session and drafter: what drafts have cost and brought. While it is in the red by more than a
 *                hundredth of the session's time that drafter drafts nothing, so a text that misleads costs no more
 *                than that
 *
 * Pure functions of what they are told. */
#ifndef PF_DRAFT_GATE_H
#define PF_DRAFT_GATE_H

#include "pfmoe.h"

enum { PF_PRICE_ROWS = 128 };        /* rows of the largest step that is priced */

struct pf_row_prices {
    struct {
        double ns;
        int    n;                    /* how often it was measured, 2 at most */
    } of[PF_PRICE_ROWS + 1];
    int least, most;                 /* rows that were measured; 0: none */
};

struct pf_draft_account {
    double balance_ns, total_ns;
    double token_ns;                 /* what a token takes without drafts */
    int    n_refused;                /* drafts that were not worth it, since the last that was */
};

/* A step of so many rows took ns. */
void   pf_prices_learn(struct pf_row_prices *p, int rows, double ns);
double pf_price_of(const struct pf_row_prices *p, int rows);         /* 0: nothing is known */

/* How many of n drafts, of these chances, a step of `rows` rows should verify besides; to make one takes draft_ns. */
int pf_gate_choose(const struct pf_row_prices *p, struct pf_draft_account *a, int rows, const float *chance, int n,
                   double draft_ns);

/* A step for so many tokens took the session ns; without drafts it would have taken alone_ns. */
void   pf_account_step(struct pf_draft_account *a, double alone_ns, int tokens, double ns);
/* A draft was right: a token that needed no step. */
void pf_account_hit(struct pf_draft_account *a);

#endif

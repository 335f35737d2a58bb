/* Whether drafts pay: what steps of so many rows take, as measured, against the tokens that they are expected to bring.
 *
 *     prices     one a model, under its step lock: ns of a step by its rows. A number of rows has a price once three
 *                steps had it; before that its price is estimated from its neighbours, by what so many rows read.
 *                Drafts are taken along only in steps whose price without them is well known and not old
 *     account    one a session and drafter: what drafts have cost and brought. While it is in the red by more than a
 *                token's time and 0.6% of the session's that drafter drafts nothing, so a text that misleads costs no
 *                more than that
 *     start      first steps of a kind may take a multiple of its price, as where a device makes a graph of them and
 *                loads kernels. That is kept apart from the account, and a number of rows that was never tried is
 *                begun only where gains have paid for the ones before. Several drafts without a price are tried only
 *                where the account bears it that all of them are wrong
 *
 * Pure functions of what they are told. */
#ifndef PF_DRAFT_GATE_H
#define PF_DRAFT_GATE_H

#include "pfmoe.h"

enum { PF_PRICE_ROWS = 128 };        /* rows of the largest step that is priced */

struct pf_row_prices {
    struct {
        double ns, slowest;          /* the least and the most of the first 3; then ns is a running mean */
        int    n;                    /* how often it was measured, 8 at most */
        long   at;                   /* n_learned when it was measured last */
    } of[PF_PRICE_ROWS + 1];
    int  least, most;                /* rows that were measured; 0: none */
    long n_learned;
    float share;                     /* how many of a layer's experts a row picks, of 1; 0: there are none */
    double start_ns;                 /* what the slowest of the first steps of a kind takes beyond its price, where that
                                        is much, so that one measurement is no price; 0: nothing to speak of */
};

struct pf_draft_account {
    double balance_ns, total_ns;
    double token_ns;                 /* what a token takes without drafts */
    double start_ns;                 /* what first steps took beyond their price, and gains have not paid for */
    int    n_refused;                /* drafts that were not worth it, since the last that was or was tried */
    int    patience;                 /* so many are refused before drafts are tried that seem not worth it; 0: the
                                        fewest */
};

/* A step of so many rows took ns. */
void   pf_prices_learn(struct pf_row_prices *p, int rows, double ns);
/* 0: nothing is known. Expected: by the numbers of rows around it, unless it is known itself. */
double pf_price_of(const struct pf_row_prices *p, int rows);
double pf_price_expected(const struct pf_row_prices *p, int rows);
bool   pf_prices_begin(const struct pf_row_prices *p, int rows);     /* the step that was learned last, of so many rows,
                                                                        is one of the first of them */

/* How many of n drafts, of these chances, a step of `rows` rows should verify besides; to make one takes draft_ns. */
int pf_gate_choose(const struct pf_row_prices *p, struct pf_draft_account *a, int rows, const float *chance, int n,
                   double draft_ns);

/* A step for so many tokens took the session ns; its price is price_ns, without drafts it would have been alone_ns.
 * Beyond twice its price a step is slow for a reason of its own; begins: since it is one of the first of its rows. */
void   pf_account_step(struct pf_draft_account *a, double alone_ns, int tokens, double ns, double price_ns,
                       bool begins);
/* A draft was right: a token that needed no step. */
void pf_account_hit(struct pf_draft_account *a);

#endif

/* Several steps of one prompt on their way through cards that have layers of their own and share experts with the CPU.
 * Such a card wants the host in every layer: to look at the picks, and to send for the experts. So the host goes from
 * card to card, a layer each, and leaves a card's copies under way while it is with the others; all buses are busy at
 * once. (Where the cards have the whole model nobody waits for the host: see pf_step.follows.)
 *
 *     round      0         1         2         3                 a round
 *     card 0     step 0    step 1    step 2                      copies of card 0 |= layer 0 =|= layer 1 =|= ..
 *     card 1               step 0    step 1    step 2            copies of card 1    |= layer a =|= layer a + 1 ..
 *                                                                host             0, a, 1, a + 1, 2, ..
 *
 * x goes on to the next card between two rounds. Nothing is committed on the way: keys and values of all these steps
 * lie past `computed`. Everything belongs to the thread that holds the step lock; if others wait for it, no more steps
 * begin, and those that have begun go on to the last card. */
#include <stdio.h>

#include "backend/share.h"
#include "moe/blocks/blocks.h"
#include "moe/place/placement.h"
#include "moe/run/forward.h"

/* Fewer rows are replayed; more logits than there is room for at once come piece by piece. */
bool pf_pipeline_takes(const struct pf_part *p)
{
    return p->rows > PF_SHARE_ROWS && p->n_logits <= PF_LOGIT_ROWS;
}

struct pipeline {
    struct pf_step *steps;
    int             n, round;                /* n: all, or those that have begun if no more do */
};

static struct pf_model *model_of(const struct pipeline *p)
{
    return p->steps->m;
}

static int n_cards(const struct pipeline *p)
{
    return model_of(p)->work->n_cards;
}

/* The step that is on card k in this round; NULL: none. */
static struct pf_step *step_on(const struct pipeline *p, int k)
{
    int i = p->round - k;
    return i >= 0 && i < p->n ? &p->steps[i] : NULL;
}

/* The j-th layer of a card, if it has so many, for the step that is there. */
static pf_status run_turn(struct pf_step *t, int j)
{
    const struct pf_repeat once = { .once = true, .rows = t->rows };
    struct pf_unit one = *pf_step_unit(t, (int)(t->unit - t->m->work->units));
    pf_backend *card = t->unit->backend;
    bool unused;
    one.first += j;
    if (one.first >= one.end)
        return PF_OK;
    one.end = one.first + 1;
    PF_TRY(card->ops->begin(card, &once, &unused));
    PF_TRY(pf_run_layers(t, &one, t->rows, pf_run_layer));
    return card->ops->end(card, &unused);
}

static int most_layers(const struct pipeline *p)
{
    int most = 0;
    for (int k = 0; k < n_cards(p); k++) {
        const struct pf_unit *u = pf_step_unit(p->steps, k);
        most = u->end - u->first > most ? u->end - u->first : most;
    }
    return most;
}

/* When it returns, no card does anything any more. What was computed and handed on is right, or this fails: a card that
 * is lost may hand on anything, with which another one must not begin. */
static pf_status finish_round(const struct pipeline *p)
{
    pf_status st = pf_place_copied(model_of(p)->place);
    for (int k = 0; k < n_cards(p); k++) {
        pf_backend *card = model_of(p)->work->units[k].backend;
        pf_status finished = card->ops->finish(card);
        st = st < 0 ? st : finished;
    }
    return st;
}

/* Its rows may take the place of others from here on. */
static pf_status enter(struct pf_step *t)
{
    const struct pf_part *part = t->parts;
    pf_state_begin(part->s, (int)(pf_part_end(part) - part->s->computed));
    return pf_step_enter(t);
}

static pf_status run_turns(const struct pipeline *p)
{
    if (step_on(p, 0))
        PF_TRY(enter(step_on(p, 0)));
    for (int j = 0; j < most_layers(p); j++)
        for (int k = n_cards(p) - 1; k >= 0; k--)
            if (step_on(p, k))
                PF_TRY(run_turn(step_on(p, k), j));
    return PF_OK;
}

/* What was sent for to the stage is of no use to the step that the card has next. */
static pf_status run_round(const struct pipeline *p)
{
    pf_status st = run_turns(p);
    for (int k = 0; k < n_cards(p); k++)
        if (step_on(p, k))
            pf_far_drop(step_on(p, k));
    return st;
}

/* Each step to the next card, the one that is furthest first. *n_done counts those that leave the last card. */
static pf_status hand_on(const struct pipeline *p, int *n_done)
{
    int last = n_cards(p) - 1;
    if (step_on(p, last)) {
        PF_TRY(pf_step_leave(step_on(p, last)));
        ++*n_done;
    }
    for (int k = last - 1; k >= 0; k--)
        if (step_on(p, k))
            PF_TRY(pf_hand_over(step_on(p, k), &model_of(p)->work->units[k + 1], 0, step_on(p, k)->rows));
    return PF_OK;
}

static pf_status run_rounds(struct pipeline *p, int *n_done)
{
    for (p->round = 0; *n_done < p->n; p->round++) {
        if (p->round > 0 && p->round < p->n && pf_lock_is_wanted(&model_of(p)->step_lock))
            p->n = p->round;
        PF_TRY(run_round(p));
        PF_TRY(hand_on(p, n_done));
        PF_TRY(finish_round(p));
    }
    return PF_OK;
}

/* Who failed, or what, may have been of any of the steps: only what was cancelled keeps those that were through. */
pf_status pf_pipeline(struct pf_step *steps, int n, int *n_done)
{
    struct pipeline p = { steps, n, 0 };
    struct pf_placement *place = steps->m->place;
    char why[1024];
    *n_done = 0;
    place->in_turns = true;
    pf_status st = run_rounds(&p, n_done);
    if (st < 0)
        snprintf(why, sizeof why, "%s", pf_last_error());
    pf_status finished = finish_round(&p);
    place->in_turns = false;
    pf_spans_enter(steps->m->spans, NULL, -1);
    if (finished < 0 || (st < 0 && st != PF_ECANCEL))
        *n_done = 0;
    if (st < 0)
        PF_FAIL(st, "%s", why);
    PF_TRY(finished);
    return pf_step_check(&steps[p.n - 1]);
}

/* One step through the model, between the files that it is written in; pf_forward itself is in batch.h. */
#ifndef PF_FORWARD_H
#define PF_FORWARD_H

#include "moe/session/step.h"

/* A unit of the sessions of the step, which are cut alike. */
static inline const struct pf_unit *pf_step_unit(const struct pf_step *t, int i)
{
    return &t->parts->s->units[i];
}

/* inputs.c: what the layers read besides x is made, and given to the first card and to the CPU. Another card may be at
 * work on the step before: it gets the inputs with x, from the card that comes before it, or from the host, where the
 * CPU is on either side. */
pf_status pf_inputs_put(struct pf_step *t);
pf_status pf_inputs_hand(struct pf_step *t, struct pf_work_unit *from, struct pf_work_unit *to);

/* forward.c: a layer on the unit at work: what mixes positions, then the feed-forward and what comes behind it. */
typedef pf_status pf_layer_fn(struct pf_step *t, int il, int rows);
pf_layer_fn pf_run_layer, pf_run_mixer, pf_run_rest;
/* The layers of u in order, while their weights can be used, as long as nobody cancels. */
pf_status pf_run_layers(struct pf_step *t, const struct pf_unit *u, int rows, pf_layer_fn *layer);
/* Rows of x from the unit at work to another, which is at work from now on. */
pf_status pf_hand_over(struct pf_step *t, struct pf_work_unit *to, int first, int rows);

/* forward.c, for steps that are on several cards at once (pipeline.c). enter: a step is put together, and embedded by
 * the first card. leave: its logits, PF_LOGIT_ROWS at most, by the last. check: of logits that are there. */
pf_status pf_step_enter(struct pf_step *t);
pf_status pf_step_leave(struct pf_step *t);
pf_status pf_step_check(const struct pf_step *t);

/* pipeline.c: n steps of a session, of a part each, one behind the other, on several cards at once. *n_done: so many of
 * the first are through; all, or fewer if another thread waits for the step lock, one at least; if it was cancelled, as
 * many as were through by then. Reads and writes what pf_forward does, commits nothing. takes: whether the part can be
 * one of these. */
enum {
    PF_PIPELINE_STEPS = 16,                  /* at most: of 17 rounds all but two are of two cards */
    PF_PIPELINE_RING_STEPS = 4               /* where windows have rings: checkpoints are made behind them */
};
bool      pf_pipeline_takes(const struct pf_part *p);
pf_status pf_pipeline(struct pf_step *steps, int n, int *n_done);

/* visit.c: the layers that lie with the CPU, whose input x is on the host: on the last card where visits pay, else
 * here. */
pf_status pf_run_cpu(struct pf_step *t, int rows);

#endif

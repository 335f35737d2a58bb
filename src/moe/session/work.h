/* The buffers of a step: inputs and activations. All sessions of a model share one set of them, since its steps take
 * turns; with 16 sessions open it would otherwise be the larger part of their memory. There is room for the largest
 * n_batch of any session that was opened while others are; the last one that closes frees it.
 *
 *     a card      of the model's placement, in its order,     inputs, activations; keys and values that pass through
 *                 or the CPU in the place of a lost one
 *     the CPU     behind them, if it computes some layers     inputs, activations; x in `handed`
 *
 * Everything here is for the thread that holds the step lock. */
#ifndef PF_WORK_H
#define PF_WORK_H

#include "moe/layout/layout.h"
#include "moe/place/placement.h"

struct pf_work_unit {
    pf_backend       *backend;               /* NULL: there is no such unit, and all other fields are unused */
    struct pf_buffers buf;
    void             *stage;                 /* room of a device for what a layer has far: prompts read it there;
                                                NULL: no session has anything far */
    size_t            stage_bytes;
};

struct pf_work {
    struct pf_backend_sizes sizes;           /* of its steps: sizes.max_rows rows at most */
    pf_backend             *owner;           /* of `inputs` and `handed`: the model's backend, or one that was lost */
    int                     n_losses;         /* m->n_losses when the buffers were opened */
    int                     n_cards;
    struct pf_work_unit     units[PF_MAX_GPUS + 1];
    void                   *inputs;          /* the host's copy of buf.inputs */
    bool                    is_open;         /* the last step left cards at work: pf_step.follows */
    float                  *handed;          /* [max_rows][streams][n_embd] buf.x of the CPU's unit, in memory that
                                                devices can copy from and to; NULL: there is no such unit */
};

/* Makes m->work large enough for steps of a session with such options (resolved), on the cards of the model's placement
 * as it is now, and, if `cpu`, on the CPU besides. On failure everything is as before, but for buffers that were partly
 * on a lost card. */
pf_status pf_work_fit(struct pf_model *m, const struct pf_session_opts *o, bool cpu);

/* What is there already for a session with such options. */
struct pf_there pf_work_there(const struct pf_model *m, const struct pf_session_opts *o, int card);

/* Makes a card's stage hold so many bytes. */
pf_status pf_work_stage(struct pf_model *m, int card, size_t bytes);

void pf_work_close(struct pf_model *m);

#endif

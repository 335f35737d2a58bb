/* The buffers of a step: inputs and activations. All sessions of a model share one set of them, since its steps take
 * turns; with 16 sessions open it would otherwise be the larger part of their memory. There is room for the largest
 * n_batch of any session that was opened while others are; the last one that closes frees it.
 *
 *     unit 0      the model's backend                         inputs, activations; keys and values that pass through
 *     unit 1      the CPU, if it computes some layers         inputs, activations; x in `handed`
 *
 * Everything here is for the thread that holds the step lock. */
#ifndef PF_WORK_H
#define PF_WORK_H

#include "moe/layout/layout.h"

struct pf_work_unit {
    pf_backend       *backend;               /* NULL: there is no such unit, and all other fields are unused */
    struct pf_buffers buf;
};

struct pf_work {
    struct pf_backend_sizes sizes;           /* of its steps: sizes.max_rows rows at most */
    struct pf_work_unit     units[2];
    void                   *inputs;          /* the host's copy of buf.inputs */
    void                   *stage;           /* room of the device for what a layer has far: prompts read it there;
                                                NULL: no session has anything far */
    size_t                  stage_bytes;
    float                  *handed;          /* [max_rows][n_embd] buf.x of the second unit, in memory that the first
                                                can copy from and to; NULL: there is no second unit */
};

/* Makes m->work large enough for steps of a session with such options (resolved), on the model's backend as it is now,
 * and, if `second`, on the CPU besides. On failure everything is as before. */
pf_status pf_work_fit(struct pf_model *m, const struct pf_session_opts *o, bool second);

/* Makes the stage of m->work hold so many bytes. */
pf_status pf_work_stage(struct pf_model *m, size_t bytes);

void pf_work_close(struct pf_model *m);

#endif

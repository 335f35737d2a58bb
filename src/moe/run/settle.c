/* The recurrent state of a session, after a step whose last rows were drafts that were wrong: brought to the rows that
 * were right without evaluating them again. Only what carries state is done once more, from the inputs that the step
 * left (state.c), which costs a small part of a step and no weights but those of the layers' own sums. */
#include "base/pf_fp.h"
#include "base/pf_time.h"
#include "moe/blocks/blocks.h"
#include "moe/run/batch.h"
#include "moe/session/crew.h"

static pf_status settle_unit(struct pf_step *t, struct pf_session *s, const struct pf_unit *u, int rows)
{
    const struct pf_repeat once = { .once = true, .rows = rows };
    bool unused;
    PF_TRY(ops_of(t)->begin(u->backend, &once, &unused));
    for (int il = u->first; il < u->end; il++) {
        const struct pf_layer *layer = &t->m->layers[il];
        if (layer->n_state == 0)
            continue;
        PF_TRY(layer->mixer == PF_MIXER_DELTA        ? pf_delta_again(t, s, il, rows)
               : layer->mixer == PF_MIXER_MAMBA2     ? pf_mamba_again(t, s, il, rows)
               : layer->mixer == PF_MIXER_SHORT_CONV ? pf_short_conv_again(t, s, il, rows)
                                                     : pf_compress_again(t, s, il, rows));
    }
    return ops_of(t)->end(u->backend, &unused);
}

static pf_status settle_units(struct pf_session *s, int rows)
{
    pf_crew_tell_state(s, PF_TOLD_SETTLE, rows, 0, false);
    for (int i = 0; i < s->n_units; i++) {
        const struct pf_unit *u = &s->units[i];
        struct pf_step t = { .m = s->m, .unit = &s->m->work->units[i] };
        if (!u->state_bytes)
            continue;
        pf_status st = settle_unit(&t, s, u, rows), finished = u->backend->ops->finish(u->backend);
        PF_TRY(st);
        PF_TRY(finished);
    }
    return PF_OK;
}

pf_status pf_settle_rows(struct pf_session *s, int rows)
{
    unsigned fp = pf_fp_begin();
    pf_status st = settle_units(s, rows);
    pf_fp_end(fp);
    return st;
}

pf_status pf_settle(struct pf_session *s)
{
    int rows = pf_state_behind(s);
    if (rows == 0)
        return PF_OK;
    uint64_t begin = pf_now_ns();
    PF_TRY(pf_settle_rows(s, rows));
    pf_state_settled(s);
    s->sources[s->source].account.balance_ns -= (double)(pf_now_ns() - begin);
    return PF_OK;
}

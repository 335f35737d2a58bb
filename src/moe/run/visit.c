/* Layers of the CPU in a step: on the last card where that pays (place/visits.h), else on the CPU, and that too if a
 * visit fails. */
#include "base/pf_time.h"
#include "moe/blocks/blocks.h"
#include "moe/place/placement.h"
#include "moe/run/forward.h"

static struct pf_work_unit *last_card(const struct pf_step *t)
{
    return &t->m->work->units[t->m->work->n_cards - 1];
}

static struct pf_visits *visits_of(const struct pf_step *t)
{
    return t->m->place ? t->m->place->visits : NULL;
}

static pf_status visit_parts(struct pf_step *t, struct pf_visits *v, int il, int rows)
{
    PF_TRY(pf_visits_begin(v, il));
    PF_TRY(pf_visits_lend(v, il, PF_VISIT_MIXER));
    PF_TRY(pf_run_mixer(t, il, rows));
    PF_TRY(pf_visits_take_back(v, il, PF_VISIT_MIXER));
    PF_TRY(pf_visits_lend(v, il, PF_VISIT_FFN));
    PF_TRY(pf_run_rest(t, il, rows));
    PF_TRY(pf_visits_take_back(v, il, PF_VISIT_FFN));
    return pf_visits_copied(v, il);
}

static pf_status visit_layer(struct pf_step *t, int il, int rows)
{
    pf_status st = visit_parts(t, visits_of(t), il, rows);
    if (st < 0)
        pf_visits_drop(visits_of(t));
    return st;
}

/* Runs the unit's layers on the last card. When it returns, the card does nothing more, so that the CPU can write to
 * keys and values that were being copied. */
static pf_status visit(struct pf_step *t, struct pf_visits *v, const struct pf_unit *u, int rows)
{
    const struct pf_repeat once = { .once = true, .rows = rows };
    pf_backend *card = last_card(t)->backend;
    uint64_t begun_ns = pf_now_ns();
    bool replayed, again;
    pf_status st = pf_hand_over(t, last_card(t), 0, rows);
    t->visits = true;
    if (st == PF_OK)
        st = card->ops->begin(card, &once, &replayed);
    if (st == PF_OK)
        st = pf_run_layers(t, u, rows, visit_layer);
    if (st == PF_OK)
        st = card->ops->end(card, &again);
    t->visits = false;
    pf_status finished = card->ops->finish(card);
    if (st == PF_OK && finished == PF_OK)
        pf_visits_learn(v, rows, u->end - u->first, pf_now_ns() - begun_ns);
    return st < 0 ? st : finished;
}

/* Whether the CPU has to compute its layers after a visit that ended so; their input x is still on the host. */
static bool stays_with_cpu(const struct pf_step *t, pf_status st)
{
    pf_backend *card = last_card(t)->backend;
    return st < 0 && st != PF_ECANCEL && !card->ops->is_lost(card);
}

pf_status pf_run_cpu(struct pf_step *t, int rows)
{
    struct pf_work_unit *cpu = t->unit;
    const struct pf_unit *u = pf_step_unit(t, t->m->work->n_cards);
    struct pf_visits *v = visits_of(t);
    if (v && last_card(t)->backend != t->m->cpu && pf_visits_pay(v, rows, u->end - u->first) &&
        pf_lent_bytes(t, u->first, u->end) <= last_card(t)->stage_bytes) {
        pf_status st = visit(t, v, u, rows);
        if (!stays_with_cpu(t, st))
            return st;
        if (st != PF_ENUMERIC) {
            pf_model_logf(t->m, PF_LOG_WARN, "layers of the CPU visit the GPU no more: %s", pf_last_error());
            pf_visits_end(v);
        }
        t->unit = cpu;
    }
    uint64_t begun_ns = pf_now_ns();
    PF_TRY(pf_run_layers(t, u, rows, pf_run_layer));
    if (v)
        pf_visits_learn_cpu(v, rows, u->end - u->first, pf_now_ns() - begun_ns);
    return PF_OK;
}

/* See scheduler_impl.h: the choices of one job, made together in slots that nobody waits for. The one whose prompt the
 * next choice has, too, leads: others take over what it has evaluated. */
#include "serve/scheduler_impl.h"

bool sched_leads(const struct slot *s)
{
    const struct job *j = s->job;
    return j && !s->left && j->n_given < j->n_choices && job_prompt(j, s->choice) == job_prompt(j, j->n_given) &&
           job_prompt(j, s->choice)->n_tok >= WORTH_TOKENS;
}

size_t sched_n_led(const struct sched *sched, const struct slot *s)
{
    return job_prompt(s->job, s->choice)->n_tok - !sched->keeper.cuts;
}

/* Whether other choices can take over a prompt of which the last token is left to evaluate: beyond it a sequence that
 * cannot be cut short is of no use to them. */
static bool has_led(const struct sched *sched, const struct slot *s)
{
    return !sched->keeper.cuts && sched_leads(s) && !s->answering && !s->fresh && s->n_done == sched_n_led(sched, s);
}

bool sched_stays_for_choices(const struct sched *sched, const struct slot *s)
{
    return has_led(sched, s) && sched_any_free(sched);
}

bool sched_is_kept_for_choices(const struct sched *sched, const struct slot *s)
{
    bool all_its = true;
    for (int i = 0; i < sched->n_slots; i++)
        all_its = all_its && sched->slots[i].job == s->job;
    return sched->keeper.saved && has_led(sched, s) && s->unsaved && !all_its && !sched_any_free(sched);
}

/* A slot that has evaluated the prompt of its job's next choice so that another one can take it over. *soon: there is
 * one that has to go on first. */
static struct slot *leader_of(const struct sched *sched, const struct job *j, bool *soon)
{
    struct slot *found = NULL;
    *soon = false;
    for (int i = 0; i < sched->n_slots; i++) {
        struct slot *s = &sched->slots[i];
        if (s->job != j || !sched_leads(s))
            continue;
        if (s->answering ? sched->keeper.cuts : !s->fresh && s->n_done == sched_n_led(sched, s))
            found = s;
        *soon = *soon || (!s->answering && s->n_done < sched_n_led(sched, s));
    }
    *soon = *soon && !found;
    return found;
}

/* Gives a job's next choice to a free slot; false: there is none, or the choice is better given later. */
static bool give_another(struct sched *sched, struct job *j, struct party *client)
{
    bool soon;
    const struct slot *leader = leader_of(sched, j, &soon);
    const struct prompt *p = job_prompt(j, j->n_given);
    int i = soon ? -1 : sched_choose_slot(sched, p);
    if (i < 0)
        return false;
    struct slot *s = &sched->slots[i];
    bool copies = leader && p->n_tok >= slot_spares(s, p->tok, p->n_tok) + WORTH_TOKENS;
    if (copies && sched->moved.slot)
        return false;
    pthread_mutex_lock(&sched->lock);
    sched_settle_places(sched);
    turns_give_more(client);
    pthread_mutex_unlock(&sched->lock);
    sched_give_slot(sched, s, j, NULL, client);
    if (copies)
        sched_begin_move(sched, s, leader);
    else
        sched_move_if_needed(sched, s);
    return true;
}

void sched_share_slots(struct sched *sched)
{
    bool waits = !sched_is_queue_empty(sched), gave = !waits;
    for (int i = 0; i < sched->n_slots; i++)
        if (sched->slots[i].job)
            sched->slots[i].job->yields = waits;
    for (int i = 0; i < sched->n_slots; i++)
        if (has_led(sched, &sched->slots[i]))
            sched->slots[i].job->yields = true;
    while (gave) {
        gave = false;
        for (int i = 0; i < sched->n_slots && sched_any_free(sched); i++) {
            struct job *j = sched->slots[i].job;
            if (j && !j->over && j->n_given < j->n_choices)
                gave = give_another(sched, j, sched->places[i].client) || gave;
        }
    }
}

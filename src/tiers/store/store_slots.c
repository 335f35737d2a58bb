/* Queues, slots and pins of a store; the lock is held. See store_impl.h. */
#include "tiers/store/store_impl.h"

#include <assert.h>

void pf_queue_put(struct pf_store *s, struct pf_store_queue *q, int p)
{
    struct pf_stored *part = &s->parts[p];
    part->in = q;
    part->next = PF_NO_PART;
    part->prev = q->tail;
    *(q->tail == PF_NO_PART ? &q->head : &s->parts[q->tail].next) = p;
    q->tail = p;
}

void pf_queue_remove(struct pf_store *s, int p)
{
    struct pf_stored *part = &s->parts[p];
    struct pf_store_queue *q = part->in;
    if (!q)
        return;
    *(part->prev == PF_NO_PART ? &q->head : &s->parts[part->prev].next) = part->next;
    *(part->next == PF_NO_PART ? &q->tail : &s->parts[part->next].prev) = part->prev;
    part->in = NULL;
}

/* Invariant 1: the slot goes back. */
void pf_part_absent(struct pf_store *s, struct pf_stored *part)
{
    struct pf_slots *k = &s->classes[part->class];
    if (part->state == PF_PART_READY)
        s->stats.resident_bytes -= part->at.bytes;
    k->free[k->n_free++] = part->slot;
    part->slot = NULL;
    part->state = PF_PART_ABSENT;
    part->guessed = false;
}

static bool take_slot(struct pf_store *s, struct pf_stored *part, bool evict)
{
    struct pf_slots *k = &s->classes[part->class];
    if (k->n_free == 0 && evict) {
        int key = k->policy->ops->victim(k->policy);
        if (key >= 0) {
            pf_part_absent(s, &s->parts[k->part_of[key]]);
            s->stats.n_evictions++;
        }
    }
    if (k->n_free == 0)
        return false;
    part->slot = k->free[--k->n_free];
    if (k->n_slots == k->n_parts)
        part->slot = k->slots + (uint64_t)part->index * k->slot_bytes;
    return true;
}

bool pf_part_load(struct pf_store *s, int p, struct pf_store_queue *q, bool evict)
{
    struct pf_stored *part = &s->parts[p];
    if (!take_slot(s, part, evict))
        return false;
    part->state = PF_PART_QUEUED;
    part->n_asked = 0;
    part->broken = part->again = part->older = false;
    pf_queue_put(s, q, p);
    return true;
}

static void pin_part(struct pf_store *s, int p)
{
    struct pf_stored *part = &s->parts[p];
    struct pf_slots *k = &s->classes[part->class];
    if (part->pins++ == 0)
        part->older = part->state == PF_PART_READING;
    s->n_right += s->guesses_pay ? part->guessed : part->foreseen == s->n_entered;
    s->stats.n_guessed_right += part->guessed;
    part->guessed = false;
    part->foreseen = 0;
    k->policy->ops->use(k->policy, part->index);
    if (part->in == &s->ahead) {             /* now somebody waits for it */
        pf_queue_remove(s, p);
        pf_queue_put(s, &s->wanted, p);
    }
}

void pf_part_unpin(struct pf_store *s, int p)
{
    struct pf_stored *part = &s->parts[p];
    struct pf_slots *k = &s->classes[part->class];
    assert(part->pins > 0 && "one unpin per pin");
    if (--part->pins > 0)
        return;
    if (part->state == PF_PART_READY) {
        k->policy->ops->release(k->policy, part->index);
    } else if (part->state == PF_PART_FAILED) {
        pf_part_absent(s, part);
    } else if (part->state == PF_PART_QUEUED) {      /* nobody wants it any more, and the drive does not know of it */
        pf_queue_remove(s, p);
        pf_part_absent(s, part);
    }
}

bool pf_slab_ready(const struct pf_store *s, const struct pf_slab *slab)
{
    for (int p = slab->first; p < slab->first + slab->n; p++)
        if (s->parts[p].state != PF_PART_READY)
            return false;
    return true;
}

/* Pins the parts of the slab that hold a slot already, so that no other slab can take it. */
void pf_slab_pin_present(struct pf_store *s, const struct pf_slab *slab)
{
    for (int p = slab->first; p < slab->first + slab->n; p++)
        if (s->parts[p].state != PF_PART_ABSENT)
            pin_part(s, p);
}

/* Finds slots for the parts that pf_slab_pin_present left out; or, if there are too few, gives all of the slab's pins
 * back. */
bool pf_slab_pin_absent(struct pf_store *s, const struct pf_slab *slab)
{
    int end = slab->first + slab->n;
    for (int p = slab->first; p < end; p++) {
        if (s->parts[p].state != PF_PART_ABSENT)
            continue;
        if (pf_part_load(s, p, &s->wanted, true)) {
            pin_part(s, p);
            continue;
        }
        for (int j = slab->first; j < end; j++)
            if (s->parts[j].state != PF_PART_ABSENT)
                pf_part_unpin(s, j);
        return false;
    }
    return true;
}

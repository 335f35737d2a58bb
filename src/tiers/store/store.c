/* The functions of store.h that are for everybody, and the reader. See store_impl.h. */
#define _GNU_SOURCE
#include "tiers/store/store_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/pf_time.h"

enum { LATER_NS = 20000000 };

void pf_store_enter(pf_store *s, int layer)
{
    pthread_mutex_lock(&s->lock);
    s->n_entered++;
    s->guess.n = 0;
    s->n_tried += s->n_foreseen;
    s->n_foreseen = 0;
    s->n_rest -= s->n_rest > 0;
    for (int c = 0; c < s->n_classes; c++)
        s->classes[c].policy->ops->enter(s->classes[c].policy, layer);
    pthread_mutex_unlock(&s->lock);
}

/* A thread that waited goes its way: what came or is still to come is the reader's. */
static void leave_rest(struct pf_store *s)
{
    if (s->n_flying > 0 || s->came.head != PF_NO_PART)
        pthread_cond_signal(&s->has_work);
}

/* Waits for reads and takes them; then everybody who has nothing else to do looks at what came. */
static void attend(struct pf_store *s, uint64_t until)
{
    s->attended = true;
    pf_reads_wait(s, until);
    pf_reads_take(s);
    s->attended = false;
    if (s->came.head != s->came.tail) {
        pthread_cond_signal(&s->has_work);
        pthread_cond_broadcast(&s->changed);
    }
}

/* Waits for a change, or brings it about. Fails when the drive has finished nothing for stall_ns; *seen and *since
 * are the caller's memory. */
static pf_status wait_change(struct pf_store *s, uint64_t *seen, uint64_t *since)
{
    uint64_t begin = pf_now_ns();
    if (*since == 0 || *seen != s->n_progress) {
        *seen = s->n_progress;
        *since = begin;
    } else if (begin - *since >= s->stall_ns) {
        PF_FAIL(PF_EIO, "%s: the drive has not answered for %" PRIu64 " ms", s->paths[0], (begin - *since) / 1000000);
    }
    uint64_t until = *since + s->stall_ns;
    struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    if (s->came.head != PF_NO_PART)
        pf_part_look(s);
    else if (s->n_flying > 0 && s->n_looking == 0 && !s->attended)
        attend(s, until);
    else
        pthread_cond_timedwait(&s->changed, &s->lock, &t);
    s->stats.wait_ns += pf_now_ns() - begin;
    return PF_OK;
}

pf_status pf_store_pin(pf_store *s, const int *slabs, int n, enum pf_pin *out)
{
    uint64_t seen = 0, since = 0;
    pf_status st = PF_OK;
    int n_pinned = 0;
    pthread_mutex_lock(&s->lock);
    while (st == PF_OK && n_pinned == 0 && n > 0) {
        for (int i = 0; i < n; i++)
            pf_slab_pin_present(s, &s->slabs[slabs[i]]);
        for (int i = 0; i < n; i++) {
            const struct pf_slab *slab = &s->slabs[slabs[i]];
            out[i] = pf_slab_ready(s, slab) ? PF_PIN_READY : pf_slab_pin_absent(s, slab) ? PF_PIN_QUEUED : PF_PIN_BUSY;
            n_pinned += out[i] != PF_PIN_BUSY;
            s->stats.n_hits += out[i] == PF_PIN_READY;
            s->stats.n_misses += out[i] == PF_PIN_QUEUED;
        }
        pf_reads_send(s);
        if (n_pinned == 0)
            st = wait_change(s, &seen, &since);
    }
    leave_rest(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Moves the slabs that are ready to the front; both kinds keep their order. PF_EIO and the like when
 * a part of one failed. */
static pf_status sort_ready(struct pf_store *s, int *slabs, int n, int *n_ready)
{
    *n_ready = 0;
    for (int i = 0; i < n; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == PF_PART_FAILED)
                PF_FAIL(s->fail_status, "%s", s->fail_text);
        if (!pf_slab_ready(s, k))
            continue;
        int slab = slabs[i];
        memmove(&slabs[*n_ready + 1], &slabs[*n_ready], (size_t)(i - *n_ready) * sizeof *slabs);
        slabs[(*n_ready)++] = slab;
    }
    return PF_OK;
}

pf_status pf_store_wait_any(pf_store *s, int *slabs, int n, int *n_ready)
{
    uint64_t seen = 0, since = 0;
    pthread_mutex_lock(&s->lock);
    pf_status st = sort_ready(s, slabs, n, n_ready);
    while (st == PF_OK && *n_ready == 0) {
        st = wait_change(s, &seen, &since);
        if (st == PF_OK)
            st = sort_ready(s, slabs, n, n_ready);
    }
    leave_rest(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

pf_status pf_store_wait(pf_store *s, int slab)
{
    int n_ready;
    return pf_store_wait_any(s, &slab, 1, &n_ready);
}

bool pf_store_is_ready(pf_store *s, int slab)
{
    pthread_mutex_lock(&s->lock);
    bool ready = pf_slab_ready(s, &s->slabs[slab]);
    pthread_mutex_unlock(&s->lock);
    return ready;
}

void pf_store_unpin(pf_store *s, const int *slabs, int n)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        for (int p = k->first; p < k->first + k->n; p++)
            pf_part_unpin(s, p);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool pf_store_holds_all(const pf_store *s)
{
    for (int c = 0; c < s->n_classes; c++)
        if (s->classes[c].n_slots < s->classes[c].n_parts)
            return false;
    return true;
}

void *pf_store_arena(const pf_store *s, size_t *bytes)
{
    *bytes = s->arena_bytes;
    return s->arena;
}

const uint8_t *pf_store_data(const pf_store *s, int part)
{
    return s->parts[part].slot + s->parts[part].at.offset % s->align;
}

void pf_store_prefetch(pf_store *s, const int *slabs, int n, int most)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n && most > 0; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        most -= !pf_slab_ready(s, k);
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == PF_PART_ABSENT)
                pf_part_load(s, p, &s->ahead, true);
    }
    pf_reads_send(s);
    pthread_mutex_unlock(&s->lock);
}

/* Guesses are read as long as half of them are right, once a little more than half of those that were only listened to
 * were. If it is less, they are not even asked for until steps have come to some more layers. */
static void judge_guesses(struct pf_store *s)
{
    enum { HEARD = 192, READ = 96, FORGET = 1024, REST = 1000 };
    if (s->n_tried < (s->guesses_pay ? READ : HEARD))
        return;
    bool pay = 100 * s->n_right >= (s->guesses_pay ? 50 : 55) * s->n_tried;
    if (pay && s->guesses_pay) {
        if (s->n_tried >= FORGET)
            s->n_tried /= 2, s->n_right /= 2;
        return;
    }
    s->guesses_pay = pay;
    s->n_rest = pay ? 0 : REST;
    s->n_tried = s->n_right = 0;
}

/* Marks the parts that a guess would read: the next layer's pins will tell whether it would have been right. */
static void foresee(struct pf_store *s, const int *slabs, int n)
{
    for (int i = 0; i < n; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == PF_PART_ABSENT && s->parts[p].foreseen != s->n_entered + 1) {
                s->parts[p].foreseen = s->n_entered + 1;
                s->n_foreseen++;
            }
    }
}

bool pf_store_wants_guess(pf_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool wants = s->n_rest == 0;
    pthread_mutex_unlock(&s->lock);
    return wants;
}

void pf_store_guess(pf_store *s, const int *slabs, int n, int depth)
{
    assert(n <= PF_MAX_GUESSES);
    pthread_mutex_lock(&s->lock);
    judge_guesses(s);
    if (s->guesses_pay) {
        memcpy(s->guesses, slabs, (size_t)n * sizeof *slabs);
        s->guess = (struct pf_store_order){ s->guesses, n, 0 };
        s->guess_depth = depth;
        pf_reads_send(s);
    } else if (s->n_rest == 0) {
        foresee(s, slabs, n);
    }
    pthread_mutex_unlock(&s->lock);
}

void pf_store_fill(pf_store *s, const int *slabs, int n)
{
    pthread_mutex_lock(&s->lock);
    s->fill = (struct pf_store_order){ slabs, n, 0 };
    pf_reads_send(s);
    pthread_mutex_unlock(&s->lock);
}

void pf_store_stats_get(pf_store *s, struct pf_store_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->engine = s->io->name;
    if (s->n_flying > 0)
        out->busy_ns += pf_now_ns() - s->flying_since;
    pthread_mutex_unlock(&s->lock);
}

void pf_store_stats_reset(pf_store *s)
{
    pthread_mutex_lock(&s->lock);
    struct pf_store_stats old = s->stats;
    s->stats = (struct pf_store_stats){ .slot_bytes = old.slot_bytes, .resident_bytes = old.resident_bytes,
                                        .policy = old.policy };
    s->flying_since = pf_now_ns();
    pthread_mutex_unlock(&s->lock);
}

/* ---- The reader -------------------------------------------------------------------------------------------------- */

/* The reader: looks at parts that came, and takes reads back while no waiting thread does. Its wait for the engine ends
 * from time to time, since another thread may have taken the last read that it waits for. */
void *pf_store_reader(void *arg)
{
    struct pf_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing || s->n_flying > 0 || s->came.head != PF_NO_PART) {
        if (s->came.head != PF_NO_PART) {
            pf_part_look(s);
        } else if (s->n_flying == 0 || s->attended) {
            pthread_cond_wait(&s->has_work, &s->lock);
        } else {
            pf_reads_wait(s, pf_now_ns() + LATER_NS);
            if (!s->attended)
                pf_reads_take(s);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

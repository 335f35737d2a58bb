/* Sending reads and taking them back; the lock is held. See store_impl.h.
 *
 * A read that comes back short is continued from the last whole sector, one that was interrupted is asked for again;
 * all else fails the part and everyone who waits for it with one sentence, and the next pin starts afresh. So does a
 * pin that comes while reads are under way that were sent before anybody wanted them, if these fail. */
#define _GNU_SOURCE
#include "tiers/store/store_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/pf_time.h"

enum { MAX_TRIES = 16, FILL_DEPTH = 4, SOON_NS = 100000 };

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* The next part of the order that is wanted and finds a slot goes to `ahead`. */
static void queue_next(struct pf_store *s, struct pf_store_order *o)
{
    bool guess = o == &s->guess;
    for (; o->at < o->n; o->at++) {
        const struct pf_slab *k = &s->slabs[o->slabs[o->at]];
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == PF_PART_ABSENT && pf_part_load(s, p, &s->ahead, guess)) {
                s->parts[p].guessed = guess;
                s->n_tried += guess;
                s->stats.n_guessed += guess;
                return;
            }
    }
}

static int next_part(struct pf_store *s)
{
    if (s->closing)
        return PF_NO_PART;
    if (s->wanted.head != PF_NO_PART)
        return s->wanted.head;
    if (s->ahead.head == PF_NO_PART && s->n_flying < s->guess_depth)
        queue_next(s, &s->guess);
    if (s->ahead.head == PF_NO_PART && s->n_flying < FILL_DEPTH)
        queue_next(s, &s->fill);
    return s->ahead.head;
}

/* The next chunk of a part: a share of the sectors that hold it, in whole multiples of the alignment. */
static void ask_chunk(struct pf_store *s, int p)
{
    struct pf_stored *part = &s->parts[p];
    uint64_t begin = part->at.offset / s->align * s->align, end = part->at.offset + part->at.bytes;
    uint64_t sectors = (end - begin + s->align - 1) / s->align, n = (uint64_t)part->n_chunks,
             i = (uint64_t)part->n_asked++;
    uint64_t from = begin + sectors * i / n * s->align, to = begin + sectors * (i + 1) / n * s->align;
    struct pf_store_read *r = s->idle;
    if (i == 0)
        pf_io_file_unchanged(&s->files[part->at.file], &part->touched);
    if (i == 0 && !part->has_sum)
        pf_part_mark(s, part);
    s->idle = r->next;
    *r = (struct pf_store_read){ .io = { .file = part->at.file, .offset = from, .bytes = to - from,
                                .buf = part->slot + (from - begin) },
                        .part = p, .need_end = to < end ? to : end };
    s->io->ops->queue(s->io, &r->io);
    part->state = PF_PART_READING;
    part->n_flying++;
    if (s->n_flying++ == 0)
        s->flying_since = pf_now_ns();
    if (part->n_asked == part->n_chunks)
        pf_queue_remove(s, p);
}

/* Begins as many reads as there is room for. */
void pf_reads_send(struct pf_store *s)
{
    bool idle = s->n_flying == 0;
    for (int p; s->idle && (p = next_part(s)) != PF_NO_PART;) {
        ask_chunk(s, p);
        if (idle && s->n_flying == 1)
            s->io->ops->commit(s->io);       /* the drive begins while the others are made ready */
    }
    s->unsent = !s->io->ops->commit(s->io);
    if (idle && s->n_flying > 0)
        pthread_cond_signal(&s->has_work);
}

/* ---- Taking back ------------------------------------------------------------------------------------------------- */

/* Says in one sentence why a read failed for good. */
static void fail_read(struct pf_store *s, const struct pf_store_read *r)
{
    const char *path = s->paths[r->io.file];
    const struct pf_slab *k = &s->slabs[s->parts[r->part].slab];
    struct stat st;
    char text[512], what[64];
    if (k->expert >= 0)
        snprintf(what, sizeof what, "expert %d of layer %d", k->expert, k->layer);
    else
        snprintf(what, sizeof what, "layer %d", k->layer);
    if (r->io.result >= 0 && fstat(s->files[r->io.file].fd, &st) == 0 && (uint64_t)st.st_size < r->need_end) {
        snprintf(text, sizeof text, "%s: the file now ends at byte %lld; %s should go on to byte %" PRIu64, path,
                 (long long)st.st_size, what, r->need_end);
        pf_part_fail(s, &s->parts[r->part], PF_ECHANGED, text);
        return;
    }
    snprintf(text, sizeof text, "%s: reading %s at byte %" PRIu64 " failed: %s", path, what, r->io.offset,
             r->io.result < 0 ? strerror((int)-r->io.result) : "the drive returns less than was asked for");
    pf_part_fail(s, &s->parts[r->part], PF_EIO, text);
}

/* Whether the read must go to the engine again, for the bytes that are missing. */
static bool must_repeat(struct pf_store *s, struct pf_store_read *r)
{
    int64_t n = r->io.result;
    if (n >= 0 && r->io.offset + (uint64_t)n >= r->need_end)
        return false;
    if ((n < 0 && n != -EINTR && n != -EAGAIN && n != -ECANCELED) || s->closing || ++r->tries > MAX_TRIES) {
        fail_read(s, r);
        return false;
    }
    uint64_t whole = n > 0 ? (uint64_t)n / s->align * s->align : 0;
    r->io.offset += whole;
    r->io.bytes -= whole;
    r->io.buf = (char *)r->io.buf + whole;
    s->stats.n_retries++;
    return true;
}

/* Takes a read back from the engine, or gives it to it again. Returns its part if that was the part's
 * last read, else NONE. */
static int take_back(struct pf_store *s, struct pf_store_read *r)
{
    struct pf_stored *part = &s->parts[r->part];
    s->n_progress++;
    s->stats.n_reads++;
    s->stats.bytes_read += r->io.result > 0 ? (uint64_t)r->io.result : 0;
    if (must_repeat(s, r)) {
        s->io->ops->queue(s->io, &r->io);
        return PF_NO_PART;
    }
    int p = r->part;
    r->next = s->idle;
    s->idle = r;
    if (--s->n_flying == 0) {
        uint64_t now = pf_now_ns();
        s->stats.busy_ns += now - s->flying_since;
        pf_spans_add(s->spans, &(struct pf_span){ "reads", PF_TRACK_DRIVE, -1, -1, s->flying_since, now });
    }
    if (part->broken)
        pf_queue_remove(s, p);              /* the part's other chunks are not asked for any more */
    return --part->n_flying == 0 && (part->broken || part->n_asked == part->n_chunks) ? p : PF_NO_PART;
}

/* Takes what is back. The drive gets new reads before anybody looks at what came, as that takes a while. */
void pf_reads_take(struct pf_store *s)
{
    struct pf_io_read *done[PF_STORE_DEPTH];
    int n = s->io->ops->take(s->io, done, PF_STORE_DEPTH);
    for (int i = 0; i < n; i++) {
        int p = take_back(s, (struct pf_store_read *)((char *)done[i] - offsetof(struct pf_store_read, io)));
        if (p != PF_NO_PART)
            pf_queue_put(s, &s->came, p);
    }
    pf_reads_send(s);
}

/* The lock is given up meanwhile. When the engine could not send everything it is asked again a little later. */
void pf_reads_wait(struct pf_store *s, uint64_t until)
{
    if (s->unsent)
        until = pf_now_ns() + SOON_NS;
    pthread_mutex_unlock(&s->lock);
    s->io->ops->wait(s->io, until);
    pthread_mutex_lock(&s->lock);
}

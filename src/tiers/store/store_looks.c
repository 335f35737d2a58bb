/* Looking at what came. The lock is not held while bytes are looked at: the part is READING, and all its reads are
 * back. See store_impl.h.
 *
 * GGUF has no checksums, so what a drive returns cannot be proved right; what drives, cables and file systems do in
 * practice is leave sectors out or return empty ones. Before a part's first read every sector of its slot is marked. A
 * mark that is still there, or a sector of one repeated byte, makes the part be read once more; then a mark is an
 * error, and a sector that is still empty is what the file holds. The first read leaves a checksum of eight bytes a
 * sector: a later one that differs is repeated once, and then an error. Single bits that flip on the first read, or a
 * sector taken for another one, are not noticed: that would take reading everything twice. */
#define _GNU_SOURCE
#include "tiers/store/store_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SECTOR = 512 };

static uint64_t mark_of(const uint8_t *sector)
{
    return ((uint64_t)(uintptr_t)sector ^ 0x70666d6f65u) * 0x9e3779b97f4a7c15u;
}

static uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The end of the sectors that hold the part, in its slot. */
static uint8_t *sectors_end(const struct pf_store *s, const struct pf_stored *part)
{
    return part->slot + (part->at.offset % s->align + part->at.bytes + SECTOR - 1) / SECTOR * SECTOR;
}

void pf_part_mark(const struct pf_store *s, struct pf_stored *part)
{
    for (uint8_t *at = part->slot; at < sectors_end(s, part); at += SECTOR) {
        uint64_t mark = mark_of(at);
        memcpy(at, &mark, sizeof mark);
    }
}

void pf_part_fail(struct pf_store *s, struct pf_stored *part, pf_status st, const char *text)
{
    part->broken = true;
    s->fail_status = st;
    snprintf(s->fail_text, sizeof s->fail_text, "%s", text);
}

static uint64_t add_word(uint64_t sum, const uint8_t *p)
{
    return (sum << 7 | sum >> 57) * 0x9e3779b97f4a7c15u + word_at(p);
}

/* Eight bytes of every sector that has as many of the part, and the part's last eight. */
static uint64_t checksum(const struct pf_store *s, const struct pf_stored *part)
{
    const uint8_t *data = part->slot + part->at.offset % s->align, *end = data + part->at.bytes;
    uint64_t sum = part->at.bytes;
    if (part->at.bytes < 8)
        return sum;
    for (const uint8_t *at = data; at + 8 <= end; at += SECTOR - (at - part->slot) % SECTOR)
        sum = add_word(sum, at);
    return add_word(sum, end - 8);
}

static bool is_one_byte(const uint8_t *sector)
{
    return word_at(sector) == word_at(sector + SECTOR - 8) && memcmp(sector, sector + 1, SECTOR - 1) == 0;
}

/* Looks over the sectors of a part's first read. */
enum look { FINE, EMPTY, LEFT_OUT };
static enum look look_at(const struct pf_store *s, const struct pf_stored *part)
{
    enum look found = FINE;
    const uint8_t *first = part->slot + part->at.offset % s->align / SECTOR * SECTOR;
    for (const uint8_t *at = first; at < sectors_end(s, part); at += SECTOR) {
        if (word_at(at) == mark_of(at))
            return LEFT_OUT;
        if (is_one_byte(at))
            found = EMPTY;
    }
    return found;
}

static void fail_bytes(struct pf_store *s, struct pf_stored *part, const char *how)
{
    char text[512];
    snprintf(text, sizeof text, "%s: byte %" PRIu64 " and on %s; the drive or the file is bad", s->paths[part->at.file],
             part->at.offset, how);
    pf_part_fail(s, part, PF_EIO, text);
}

static void fail_changed(struct pf_store *s, struct pf_stored *part)
{
    char text[512];
    snprintf(text, sizeof text, "%s: the file changed since it was opened", s->paths[part->at.file]);
    pf_part_fail(s, part, PF_ECHANGED, text);
}

/* Whether the bytes of a part have to be read again; if they are wrong a second time, or of a file that has
 * changed, the part is broken. */
static bool must_read_again(struct pf_store *s, struct pf_stored *part)
{
    pthread_mutex_unlock(&s->lock);
    uint64_t sum = checksum(s, part);
    enum look look = part->has_sum ? FINE : look_at(s, part);
    struct timespec now;
    bool unchanged = pf_io_file_unchanged(&s->files[part->at.file], &now);
    pthread_mutex_lock(&s->lock);
    bool touched = now.tv_sec != part->touched.tv_sec || now.tv_nsec != part->touched.tv_nsec;
    if (!unchanged || (touched && part->again)) {
        fail_changed(s, part);
        return false;
    }
    bool differs = part->has_sum && sum != part->sum;
    if ((touched || differs || look != FINE) && !part->again)
        return true;
    if (differs)
        fail_bytes(s, part, "are read differently than before");
    if (look == LEFT_OUT)
        fail_bytes(s, part, "were not read, though the drive says so");
    if (!part->broken && !part->has_sum) {
        part->has_sum = true;
        part->sum = sum;
    }
    return false;
}

/* Its bytes are there. */
static void finish_part(struct pf_store *s, int p)
{
    struct pf_stored *part = &s->parts[p];
    struct pf_slots *k = &s->classes[part->class];
    bool anew = part->broken && part->older && part->pins > 0;      /* what failed was not this pin's read */
    if (anew || (!part->broken && must_read_again(s, part))) {
        part->again = !anew;
        part->broken = part->older = false;
        part->n_asked = 0;
        s->stats.n_retries++;
        pf_queue_put(s, &s->wanted, p);
        pf_reads_send(s);
        return;
    }
    part->state = part->broken ? PF_PART_FAILED : PF_PART_READY;
    if (!part->broken)
        s->stats.resident_bytes += part->at.bytes;
    if (part->pins == 0 && part->broken)
        pf_part_absent(s, part);
    else if (part->pins == 0)
        k->policy->ops->release(k->policy, part->index);
}

void pf_part_look(struct pf_store *s)
{
    int p = s->came.head;
    pf_queue_remove(s, p);
    s->n_looking++;
    finish_part(s, p);
    s->n_looking--;
    pthread_cond_broadcast(&s->changed);
}

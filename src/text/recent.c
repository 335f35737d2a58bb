/* See recent.h. */
#include "text/recent.h"

#include <pthread.h>
#include <string.h>

#include "base/pf_mem.h"

enum { SLOTS = 4096 };

struct fragment {
    size_t  len, n_ids;
    int32_t ids[];                   /* then the text */
};

struct pf_recent {
    pthread_mutex_t    lock;
    struct pf_hash_key key;
    struct fragment   *slots[SLOTS];
    size_t             bytes, hand;
};

struct pf_recent *pf_recent_open(void)
{
    struct pf_recent *r = pf_alloc(PF_MEM_TEXT, sizeof *r);
    if (!r)
        return NULL;
    pf_hash_key_draw(&r->key);
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void pf_recent_close(struct pf_recent *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < SLOTS; i++)
        pf_free(r->slots[i]);
    pthread_mutex_destroy(&r->lock);
    pf_free(r);
}

static size_t slot_of(const struct pf_recent *r, const char *text, size_t len)
{
    return (size_t)pf_hash_word(&r->key, pf_hash_text(&r->key, text, len)) % SLOTS;
}

static size_t bytes_of(size_t len, size_t n_ids)
{
    return sizeof(struct fragment) + n_ids * sizeof(int32_t) + len;
}

static char *text_of(struct fragment *f)
{
    return (char *)(f->ids + f->n_ids);
}

bool pf_recent_find(struct pf_recent *r, const char *text, size_t len, int32_t *ids, size_t cap, size_t *n_ids)
{
    size_t slot = slot_of(r, text, len);
    pthread_mutex_lock(&r->lock);
    struct fragment *f = r->slots[slot];
    bool known = f && f->len == len && memcmp(text_of(f), text, len) == 0;
    if (known) {
        *n_ids = f->n_ids;
        size_t n = f->n_ids < cap ? f->n_ids : cap;
        if (n > 0)
            memcpy(ids, f->ids, n * sizeof *ids);
    }
    pthread_mutex_unlock(&r->lock);
    return known;
}

/* With the lock held. */
static void empty(struct pf_recent *r, size_t slot)
{
    struct fragment *f = r->slots[slot];
    if (!f)
        return;
    r->bytes -= bytes_of(f->len, f->n_ids);
    r->slots[slot] = NULL;
    pf_free(f);
}

void pf_recent_keep(struct pf_recent *r, const char *text, size_t len, const int32_t *ids, size_t n_ids)
{
    size_t bytes = bytes_of(len, n_ids), slot = slot_of(r, text, len);
    struct fragment *f = bytes <= PF_RECENT_BYTES ? pf_alloc(PF_MEM_TEXT, bytes) : NULL;
    if (!f)
        return;
    f->len = len;
    f->n_ids = n_ids;
    memcpy(f->ids, ids, n_ids * sizeof *ids);
    memcpy(text_of(f), text, len);
    pthread_mutex_lock(&r->lock);
    empty(r, slot);
    while (r->bytes + bytes > PF_RECENT_BYTES)
        empty(r, r->hand++ % SLOTS);
    r->slots[slot] = f;
    r->bytes += bytes;
    pthread_mutex_unlock(&r->lock);
}

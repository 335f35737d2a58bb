/* Least recently used: candidates in a list, the one released longest ago in front.
 *
 *     head -> key -> key -> ... -> tail          prev, next [n_keys + 1]; entry n_keys is the list's end on both sides
 *
 * A key outside the list points to itself. */
#include "base/pf_mem.h"
#include "tiers/evict.h"

struct lru {
    pf_evict base;
    int      end;                /* n_keys */
    int     *prev, *next;
};

const struct pf_evict_ops *pf_evict_at(int i)
{
    static const struct pf_evict_ops *const all[] = { &pf_evict_nextuse, &pf_evict_lfu, &pf_evict_lru };
    return i >= 0 && i < (int)(sizeof all / sizeof *all) ? all[i] : NULL;
}

static struct lru *lru_of(pf_evict *p)
{
    return (struct lru *)p;
}

static void unlink_key(struct lru *l, int key)
{
    l->next[l->prev[key]] = l->next[key];
    l->prev[l->next[key]] = l->prev[key];
    l->prev[key] = l->next[key] = key;
}

static void lru_close(pf_evict *p)
{
    struct lru *l = lru_of(p);
    pf_free(l->prev);
    pf_free(l->next);
    pf_free(l);
}

static pf_status lru_open(pf_evict **out, const struct pf_evict_shape *shape)
{
    *out = NULL;
    struct lru *l = pf_alloc(PF_MEM_TIERS, sizeof *l);
    if (!l)
        PF_FAIL(PF_ENOMEM, "no memory for a replacement policy");
    size_t n = (size_t)shape->n_keys + 1;
    l->base.ops = &pf_evict_lru;
    l->end = shape->n_keys;
    l->prev = pf_alloc_array(PF_MEM_TIERS, n, sizeof *l->prev);
    l->next = pf_alloc_array(PF_MEM_TIERS, n, sizeof *l->next);
    if (!l->prev || !l->next) {
        lru_close(&l->base);
        PF_FAIL(PF_ENOMEM, "no memory for a replacement policy over %d parts", shape->n_keys);
    }
    for (int i = 0; i <= l->end; i++)
        l->prev[i] = l->next[i] = i;
    *out = &l->base;
    return PF_OK;
}

static void lru_enter(pf_evict *p, int layer)
{
    (void)p;
    (void)layer;
}

static void lru_use(pf_evict *p, int key)
{
    unlink_key(lru_of(p), key);
}

static void lru_release(pf_evict *p, int key)
{
    struct lru *l = lru_of(p);
    unlink_key(l, key);
    l->prev[key] = l->prev[l->end];
    l->next[key] = l->end;
    l->next[l->prev[key]] = l->prev[l->end] = key;
}

static int lru_victim(pf_evict *p)
{
    struct lru *l = lru_of(p);
    int key = l->next[l->end];
    if (key == l->end)
        return -1;
    unlink_key(l, key);
    return key;
}

const struct pf_evict_ops pf_evict_lru = {
    .name = "lru", .open = lru_open, .close = lru_close, .enter = lru_enter, .use = lru_use, .release = lru_release,
    .victim = lru_victim,
};

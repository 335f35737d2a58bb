/* Reading traces and replaying them against replacement policies. */
#define _GNU_SOURCE
#include "tiers/trace.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/pf_mem.h"
#include "tiers/evict.h"

enum { MAX_LAYERS = 4096 };
static const uint64_t NEVER = UINT64_MAX, MAX_TRACE_BYTES = (uint64_t)4 << 30;

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static uint32_t u32_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static pf_status read_header(struct pf_trace *t, FILE *f, const char *path)
{
    uint8_t h[PF_TRACE_HEADER_BYTES];
    if (fread(h, 1, sizeof h, f) != sizeof h || memcmp(h, "PFTRACE1", 8) != 0)
        PF_FAIL(PF_EFORMAT, "%s: byte 0: this is no routing trace", path);
    uint32_t n_layers = u32_at(h + 8), n_expert = u32_at(h + 12), n_used = u32_at(h + 16);
    if (n_layers < 1 || n_layers > MAX_LAYERS || n_expert < 1 || n_expert > UINT16_MAX || n_used < 1 ||
        n_used > n_expert)
        PF_FAIL(PF_EFORMAT, "%s: byte 8: %u layers of %u experts, %u used, are not possible", path, n_layers, n_expert,
                n_used);
    t->n_layers = (int)n_layers;
    t->n_expert = (int)n_expert;
    t->n_used = (int)n_used;
    return PF_OK;
}

static pf_status read_picks(struct pf_trace *t, FILE *f, const char *path)
{
    struct stat st;
    uint64_t per_token = (uint64_t)t->n_layers * (uint64_t)t->n_used;
    if (fstat(fileno(f), &st) != 0 || (uint64_t)st.st_size > MAX_TRACE_BYTES)
        PF_FAIL(PF_EIO, "%s: its size is unknown or beyond %llu bytes", path, (unsigned long long)MAX_TRACE_BYTES);
    t->n_tokens = (int64_t)(((uint64_t)st.st_size - PF_TRACE_HEADER_BYTES) / (per_token * PF_TRACE_PICK_BYTES));
    uint64_t n = (uint64_t)t->n_tokens * per_token;
    t->experts = pf_alloc_array(PF_MEM_TIERS, (size_t)n, sizeof *t->experts);
    t->weights = pf_alloc_array(PF_MEM_TIERS, (size_t)n, sizeof *t->weights);
    if (!t->experts || !t->weights)
        PF_FAIL(PF_ENOMEM, "%s: no memory for a trace of %lld tokens", path, (long long)t->n_tokens);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t pick[PF_TRACE_PICK_BYTES];
        if (fread(pick, 1, sizeof pick, f) != sizeof pick)
            PF_FAIL(PF_EIO, "%s: reading pick %llu failed: %s", path, (unsigned long long)i, strerror(errno));
        uint32_t weight = u32_at(pick + 2);
        memcpy(&t->weights[i], &weight, sizeof weight);
        t->experts[i] = (uint16_t)(pick[0] | pick[1] << 8);
        if (t->experts[i] >= t->n_expert)
            PF_FAIL(PF_EFORMAT, "%s: byte %llu: expert %d of %d", path,
                    (unsigned long long)(PF_TRACE_HEADER_BYTES + i * PF_TRACE_PICK_BYTES), t->experts[i], t->n_expert);
        if (!isfinite(t->weights[i]))
            PF_FAIL(PF_EFORMAT, "%s: byte %llu: the weight is not finite", path,
                    (unsigned long long)(PF_TRACE_HEADER_BYTES + i * PF_TRACE_PICK_BYTES + 2));
    }
    return PF_OK;
}

pf_status pf_trace_read(struct pf_trace *out, const char *path)
{
    struct pf_trace t = { 0 };
    *out = t;
    FILE *f = fopen(path, "rbe");
    if (!f)
        PF_FAIL(PF_EIO, "%s: opening it failed: %s", path, strerror(errno));
    pf_status st = read_header(&t, f, path);
    if (st == PF_OK)
        st = read_picks(&t, f, path);
    fclose(f);
    if (st < 0) {
        pf_trace_free(&t);
        return st;
    }
    *out = t;
    return PF_OK;
}

void pf_trace_free(struct pf_trace *t)
{
    pf_free(t->experts);
    pf_free(t->weights);
    *t = (struct pf_trace){ 0 };
}

/* ---- Replaying a policy ------------------------------------------------------------------------------------------ */

/* The picks of one token in one layer as keys; a pick that is named twice counts once. */
static int keys_of(const struct pf_trace *t, uint64_t visit, int *keys)
{
    const uint16_t *picks = t->experts + visit * (uint64_t)t->n_used;
    int layer = (int)(visit % (uint64_t)t->n_layers), n = 0;
    for (int i = 0; i < t->n_used; i++) {
        int key = layer * t->n_expert + picks[i], j = 0;
        while (j < n && keys[j] != key)
            j++;
        if (j == n)
            keys[n++] = key;
    }
    return n;
}

static void replay(const struct pf_trace *t, int64_t n_slots, pf_evict *p, bool *resident, int *keys, uint64_t *n_uses,
                   uint64_t *n_hits)
{
    int64_t n_free = n_slots;
    for (uint64_t visit = 0; visit < (uint64_t)t->n_tokens * (uint64_t)t->n_layers; visit++) {
        int n = keys_of(t, visit, keys);
        p->ops->enter(p, (int)(visit % (uint64_t)t->n_layers));
        for (int i = 0; i < n; i++)
            p->ops->use(p, keys[i]);
        for (int i = 0; i < n; i++) {
            *n_hits += resident[keys[i]];
            if (!resident[keys[i]] && n_free > 0)
                n_free--;
            else if (!resident[keys[i]])
                resident[p->ops->victim(p)] = false;
            resident[keys[i]] = true;
        }
        for (int i = 0; i < n; i++)
            p->ops->release(p, keys[i]);
        *n_uses += (uint64_t)n;
    }
}

/* ---- Belady's rule ----------------------------------------------------------------------------------------------- */

struct entry {
    uint64_t next;                       /* number of the visit that uses it next */
    int      key;
};

/* A heap of residents, the farthest next use on top. A key that was used since has newer entries; the old are dropped
 * when they come up. Experts of the present visit have the nearest next use of all, so they never come up. */
struct belady {
    uint64_t *next;                      /* [n_keys] of each key as of now */
    uint64_t *next_of;                   /* [n_picks] of each pick */
    struct entry *heap;
    size_t    n;
};

static void heap_push(struct belady *b, struct entry e)
{
    size_t at = b->n++;
    while (at > 0 && b->heap[(at - 1) / 2].next < e.next) {
        b->heap[at] = b->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    b->heap[at] = e;
}

static struct entry heap_pop(struct belady *b)
{
    struct entry top = b->heap[0], last = b->heap[--b->n];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < b->n; at = child) {
        child += child + 1 < b->n && b->heap[child + 1].next > b->heap[child].next;
        if (b->heap[child].next <= last.next)
            break;
        b->heap[at] = b->heap[child];
    }
    b->heap[at] = last;
    return top;
}

static int farthest(struct belady *b, const bool *resident)
{
    for (;;) {
        struct entry e = heap_pop(b);
        if (resident[e.key] && b->next[e.key] == e.next)
            return e.key;
    }
}

static void replay_belady(const struct pf_trace *t, int64_t n_slots, struct belady *b, bool *resident, int *keys,
                          uint64_t *n_uses, uint64_t *n_hits)
{
    uint64_t n_visits = (uint64_t)t->n_tokens * (uint64_t)t->n_layers,
             n_keys = (uint64_t)t->n_layers * (uint64_t)t->n_expert;
    int64_t n_free = n_slots;
    for (uint64_t k = 0; k < n_keys; k++)
        b->next[k] = NEVER;
    for (uint64_t visit = n_visits; visit-- > 0;)
        for (int n = keys_of(t, visit, keys), i = 0; i < n; i++) {
            b->next_of[visit * (uint64_t)t->n_used + (uint64_t)i] = b->next[keys[i]];
            b->next[keys[i]] = visit;
        }
    for (uint64_t visit = 0; visit < n_visits; visit++) {
        int n = keys_of(t, visit, keys);
        for (int i = 0; i < n; i++) {
            *n_hits += resident[keys[i]];
            if (!resident[keys[i]] && n_free > 0)
                n_free--;
            else if (!resident[keys[i]])
                resident[farthest(b, resident)] = false;
            resident[keys[i]] = true;
        }
        for (int i = 0; i < n; i++) {
            b->next[keys[i]] = b->next_of[visit * (uint64_t)t->n_used + (uint64_t)i];
            heap_push(b, (struct entry){ b->next[keys[i]], keys[i] });
        }
        *n_uses += (uint64_t)n;
    }
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

static pf_status hits_of_policy(const struct pf_trace *t, int64_t n_slots, const struct pf_evict_ops *policy,
                                bool *resident, int *keys, uint64_t *n_uses, uint64_t *n_hits)
{
    int n_keys = t->n_layers * t->n_expert;
    int *layers = pf_alloc_array(PF_MEM_TIERS, (size_t)n_keys, sizeof *layers);
    pf_evict *p = NULL;
    if (!layers)
        PF_FAIL(PF_ENOMEM, "no memory to replay %d experts", n_keys);
    for (int k = 0; k < n_keys; k++)
        layers[k] = k / t->n_expert;
    pf_status st = policy->open(&p, &(struct pf_evict_shape){ n_keys, t->n_layers, layers });
    pf_free(layers);
    PF_TRY(st);
    replay(t, n_slots, p, resident, keys, n_uses, n_hits);
    policy->close(p);
    return PF_OK;
}

static pf_status hits_of_belady(const struct pf_trace *t, int64_t n_slots, bool *resident, int *keys, uint64_t *n_uses,
                                uint64_t *n_hits)
{
    size_t n_picks = (size_t)t->n_tokens * (size_t)t->n_layers * (size_t)t->n_used;
    struct belady b = { .next = pf_alloc_array(PF_MEM_TIERS, (size_t)t->n_layers * (size_t)t->n_expert, sizeof *b.next),
                        .next_of = pf_alloc_array(PF_MEM_TIERS, n_picks, sizeof *b.next_of),
                        .heap = pf_alloc_array(PF_MEM_TIERS, n_picks, sizeof *b.heap) };
    bool there = b.next && b.next_of && b.heap;
    if (there)
        replay_belady(t, n_slots, &b, resident, keys, n_uses, n_hits);
    pf_free(b.next);
    pf_free(b.next_of);
    pf_free(b.heap);
    return there ? PF_OK : pf_fail(PF_ENOMEM, "no memory to replay %zu picks", n_picks);
}

pf_status pf_trace_hits(const struct pf_trace *t, int64_t n_slots, const struct pf_evict_ops *policy, uint64_t *n_uses,
                        uint64_t *n_hits)
{
    if (n_slots < t->n_used)
        PF_FAIL(PF_EINVAL, "%lld slots are too few for %d experts at once", (long long)n_slots, t->n_used);
    bool *resident = pf_alloc_array(PF_MEM_TIERS, (size_t)t->n_layers * (size_t)t->n_expert, sizeof *resident);
    int *keys = pf_alloc_array(PF_MEM_TIERS, (size_t)t->n_used, sizeof *keys);
    pf_status st;
    *n_uses = *n_hits = 0;
    if (!resident || !keys)
        st = pf_fail(PF_ENOMEM, "no memory to replay a trace");
    else if (policy)
        st = hits_of_policy(t, n_slots, policy, resident, keys, n_uses, n_hits);
    else
        st = hits_of_belady(t, n_slots, resident, keys, n_uses, n_hits);
    pf_free(resident);
    pf_free(keys);
    return st;
}

pf_status pf_trace_replay(const char *path, int64_t n_slots, struct pf_replay *rows, int cap, int *n)
{
    struct pf_trace t;
    pf_status st = PF_OK;
    *n = 0;
    PF_TRY(pf_trace_read(&t, path));
    for (bool last = false; st == PF_OK && !last; ++*n) {
        const struct pf_evict_ops *policy = pf_evict_at(*n);
        struct pf_replay row = { .policy = policy ? policy->name : "belady", .n_tokens = (uint64_t)t.n_tokens };
        row.n_slots = n_slots > 0 ? (uint64_t)n_slots : (uint64_t)t.n_layers * (uint64_t)t.n_expert / 2;
        if (*n < cap)
            st = pf_trace_hits(&t, (int64_t)row.n_slots, policy, &row.n_uses, &row.n_hits);
        if (*n < cap)
            rows[*n] = row;
        last = !policy;
    }
    pf_trace_free(&t);
    return st;
}

/* Merging: the loop that all three kinds of vocabulary share.
 *
 * A chunk begins as a list of symbols; again and again the adjacent pair with the lowest key becomes one symbol, of
 * equal keys the leftmost. A pair's key depends on the vocabulary: the rank of a merge, the id of the joined
 * token, or its score. Short chunks look for the lowest key in the list; long ones keep a heap with one entry for
 * each pair that ever was. An entry is stale when its symbol is gone or has another key by now; a stale entry whose
 * symbol has the same key again is as good as a fresh one, because it says the same: merge here, now.
 *
 * A heap of a text of megabytes is slow, since it is read all over for each pair. There, where keys are ranks or ids,
 * pairs lie in a bucket for each key; a bucket is sorted when its turn comes, and the heap has what comes after that
 * with its key or a lower one. */
#include <string.h>

#include "base/pf_mem.h"
#include "text/utf8.h"
#include "text/vocab_impl.h"

enum { SHORT_CHUNK = 40, LONG_CHUNK = 1 << 14 };     /* symbols */

static void find_pair(const struct pf_tok_job *j, struct pf_sym *left)
{
    const struct pf_vocab *v = j->v;
    left->key = PF_NO_PAIR;
    if (left->next == PF_SYM_END)
        return;
    const struct pf_sym *right = &j->syms[left->next];
    if (!v->pairs) {
        size_t n = (size_t)left->n + right->n;
        left->joined = n <= v->max_text ? pf_text_find(v, j->chunk + left->at, n) : -1;
        if (left->joined >= 0)
            left->key = v->score_keys ? v->score_keys[left->joined] : (uint32_t)left->joined;
        return;
    }
    for (size_t i = pf_pair_home(v, left->id, right->id);; i = (i + 1) & v->pair_mask) {
        const struct pf_pair_slot *s = &v->pairs[i];
        if (!s->joined_plus_1)
            return;
        if (s->left == left->id && s->right == right->id) {
            left->key = s->rank;
            left->joined = (int32_t)(s->joined_plus_1 - 1);
            return;
        }
    }
}

/* Joins syms[i] with its right neighbour and finds the keys of the two pairs that this changes. */
static void join(struct pf_tok_job *j, uint32_t i)
{
    struct pf_sym *left = &j->syms[i], *right = &j->syms[left->next];
    left->n += right->n;
    left->id = left->joined;
    right->n = 0;
    left->next = right->next;
    if (left->next != PF_SYM_END)
        j->syms[left->next].prev = i;
    find_pair(j, left);
    if (left->prev != PF_SYM_END)
        find_pair(j, &j->syms[left->prev]);
}

static void run_short(struct pf_tok_job *j)
{
    for (;;) {
        uint32_t best = PF_SYM_END, key = PF_NO_PAIR;
        for (uint32_t i = 0; i != PF_SYM_END; i = j->syms[i].next)
            if (j->syms[i].key < key) {
                key = j->syms[i].key;
                best = i;
            }
        if (best == PF_SYM_END)
            return;
        join(j, best);
    }
}

static pf_status heap_push(struct pf_tok_job *j, uint32_t i)
{
    uint32_t key = j->syms[i].key;
    if (j->n_heap == j->heap_cap) {
        size_t cap = j->heap_cap ? 2 * j->heap_cap : 1024;
        uint64_t *heap = pf_realloc(PF_MEM_TEXT, j->heap, cap * sizeof *heap);
        if (!heap)
            PF_FAIL(PF_ENOMEM, "no memory for the %zu pairs of a text being tokenized", cap);
        j->heap = heap;
        j->heap_cap = cap;
    }
    uint64_t entry = (uint64_t)key << 32 | i;
    size_t at = j->n_heap++;
    for (; at > 0 && entry < j->heap[(at - 1) / 2]; at = (at - 1) / 2)
        j->heap[at] = j->heap[(at - 1) / 2];
    j->heap[at] = entry;
    return PF_OK;
}

static uint64_t heap_pop(struct pf_tok_job *j)
{
    uint64_t top = j->heap[0], last = j->heap[--j->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < j->n_heap; child = 2 * at + 1) {
        if (child + 1 < j->n_heap && j->heap[child + 1] < j->heap[child])
            child++;
        if (last <= j->heap[child])
            break;
        j->heap[at] = j->heap[child];
        at = child;
    }
    j->heap[at] = last;
    return top;
}

/* ---- Buckets ----------------------------------------------------------------------------------------------- */

/* Some of a bucket's symbols: a line of the cache. */
struct bucket_line {
    uint32_t next;                               /* its place plus one, as in heads; 0: the last */
    uint32_t n, syms[14];
};

struct pf_buckets {
    uint32_t *heads;                             /* [n_keys] */
    size_t    n_keys;
    struct bucket_line *lines;
    size_t    n_lines, line_cap;
    uint32_t  unused;                            /* lines whose bucket is done, in a list as a bucket's */
    uint32_t *sorted, *spare;                    /* the bucket that has its turn: symbols from left to right */
    size_t    n_sorted, at, sorted_cap;
};

static bool grow_array(void *p, size_t *cap, size_t n, size_t size)
{
    void **array = p;
    size_t wanted = *cap ? *cap : 1024;
    while (wanted < n)
        wanted *= 2;
    void *grown = wanted > *cap ? pf_realloc(PF_MEM_TEXT, *array, wanted * size) : *array;
    if (!grown)
        return false;
    *array = grown;
    *cap = wanted;
    return true;
}

static pf_status no_room(const struct pf_tok_job *j)
{
    PF_FAIL(PF_ENOMEM, "no memory for the pairs of a text of %u symbols being tokenized", j->n_syms);
}

static pf_status bucket_push(struct pf_tok_job *j, uint32_t i)
{
    struct pf_buckets *b = j->buckets;
    uint32_t key = j->syms[i].key;
    size_t n_keys = b->n_keys;
    if (key >= n_keys) {
        if (!grow_array(&b->heads, &b->n_keys, (size_t)key + 1, sizeof *b->heads))
            return no_room(j);
        memset(b->heads + n_keys, 0, (b->n_keys - n_keys) * sizeof *b->heads);
    }
    struct bucket_line *line = b->heads[key] ? &b->lines[b->heads[key] - 1] : NULL;
    if (!line || line->n == sizeof line->syms / sizeof *line->syms) {
        uint32_t at = b->unused;
        if (at)
            b->unused = b->lines[at - 1].next;
        else if (b->n_lines == b->line_cap &&
                 !grow_array(&b->lines, &b->line_cap, b->n_lines + 1, sizeof *b->lines))
            return no_room(j);
        at = at ? at : (uint32_t)++b->n_lines;
        line = &b->lines[at - 1];
        line->next = b->heads[key];
        line->n = 0;
        b->heads[key] = at;
    }
    line->syms[line->n++] = i;
    return PF_OK;
}

/* By digits of 11 bits, from the last one on. */
static void sort_symbols(struct pf_buckets *b)
{
    enum { BITS = 11, N = 1 << BITS };
    for (unsigned shift = 0; shift < 32; shift += BITS) {
        size_t count[N] = { 0 }, sum = 0;
        for (size_t i = 0; i < b->n_sorted; i++)
            count[b->sorted[i] >> shift & (N - 1)]++;
        for (size_t d = 0; d < N; d++) {
            size_t n = count[d];
            count[d] = sum;
            sum += n;
        }
        for (size_t i = 0; i < b->n_sorted; i++)
            b->spare[count[b->sorted[i] >> shift & (N - 1)]++] = b->sorted[i];
        uint32_t *sorted = b->spare;
        b->spare = b->sorted;
        b->sorted = sorted;
    }
}

static void sort_few(struct pf_buckets *b)
{
    for (size_t i = 1; i < b->n_sorted; i++) {
        uint32_t sym = b->sorted[i];
        size_t k = i;
        for (; k > 0 && b->sorted[k - 1] > sym; k--)
            b->sorted[k] = b->sorted[k - 1];
        b->sorted[k] = sym;
    }
}

/* The bucket's entries, from left to right; it is empty then. */
static pf_status take_bucket(struct pf_tok_job *j, uint32_t key)
{
    enum { FEW = 32 };
    struct pf_buckets *b = j->buckets;
    uint32_t last = 0;
    bool sorted = true;
    b->n_sorted = b->at = 0;
    for (uint32_t at = b->heads[key]; at; at = b->lines[at - 1].next) {
        const struct bucket_line *line = &b->lines[at - 1];
        if (b->n_sorted + line->n > b->sorted_cap) {
            size_t cap = b->sorted_cap;
            if (!grow_array(&b->sorted, &cap, b->n_sorted + line->n, sizeof *b->sorted) ||
                !grow_array(&b->spare, &b->sorted_cap, cap, sizeof *b->spare))
                return no_room(j);
        }
        for (uint32_t k = line->n; k-- > 0;) {
            uint32_t i = line->syms[k];
            sorted = sorted && (b->n_sorted == 0 || b->sorted[b->n_sorted - 1] <= i);
            b->sorted[b->n_sorted++] = i;
        }
        last = at;
    }
    if (last) {
        b->lines[last - 1].next = b->unused;
        b->unused = b->heads[key];
        b->heads[key] = 0;
    }
    if (!sorted && b->n_sorted <= FEW)
        sort_few(b);
    else if (!sorted)
        sort_symbols(b);
    return pf_tok_work(j, b->n_sorted);
}

/* ---- Long chunks ------------------------------------------------------------------------------------------- */

/* Pairs up to key `now` belong to the heap, others to their buckets; without buckets all are the heap's. */
static pf_status push(struct pf_tok_job *j, uint32_t i, int64_t now)
{
    uint32_t key = j->syms[i].key;
    return key == PF_NO_PAIR ? PF_OK : (int64_t)key <= now ? heap_push(j, i) : bucket_push(j, i);
}

/* Symbols of a bucket lie far apart in memory. */
static void prefetch(const struct pf_tok_job *j, const struct pf_buckets *b)
{
    enum { FAR = 24, NEAR = 12 };
    if (b->at + FAR < b->n_sorted)
        __builtin_prefetch(&j->syms[b->sorted[b->at + FAR]]);
    if (b->at + NEAR >= b->n_sorted)
        return;
    const struct pf_sym *s = &j->syms[b->sorted[b->at + NEAR]];
    if (s->next != PF_SYM_END)
        __builtin_prefetch(&j->syms[s->next]);
    if (s->prev != PF_SYM_END)
        __builtin_prefetch(&j->syms[s->prev]);
}

/* The next pair of the heap and of the bucket whose turn it is; false: there is none. */
static bool next_pair(struct pf_tok_job *j, int64_t now, uint64_t *entry)
{
    struct pf_buckets *b = j->buckets;
    bool has = b && b->at < b->n_sorted;
    uint64_t first = has ? (uint64_t)now << 32 | b->sorted[b->at] : UINT64_MAX;
    if (j->n_heap && (!has || j->heap[0] <= first)) {
        *entry = heap_pop(j);
        return true;
    }
    if (has) {
        prefetch(j, b);
        b->at++;
    }
    *entry = first;
    return has;
}

static pf_status merge_pairs(struct pf_tok_job *j, int64_t now)
{
    uint64_t entry;
    while (next_pair(j, now, &entry)) {
        uint32_t i = (uint32_t)entry;
        struct pf_sym *s = &j->syms[i];
        if (s->n == 0 || s->key != entry >> 32)
            continue;
        join(j, i);
        PF_TRY(pf_tok_work(j, 1));
        PF_TRY(push(j, i, now));
        if (s->prev != PF_SYM_END)
            PF_TRY(push(j, s->prev, now));
    }
    return PF_OK;
}

static pf_status run_long(struct pf_tok_job *j)
{
    j->n_heap = 0;
    for (uint32_t i = 0; i < j->n_syms; i++)
        PF_TRY(push(j, i, INT64_MAX));
    return merge_pairs(j, INT64_MAX);
}

static pf_status run_very_long(struct pf_tok_job *j)
{
    if (!j->buckets)
        j->buckets = pf_alloc(PF_MEM_TEXT, sizeof *j->buckets);
    if (!j->buckets)
        return no_room(j);
    j->n_heap = 0;
    for (uint32_t i = j->n_syms; i-- > 0;)       /* a list begins with what came last */
        PF_TRY(push(j, i, -1));
    for (size_t key = 0; key < j->buckets->n_keys; key++) {
        PF_TRY(take_bucket(j, (uint32_t)key));
        PF_TRY(merge_pairs(j, (int64_t)key));
    }
    return PF_OK;
}

void pf_merge_free(struct pf_tok_job *j)
{
    struct pf_buckets *b = j->buckets;
    pf_free(j->syms);
    pf_free(j->heap);
    if (!b)
        return;
    pf_free(b->heads);
    pf_free(b->lines);
    pf_free(b->sorted);
    pf_free(b->spare);
    pf_free(b);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------- */

void pf_merge_begin(struct pf_tok_job *j, const char *chunk)
{
    j->chunk = chunk;
    j->n_syms = 0;
}

pf_status pf_merge_add(struct pf_tok_job *j, size_t at, size_t n, int32_t id)
{
    if (j->n_syms == j->sym_cap) {
        uint32_t cap = j->sym_cap ? 2 * j->sym_cap : 256;
        struct pf_sym *syms = pf_realloc(PF_MEM_TEXT, j->syms, cap * sizeof *syms);
        if (!syms)
            PF_FAIL(PF_ENOMEM, "no memory for the %u symbols of a text being tokenized", cap);
        j->syms = syms;
        j->sym_cap = cap;
    }
    uint32_t i = j->n_syms++;
    j->syms[i] = (struct pf_sym){ .at = (uint32_t)at, .n = (uint32_t)n, .prev = i - 1, .next = PF_SYM_END, .id = id };
    if (i > 0)
        j->syms[i - 1].next = i;
    return PF_OK;
}

/* A symbol that is no token, such as half of one that a merge would have made, goes out as its bytes. */
static void emit_symbols(struct pf_tok_job *j)
{
    for (uint32_t i = 0; i != PF_SYM_END; i = j->syms[i].next) {
        const struct pf_sym *s = &j->syms[i];
        if (s->id >= 0 && s->id < j->v->n_tokens)
            pf_tok_emit(j, s->id);
        else
            pf_tok_emit_bytes(j, j->chunk + s->at, s->n);
    }
}

pf_status pf_merge_end(struct pf_tok_job *j)
{
    for (uint32_t i = 0; i < j->n_syms; i++)
        find_pair(j, &j->syms[i]);
    if (j->n_syms > LONG_CHUNK && !j->v->score_keys)         /* those are as large as floats */
        PF_TRY(run_very_long(j));
    else if (j->n_syms > SHORT_CHUNK)
        PF_TRY(run_long(j));
    else
        run_short(j);
    emit_symbols(j);
    return PF_OK;
}

pf_status pf_merge_characters(struct pf_tok_job *j, const char *chunk, size_t n)
{
    pf_merge_begin(j, chunk);
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = pf_utf8_next(chunk + at, n - at, &cp);
        PF_TRY(pf_merge_add(j, at, len, pf_text_find(j->v, chunk + at, len)));
        at += len;
    }
    return pf_merge_end(j);
}

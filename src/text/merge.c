/* Merging: the loop that all three kinds of vocabulary share.
 *
 * A chunk begins as a list of symbols; again and again the adjacent pair with the lowest key becomes one symbol, of
 * equal keys the leftmost. A pair's key depends on the vocabulary: the rank of a merge, the id of the joined
 * token, or its score. Short chunks look for the lowest key in the list; long ones keep a heap with one entry for
 * each pair that ever was. An entry is stale when its symbol is gone or has another key by now; a stale entry whose
 * symbol has the same key again is as good as a fresh one, because it says the same: merge here, now. */

#include "base/pf_mem.h"
#include "text/utf8.h"
#include "text/vocab_impl.h"

enum { SHORT_CHUNK = 40 };

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
    if (key == PF_NO_PAIR)
        return PF_OK;
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

static pf_status run_long(struct pf_tok_job *j)
{
    j->n_heap = 0;
    for (uint32_t i = 0; i < j->n_syms; i++)
        PF_TRY(heap_push(j, i));
    while (j->n_heap) {
        uint64_t entry = heap_pop(j);
        uint32_t i = (uint32_t)entry;
        struct pf_sym *s = &j->syms[i];
        if (s->n == 0 || s->key != entry >> 32)
            continue;
        join(j, i);
        PF_TRY(pf_tok_work(j, 1));
        PF_TRY(heap_push(j, i));
        if (s->prev != PF_SYM_END)
            PF_TRY(heap_push(j, s->prev));
    }
    return PF_OK;
}

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
    if (j->n_syms > SHORT_CHUNK)
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

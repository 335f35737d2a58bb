/* Masks. See masks.h. A walk follows the trie in its order and keeps the position after each byte of the present text.
 * The walk leaves out the subtree of a node at which the output is dead, and takes a subtree whole where each of its
 * bytes leads onward. */
#include "grammar/masks.h"

#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"

enum { WORTH_A_LOOK = 4 };               /* bytes on the longest way down, from which on it may be taken whole */

static size_t n_words(const struct pf_tokens *t)
{
    return (t->n_vocab + 63) / 64;
}

static void accept(const struct pf_tokens *t, struct pf_mask *out, uint32_t from, uint32_t end)
{
    for (uint32_t i = from; i < end; i++)
        out->bits[t->ids[i] / 64] |= UINT64_C(1) << t->ids[i] % 64;
}

static pf_status note_holes(struct pf_mask *out, uint32_t node, unsigned holes)
{
    if (!PF_GROW(out->resumes, out->resume_cap, out->n_resumes))
        PF_FAIL(PF_ENOMEM, "no memory for the mask of a grammar");
    out->resumes[out->n_resumes++] = (struct pf_resume){ node, holes };
    return PF_OK;
}

/* Whether every way from the node on may follow: each of its bytes leads onward, and no position there has holes. */
static pf_status leads_onward(struct pf_runner *r, int32_t position, const struct pf_token_node *node, bool *all)
{
    const struct pf_row *row;
    bool narrow = false;
    PF_TRY(pf_runner_is_narrow(r, position, &narrow));
    *all = node->height < UINT8_MAX && node->starts && !narrow;
    for (unsigned i = 0; i < node->height && *all; i++) {
        const uint64_t wide = UINT64_C(1) << PF_KIND_WIDE;
        PF_TRY(pf_runner_row(r, position, &row));
        *all = (node->kinds & ~wide & ~row->kinds) == 0 && row->onward != 0 && pf_runner_holes(r, row->onward) == 0;
        if (*all && (node->kinds & wide))
            PF_TRY(pf_runner_is_wide(r, position, all));
        if (row->onward == position)
            break;
        position = row->onward;
    }
    return PF_OK;
}

/* Accepts the texts of nodes from .. end - 1 that may follow at the position, which is that of their parent. */
static pf_status walk(struct pf_masks *m, struct pf_runner *r, uint32_t from, uint32_t end, int32_t position,
                      struct pf_mask *out)
{
    const struct pf_token_node *nodes = m->t->nodes;
    if (from < end)
        m->at[nodes[from].depth - 1] = position;
    for (uint32_t i = from; i < end;) {
        const struct pf_token_node *node = &nodes[i];
        int32_t before = m->at[node->depth - 1], next;
        bool all = false;
        PF_TRY(pf_runner_next(r, before, node->byte, &next));
        if (next != 0 && node->height >= WORTH_A_LOOK)
            PF_TRY(leads_onward(r, before, node, &all));
        if (all)
            accept(m->t, out, node->id, nodes[node->skip].id);
        if (all || next == 0) {
            i = node->skip;
            continue;
        }
        m->at[node->depth] = next;
        accept(m->t, out, node->id, nodes[i + 1].id);
        unsigned holes = pf_runner_holes(r, next);
        if (holes && node->skip > i + 1)
            PF_TRY(note_holes(out, i, holes));
        i++;
    }
    return PF_OK;
}

static void drop(struct pf_mask *mask)
{
    pf_free(mask->bits);
    pf_free(mask->resumes);
    *mask = (struct pf_mask){ 0 };
}

/* An empty mask in the place of another. */
static pf_status begin(const struct pf_masks *m, struct pf_mask *mask, int32_t position)
{
    drop(mask);
    mask->position = position;
    mask->bits = pf_alloc_array(PF_MEM_TEXT, n_words(m->t) + 1, sizeof *mask->bits);
    if (!mask->bits)
        PF_FAIL(PF_ENOMEM, "no memory for a mask of %zu tokens", m->t->n_vocab);
    return PF_OK;
}

static pf_status shape_mask(struct pf_masks *m, struct pf_runner *r, int32_t shape, struct pf_mask **out)
{
    struct pf_mask *mask = *out = &m->shapes[shape % PF_N_SHAPES];
    if (mask->bits && mask->position == shape)
        return PF_OK;
    PF_TRY(begin(m, mask, shape));
    pf_status st = walk(m, r, 0, (uint32_t)m->t->n_nodes, shape, mask);
    if (st < 0)
        drop(mask);
    return st;
}

static pf_status resume(struct pf_masks *m, struct pf_runner *r, const struct pf_mask *shape, unsigned hole,
                        int32_t stack, struct pf_mask *out)
{
    const struct pf_token_node *nodes = m->t->nodes;
    int32_t position;
    PF_TRY(pf_runner_return(r, stack, &position));
    for (size_t i = 0; i < shape->n_resumes; i++) {
        uint32_t node = shape->resumes[i].node;
        if (shape->resumes[i].holes >> hole & 1)
            PF_TRY(walk(m, r, node + 1, nodes[node].skip, position, out));
    }
    return PF_OK;
}

static pf_status make(struct pf_masks *m, struct pf_runner *r, int32_t position, struct pf_mask *out)
{
    int32_t shape, holes[PF_MAX_HOLES];
    int n_holes;
    struct pf_mask *of_shape;
    PF_TRY(begin(m, out, position));
    PF_TRY(pf_runner_shape(r, position, &shape, holes, &n_holes));
    if (n_holes < 0)
        return walk(m, r, 0, (uint32_t)m->t->n_nodes, position, out);
    PF_TRY(shape_mask(m, r, shape, &of_shape));
    memcpy(out->bits, of_shape->bits, n_words(m->t) * sizeof *out->bits);
    for (int k = 0; k < n_holes; k++)
        PF_TRY(resume(m, r, of_shape, (unsigned)k, holes[k], out));
    return PF_OK;
}

pf_status pf_masks_get(struct pf_masks *m, struct pf_runner *r, int32_t position, const uint64_t **bits)
{
    struct pf_mask *mask = &m->masks[position % PF_N_MASKS];
    if (!mask->bits || mask->position != position) {
        pf_status st = make(m, r, position, mask);
        if (st < 0) {
            drop(mask);
            return st;
        }
    }
    *bits = mask->bits;
    return PF_OK;
}

void pf_masks_forget(struct pf_masks *m)
{
    for (int i = 0; i < PF_N_SHAPES; i++)
        drop(&m->shapes[i]);
    for (int i = 0; i < PF_N_MASKS; i++)
        drop(&m->masks[i]);
}

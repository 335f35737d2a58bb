/* What lies between two blocks of few rows: norms of the first one's output, additions, and the norm that the next one
 * begins with. It begins with a norm in place of whole rows, which is held with those of heads (b->heads) until it is
 * known that its rows are added to something, or something to them. Steps come in the order of struct cu_between; a
 * step that is none of these starts what is held. */
#include "kernels/cuda/cuda_backend.h"

/* The norm in place of all n floats at y, if it alone is held, and rows are as between's. */
static const struct cu_norm *whole_norm(const struct cuda_backend *b, const float *y, int64_t n)
{
    const struct held_heads *h = &b->heads;
    const struct cu_norm *o = &h->norm[0];
    bool alone = h->n_norms == 1 && h->n_deals == 0 && h->n_ropes == 0;
    bool fits = o->n <= CU_BETWEEN_MOST && o->rows <= CU_VECTOR_ROWS && o->n_each == 0;
    return alone && fits && o->y == y && (int64_t)o->n * o->rows == n ? o : NULL;
}

static void put_norm(struct cu_between *t, const struct cu_norm *o, int k)
{
    t->norms[k] = true;
    t->w[k] = o->w;
    t->eps[k] = o->eps;
}

/* Begins with the held norm, number k of those of y. */
static struct cu_between *begin(struct cuda_backend *b, const struct cu_norm *o, int k)
{
    b->between = (struct cu_between){ .n = o->n, .rows = o->rows, .y = o->y };
    put_norm(&b->between, o, k);
    b->heads.n_norms = 0;
    return &b->between;
}

bool pf_cuda_between_adds(struct cuda_backend *b, float *y, float a, const float *x, int64_t n)
{
    struct cu_between *t = &b->between;
    const struct cu_norm *of_y = whole_norm(b, y, n), *of_x = whole_norm(b, x, n);
    if (x == y)
        return false;
    if (of_y) {
        t = begin(b, of_y, 0);
        t->plus = x;
        t->b = a;
        return true;
    }
    if (of_x)
        t = begin(b, of_x, 1);
    if (t->rows == 0 || (int64_t)t->n * t->rows != n)
        return false;
    if (t->y == x && !t->x) {
        t->x = y;
        t->a = a;
        return true;
    }
    if (t->x != y || t->y != x || !t->copies || t->scales)
        return false;
    t->more = a;
    return t->scales = true;
}

static bool same_rows(const struct cu_between *t, const struct cu_norm *o)
{
    return t->rows > 0 && t->rows == o->rows && t->n == o->n;
}

bool pf_cuda_between_norms(struct cuda_backend *b, const struct cu_norm *o)
{
    struct cu_between *t = &b->between;
    if (!same_rows(t, o) || o->x != o->y || o->y != t->y || t->norms[1] || t->x)
        return false;
    put_norm(t, o, 1);
    return true;
}

bool pf_cuda_between_copies(struct cuda_backend *b, const struct pf_copy *c, int rows)
{
    struct cu_between *t = &b->between;
    bool whole = c->n == t->n && c->n_blocks == 1 && c->from_row == t->n && c->to_row == t->n && rows == t->rows;
    if (!whole || !t->x || c->from != t->x || c->to != t->y || t->copies)
        return false;
    return t->copies = true;
}

bool pf_cuda_between_ends(const struct cuda_backend *b, const struct cu_norm *o)
{
    return same_rows(&b->between, o) && b->between.x == o->x && o->y != o->x;
}

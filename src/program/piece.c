/* See piece.h. Any thread. */
#define _GNU_SOURCE                      /* memmem */
#include "program/piece.h"

#include <string.h>

pf_status piece_add(struct buf *out, const pf_model *m, int32_t tok, unsigned flags)
{
    size_t need = 0;
    buf_reserve(out, 256);
    pf_status st = pf_detokenize(m, &tok, 1, flags, out->p + out->n, out->cap - out->n - 1, &need);
    if (st == PF_ESPACE) {
        buf_reserve(out, need + 1);
        st = pf_detokenize(m, &tok, 1, flags, out->p + out->n, out->cap - out->n - 1, &need);
    }
    out->n += st == PF_OK ? need : 0;
    out->p[out->n] = 0;
    return st;
}

pf_status piece_add_reply(struct buf *out, const pf_model *m, const pf_reply *r, int32_t tok)
{
    size_t before = out->n;
    pf_status st = piece_add(out, m, tok, PF_DETOK_CONTINUE);
    if (st < 0 || out->n > before)
        return st;
    st = piece_add(out, m, tok, PF_DETOK_CONTINUE | PF_DETOK_SPECIAL);
    if (st == PF_OK && !pf_reply_is_mark(r, out->p + before, out->n - before)) {
        out->n = before;
        out->p[before] = 0;
    }
    return st;
}

const char *stop_find(const struct text_list *stops, const char *text, size_t n, const char **which)
{
    const char *first = NULL;
    for (int i = 0; i < stops->n; i++) {
        const char *at = memmem(text, n, stops->v[i], strlen(stops->v[i]));
        if (at && (!first || at < first)) {
            first = at;
            *which = stops->v[i];
        }
    }
    return first;
}

/* Length of the longest end of text that is a proper beginning of mark. */
static size_t overlap(const char *text, size_t n, const char *mark)
{
    size_t longest = strlen(mark) - 1;
    for (size_t k = longest < n ? longest : n; k > 0; k--)
        if (memcmp(text + n - k, mark, k) == 0)
            return k;
    return 0;
}

size_t stop_overlap(const struct text_list *stops, const char *text, size_t n)
{
    size_t most = 0;
    for (int i = 0; i < stops->n; i++) {
        size_t k = overlap(text, n, stops->v[i]);
        most = k > most ? k : most;
    }
    return most;
}

/* SentencePiece-style vocabularies (`llama`): characters merged by score. See vocab.h and merge.c.
 *
 * A fragment gets a space in front (add_space_prefix) and is merged as a whole. Where the vocabulary has no text with a
 * space inside or at the end of a word, no merge can reach across the beginning of a word, so each word, with the
 * spaces before it, is merged on its own: the same ids, in less time and memory. */
#include <string.h>

#include "base/pf_mem.h"
#include "text/vocab_impl.h"

static const char lower_block[] = "\xE2\x96\x81";        /* U+2581, SentencePiece's sign for a space */

size_t pf_spm_raw_text(char *out, const char *p, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; to++) {
        bool is_space = n - i >= 3 && memcmp(p + i, lower_block, 3) == 0;
        out[to] = is_space ? ' ' : p[i];
        i += is_space ? 3 : 1;
    }
    return to;
}

static pf_status merge_chunk(struct pf_tok_job *j, const char *p, size_t n)
{
    PF_TRY(pf_tok_work(j, n));
    return pf_merge_characters(j, p, n);
}

/* Length of the first word with the spaces before it. */
static size_t word_len(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] == ' ')
        i++;
    while (i < n && p[i] != ' ')
        i++;
    return i;
}

static pf_status merge_words(struct pf_tok_job *j, const char *p, size_t n)
{
    if (!j->v->words_begin_with_space)
        return merge_chunk(j, p, n);
    for (size_t at = 0, len; at < n; at += len) {
        len = word_len(p + at, n - at);
        PF_TRY(merge_chunk(j, p + at, len));
    }
    return PF_OK;
}

pf_status pf_spm_fragment(struct pf_tok_job *j, const char *text, size_t len)
{
    char *raw = pf_alloc(PF_MEM_TEXT, len + 1);
    if (!raw)
        PF_FAIL(PF_ENOMEM, "no memory for a copy of %zu bytes of text", len);
    size_t n = 0;
    if (j->v->add_space_prefix)
        raw[n++] = ' ';
    n += pf_spm_raw_text(raw + n, text, len);
    pf_status st = merge_words(j, raw, n);
    pf_free(raw);
    return st;
}

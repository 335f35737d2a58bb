/* Keys and rows of n-gram embeddings. See ngrams.h. */
#include "moe/model/ngrams.h"

#include <stdio.h>

enum { NAME_BYTES = 96, MAX_TAPS = 16, MAX_WIDTH = 1 << 20 };

static pf_status read_int(const pf_gguf *file, const char *arch, const char *suffix, int min, int max, int *out)
{
    char name[NAME_BYTES];
    int64_t value = 0;
    snprintf(name, sizeof name, "%s.%s", arch, suffix);
    PF_TRY(pf_gguf_int(file, name, min, max, &value));
    *out = (int)value;
    return PF_OK;
}

static pf_status read_numbers(const pf_gguf *file, const char *arch, const char *suffix, int n, int64_t min,
                              int64_t max, uint64_t *out)
{
    char name[NAME_BYTES];
    int64_t value[PF_MAX_NGRAM_HEADS];
    bool found;
    snprintf(name, sizeof name, "%s.%s", arch, suffix);
    PF_TRY(pf_gguf_ints_opt(file, name, n, min, max, value, &found));
    if (!found)
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(file));
    for (int i = 0; i < n; i++)
        out[i] = (uint64_t)value[i];
    return PF_OK;
}

pf_status pf_ngrams_read(const pf_gguf *file, const char *arch, int n_layer, int n_embd, struct pf_ngrams *out)
{
    char name[NAME_BYTES];
    int64_t layer;
    bool found;
    struct pf_ngrams g = { .layer = -1 };
    *out = g;
    snprintf(name, sizeof name, "%s.ple.layers", arch);
    PF_TRY(pf_gguf_ints_opt(file, name, 1, 0, n_layer - 1, &layer, &found));
    if (!found)
        return PF_OK;
    g.layer = (int)layer;
    PF_TRY(read_int(file, arch, "ple.ngram_size", 2, PF_MAX_NGRAM, &g.n));
    PF_TRY(read_int(file, arch, "ple.heads_per_ngram", 1, PF_MAX_NGRAM_HEADS / (g.n - 1), &g.n_heads));
    PF_TRY(read_int(file, arch, "ple.conv_kernel", 1, MAX_TAPS, &g.taps));
    PF_TRY(read_int(file, arch, "ple.eos_token_id", 0, INT32_MAX, &g.eos));
    PF_TRY(read_int(file, arch, "embedding_length_per_layer_input", 1, MAX_WIDTH, &g.width));
    PF_TRY(read_numbers(file, arch, "ple.layer_multipliers", g.n, 0, INT64_MAX, g.mult));
    PF_TRY(read_numbers(file, arch, "ple.head_offsets", pf_ngram_rows(&g), 0, INT32_MAX, g.offset));
    PF_TRY(read_numbers(file, arch, "ple.head_vocab_sizes", pf_ngram_rows(&g), 1, INT32_MAX, g.size));
    if ((int64_t)pf_ngram_rows(&g) * g.width != n_embd)
        PF_FAIL(PF_EFORMAT, "%d rows of %d for each token do not make a row of %d, in %s", pf_ngram_rows(&g), g.width,
                n_embd, pf_gguf_path(file));
    *out = g;
    return PF_OK;
}

uint64_t pf_ngrams_end(const struct pf_ngrams *g)
{
    uint64_t end = 0;
    for (int i = 0; i < pf_ngram_rows(g); i++)
        end = g->offset[i] + g->size[i] > end ? g->offset[i] + g->size[i] : end;
    return end;
}

void pf_ngrams_at(const struct pf_ngrams *g, const int32_t *tokens, int64_t pos, int32_t *rows)
{
    uint64_t mix = (uint64_t)tokens[pos] * g->mult[0];
    bool ended = false;
    for (int j = 1; j < g->n; j++) {
        ended = ended || pos < j || tokens[pos - j] == g->eos;
        mix ^= (uint64_t)(ended ? g->eos : tokens[pos - j]) * g->mult[j];
        for (int i = (j - 1) * g->n_heads; i < j * g->n_heads; i++)
            rows[i] = (int32_t)(mix % g->size[i] + g->offset[i]);
    }
}

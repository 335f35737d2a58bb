/* What other ways of computing are compared with: a text of made-up tokens, evaluated piece by piece on the CPU alone
 * with the weights mapped. */
#ifndef TEST_EXPECTED_H
#define TEST_EXPECTED_H

#include <stdlib.h>
#include <string.h>

#include "open_session.h"

/* Fills tokens, of which piece i has those from begin_of(i) to begin_of(i + 1). Returns the logits after each piece
 * [n_pieces][*n_vocab]; the caller frees them. A model that cannot be opened ends the program. */
static float *expected_logits(const char *path, int32_t *tokens, size_t n_tokens, size_t (*begin_of)(int piece),
                              int n_pieces, size_t *n_vocab)
{
    struct pf_model_opts o;
    pf_model *m = NULL;
    pf_model_opts_init(&o);
    o.device = -1;
    if (pf_model_open(&m, path, &o) < 0) {
        CHECK(false, "%s", pf_last_error());
        exit(check_status());
    }
    size_t n = *n_vocab = (size_t)pf_model_info(m)->n_vocab;
    float *logits = malloc((size_t)n_pieces * n * sizeof *logits);
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u % n);
    pf_session *s = open_session(m, (int64_t)n_tokens);
    for (int i = 0; s && i < n_pieces; i++) {
        size_t from = begin_of(i);
        CHECK(pf_session_eval(s, tokens + from, begin_of(i + 1) - from, 0) == PF_OK, "%s", pf_last_error());
        memcpy(logits + (size_t)i * n, pf_session_logits(s), n * sizeof *logits);
    }
    pf_session_close(&s);
    pf_model_close(&m);
    return logits;
}

#endif

/* Constrained output: grammars and matchers (pf_grammar, pf_matcher of pfmoe.h), as the rooms of the engine see them.
 *
 *     GBNF, regular expression, JSON Schema (languages/)
 *         --> rules (rules.h) --> pushdown automaton (automaton.h) --> positions, as they are met (runner.h)
 *         --> masks over the vocabulary (masks.h)
 *
 * A pf_grammar is immutable but for a list, under a lock, of workers that no matcher uses. A worker is a runner with
 * its masks: what one matcher has worked out serves the next one of the grammar. A matcher has its worker to itself,
 * and is used by one thread at a time. The tokens outlive the grammar, the grammar its matchers. */
#ifndef PF_GRAMMAR_H
#define PF_GRAMMAR_H

#include "grammar/masks.h"

/* Compiles a text into r: one of languages/languages.h. */
typedef pf_status pf_language_fn(struct pf_rules *r, const char *text, size_t n, int32_t *root);
pf_status pf_grammar_compile(pf_grammar **out, const struct pf_tokens *t, pf_language_fn *language, const char *text,
                             size_t n);

/* Makes a grammar from rules, which are used up and still the caller's to free. */
pf_status pf_grammar_make(pf_grammar **out, const struct pf_tokens *t, struct pf_rules *r, int32_t root);

/* Whether the token may follow; of end tokens: whether the output may end. Changes nothing. */
pf_status pf_matcher_fits(pf_matcher *mt, int32_t tok, bool *fits);

#endif

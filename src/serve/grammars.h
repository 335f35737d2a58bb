/* Grammars that requests have in common, compiled once: an agent sends the same tools with every request. The latest
 * few hundred are kept, those that are refused too, as long as texts and what they are compiled to are not too much
 * memory; a request holds what it uses. Any thread; compiling takes a while, so it is done on workers, never on the
 * scheduler's thread. */
#ifndef PF_SERVE_GRAMMARS_H
#define PF_SERVE_GRAMMARS_H

#include <stddef.h>

#include "pfmoe.h"

struct grammar_ref;

/* Hold the grammar of a schema, of GBNF, or of a reply; to be dropped, whatever its status. */
struct grammar_ref *grammars_schema(const pf_model *m, const char *text, size_t n);
struct grammar_ref *grammars_gbnf(const pf_model *m, const char *text, size_t n);
struct grammar_ref *grammars_reply(const pf_model *m, const struct pf_reply_shape *o);

/* NULL: it was refused. */
const pf_grammar *grammar_of(const struct grammar_ref *g);
/* What compiling came to, *why one sentence after a failure; borrowed from g. */
pf_status grammar_status(const struct grammar_ref *g, const char **why);
/* NULL-safe. Matchers of the grammar must be closed. */
void grammar_drop(struct grammar_ref **g);

/* Before the model is closed, when no request holds any. */
void grammars_forget(void);

#endif

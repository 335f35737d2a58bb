/* Regular expressions, and texts that several of them and a length allow. */
#ifndef PF_PATTERN_H
#define PF_PATTERN_H

#include "grammar/expr.h"

/* Reads a regular expression into r, a fresh one with whole_chars: *rule of it matches what the expression does;
 * search: all texts in which there is a match. */
pf_status pf_regex_read(struct pf_rules *r, const char *text, size_t n, bool search, int32_t *rule);

#endif

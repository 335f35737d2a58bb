/* Regular expressions, and texts that several of them and a length allow. */
#ifndef PF_PATTERN_H
#define PF_PATTERN_H

#include "languages/expr.h"

/* Reads a regular expression into r, a fresh one with whole_chars: *rule of it matches what the expression does;
 * search: all texts in which there is a match. */
pf_status pf_regex_read(struct pf_rules *r, const char *text, size_t n, bool search, int32_t *rule);

enum { PF_MAX_PATTERNS = 6 };

struct pf_pattern {
    const struct pf_rules *r;            /* with whole_chars */
    int32_t rule;
};

/* Puts the texts that all n patterns match and that have min to max characters (max PF_EXPR_MANY: any number) between
 * two states: as they stand between the quotes of a JSON string, or as they are. */
enum pf_pattern_form { PF_PATTERN_ESCAPED, PF_PATTERN_PLAIN };
pf_status pf_pattern_emit(const struct pf_pattern *patterns, size_t n, uint32_t min, uint32_t max,
                          enum pf_pattern_form form, struct pf_rules *r, int32_t from, int32_t to);

/* Whether all n patterns match the text. PF_EUNSUPPORTED: finding out takes too much work, which counts as r's. */
pf_status pf_pattern_matches(const struct pf_pattern *patterns, size_t n, const char *text, size_t len,
                             struct pf_rules *r, bool *matches);

/* A pattern of all texts in which `text` (ASCII, at most 32 bytes) is not; into r, as pf_regex_read. */
pf_status pf_pattern_without(struct pf_rules *r, const char *text, int32_t *rule);

/* A pattern of all texts but n given ones; into r, as pf_regex_read. */
struct pf_text {
    const char *p;
    size_t n;
};
pf_status pf_pattern_other(struct pf_rules *r, const struct pf_text *texts, size_t n, int32_t *rule);

#endif

/* The languages of grammars: texts to rules (grammar/rules.h).
 *
 *     gbnf.c    GBNF                        regex.c     regular expressions       expr.c  the tree that both read into
 *     schema*.c JSON Schema                 pattern.c   patterns of strings, several at once
 *
 * Each function compiles a text of n bytes into r and sets *root to a rule of it; r is the caller's to free, after a
 * failure, too. Any bytes may be in a text. Any thread. */
#ifndef PF_LANGUAGES_H
#define PF_LANGUAGES_H

#include "grammar/rules.h"

pf_status pf_gbnf_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root);
pf_status pf_regex_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root);
pf_status pf_schema_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root);
/* How values are written where it is not JSON. Numbers, lists and white space are JSON's. */
struct pf_notation {
    const char *quote;                   /* around strings; PF_TOKEN_MARK in front of one that is a token of its own */
    bool        escapes;                 /* strings are as in JSON, but for \/; false: as they are, without the quote */
    bool        bare_names;              /* names of objects that are identifiers stand without quotes */
    bool        as_call;                 /* the value is an object, written from behind the bracket of a call on:
                                            name=value, name=value) */
    const char *null, *no, *yes;
};
/* PF_EUNSUPPORTED also where values of the schema cannot be written so. */
pf_status pf_schema_notation_rules(struct pf_rules *r, const char *text, size_t n, const struct pf_notation *w,
                                   int32_t *root);
/* Rules for the value of one property of a schema; its references are to the whole schema. */
pf_status pf_schema_property_rules(struct pf_rules *r, const char *text, size_t n, const char *property,
                                   size_t n_property, int32_t *root);

#endif

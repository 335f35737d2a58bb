/* JSON Schema to rules: what its files share.
 *
 *     conjunction   schemas that a value must fulfil all at once: what allOf, $ref beside other keywords, and
 * properties
 *                   named by several of those come to. Each conjunction that is met becomes a rule.
 *
 *         schema.c         reading, references, conjunctions                       schema_number.c  ranges of numbers
 *         schema_choice.c  alternatives
 *         schema_value.c   values of each type, strings                            schema_parts.c   arrays and objects
 *         schema_notation.c   constants and names, in JSON and in other notations
 *         schema_known.c   what is known of parts, equal values
 *         schema_texts.c   constants' texts as one automaton
 *
 * Conjunctions wait in a list and are written to rules one after the other, so that schemas may refer to one another in
 * circles. Everything but the rules lives in the arena of a JSON reader and dies with the compilation. One thread.
 *
 * A part may be in very many conjunctions. So looking for a value does not go through its list, a part that was
 * checked is not checked again, and what is left is counted: pf_schema_get and pf_json_equal count themselves, a loop
 * that calls neither and makes no states counts what it does (pf_rules_work). */
#ifndef PF_SCHEMA_H
#define PF_SCHEMA_H

#include "languages/languages.h"
#include "languages/pattern.h"
#include "text/jinja.h"

enum pf_json_types {
    PF_JSON_NULL = 1, PF_JSON_BOOL = 2, PF_JSON_INTEGER = 4, PF_JSON_FRACTION = 8, PF_JSON_STRING = 16,
    PF_JSON_ARRAY = 32, PF_JSON_OBJECT = 64, PF_JSON_NUMBER = PF_JSON_INTEGER | PF_JSON_FRACTION, PF_JSON_ANY = 127
};

struct pf_member {                       /* of a conjunction */
    const struct pf_jval *schema;        /* an object */
    uint32_t chosen;                     /* bits: an alternative of anyOf (1), of oneOf (2) is in the conjunction */
};
struct pf_conjunction {
    struct pf_member *v;                 /* in the order in which they were found, no schema twice */
    size_t n, cap;
    bool   never;                        /* false is among them */
};

struct pf_waiting {                      /* a conjunction and its rule */
    struct pf_conjunction c;
    int32_t rule;
};

/* What strings of a conjunction are without its enum: n patterns and a length. The patterns are the owner's to free,
 * one by one, after a failure, too. */
struct pf_strings {
    struct pf_rules r[PF_MAX_PATTERNS];
    int32_t  rules[PF_MAX_PATTERNS];
    size_t   n;
    uint32_t min, max;
};

/* What an output may be, each a whole one; in the reader's arena. */
struct pf_texts {
    struct pf_jstr *v;
    size_t n, cap;
};

enum { PF_MOST_MEMBERS = 200 };          /* of a conjunction */

struct pf_known {                        /* of a part of the schema */
    const void *of;
    bool        checked;
    uint32_t   *table;                   /* of a list in which a value was looked for: number + 1, by value */
    size_t      mask;
};

enum pf_special { PF_WITHOUT_QUOTE, PF_IDENTIFIER };

struct pf_schema {
    struct pf_rules *r;
    const struct pf_notation *w;
    struct pf_strings special;           /* patterns of any schema in this notation, by pf_special; none in JSON */
    struct pf_tmpl   t;                  /* of the reader: it has the key of hashes */
    struct pf_jrun   run;
    struct pf_jval   root;
    struct pf_waiting *waiting;          /* all that were met; [0, done) are written */
    size_t n_waiting, waiting_cap, done;
    uint32_t *table;                     /* number in waiting + 1, by schemas */
    size_t mask;
    struct pf_known *known;              /* open addressing by address */
    size_t n_known, known_mask;
    int32_t space, character, string, integer, number, any;      /* rules */
};

/* ---- schema.c ---- */

/* The keyword's value, or NULL. */
const struct pf_jval *pf_schema_get(const struct pf_schema *s, const struct pf_jval *schema, const char *keyword);

/* A failure at a schema's keyword: PF_EUNSUPPORTED or PF_EINVAL; names both with the JSON pointer. */
pf_status pf_schema_fail(const struct pf_schema *s, pf_status st, const struct pf_jval *schema, const char *keyword,
                         const char *why);

/* Adds a schema (an object, true or false), what it refers to, and its allOf. */
pf_status pf_schema_add(struct pf_schema *s, struct pf_conjunction *c, const struct pf_jval *schema);
/* Adds a member alone, at the end, unless it is there. */
pf_status pf_schema_push(struct pf_schema *s, struct pf_conjunction *c, struct pf_member member);
/* The rule of a conjunction. */
pf_status pf_schema_rule(struct pf_schema *s, const struct pf_conjunction *c, int32_t *rule);

/* A whole number of 0 or more: the largest (or least) that any member gives for the keyword; otherwise left as it is.
 * */
pf_status pf_schema_count(const struct pf_schema *s, const struct pf_conjunction *c, const char *keyword, bool largest,
                          uint32_t *count);

/* ---- schema_known.c ---- */

/* Whether the part was asked for before: then it was checked, and fine. */
pf_status pf_schema_is_checked(struct pf_schema *s, const void *part, bool *before);
/* Whether a list of the schema has such a value. */
pf_status pf_schema_has(struct pf_schema *s, const struct pf_jlist *list, const struct pf_jval *v, bool *has);
/* Whether no value of a list is there twice. */
pf_status pf_schema_differ(struct pf_schema *s, const struct pf_jlist *list, bool *differ);
bool      pf_json_equal(const struct pf_schema *s, const struct pf_jval *a, const struct pf_jval *b);

/* ---- schema_choice.c ---- */

/* Ways from `from` to `to` for each alternative of a member's anyOf or oneOf, by its bit of pf_member, beside the
 * others. */
pf_status pf_schema_choice(struct pf_schema *s, const struct pf_conjunction *c, size_t at, const char *keyword,
                           uint32_t bit, int32_t from, int32_t to);

/* ---- schema_value.c ---- */

/* The types that all members allow by their type. Where no member has one and `guess` is set: those that the members'
 * keywords are about; values of other types would do, but nobody who writes minLength means them. */
pf_status pf_schema_types(const struct pf_schema *s, const struct pf_conjunction *c, bool guess, unsigned *types);
/* The texts of the constants that a conjunction without alternatives allows; *are: it has constants. */
pf_status pf_schema_constants(struct pf_schema *s, const struct pf_conjunction *c, struct pf_texts *texts, bool *are);
/* Values of a conjunction without alternatives. */
pf_status pf_schema_value(struct pf_schema *s, const struct pf_conjunction *c, int32_t from, int32_t to);
/* At most PF_MAX_PATTERNS - 2 patterns. */
pf_status pf_strings_of(const struct pf_schema *s, const struct pf_conjunction *c, struct pf_strings *out);
pf_status pf_strings_add(struct pf_strings *x, const char *regex, size_t n);
/* Adds the regular expression of a schema's keyword; a failure names them. */
pf_status pf_strings_add_from(const struct pf_schema *s, const struct pf_jval *schema, const char *keyword,
                              struct pf_jstr regex, struct pf_strings *x);
/* Such a string with its quotes; `anew`: by states of its own even if it is any string. */
pf_status pf_strings_emit(struct pf_schema *s, const struct pf_strings *x, bool anew, int32_t from, int32_t to);
/* Such a string that is an identifier, without quotes. */
pf_status pf_strings_emit_bare(struct pf_schema *s, const struct pf_strings *x, int32_t from, int32_t to);
pf_status pf_strings_match(const struct pf_schema *s, const struct pf_strings *x, struct pf_jstr text, bool *matches);
void      pf_strings_free(struct pf_strings *x);

/* ---- schema_notation.c ---- */

extern const struct pf_notation pf_json_notation;

pf_status pf_schema_specials(struct pf_schema *s);
/* A constant's text. */
pf_status pf_schema_literal(struct pf_schema *s, const struct pf_jval *v, struct pf_jstr *text);
/* A property's name; `bare`: without quotes if it is an identifier. */
pf_status pf_schema_name(struct pf_schema *s, struct pf_jstr name, bool bare, int32_t from, int32_t to);

/* ---- schema_texts.c ---- */

pf_status pf_texts_add(struct pf_schema *s, struct pf_texts *t, struct pf_jstr text);
/* A way for each text; they are sorted. */
pf_status pf_texts_emit(struct pf_schema *s, struct pf_texts *t, int32_t from, int32_t to);

/* ---- schema_number.c ---- */

pf_status pf_schema_number(struct pf_schema *s, const struct pf_conjunction *c, bool whole, int32_t from, int32_t to);
pf_status pf_schema_number_fits(const struct pf_schema *s, const struct pf_conjunction *c, const struct pf_jval *v,
                                bool *fits);

/* ---- schema_parts.c ---- */

pf_status pf_schema_array(struct pf_schema *s, const struct pf_conjunction *c, int32_t from, int32_t to);
/* as_call: as the arguments of a call, from behind its bracket on. */
pf_status pf_schema_object(struct pf_schema *s, const struct pf_conjunction *c, bool as_call, int32_t from, int32_t to);

#endif

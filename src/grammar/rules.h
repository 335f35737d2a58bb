/* The rules of a grammar while it is being read: what the three languages (GBNF, regular expressions, JSON Schema) are
 * turned into, and what automaton.c makes the automaton of.
 *
 *     rule    start --edges--> ... --> final       each rule is a nondeterministic automaton of its own
 *     edge    one byte of a range | nothing | a whole rule
 *
 * Characters are edges of UTF-8 bytes, so an output is always well-formed UTF-8 where its grammar speaks of characters.
 * Errors are sticky: after the first (no memory, too many states) every call does nothing, numbers returned are 0, and
 * status says what happened; the message is that of the thread that called. One thread at a time. */
#ifndef PF_RULES_H
#define PF_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pfmoe.h"

enum {
    PF_GRAMMAR_MAX_TEXT   = 1 << 20,     /* bytes of a schema, a grammar or an expression */
    PF_GRAMMAR_MAX_STATES = 1 << 18,
    PF_GRAMMAR_MAX_EDGES  = 1 << 20,
    PF_GRAMMAR_MAX_NEST   = 200,         /* brackets within brackets */
    PF_GRAMMAR_MAX_WORK   = 1 << 24,     /* pf_rules_work: some tenths of a second */
    PF_MAX_CODE_POINT     = 0x10FFFF
};

enum pf_edge_kind { PF_EDGE_EMPTY, PF_EDGE_RULE, PF_EDGE_BYTES };

struct pf_edge {
    int32_t  from, to;
    int32_t  rule;                   /* PF_EDGE_RULE */
    uint32_t lo, hi;                 /* PF_EDGE_BYTES: lo to hi, both included */
    uint8_t  kind;
};

struct pf_rule {
    int32_t start, final;
};

/* Code points lo to hi, both included. */
struct pf_chars {
    uint32_t lo, hi;
};

struct pf_rules {
    struct pf_edge *edges;
    struct pf_rule *rules;
    size_t n_edges, edge_cap, n_rules, rule_cap;
    int32_t n_states;
    uint64_t work;                   /* done on the way that left no state or edge, about 20 ns a piece */
    bool whole_chars;                /* edges take code points instead of bytes, and no rule calls another: for
                                        pattern.c */
    pf_status status;
};

void pf_rules_free(struct pf_rules *r);
void pf_rules_fail(struct pf_rules *r, pf_status st);        /* st < 0; the first one stays */

/* Counts what a text makes the reader do beyond its length: values compared, keywords looked up, patterns tried. Fails
 * where it is more than PF_GRAMMAR_MAX_WORK; returns the status. */
pf_status pf_rules_work(struct pf_rules *r, uint64_t n);

int32_t pf_rules_state(struct pf_rules *r);
int32_t pf_rules_rule(struct pf_rules *r);                   /* with a start, a final state and no way between them */

void pf_rules_empty(struct pf_rules *r, int32_t from, int32_t to);
void pf_rules_call(struct pf_rules *r, int32_t from, int32_t rule, int32_t to);
void pf_rules_bytes(struct pf_rules *r, int32_t from, uint8_t lo, uint8_t hi, int32_t to);
void pf_rules_text(struct pf_rules *r, int32_t from, const char *text, size_t n, int32_t to);

/* One character of a set: n ranges in any order. Surrogates are no characters and are left out. */
void pf_rules_chars(struct pf_rules *r, int32_t from, const struct pf_chars *set, size_t n, int32_t to);

/* One character of a set as it stands in a JSON string: a quote, a backslash and controls have one escaped form. */
void pf_rules_json_chars(struct pf_rules *r, int32_t from, const struct pf_chars *set, size_t n, int32_t to);

/* Room for one more of n elements of `size` bytes in *p, with *cap; false: no memory. For the files of this room. */
bool pf_grow(void **p, size_t *cap, size_t n, size_t size);
#define PF_GROW(p, cap, n) pf_grow((void **)&(p), &(cap), (n), sizeof *(p))

#endif

/* The pushdown automaton of a grammar: immutable, any thread.
 *
 *     first[s] .. empty edges .. calls[s] .. calls of rules .. bytes[s] .. edges of bytes .. first[s + 1]
 *
 * What holds, so that running it needs no care for endless loops or dead ends (automaton.c makes it so):
 *  - From every state the end of its rule can be reached; a rule that is called matches something.
 *  - A rule that is called takes at least one byte; where it could match nothing, an empty edge stands beside the call.
 *  - No rule calls itself before it takes a byte: left recursion has become loops. So there is an order of rules in
 *    which those that are called before the first byte come after their callers.
 *  - A call after which nothing follows in its rule (tail) needs to remember nothing: right recursion takes no stack.
 * */
#ifndef PF_AUTOMATON_H
#define PF_AUTOMATON_H

#include "grammar/rules.h"

struct pf_step {
    int32_t to;
    int32_t rule;                    /* of calls */
    uint8_t lo, hi;                  /* of edges of bytes */
    bool    tail;                    /* of calls */
};

struct pf_automaton {
    int32_t  n_states, n_rules;
    uint32_t *first, *calls, *bytes; /* [n_states + 1] */
    struct pf_step *steps;
    bool    *final;                  /* [n_states] the end of a rule */
    int32_t *starts;                 /* [n_rules] */
    int32_t *order;                  /* [n_rules] rank of a rule, see above */
    int32_t  root;                   /* a rule that nothing but the start of an output enters */
};

/* PF_EINVAL when the root matches no text at all. r is used up, and still the caller's to free. On failure what is in
 * *a is the caller's to free, too. */
pf_status pf_automaton_make(struct pf_automaton *a, struct pf_rules *r, int32_t root);
void      pf_automaton_free(struct pf_automaton *a);
size_t    pf_automaton_bytes(const struct pf_automaton *a);

#endif

/* Expressions as they are read: what GBNF and regular expressions have in common. A tree in arrays.
 *
 *     node    child: its first part, or -1        next: the part after it in the same node, or -1
 *
 * Reading is bounded in depth by PF_GRAMMAR_MAX_NEST, so walks down a tree may recurse. Errors are sticky as in
 * rules.h: after one, nodes are 0. One thread at a time. */
#ifndef PF_EXPR_H
#define PF_EXPR_H

#include "grammar/rules.h"

enum pf_expr_kind {
    PF_EXPR_CHARS,                   /* one character of a set */
    PF_EXPR_RULE,
    PF_EXPR_ALL, PF_EXPR_ANY,        /* its parts one after the other; one of its parts */
    PF_EXPR_REPEAT,                  /* its part min to max times */
    PF_EXPR_BEGIN, PF_EXPR_END       /* regular expressions: ^ and $ */
};

enum { PF_EXPR_MANY = UINT32_MAX };  /* a max: any number of times */

struct pf_node {
    uint8_t  kind;
    int32_t  child, next;
    int32_t  rule;                   /* PF_EXPR_RULE */
    uint32_t min, max;               /* PF_EXPR_REPEAT */
    uint32_t first, n;               /* PF_EXPR_CHARS: chars[first .. first + n), sorted, none touching another */
};

struct pf_expr {
    struct pf_node  *nodes;
    struct pf_chars *chars;
    size_t n_nodes, node_cap, n_chars, char_cap;
    pf_status status;
};

void    pf_expr_free(struct pf_expr *x);
int32_t pf_expr_node(struct pf_expr *x, enum pf_expr_kind kind, int32_t child);
/* Appends a node to the parts of `to`; *last is the last one so far, or -1. */
void    pf_expr_append(struct pf_expr *x, int32_t to, int32_t *last, int32_t node);
int32_t pf_expr_repeat(struct pf_expr *x, int32_t child, uint32_t min, uint32_t max);
void    pf_expr_add_chars(struct pf_expr *x, uint32_t lo, uint32_t hi);     /* to the set that is being read */
/* A node of the set that was read since n_chars was `first`: sorted, and with `negated` all other characters. */
int32_t pf_expr_set(struct pf_expr *x, size_t first, bool negated);

/* Puts the expression between two states. */
void pf_expr_emit(const struct pf_expr *x, int32_t node, struct pf_rules *r, int32_t from, int32_t to);

/* ---- Reading texts ---- */

struct pf_reader {
    const char *text, *p, *end;
    const char *what;                /* what is being read, for messages: "the grammar" */
    int depth;
};

/* PF_EINVAL, naming line and column of rd->p. */
pf_status pf_reader_fail(const struct pf_reader *rd, const char *why);

/* {m}, {m,}, {m,n} or {,n}, at the brace. */
pf_status pf_reader_counts(struct pf_reader *rd, uint32_t *min, uint32_t *max);
/* n hexadecimal digits. */
pf_status pf_reader_hex(struct pf_reader *rd, int n, uint32_t *value);
/* A character; PF_EINVAL where the text is no UTF-8. */
pf_status pf_reader_char(struct pf_reader *rd, uint32_t *c);

/* *, +, ? or counts behind a node, if one is there; lazy: a ? may follow, which changes no texts. */
pf_status pf_expr_read_repetition(struct pf_expr *x, struct pf_reader *rd, bool lazy, int32_t *node);
/* A class of characters, at its [. one reads an end of a range by the language's escapes; *is_class: it was a class of
 * its own, which is in the set already. */
typedef pf_status pf_class_char_fn(void *ctx, uint32_t *c, bool *is_class);
pf_status pf_expr_read_class(struct pf_expr *x, struct pf_reader *rd, pf_class_char_fn *one, void *ctx, int32_t *node);

#endif

/* The texts of a vocabulary as a trie, for asking of all tokens at once what an automaton accepts. Immutable; any
 * thread.
 *
 *     nodes in the order of a walk, the root left out      depth  1 2 3 2 1 ...
 *     node.skip      the node after the last one below it: where to go on when nothing below is accepted
 *     ids[node.id .. node[1].id)    the tokens whose text ends here; all below are ids[node.id .. node[skip].id)
 *     node.kinds     a bit for each kind of byte (pf_byte_kind) on the ways from here down
 *
 * Tokens that are text: ordinary ones, those of single bytes, and white space. Control tokens, and others that stand
 * for something, are none; a grammar that wants one asks for its spelling behind a byte that no text has
 * (PF_TOKEN_MARK). Texts of more than PF_TOKEN_MAX_BYTES are left out: no output needs them. */
#ifndef PF_TOKENS_H
#define PF_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pfmoe.h"
#include "text/vocab.h"

enum { PF_TOKEN_MAX_BYTES = 512, PF_TOKEN_MARK = 0xFF };

struct pf_token_node {
    uint64_t kinds;
    uint32_t skip, id;
    uint16_t depth;                      /* bytes of the text that ends here */
    uint8_t  byte;
    bool     starts;                     /* a character begins here */
    uint8_t  height;                     /* bytes of the longest way down, this node's among them; at most 255 */
};

struct pf_tokens {
    const pf_vocab *vocab;               /* borrowed */
    struct pf_token_node *nodes;         /* [n_nodes + 1]; the last has depth 0 and ends the walk */
    int32_t *ids;                        /* [n_ids] tokens that are text, by their texts */
    int32_t *ends;                       /* [n_ends] tokens that end an answer */
    struct pf_token_mark {
        int32_t id;
        uint32_t at, n;                  /* in spellings */
    } *marks;                            /* [n_marks] tokens that are no text and end nothing, by their ids */
    char   *spellings;                   /* each behind PF_TOKEN_MARK */
    size_t n_nodes, n_ids, n_ends, n_marks, n_vocab;
};

pf_status pf_tokens_open(struct pf_tokens **out, const pf_vocab *v);
void      pf_tokens_close(struct pf_tokens **t);         /* NULL-safe */

/* The bytes that a grammar sees of a token: its text, or a mark's spelling; *n 0: none. Borrowed from t. */
const char *pf_tokens_text(const struct pf_tokens *t, int32_t id, size_t *n);

/* Kinds of bytes: several that make up a character, and ones that break UTF-8. */
enum { PF_KIND_WIDE = 0, PF_KIND_BROKEN = 63 };

/* 0 to 62: bytes that grammars mostly treat alike are of one kind. */
static inline unsigned pf_byte_kind(uint8_t b)
{
    if (b >= 0x80)
        return 0;
    if (b < 0x20 || b == 0x7F)
        return b == '\n' ? 1 : b == '\t' ? 2 : 3;
    if (b >= '0' && b <= '9')
        return b == '0' ? 4 : 5;
    if (b >= 'a' && b <= 'z')
        return b <= 'f' ? 6 : 7;
    if (b >= 'A' && b <= 'Z')
        return b <= 'F' ? 8 : 9;
    /* punctuation and the space: 33 kinds */
    unsigned before = b < '0' ? ' ' : b < 'A' ? ':' - 16 : b < 'a' ? '[' - 23 : '{' - 29;
    return 10u + b - before;
}

#endif

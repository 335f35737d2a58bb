/* One value in the notations that models write, read byte by byte and written as JSON.
 *
 *     JSON       {"a": [1, true, null]}
 *     Python     {'a': [1, True, None]}      and the arguments of a call: a=1, b="x")
 *     Gemma's    {a:[1,true,null],b:<|"|>text<|"|>}
 *
 * All are taken wherever one is, since models mix them; only escapes differ. What is written is JSON as Python's
 * json.dumps writes it, and becomes valid when pf_literal_close is called, at any time: a key is held until its value
 * begins, a number or word until it is whole. Text is UTF-8 on both sides. Bounds: depth, a key's length, a word's. */
#ifndef PF_REPLY_LITERAL_H
#define PF_REPLY_LITERAL_H

#include <stdint.h>

#include "reply/bytes.h"

enum { PF_LITERAL_DEPTH = 128, PF_LITERAL_WORD = 400, PF_LITERAL_KEY = 1 << 16 };

enum pf_literal_result { PF_LITERAL_MORE, PF_LITERAL_DONE, PF_LITERAL_BAD };

struct pf_literal {
    struct pf_run *out;              /* the caller's */
    struct pf_run  key;              /* comma, key and colon whose value has not begun */
    int       state;
    bool      python;                /* escapes as Python has them */
    bool      in_key;                /* the string that is read is a key */
    char      quote;                 /* that ends the string; 0: Gemma's */
    int       n_matched;             /* bytes of Gemma's quote that were read */
    int       n_digits;              /* of an escape, still to come */
    uint32_t  code, high;            /* that escape; a high surrogate that waits for its low one */
    int       depth;
    uint8_t   frames[PF_LITERAL_DEPTH];          /* what closes it, and whether it holds something */
    int       n_word;
    char      word[PF_LITERAL_WORD];
};

/* Begins a value that is written to *out. */
void pf_literal_init(struct pf_literal *l, struct pf_run *out, bool python);
/* Begins behind the opening parenthesis of a call. */
void pf_literal_init_call(struct pf_literal *l, struct pf_run *out);

/* Reads on; *used: how many of the n bytes belong to the value. BAD: the byte at *used cannot stand there. A number or
 * word at the top is done at the byte behind it, which is not used. */
enum pf_literal_result pf_literal_feed(struct pf_literal *l, const char *s, size_t n, size_t *used);
/* No more bytes come: whether the value was whole. */
bool pf_literal_finish(struct pf_literal *l);
/* Writes what closes the open string, lists and objects, and forgets a value that was not whole. */
void pf_literal_close(struct pf_literal *l);
void pf_literal_free(struct pf_literal *l);

/* Appends text as the inside of a JSON string. */
void pf_json_escape(struct pf_run *out, const char *s, size_t n);
/* Appends what the JSON string s (with its quotes, as a literal was written) stands for. */
void pf_json_unescape(struct pf_run *out, const char *s, size_t n);

#endif

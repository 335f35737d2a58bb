/* The texts of tokens as an answer is made of them, and the strings that stop one. */
#ifndef PF_PROGRAM_PIECE_H
#define PF_PROGRAM_PIECE_H

#include "pfmoe.h"
#include "program/opts.h"

/* Appends a token's text, by flags of pf_detokenize. */
pf_status piece_add(struct buf *out, const pf_model *m, int32_t tok, unsigned flags);
/* Appends a token's text as pf_reply_feed wants it: of control tokens only the reply's marks. */
pf_status piece_add_reply(struct buf *out, const pf_model *m, const pf_reply *r, int32_t tok);

/* Where the first stop string begins in a text, and which it is; NULL: there is none. */
const char *stop_find(const struct text_list *stops, const char *text, size_t n, const char **which);
/* Bytes at the text's end that may begin a stop string. */
size_t stop_overlap(const struct text_list *stops, const char *text, size_t n);

#endif

/* From a model's tokens to what a person reads: reasoning told apart from the answer (pf_reply), stop strings obeyed,
 * whole UTF-8 sequences only.
 *
 *     bytes of a token -> pf_reply -> (answer) stop strings -> whole characters, made harmless -> show
 *
 * Each stage holds back what may become a marker, a stop string or a character, and nothing more. */
#ifndef PF_CLI_REPLY_H
#define PF_CLI_REPLY_H

#include "program/opts.h"
#include "pfmoe.h"

enum part { PART_ANSWER, PART_REASONING };

/* Called with whole UTF-8 as it comes. */
typedef void show_fn(void *ctx, enum part part, const char *text, size_t n);

struct reply {
    const pf_model *m;
    const char *family;              /* pf_reply_family's word */
    const struct text_list *stops;
    bool     to_terminal;            /* text is shown cleaned (buf.h); else as the answer's bytes */
    show_fn *show;
    void    *show_ctx;

    struct buf answer, reasoning;    /* text that was shown, with control characters as the model wrote them */
    bool     stopped;                /* a stop string came */

    pf_reply  *parser;               /* private from here on; NULL: a text is completed */
    struct buf held;                 /* of the answer: may begin a stop string or end inside a character */
};

/* prompt: the conversation that the model answers; NULL: it completes a text, of which every byte is the answer. */
void reply_begin(struct reply *r, const struct buf *prompt);
/* Whether the next token belongs to the answer, and not to reasoning. */
bool reply_in_answer(const struct reply *r);
pf_status reply_token(struct reply *r, int32_t tok);
void reply_end(struct reply *r);     /* lets go of what was held back */
void reply_free(struct reply *r);

#endif

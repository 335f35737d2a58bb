/* From a model's tokens to what a person reads: reasoning told apart from the answer, stop strings obeyed, whole
 * UTF-8 sequences only.
 *
 *     bytes of a token -> which part are we in? -> (answer) stop strings -> whole characters, made harmless -> show
 *
 * Parts are told by <think> ... </think> (also when the prompt already ended inside), [THINK] ... [/THINK], and
 * harmony's channels, of which only "final" is the answer. Each stage holds back what may become a marker, a stop
 * string or a character, and nothing more. */
#ifndef PF_CLI_REPLY_H
#define PF_CLI_REPLY_H

#include "opts.h"
#include "pfmoe.h"

enum part { PART_ANSWER, PART_REASONING };

/* Called with whole UTF-8 as it comes. */
typedef void show_fn(void *ctx, enum part part, const char *text, size_t n);

struct reply {
    const pf_model *m;
    const struct stop_list *stops;
    bool     to_terminal;            /* text is shown cleaned (buf.h); else as the answer's bytes */
    show_fn *show;
    void    *show_ctx;

    struct buf answer, reasoning;    /* text that was shown, with control characters as the model wrote them */
    bool     stopped;                /* a stop string came */

    int        state, pair;          /* private from here on */
    struct buf raw;                  /* bytes whose part is not known yet */
    struct buf header;               /* harmony: the channel's name */
    struct buf held[2];              /* per part: may begin a stop string or end inside a character */
    bool       skip_space;           /* at the beginning of a part */
};

/* prompt: the conversation that the model answers; NULL: it completes a text, of which every byte is the answer. */
void reply_begin(struct reply *r, const struct buf *prompt);
pf_status reply_token(struct reply *r, int32_t tok);
void reply_end(struct reply *r);     /* lets go of what was held back */
void reply_free(struct reply *r);

#endif

/* From a choice's tokens to deltas: reasoning, content and calls told apart (pf_reply), stop strings obeyed in the
 * content, whole characters. One thread, the scheduler's.
 *
 *     token -> bytes -> pf_reply -> content -> stop strings -> delta
 *                               `-> reasoning, calls -------> delta */
#ifndef PF_SERVE_ANSWER_H
#define PF_SERVE_ANSWER_H

#include "serve/job.h"

struct answer {
    const pf_model *m;
    struct job     *job;
    int             choice;
    pf_reply       *reply;           /* NULL: a text is completed, of which every byte is the answer */
    struct buf      piece;           /* of a text: bytes that are no whole character yet */
    struct buf      held;            /* content that may begin a stop string */
    bool            stopped;         /* by a stop string, or by the last call there may be */
    pf_matcher     *shape;           /* holds the content once it has begun, or all of the reply; NULL: it is free */
    pf_matcher     *arguments;       /* holds those of a call; NULL: they are free, or there are none */
    bool            arguments_done;  /* of the call whose arguments are being written */
    struct buf      recent;          /* the last bytes of the reply: arguments may have begun a few tokens ago */
};

/* family: pf_reply_family's word. */
pf_status answer_begin(struct answer *a, const pf_model *m, const char *family, struct job *j, int choice);
/* What holds the next token; NULL: nothing. */
pf_matcher *answer_matcher(const struct answer *a);
/* The request's field that it comes from. */
const char *answer_held_by(const struct answer *a);
/* s: the session that the token was sampled from. */
pf_status answer_token(struct answer *a, const pf_session *s, int32_t tok);
/* Whether nothing may follow, and how that counts in *why. */
bool      answer_stopped(const struct answer *a, enum finish *why);
pf_status answer_end(struct answer *a, enum finish why);
void      answer_free(struct answer *a);

#endif

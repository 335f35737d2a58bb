/* From a choice's tokens to deltas: parts told apart, stop strings obeyed, whole characters. One thread, the
 * scheduler's. */
#ifndef PF_SERVE_ANSWER_H
#define PF_SERVE_ANSWER_H

#include "cli/reply.h"
#include "serve/job.h"

struct answer {
    struct job  *job;
    int          choice;
    struct reply reply;
};

void answer_begin(struct answer *a, const pf_model *m, struct job *j, int choice);
/* s: the session that the token was sampled from. */
pf_status answer_token(struct answer *a, const pf_session *s, int32_t tok);
bool answer_stopped(const struct answer *a);         /* by a stop string */
void answer_end(struct answer *a, enum finish why);
void answer_free(struct answer *a);

#endif

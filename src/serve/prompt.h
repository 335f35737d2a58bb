/* From a request's messages or text to the tokens of its prompt. */
#ifndef PF_SERVE_PROMPT_H
#define PF_SERVE_PROMPT_H

#include "serve/job.h"

struct prompt_opts {
    const pf_model *m;
    int64_t     n_ctx;
    const char *family;              /* of replies: pf_reply_family's word */
    const char *template_name, *template_text;       /* instead of the model's own, or NULL */
};

/* Fills req.prompts, j->choices and what the reply is held to. False: *t says why not; its text is valid until the
 * thread's next failure, and as long as the job. */
bool prompt_make(struct job *j, const struct prompt_opts *o, struct trouble *t);

/* The tokens of a text, an array that the caller frees. */
pf_status prompt_tokenize(const pf_model *m, const char *text, size_t n, unsigned flags, int32_t **tok, size_t *n_tok);

#endif

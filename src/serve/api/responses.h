/* OpenAI's responses. */
#ifndef PF_SERVE_RESPONSES_H
#define PF_SERVE_RESPONSES_H

#include "serve/job.h"

extern const struct protocol openai_responses;

bool responses_read(struct job *j, struct reader *r, struct json body);

#endif

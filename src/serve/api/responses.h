/* OpenAI's responses. */
#ifndef PF_SERVE_RESPONSES_H
#define PF_SERVE_RESPONSES_H

#include "serve/job.h"

extern const struct protocol openai_responses;
extern const struct protocol openai_responses_count;     /* read alone: for counting a prompt's tokens */

bool responses_read(struct job *j, struct reader *r, struct json body);
/* As responses_read, of a request that may leave out the model. */
bool responses_read_count(struct job *j, struct reader *r, struct json body);

#endif

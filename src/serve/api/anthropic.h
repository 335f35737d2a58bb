/* Anthropic's messages. */
#ifndef PF_SERVE_ANTHROPIC_H
#define PF_SERVE_ANTHROPIC_H

#include "serve/job.h"

extern const struct protocol anthropic_messages;
extern const struct protocol anthropic_count;        /* read alone: for counting a prompt's tokens */

bool anthropic_read(struct job *j, struct reader *r, struct json body);
/* As anthropic_read, of a request that may leave out how long the answer may be. */
bool anthropic_read_count(struct job *j, struct reader *r, struct json body);

void anthropic_error(struct buf *out, const struct trouble *t);

#endif

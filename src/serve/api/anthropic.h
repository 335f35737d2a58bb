/* Anthropic's messages. */
#ifndef PF_SERVE_ANTHROPIC_H
#define PF_SERVE_ANTHROPIC_H

#include "serve/job.h"

extern const struct protocol anthropic_messages;
extern const struct protocol anthropic_count;        /* read alone: for counting a prompt's tokens */

void anthropic_error(struct buf *out, const struct trouble *t);

#endif

/* OpenAI's chat and text completions, and what the other protocols take over from them. */
#ifndef PF_SERVE_OPENAI_H
#define PF_SERVE_OPENAI_H

#include "serve/job.h"

extern const struct protocol openai_chat, openai_text;

bool openai_read_chat(struct job *j, struct reader *r, struct json body);
bool openai_read_text(struct job *j, struct reader *r, struct json body);
/* Fields of a struct request that other protocols have in the same words. */
bool openai_read_format(struct reader *r, struct json v, void *to);
bool openai_read_grammar(struct reader *r, struct json v, void *to);
bool openai_read_effort(struct reader *r, struct json v, void *to);
bool openai_read_tool_choice(struct reader *r, struct json v, void *to);
bool openai_read_parallel(struct reader *r, struct json v, void *to);

void openai_error(struct buf *out, const struct trouble *t);
void openai_put_timings(struct buf *out, const struct usage *u);

#endif

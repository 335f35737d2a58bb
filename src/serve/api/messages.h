/* Building a request's conversation and tools, which all protocols do in their own words. Everything lives in the job's
 * arena. */
#ifndef PF_SERVE_MESSAGES_H
#define PF_SERVE_MESSAGES_H

#include "serve/job.h"

enum { MOST_PARTS = 4096, MOST_CALLS = 256, MOST_TOOLS = 1024, NAME_BYTES = 256, ID_BYTES = 256 };

/* A message, the last one from now on: content "" and the rest NULL until message_end. The others add to it. */
struct pf_message *message_begin(struct job *j, const char *role);
/* Appends to the content, with a newline between the parts. */
void message_text(struct job *j, const char *text, size_t n);
/* arguments: JSON text, or any other text. */
void message_call(struct job *j, const char *id, const char *name, const char *arguments, size_t n);
void message_end(struct job *j);

/* Adds a tool in the form that templates read; description may be NULL, parameters a missing value. tools_end makes
 * req.tools_json of all of them. */
void tool_add(struct job *j, const char *name, const char *description, struct json parameters);
void tools_end(struct job *j);

/* Fields of stop strings, to a struct stop_list: one more, or an array of all. */
bool read_stop_string(struct reader *r, struct json v, void *to);
bool read_stop_list(struct reader *r, struct json v, void *to);

/* Appends text as a JSON string. */
void quote(struct buf *out, const char *text);

#endif

/* Building a request's conversation and tools, which all protocols do in their own words. Everything lives in the job's
 * arena. */
#ifndef PF_SERVE_MESSAGES_H
#define PF_SERVE_MESSAGES_H

#include "serve/job.h"

enum { MOST_PARTS = 4096, MOST_CALLS = 256, NAME_BYTES = 256, ID_BYTES = 256 };

/* A message, the last one from now on: content "" and the rest NULL until message_end. The others add to it. */
struct pf_message *message_begin(struct job *j, const char *role);
/* Appends to the content, with a newline between the parts. */
void message_text(struct job *j, const char *text, size_t n);
/* arguments: JSON text, or any other text. */
void message_call(struct job *j, const char *id, const char *name, const char *arguments, size_t n);
void message_end(struct job *j);

/* What a protocol calls the parts of a conversation that all of them have. */
struct dialect {
    const char *messages;                /* the member that holds them */
    bool (*read)(struct reader *r, struct json messages, struct job *j);
    const char *tool_type;               /* of tools that the client runs */
    bool        type_may_miss;
    bool        skips_tools;             /* tools of another type are left out; else they are refused */
    bool        goes_on;                 /* an answer goes on with a last message that is the assistant's text */
    const char *function;                /* the member of a tool with its name and schema; NULL: the tool itself */
    const char *schema;                  /* the member with a tool's schema */
};

/* Reads messages and tools, req.tools_json in the form that templates read. Either value may be missing. */
bool read_conversation(struct reader *r, const struct dialect *d, struct json messages, struct json tools,
                       struct job *j);

/* Fields of stop strings, to a struct text_list: one more, or an array of all. */
bool read_stop_string(struct reader *r, struct json v, void *to);
bool read_stop_list(struct reader *r, struct json v, void *to);

/* Appends text as a JSON string. */
void quote(struct buf *out, const char *text);

#endif

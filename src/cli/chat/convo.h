/* A conversation: what was said, in order, from where on it still fits the context, and what it was made with.
 *
 *     system | msgs[0] user | msgs[1] assistant | ... | msgs[first] user | ... | msgs[n - 1]
 *                                                      `-- the model sees the system message and these
 *
 * It owns its strings. Messages before `first` are kept: they are saved and counted, only not shown to the model. */
#ifndef PF_CLI_CONVO_H
#define PF_CLI_CONVO_H

#include "program/io/buf.h"
#include "pfmoe.h"

enum { MOST_SETTINGS = 32, SETTING_BYTES = 32 };

/* The model's file, and settings that are not their defaults, as /set takes them. A loaded one is checked by whoever
 * uses it: nothing is known of it but its size. */
struct made_with {
    char *model;                     /* NULL: not known */
    int   n;
    struct { char name[SETTING_BYTES], value[SETTING_BYTES]; } settings[MOST_SETTINGS];
};

struct convo {
    struct made_with made;           /* as of the last save or load */
    char  *system;                   /* NULL: none */
    struct pf_message *msgs;         /* reasoning is kept for the record */
    size_t n, first;
};

void convo_system(struct convo *c, const char *text);              /* "" removes it */
void convo_add(struct convo *c, const char *role, const char *content, const char *reasoning);
void convo_pop(struct convo *c);                                   /* the last message */
bool convo_last_is(const struct convo *c, const char *role);
void convo_clear(struct convo *c);                                 /* all but the system message */
void convo_free(struct convo *c);

/* Leaves the oldest turn that the model still sees out of its view; false if only the last is left. */
bool convo_drop_oldest(struct convo *c);

/* The messages that the model sees, without reasoning: *n of them, an array freed by the caller whose strings belong to
 * the conversation. */
struct pf_message *convo_view(const struct convo *c, size_t *n);

/* One JSON object. A save is complete or does not happen; it replaces a file that holds something only if `replace`
 * says so and there are messages to put there. A load replaces all of *c or nothing; U+0000 becomes U+FFFD, as strings
 * here cannot hold it. False: the reason is in *why. */
bool convo_save(const struct convo *c, const char *path, bool replace, struct buf *why);
bool convo_load(struct convo *c, const char *path, struct buf *why);

#endif

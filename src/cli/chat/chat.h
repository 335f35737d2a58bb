/* The chat, in files:
 *
 *     repl.c --+-- line.c        the prompt: editing, history, pasting, Tab (complete.c says what could follow)
 *              +-- commands.c    what begins with /: chatfile.c has chats in files, compose.c what goes into messages
 *              +-- answer.c      the conversation's prompt, the answer as it comes
 *              `-- convo.c       what was said
 *
 * The session holds no knowledge of the conversation: each prompt is rendered whole, and the engine keeps what its
 * beginning has in common with the last one. One thread; Ctrl-C counts in `interrupts`. */
#ifndef PF_CLI_CHAT_H
#define PF_CLI_CHAT_H

#include "cli/chat/convo.h"
#include "cli/engine.h"
#include "cli/page.h"

struct chat {
    struct settings s;
    struct engine   e;
    struct convo    convo;
    struct outcome  last;
    bool       answered;         /* last holds something */
    int        interrupts;       /* one stops an answer or is warned about, the next leaves; a message begins anew */
    struct page page;            /* how it is laid out */
    int        shown;            /* the part being shown, -1: none yet */
    bool       leave;
    struct buf attached;         /* files that go behind the next message */
    char      *taken_back;       /* the last message that was: where /edit begins; or NULL */
};

/* ---- answer.c ---- */

/* A show_fn; ctx: the chat. */
void chat_show(void *ctx, enum part part, const char *text, size_t n);
/* Answers the user's message that ends the conversation. False if nothing came of it; the conversation is as it was. */
bool chat_answer(struct chat *c);
/* Adds a message with what is attached, and answers it. Where nothing comes of it, the message is taken back. */
void chat_send(struct chat *c, const char *text);
/* Takes the user's message that ends the conversation back. */
void chat_take_back(struct chat *c);
/* Shows the conversation's last message and its answer. */
void chat_show_last(const struct chat *c);

/* ---- commands.c ---- */

/* line: "/name argument"; it is changed. */
void command_run(struct chat *c, char *line);
/* Name i = 0, 1, .. of a command, or of an alias; NULL past the last. *arg: what stands behind it, as in /help. */
const char *command_name(int i, const char **arg);

/* ---- compose.c ---- */

/* A path as it was typed, with ~ for the home folder, and - for a file of that name; the caller frees it. */
char *path_of(const char *typed);
void cmd_read(struct chat *c, char *arg);
void cmd_edit(struct chat *c, char *arg);

/* ---- chatfile.c ---- */

void cmd_save(struct chat *c, char *arg);
void cmd_save_over(struct chat *c, char *arg);
void cmd_keep(struct chat *c, char *arg);
void cmd_keep_over(struct chat *c, char *arg);
void cmd_load(struct chat *c, char *arg);
/* --load: reads the file before the model is opened, which it may name; ends the program where it cannot. Afterwards,
 * with the engine open, chat_begin_loaded brings the rest and says what was loaded. */
void chat_load_first(struct chat *c, const char *path);
void chat_begin_loaded(struct chat *c, const char *path);

/* ---- repl.c ---- */

/* Ends the program if the model has no chat template that works. */
void chat_need_template(const struct engine *e);

#endif

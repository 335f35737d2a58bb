/* The prompt: line editing, history and pasting. line.c is the only file that knows libedit.
 *
 * One editor at a time, used from one thread. While a line is read the terminal is in the editor's hands and brackets
 * what is pasted; otherwise it is as it was. */
#ifndef PF_CLI_LINE_H
#define PF_CLI_LINE_H

#include "program/io/buf.h"

enum line_result {
    LINE_TEXT,
    LINE_END,            /* Ctrl-D, or nothing more to read */
    LINE_INTERRUPT,      /* Ctrl-C at an empty prompt */
    LINE_DROPPED         /* Ctrl-C with something typed, which is gone */
};

/* What Tab could put in: whole texts for the place that begins `from` bytes into the line. All zero: nothing. */
struct candidates {
    size_t from, n;
    char **v;                            /* freed, with what it holds, by line.c */
};
/* Told the line up to the cursor. */
typedef void complete_fn(const char *line, struct candidates *out);

void line_open(complete_fn *complete);
void line_close(void);

/* Replaces *out by what was entered; it holds newlines where several lines were pasted, and none at its end. */
enum line_result line_read(const char *prompt, struct buf *out);

/* Adds a message to the history and to its file ($XDG_STATE_HOME/pfmoe/history, ~/.local/state/pfmoe/history). */
void line_remember(const char *message);

#endif

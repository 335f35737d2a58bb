/* Standard output and standard error of pfmoe-run, and the signals that concern them.
 *
 * Standard output carries the answer and nothing else (out.h); notes, progress and errors go to standard error. */
#ifndef PF_PROGRAM_TERM_H
#define PF_PROGRAM_TERM_H

#include "program/io/buf.h"
#include "program/io/out.h"

struct pf_session;

enum style { STYLE_PLAIN, STYLE_DIM, STYLE_BOLD, STYLE_CODE, STYLE_PROMPT };

/* Finds out what is a terminal, whether colour is wanted (NO_COLOR, TERM=dumb), and prepares for SIGBUS and SIGPIPE. */
void term_init(void);
bool term_out_is_tty(void);
bool term_err_is_tty(void);
bool term_out_color(void);
int  term_columns(void);                          /* of the terminal that standard output is, now; 0: not known */
const char *term_style(enum style s);             /* what switches it on; "" where colour is off */
/* Characters are told from bytes, and their columns known, from now on: the user's locale, else C.UTF-8. */
void term_locale(void);

void out_style(enum style s);                     /* nothing where colour is off */

/* A note on standard error, clean (buf.h), dim on a terminal. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The bar on standard error; a pf_progress_fn. */
void progress_bar(void *ctx, uint64_t done, uint64_t total);

/* From now on Ctrl-C cancels what s computes and is remembered; NULL: Ctrl-C only is remembered. At `patience`
 * unanswered ones the program ends with status 1. */
void interrupt_watch(struct pf_session *s, int patience);
bool interrupted(void);
void interrupt_forget(void);

/* A descriptor that can be read from once a signal has come (whichever thread took it), until term_woken drains it; a
 * handler calls term_wake. interrupt_watch makes it; -1 if there can be none. */
int  term_wake_fd(void);
void term_wake(void);
void term_woken(void);

#endif

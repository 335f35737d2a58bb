/* The modes of pfmoe-run besides talking: each prints on standard output and returns the exit status, or ends the
 * program with a message. Formats of the modes are kept stable, since tests and scripts read them. */
#ifndef PF_CLI_MODES_H
#define PF_CLI_MODES_H

#include "program/opts.h"

int mode_score(const struct settings *s);          /* check.c */
int mode_tokenize(const struct settings *s);
int mode_detokenize(const struct settings *s);
int mode_splits(const struct settings *s);
int mode_render(const struct settings *s);         /* render.c */
int mode_parse(const struct settings *s);          /* parse.c */
int mode_info(const struct settings *s);           /* info.c */
int mode_plan(const struct settings *s);           /* show_plan.c */
int mode_models(const char *word, const char *name);   /* models.c: pull, list, rm; name NULL: none was given */
int mode_oneshot(const struct settings *s);        /* oneshot.c */
int mode_chat(const struct settings *s);           /* chat/repl.c */

#endif

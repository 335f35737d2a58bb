/* Opening the model and the session that the settings ask for. Failing ends the program; a model that is open then
 * stays open, since the system takes back what it holds. */
#ifndef PF_PROGRAM_LOAD_H
#define PF_PROGRAM_LOAD_H

#include "program/opts.h"
#include "pfmoe.h"

/* -m, or the bundled model. Borrowed for the program's life. */
const char *load_path(const struct settings *s);

/* Ends the program if there is no such file, which opening it finds only later. */
void        load_need_file(const struct settings *s);

/* Refuses output files that cannot be written; load_model does so, too. To be called before a model is fetched. */
void        load_check(const struct settings *s);
pf_model   *load_model(const struct settings *s, bool vocab_only);
/* load_model, but what the library refuses is a status (pf_last_error says why; *m is NULL then) and no end. */
pf_status   load_model_try(const struct settings *s, bool vocab_only, pf_model **m);
pf_session *load_session(const struct settings *s, pf_model *m, int64_t n_ctx);
pf_status   load_session_try(const struct settings *s, pf_model *m, int64_t n_ctx, pf_session **session);
void        load_model_opts(const struct settings *s, struct pf_model_opts *o);
void        load_session_opts(const struct settings *s, int64_t n_ctx, struct pf_session_opts *o);

/* What pf_model_plan says of the model and one of so many sessions, with nothing measured. */
pf_status load_plan(const struct settings *s, int n_sessions, struct pf_plan *p);

/* Reads the weights now with a bar, where standard error is a terminal. Elsewhere nobody sees why it takes so long, and
 * one short answer needs a part of them: they are read when first used. */
void      load_weights(pf_model *m);
pf_status load_weights_try(pf_model *m);
/* Reads them now wherever standard error goes, for a program that answers again and again: with a bar, or else a line
 * at the end. */
void      load_weights_always(pf_model *m);

/* Writes the reports that were asked for, and what was learned; in front of closing the model. */
void load_report(const struct settings *s, pf_model *m);

/* Of several processes: whether this one computes for the first; its whole work, which returns the program's status. */
bool load_follows(const struct settings *s);
int  load_follow(const struct settings *s);

/* Ends the program with the library's last error, after "what: " unless it is NULL. */
void die_failed(const char *what) __attribute__((noreturn));

#endif

/* The parts of what reads options, private to opts.c and to these files:
 *
 *     opts.c --+-- opt_table.c  rows and defaults
 *              +-- opt_value.c  text to values
 *              +-- opt_live.c   what a running chat may change
 *              +-- opt_help.c   rows to text
 *
 * One thread: the sentence of a refusal and the program that runs are static. */
#ifndef PF_PROGRAM_OPT_PARTS_H
#define PF_PROGRAM_OPT_PARTS_H

#include "program/opt_row.h"

enum { MOST_ROWS = 160 };                           /* of a program's table: pfmoe-run's and its own */
enum { ACT_HELP = 1, ACT_VERSION, ACT_MAN };        /* values of `at` for ACTION */

extern const char *const opt_group_titles[];

/* Row i of pfmoe-run's table; NULL past its last. */
const struct opt *opt_of_run(int i);
/* Row i of a program's table, its own rows being the last; NULL: it does not take row i. */
const struct opt *opt_row(const struct opts_program *program, int i);
int opt_n_rows(const struct opts_program *program);
void opt_defaults(struct settings *s);
/* The other name of a variable, into out; "" if it has none. */
void opt_alias(const char *env, char *out, size_t cap);

/* Sets the value of a row. False: *why says why not, until the next call. */
bool opt_parse(const struct opt *o, struct settings *s, const char *value, const char **why);

/* Appends text with lines of at most `width`, each after the first indented. */
void opt_add_wrapped(struct buf *out, const char *text, int indent, int width);
void opt_print_group(const struct opts_program *p, int group);
void opt_print_help(const struct opts_program *p);
void opt_print_man(const struct opts_program *p);

#endif

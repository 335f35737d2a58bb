/* One row of a table of options, and the program that the table is for. pfmoe-run's table is in opt_table.c; another
 * program takes rows of it and adds its own, whose values lie in a struct that begins with struct settings:
 *
 *     opt_table.c | rows that `takes` says yes to | + own rows -> flags, variables, --help, --help-man */
#ifndef PF_PROGRAM_OPT_ROW_H
#define PF_PROGRAM_OPT_ROW_H

#include "program/opts.h"

/* WHOLES and CHOICES are lists with commas between, into a struct whole_list; PAIRS appends two numbers to one, TEXTS a
 * text to a struct text_list: those may be given several times. */
enum kind { FLAG, TEXT, WHOLE, REAL, CHOICE, TRACE_FILE, LORAS, TEXTS, WHOLES, PAIRS, CHOICES, ACTION };

enum { GROUP_WHAT, GROUP_SERVER, GROUP_TALK, GROUP_ANSWER, GROUP_MACHINE, GROUP_EXPERTS, GROUP_DRAFT,
       GROUP_LORA, GROUP_REPORT, GROUP_CHECK, GROUP_HELP, GROUP_HIDDEN };

struct opt {
    int         group;
    char        letter;              /* 0: none */
    const char *name;
    enum kind   kind;
    const char *arg;                 /* the value's name in the help; for CHOICE the choices, with | between. A
                                        WHOLE whose arg begins with auto| takes "auto" as UNSET */
    size_t      at;                  /* offset in struct settings, or in the struct that begins with it */
    double      min, max;            /* WHOLE, REAL, WHOLES, PAIRS */
    const char *env;                 /* NULL: none. PFMOE_POSTFETCH_* and PFMOE_EXPERT_TRACE_* are also read with
                                        LLAMA_ in the place of PFMOE_ */
    bool        live;                /* may be changed with /set */
    const char *help;
};

enum { MOST_OWN_ROWS = 32 };

struct opts_program {
    const char *name, *usage;
    const char *operands;                        /* where a word goes that is no option's, for a message */
    bool      (*takes)(const struct opt *o);     /* which rows of pfmoe-run's table; NULL: all */
    const struct opt *own;                       /* at most MOST_OWN_ROWS */
    int         n_own;
    size_t      words;                           /* n_words words that are no option's go to const char *[] there */
    int         n_words;
    void      (*more)(void);                     /* prints what stands behind the options in --help; NULL: what holds
                                                    where tokens are sampled */
};

/* As opts_read, for program p. s: the struct that p's own rows have their offsets in; its own members hold their
 * defaults before. */
void opts_read_of(const struct opts_program *p, struct settings *s, int argc, char **argv);

#endif

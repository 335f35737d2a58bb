/* Options as users of other engines type them: those that mean an option of ours are taken for it, and those that mean
 * nothing here are answered with what to use. */
#ifndef PF_PROGRAM_FOREIGN_H
#define PF_PROGRAM_FOREIGN_H

#include <getopt.h>

/* Rewrites argv, whose words are options of getopt's lists longs and letters; may end the program with a sentence. */
void foreign_options(int argc, char **argv, const struct option *longs, const char *letters);

#endif

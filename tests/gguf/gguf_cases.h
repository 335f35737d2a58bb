/* For tests: small files, each with one thing wrong, and small files that are odd but right. */
#ifndef GGUF_CASES_H
#define GGUF_CASES_H

#include "gguf_build.h"

struct bad_case {
    int no;                          /* a kind of damage; several cases may share one */
    const char *name;
    void (*make)(struct buf *b);
    pf_status status;                /* status of opening */
    const char *says, *says_too;     /* texts that the message must contain */
};
extern const struct bad_case bad_cases[];
extern const int n_bad_cases;

struct odd_case {
    const char *name;
    void (*make)(struct buf *b);
    const char *warns;               /* text in the first warning; NULL: no warning may come */
};
extern const struct odd_case odd_cases[];
extern const int n_odd_cases;

#endif

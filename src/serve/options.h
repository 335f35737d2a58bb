/* The command line of pfmoe-serve: rows of pfmoe-run's table (program/opt_table.c) and its own. */
#ifndef PF_SERVE_OPTIONS_H
#define PF_SERVE_OPTIONS_H

#include "program/opts.h"

struct serve_settings {
    struct settings run;                 /* first: the rows that both programs have */
    const char *host, *api_key, *cors, *cache_dir;
    int64_t port, n_slots, cache_mb, queue, body_mb, pause_ms;
    bool    quiet;
};

/* As opts_read (program/opts.h). */
void options_read(struct serve_settings *s, int argc, char **argv);

#endif

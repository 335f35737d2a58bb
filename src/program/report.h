/* Reports of a run besides its answer: timeline, statistics, and which experts tokens went to. Shared by pfmoe-run and
 * the bench; text for the eye goes to standard error.
 *
 *     pf_model_opts <- report_model_opts -> open the model -> report_begin -> run -> report_end -> close the model
 *
 * A function that returns false has set *why to one sentence, which is valid until the next call or the library's next
 * failure. One run at a time. */
#ifndef PF_PROGRAM_REPORT_H
#define PF_PROGRAM_REPORT_H

#include <stdio.h>

#include "pfmoe.h"

struct report {
    const char *timeline;                /* file, or NULL */
    bool        stats;
    const char *routing;                 /* a trace to take picks from, or NULL */
    /* the tracer; 0 or 1 */
    int         trace_stats, trace_logging, trace_verbose;
    const char *trace_output;            /* file, of a name that says its form */
};

/* By the name's ending: .json, .csv, .svg or .trace. */
enum report_form { REPORT_NONE, REPORT_JSON, REPORT_CSV, REPORT_SVG, REPORT_TRACE };
enum report_form report_form_of(const char *path);

void report_model_opts(const struct report *r, struct pf_model_opts *o);
/* Whether all files that are asked for can be written: to be asked before the model is opened. */
bool report_allows(const struct report *r, const char **why);
bool report_begin(const struct report *r, pf_model *m, const char **why);

/* The machine's limits: bytes of weights, and tokens, a second. 0: not known. */
struct report_limits {
    double memory_bytes_s, tok_s;
};
/* Prints and writes what was asked for. limits may be NULL. */
bool report_end(const struct report *r, pf_model *m, const struct report_limits *limits, const char **why);

/* What drafts did, a line; nothing where there were none. The tokens that were evaluated, wrong drafts left out. */
void     report_drafts(FILE *f, const struct pf_stats *s);
uint64_t report_tokens(const struct pf_stats *s);

/* Where experts were found, and what the GPU did with them: the lines of the page of statistics that are about that. */
void report_experts(FILE *f, const struct pf_stats *s);

/* How often experts were picked (activity.c): counts of every layer that has experts, into f;
 * false on a failed write. */
struct activity {
    int       n_layers, n_experts;
    int      *layer;                     /* [n_layers] its number in the model */
    uint64_t *counts;                    /* [n_layers][n_experts] */
    uint64_t *total;                     /* [n_layers] */
    uint64_t  n_tokens;
    const char *model;
};
bool activity_read(struct activity *a, pf_model *m);
void activity_free(struct activity *a);
void activity_json(const struct activity *a, FILE *f);
void activity_csv(const struct activity *a, FILE *f);
void activity_svg(const struct activity *a, FILE *f);
void activity_table(const struct activity *a, FILE *f);

#endif

/* See report.h. */
#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TIMELINE_SPANS = 1 << 18 };       /* 14 MB; some 20 to 200 tokens */

static char why_not[512];

void report_model_opts(const struct report *r, struct pf_model_opts *o)
{
    o->timeline_spans = r->timeline ? TIMELINE_SPANS : 0;
}

static bool put(void *ctx, const void *data, size_t bytes)
{
    return fwrite(data, 1, bytes, ctx) == bytes;
}

/* Creates path and has `fill` write it. */
typedef bool fill_fn(pf_model *m, FILE *f);

static bool write_file(const char *path, pf_model *m, fill_fn *fill)
{
    FILE *f = fopen(path, "wbe");
    if (!f) {
        snprintf(why_not, sizeof why_not, "cannot create %s: %s", path, strerror(errno));
        return false;
    }
    bool ok = fill(m, f);
    if (fclose(f) != 0 || !ok) {
        snprintf(why_not, sizeof why_not, "cannot write %s: %s", path, strerror(errno));
        return false;
    }
    return true;
}

static bool fill_timeline(pf_model *m, FILE *f)
{
    return pf_timeline_write(m, put, f) == PF_OK;
}

bool report_end(const struct report *r, pf_model *m, const char **why)
{
    *why = why_not;
    return !r->timeline || write_file(r->timeline, m, fill_timeline);
}

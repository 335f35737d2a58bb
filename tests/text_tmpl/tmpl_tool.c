/* Renders templates for cases.py. Reads records from stdin until it ends:
 *
 *     "now repeat template_bytes context_bytes\n" template context
 *
 * and answers each with "status bytes nanoseconds\n" and the result, or the error's message. `repeat` renders are timed
 * together, after one parse; nanoseconds is one render. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pf_mem.h"
#include "text/chat_tmpl.h"

static char *read_bytes(size_t n)
{
    char *p = malloc(n + 1);
    if (!p || fread(p, 1, n, stdin) != n)
        exit(2);
    return p;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void answer(const char *tmpl, size_t tmpl_len, const char *context, size_t context_len, int64_t now, int repeat)
{
    pf_tmpl *t = NULL;
    char *out = NULL;
    size_t n = 0;
    pf_status st = pf_tmpl_parse(&t, tmpl, tmpl_len);
    uint64_t start = now_ns();
    for (int i = 0; i < repeat && st == PF_OK; i++) {
        pf_free(out);
        st = pf_tmpl_render(t, context, context_len, now, 0, NULL, &out, &n);
    }
    uint64_t ns = (now_ns() - start) / (uint64_t)repeat;
    const char *text = st == PF_OK ? out : pf_last_error();
    n = st == PF_OK ? n : strlen(text);
    printf("%d %zu %" PRIu64 "\n", (int)st, n, ns);
    if (n)
        fwrite(text, 1, n, stdout);
    fflush(stdout);
    pf_free(out);
    pf_tmpl_close(&t);
}

int main(void)
{
    int64_t now;
    int repeat;
    size_t tmpl_len, context_len;
    while (scanf("%" SCNd64 " %d %zu %zu", &now, &repeat, &tmpl_len, &context_len) == 4 && getchar() == '\n') {
        char *tmpl = read_bytes(tmpl_len), *context = read_bytes(context_len);
        answer(tmpl, tmpl_len, context, context_len, now, repeat);
        free(tmpl);
        free(context);
    }
    struct pf_mem_stats left;
    pf_mem_stats_get(&left);
    if (left.n_live)
        fprintf(stderr, "%" PRIu64 " allocations are left\n", left.n_live);
    return left.n_live ? 1 : 0;
}

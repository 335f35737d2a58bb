/* Each damaged file gives its status and a message that names the field; each odd one opens, with its warning or none.
 * VERBOSE in the environment prints all the messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "gguf_cases.h"

static int n_failed;

static void run_bad(const struct bad_case *c)
{
    struct buf b = { 0 };
    pf_gguf *g;
    c->make(&b);
    pf_status st = open_bytes(&g, &b, 0);
    const char *said = st == PF_OK ? "nothing" : pf_last_error();
    if (st != c->status || g || !strstr(said, c->says) || !strstr(said, c->says_too)) {
        printf("case %d, %s: %s, said: %s\n", c->no, c->name, pf_strstatus(st), said);
        n_failed++;
    } else if (getenv("VERBOSE")) {
        printf("%2d %-22s %s\n", c->no, c->name, said);
    }
    pf_gguf_close(&g);
    free(b.p);
}

static void run_odd(const struct odd_case *c)
{
    struct buf b = { 0 };
    pf_gguf *g;
    c->make(&b);
    if (open_bytes(&g, &b, 0) != PF_OK) {
        printf("%s: %s\n", c->name, pf_last_error());
        n_failed++;
    } else {
        const char *warning = pf_gguf_warning(g, 0);
        if (c->warns ? !warning || !strstr(warning, c->warns) : warning != NULL) {
            printf("%s: warns: %s\n", c->name, warning ? warning : "nothing");
            n_failed++;
        }
    }
    pf_gguf_close(&g);
    free(b.p);
}

int main(void)
{
    struct pf_mem_stats stats;
    for (int i = 0; i < n_bad_cases; i++)
        run_bad(&bad_cases[i]);
    for (int i = 0; i < n_odd_cases; i++)
        run_odd(&odd_cases[i]);
    pf_mem_stats_get(&stats);
    printf("%d damaged files, %d odd ones, %d failures, %d allocations left\n", n_bad_cases, n_odd_cases, n_failed,
           (int)stats.n_live);
    return n_failed || stats.n_live;
}

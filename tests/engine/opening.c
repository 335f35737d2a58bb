/* Each of the allocations that opening a model, a session and a first step make fails in its turn: the open fails for
 * memory with a sentence, nothing is left, and a model that was opened after all of it gives the logits that it gave
 * before.
 *
 * usage: opening MODEL.gguf               77: its architecture is not one that pfmoe has */
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "pfmoe.h"

enum { N_TOKENS = 3, SKIP = 77, MOST_VOCAB = 4096 };

static const char *path;
static float       logits[MOST_VOCAB];

/* Opens, evaluates some tokens, leaves their last logits in `logits`, and closes. */
static pf_status whole_life(void)
{
    static const int32_t tokens[N_TOKENS] = { 1, 7, 3 };
    pf_model *m = NULL;
    pf_session *s = NULL;
    struct pf_model_opts mo;
    struct pf_session_opts so;
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    mo.n_threads = 1;
    mo.device = -1;
    so.n_ctx = 64;
    pf_status st = pf_model_open(&m, path, &mo);
    if (st == PF_OK)
        st = pf_session_open(&s, m, &so);
    if (st == PF_OK)
        st = pf_session_eval(s, tokens, N_TOKENS, 0);
    size_t n = st == PF_OK ? (size_t)pf_model_info(m)->n_vocab : 0;
    memcpy(logits, n ? pf_session_logits(s) : logits, (n < MOST_VOCAB ? n : MOST_VOCAB) * sizeof *logits);
    pf_session_close(&s);
    pf_model_close(&m);
    return st;
}

static void fail_allocation(uint64_t n)
{
    struct pf_mem_stats before, after;
    pf_mem_stats_get(&before);
    pf_mem_fail_nth(n);
    pf_status st = whole_life();
    pf_mem_fail_nth(0);
    pf_mem_stats_get(&after);
    CHECK(st == PF_OK || (st == PF_ENOMEM && pf_last_error()[0]), "allocation %llu: %d, \"%s\"", (unsigned long long)n,
          (int)st, pf_last_error());
    CHECK(after.n_live == before.n_live, "allocation %llu left %lld blocks", (unsigned long long)n,
          (long long)(after.n_live - before.n_live));
}

int main(int argc, char **argv)
{
    static float expected[MOST_VOCAB];
    struct pf_mem_stats before, after;
    if (argc != 2)
        return 2;
    path = argv[1];
    pf_mem_stats_get(&before);
    pf_status st = whole_life();
    pf_mem_stats_get(&after);
    if (st < 0) {
        printf("%s\n", pf_last_error());
        return st == PF_EUNSUPPORTED ? SKIP : 1;
    }
    memcpy(expected, logits, sizeof expected);
    uint64_t all = after.n_calls - before.n_calls;
    for (uint64_t n = 1; n <= all; n++)
        fail_allocation(n);
    CHECK(whole_life() == PF_OK && memcmp(logits, expected, sizeof expected) == 0, "%s", pf_last_error());
    printf("each of %llu allocations failed once\n", (unsigned long long)all);
    return check_status();
}

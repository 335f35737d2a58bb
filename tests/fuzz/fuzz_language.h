/* Any bytes as a grammar in one of the languages: what comes before the first zero byte is the grammar, what comes
 * after it an output. A grammar that is taken must take the output byte by byte, and never come to a dead end: where a
 * byte may follow, the output can still become whole. */
#ifndef FUZZ_LANGUAGE_H
#define FUZZ_LANGUAGE_H

#include <assert.h>
#include <string.h>

#include "base/pf_mem.h"
#include "fuzz.h"
#include "grammar/runner.h"
#include "languages/languages.h"

static inline void run_output(const struct pf_automaton *a, const uint8_t *output, size_t n)
{
    struct pf_runner r;
    int32_t position = 0;
    pf_status st = pf_runner_open(&r, a);
    if (st == PF_OK)
        st = pf_runner_start(&r, &position);
    for (size_t i = 0; i < n && st == PF_OK && position; i++) {
        assert(r.live.sets[position].n > 0);
        pf_runner_begin(&r, PF_MOST_EFFORT);
        if (i % 16 == 15)
            assert(pf_runner_shrink(&r, &position, 1) == PF_OK);
        st = pf_runner_next(&r, position, output[i], &position);
    }
    assert(st == PF_OK || st == PF_EUNSUPPORTED);
    pf_runner_close(&r);
}

static inline void fuzz_language(pf_status (*language)(struct pf_rules *r, const char *text, size_t n, int32_t *root),
                                 const uint8_t *data, size_t size)
{
    struct pf_rules rules = { 0 };
    struct pf_automaton a = { 0 };
    struct pf_mem_stats left;
    int32_t root = 0;
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    pf_status st = language(&rules, (const char *)data, n, &root);
    if (st == PF_OK)
        st = pf_automaton_make(&a, &rules, root);
    pf_rules_free(&rules);
    assert(st == PF_OK || st == PF_EINVAL || st == PF_EUNSUPPORTED);
    assert(st == PF_OK || pf_last_error()[0]);
    if (st == PF_OK && zero)
        run_output(&a, zero + 1, size - n - 1);
    pf_automaton_free(&a);
    pf_mem_stats_get(&left);
    assert(left.n_live == 0);
}

#endif

/* Any bytes as JSON: read as the value behind x, written by tojson, read again; both writings must be the same. */
#define _GNU_SOURCE                 /* memmem */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "fuzz.h"
#include "text/chat_tmpl.h"

static const char tmpl[] = "{{ x | tojson }}";

/* Renders tmpl over {"x": text}. */
static pf_status write_again(const pf_tmpl *t, const char *text, size_t n, char **out, size_t *n_out)
{
    char *context = malloc(n + 16);
    assert(context);
    memcpy(context, "{\"x\": ", 6);
    if (n)
        memcpy(context + 6, text, n);
    context[6 + n] = '}';
    pf_status st = pf_tmpl_render(t, context, n + 7, 0, 0, NULL, out, n_out);
    free(context);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pf_tmpl *t;
    char *once, *twice;
    size_t n_once, n_twice;
    pf_status st = pf_tmpl_parse(&t, tmpl, sizeof tmpl - 1);
    assert(st == PF_OK);
    st = write_again(t, (const char *)data, size, &once, &n_once);
    assert(st == PF_OK || st == PF_ETEMPLATE);
    /* Infinity is written, as Python does, but is not JSON. */
    if (st == PF_OK && !memmem(once, n_once, "Infinity", 8)) {
        st = write_again(t, once, n_once, &twice, &n_twice);
        assert(st == PF_OK && n_once == n_twice && memcmp(once, twice, n_once) == 0);
        pf_free(twice);
    }
    pf_free(once);
    pf_tmpl_close(&t);
    struct pf_mem_stats left;
    pf_mem_stats_get(&left);
    assert(left.n_live == 0);
    return 0;
}

/* Any bytes as a chat template, rendered over a conversation that has one of everything. */
#include <assert.h>
#include <string.h>

#include "base/pf_mem.h"
#include "fuzz.h"
#include "text/chat_tmpl.h"

static const char context[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \" "
    "h\\u00e9llo\\n\"},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c1\", \"function\": {\"name\": \"f\","
    " \"arguments\": {\"a\": 1, \"b\": [2.5, true, null, \"x'y\"]}}}]}, {\"role\": \"user\", \"content\": [{\"type\": "
    "\"text\"}]}],"
    " \"tools\": [{\"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": "
    "{}}}}}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"xs\": [3, 1, 2], \"n\": 12345678901234567890, \"e\": "
    "[]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pf_mem_stats left;
    pf_tmpl *t;
    char *out;
    size_t n;
    pf_status st = pf_tmpl_parse(&t, (const char *)data, size);
    assert(st == PF_OK || (st == PF_ETEMPLATE && !t && strncmp(pf_last_error(), "template line ", 14) == 0));
    if (st == PF_OK) {
        st = pf_tmpl_render(t, context, sizeof context - 1, 1700000000, 0, NULL, &out, &n);
        assert(st == PF_OK || (st == PF_ETEMPLATE && !out));
        pf_free(out);
    }
    pf_tmpl_close(&t);
    pf_mem_stats_get(&left);
    assert(left.n_live == 0);
    return 0;
}

/* Any bytes as a model's reply: whole and in pieces it is the same, and the judge of gathered.h finds nothing wrong.
 * The first byte names the family, and says whether calls are forced; the second one: whether the reply begins in
 * reasoning, whether tools are offered, how long pieces are. */
#include <assert.h>

#include "../reply/gathered.h"
#include "base/pf_mem.h"
#include "fuzz.h"
#include "reply/families.h"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"s\": {\"type\": \"string\"}, \"n\": {\"type\": [\"number\", \"null\"]}, \"u\": {\"anyOf\": [{\"type\": "
    "\"string\"}, {\"$ref\": \"#/properties/o\"}]}, \"o\": {\"type\": \"object\"}, \"e\": {\"enum\": [1, \"a\"]}}}}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int n_families = 0;
    while (pf_family_at(n_families))
        n_families++;
    if (size < 2)
        return 0;
    struct pf_reply_opts o = { .family = pf_family_at(data[0] % n_families)->name, .in_reasoning = data[1] & 1 };
    if (!(data[1] & 2)) {
        o.tools_json = tools;
        o.tools_len = sizeof tools - 1;
        o.forced = data[0] / n_families & 1;
    }
    const char *text = (const char *)data + 2;
    struct gathered whole = { 0 }, pieces = { 0 };
    unsigned random = data[1];
    pf_status st = gather_reply(&whole, &o, text, size - 2, size, NULL);
    assert(st == PF_OK && !whole.wrong);
    st = gather_reply(&pieces, &o, text, size - 2, 1 + (data[1] >> 2), &random);
    assert(st == PF_OK && !pieces.wrong && gathered_equals(&whole, &pieces));
    gathered_free(&whole);
    gathered_free(&pieces);
    struct pf_mem_stats left;
    pf_mem_stats_get(&left);
    assert(left.n_live == 0);
    return 0;
}

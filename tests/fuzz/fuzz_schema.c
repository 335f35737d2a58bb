/* Any bytes as a JSON schema, and an output: as JSON and in the notations that families have of their own. See
 * fuzz_language.h. */
#include "fuzz_language.h"

static pf_status in_gemmas(struct pf_rules *r, const char *text, size_t n, int32_t *root)
{
    static const struct pf_notation w = { .quote = "<|\"|>", .bare_names = true, .null = "null", .no = "false",
                                          .yes = "true" };
    return pf_schema_notation_rules(r, text, n, &w, root);
}

static pf_status as_call(struct pf_rules *r, const char *text, size_t n, int32_t *root)
{
    static const struct pf_notation w = { .quote = "\"", .escapes = true, .as_call = true, .null = "None",
                                          .no = "False", .yes = "True" };
    return pf_schema_notation_rules(r, text, n, &w, root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_language(pf_schema_rules, data, size);
    fuzz_language(in_gemmas, data, size);
    fuzz_language(as_call, data, size);
    return 0;
}

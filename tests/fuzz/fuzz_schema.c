/* Any bytes as a JSON schema, and an output. See fuzz_language.h. */
#include "fuzz_language.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_language(pf_schema_rules, data, size);
    return 0;
}

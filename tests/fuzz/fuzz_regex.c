/* Any bytes as a regular expression, and an output. See fuzz_language.h. */
#include "fuzz_language.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_language(pf_regex_rules, data, size);
    return 0;
}

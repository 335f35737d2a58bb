/* JSON Schema to rules. No schema is taken yet. */
#include "base/pf_status.h"
#include "grammar/grammar.h"

pf_status pf_schema_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root)
{
    (void)r, (void)text, (void)root;
    PF_FAIL(PF_EUNSUPPORTED, "a JSON schema (of %zu bytes) is not supported yet", n);
}

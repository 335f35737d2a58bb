/* See keys.h. */
#include "moe/load/keys.h"

#include <stdio.h>

const char *pf_key_name(const struct pf_loader *l, char out[PF_KEY_BYTES], const char *suffix)
{
    snprintf(out, PF_KEY_BYTES, "%s.%s", l->m->arch->name, suffix);
    return out;
}

pf_status pf_key_int(const struct pf_loader *l, const char *suffix, bool required, int64_t min, int64_t max,
                     int *out)
{
    char name[PF_KEY_BYTES];
    int64_t value = *out;
    PF_TRY((required ? pf_gguf_int : pf_gguf_int_opt)(l->g, pf_key_name(l, name, suffix), min, max, &value));
    *out = (int)value;
    return PF_OK;
}

pf_status pf_key_ints(const struct pf_loader *l, const char *suffix, int n_block, int64_t min, int64_t max,
                      int64_t *out)
{
    char name[PF_KEY_BYTES];
    return pf_gguf_ints_opt(l->g, pf_key_name(l, name, suffix), n_block, min, max, out, NULL);
}

pf_status pf_key_layers(const struct pf_loader *l, const char *suffix, bool required, int64_t min, int64_t max,
                        int64_t *out)
{
    char name[PF_KEY_BYTES];
    if (required && !pf_gguf_find(l->g, pf_key_name(l, name, suffix)))
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(l->g));
    return pf_key_ints(l, suffix, l->n_block, min, max, out);
}

int pf_key_entries(const struct pf_loader *l, const char *suffix)
{
    char name[PF_KEY_BYTES];
    const struct pf_gguf_kv *kv = pf_gguf_find(l->g, pf_key_name(l, name, suffix));
    bool longer = kv && kv->type == PF_GGUF_ARRAY && kv->n > (uint64_t)l->n_block;
    return longer && kv->n <= PF_MAX_LAYERS ? (int)kv->n : l->n_block;
}

pf_status pf_key_bool(const struct pf_loader *l, const char *suffix, bool *out)
{
    char name[PF_KEY_BYTES];
    return pf_gguf_bool_opt(l->g, pf_key_name(l, name, suffix), out);
}

pf_status pf_key_real(const struct pf_loader *l, const char *suffix, bool required, bool positive, float *out)
{
    char name[PF_KEY_BYTES];
    PF_TRY((required ? pf_gguf_real : pf_gguf_real_opt)(l->g, pf_key_name(l, name, suffix), out));
    if (positive && !(*out > 0))
        PF_FAIL(PF_EFORMAT, "key %s is %g, expected a positive number, in %s", name, *out, pf_gguf_path(l->g));
    return PF_OK;
}

pf_status pf_size_check(const struct pf_loader *l, int il, const char *what, int64_t n, int64_t max)
{
    if (n >= 1 && n <= max)
        return PF_OK;
    PF_FAIL(PF_EUNSUPPORTED, "layer %d has %s of %lld, which its keys say or their absence; 1 to %lld are supported, "
            "in %s", il, what, (long long)n, (long long)max, pf_gguf_path(l->g));
}

/* See learned.h. Numbers are whole ones: bytes a second, and nanoseconds for a million bytes of an expert.
 *
 *     {"of":"...","cpu_bytes_s":N,"pcie_bytes_s":N,
 *      "deals":[[experts, whole, downs copied, whole ones in place, ns, times], ...]} */
#include "program/learned.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "program/json.h"
#include "program/io/userfile.h"

static const double NS_PER_MB = 1e6;     /* ns_per_byte times this: the file has ns per MB */

void learned_print(const struct pf_learned *l, const char *key, struct buf *out)
{
    buf_puts(out, "{\"of\":");
    json_quote(out, key, strlen(key), true);
    buf_printf(out, ",\n\"cpu_bytes_s\":%.0f,\"pcie_bytes_s\":%.0f,\n\"deals\":[", l->cpu_bytes_s, l->pcie_bytes_s);
    for (int i = 0; i < l->n_deals; i++) {
        const struct pf_learned_deal *d = &l->deals[i];
        buf_printf(out, "%s\n[%d,%d,%d,%d,%.0f,%" PRIu32 "]", i ? "," : "", d->n_experts, d->n_whole, d->n_down,
                   d->in_place, d->ns_per_byte * NS_PER_MB, d->n_times);
    }
    buf_puts(out, "]}\n");
}

static bool is_of(struct json v, const char *key)
{
    struct buf text = { 0 };
    json_string(v, &text);
    bool same = strcmp(buf_text(&text), key) == 0;
    buf_free(&text);
    return same;
}

/* Six whole numbers that their fields can hold; what they mean is the library's to judge. */
static bool parse_deal(struct json v, struct pf_learned_deal *out)
{
    int64_t x[6];
    struct json item = { 0 };
    for (int i = 0; i < 6; i++) {
        item = json_next(v, item);
        if (!json_int(item, &x[i]) || x[i] < 0 || x[i] > INT32_MAX)
            return false;
    }
    *out = (struct pf_learned_deal){ (int)x[0], (int)x[1], (int)x[2], x[3] != 0, (uint32_t)x[5],
                                     (double)x[4] / NS_PER_MB };
    return !json_next(v, item).p;
}

bool learned_parse(const char *text, size_t n, const char *key, struct pf_learned *out)
{
    size_t where;
    int64_t cpu, pcie;
    struct json deals, item = { 0 };
    *out = (struct pf_learned){ 0 };
    if (!json_valid(text, n, &where))
        return false;
    struct json v = json_value(text, n);
    if (!is_of(json_get(v, "of"), key) || !json_int(json_get(v, "cpu_bytes_s"), &cpu) ||
        !json_int(json_get(v, "pcie_bytes_s"), &pcie))
        return false;
    deals = json_get(v, "deals");
    if (!json_is(deals, '['))
        return false;
    for (item = json_next(deals, item); item.p; item = json_next(deals, item))
        if (out->n_deals == PF_MAX_LEARNED_DEALS || !json_is(item, '[') ||
            !parse_deal(item, &out->deals[out->n_deals++]))
            return false;
    out->cpu_bytes_s = (double)cpu;
    out->pcie_bytes_s = (double)pcie;
    return true;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* FNV-1a: a name for the file; the key itself is in it. */
static char *path_of(const char *key)
{
    char name[32];
    uint64_t hash = 14695981039346656037u;
    for (const char *p = key; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    snprintf(name, sizeof name, "%016" PRIx64 ".json", hash);
    return userfile_path("XDG_CACHE_HOME", ".cache", name);
}

bool learned_read_file(const char *key, struct pf_learned *out)
{
    struct buf text = { 0 };
    char *path = path_of(key);
    bool ok = path && buf_read_file(&text, path) && learned_parse(buf_text(&text), text.n, key, out);
    buf_free(&text);
    free(path);
    return ok;
}

static bool fill(void *ctx, FILE *f)
{
    const struct buf *text = ctx;
    return fwrite(text->p, 1, text->n, f) == text->n;
}

bool learned_write_file(const char *key, const struct pf_learned *l)
{
    struct buf text = { 0 }, why = { 0 };
    char *path = path_of(key);
    learned_print(l, key, &text);
    bool ok = path && userfile_write(path, USERFILE_PRIVATE, fill, &text, &why);
    buf_free(&text);
    buf_free(&why);
    free(path);
    return ok;
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* The key of learned deals: version (another may have other kernels), machine, model. False: nothing is shared. */
static bool key_of(const pf_model *m, int gpu, struct buf *key)
{
    enum { MOST = 64 };
    static struct pf_device devices[MOST];
    const struct pf_model_info *info = pf_model_info(m);
    if (info->n_experts == 0 || info->gpu_bytes_per_token == 0 || info->gpu_bytes_per_token == info->bytes_per_token)
        return false;
    int n = pf_devices(devices, MOST);
    buf_printf(key, "pfmoe %s; %s, %d of %d cores; %s; %s, %s, %" PRIu64 " bytes, %" PRIu64 " a token", pf_version(),
               devices[0].name, info->n_threads, devices[0].n_units,
               gpu + 1 < n && gpu + 1 < MOST ? devices[gpu + 1].name : "",
               info->architecture, info->name, info->weight_bytes, info->bytes_per_token);
    return true;
}

void learned_load(pf_model *m, int gpu)
{
    static struct pf_learned l;
    struct buf key = { 0 };
    if (key_of(m, gpu, &key) && learned_read_file(buf_text(&key), &l))
        pf_learned_set(m, &l);
    buf_free(&key);
}

void learned_store(pf_model *m, int gpu)
{
    static struct pf_learned l;
    struct buf key = { 0 };
    pf_learned_get(m, &l);
    if (l.n_deals > 0 && key_of(m, gpu, &key))
        learned_write_file(buf_text(&key), &l);
    buf_free(&key);
}

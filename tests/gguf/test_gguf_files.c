/* Every model of the conformance set opens, verifies and inspects, without a warning and without a leak.
 *
 * The set lies in $PFMOE_SHARED, else in the folder that is the second argument. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "gguf/gguf.h"
#include "gguf/inspect.h"

static int n_files, n_failed;

static void complain(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", path, what, pf_last_error());
    n_failed++;
}

static void check_file(const char *path)
{
    struct pf_file_info info;
    pf_gguf *g;
    n_files++;
    if (pf_gguf_open(&g, path, 0) < 0) {
        complain(path, "open");
        return;
    }
    if (pf_gguf_verify(g) < 0)
        complain(path, "verify");
    if (pf_gguf_unchanged(g) < 0)
        complain(path, "unchanged");
    if (pf_gguf_warning(g, 0))
        complain(path, pf_gguf_warning(g, 0));
    if (pf_gguf_inspect(path, PF_FILE_VERIFY, &info) < 0)
        complain(path, "inspect");
    else if (info.n_tensors != pf_gguf_n_tensors(g) || info.n_layers == 0 || info.n_embd == 0 || info.n_vocab == 0 ||
             info.kv_bytes_per_token == 0 || info.bytes_per_token == 0 || info.bytes_per_token > info.weight_bytes ||
             info.expert_bytes > info.weight_bytes || (info.n_experts > 0) != (info.expert_bytes > 0))
        complain(path, "inspect gave unlikely numbers");
    pf_gguf_close(&g);
}

/* Every .gguf file of the folder; of a split model the first shard. */
static void check_folder(const char *root, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    DIR *d = opendir(path);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        bool other_shard = strstr(e->d_name, "-of-") && !strstr(e->d_name, "-00001-of-");
        if (n < 5 || strcmp(e->d_name + n - 5, ".gguf") != 0 || other_shard)
            continue;
        snprintf(path, sizeof path, "%s/%s/%s", root, folder, e->d_name);
        check_file(path);
    }
    closedir(d);
}

int main(int argc, char **argv)
{
    char root[4000];
    const char *shared = getenv("PFMOE_SHARED");
    if (shared)
        snprintf(root, sizeof root, "%s", shared);
    else
        snprintf(root, sizeof root, "%s", argc > 2 ? argv[2] : ".");
    check_folder(root, "conformance/models");
    check_folder(root, "conformance/quants/models");
    if (n_files == 0) {
        printf("skipped: no models in %s/conformance\n", root);
        return 77;
    }
    struct pf_mem_stats stats;
    pf_mem_stats_get(&stats);
    if (stats.n_live)
        fprintf(stderr, "%d allocations are left\n", (int)stats.n_live);
    printf("%d files, %d failures\n", n_files, n_failed);
    return n_failed || stats.n_live;
}

/* From a name to a path: what is in the cache, and fetching the rest. See hub.h. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "program/io/term.h"

static void first_path(const char *repo, const char *commit, const struct hub_files *files, struct buf *path)
{
    buf_clear(path);
    buf_printf(path, "%s/snapshots/%s/%s", repo, commit, files->v[0].path);
}

/* Fetches one file and links to it, unless the blob is there. */
static bool have_file(const struct hub_name *name, const char *repo, const char *commit, const struct hub_file *f,
                      struct buf *why)
{
    struct buf blob = { 0 };
    struct stat st;
    buf_printf(&blob, "%s/blobs/%s", repo, f->hash);
    bool ok = stat(blob.p, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size;
    if (!ok)
        ok = hub_make_folders(blob.p, why) && hub_fetch_file(name, commit, f, blob.p, why);
    ok = ok && hub_link(repo, commit, f, why);
    buf_free(&blob);
    return ok;
}

static bool fetch(const struct hub_name *name, const char *repo, struct buf *path, struct buf *why)
{
    struct hub_files all = { 0 }, chosen = { 0 };
    char commit[HUB_HASH];
    bool ok = hub_fetch_list(name, commit, &all, why) && hub_choose(name, &all, &chosen, why);
    for (int i = 0; ok && i < chosen.n; i++)
        ok = have_file(name, repo, commit, &chosen.v[i], why);
    ok = ok && hub_write_ref(repo, commit, why);
    if (ok)
        first_path(repo, commit, &chosen, path);
    hub_files_free(&all);
    hub_files_free(&chosen);
    return ok;
}

static bool cached(const struct hub_name *name, const char *repo, struct buf *path)
{
    struct hub_files all = { 0 }, chosen = { 0 };
    struct buf ignored = { 0 };
    char commit[HUB_HASH];
    bool ok = hub_cached_files(repo, commit, &all) && hub_choose(name, &all, &chosen, &ignored);
    if (ok)
        first_path(repo, commit, &chosen, path);
    hub_files_free(&all);
    hub_files_free(&chosen);
    buf_free(&ignored);
    return ok;
}

static bool get(const char *text, bool newest, struct buf *path, struct buf *why)
{
    struct hub_name name;
    struct buf repo = { 0 };
    if (!hub_parse(text, &name, why))
        return false;
    char *cache = hub_cache_folder();
    if (!cache) {
        buf_puts(why, "there is no cache folder: neither HF_HUB_CACHE nor HOME names one");
        return false;
    }
    hub_repo_folder(cache, &name, &repo);
    bool ok = (!newest && cached(&name, repo.p, path)) || fetch(&name, repo.p, path, why);
    buf_free(&repo);
    free(cache);
    return ok;
}

bool hub_model(const char *text, struct buf *path, struct buf *why)
{
    return get(text, false, path, why);
}

void hub_check_name(const char *text)
{
    struct hub_name name;
    struct buf why = { 0 };
    if (!hub_parse(text, &name, &why))
        die(EXIT_USAGE, "%s", buf_text(&why));
}

const char *hub_need(const char *text)
{
    static struct buf path;
    struct buf why = { 0 };
    hub_check_name(text);
    if (!hub_model(text, &path, &why))
        die(EXIT_FAILED, "%s", buf_text(&why));
    buf_free(&why);                              /* a try that was made good has left its sentence */
    interrupt_forget();
    return path.p;
}

bool hub_pull(const char *text, struct buf *path, struct buf *why)
{
    return get(text, true, path, why);
}

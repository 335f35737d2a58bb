/* The hub's folder on this machine: what is there, links, and removing. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_DEPTH = 4 };              /* of folders in a repository that are looked into */

static bool fail(struct buf *why, const char *what, const char *path)
{
    buf_printf(why, "cannot %s %s: %s", what, path, strerror(errno));
    return false;
}

char *hub_cache_folder(void)
{
    static const struct {
        const char *variable, *rest;
    } places[] = { { "HF_HUB_CACHE", "" }, { "HF_HOME", "/hub" }, { "XDG_CACHE_HOME", "/huggingface/hub" },
                   { "HOME", "/.cache/huggingface/hub" } };
    struct buf path = { 0 };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value == '/') {
            buf_printf(&path, "%s%s", value, places[i].rest);
            return path.p;
        }
    }
    return NULL;
}

void hub_repo_folder(const char *cache, const struct hub_name *name, struct buf *out)
{
    buf_printf(out, "%s/models--%s--%s", cache, name->owner, name->repo);
}

bool hub_make_folders(const char *path, struct buf *why)
{
    char *copy = xstrdup(path);
    bool ok = true;
    for (char *p = copy + 1; ok && (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            ok = fail(why, "make the folder", copy);
        *p = '/';
    }
    free(copy);
    return ok;
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

/* Adds the files under folder, whose paths begin with prefix. */
static void walk(const char *folder, const char *prefix, int depth, struct hub_files *out)
{
    DIR *d = depth <= MOST_DEPTH ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d)) && out->n < HUB_MAX_FILES;) {
        struct buf full = { 0 }, path = { 0 };
        struct stat st;
        buf_printf(&full, "%s/%s", folder, e->d_name);
        buf_printf(&path, "%s%s", prefix, e->d_name);
        if (e->d_name[0] != '.' && path.n < HUB_MAX_PATH && stat(full.p, &st) == 0) {
            if (S_ISREG(st.st_mode)) {
                struct hub_file *f = hub_files_add(out);
                snprintf(f->path, sizeof f->path, "%s", path.p);
                f->size = (uint64_t)st.st_size;
            } else if (S_ISDIR(st.st_mode)) {
                buf_puts(&path, "/");
                walk(full.p, path.p, depth + 1, out);
            }
        }
        buf_free(&full);
        buf_free(&path);
    }
    if (d)
        closedir(d);
}

bool hub_cached_files(const char *repo, char commit[HUB_HASH], struct hub_files *out)
{
    struct buf path = { 0 };
    buf_printf(&path, "%s/refs/main", repo);
    FILE *f = fopen(path.p, "r");
    bool known = f && fscanf(f, "%64s", commit) == 1 && hub_is_hex(commit, strlen(commit));
    if (f)
        fclose(f);
    buf_clear(&path);
    buf_printf(&path, "%s/snapshots/%s", repo, known ? commit : "");
    if (known)
        walk(path.p, "", 0, out);
    buf_free(&path);
    return known && out->n > 0;
}

/* Made beside and renamed, so that two programs can do so at once, and a third one never misses the file. */
bool hub_link(const char *repo, const char *commit, const struct hub_file *f, struct buf *why)
{
    struct buf path = { 0 }, target = { 0 }, beside = { 0 };
    buf_printf(&path, "%s/snapshots/%s/%s", repo, commit, f->path);
    buf_printf(&beside, "%s/.link-%ld", repo, (long)getpid());
    for (const char *p = f->path; (p = strchr(p, '/')); p++)
        buf_puts(&target, "../");
    buf_printf(&target, "../../blobs/%s", f->hash);
    bool ok = hub_make_folders(path.p, why);
    unlink(beside.p);                        /* of one that was killed and had this number */
    if (ok && (symlink(target.p, beside.p) < 0 || rename(beside.p, path.p) < 0))
        ok = fail(why, "link", path.p);
    if (!ok)
        unlink(beside.p);
    buf_free(&path);
    buf_free(&target);
    buf_free(&beside);
    return ok;
}

/* Beside and renamed, as links are. */
bool hub_write_ref(const char *repo, const char *commit, struct buf *why)
{
    struct buf path = { 0 }, beside = { 0 };
    buf_printf(&path, "%s/refs/main", repo);
    buf_printf(&beside, "%s/.ref-%ld", repo, (long)getpid());
    bool ok = hub_make_folders(path.p, why);
    FILE *f = ok ? fopen(beside.p, "w") : NULL;
    bool written = f && fputs(commit, f) >= 0;
    written = f && fclose(f) == 0 && written;
    if (ok && (!written || rename(beside.p, path.p) < 0))
        ok = fail(why, "write", path.p);
    if (!ok)
        unlink(beside.p);
    buf_free(&path);
    buf_free(&beside);
    return ok;
}

/* ---- Listing and removing ---------------------------------------------------------------------------------------- */

/* "models--owner--repo" */
static bool name_of_folder(const char *folder, struct hub_name *out)
{
    struct buf text = { 0 }, why = { 0 };
    const char *p = strncmp(folder, "models--", 8) == 0 ? folder + 8 : "", *between = strstr(p, "--");
    if (between)
        buf_printf(&text, "%.*s/%s", (int)(between - p), p, between + 2);
    bool ok = between && hub_parse(text.p, out, &why);
    buf_free(&text);
    buf_free(&why);
    return ok;
}

static void list_repo(const char *cache, const struct hub_name *name, struct buf *out)
{
    struct buf repo = { 0 }, why = { 0 };
    struct hub_files all = { 0 };
    char commit[HUB_HASH];
    hub_repo_folder(cache, name, &repo);
    hub_cached_files(repo.p, commit, &all);
    for (int k = 0; k < all.n; k++) {
        const struct hub_file *f = &all.v[k];
        struct hub_name one = *name;
        struct hub_files parts = { 0 };
        uint64_t bytes = 0;
        snprintf(one.quant, sizeof one.quant, "%s", f->path);
        bool whole = hub_means(name, f->path) && hub_choose(&one, &all, &parts, &why);
        for (int i = 0; i < parts.n; i++)
            bytes += parts.v[i].size;
        if (whole)
            buf_printf(out, "%9.2f GB  %s/%s:%s\n", (double)bytes * 1e-9, name->owner, name->repo, f->path);
        hub_files_free(&parts);
    }
    hub_files_free(&all);
    buf_free(&repo);
    buf_free(&why);
}

bool hub_list(struct buf *out, struct buf *why)
{
    char *cache = hub_cache_folder();
    if (!cache) {
        buf_puts(why, "there is no cache folder: neither HF_HUB_CACHE nor HOME names one");
        return false;
    }
    struct dirent **names;
    int n = scandir(cache, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        struct hub_name name;
        if (name_of_folder(names[i]->d_name, &name))
            list_repo(cache, &name, out);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    free(cache);
    return true;
}

/* Whether a snapshot's file still leads to the blob. */
static bool is_used(const char *repo, const struct stat *blob)
{
    struct buf folder = { 0 };
    struct hub_files all = { 0 };
    bool used = false;
    buf_printf(&folder, "%s/snapshots", repo);
    walk(folder.p, "", 0, &all);
    for (int i = 0; i < all.n && !used; i++) {
        struct buf path = { 0 };
        struct stat st;
        buf_printf(&path, "%s/%s", folder.p, all.v[i].path);
        used = stat(path.p, &st) == 0 && st.st_ino == blob->st_ino && st.st_dev == blob->st_dev;
        buf_free(&path);
    }
    hub_files_free(&all);
    buf_free(&folder);
    return used;
}

static bool remove_file(const char *repo, const char *commit, const struct hub_file *f, uint64_t *bytes,
                        struct buf *why)
{
    struct buf path = { 0 };
    struct stat blob;
    buf_printf(&path, "%s/snapshots/%s/%s", repo, commit, f->path);
    char *target = realpath(path.p, NULL);
    bool ok = target && stat(target, &blob) == 0 && unlink(path.p) == 0;
    if (!ok)
        fail(why, "remove", path.p);
    if (ok && strncmp(target, repo, strlen(repo)) == 0 && !is_used(repo, &blob)) {
        if (unlink(target) < 0 && errno != ENOENT)
            ok = fail(why, "remove", target);
        else
            *bytes += (uint64_t)blob.st_size;
    }
    free(target);
    buf_free(&path);
    return ok;
}

/* Removes what the name means in the newest snapshot; without a quant all of its models. */
static bool remove_models(const struct hub_name *name, const char *repo, uint64_t *bytes, struct buf *why)
{
    struct hub_files all = { 0 };
    char commit[HUB_HASH];
    int removed = 0;
    bool ok = hub_cached_files(repo, commit, &all);
    for (int i = 0; ok && i < all.n; i++) {
        struct hub_name one = *name;
        struct hub_files parts = { 0 };
        snprintf(one.quant, sizeof one.quant, "%s", all.v[i].path);
        if (!hub_means(name, all.v[i].path))
            continue;
        struct buf ignored = { 0 };
        if (!hub_choose(&one, &all, &parts, &ignored))
            *hub_files_add(&parts) = all.v[i];               /* a split model that is not whole */
        buf_free(&ignored);
        for (int k = 0; ok && k < parts.n; k++, removed++)
            ok = remove_file(repo, commit, &parts.v[k], bytes, why);
        hub_files_free(&parts);
    }
    hub_files_free(&all);
    if (ok && removed == 0) {
        buf_printf(why, "%s/%s has no such model here; \"pfmoe-run list\" shows what there is", name->owner,
                   name->repo);
        return false;
    }
    if (!ok && !why->n)
        buf_printf(why, "%s/%s is not here; \"pfmoe-run list\" shows what there is", name->owner, name->repo);
    return ok;
}

bool hub_remove(const char *text, uint64_t *bytes, struct buf *why)
{
    struct hub_name name;
    struct buf repo = { 0 };
    *bytes = 0;
    if (!hub_parse(text, &name, why))
        return false;
    char *cache = hub_cache_folder(), *real = cache ? realpath(cache, NULL) : NULL;
    hub_repo_folder(real ? real : "", &name, &repo);
    bool ok = remove_models(&name, repo.p, bytes, why);
    free(cache);
    free(real);
    buf_free(&repo);
    return ok;
}

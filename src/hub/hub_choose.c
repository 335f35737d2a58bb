/* Names of models, and which of a repository's files they mean. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Weights that are taken where a name says nothing and there are several: what runs well on most machines. */
static const char *const usual[] = { "Q4_K_M", "MXFP4", "Q4_0", "Q8_0" };
enum { N_USUAL = sizeof usual / sizeof *usual };

struct hub_file *hub_files_add(struct hub_files *f)
{
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 16;
        f->v = xrealloc(f->v, (size_t)f->cap, sizeof *f->v);
    }
    f->v[f->n] = (struct hub_file){ .size = 0 };
    return &f->v[f->n++];
}

void hub_files_free(struct hub_files *f)
{
    free(f->v);
    *f = (struct hub_files){ 0 };
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

bool hub_is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

bool hub_path_is_safe(const char *path)
{
    size_t n = strlen(path);
    if (n == 0 || n >= HUB_MAX_PATH || path[0] == '/' || path[n - 1] == '/')
        return false;
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F || *p == '\\')
            return false;
    for (const char *p = path; p; p = strchr(p, '/')) {
        p += *p == '/';
        size_t part = strcspn(p, "/");
        if (part == 0 || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
            return false;
    }
    return true;
}

/* The hub's rule for names of owners and repositories; what is kept to it can be part of a path and of an address. */
static bool take_word(const char **p, char *out, size_t cap, const char *ends)
{
    size_t n = strcspn(*p, ends);
    if (n == 0 || n >= cap || (*p)[0] == '.' || (*p)[0] == '-')
        return false;
    memcpy(out, *p, n);
    out[n] = 0;
    *p += n;
    for (const char *c = out; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
            return false;
    return !strstr(out, "..") && !strstr(out, "--");
}

bool hub_parse(const char *text, struct hub_name *out, struct buf *why)
{
    const char *p = text;
    *out = (struct hub_name){ .quant = "" };
    if (take_word(&p, out->owner, sizeof out->owner, "/") && *p++ == '/' &&
        take_word(&p, out->repo, sizeof out->repo, ":") && (!*p || (hub_path_is_safe(p + 1) && *p == ':'))) {
        snprintf(out->quant, sizeof out->quant, "%s", *p ? p + 1 : "");
        return true;
    }
    buf_printf(why, "\"%.200s\" is not owner/repo, owner/repo:QUANT or owner/repo:FILE.gguf", text);
    return false;
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The place of "-00001-of-00003.gguf" in path, and both numbers; NULL: the file is no shard. */
static const char *shard_of(const char *path, int *i, int *n)
{
    size_t len = strlen(path), tail = strlen("-00001-of-00003.gguf");
    const char *at = path + len - tail;
    char end[8];
    if (len <= tail || sscanf(at, "-%5d-of-%5d%7s", i, n, end) != 3 || strcasecmp(end, ".gguf") != 0)
        return NULL;
    return *i >= 1 && *n >= *i ? at : NULL;
}

/* A whole model, or the first shard of one; what only goes with a model (projectors of pictures) is none. */
static bool is_model(const char *path)
{
    int i, n;
    size_t len = strlen(path);
    if (len < 5 || strcasecmp(path + len - 5, ".gguf") != 0 || strcasestr(path, "mmproj") ||
        strcasestr(path, "imatrix"))
        return false;
    return !shard_of(path, &i, &n) || i == 1;
}

/* Whether path has the word, whatever the case, with none of its letters continuing on either side. */
static bool has_word(const char *path, const char *word)
{
    for (const char *p = path; (p = strcasestr(p, word)); p++) {
        char after = p[strlen(word)];
        bool begins = p == path || strchr("-._/", p[-1]);
        if (begins && (!after || strchr("-./", after)))
            return true;
    }
    return false;
}

static bool names_file(const char *quant)
{
    size_t n = strlen(quant);
    return n > 5 && strcasecmp(quant + n - 5, ".gguf") == 0;
}

bool hub_means(const struct hub_name *name, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (names_file(name->quant))
        return strcmp(path, name->quant) == 0 || (slash && strcmp(slash + 1, name->quant) == 0);
    return is_model(path) && (!name->quant[0] || has_word(path, name->quant));
}

/* The file with the shortest path of those that name means and that have the word; NULL: none. */
static const struct hub_file *best(const struct hub_name *name, const struct hub_files *all, const char *word, int *n)
{
    const struct hub_file *found = NULL;
    *n = 0;
    for (int i = 0; i < all->n; i++) {
        const struct hub_file *f = &all->v[i];
        if (!hub_means(name, f->path) || (word && !has_word(f->path, word)))
            continue;
        (*n)++;
        if (!found || strlen(f->path) < strlen(found->path))
            found = f;
    }
    return found;
}

static bool refuse(const struct hub_name *name, const struct hub_files *all, struct buf *why)
{
    enum { MOST_SHOWN = 30 };
    const struct hub_name any = { .quant = "" };
    int shown = 0;
    buf_printf(why, "%s/%s has ", name->owner, name->repo);
    if (name->quant[0])
        buf_printf(why, "no \"%s\"", name->quant);
    else
        buf_puts(why, "several models; say which after a colon");
    for (int i = 0; i < all->n && shown < MOST_SHOWN; i++)
        if (hub_means(&any, all->v[i].path))
            buf_printf(why, "%s%s", shown++ ? ", " : ": there is ", all->v[i].path);
    if (!shown)
        buf_puts(why, ", and no GGUF model at all");
    return false;
}

static const struct hub_file *find(const struct hub_files *all, const char *path)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->v[i].path, path) == 0)
            return &all->v[i];
    return NULL;
}

/* All shards of the model whose first file is given, or that file alone. */
static bool add_shards(const struct hub_file *first, const struct hub_files *all, struct hub_files *out,
                       struct buf *why)
{
    int i, n;
    const char *at = shard_of(first->path, &i, &n);
    if (!at) {
        *hub_files_add(out) = *first;
        return true;
    }
    for (i = 1; i <= n; i++) {
        char path[HUB_MAX_PATH + 32];
        snprintf(path, sizeof path, "%.*s-%05d-of-%05d%s", (int)(at - first->path), first->path, i, n,
                 first->path + strlen(first->path) - 5);
        const struct hub_file *f = find(all, path);
        if (!f) {
            buf_printf(why, "%s of %d files is not there: %s", first->path, n, path);
            return false;
        }
        *hub_files_add(out) = *f;
    }
    return true;
}

bool hub_choose(const struct hub_name *name, const struct hub_files *all, struct hub_files *out, struct buf *why)
{
    int n, n_usual;
    const struct hub_file *first = best(name, all, NULL, &n);
    if (!name->quant[0] && n > 1) {
        first = NULL;
        for (int i = 0; i < N_USUAL && !first; i++)
            first = best(name, all, usual[i], &n_usual);
    }
    return first ? add_shards(first, all, out, why) : refuse(name, all, why);
}

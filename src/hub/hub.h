/* Models by name: owner/repo[:quant] of a hub that speaks Hugging Face's protocol, kept in the folder and the layout
 * that its own programs use, so that both find what the other has fetched.
 *
 *     name --> which files (hub_choose) --> there? (hub_cache) --no--> list, transfer, check (hub_fetch) --> there
 *
 *     ~/.cache/huggingface/hub/models--OWNER--REPO/     or $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub
 *         refs/main                    the commit that "main" was when it was last asked for
 *         snapshots/COMMIT/PATH        a link to ../../blobs/HASH
 *         blobs/HASH                   a file's bytes; HASH.incomplete while they are being fetched
 *
 * A blob gets its name after its size and hash were checked, so what has a name is whole. Everything that the hub sends
 * is checked before it becomes a path or a number of bytes. Functions that return false have put one sentence into why.
 * One thread. */
#ifndef PF_HUB_H
#define PF_HUB_H

#include "program/io/buf.h"

enum { HUB_MAX_FILES = 10000, HUB_MAX_PATH = 512, HUB_HASH = 65 };

struct hub_name {
    char owner[97], repo[97];
    char quant[HUB_MAX_PATH];         /* "Q4_K_M", or a file's path; "" if none was given */
};
bool hub_parse(const char *text, struct hub_name *out, struct buf *why);
/* Ends the program as a wrong command line does if text is no name. */
void hub_check_name(const char *text);

/* The path of the model's first file, from the cache if all of it is there, else after fetching what is missing. */
bool hub_model(const char *text, struct buf *path, struct buf *why);
/* As hub_model; ends the program where there is no such path. Borrowed for the program's life. */
const char *hub_need(const char *text);
/* As hub_model, but asks the hub what is newest first. */
bool hub_pull(const char *text, struct buf *path, struct buf *why);
/* A line "owner/repo:file  size" for each GGUF model in the cache. */
bool hub_list(struct buf *out, struct buf *why);
/* Removes the GGUF files that text names, and their blobs where nothing else links to them. */
bool hub_remove(const char *text, uint64_t *bytes, struct buf *why);

/* ---- Between the files of this room ------------------------------------------------------------------------------ */

struct hub_file {
    char     path[HUB_MAX_PATH];      /* in the repository; hub_path_is_safe */
    char     hash[HUB_HASH];          /* SHA-256, or git's id where is_sha256 is false; lower-case hex */
    bool     is_sha256;
    uint64_t size;
};
struct hub_files {
    struct hub_file *v;
    int n, cap;
};
struct hub_file *hub_files_add(struct hub_files *f);
void hub_files_free(struct hub_files *f);

/* Relative, without empty, "." and ".." parts, controls and backslashes. */
bool hub_path_is_safe(const char *path);
bool hub_is_hex(const char *text, size_t n);                      /* n lower-case hex digits and nothing more */

/* The files of the model that name means, the first shard first, into out. */
bool hub_choose(const struct hub_name *name, const struct hub_files *all, struct hub_files *out, struct buf *why);
/* Whether path is a GGUF model (of a split one the first file) that name means. */
bool hub_means(const struct hub_name *name, const char *path);

char *hub_cache_folder(void);                                     /* the caller frees it; NULL: there is no home */
/* .../models--OWNER--REPO */
void hub_repo_folder(const char *cache, const struct hub_name *name, struct buf *out);
bool hub_cached_files(const char *repo, char commit[HUB_HASH], struct hub_files *out);   /* of refs/main; false: none */
bool hub_make_folders(const char *path, struct buf *why);         /* those in front of the last slash */
bool hub_link(const char *repo, const char *commit, const struct hub_file *f, struct buf *why);
bool hub_write_ref(const char *repo, const char *commit, struct buf *why);

/* The newest commit of the repository and its files. */
bool hub_fetch_list(const struct hub_name *name, char commit[HUB_HASH], struct hub_files *out, struct buf *why);
/* Fetches a file into blob, going on where an earlier try ended. */
bool hub_fetch_file(const struct hub_name *name, const char *commit, const struct hub_file *f, const char *blob,
                    struct buf *why);

#endif

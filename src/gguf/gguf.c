/* Opening a model's file or files, and looking things up in them. The contract is gguf.h, the parts are in gguf_priv.h.
 *
 * A split model is shards PREFIX-00001-of-00003.gguf and so on. All metadata is in the first, whose split.count says
 * how many there are; the others bring tensors and their own split.no. Names count from one, split.no from zero.
 *
 *     open first shard -> parse -> split keys -> for each other shard: open, parse, compare -> index of tensor names
 *
 * Each file is parsed with pread, then mapped; a second fstat makes sure that it is still the file that was parsed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "gguf/gguf_priv.h"

void pf_gguf_warn(pf_gguf *g, int shard, const char *fmt, ...)
{
    if (g->n_warnings == PF_GGUF_MAX_WARNINGS)
        return;
    char *text = g->warnings[g->n_warnings++];
    int n = shard > 0 ? snprintf(text, PF_GGUF_WARNING_BYTES, "shard %d: ", shard + 1) : 0;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + n, PF_GGUF_WARNING_BYTES - (size_t)n, fmt, args);
    va_end(args);
}

/* ---- Look-up by name ---- */

static int compare_names(const struct pf_str *a, const struct pf_str *b)
{
    int order = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

/* Equal names in the order of their entries, so that a complaint about the second names the second. */
static int by_name(const void *a, const void *b)
{
    const struct pf_str *x = *(const struct pf_str *const *)a, *y = *(const struct pf_str *const *)b;
    int order = compare_names(x, y);
    return order ? order : (x > y) - (x < y);
}

_Static_assert(offsetof(struct pf_gguf_kv, key) == 0 && offsetof(struct pf_tensor, name) == 0,
               "an indexed name is the first member of its struct");

pf_status pf_gguf_index_build(struct pf_gguf_index *index, struct pf_gguf_arena *a, const char *path, const void *first,
                              uint64_t n, size_t stride, const struct pf_str *twice[2])
{
    void *p;
    twice[0] = twice[1] = NULL;
    PF_TRY(pf_gguf_arena_alloc(a, path, n * sizeof *index->names, _Alignof(const struct pf_str *), &p));
    index->names = p;
    index->n = n;
    for (uint64_t i = 0; i < n; i++)
        index->names[i] = (const struct pf_str *)((const char *)first + i * stride);
    qsort(index->names, n, sizeof *index->names, by_name);
    for (uint64_t i = 1; i < n && !twice[0]; i++)
        if (compare_names(index->names[i - 1], index->names[i]) == 0) {
            twice[0] = index->names[i - 1];
            twice[1] = index->names[i];
        }
    return PF_OK;
}

const void *pf_gguf_index_find(const struct pf_gguf_index *index, struct pf_str name)
{
    uint64_t low = 0, high = index->n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = compare_names(&name, index->names[middle]);
        if (order == 0)
            return index->names[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- One file ---- */

pf_status pf_gguf_open_file(const char *path, int *fd, struct stat *st)
{
    /* O_NONBLOCK: a FIFO must be refused below, not waited for; regular files take no notice of it. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        PF_FAIL(PF_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode))
        return PF_OK;
    close(*fd);
    *fd = -1;
    PF_FAIL(PF_EIO, "%s: is not a regular file", path);
}

bool pf_gguf_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Shared, if the file system can: a device that pins pages of a private mapping would get copies of them. */
static pf_status map_file(struct pf_gguf_shard *s, int fd)
{
    struct stat now;
    void *p = mmap(NULL, (size_t)s->id.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        p = mmap(NULL, (size_t)s->id.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        PF_FAIL(errno == ENOMEM ? PF_ENOMEM : PF_EIO, "%s: cannot be mapped: %s", s->path, strerror(errno));
    s->map = p;
    if (fstat(fd, &now) != 0 || !pf_gguf_same_file(&now, &s->id))
        PF_FAIL(PF_ECHANGED, "%s: the file changed while it was being opened", s->path);
    return PF_OK;
}

static pf_status refuse_same_file_twice(const pf_gguf *g, int shard)
{
    const struct pf_gguf_shard *s = &g->shards[shard];
    for (int i = 0; i < shard; i++)
        if (g->shards[i].id.st_dev == s->id.st_dev && g->shards[i].id.st_ino == s->id.st_ino)
            PF_FAIL(PF_EFORMAT, "%s: is the same file as shard %d, %s", s->path, i + 1, g->shards[i].path);
    return PF_OK;
}

static pf_status parse_and_map(pf_gguf *g, int shard, int fd, unsigned flags)
{
    struct pf_gguf_shard *s = &g->shards[shard];
    PF_TRY(refuse_same_file_twice(g, shard));
    PF_TRY(pf_gguf_parse(g, shard, fd, flags));
    if (flags & PF_GGUF_VOCAB_ONLY)
        return PF_OK;
    PF_TRY(map_file(s, fd));
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        struct pf_tensor *t = &g->tensors[s->first_tensor + i];
        t->data = s->map + t->offset;
    }
    return PF_OK;
}

/* path lives in the arena. */
static pf_status load_shard(pf_gguf *g, int shard, char *path, unsigned flags)
{
    struct pf_gguf_shard *s = &g->shards[shard];
    int fd;
    s->path = path;
    PF_TRY(pf_gguf_open_file(path, &fd, &s->id));
    pf_status st = parse_and_map(g, shard, fd, flags);
    close(fd);
    return st;
}

/* ---- Split models ---- */

/* The parts of PREFIX-00002-of-00003.gguf. */
struct split_name {
    size_t prefix_len;
    int64_t no, count;               /* as the file's name has them: no counts from one */
};

/* The number of at least five digits that ends at *end, which moves to its start. */
static bool number_before(const char *s, size_t *end, int64_t *out)
{
    size_t start = *end;
    while (start > 0 && s[start - 1] >= '0' && s[start - 1] <= '9' && *end - start < 9)
        start--;
    if (*end - start < 5)
        return false;
    *out = strtol(s + start, NULL, 10);
    *end = start;
    return true;
}

static bool text_before(const char *s, size_t *end, const char *text)
{
    size_t n = strlen(text);
    if (*end < n || memcmp(s + *end - n, text, n) != 0)
        return false;
    *end -= n;
    return true;
}

static bool parse_split_name(const char *path, struct split_name *out)
{
    size_t end = strlen(path);
    if (!text_before(path, &end, ".gguf") || !number_before(path, &end, &out->count) ||
        !text_before(path, &end, "-of-") || !number_before(path, &end, &out->no) || !text_before(path, &end, "-"))
        return false;
    out->prefix_len = end;
    return true;
}

static pf_status split_path(pf_gguf *g, const struct split_name *name, int shard, char **out)
{
    const char *first = g->shards[0].path;
    size_t cap = strlen(first) + 32;
    void *p;
    PF_TRY(pf_gguf_arena_alloc(&g->arena, first, cap, 1, &p));
    *out = p;
    snprintf(*out, cap, "%.*s-%05d-of-%05d.gguf", (int)name->prefix_len, first, shard + 1, (int)name->count);
    return PF_OK;
}

/* A file's split keys; what is absent is -1. */
struct split_keys {
    int64_t no, count, n_tensors;
};

static pf_status read_split_keys(const struct pf_gguf_shard *s, struct split_keys *k)
{
    k->no = k->count = k->n_tensors = -1;
    PF_TRY(pf_gguf_shard_int_opt(s, "split.no", 0, UINT16_MAX, &k->no, NULL));
    PF_TRY(pf_gguf_shard_int_opt(s, "split.count", 0, UINT16_MAX, &k->count, NULL));
    PF_TRY(pf_gguf_shard_int_opt(s, "split.tensors.count", 0, INT32_MAX, &k->n_tensors, NULL));
    if (k->no >= 0 && k->count <= 0)
        PF_FAIL(PF_EFORMAT, "%s: split.no is %" PRId64 ", but split.count is %s", s->path, k->no,
                k->count < 0 ? "missing" : "0");
    if (k->count > 0 && k->no >= k->count)
        PF_FAIL(PF_EFORMAT, "%s: split.no is %" PRId64 ", not below split.count, which is %" PRId64, s->path, k->no,
                k->count);
    return PF_OK;
}

/* Whether the path given is that of a first shard, and its name is one that the other shards' names follow from. */
static pf_status check_first_shard(const struct pf_gguf_shard *s, const struct split_keys *k, struct split_name *name)
{
    if (k->count > PF_GGUF_MAX_SHARDS)
        PF_FAIL(PF_EFORMAT, "%s: split.count is %" PRId64 ", above the limit of %d", s->path, k->count,
                PF_GGUF_MAX_SHARDS);
    if (k->no < 0)
        PF_FAIL(PF_EFORMAT, "%s: split.count is %" PRId64 ", but split.no is missing", s->path, k->count);
    if (k->no > 0)
        PF_FAIL(PF_EINVAL, "%s: split.no is %" PRId64 ": this is shard %" PRId64 " of %" PRId64
                ", and a split model is opened by its first", s->path, k->no, k->no + 1, k->count);
    if (!parse_split_name(s->path, name))
        PF_FAIL(PF_EFORMAT, "%s: split.count is %" PRId64 ", but the file's name does not end in -00001-of-%05d.gguf, "
                "so the other shards cannot be found", s->path, k->count, (int)k->count);
    if (name->no != k->no + 1 || name->count != k->count)
        PF_FAIL(PF_EFORMAT, "%s: the file's name says shard %" PRId64 " of %" PRId64 ", but split.no and split.count "
                "say %" PRId64 " of %" PRId64, s->path, name->no, name->count, k->no + 1, k->count);
    return PF_OK;
}

static pf_status check_other_shard(const pf_gguf *g, int shard)
{
    const struct pf_gguf_shard *s = &g->shards[shard];
    struct split_keys k;
    PF_TRY(read_split_keys(s, &k));
    if (k.no < 0)
        PF_FAIL(PF_EFORMAT, "%s: split.no is missing", s->path);
    if (k.no != shard)
        PF_FAIL(PF_EFORMAT, "%s: split.no is %" PRId64 " where %d is due", s->path, k.no, shard);
    if (k.count != g->n_shards)
        PF_FAIL(PF_EFORMAT, "%s: split.count is %" PRId64 ", but the first shard says %d", s->path, k.count,
                g->n_shards);
    if (s->n_tensors == 0)
        PF_FAIL(PF_EFORMAT, "%s: n_tensors at byte 8 is 0, and only the first shard of a split model may be without "
                "tensors", s->path);
    return PF_OK;
}

static pf_status load_other_shards(pf_gguf *g, const struct split_keys *k, const struct split_name *name,
                                   unsigned flags)
{
    struct pf_gguf_shard *grown = pf_realloc(PF_MEM_GGUF, g->shards, (size_t)k->count * sizeof *grown);
    if (!grown)
        PF_FAIL(PF_ENOMEM, "%s: no memory for %" PRId64 " shards", g->shards[0].path, k->count);
    memset(grown + 1, 0, (size_t)(k->count - 1) * sizeof *grown);
    g->shards = grown;
    g->n_shards = (int)k->count;
    for (int i = 1; i < g->n_shards; i++) {
        char *path;
        PF_TRY(split_path(g, name, i, &path));
        PF_TRY(load_shard(g, i, path, flags));
        PF_TRY(check_other_shard(g, i));
    }
    return PF_OK;
}

static pf_status load_splits(pf_gguf *g, unsigned flags)
{
    const struct pf_gguf_shard *first = &g->shards[0];
    struct split_name name = { 0 };
    struct split_keys k;
    PF_TRY(read_split_keys(first, &k));
    if (k.count > 1) {
        PF_TRY(check_first_shard(first, &k, &name));
        if (flags & PF_GGUF_VOCAB_ONLY)
            return PF_OK;
        PF_TRY(load_other_shards(g, &k, &name, flags));
        first = &g->shards[0];
        if (k.n_tensors < 0)
            pf_gguf_warn(g, 0, "split.tensors.count is missing; other programs may refuse the file");
    }
    if (k.n_tensors >= 0 && !(flags & PF_GGUF_VOCAB_ONLY) && (uint64_t)k.n_tensors != g->n_tensors)
        PF_FAIL(PF_EFORMAT, "%s: split.tensors.count is %" PRId64 ", but the shards hold %" PRIu64 " tensors",
                first->path, k.n_tensors, g->n_tensors);
    return PF_OK;
}

/* ---- The whole ---- */

static pf_status index_tensors(pf_gguf *g)
{
    const struct pf_str *twice[2];
    PF_TRY(pf_gguf_index_build(&g->tensor_names, &g->arena, g->shards[0].path, g->tensors, g->n_tensors,
                               sizeof *g->tensors, twice));
    if (!twice[0])
        return PF_OK;
    const struct pf_tensor *a = (const void *)twice[0], *b = (const void *)twice[1];
    if (a->shard == b->shard)
        PF_FAIL(PF_EFORMAT, "%s: tensor '%s' is there twice, with data at byte %" PRIu64 " and at byte %" PRIu64,
                g->shards[a->shard].path, pf_gguf_quote(a->name).s, a->offset, b->offset);
    PF_FAIL(PF_EFORMAT, "%s: tensor '%s', with data at byte %" PRIu64 ", is in shard %d too", g->shards[b->shard].path,
            pf_gguf_quote(b->name).s, b->offset, a->shard + 1);
}

static pf_status open_all(pf_gguf *g, const char *path, unsigned flags)
{
    size_t n = strlen(path);
    void *copy;
    g->shards = pf_alloc(PF_MEM_GGUF, sizeof *g->shards);
    if (!g->shards)
        PF_FAIL(PF_ENOMEM, "%s: no memory to open the file", path);
    g->n_shards = 1;
    PF_TRY(pf_gguf_arena_alloc(&g->arena, path, n + 1, 1, &copy));
    memcpy(copy, path, n + 1);
    PF_TRY(load_shard(g, 0, copy, flags));
    PF_TRY(load_splits(g, flags));
    if (g->n_tensors == 0 && !(flags & (PF_GGUF_VOCAB_ONLY | PF_GGUF_EMPTY_OK)))
        PF_FAIL(PF_EFORMAT, "%s: n_tensors at byte 8 is 0: there is no model in this file", path);
    return index_tensors(g);
}

pf_status pf_gguf_open(pf_gguf **out, const char *path, unsigned flags)
{
    *out = NULL;
    if (!path)
        PF_FAIL(PF_EINVAL, "no path was given");
    pf_gguf *g = pf_alloc(PF_MEM_GGUF, sizeof *g);
    if (!g)
        PF_FAIL(PF_ENOMEM, "%s: no memory to open the file", path);
    pf_status st = open_all(g, path, flags);
    if (st < 0)
        pf_gguf_close(&g);
    *out = g;
    return st;
}

void pf_gguf_close(pf_gguf **gp)
{
    pf_gguf *g = *gp;
    if (!g)
        return;
    for (int i = 0; i < g->n_shards; i++)
        if (g->shards[i].map)
            munmap((void *)(uintptr_t)g->shards[i].map, (size_t)g->shards[i].id.st_size);
    pf_free(g->shards);
    pf_free(g->tensors);
    pf_gguf_arena_free(&g->arena);
    pf_free(g);
    *gp = NULL;
}

pf_status pf_gguf_unchanged(const pf_gguf *g)
{
    for (int i = 0; i < g->n_shards; i++) {
        const struct pf_gguf_shard *s = &g->shards[i];
        struct stat now;
        if (stat(s->path, &now) != 0)
            PF_FAIL(PF_ECHANGED, "%s: the file is gone: %s", s->path, strerror(errno));
        if (!pf_gguf_same_file(&now, &s->id))
            PF_FAIL(PF_ECHANGED, "%s: the file changed since it was opened", s->path);
    }
    return PF_OK;
}

const char *pf_gguf_path(const pf_gguf *g)
{
    return g->shards[0].path;
}

int pf_gguf_version(const pf_gguf *g)
{
    return (int)g->shards[0].version;
}

int pf_gguf_n_shards(const pf_gguf *g)
{
    return g->n_shards;
}

const char *pf_gguf_shard_path(const pf_gguf *g, int shard)
{
    return g->shards[shard].path;
}

uint64_t pf_gguf_file_bytes(const pf_gguf *g)
{
    uint64_t bytes = 0;
    for (int i = 0; i < g->n_shards; i++)
        bytes += (uint64_t)g->shards[i].id.st_size;
    return bytes;
}

const char *pf_gguf_warning(const pf_gguf *g, int i)
{
    return i >= 0 && i < g->n_warnings ? g->warnings[i] : NULL;
}

uint64_t pf_gguf_n_kv(const pf_gguf *g)
{
    return g->shards[0].n_kv;
}

const struct pf_gguf_kv *pf_gguf_kv_at(const pf_gguf *g, uint64_t i)
{
    return i < g->shards[0].n_kv ? &g->shards[0].kv[i] : NULL;
}

const struct pf_gguf_kv *pf_gguf_find(const pf_gguf *g, const char *key)
{
    return pf_gguf_shard_find(&g->shards[0], key);
}

uint64_t pf_gguf_n_tensors(const pf_gguf *g)
{
    return g->n_tensors;
}

const struct pf_tensor *pf_gguf_tensor_at(const pf_gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct pf_tensor *pf_gguf_tensor(const pf_gguf *g, const char *name)
{
    return pf_gguf_index_find(&g->tensor_names, (struct pf_str){ name, strlen(name) });
}

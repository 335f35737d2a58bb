/* See saved.h. The writer's thread touches `job` alone, under the lock. */
#define _GNU_SOURCE
#include "serve/cache/saved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program/io/buf.h"

enum { MOST_ENTRIES = 4096 };
static const char magic[8] = "pfserve1", ending[] = ".pfsession";

struct head {
    char     magic[8];
    uint64_t key, n, hash;
};

struct entry {
    int32_t *tok;
    size_t   n;
    uint64_t bytes, used;
    char    *path;                   /* NULL: in memory alone */
    struct bytes *data;              /* NULL: in its file alone */
};

/* What a session was saved to; shared by an entry and the writer. */
struct bytes {
    struct buf b;
    int holders;                     /* guarded by saved.lock */
};

struct saved {
    char    *folder;
    uint64_t most, key, total, n_used;
    struct entry entries[MOST_ENTRIES];
    int      n;
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    struct { char *path; struct bytes *data; } job;          /* path NULL: nothing is to be written */
    bool            ending;
};

static uint64_t hash_of(const int32_t *tok, size_t n)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (uint32_t)tok[i]) * 1099511628211u;
    return hash;
}

/* ---- Writing behind ---------------------------------------------------------------------------------------------- */

static void let_go(struct saved *s, struct bytes *data)
{
    pthread_mutex_lock(&s->lock);
    bool last = data && --data->holders == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    buf_free(&data->b);
    free(data);
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR)
            return false;
        p += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

static void write_file(const char *path, const struct buf *b)
{
    struct buf beside = { 0 };
    buf_printf(&beside, "%s.new", path);
    int fd = open(beside.p, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write_all(fd, b->p, b->n) && fdatasync(fd) == 0;
    if (fd >= 0)
        close(fd);
    if (!ok || rename(beside.p, path) != 0) {
        complain("cannot write %s: %s", path, strerror(errno));
        unlink(beside.p);
    }
    buf_free(&beside);
}

static void *write_behind(void *ctx)
{
    struct saved *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (s->job.path || !s->ending) {
        if (!s->job.path) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        write_file(s->job.path, &s->job.data->b);
        let_go(s, s->job.data);
        pthread_mutex_lock(&s->lock);
        free(s->job.path);
        s->job.path = NULL;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool saved_is_busy(struct saved *s)
{
    pthread_mutex_lock(&s->lock);
    bool busy = s->job.path != NULL;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

/* Waits until the one before is written: there is never more than one in memory for that. */
static void have_written(struct saved *s, struct entry *e)
{
    pthread_mutex_lock(&s->lock);
    while (s->job.path)
        pthread_cond_wait(&s->changed, &s->lock);
    s->job.path = xstrdup(e->path);
    s->job.data = e->data;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    e->data = NULL;                  /* the writer's now; a load waits for it */
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

static void forget(struct saved *s, int i)
{
    struct entry *e = &s->entries[i];
    pthread_mutex_lock(&s->lock);
    while (e->path && s->job.path && strcmp(e->path, s->job.path) == 0)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (e->path)
        unlink(e->path);
    if (e->data)
        let_go(s, e->data);
    s->total -= e->bytes;
    free(e->path);
    free(e->tok);
    *e = s->entries[--s->n];
}

static void make_room(struct saved *s, uint64_t bytes)
{
    while (s->n > 0 && (s->n == MOST_ENTRIES || s->total + bytes > s->most)) {
        int oldest = 0;
        for (int i = 1; i < s->n; i++)
            if (s->entries[i].used < s->entries[oldest].used)
                oldest = i;
        forget(s, oldest);
    }
}

static size_t common_of(const struct entry *e, const int32_t *tok, size_t n)
{
    size_t i = 0;
    while (i < n && i < e->n && e->tok[i] == tok[i])
        i++;
    return i;
}

int saved_find(const struct saved *s, const int32_t *tok, size_t n, int64_t n_ctx, bool whole, size_t *common)
{
    int best = -1;
    *common = 0;
    for (int i = 0; i < s->n; i++) {
        size_t c = common_of(&s->entries[i], tok, n);
        if (c > *common && s->entries[i].n <= (size_t)n_ctx && (!whole || (c == s->entries[i].n && c < n))) {
            *common = c;
            best = i;
        }
    }
    return best;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

struct source {
    FILE       *f;                   /* or */
    const char *p;
    size_t      left;
};

static bool read_some(void *ctx, void *to, size_t n)
{
    struct source *in = ctx;
    if (in->f)
        return fread(to, 1, n, in->f) == n;
    if (n > in->left)
        return false;
    memcpy(to, in->p, n);
    in->p += n;
    in->left -= n;
    return true;
}

bool saved_load(struct saved *s, int i, pf_session *session)
{
    struct entry *e = &s->entries[i];
    size_t head = sizeof(struct head) + e->n * sizeof *e->tok;
    struct source in = { 0 };
    if (e->data) {
        in.p = e->data->b.p + head;
        in.left = e->data->b.n - head;
    } else {
        pthread_mutex_lock(&s->lock);
        while (s->job.path && strcmp(s->job.path, e->path) == 0)
            pthread_cond_wait(&s->changed, &s->lock);
        pthread_mutex_unlock(&s->lock);
        in.f = fopen(e->path, "re");
    }
    bool ok = (in.p || (in.f && fseeko(in.f, (off_t)head, SEEK_SET) == 0)) &&
              pf_session_load(session, read_some, &in) == PF_OK && (size_t)pf_session_pos(session) == e->n &&
              memcmp(pf_session_tokens(session), e->tok, e->n * sizeof *e->tok) == 0;
    if (in.f)
        fclose(in.f);
    e->used = ++s->n_used;
    if (!ok) {
        pf_session_rewind(session, 0);
        forget(s, i);
    }
    return ok;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

struct sink {
    struct buf *to;
    uint64_t    most;
};

static bool write_some(void *ctx, const void *p, size_t n)
{
    struct sink *out = ctx;
    if (out->to->n + n > out->most)
        return false;
    buf_add(out->to, p, n);
    return true;
}

static void forget_beginnings(struct saved *s, const int32_t *tok, size_t n)
{
    for (int i = s->n; i-- > 0;)
        if (s->entries[i].n <= n && common_of(&s->entries[i], tok, n) == s->entries[i].n)
            forget(s, i);
}

bool saved_put(struct saved *s, const pf_session *session)
{
    const int32_t *tok = pf_session_tokens(session);
    struct entry e = { .n = (size_t)pf_session_pos(session), .used = ++s->n_used };
    struct head head = { .key = s->key, .n = e.n, .hash = hash_of(tok, e.n) };
    memcpy(head.magic, magic, sizeof magic);
    e.data = xrealloc(NULL, 1, sizeof *e.data);
    *e.data = (struct bytes){ .holders = 1 };
    struct sink out = { &e.data->b, s->most };
    buf_add(&e.data->b, &head, sizeof head);
    buf_add(&e.data->b, tok, e.n * sizeof *tok);
    if (pf_session_save(session, write_some, &out) < 0) {
        let_go(s, e.data);
        return false;
    }
    e.bytes = e.data->b.n;
    e.tok = xrealloc(NULL, e.n, sizeof *e.tok);
    memcpy(e.tok, tok, e.n * sizeof *tok);
    forget_beginnings(s, tok, e.n);
    make_room(s, e.bytes);
    s->total += e.bytes;
    if (s->folder) {
        struct buf path = { 0 };
        buf_printf(&path, "%s/%016" PRIx64 "%s", s->folder, head.hash ^ s->key, ending);
        e.path = path.p;
        have_written(s, &e);
    }
    s->entries[s->n++] = e;
    return true;
}

/* ---- The folder -------------------------------------------------------------------------------------------------- */

/* Takes up a file of the folder. */
static void take_up(struct saved *s, const char *name)
{
    struct buf path = { 0 };
    struct stat st;
    struct head head;
    struct entry e = { 0 };
    buf_printf(&path, "%s/%s", s->folder, name);
    FILE *f = fopen(path.p, "re");
    bool ok = f && fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode) && fread(&head, sizeof head, 1, f) == 1 &&
              memcmp(head.magic, magic, sizeof magic) == 0 && head.key == s->key && head.n > 0 &&
              head.n < (uint64_t)st.st_size / sizeof *e.tok && s->n < MOST_ENTRIES;
    if (ok) {
        e = (struct entry){ .n = head.n, .bytes = (uint64_t)st.st_size, .used = (uint64_t)st.st_mtime, .path = path.p };
        e.tok = xrealloc(NULL, e.n, sizeof *e.tok);
        ok = fread(e.tok, sizeof *e.tok, e.n, f) == e.n && hash_of(e.tok, e.n) == head.hash;
    }
    if (f)
        fclose(f);
    if (!ok) {
        free(e.tok);
        buf_free(&path);
        return;
    }
    s->n_used = e.used > s->n_used ? e.used : s->n_used;
    s->total += e.bytes;
    s->entries[s->n++] = e;
}

static bool read_folder(struct saved *s)
{
    DIR *d;
    if (mkdir(s->folder, 0700) != 0 && errno != EEXIST)
        return false;
    if (access(s->folder, W_OK | X_OK) != 0 || !(d = opendir(s->folder)))
        return false;
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name), n_ending = sizeof ending - 1;
        if (n > n_ending && strcmp(f->d_name + n - n_ending, ending) == 0)
            take_up(s, f->d_name);
    }
    closedir(d);
    make_room(s, 0);
    return true;
}

struct saved *saved_open(const char *folder, uint64_t most, uint64_t key)
{
    struct saved *s = xrealloc(NULL, 1, sizeof *s);
    *s = (struct saved){ .folder = folder ? xstrdup(folder) : NULL, .most = most, .key = key };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (folder && !read_folder(s)) {
        int error = errno;
        free(s->folder);
        free(s);
        errno = error;
        return NULL;
    }
    int error = pthread_create(&s->thread, NULL, write_behind, s);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    return s;
}

void saved_close(struct saved *s)
{
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    while (s->n > 0) {                       /* the files stay */
        struct entry *e = &s->entries[--s->n];
        if (e->data)
            let_go(s, e->data);
        free(e->path);
        free(e->tok);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->folder);
    free(s);
}

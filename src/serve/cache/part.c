/* See part.h. */
#define _GNU_SOURCE
#include "serve/cache/part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/cache/room.h"

enum { PIECE_BYTES = 256 << 10 };        /* of a file, that are read at once */

static const char magic[8] = "pfserve3", ending[] = ".pfsession";

struct head {
    char     magic[8];
    uint64_t key, parent_id, from, n;
    struct pf_saved saved;
    uint64_t hash;                   /* of all before it, and of the tokens */
};

static uint64_t hash_on(uint64_t hash, const void *p, size_t n)
{
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ c[i]) * 1099511628211u;
    return hash;
}

static uint64_t hash_of(const struct head *h, const int32_t *tok)
{
    uint64_t hash = hash_on(14695981039346656037u, h, offsetof(struct head, hash));
    return hash_on(hash, tok, (size_t)(h->n - h->from) * sizeof *tok);
}

static struct part *part_of(uint64_t parent_id, size_t from, size_t n, int32_t *tok)
{
    struct part *p = xrealloc(NULL, 1, sizeof *p);
    uint64_t begin = from, of_place = hash_on(14695981039346656037u ^ parent_id, &begin, sizeof begin),
             id = hash_on(of_place, tok, (n - from) * sizeof *tok);
    *p = (struct part){ .parent_id = parent_id, .from = from, .n = n, .tok = tok, .id = id ? id : 1 };
    return p;
}

struct part *part_new(struct part *parent, size_t from, const pf_session *session)
{
    size_t n = (size_t)pf_session_pos(session);
    int32_t *tok = xrealloc(NULL, n - from + 1, sizeof *tok);
    memcpy(tok, pf_session_tokens(session) + from, (n - from) * sizeof *tok);
    struct part *p = part_of(parent ? parent->id : 0, from, n, tok);
    p->parent = parent;
    return p;
}

void part_free(struct part *p)
{
    if (!p)
        return;
    buf_free(&p->data);
    free(p->path);
    free(p->tok);
    free(p);
}

size_t part_common(const struct part *p, const int32_t *tok, size_t n)
{
    size_t i = p->from;
    while (i < n && i < p->n && p->tok[i - p->from] == tok[i])
        i++;
    return i;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

struct sink {
    struct buf *to;
    uint64_t    most;
    struct aside *a;
    struct room room;
    bool        is_full;
};

/* Before n more bytes are written; the owner may work meanwhile. False: the work was given up. */
static bool await_room(struct sink *out, size_t n)
{
    if (room_is_ready(&out->room, n))
        return true;
    aside_leave(out->a);
    room_await(&out->room, n);
    return aside_return(out->a);
}

static bool write_some(void *ctx, const void *p, size_t n)
{
    struct sink *out = ctx;
    out->is_full = out->to->n > out->most || n > out->most - out->to->n;
    if (!aside_pause(out->a) || out->is_full || !await_room(out, n))
        return false;
    buf_add(out->to, p, n);
    return true;
}

static size_t in_front(const struct part *p)
{
    return sizeof(struct head) + (p->n - p->from) * sizeof *p->tok;
}

pf_status part_save(struct part *p, const pf_session *session, const struct part_limits *l, struct aside *a)
{
    struct head h = { .key = l->key, .parent_id = p->parent_id, .from = p->from, .n = p->n };
    struct pf_saved saved = { 0 };
    struct sink out = { .to = &p->data, .most = l->most, .a = a };
    uint64_t expected = (p->n - p->from) * l->token_bytes + l->beside_bytes;
    if (p->parent)
        saved = p->parent->saved;
    if (p->parent && p->from < p->parent->n) {
        pf_status cut = pf_saved_cut(session, &saved, (int64_t)p->from);
        if (cut < 0)
            return cut;
    }
    buf_add(&p->data, &h, sizeof h);         /* which is filled in when `saved` is known */
    buf_add(&p->data, p->tok, (p->n - p->from) * sizeof *p->tok);
    room_open(&out.room, &p->data, expected < l->most ? expected : l->most);
    pf_status st = pf_session_save_more(session, &saved, write_some, &out);
    room_close(&out.room);
    if (st < 0) {
        buf_free(&p->data);
        return out.is_full ? PF_ECONTEXT : st;
    }
    memcpy(h.magic, magic, sizeof magic);
    h.saved = p->saved = saved;
    h.hash = hash_of(&h, p->tok);
    memcpy(p->data.p, &h, sizeof h);
    p->bytes = p->data.n;
    return PF_OK;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* What is read lies in memory, a file's a piece at a time: only while a piece is fetched is a drive waited for, and
 * that away from whatever is the owner's. */
struct source {
    const char *p;
    size_t      left;                /* at p */
    int         fd;                  /* -1: there is no more than that */
    off_t       at;                  /* of the next piece */
    char       *piece;               /* [PIECE_BYTES] */
    const char *path;
    bool        was_read;            /* some of it */
    bool        ended, failed;       /* there is less than was to be read; it could not be read, or was given up */
    struct aside *a;
};

static void complain_of(const char *path, int error)
{
    complain("cannot read %s: %s", path, strerror(error));
}

static bool fetch(struct source *in)
{
    ssize_t n = 0;
    int error = 0;
    aside_leave(in->a);
    if (in->fd >= 0)
        do
            n = pread(in->fd, in->piece, PIECE_BYTES, in->at);
        while (n < 0 && (error = errno) == EINTR);
    bool goes_on = aside_return(in->a);
    if (n < 0)
        complain_of(in->path, error);
    in->failed = n < 0 || !goes_on;
    in->ended = n == 0;
    if (in->failed || in->ended)
        return false;
    in->p = in->piece;
    in->left = (size_t)n;
    in->at += n;
    return true;
}

static bool read_some(void *ctx, void *to, size_t n)
{
    struct source *in = ctx;
    in->failed = in->failed || !aside_pause(in->a);
    if (in->failed || in->ended)             /* for good, whoever asks again */
        return false;
    in->was_read = true;
    for (char *p = to; n > 0;) {
        if (in->left == 0 && !fetch(in))
            return false;
        size_t some = n < in->left ? n : in->left;
        memcpy(p, in->p, some);
        in->p += some;
        in->left -= some;
        p += some;
        n -= some;
    }
    return true;
}

static bool is_of(const struct part *p, const pf_session *session)
{
    return (size_t)pf_session_pos(session) == p->n &&
           memcmp(pf_session_tokens(session) + p->from, p->tok, (p->n - p->from) * sizeof *p->tok) == 0;
}

/* Whether the part is wrong: what was read of it was refused, or there is too little. */
static enum load load_from(struct source *in, const struct part *p, pf_session *session)
{
    pf_status st = (p->parent ? pf_session_load_more : pf_session_load)(session, read_some, in);
    if (st == PF_OK)
        return is_of(p, session) ? LOAD_DONE : LOAD_WRONG;
    bool is_refused = st == PF_EFORMAT || st == PF_EINVAL || st == PF_EUNSUPPORTED || st == PF_ECONTEXT;
    return !in->failed && (in->ended || (in->was_read && is_refused)) ? LOAD_WRONG : LOAD_FAILED;
}

static bool is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) != 0 || S_ISREG(st.st_mode);
}

static enum load load_file(struct source *in, const struct part *p, pf_session *session)
{
    aside_leave(in->a);
    in->fd = open(p->path, O_RDONLY | O_CLOEXEC);
    int error = errno;
    aside_return(in->a);
    if (in->fd < 0 && error != ENOENT)
        complain_of(p->path, error);
    if (in->fd < 0)
        return error == ENOENT ? LOAD_WRONG : LOAD_FAILED;
    in->at = (off_t)in_front(p);
    in->piece = xrealloc(NULL, PIECE_BYTES, 1);
    enum load load = is_file(in->fd) ? load_from(in, p, session) : LOAD_WRONG;
    free(in->piece);
    close(in->fd);
    return load;
}

/* Whether the session is as long as where the part goes on, with nothing of it to be evaluated again. */
static bool go_back(const struct part *p, pf_session *session)
{
    return (size_t)pf_session_pos(session) == p->from ||
           (pf_session_rewind(session, (int64_t)p->from) == PF_OK &&
            (size_t)pf_session_computed(session) == p->from);
}

enum load part_load(const struct part *p, pf_session *session, struct aside *a)
{
    struct source in = { .fd = -1, .path = p->path, .a = a };
    if (!go_back(p, session))
        return LOAD_FAILED;
    if (!p->data.n)
        return load_file(&in, p, session);
    in.p = p->data.p + in_front(p);
    in.left = p->data.n - in_front(p);
    return load_from(&in, p, session);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

char *part_path(const struct part *p, const char *folder, uint64_t key)
{
    struct buf path = { 0 };
    buf_printf(&path, "%s/%016" PRIx64 "%s", folder, p->id ^ key, ending);
    return path.p;
}

bool part_is_name(const char *name)
{
    size_t n = strlen(name), n_ending = sizeof ending - 1;
    return n > n_ending && strcmp(name + n - n_ending, ending) == 0;
}

bool part_made_name(const char *name, size_t n)
{
    const size_t n_hex = 16, n_ending = sizeof ending - 1;
    return n == n_hex + n_ending && strspn(name, "0123456789abcdef") == n_hex &&
           memcmp(name + n_hex, ending, n_ending) == 0;
}

/* The tokens behind a head that makes sense; NULL: they are not there, or it does not. */
static int32_t *read_tokens(FILE *f, const struct head *h, uint64_t file_bytes)
{
    bool ok = h->from < h->n && (h->parent_id != 0) == (h->from != 0) && h->saved.session.n_tokens == h->n &&
              h->n - h->from < file_bytes / sizeof(int32_t);
    if (!ok)
        return NULL;
    size_t n = (size_t)(h->n - h->from);
    int32_t *tok = xrealloc(NULL, n, sizeof *tok);
    if (fread(tok, sizeof *tok, n, f) == n && hash_of(h, tok) == h->hash)
        return tok;
    free(tok);
    return NULL;
}

/* Without waiting for anybody, as who opens a FIFO does. NULL: errno says why. */
static FILE *open_at_once(const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

/* Whose the file is stands in its first bytes; a damaged one may end anywhere behind them. */
static enum found read_front(FILE *f, uint64_t key, struct head *h, struct stat *st, int32_t **tok)
{
    *tok = NULL;
    if (fstat(fileno(f), st) != 0)
        return FOUND_UNREADABLE;
    size_t n = S_ISREG(st->st_mode) ? fread(h, 1, sizeof *h, f) : 0;
    bool is_ours = n >= offsetof(struct head, parent_id) && memcmp(h->magic, magic, sizeof magic) == 0 && h->key == key;
    if (is_ours && n == sizeof *h)
        *tok = read_tokens(f, h, (uint64_t)st->st_size);
    if (*tok)
        return FOUND_PART;
    return ferror(f) ? FOUND_UNREADABLE : is_ours ? FOUND_DAMAGED : FOUND_OTHER;
}

enum found part_read(const char *path, uint64_t key, struct part **p)
{
    struct stat st;
    struct head h;
    int32_t *tok;
    FILE *f = open_at_once(path);
    enum found found = f ? read_front(f, key, &h, &st, &tok) : errno == ENOENT ? FOUND_OTHER : FOUND_UNREADABLE;
    if (found == FOUND_UNREADABLE)
        complain_of(path, errno);
    if (found == FOUND_PART) {
        *p = part_of(h.parent_id, (size_t)h.from, (size_t)h.n, tok);
        (*p)->saved = h.saved;
        (*p)->bytes = (uint64_t)st.st_size;
        (*p)->used = (uint64_t)st.st_mtime;
        (*p)->path = xstrdup(path);
    }
    if (f)
        fclose(f);
    return found;
}

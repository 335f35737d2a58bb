/* See userfile.h. */
#define _GNU_SOURCE
#include "program/io/userfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Temporary files that the program's end has to clear away. Whoever takes a name out of its place has it: a signal's
 * handler, which then leaves it in memory, or else let_go. */
enum { MOST_UNFINISHED = 16 };
static _Atomic(char *) unfinished[MOST_UNFINISHED];

/* Makes every folder on the way to path. */
static void make_folders(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
}

char *userfile_path(const char *variable, const char *fallback, const char *name)
{
    const char *folder = getenv(variable), *home = getenv("HOME");
    struct buf path = { 0 };
    if (folder && folder[0] == '/')
        buf_printf(&path, "%s/pfmoe/%s", folder, name);
    else if (home && home[0] == '/')
        buf_printf(&path, "%s/%s/pfmoe/%s", home, fallback, name);
    else
        return NULL;
    make_folders(path.p);
    return path.p;
}

/* ---- What is there ----------------------------------------------------------------------------------------------- */

static bool refuse(struct buf *why, const char *path, const char *reason)
{
    buf_printf(why, "cannot write %s: %s", path, reason);
    return false;
}

/* The name that path leads to when its links are followed; it may not exist. The caller frees it. */
static char *follow(const char *path)
{
    enum { MOST_LINKS = 40 };
    char *at = xstrdup(path), link[PATH_MAX];
    for (int i = 0; i < MOST_LINKS && strncmp(at, "/proc/", 6) != 0; i++) {
        struct buf next = { 0 };
        ssize_t n = readlink(at, link, sizeof link - 1);
        if (n <= 0)
            break;
        const char *slash = link[0] == '/' ? NULL : strrchr(at, '/');
        buf_printf(&next, "%.*s%.*s", slash ? (int)(slash - at + 1) : 0, at, (int)n, link);
        free(at);
        at = next.p;
    }
    return at;
}

/* The answer to "may target be replaced"; *old is what is there, its st_mode 0 if nothing is. Opening is what asks the
 * system, about protected links in shared folders too. */
static bool look(const char *path, const char *target, struct stat *old, struct buf *why)
{
    struct stat found;
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), error = errno;
    bool same = fd >= 0 && fstat(fd, old) == 0 && lstat(target, &found) == 0 && found.st_ino == old->st_ino &&
                found.st_dev == old->st_dev;
    if (fd >= 0)
        close(fd);
    if (fd < 0) {
        *old = (struct stat){ 0 };
        return error == ENOENT || refuse(why, path, strerror(error));
    }
    if (!same)
        return refuse(why, path, "where its links lead has just changed");
    if (!(old->st_mode & 0222))
        return refuse(why, path, "it is read-only");
    if (old->st_nlink > 1)
        return refuse(why, path, "it has other names (hard links), which would not follow");
    return true;
}

/* Something that has no old contents: a device, a pipe, what a program has open. */
static bool is_stream(const char *path, const char *target)
{
    struct stat st;
    return stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || strncmp(target, "/proc/", 6) == 0);
}

bool userfile_is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
}

bool userfile_allows(const char *path, struct buf *why)
{
    struct stat old;
    char *target = follow(path), *folder = folder_of(target);
    bool stream = is_stream(path, target), is_folder = stat(path, &old) == 0 && S_ISDIR(old.st_mode);
    bool ok = is_folder ? refuse(why, path, strerror(EISDIR)) : stream || look(path, target, &old, why);
    if (ok && !stream && (!folder || faccessat(AT_FDCWD, folder, W_OK, AT_EACCESS) != 0))
        ok = refuse(why, path, folder ? strerror(errno) : "out of memory");
    free(target);
    free(folder);
    return ok;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

void userfile_clear_away(void)
{
    for (int i = 0; i < MOST_UNFINISHED; i++) {
        char *path = atomic_exchange(&unfinished[i], NULL);
        if (path)
            unlink(path);
    }
}

static void on_end(int sig)
{
    userfile_clear_away();
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Ctrl-C, `kill` and a terminal that is closed, unless the program has ways of its own with them. */
static void watch_ends(void)
{
    static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction now, a = { .sa_handler = on_end };
    sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(ends[i], &a, NULL);
}

static void enlist(const struct userfile *u)
{
    static bool asked;
    if (!asked) {
        atexit(userfile_clear_away);
        watch_ends();
    }
    asked = true;
    for (int i = 0; i < MOST_UNFINISHED; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&unfinished[i], &none, u->temporary))
            return;
    }
}

/* Takes the temporary file's name out of its place; false: a signal's handler has it. */
static bool take_out(const struct userfile *u)
{
    bool taken = false;
    for (int i = 0; u->temporary && !taken && i < MOST_UNFINISHED; i++) {
        char *mine = u->temporary;
        taken = atomic_compare_exchange_strong(&unfinished[i], &mine, NULL);
    }
    return taken;
}

static void let_go(struct userfile *u)
{
    if (take_out(u))
        free(u->temporary);
    free(u->path);
    free(u->target);
    *u = (struct userfile){ 0 };
}

void userfile_abandon(struct userfile *u)
{
    if (u->f)
        fclose(u->f);
    if (u->temporary)
        unlink(u->temporary);
    let_go(u);
}

static mode_t usual_mode(void)
{
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

/* The mode, owner and access list of the file that is replaced, or those of a new one. False with errno set. */
static bool dress(int fd, const char *target, const struct stat *old, unsigned flags)
{
    static const char acl_name[] = "system.posix_acl_access";
    char acl[4096];
    if (!old->st_mode)
        return fchmod(fd, flags & USERFILE_PRIVATE ? 0600 : usual_mode()) == 0;
    struct stat st;
    if (fstat(fd, &st) != 0 ||
        ((st.st_uid != old->st_uid || st.st_gid != old->st_gid) && fchown(fd, old->st_uid, old->st_gid) != 0))
        return false;
    ssize_t n = getxattr(target, acl_name, acl, sizeof acl);
    return fchmod(fd, old->st_mode & 07777) == 0 &&
           (n > 0 ? fsetxattr(fd, acl_name, acl, (size_t)n, 0) == 0 : n == 0 || errno == ENODATA || errno == ENOTSUP);
}

static bool open_beside(struct userfile *u, const struct stat *old, struct buf *why)
{
    struct buf name = { 0 };
    buf_printf(&name, "%s.XXXXXX", u->target);
    int fd = mkostemp(name.p, O_CLOEXEC);
    if (fd < 0) {
        refuse(why, u->path, strerror(errno));
        buf_free(&name);
        return false;
    }
    u->temporary = name.p;
    enlist(u);
    if (!dress(fd, u->target, old, u->flags) || !(u->f = fdopen(fd, "w"))) {
        buf_printf(why, "cannot write %s: its mode and owner cannot be kept: %s", u->path, strerror(errno));
        close(fd);
        return false;
    }
    return true;
}

bool userfile_open(struct userfile *u, const char *path, unsigned flags, struct buf *why)
{
    struct stat old = { 0 };
    *u = (struct userfile){ .path = xstrdup(path), .target = follow(path), .flags = flags };
    bool ok;
    if (is_stream(path, u->target)) {
        u->f = fopen(path, "we");
        ok = u->f || refuse(why, path, strerror(errno));
    } else {
        ok = look(path, u->target, &old, why);
        if (ok && (flags & USERFILE_UNASKED) && old.st_size > 0)
            ok = refuse(why, path, "it is there already");
        ok = ok && open_beside(u, &old, why);
    }
    if (!ok)
        userfile_abandon(u);
    return ok;
}

const char *userfile_name(const struct userfile *u)
{
    return u->temporary ? u->temporary : u->path;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Puts the temporary file in target's place; an unasked one not over a file that came meanwhile, where the file system
 * can promise that. */
static bool put_in_place(const struct userfile *u)
{
    struct stat st;
    bool is_new = (u->flags & USERFILE_UNASKED) && lstat(u->target, &st) != 0;
    if (is_new && renameat2(AT_FDCWD, u->temporary, AT_FDCWD, u->target, RENAME_NOREPLACE) == 0)
        return true;
    return (!is_new || errno == EINVAL) && rename(u->temporary, u->target) == 0;
}

bool userfile_commit(struct userfile *u, struct buf *why)
{
    bool ok = !ferror(u->f) && fflush(u->f) == 0 && (!u->temporary || fsync(fileno(u->f)) == 0);
    int error = errno ? errno : EIO;
    if (fclose(u->f) != 0 && ok) {
        ok = false;
        error = errno;
    }
    u->f = NULL;
    if (ok && u->temporary && !put_in_place(u)) {
        ok = false;
        error = errno;
    }
    if (!ok) {
        refuse(why, u->path, strerror(error));
        userfile_abandon(u);
        return false;
    }
    let_go(u);
    return true;
}

bool userfile_write(const char *path, unsigned flags, userfile_fill_fn *fill, void *ctx, struct buf *why)
{
    struct userfile u;
    if (!userfile_open(&u, path, flags, why))
        return false;
    if (!fill(ctx, u.f)) {
        refuse(why, path, strerror(errno));
        userfile_abandon(&u);
        return false;
    }
    return userfile_commit(&u, why);
}

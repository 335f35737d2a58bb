/* See userfile.h. */
#define _GNU_SOURCE
#include "userfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"

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

static bool write_to(const char *path, userfile_fill_fn *fill, void *ctx)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return false;
    fchmod(fileno(f), 0600);
    bool ok = fill(ctx, f) && !ferror(f);
    return fclose(f) == 0 && ok;
}

bool userfile_write(const char *path, userfile_fill_fn *fill, void *ctx)
{
    struct buf temporary = { 0 };
    buf_printf(&temporary, "%s.%ld", path, (long)getpid());
    bool ok = write_to(temporary.p, fill, ctx) && rename(temporary.p, path) == 0;
    int error = errno;
    if (!ok)
        unlink(temporary.p);
    buf_free(&temporary);
    errno = error;
    return ok;
}

/* What goes into a message besides what is typed: files, and texts from an editor. See chat.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/chat/chat.h"
#include "cli/chat/line.h"
#include "program/io/term.h"

extern char **environ;

enum { MOST_BYTES = 64 << 20 };          /* of a file that goes into a message: no context is as long */

char *path_of(const char *typed)
{
    const char *home = getenv("HOME");
    struct buf path = { 0 };
    bool tilde = typed[0] == '~' && (typed[1] == '/' || !typed[1]) && home && *home;
    bool dash = strcmp(typed, "-") == 0;     /* a file like any other: the terminal is read for messages alone */
    buf_printf(&path, "%s%s", tilde ? home : dash ? "./" : "", tilde ? typed + 1 : typed);
    return path.p;
}

/* Reads a text of whole characters. False: why says why not. */
static bool read_text(const char *path, struct buf *text, struct buf *why)
{
    struct buf raw = { 0 };
    struct stat st;
    if (stat(path, &st) != 0)
        buf_printf(why, "cannot read %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES)
        buf_printf(why, "%s is %s", path, S_ISREG(st.st_mode) ? "larger than any message" : "not a regular file");
    else if (!buf_read_file(&raw, path))
        buf_printf(why, "cannot read %s: %s", path, strerror(errno));
    else if (raw.n && memchr(raw.p, 0, raw.n))
        buf_printf(why, "%s is not a text: there is a zero byte in it", path);
    buf_add_utf8(text, buf_text(&raw), raw.n);
    while (text->n && text->p[text->n - 1] == '\n')
        text->p[--text->n] = 0;
    buf_free(&raw);
    return why->n == 0;
}

/* ---- /read ------------------------------------------------------------------------------------------------------- */

void cmd_read(struct chat *c, char *arg)
{
    struct buf text = { 0 }, why = { 0 };
    char *path = path_of(arg);
    if (!*arg) {
        note("(/read FILE)");
    } else if (!read_text(path, &text, &why)) {
        complain("%s", buf_text(&why));
    } else if (c->attached.n + text.n > MOST_BYTES) {
        complain("there is more behind the next message already than any context holds; /reset drops it");
    } else {
        buf_puts(&c->attached, c->attached.n ? "\n\n" : "");
        buf_add(&c->attached, buf_text(&text), text.n);
        note("(%s: %zu bytes, which go behind the next message)", path, text.n);
    }
    buf_free(&text);
    buf_free(&why);
    free(path);
}

/* ---- /edit ------------------------------------------------------------------------------------------------------- */

/* Runs $VISUAL, $EDITOR or vi on a file; Ctrl-C there is the editor's. The exit status, or -1. */
static int run_editor(const char *path)
{
    static char sh[] = "sh", flag[] = "-c", line[] = "eval \"exec ${VISUAL:-${EDITOR:-vi}} \\\"\\$1\\\"\"";
    char *name = xstrdup(path), *argv[] = { sh, flag, line, sh, name, NULL };
    struct sigaction ignore = { .sa_handler = SIG_IGN }, before;
    posix_spawnattr_t attr;
    sigset_t defaults;
    pid_t pid;
    int status = -1;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    sigemptyset(&ignore.sa_mask);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    sigaction(SIGINT, &ignore, &before);
    if (posix_spawn(&pid, "/bin/sh", NULL, &attr, argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    sigaction(SIGINT, &before, NULL);
    posix_spawnattr_destroy(&attr);
    free(name);
    return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A file of this user alone that holds a text. Its path, freed by the caller; NULL with errno set. */
static char *write_draft(const char *text)
{
    static const char ending[] = ".md";
    const char *folder = getenv("TMPDIR");
    struct buf path = { 0 };
    buf_printf(&path, "%s/pfmoe-XXXXXX%s", folder && *folder ? folder : "/tmp", ending);
    int fd = mkostemps(path.p, (int)strlen(ending), O_CLOEXEC);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f && fprintf(f, "%s%s", text, *text ? "\n" : "") >= 0;
    if (f && fclose(f) == 0 && ok)
        return path.p;
    buf_free(&path);
    return NULL;
}

void cmd_edit(struct chat *c, char *arg)
{
    struct buf text = { 0 }, why = { 0 };
    const char *begin = *arg ? arg : c->taken_back ? c->taken_back : "";
    char *path = write_draft(begin);
    if (!path) {
        complain("there is no file for the editor: %s", strerror(errno));
        return;
    }
    int status = run_editor(path);
    bool ok = read_text(path, &text, &why);
    unlink(path);
    free(path);
    if (status != 0)
        note("(nothing is sent: the editor ended with status %d)", status);
    else if (!ok)
        complain("%s", buf_text(&why));
    else if (text.n == 0)
        note("(nothing is sent: the text is empty)");
    else {
        line_remember(buf_text(&text));
        note("> %s", buf_text(&text));
        chat_send(c, buf_text(&text));
    }
    buf_free(&text);
    buf_free(&why);
}

/* The door for files (userfile.h), on real files: what is there stays unless the new file is whole; modes, links and
 * read-only files are respected; nothing is left behind.
 *
 *     test_userfile PATH          works in a folder of its own, PATH-XXXXXX, and removes it */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "program/io/userfile.h"

enum { BIG = 300000 };

static bool fill(void *ctx, FILE *f)
{
    return fputs(ctx, f) >= 0;
}

static bool fail_late(void *ctx, FILE *f)
{
    fputs(ctx, f);
    fflush(f);
    errno = ENOSPC;
    return false;
}

static bool leave(void *ctx, FILE *f)
{
    fputs(ctx, f);
    exit(7);
}

/* BIG bytes of one letter. */
static bool fill_big(void *ctx, FILE *f)
{
    for (int i = 0; i < BIG; i++)
        putc(*(const char *)ctx, f);
    return !ferror(f);
}

static struct buf why;

static bool put(const char *path, unsigned flags, const char *text)
{
    buf_clear(&why);
    return userfile_write(path, flags, fill, (void *)(uintptr_t)text, &why);
}

static bool holds(const char *path, const char *text)
{
    struct buf is = { 0 };
    bool ok = buf_read_file(&is, path) && strcmp(buf_text(&is), text) == 0;
    buf_free(&is);
    return ok;
}

static unsigned mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 ? st.st_mode & 07777 : 0;
}

static int n_files(void)
{
    DIR *d = opendir(".");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void new_and_old(void)
{
    umask(022);
    CHECK(put("private", USERFILE_PRIVATE, "a") && mode_of("private") == 0600, "%o", mode_of("private"));
    CHECK(put("usual", 0, "a") && mode_of("usual") == 0644, "%o", mode_of("usual"));
    chmod("usual", 0664);
    CHECK(put("usual", USERFILE_PRIVATE, "b") && holds("usual", "b"), "%s", buf_text(&why));
    CHECK(mode_of("usual") == 0664, "%o", mode_of("usual"));
    CHECK(!put("usual", USERFILE_UNASKED, "c") && holds("usual", "b"), "%s", buf_text(&why));
    CHECK(strstr(buf_text(&why), "usual"), "%s", buf_text(&why));
    CHECK(put("new", USERFILE_UNASKED, "c") && holds("new", "c"), "%s", buf_text(&why));
    chmod("new", 0400);
    CHECK(!put("new", 0, "d") && holds("new", "c") && mode_of("new") == 0400, "read-only");
    CHECK(!userfile_allows("new", &why) && strstr(buf_text(&why), "new"), "%s", buf_text(&why));
    CHECK(userfile_allows("usual", &why) && userfile_allows("not-there", &why), "allowed");
    CHECK(!userfile_allows("no/folder", &why) && !put("no/folder", 0, "x"), "no folder");
    CHECK(!put(".", 0, "x"), "a folder");
    CHECK(put("/dev/null", 0, "x") && !put("/dev/full", 0, "x"), "devices");
}

static void links(void)
{
    mkdir("deep", 0755);
    put("deep/real", 0, "a");
    CHECK(symlink("deep/real", "short") == 0 && symlink("./short", "chain") == 0 &&
          symlink("deep/none", "dangling") == 0 && symlink("round", "round") == 0, "links");
    CHECK(put("chain", 0, "b") && holds("deep/real", "b"), "%s", buf_text(&why));
    CHECK(readlink("chain", (char[9]){ 0 }, 8) > 0 && readlink("short", (char[9]){ 0 }, 8) > 0, "links stay links");
    CHECK(put("dangling", USERFILE_UNASKED, "c") && holds("deep/none", "c"), "%s", buf_text(&why));
    CHECK(!put("round", 0, "x"), "a link to itself");
    CHECK(link("deep/real", "twin") == 0, "link");
    CHECK(!put("twin", 0, "x") && holds("twin", "b") && holds("deep/real", "b"), "hard links are refused");
    CHECK(!put("chain", 0, "x") && holds("deep/real", "b"), "through a link too");
}

/* An honest user, not root, and a folder that cannot be written to. */
static void locked_folder(void)
{
    mkdir("locked", 0777);
    put("locked/file", 0, "a");
    chmod("locked/file", 0666);
    chmod("locked", 0555);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && seteuid(65534) != 0)
            _exit(2);
        _exit(userfile_allows("locked/file", &why) || put("locked/file", 0, "b"));
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 0 && holds("locked/file", "a"), "%d", status);
    chmod("locked", 0755);
}

static void failures(void)
{
    put("kept", 0, "as it was");
    int n = n_files();
    CHECK(!userfile_write("kept", 0, fail_late, "half", &why), "a failure");
    CHECK(holds("kept", "as it was") && n_files() == n, "after a failure");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = { 4096, 4096 };
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    buf_clear(&why);
    CHECK(!userfile_write("kept", 0, fill_big, "x", &why), "a full disk");
    CHECK(holds("kept", "as it was") && n_files() == n, "after a full disk");
    CHECK(strstr(buf_text(&why), strerror(EFBIG)), "%s", buf_text(&why));
    setrlimit(RLIMIT_FSIZE, &old);
    pid_t child = fork();
    if (child == 0)
        userfile_write("kept", 0, leave, "half", &why);
    int status;
    waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 7 && holds("kept", "as it was") && n_files() == n, "an exit on the way: %d", status);
}

static bool end_by(void *signal, FILE *f)
{
    fputs("half of it", f);
    fflush(f);
    raise(*(const int *)signal);
    return false;
}

/* Ctrl-C, a terminal that is closed, and `kill` end the program as ever, and nothing is left behind. */
static void ends(void)
{
    static const int signals[] = { SIGINT, SIGHUP, SIGTERM };
    put("kept", 0, "as it was");
    int n = n_files(), status;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t child = fork();
        if (child == 0) {
            userfile_write("kept", 0, end_by, (void *)(uintptr_t)&signals[i], &why);
            _exit(0);
        }
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signals[i], "signal %d: status %d", signals[i], status);
        CHECK(holds("kept", "as it was") && n_files() == n, "signal %d: %d files", signals[i], n_files());
    }
}

static bool is_whole(const char *path)
{
    struct buf is = { 0 };
    bool ok = buf_read_file(&is, path) && is.n == BIG;
    for (size_t i = 1; i < is.n; i++)
        ok &= is.p[i] == is.p[0];
    buf_free(&is);
    return ok;
}

/* Killed at any moment: the file is an old one or a new one. */
static void kills(void)
{
    int n_torn = 0, n_changed = 0;
    userfile_write("often", 0, fill_big, "z", &why);
    for (int i = 0; i < 200; i++) {
        struct stat before, after;
        stat("often", &before);
        pid_t child = fork();
        if (child == 0)
            for (char letter = 'a';; letter = letter == 'y' ? 'a' : (char)(letter + 1))
                userfile_write("often", 0, fill_big, &letter, &why);
        nanosleep(&(struct timespec){ .tv_nsec = 100000 + i * 53000 }, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        n_torn += !is_whole("often");
        stat("often", &after);
        n_changed += after.st_ino != before.st_ino;
    }
    CHECK(n_torn == 0 && n_changed > 0, "%d torn, %d changed", n_torn, n_changed);
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

int main(int argc, char **argv)
{
    struct buf folder = { 0 };
    if (argc != 2)
        return 1;
    signal(SIGHUP, SIG_DFL);                     /* nohup has it ignored, and programs leave that so */
    buf_printf(&folder, "%s-XXXXXX", argv[1]);
    if (!mkdtemp(folder.p) || chmod(folder.p, 0777) != 0 || chdir(folder.p) != 0)
        return 1;
    new_and_old();
    links();
    locked_folder();
    failures();
    ends();
    kills();
    nftw(folder.p, drop, 16, FTW_DEPTH | FTW_PHYS);
    buf_free(&folder);
    return check_status();
}

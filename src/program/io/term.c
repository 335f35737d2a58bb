/* See term.h. The handlers touch only what is declared volatile or atomic here, and call only
 * what signal handlers may. */
#define _GNU_SOURCE
#include "program/io/term.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "pfmoe.h"
#include "program/io/userfile.h"

static bool out_is_tty, err_is_tty, out_color, err_color;

static _Atomic(pf_session *) watched;
static atomic_int n_interrupts, interrupt_patience = 1;
static int wake_pipe[2] = { -1, -1 };

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static void leave(const char *text, int status)
{
    userfile_clear_away();
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
    _exit(status);
}

int term_wake_fd(void)
{
    if (wake_pipe[0] < 0 && pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        wake_pipe[0] = wake_pipe[1] = -1;
    return wake_pipe[0];
}

void term_wake(void)
{
    ssize_t ignored = write(wake_pipe[1], "", 1);        /* a full pipe wakes too */
    (void)ignored;
}

void term_woken(void)
{
    char bytes[64];
    while (read(wake_pipe[0], bytes, sizeof bytes) > 0)
        ;
}

/* The weights are a mapped file: when another process cuts it short, or the disk fails, touching them raises SIGBUS. */
static void on_sigbus(int sig)
{
    (void)sig;
    ssize_t ignored = write(STDERR_FILENO, "\n", 1);
    ignored = write(STDERR_FILENO, program_invocation_short_name, strlen(program_invocation_short_name));
    (void)ignored;
    leave(": the model file became shorter or unreadable while it was in use\n", EXIT_FAILED);
}

static void on_sigint(int sig)
{
    (void)sig;
    int saved = errno;
    if (atomic_fetch_add(&n_interrupts, 1) + 1 >= atomic_load(&interrupt_patience))
        leave(out_color ? "\033[0m\n" : "\n", EXIT_FAILED);
    pf_session *s = atomic_load(&watched);
    if (s)
        pf_session_cancel(s);
    term_wake();
    errno = saved;
}

static void handle(int sig, void (*handler)(int))
{
    struct sigaction a = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigemptyset(&a.sa_mask);
    sigaction(sig, &a, NULL);
}

void interrupt_watch(struct pf_session *s, int patience)
{
    term_wake_fd();                  /* the handler writes to it */
    atomic_store(&watched, s);
    atomic_store(&interrupt_patience, patience);
    handle(SIGINT, on_sigint);
}

bool interrupted(void)
{
    return atomic_load(&n_interrupts) > 0;
}

void interrupt_forget(void)
{
    atomic_store(&n_interrupts, 0);
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

/* Whoever starts a program without one of the three streams has its messages written to the file that is opened next
 * and gets the stream's number. So the number is taken, by a file that holds nothing and cannot be written. */
static void take_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDONLY);
}

void term_init(void)
{
    take_closed_streams();
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool color = !(no_color && *no_color) && term && *term && strcmp(term, "dumb") != 0;
    out_is_tty = isatty(STDOUT_FILENO);
    err_is_tty = isatty(STDERR_FILENO);
    out_color = color && out_is_tty;
    err_color = color && err_is_tty;
    signal(SIGPIPE, SIG_IGN);          /* so that writing fails with EPIPE */
    atexit(out_leave);
    signal(SIGXFSZ, SIG_IGN);          /* so that writing fails with EFBIG */
    handle(SIGBUS, on_sigbus);
}

bool term_out_is_tty(void)
{
    return out_is_tty;
}

bool term_out_color(void)
{
    return out_color;
}

static int columns_of(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int term_columns(void)
{
    return out_is_tty ? columns_of(STDOUT_FILENO) : 0;
}

void term_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

bool term_err_is_tty(void)
{
    return err_is_tty;
}

static const char *style_code(enum style s)
{
    switch (s) {
    case STYLE_DIM:    return "\033[2m";
    case STYLE_BOLD:   return "\033[1m";
    case STYLE_CODE:   return "\033[36m";
    case STYLE_PROMPT: return "\033[1;36m";
    case STYLE_PLAIN:  break;
    }
    return "\033[0m";
}

const char *term_style(enum style s)
{
    return out_color ? style_code(s) : "";
}

void out_style(enum style s)
{
    out_puts(term_style(s));
}

void note(const char *fmt, ...)
{
    struct buf text = { 0 };
    va_list args;
    buf_puts(&text, err_color ? style_code(STYLE_DIM) : "");
    va_start(args, fmt);
    buf_vprintf_clean(&text, fmt, args);
    va_end(args);
    buf_printf(&text, "%s\n", err_color ? style_code(STYLE_PLAIN) : "");
    out_flush();
    fputs(buf_text(&text), stderr);
    buf_free(&text);
}

void progress_bar(void *ctx, uint64_t done, uint64_t total)
{
    enum { MOST = 30, TEXT = 27 };
    static const char full[] = "##############################", empty[] = "..............................";
    int *last = ctx;                       /* percent drawn before */
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    if (percent == *last)
        return;
    *last = percent;
    int columns = columns_of(STDERR_FILENO), width = columns == 0 || columns >= TEXT + MOST ? MOST
                                                   : columns > TEXT ? columns - TEXT : 0;
    int n = percent * width / 100;
    bool is_large = total >= 1000000000;
    fprintf(stderr, "\rloading [%.*s%.*s] %3d%% of %.*f %s", n, full, width - n, empty, percent, is_large,
            (double)total / (is_large ? 1e9 : 1e6), is_large ? "GB" : "MB");
    if (done >= total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

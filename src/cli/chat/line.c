/* See line.h.
 *
 * Signals: SIGINT is term.c's and only counts; SIGWINCH, SIGCONT and, while a line is read, SIGTSTP set flags here. All
 * wake the poll in read_byte, which then does what they are about, outside any handler. A computing thread may be the
 * one that takes a signal, so the poll is woken through a pipe. */
#define _GNU_SOURCE
#include "cli/chat/line.h"

#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "program/io/term.h"
#include "program/io/userfile.h"

enum { HISTORY_SIZE = 1000 };
enum { FOR_A_LINE = 64, FOR_HISTORY = 8 };       /* times: five buffers of wide characters that double; two copies */

static EditLine *editor;
static History  *history_list;
static char     *history_path;           /* NULL: there is no place for it */
static char      prompt_text[64];
static bool      was_empty;              /* when Ctrl-C came, nothing had been typed */
static bool      reading;                /* the terminal is in the editor's hands */
static bool      brackets;               /* the terminal was asked to mark pasted text */
static volatile sig_atomic_t window_changed, stop_asked;
static complete_fn *completer;

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* libedit and the terminal library under it crash, or end the program, when a small allocation of theirs fails. So
 * before they are called, what they may want is taken and given back: either it is there for them now, or the program
 * ends with a sentence. times: how many bytes they need for each of the text. */
static void make_room(size_t text_bytes, size_t times)
{
    enum { AT_LEAST = 1 << 20 };
    free(xrealloc(NULL, AT_LEAST + times * text_bytes, 1));
}

/* ---- Reading characters ------------------------------------------------------------------------------------------ */

static void on_window(int sig)
{
    int saved = errno;
    (void)sig;
    window_changed = 1;
    term_wake();
    errno = saved;
}

static void on_stop(int sig)
{
    int saved = errno;
    (void)sig;
    stop_asked = 1;
    term_wake();
    errno = saved;
}

static void bracket(bool on)
{
    if (!brackets)
        return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", term_out_is_tty() ? stdout : stderr);
    fflush(term_out_is_tty() ? stdout : stderr);
}

/* Ctrl-Z has the system's effect but while a line is read: then the terminal is given back first. */
static void catch_stop(bool on)
{
    struct sigaction a = { .sa_handler = on ? on_stop : SIG_DFL, .sa_flags = SA_RESTART };
    sigemptyset(&a.sa_mask);
    sigaction(SIGTSTP, &a, NULL);
}

/* Stops the program, and goes on where it was once the shell lets it. */
static void stop_here(EditLine *el)
{
    stop_asked = 0;
    bracket(false);
    el_set(el, EL_PREP_TERM, 0);
    catch_stop(false);
    raise(SIGTSTP);
    catch_stop(true);
    el_set(el, EL_PREP_TERM, 1);
    bracket(true);
    window_changed = 1;
}

/* Acts on signals that came. False: the read is to end. */
static bool heed_signals(EditLine *el)
{
    term_woken();
    if (interrupted()) {
        const LineInfo *line = el_line(el);
        was_empty = line->lastchar == line->buffer;
        return false;
    }
    if (stop_asked)
        stop_here(el);
    if (window_changed) {
        window_changed = 0;
        make_room(0, 0);
        el_resize(el);
        el_set(el, EL_REFRESH);
    }
    return true;
}

/* One byte; -1 when the read is to end. */
static int read_byte(EditLine *el)
{
    struct pollfd from[] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = term_wake_fd(), .events = POLLIN } };
    unsigned char byte;
    for (;;) {
        from[0].revents = 0;
        if (poll(from, 2, -1) < 0 && errno != EINTR)
            return -1;
        if (!heed_signals(el))
            return -1;
        if (!from[0].revents)
            continue;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n == 1 && byte != 0)
            return byte;
        if (n == 1)
            continue;                    /* a Ctrl-D typed while no line was being read: not a key */
        if (n == 0 || errno != EINTR)
            return -1;
    }
}

/* The editor's source of characters. Bytes that are no character of the locale come as U+FFFD. */
static int read_char(EditLine *el, wchar_t *out)
{
    mbstate_t state = { 0 };
    for (int i = 0; i < 8; i++) {
        int byte = read_byte(el);
        if (byte < 0)
            return interrupted() ? -1 : 0;
        size_t n = mbrtowc(out, (char[]){ (char)byte }, 1, &state);
        if (n == (size_t)-2)
            continue;
        if (n == (size_t)-1)
            *out = 0xFFFD;
        return 1;
    }
    *out = 0xFFFD;
    return 1;
}

/* Bound to the mark that begins a paste: takes everything up to the mark that ends it into the line, newlines too, so
 * that nothing in it is a key. */
static unsigned char paste(EditLine *el, int key)
{
    static const wchar_t end[] = L"\033[201~";
    enum { END_LENGTH = sizeof end / sizeof *end - 1 };
    size_t n = 0, cap = 256;
    wchar_t *text = xrealloc(NULL, cap, sizeof *text);
    (void)key;
    while (n < END_LENGTH || wmemcmp(text + n - END_LENGTH, end, END_LENGTH) != 0) {
        wchar_t c;
        if (n + 1 >= cap)
            text = xrealloc(text, cap *= 2, sizeof *text);
        if (el_wgetc(el, &c) != 1) {
            free(text);
            return CC_EOF;
        }
        text[n++] = c == L'\r' ? L'\n' : c;
    }
    n -= END_LENGTH;
    text[n] = 0;
    make_room(n, FOR_A_LINE);
    int failed = n > 0 ? el_winsertstr(el, text) : 0;
    free(text);
    return failed ? CC_REFRESH_BEEP : CC_REFRESH;
}

/* ---- Tab --------------------------------------------------------------------------------------------------------- */

static size_t common(const struct candidates *c)
{
    size_t n = strlen(c->v[0]);
    for (size_t i = 1; i < c->n; i++) {
        size_t k = 0;
        while (k < n && c->v[i][k] == c->v[0][k])
            k++;
        n = k;
    }
    while (n > 0 && (c->v[0][n] & 0xC0) == 0x80)         /* not inside of a character */
        n--;
    return n;
}

/* Lists what could follow, below the line. */
static void list(const struct candidates *c)
{
    enum { MOST_LISTED = 100 };
    struct buf text = { 0 };
    buf_puts(&text, "\n");
    for (size_t i = 0; i < c->n && i < MOST_LISTED; i++) {
        buf_add_clean(&text, c->v[i], strlen(c->v[i]));
        buf_puts(&text, i + 1 < c->n ? "  " : "");
    }
    if (c->n > MOST_LISTED)
        buf_printf(&text, ".. and %zu more", c->n - MOST_LISTED);
    buf_puts(&text, "\n");
    fputs(text.p, term_out_is_tty() ? stdout : stderr);
    buf_free(&text);
}

/* Puts in what all candidates go on with; where that is nothing, they are listed. */
static unsigned char put_in(EditLine *el, const struct candidates *c, size_t n_typed)
{
    size_t n = c->n ? common(c) : 0;
    if (n <= n_typed && c->n > 1) {
        list(c);
        return CC_REDISPLAY;
    }
    if (n <= n_typed)
        return CC_ERROR;
    char *more = strndup(c->v[0] + n_typed, n - n_typed);
    int failed = more ? el_insertstr(el, more) : -1;
    free(more);
    return failed ? CC_ERROR : CC_REFRESH;
}

/* Bound to Tab. */
static unsigned char complete_line(EditLine *el, int key)
{
    const LineInfo *line = el_line(el);
    struct candidates c = { 0 };
    struct buf typed = { 0 };
    (void)key;
    buf_add(&typed, line->buffer, (size_t)(line->cursor - line->buffer));
    make_room(typed.n, FOR_A_LINE);
    completer(typed.p, &c);
    unsigned char done = put_in(el, &c, typed.n - (c.from < typed.n ? c.from : typed.n));
    for (size_t i = 0; i < c.n; i++)
        free(c.v[i]);
    free(c.v);
    buf_free(&typed);
    return done;
}

/* ---- History ----------------------------------------------------------------------------------------------------- */

static bool save_all(void *ctx, FILE *f)
{
    HistEvent event;
    (void)ctx;
    return history(history_list, &event, H_SAVE_FP, f) >= 0;
}

/* Told once; a chat goes on without. */
static void save_history(void)
{
    struct buf why = { 0 };
    if (!history_path || userfile_write(history_path, USERFILE_PRIVATE, save_all, NULL, &why))
        return;
    note("(the history is not kept: %s)", buf_text(&why));
    buf_free(&why);
    free(history_path);
    history_path = NULL;
}

void line_remember(const char *message)
{
    HistEvent event;
    if (!*message)
        return;
    make_room(strlen(message), FOR_HISTORY);
    history(history_list, &event, H_ENTER, message);
    save_history();
}

/* ---- The editor -------------------------------------------------------------------------------------------------- */

static char *prompt_of(EditLine *el)
{
    (void)el;
    return prompt_text;
}

static void bind_keys(void)
{
    static const char *const keys[][2] = {
        { "\033[200~", "pf-paste" },         { "^I", "pf-complete" },
        { "^R", "em-inc-search-prev" },      { "^W", "ed-delete-prev-word" },
        { "\033[3~", "ed-delete-next-char" }, { "\033[1;5D", "ed-prev-word" },    { "\033[1;5C", "em-next-word" },
        { "\033[H", "ed-move-to-beg" },      { "\033[F", "ed-move-to-end" },
        { "\033[1~", "ed-move-to-beg" },     { "\033[4~", "ed-move-to-end" },
    };
    el_set(editor, EL_ADDFN, "pf-paste", "take pasted text", paste);
    el_set(editor, EL_ADDFN, "pf-complete", "put in what can only follow, or list what could", complete_line);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        el_set(editor, EL_BIND, keys[i][0], keys[i][1], NULL);
}

/* Takes the terminal back from the editor where the program ends in the middle of a line. */
static void let_go(void)
{
    if (!reading)
        return;
    el_set(editor, EL_PREP_TERM, 0);
    bracket(false);
}

/* How much the history's file will take. */
static size_t history_bytes(void)
{
    struct stat st;
    return history_path && stat(history_path, &st) == 0 && st.st_size > 0 ? (size_t)st.st_size : 0;
}

static void watch_window(void)
{
    struct sigaction a = { .sa_handler = on_window, .sa_flags = SA_RESTART };
    sigemptyset(&a.sa_mask);
    sigaction(SIGWINCH, &a, NULL);
    sigaction(SIGCONT, &a, NULL);
}

void line_open(complete_fn *complete)
{
    completer = complete;
    HistEvent event;
    const char *term = getenv("TERM");
    term_locale();
    history_path = userfile_path("XDG_STATE_HOME", ".local/state", "history");
    make_room(history_bytes(), FOR_HISTORY);
    editor = el_init("pfmoe-run", stdin, term_out_is_tty() ? stdout : stderr, stderr);
    history_list = history_init();
    if (!editor || !history_list)
        die(EXIT_FAILED, "the terminal cannot be set up for editing");
    brackets = term && *term && strcmp(term, "dumb") != 0;
    history(history_list, &event, H_SETSIZE, HISTORY_SIZE);
    history(history_list, &event, H_SETUNIQUE, 1);
    if (history_path)
        history(history_list, &event, H_LOAD, history_path);
    el_set(editor, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 0);
    el_set(editor, EL_HIST, history, history_list);
    el_set(editor, EL_GETCFN, read_char);
    el_source(editor, NULL);
    bind_keys();
    term_wake_fd();
    watch_window();
    atexit(let_go);
}

void line_close(void)
{
    el_end(editor);
    history_end(history_list);
    free(history_path);
}

enum line_result line_read(const char *prompt, struct buf *out)
{
    int n = 0;
    const char *color = term_out_color() ? "\1\033[1;36m\1" : "", *plain = term_out_color() ? "\1\033[0m\1" : "";
    snprintf(prompt_text, sizeof prompt_text, "%s%s%s", color, prompt, plain);
    buf_clear(out);
    out_flush();
    interrupt_watch(NULL, INT32_MAX);
    make_room(0, 0);
    bracket(true);
    catch_stop(true);
    reading = true;
    el_set(editor, EL_PREP_TERM, 1);    /* before the prompt is drawn: a key typed after it is then the editor's */
    const char *line = el_gets(editor, &n);
    reading = false;
    catch_stop(false);
    bracket(false);
    if (!line && interrupted()) {
        interrupt_forget();
        fputc('\n', stderr);
        return was_empty ? LINE_INTERRUPT : LINE_DROPPED;
    }
    if (!line || n <= 0) {
        fputc('\n', term_out_is_tty() ? stdout : stderr);
        return LINE_END;
    }
    buf_add(out, line, (size_t)n);
    while (out->n && out->p[out->n - 1] == '\n')
        out->p[--out->n] = 0;
    return LINE_TEXT;
}

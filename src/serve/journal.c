/* See journal.h. */
#include "serve/journal.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 448, NOTE_BYTES = 64 };      /* less than a pipe has room for where poll says that it has some */

static bool is_wanted;
static atomic_uint n_left_out;

void journal_open(bool wanted)
{
    is_wanted = wanted;
}

/* Of IPv6 a client's is the first half (turns.h). */
static void put_address(struct buf *to, const struct client *who)
{
    static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
    char text[INET6_ADDRSTRLEN] = "";
    bool is_four = memcmp(who->address, mapped, sizeof mapped) == 0;
    inet_ntop(is_four ? AF_INET : AF_INET6, who->address + (is_four ? sizeof mapped : 0), text, sizeof text);
    buf_printf(to, "%s%s", text, is_four ? "" : "/64");
}

/* When, who and what. */
static void begin_line(struct buf *to, const struct exchange *x)
{
    struct tm tm;
    time_t now = time(NULL);
    char clock[16] = "";
    localtime_r(&now, &tm);
    strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    buf_printf(to, "%s ", clock);
    put_address(to, exchange_client(x));
    buf_printf(to, " %s", exchange_route(x)->path);
}

/* Reasons may have names in them that a client chose: with new lines they would pass for lines of their own. */
static void put_reason(struct buf *to, const char *text)
{
    size_t from = to->n;
    buf_add_clean(to, text, strlen(text));
    for (size_t i = from; i < to->n; i++)
        to->p[i] = to->p[i] == '\n' || to->p[i] == '\t' ? ' ' : to->p[i];
}

/* A whole line by one call, so that those of several threads do not mix. However long a reason is, there is room for
 * the NOTE_BYTES that say what nobody read. */
static void write_line(struct buf *line)
{
    unsigned missed = atomic_exchange(&n_left_out, 0);
    struct pollfd err = { .fd = STDERR_FILENO, .events = POLLOUT };
    line->n = line->n < TEXT_BYTES ? line->n : pf_utf8_complete(line->p, TEXT_BYTES);
    if (missed)
        buf_printf(line, " (%u lines in front of this one were left out)", missed);
    buf_puts(line, "\n");
    if (poll(&err, 1, 0) != 1 || !(err.revents & POLLOUT) || write(STDERR_FILENO, line->p, line->n) < 0)
        atomic_fetch_add(&n_left_out, missed + 1);
    buf_free(line);
}

static void put_rate(struct buf *to, size_t n, double seconds)
{
    buf_printf(to, "%zu in %.2f s", n, seconds);
    if (n > 1 && seconds > 0)
        buf_printf(to, " (%.1f/s)", (double)n / seconds);
}

/* Times are those of a clock, from slot to prompt to end: choices that several slots make at once share them, and what
 * waits for its next turn has that wait in them, too. */
static void put_numbers(struct buf *to, const struct job *j)
{
    const struct usage *u = &j->usage;
    buf_printf(to, " %zu tokens (%zu kept) in %.2f s, ", u->n_prompt, u->n_cached, u->prompt_s);
    put_rate(to, u->n_answer, u->answer_s);
    if (u->queued_s >= 0.01)
        buf_printf(to, ", waited %.2f s", u->queued_s);
}

void journal_answered(const struct job *j)
{
    static const char *const ends[] = { [FINISH_NONE] = "stop", [FINISH_STOP] = "stop", [FINISH_CALLS] = "calls",
                                        [FINISH_STOP_STRING] = "stop string", [FINISH_LENGTH] = "length" };
    struct buf line = { 0 };
    if (!is_wanted)
        return;
    begin_line(&line, j->x);
    put_numbers(&line, j);
    buf_printf(&line, ": %s", ends[j->choices[0].finish]);
    write_line(&line);
}

void journal_gone(const struct job *j)
{
    struct buf line = { 0 };
    if (!is_wanted)
        return;
    begin_line(&line, j->x);
    if (j->taken > 0)
        put_numbers(&line, j);
    buf_puts(&line, ": the client went away");
    write_line(&line);
}

void journal_failed(const struct exchange *x, const struct trouble *t)
{
    struct buf line = { 0 };
    if (!is_wanted)
        return;
    begin_line(&line, x);
    buf_printf(&line, " %d: ", t->status);
    put_reason(&line, t->field ? t->field : "");
    buf_puts(&line, t->field ? ": " : "");
    put_reason(&line, t->why);
    write_line(&line);
}

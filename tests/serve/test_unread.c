/* Clients of a server that ask and do not read: each loses the connection when it is held too much, all together are
 * held no more than there is room for, and nobody else waits. Real sockets; limits that are soon reached. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "serve/http/http.h"
#include "serve/http/work.h"

enum { WHOLE_BYTES = 8 << 20, PIECE_BYTES = 1 << 16, MOST_PIECES = 1 << 10 };

static char whole[WHOLE_BYTES];
static int  port;
static atomic_int n_pieces;              /* that the last stream took until its client counted as gone */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000L }, NULL);
}

/* ---- The server -------------------------------------------------------------------------------------------------- */

static void error(struct buf *out, const struct trouble *t)
{
    buf_puts(out, t->why);
}

static void answer_whole(struct exchange *x)
{
    exchange_answer(x, 200, "text/plain", whole, sizeof whole);
}

static void answer_short(struct exchange *x)
{
    exchange_answer(x, 200, "text/plain", "short", 5);
}

/* On a worker, as if it generated. */
static void answer_stream(struct exchange *x)
{
    int n = 0;
    exchange_open(x);
    while (n < MOST_PIECES && !exchange_gone(x)) {
        exchange_put(x, whole, PIECE_BYTES);
        n++;
        pause_ms(1);
    }
    exchange_end(x);
    atomic_store(&n_pieces, n);
}

static const struct route routes[] = {
    { "GET", "/whole", ROUTE_AT_ONCE, answer_whole, error },
    { "GET", "/short", ROUTE_AT_ONCE, answer_short, error },
    { "GET", "/stream", 0, answer_stream, error },
    { 0 },
};

static struct http *serve(struct unread_limits limits)
{
    struct buf why = { 0 };
    struct http *h = http_open(&(struct http_opts){ .fd = http_bind("127.0.0.1", 0, &why), .body_bytes = 1000,
                                                    .routes = routes, .unread = limits }, &port, &why);
    CHECK(h, "%s", buf_text(&why));
    buf_free(&why);
    return h;
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* A connection that has asked, with next to no room of its own. */
static int ask(const char *path)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0), room = 4096;
    char text[100];
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && send(fd, text, (size_t)n, 0) == n);
    return fd;
}

/* Whether all of it comes: what was promised in front of the body, or the last chunk of a stream. */
static bool read_all(int fd)
{
    char text[1 << 16], last[8] = { 0 };
    size_t n_all = 0;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    for (ssize_t n; poll(&p, 1, 5000) > 0 && (n = recv(fd, text, sizeof text, 0)) > 0;) {
        n_all += (size_t)n;
        for (ssize_t i = n > 5 ? n - 5 : 0; i < n; i++) {
            memmove(last, last + 1, 4);
            last[4] = text[i];
        }
        if (n_all > WHOLE_BYTES || memcmp(last, "0\r\n\r\n", 5) == 0)
            return true;
    }
    return false;
}

/* How long a short answer takes at most, asked for again and again for a while. */
static double slowest_short(double seconds)
{
    double worst = 0;
    for (double end = now() + seconds; now() < end; pause_ms(5)) {
        double begin = now();
        int fd = ask("/short");
        char text[500];
        CHECK(recv(fd, text, sizeof text, 0) > 0);
        close(fd);
        worst = now() - begin > worst ? now() - begin : worst;
    }
    return worst;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static void check_stream(void)
{
    struct http *h = serve((struct unread_limits){ 1 << 20, 64 << 20, 60, 1e6 });
    int slow = ask("/stream");
    CHECK(slowest_short(1) < 0.5);
    for (int i = 0; i < 1000 && http_running(h) > 0; i++)
        pause_ms(10);
    CHECK(http_running(h) == 0 && n_pieces < MOST_PIECES / 2, "%d pieces", (int)n_pieces);
    CHECK(!read_all(slow));
    close(slow);
    http_close(h);
}

static void check_time(void)
{
    struct http *h = serve((struct unread_limits){ 1 << 20, 64 << 20, 1, 8e6 });
    int slow = ask("/whole"), fast = ask("/whole");
    CHECK(read_all(fast));
    char text[1000];
    for (int i = 0; i < 40 && http_running(h) > 0; i++) {        /* it reads a little all the time */
        CHECK(recv(slow, text, sizeof text, 0) >= 0 || i > 10);
        pause_ms(100);
    }
    CHECK(http_running(h) == 0);
    CHECK(!read_all(slow));
    close(slow);
    close(fast);
    http_close(h);
}

static void check_all(void)
{
    enum { N = 12, ROOM = 5 };
    struct http *h = serve((struct unread_limits){ 1 << 20, ROOM * WHOLE_BYTES + WHOLE_BYTES / 2, 60, 1e6 });
    int fd[N], n_whole = 0;
    for (int i = 0; i < N; i++) {
        char text[100];
        fd[i] = ask("/whole");
        CHECK(recv(fd[i], text, sizeof text, 0) > 0);
    }
    CHECK(slowest_short(0.3) < 0.5);
    CHECK(http_running(h) == ROOM, "%d", http_running(h));
    for (int i = 0; i < N; i++) {
        bool all = read_all(fd[i]);
        CHECK(all == (i >= N - ROOM), "%d", i);
        n_whole += all;
        close(fd[i]);
    }
    CHECK(n_whole == ROOM);
    http_close(h);
}

int main(void)
{
    memset(whole, 'x', sizeof whole);
    work_open();
    check_stream();
    check_time();
    check_all();
    work_close();
    return check_status();
}

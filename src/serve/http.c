/* See http.h. One thread of libmicrohttpd's has all connections (epoll where there is one). What it calls here takes an
 * exchange's lock for a moment and never waits for work.
 *
 * An exchange's life: made by the first call of on_request, its body collected by further calls; then handed to the
 * route, the connection suspended. exchange_answer or exchange_open says what goes out and wakes the connection;
 * on_request is called again and queues the response, whose bytes read_stream takes from `out`. on_completed is the
 * connection's end, for whatever reason: from then on nobody wakes it. */
#define _GNU_SOURCE
#include "serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/work.h"

enum {
    HEADER_BYTES   = 32 << 10,       /* of a connection: the longest headers */
    IDLE_SECONDS   = 30,             /* a connection that does nothing, in headers, bodies or between requests */
    UNREAD_BYTES   = 8 << 20,        /* of a stream: who leaves more unread does not read */
    BODIES_BYTES   = 512 << 20,      /* of all bodies at a time */
    MOST_CONNECTIONS = 16384,
    FEW_CONNECTIONS  = 512,          /* where the system's limit of open files is lower than that */
    FILES_ASIDE      = 128           /* open files that are not connections */
};

struct http {
    struct MHD_Daemon *daemon;
    struct http_opts   o;
    atomic_int         running;
    atomic_size_t      bodies;       /* bytes of all bodies */
    atomic_bool        quiet;
    bool               loopback;     /* listens for this machine alone */
};

struct exchange {
    struct http           *http;
    const struct route    *route;
    struct MHD_Connection *connection;
    struct buf             body;
    bool                   handed_over;      /* the http thread's */
    char                  *origin;           /* to allow, or NULL */
    atomic_int             holders;
    pthread_mutex_t        lock;             /* guards what follows */
    int                    status;           /* 0: nothing to say yet */
    const char            *type;
    bool                   streams, ended, asleep, gone;
    int                    fd;
    struct buf             out;
    size_t                 n_sent;           /* of out */
};

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

static struct exchange *exchange_new(struct http *h, const struct route *route, struct MHD_Connection *c)
{
    struct exchange *x = xrealloc(NULL, 1, sizeof *x);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    *x = (struct exchange){ .http = h, .route = route, .connection = c, .fd = info ? (int)info->connect_fd : -1 };
    pthread_mutex_init(&x->lock, NULL);
    atomic_store(&x->holders, 1);
    atomic_fetch_add(&h->running, 1);
    return x;
}

void exchange_hold(struct exchange *x)
{
    atomic_fetch_add(&x->holders, 1);
}

void exchange_drop(struct exchange *x)
{
    if (atomic_fetch_sub(&x->holders, 1) > 1)
        return;
    atomic_fetch_sub(&x->http->bodies, x->body.n);
    atomic_fetch_sub(&x->http->running, 1);
    pthread_mutex_destroy(&x->lock);
    buf_free(&x->body);
    buf_free(&x->out);
    free(x->origin);
    free(x);
}

const struct buf *exchange_body(const struct exchange *x)
{
    return &x->body;
}

const struct route *exchange_route(const struct exchange *x)
{
    return x->route;
}

void *exchange_ctx(const struct exchange *x)
{
    return x->http->o.ctx;
}

/* With the lock. */
static void wake(struct exchange *x)
{
    if (x->asleep && !x->gone)
        MHD_resume_connection(x->connection);
    x->asleep = false;
}

/* With the lock, on the http thread. */
static void sleep_until_woken(struct exchange *x)
{
    x->asleep = true;
    MHD_suspend_connection(x->connection);
}

void exchange_answer(struct exchange *x, int status, const char *type, const char *text, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (!x->status) {
        x->status = status;
        x->type = type;
        buf_add(&x->out, text, n);
        x->ended = true;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void exchange_error(struct exchange *x, const struct trouble *t)
{
    struct buf text = { 0 };
    x->route->error(&text, t);
    exchange_answer(x, t->status, "application/json", buf_text(&text), text.n);
    buf_free(&text);
}

void exchange_open(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->status) {
        x->status = MHD_HTTP_OK;
        x->type = "text/event-stream; charset=utf-8";
        x->streams = true;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void exchange_put(struct exchange *x, const char *text, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (x->out.n - x->n_sent > UNREAD_BYTES)
        x->gone = true;
    if (!x->gone) {
        buf_add(&x->out, text, n);
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void exchange_end(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

bool exchange_gone(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

int exchange_fd(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    int fd = x->gone ? -1 : x->fd;
    pthread_mutex_unlock(&x->lock);
    return fd;
}

/* The connection is woken, so that libmicrohttpd sees for itself that the client has gone, and closes it. */
void exchange_leave(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->status) {
        x->status = 499;
        x->type = "text/plain";
    }
    x->ended = true;
    wake(x);
    x->gone = true;
    pthread_mutex_unlock(&x->lock);
}

/* ---- What goes out ----------------------------------------------------------------------------------------------- */

static ssize_t read_stream(void *ctx, uint64_t pos, char *to, size_t max)
{
    struct exchange *x = ctx;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    size_t left = x->out.n - x->n_sent;
    if (left > 0) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(to, x->out.p + x->n_sent, (size_t)n);
        x->n_sent += (size_t)n;
        if (x->n_sent == x->out.n) {
            buf_clear(&x->out);
            x->n_sent = 0;
        }
    } else if (x->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        sleep_until_woken(x);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void stream_over(void *ctx)
{
    exchange_drop(ctx);
}

static void allow_origin(struct MHD_Response *response, const char *origin)
{
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(response, "Vary", "Origin");
    MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, "
                            "Anthropic-Version, Anthropic-Beta");
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
}

static enum MHD_Result send_text(struct MHD_Connection *c, int status, const char *type, const char *text, size_t n,
                                 const char *origin, bool close)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(n, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    if (origin)
        allow_origin(response, origin);
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(response, "Retry-After", "1");
    if (close)
        MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result done = MHD_queue_response(c, (unsigned)status, response);
    MHD_destroy_response(response);
    return done;
}

static enum MHD_Result send_stream(struct exchange *x)
{
    enum { BLOCK = 16 << 10 };
    struct MHD_Response *response;
    exchange_hold(x);
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, x, stream_over);
    if (!response) {
        exchange_drop(x);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", x->type);
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");        /* nginx passes each piece on at once */
    if (x->origin)
        allow_origin(response, x->origin);
    enum MHD_Result done = MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    return done;
}

/* The answer, if there is one by now; until then the connection sleeps. */
static enum MHD_Result send_or_sleep(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool ready = x->status != 0, streams = x->streams;
    if (!ready)
        sleep_until_woken(x);
    pthread_mutex_unlock(&x->lock);
    if (!ready)
        return MHD_YES;
    return streams ? send_stream(x) : send_text(x->connection, x->status, x->type, buf_text(&x->out), x->out.n,
                                                x->origin, false);
}

/* ---- Who may ----------------------------------------------------------------------------------------------------- */

/* In a time that does not depend on how much is right. */
static bool same_secret(const char *given, const char *key)
{
    size_t n = strlen(given), n_key = strlen(key);
    unsigned char wrong = n != n_key;
    for (size_t i = 0; i < n; i++)
        wrong |= (unsigned char)(given[i] ^ key[n_key ? i % n_key : 0]);
    return wrong == 0;
}

static bool has_key(const struct http *h, struct MHD_Connection *c)
{
    const char *bearer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *plain = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Api-Key");
    if (!h->o.api_key)
        return true;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && same_secret(bearer + 7, h->o.api_key))
        return true;
    return plain && same_secret(plain, h->o.api_key);
}

/* Whether a Host header can only mean this machine: an address, or the name of the loopback. A domain of the internet
 * that was made to resolve to 127.0.0.1 (DNS rebinding) is neither. */
static bool is_this_machine(const char *host)
{
    char name[64];
    unsigned char address[16];
    bool brackets = host[0] == '[';
    size_t n = brackets ? strcspn(++host, "]") : strcspn(host, ":");
    if (n >= sizeof name)
        return false;
    memcpy(name, host, n);
    name[n] = 0;
    return strcasecmp(name, "localhost") == 0 || inet_pton(brackets ? AF_INET6 : AF_INET, name, address) == 1;
}

/* A page of another site may not use the server, not even blindly: where a browser says whose page it is, that must be
 * the server's own or an allowed one. */
static bool origin_is_fine(const struct http *h, struct MHD_Connection *c, const char *origin)
{
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *scheme_end = strstr(origin, "://");
    if (h->o.cors && (strcmp(h->o.cors, "*") == 0 || strcmp(h->o.cors, origin) == 0))
        return true;
    return host && scheme_end && strcasecmp(scheme_end + 3, host) == 0 && (!h->loopback || is_this_machine(host));
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static void plain_error(struct buf *out, const char *why)
{
    buf_printf(out, "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,"
               "\"code\":null}}\n", why);
}

static enum MHD_Result refuse(const struct route *route, struct MHD_Connection *c, int status, const char *why)
{
    struct buf text = { 0 };
    if (route && route->error)
        route->error(&text, &(struct trouble){ .status = status, .why = why });
    else
        plain_error(&text, why);
    enum MHD_Result done = send_text(c, status, "application/json", buf_text(&text), text.n, NULL, true);
    buf_free(&text);
    return done;
}

/* *known: the path is there, with another method. */
static const struct route *find_route(const struct http *h, const char *method, const char *path, bool *known)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *known = false;
    for (const struct route *r = h->o.routes; r->method; r++)
        if (strcmp(r->path, path) == 0) {
            *known = true;
            if (strcmp(r->method, wanted) == 0)
                return r;
        }
    return NULL;
}

static size_t content_length(struct MHD_Connection *c)
{
    const char *text = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    return text ? (size_t)strtoull(text, NULL, 10) : 0;
}

/* The beginning of a request: refused by what its headers say, or an exchange. */
static enum MHD_Result begin(struct http *h, struct MHD_Connection *c, const char *method, const char *path,
                             void **slot)
{
    bool known;
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    const struct route *route = find_route(h, method, path, &known);
    if (origin && !origin_is_fine(h, c, origin))
        return refuse(route, c, MHD_HTTP_FORBIDDEN, "pages of this origin may not use the server (see --cors)");
    if (strcmp(method, "OPTIONS") == 0 && origin)
        return send_text(c, MHD_HTTP_NO_CONTENT, "text/plain", "", 0, origin, false);
    if (!route)
        return refuse(NULL, c, known ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND,
                      known ? "this path has another method" : "there is nothing at this path");
    if (!(route->flags & ROUTE_OPEN) && !has_key(h, c))
        return refuse(route, c, MHD_HTTP_UNAUTHORIZED, "the API key is missing or wrong");
    if (atomic_load(&h->quiet))
        return refuse(route, c, MHD_HTTP_SERVICE_UNAVAILABLE, "the server is shutting down");
    if (content_length(c) > h->o.body_bytes)
        return refuse(route, c, MHD_HTTP_CONTENT_TOO_LARGE, "the body is too large");
    if (content_length(c) + atomic_load(&h->bodies) > BODIES_BYTES)
        return refuse(route, c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many large requests at the same time");
    struct exchange *x = exchange_new(h, route, c);
    x->origin = origin ? xstrdup(origin) : NULL;
    *slot = x;
    return MHD_YES;
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t *n)
{
    if (x->body.n + *n > x->http->o.body_bytes || atomic_load(&x->http->bodies) + *n > BODIES_BYTES)
        return MHD_NO;               /* only a body that did not say how long it is comes here */
    buf_add(&x->body, data, *n);
    atomic_fetch_add(&x->http->bodies, *n);
    *n = 0;
    return MHD_YES;
}

static void handle(void *ctx)
{
    struct exchange *x = ctx;
    x->route->handle(x);
    exchange_drop(x);
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **slot)
{
    struct http *h = ctx;
    struct exchange *x = *slot;
    (void)version;
    if (!x)
        return begin(h, c, method, url, slot);
    if (*n_data)
        return take_body(x, data, n_data);
    if (!x->handed_over) {
        x->handed_over = true;
        if (x->route->flags & ROUTE_AT_ONCE) {
            x->route->handle(x);
        } else {
            exchange_hold(x);
            if (!work_add(handle, x)) {
                exchange_error(x, &(struct trouble){ .status = MHD_HTTP_SERVICE_UNAVAILABLE,
                                                     .why = "too many requests wait" });
                exchange_drop(x);
            }
        }
    }
    return send_or_sleep(x);
}

static void on_completed(void *ctx, struct MHD_Connection *c, void **slot, enum MHD_RequestTerminationCode how)
{
    struct exchange *x = *slot;
    (void)ctx;
    (void)c;
    (void)how;
    if (!x)
        return;
    *slot = NULL;
    pthread_mutex_lock(&x->lock);
    x->gone = true;
    x->fd = -1;
    pthread_mutex_unlock(&x->lock);
    exchange_drop(x);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* A socket that listens; -1: *why. */
static int listen_at(const char *host, int port, struct buf *why)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *all;
    char service[16];
    int fd = -1, error = 0, one = 1;
    snprintf(service, sizeof service, "%d", port);
    int failed = getaddrinfo(host, service, &hints, &all);
    if (failed) {
        buf_printf(why, "--host %s: %s", host, gai_strerror(failed));
        return -1;
    }
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
            error = errno;
            if (fd >= 0)
                close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(all);
    if (fd < 0)
        buf_printf(why, "cannot listen at %s port %d: %s", host, port, strerror(error));
    return fd;
}

static int port_of(int fd, bool *loopback)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    *loopback = false;
    if (getsockname(fd, (struct sockaddr *)&at, &n) != 0)
        return 0;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&at;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&at;
    *loopback = at.ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                                         : ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return ntohs(at.ss_family == AF_INET6 ? six->sin6_port : four->sin_port);
}

/* As many connections as the system lets this program have. */
static unsigned most_connections(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return FEW_CONNECTIONS;
    files.rlim_cur = files.rlim_max < MOST_CONNECTIONS + FILES_ASIDE ? files.rlim_max : MOST_CONNECTIONS + FILES_ASIDE;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < FEW_CONNECTIONS + FILES_ASIDE)
        return FEW_CONNECTIONS;
    return (unsigned)files.rlim_cur - FILES_ASIDE;
}

struct http *http_open(const struct http_opts *o, int *port, struct buf *why)
{
    int fd = listen_at(o->host, o->port, why);
    if (fd < 0)
        return NULL;
    struct http *h = xrealloc(NULL, 1, sizeof *h);
    *h = (struct http){ .o = *o };
    *port = port_of(fd, &h->loopback);
    h->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL,
        on_request, h, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
        MHD_OPTION_CONNECTION_LIMIT, most_connections(), MHD_OPTION_END);
    if (h->daemon)
        return h;
    buf_printf(why, "the HTTP server does not start");
    close(fd);
    free(h);
    return NULL;
}

void http_quiet(struct http *h)
{
    atomic_store(&h->quiet, true);
}

int http_running(struct http *h)
{
    return atomic_load(&h->running);
}

void http_close(struct http *h)
{
    MHD_stop_daemon(h->daemon);
    free(h);
}

/* See http.h. One thread of libmicrohttpd's has all connections (epoll where there is one). What it calls here takes an
 * exchange's lock for a moment and never waits for work. */
#define _GNU_SOURCE
#include "serve/http/exchange.h"

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http/work.h"

enum {
    HEADER_BYTES   = 32 << 10,       /* of a connection: the longest headers */
    IDLE_SECONDS   = 30,             /* a connection that does nothing, in headers, bodies or between requests */
    BODIES_BYTES   = 512 << 20,      /* of all bodies, until their answers are made, ... */
    ADDRESS_BYTES  = 384 << 20,      /* ... and of one address's, so that something is left for others */
    DROPPED_BYTES  = 1 << 30,        /* of a refused body: more of it ends the connection */
    LONG_BYTES     = 1 << 20,        /* a body from this size on takes long to read */
    MAPPED_BYTES   = 1 << 20,        /* memory from this size on is mapped for itself */
    MOST_CONNECTIONS = 16384,
    FEW_CONNECTIONS  = 512,          /* where the system's limit of open files is lower than that */
    FILES_ASIDE      = 128           /* open files that are not connections */
};

static const char shutting_down[] = "the server is shutting down";

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

/* An address as turns.h has it: IPv4 as it is mapped into IPv6. A client has 2^64 addresses of IPv6 and more. */
static void set_address(struct client *who, const unsigned char *six, const unsigned char *four)
{
    static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
    bool is_mapped = four || memcmp(six, mapped, sizeof mapped) == 0;
    memset(who->address, 0, sizeof who->address);
    if (is_mapped) {
        memcpy(who->address, mapped, sizeof mapped);
        memcpy(who->address + sizeof mapped, four ? four : six + sizeof mapped, 4);
    } else {
        memcpy(who->address, six, 8);
    }
}

static bool is_loopback(const struct client *who)
{
    static const unsigned char none[8];
    return who->address[10] == 0xff ? who->address[12] == IN_LOOPBACKNET : memcmp(who->address, none, 8) == 0;
}

/* The last address of a list: the one that the proxy in front of this server saw itself. */
static void set_forwarded(struct client *who, const char *list)
{
    const char *last = strrchr(list, ',');
    char text[64];
    unsigned char address[16];
    last = last ? last + 1 : list;
    last += strspn(last, " \t[");
    size_t n = strcspn(last, " \t]");
    if (n >= sizeof text)
        return;
    memcpy(text, last, n);
    text[n] = 0;
    if (inet_pton(AF_INET, text, address) == 1)
        set_address(who, NULL, address);
    else if (inet_pton(AF_INET6, text, address) == 1)
        set_address(who, address, NULL);
}

/* Some proxies write a line of their own behind the client's. */
static enum MHD_Result take_forwarded(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind;
    if (value && strcasecmp(key, "X-Forwarded-For") == 0)
        *(const char **)ctx = value;
    return MHD_YES;
}

static uint64_t hash_of(uint64_t hash, const char *text)
{
    for (const char *p = text ? text : ""; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    return hash * 1099511628211u;
}

static atomic_size_t *bodies_of(struct http *h, const struct client *who)
{
    uint64_t hash = h->hash_key;
    for (size_t i = 0; i < sizeof who->address; i++)
        hash = (hash ^ who->address[i]) * 1099511628211u;
    return &h->bodies_of[(hash ^ hash >> 32) % (sizeof h->bodies_of / sizeof *h->bodies_of)];
}

/* A proxy on this machine is believed who asks through it; whoever else is here could have more than turns, too. */
static void set_client(struct client *who, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *at = info ? info->client_addr : NULL;
    const char *forwarded = NULL;
    static const char *const names[] = { "Authorization", "X-Api-Key", "User-Agent" };
    *who = (struct client){ .name = 14695981039346656037u };
    if (at && at->sa_family == AF_INET6)
        set_address(who, ((const struct sockaddr_in6 *)(const void *)at)->sin6_addr.s6_addr, NULL);
    else if (at && at->sa_family == AF_INET)
        set_address(who, NULL, (const unsigned char *)&((const struct sockaddr_in *)(const void *)at)->sin_addr);
    if (is_loopback(who))
        MHD_get_connection_values(c, MHD_HEADER_KIND, take_forwarded, &forwarded);
    if (forwarded)
        set_forwarded(who, forwarded);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        who->name = hash_of(who->name, MHD_lookup_connection_value(c, MHD_HEADER_KIND, names[i]));
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

static bool is_at(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);
    return n > 1 && r->path[n - 1] == '/' ? strncmp(path, r->path, n) == 0 : strcmp(path, r->path) == 0;
}

/* *known: the path is there, with another method. */
static const struct route *find_route(const struct http *h, const char *method, const char *path, bool *known)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *known = false;
    for (const struct route *r = h->o.routes; r->method; r++)
        if (is_at(r, path)) {
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

/* The status that refuses a body which has n bytes and gets so many more, 0 for none. of_address: what the client's
 * address has. */
static int body_refused(const struct http *h, const atomic_size_t *of_address, size_t n, size_t more)
{
    if (n + more < more || n + more > h->o.body_bytes)
        return MHD_HTTP_CONTENT_TOO_LARGE;
    bool full = more + atomic_load(&h->bodies) > BODIES_BYTES || more + atomic_load(of_address) > ADDRESS_BYTES;
    return full ? MHD_HTTP_SERVICE_UNAVAILABLE : 0;
}

static const char *why_refused(int status)
{
    return status == MHD_HTTP_CONTENT_TOO_LARGE ? "the body is too large (--body-mb)"
                                                : "too many large requests at the same time";
}

/* Most clients send a body before they read, and see a closed connection where the answer does not wait for the body's
 * end. So a refused body is read and dropped, but for one that its client keeps until it hears, or that has no end. */
static bool answer_waits(struct MHD_Connection *c, size_t length)
{
    return length < DROPPED_BYTES && !MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Expect");
}

struct framing {
    int  n_lengths, n_hosts;
    bool is_chunked;
};

static enum MHD_Result see_header(void *ctx, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct framing *f = ctx;
    (void)kind, (void)value;
    f->n_lengths += strcasecmp(name, "Content-Length") == 0;
    f->n_hosts += strcasecmp(name, "Host") == 0;
    f->is_chunked = f->is_chunked || strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* What says twice where it ends, or who it is for, may be two requests to a proxy in front (RFC 9112, 6.3). */
static bool is_ambiguous(struct MHD_Connection *c)
{
    struct framing f = { 0 };
    MHD_get_connection_values(c, MHD_HEADER_KIND, see_header, &f);
    return f.n_lengths + f.is_chunked > 1 || f.n_hosts > 1;
}

/* The beginning of a request: refused by what its headers say, or an exchange. */
static enum MHD_Result begin(struct http *h, struct MHD_Connection *c, const char *method, const char *path,
                             void **slot)
{
    bool known;
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    const struct route *route = find_route(h, method, path, &known);
    if (is_ambiguous(c))
        return refuse(route, c, MHD_HTTP_BAD_REQUEST, "there are two of Content-Length, Transfer-Encoding or Host");
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
        return refuse(route, c, MHD_HTTP_SERVICE_UNAVAILABLE, shutting_down);
    struct client client;
    set_client(&client, c);
    atomic_size_t *of_address = bodies_of(h, &client);
    size_t length = content_length(c);
    int refused = body_refused(h, of_address, 0, length);
    if (refused && !answer_waits(c, length))
        return refuse(route, c, refused, why_refused(refused));
    struct exchange *x = exchange_new(h, route, c);
    x->client = client;
    x->of_address = of_address;
    x->refused = refused;
    x->origin = origin ? xstrdup(origin) : NULL;
    x->rest = xstrdup(path + strlen(route->path));
    *slot = x;
    return MHD_YES;
}

/* A body that did not say how long it is may turn out too large here. */
static enum MHD_Result take_body(struct exchange *x, const char *data, size_t *n)
{
    int refused = x->refused ? x->refused : body_refused(x->http, x->of_address, x->body.n, *n);
    if (refused) {
        exchange_drop_body(x);
        exchange_uncount_body(x);
        x->refused = refused;
        x->n_dropped += *n;
    } else {
        buf_add(&x->body, data, *n);
        atomic_fetch_add(&x->http->bodies, *n);
        atomic_fetch_add(x->of_address, *n);
        atomic_fetch_add(&x->n_counted, *n);
    }
    *n = 0;
    return x->n_dropped > DROPPED_BYTES ? MHD_NO : MHD_YES;
}

static void handle(void *ctx)
{
    struct exchange *x = ctx;
    x->route->handle(x);
    exchange_drop_body(x);               /* here, since giving much memory back takes long; answers may take longer */
    exchange_drop(x);
}

static void handle_none(void *ctx)
{
    struct exchange *x = ctx;
    exchange_error(x, &(struct trouble){ .status = MHD_HTTP_SERVICE_UNAVAILABLE, .why = "too many requests wait" });
    exchange_drop(x);
}

/* A request is counted before anybody looks whether the server ends: whoever waits for the end then sees the request,
 * or the request sees that the end has come. */
static void hand_over(struct exchange *x)
{
    x->handed_over = true;
    atomic_fetch_add(&x->http->running, 1);
    atomic_fetch_add(&x->http->unanswered, 1);
    if (atomic_load(&x->http->quiet)) {
        exchange_error(x, &(struct trouble){ .status = MHD_HTTP_SERVICE_UNAVAILABLE, .why = shutting_down });
    } else if (x->refused) {
        exchange_error(x, &(struct trouble){ .status = x->refused, .why = why_refused(x->refused) });
    } else if (x->route->flags & ROUTE_AT_ONCE) {
        x->route->handle(x);
    } else {
        exchange_hold(x);
        work_add(x->body.n > LONG_BYTES ? WORK_LONG : WORK_SHORT, exchange_client(x), handle, handle_none, x);
    }
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
    if (!x->handed_over)
        hand_over(x);
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
    unread_forget(x->http->unread, &x->unread);
    pthread_mutex_unlock(&x->lock);
    exchange_drop(x);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

int http_bind(const char *host, int port, struct buf *why)
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
        if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) != 0) {
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
    if (listen(o->fd, SOMAXCONN) != 0) {
        buf_printf(why, "cannot listen: %s", strerror(errno));
        close(o->fd);
        return NULL;
    }
    struct http *h = xrealloc(NULL, 1, sizeof *h);
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);     /* all wait while a body grows: its pages are moved, not copied */
    *h = (struct http){ .o = *o };
    if (getrandom(&h->hash_key, sizeof h->hash_key, 0) < 0)
        h->hash_key = (uintptr_t)h;
    *port = port_of(o->fd, &h->loopback);
    h->unread = unread_open(&o->unread);
    unsigned most = most_connections();          /* one address has three quarters of them at most */
    h->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL,
        on_request, h, MHD_OPTION_LISTEN_SOCKET, o->fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
        MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_PER_IP_CONNECTION_LIMIT, most - most / 4, MHD_OPTION_END);
    if (h->daemon)
        return h;
    buf_printf(why, "the HTTP server does not start");
    unread_close(h->unread);
    close(o->fd);
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

int http_unanswered(struct http *h)
{
    return atomic_load(&h->unanswered);
}

void http_close(struct http *h)
{
    MHD_stop_daemon(h->daemon);
    unread_close(h->unread);
    free(h);
}

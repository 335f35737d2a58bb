/* HTTP: connections, limits, keys, origins, bodies in, answers and event streams out. This room alone knows
 * libmicrohttpd.
 *
 *     the http thread               a worker (work.h)             the scheduler's thread (scheduler.h)
 *     headers, body  -- exchange -> route->handle  ------------->  a step, a step, ...
 *     bytes to the client   <------ exchange_answer, exchange_open, exchange_put, exchange_end
 *
 * An exchange is one request and its answer. It belongs to the connection and to whoever works on it: each holds it
 * and lets go of it. Its connection sleeps (suspended) while there is nothing to send. All functions may be called from
 * any thread. */
#ifndef PF_SERVE_HTTP_H
#define PF_SERVE_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "program/io/buf.h"
#include "serve/http/turns.h"
#include "serve/http/unread.h"

struct exchange;

struct trouble {
    int         status;              /* of HTTP */
    const char *field;               /* the one that is wrong, or NULL */
    const char *code;                /* the protocol's word for it, or NULL */
    const char *why;                 /* one sentence */
};

enum { ROUTE_AT_ONCE = 1,            /* handled on the http thread: it must not wait or work */
       ROUTE_OPEN = 2 };             /* needs no key */
struct route {
    const char *method, *path;       /* a path that ends with a slash, "/" apart: whatever follows it, too */
    unsigned    flags;
    void      (*handle)(struct exchange *x);
    void      (*error)(struct buf *out, const struct trouble *t);        /* the protocol's form of an error */
};

struct http_opts {
    int         fd;                  /* http_bind's, which http_open closes if it fails, else http_close */
    const char *api_key;             /* NULL: anybody may */
    const char *cors;                /* an origin that browsers may call from, "*" for all; NULL: none */
    size_t      body_bytes;          /* the largest body */
    struct unread_limits unread;     /* what is held for clients that do not read */
    const struct route *routes;      /* ends with a method of NULL */
    void       *ctx;                 /* exchange_ctx */
};
struct http;

/* A socket at an address, to which nobody can connect yet; port 0: any that is free. -1: *why says why not. */
int http_bind(const char *host, int port, struct buf *why);
/* NULL: *why says why not. The socket's port is in *port. */
struct http *http_open(const struct http_opts *o, int *port, struct buf *why);
/* No new connections and no new requests; those that run go on. */
void http_quiet(struct http *h);
/* Requests, read to their end, whose answers are not made or not sent; those whose answers are not made. */
int  http_running(struct http *h);
int  http_unanswered(struct http *h);
void http_close(struct http *h);

const struct buf   *exchange_body(const struct exchange *x);     /* until the route's handler returns */
const struct route *exchange_route(const struct exchange *x);
void               *exchange_ctx(const struct exchange *x);
const char         *exchange_rest(const struct exchange *x);     /* of the path, behind the route's */
const struct client *exchange_client(const struct exchange *x);

/* The whole answer. Without effect where there is one. */
void exchange_answer(struct exchange *x, int status, const char *type, const char *text, size_t n);
/* An error as the whole answer, in the protocol's form of an error. Not for streams that are open. */
void exchange_error(struct exchange *x, const struct trouble *t);

/* An event stream: opened, written piece by piece, ended. A client that reads too slowly counts as gone, and loses the
 * connection. */
void exchange_open(struct exchange *x);
void exchange_put(struct exchange *x, const char *text, size_t n);
void exchange_end(struct exchange *x);
/* Bytes that were put so far. */
uint64_t exchange_n_put(struct exchange *x);

/* Whether the client is, so that nobody reads what is put. Asks the system; the exchange is over if it is. */
bool exchange_gone(struct exchange *x);

void exchange_hold(struct exchange *x);
void exchange_drop(struct exchange *x);

#endif

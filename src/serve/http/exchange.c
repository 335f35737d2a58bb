/* Exchanges: what goes out, and a connection's sleep. See exchange.h and http.h. */
#define _GNU_SOURCE                      /* POLLRDHUP */
#include "serve/http/exchange.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

struct exchange *exchange_new(struct http *h, const struct route *route, struct MHD_Connection *c)
{
    struct exchange *x = xrealloc(NULL, 1, sizeof *x);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    *x = (struct exchange){ .http = h, .route = route, .connection = c, .fd = info ? (int)info->connect_fd : -1 };
    x->unread.fd = x->fd;
    pthread_mutex_init(&x->lock, NULL);
    atomic_store(&x->holders, 1);
    return x;
}

void exchange_hold(struct exchange *x)
{
    atomic_fetch_add(&x->holders, 1);
}

void exchange_drop_body(struct exchange *x)
{
    buf_free(&x->body);
}

void exchange_uncount_body(struct exchange *x)
{
    size_t n = atomic_exchange(&x->n_counted, 0);
    atomic_fetch_sub(&x->http->bodies, n);
    if (x->of_address)
        atomic_fetch_sub(x->of_address, n);
}

void exchange_drop(struct exchange *x)
{
    if (atomic_fetch_sub(&x->holders, 1) > 1)
        return;
    exchange_drop_body(x);
    exchange_uncount_body(x);
    if (x->handed_over && !x->ended)
        atomic_fetch_sub(&x->http->unanswered, 1);
    if (x->handed_over)
        atomic_fetch_sub(&x->http->running, 1);
    pthread_mutex_destroy(&x->lock);
    buf_free(&x->out);
    free(x->origin);
    free(x->rest);
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

const char *exchange_rest(const struct exchange *x)
{
    return x->rest;
}

const struct client *exchange_client(const struct exchange *x)
{
    return &x->client;
}

/* With the lock. */
static void wake(struct exchange *x)
{
    if (x->asleep && !x->gone)
        MHD_resume_connection(x->connection);
    x->asleep = false;
}

/* With the lock: no more is to come. */
static void end(struct exchange *x)
{
    if (!x->ended) {
        exchange_uncount_body(x);
        atomic_fetch_sub(&x->http->unanswered, 1);
        unread_whole(x->http->unread, &x->unread);
    }
    x->ended = true;
    wake(x);
}

/* With the lock: more of the answer, unless nobody is to have it. */
static void put(struct exchange *x, const char *text, size_t n)
{
    x->n_put += n;
    x->gone = x->gone || !unread_add(x->http->unread, &x->unread, n);
    if (!x->gone)
        buf_add(&x->out, text, n);
    else
        buf_free(&x->out);
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
        put(x, text, n);
        end(x);
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
    put(x, text, n);
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

uint64_t exchange_n_put(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    uint64_t n = x->n_put;
    pthread_mutex_unlock(&x->lock);
    return n;
}

void exchange_end(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    end(x);
    pthread_mutex_unlock(&x->lock);
}

/* With the lock: the connection is woken, so that libmicrohttpd sees for itself that the client has gone, and closes
 * it. */
static void leave(struct exchange *x)
{
    if (!x->status) {
        x->status = 499;
        x->type = "text/plain";
    }
    end(x);
    x->gone = true;
}

/* A connection that sleeps is not watched by the http thread: whether its client has closed is asked here. */
bool exchange_gone(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    struct pollfd p = { .fd = x->fd, .events = POLLRDHUP };
    if (!x->gone && p.fd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
        leave(x);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

/* ---- What goes out ----------------------------------------------------------------------------------------------- */

static ssize_t read_stream(void *ctx, uint64_t pos, char *to, size_t max)
{
    struct exchange *x = ctx;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    size_t left = x->gone ? 0 : x->out.n - x->n_sent;
    if (x->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left > 0) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(to, x->out.p + x->n_sent, (size_t)n);
        x->n_sent += (size_t)n;
        unread_take(x->http->unread, &x->unread, (size_t)n);
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

/* A whole answer; response NULL: there was no memory for it. */
static enum MHD_Result send_whole(struct MHD_Connection *c, struct MHD_Response *response, int status,
                                  const char *type, const char *origin, bool close)
{
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

enum MHD_Result send_text(struct MHD_Connection *c, int status, const char *type, const char *text, size_t n,
                          const char *origin, bool close)
{
    return send_whole(c, MHD_create_response_from_buffer(n, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY), status,
                      type, origin, close);
}

/* The answer's bytes become the response's, since answers may be large, and readers slow. */
static enum MHD_Result send_answer(struct exchange *x)
{
    struct buf out = x->out;
    struct MHD_Response *response = MHD_create_response_from_buffer(out.n, out.p, MHD_RESPMEM_MUST_FREE);
    if (response)
        x->out = (struct buf){ 0 };
    return send_whole(x->connection, response, x->status, x->type, x->origin, false);
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

enum MHD_Result send_or_sleep(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool ready = x->status != 0, streams = x->streams;
    if (!ready)
        sleep_until_woken(x);
    pthread_mutex_unlock(&x->lock);
    if (!ready)
        return MHD_YES;
    return streams ? send_stream(x) : send_answer(x);
}

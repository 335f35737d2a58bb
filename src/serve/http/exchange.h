/* One request and its answer, as this room sees it.
 *
 * An exchange's life: made by the first call of on_request (http.c), its body collected by further calls; then handed
 * to the route, the connection suspended. exchange_answer or exchange_open says what goes out and wakes the connection;
 * on_request is called again and queues the response, whose bytes read_stream takes from `out`. on_completed is the
 * connection's end, for whatever reason: from then on nobody wakes it. */
#ifndef PF_SERVE_EXCHANGE_H
#define PF_SERVE_EXCHANGE_H

#include <microhttpd.h>
#include <pthread.h>

#include "serve/http/http.h"
#include "serve/http/unread.h"

struct http {
    struct MHD_Daemon *daemon;
    struct http_opts   o;
    atomic_int         running;      /* exchanges that were handed over and are not at their end */
    atomic_int         unanswered;   /* those of them of which more is to come */
    atomic_size_t      bodies;       /* bytes of the bodies of all requests whose answers are not made */
    atomic_size_t      bodies_of[1024];      /* by address: those with one remainder share a count */
    uint64_t           hash_key;     /* so that nobody can choose with whom to share */
    struct unread_list *unread;
    atomic_bool        quiet;
    bool               loopback;     /* listens for this machine alone */
};

struct exchange {
    struct http           *http;
    const struct route    *route;
    struct MHD_Connection *connection;
    struct client          client;
    struct buf             body;
    atomic_size_t          n_counted;        /* bytes in http->bodies: what was read of the body may be as large */
    atomic_size_t         *of_address;       /* the count of http->bodies_of that has them, too */
    int                    refused;          /* the http thread's, as the next two: the status that answers the body */
    size_t                 n_dropped;        /* of a refused body */
    bool                   handed_over;
    char                  *origin;           /* to allow, or NULL */
    char                  *rest;             /* of the path, behind the route's */
    atomic_int             holders;
    pthread_mutex_t        lock;             /* guards what follows */
    int                    status;           /* 0: nothing to say yet */
    const char            *type;
    bool                   streams, ended, asleep, gone;
    int                    fd;
    struct buf             out;
    size_t                 n_sent;           /* of out */
    uint64_t               n_put;            /* bytes that were ever put there */
    struct unread          unread;           /* the list's: of an answer in one piece, until the connection's end */
};

/* One holder: the connection. On the http thread, as are the two below. */
struct exchange *exchange_new(struct http *h, const struct route *route, struct MHD_Connection *c);
/* By who has the body: the http thread, then the worker that it was handed to. It counts until the answer is made. */
void exchange_drop_body(struct exchange *x);
void exchange_uncount_body(struct exchange *x);
/* A whole answer; origin: to allow, or NULL; close: the connection's last one. */
enum MHD_Result send_text(struct MHD_Connection *c, int status, const char *type, const char *text, size_t n,
                          const char *origin, bool close);
/* The answer, if there is one by now; until then the connection sleeps. */
enum MHD_Result send_or_sleep(struct exchange *x);

#endif

/* Answers that are made and not read: how many bytes of them are held for whom, and until when.
 *
 *     exchange.c    unread_add, unread_take            bytes that came, bytes that went
 *     exchange.c    unread_whole                       no more come: from now on there is a time to read what is left
 *     http.c        unread_forget                      the connection is at its end, before its socket is closed
 *
 * Whoever has more than the limits allow loses the connection: it is shut down, which the http thread sees and frees
 * all that it had. Each answer has a struct unread in its exchange, all zero but for its socket, which belongs to this
 * list from unread_add to unread_forget. All functions may be called from any thread. */
#ifndef PF_SERVE_UNREAD_H
#define PF_SERVE_UNREAD_H

#include <stdbool.h>
#include <stddef.h>

struct unread_limits {
    size_t one_bytes;                /* of a stream */
    size_t all_bytes;                /* of all answers; one that is alone may have more */
    double seconds;                  /* to read what is left when no more comes, ... */
    double bytes_per_second;         /* ... and so much longer for large answers */
};

struct unread {
    int    fd;
    size_t bytes;
    double until;                    /* 0: more is to come */
    bool   ended;                    /* its connection was shut down */
    struct unread *next, *before;    /* of those with bytes, by when they had none last */
};

struct unread_list;

struct unread_list *unread_open(const struct unread_limits *limits);
/* When nobody adds any more. NULL-safe. */
void unread_close(struct unread_list *l);

/* False: the connection has ended, by this or before, and the bytes need not be kept. The first bytes of an answer may
 * be as many as there are. */
bool unread_add(struct unread_list *l, struct unread *u, size_t n);
void unread_take(struct unread_list *l, struct unread *u, size_t n);
void unread_whole(struct unread_list *l, struct unread *u);
void unread_forget(struct unread_list *l, struct unread *u);

#endif

/* Who is next where several clients want the same places: slots of the scheduler, workers.
 *
 *     an address    10.0.0.7                10.0.0.9               a place goes to the address that has fewest of them,
 *     its clients   [key, name]  [...]      [...]                  there to the client that has fewest, of equal ones
 *     who waits      . . . . . .  .          . .                   to who had one longest ago; its first request first
 *
 * So one who asks for much waits for himself, and the many names that a client may give itself share what its address
 * has. A client is known as long as it waits for a place or has one. Nothing here locks: a list is its owner's. */
#ifndef PF_SERVE_TURNS_H
#define PF_SERVE_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who asks, as far as a server can tell. */
struct client {
    unsigned char address[16];       /* of IPv6, the first half alone: the other one is the client's to choose */
    uint64_t      name;              /* of the key and the program */
};

/* An address, or a client of one. */
struct party {
    struct client key;
    struct party *address;           /* of a client; NULL: it is an address */
    struct party *next;
    int           n_waiting, n_held;
    uint64_t      since;             /* by the list's clock, when it got a place last, lost it to others, or came */
    uint64_t      served;            /* the places' owner's, by a clock of its own */
    double        returns_s;         /* the places' owner's: what taking a place up again took it last */
};

/* Part of what waits. */
struct queued {
    struct party *client;            /* as long as it waits */
    struct queued *next, *before;
    bool          again;             /* it had a place and gave it to others */
};

struct turns {
    struct party *parties;
    struct queued *first, *last;     /* of each client in its order */
    int           n;                 /* that wait and never had a place */
    uint64_t      clock;
};

/* again: ahead of what else the client has waiting. */
void turns_wait(struct turns *l, struct queued *t, const struct client *who, bool again);
/* Whose turn it is, of those for whom `may` holds (NULL: of all); NULL: nobody's. */
typedef bool turns_fn(const void *ctx, const struct party *client);
struct queued *turns_next(const struct turns *l, turns_fn *may, const void *ctx);
/* Who is to go where there are too many: the last to come of the client that has most waiting, of the address that has
 * most. NULL: all have had a place. */
struct queued *turns_last(const struct turns *l);
/* Waits no longer, without a place. */
void turns_leave(struct turns *l, struct queued *t);

/* Has a place from now on, whose party is returned, until it is given back. */
struct party *turns_give(struct turns *l, struct queued *t);
/* Another place for one that has one. */
void turns_give_more(struct party *client);
void turns_take_back(struct turns *l, struct party *client);
/* Whether a place of who has some is for who waits: for one that has none, or so many fewer that the place would not be
 * claimed back. */
bool turns_before(const struct party *waits, const struct party *has);
/* Whether a has more places than b. */
bool turns_more(const struct party *a, const struct party *b);

#endif

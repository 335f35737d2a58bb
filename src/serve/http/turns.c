/* See turns.h. Clients are looked up one by one: there are no more than what waits and what has a place. */
#include "serve/http/turns.h"

#include <stdlib.h>
#include <string.h>

#include "program/io/buf.h"

static struct party *find(struct turns *l, const struct client *key, struct party *address)
{
    struct party *p = l->parties;
    while (p && (p->address != address || p->key.name != key->name ||
                 memcmp(p->key.address, key->address, sizeof key->address) != 0))
        p = p->next;
    if (p)
        return p;
    p = xrealloc(NULL, 1, sizeof *p);
    *p = (struct party){ .key = *key, .address = address, .next = l->parties, .since = ++l->clock };
    l->parties = p;
    return p;
}

static void forget(struct turns *l, struct party *p)
{
    struct party **at = &l->parties;
    if (p->n_waiting > 0 || p->n_held > 0)
        return;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    free(p);
}

/* An address has what its clients have. */
static void forget_both(struct turns *l, struct party *client)
{
    struct party *address = client->address;
    forget(l, client);
    forget(l, address);
}

/* ---- Who waits --------------------------------------------------------------------------------------------------- */

void turns_wait(struct turns *l, struct queued *t, const struct client *who, bool again)
{
    struct client any = *who;
    any.name = 0;
    t->client = find(l, who, find(l, &any, NULL));
    t->client->n_waiting++;
    t->client->address->n_waiting++;
    if (again)
        t->client->since = t->client->address->since = ++l->clock;
    t->again = again;
    t->before = again ? NULL : l->last;
    t->next = again ? l->first : NULL;
    *(t->before ? &t->before->next : &l->first) = t;
    *(t->next ? &t->next->before : &l->last) = t;
    l->n += !again;
}

static void take_out(struct turns *l, struct queued *t)
{
    *(t->before ? &t->before->next : &l->first) = t->next;
    *(t->next ? &t->next->before : &l->last) = t->before;
    l->n -= !t->again;
    t->client->n_waiting--;
    t->client->address->n_waiting--;
}

void turns_leave(struct turns *l, struct queued *t)
{
    take_out(l, t);
    forget_both(l, t->client);
    t->client = NULL;
}

/* Whether a place is for a rather than for b, of two addresses or of two clients of one. */
static bool is_first(const struct party *a, const struct party *b)
{
    return a->n_held != b->n_held ? a->n_held < b->n_held : a->since < b->since;
}

struct queued *turns_next(const struct turns *l, turns_fn *may, const void *ctx)
{
    struct queued *next = NULL;
    for (struct queued *t = l->first; t; t = t->next) {
        const struct party *a = t->client, *b = next ? next->client : NULL;
        bool first = !b || (a != b && (a->address != b->address ? is_first(a->address, b->address) : is_first(a, b)));
        if (first && (!may || may(ctx, a)))
            next = t;
    }
    return next;
}

struct queued *turns_last(const struct turns *l)
{
    struct queued *last = NULL;
    for (struct queued *t = l->last; t; t = t->before) {
        const struct party *a = t->client, *b = last ? last->client : NULL;
        if (t->again)
            continue;
        if (!b || (a->address != b->address ? a->address->n_waiting > b->address->n_waiting
                                            : a->n_waiting > b->n_waiting))
            last = t;
    }
    return last;
}

/* ---- Who has a place --------------------------------------------------------------------------------------------- */

void turns_give_more(struct party *client)
{
    client->n_held++;
    client->address->n_held++;
}

struct party *turns_give(struct turns *l, struct queued *t)
{
    struct party *client = t->client;
    take_out(l, t);
    turns_give_more(client);
    client->since = client->address->since = ++l->clock;
    t->client = NULL;
    return client;
}

void turns_take_back(struct turns *l, struct party *client)
{
    client->n_held--;
    client->address->n_held--;
    forget_both(l, client);
}

bool turns_more(const struct party *a, const struct party *b)
{
    return a->address != b->address ? a->address->n_held > b->address->n_held : a->n_held > b->n_held;
}

bool turns_before(const struct party *waits, const struct party *has)
{
    const struct party *a = waits->address != has->address ? waits->address : waits;
    const struct party *b = waits->address != has->address ? has->address : has;
    return b->n_held > a->n_held + (a->n_held > 0);
}

/* A lock that threads get in the order in which they asked for it, so that one that takes it again and again keeps
 * nobody out, and that says whether anyone waits for it. Held for long: taking it costs a few times what a mutex does.
 *
 *     numbers given out    now ..... next        now: whoever has the lock; none has it if that is next */
#ifndef PF_LOCK_H
#define PF_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct pf_lock {
    pthread_mutex_t mutex;       /* guards the numbers */
    pthread_cond_t  turn;        /* now has moved */
    uint64_t        now, next;
};

void pf_lock_init(struct pf_lock *l);
void pf_lock_destroy(struct pf_lock *l);
void pf_lock_take(struct pf_lock *l);
void pf_lock_give(struct pf_lock *l);
/* By who has it: whether another thread waits. */
bool pf_lock_is_wanted(struct pf_lock *l);

#endif

/* See pf_lock.h. */
#include "base/pf_lock.h"

void pf_lock_init(struct pf_lock *l)
{
    *l = (struct pf_lock){ .now = 0 };
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->turn, NULL);
}

void pf_lock_destroy(struct pf_lock *l)
{
    pthread_cond_destroy(&l->turn);
    pthread_mutex_destroy(&l->mutex);
}

void pf_lock_take(struct pf_lock *l)
{
    pthread_mutex_lock(&l->mutex);
    uint64_t mine = l->next++;
    while (l->now != mine)
        pthread_cond_wait(&l->turn, &l->mutex);
    pthread_mutex_unlock(&l->mutex);
}

void pf_lock_give(struct pf_lock *l)
{
    pthread_mutex_lock(&l->mutex);
    l->now++;
    pthread_cond_broadcast(&l->turn);
    pthread_mutex_unlock(&l->mutex);
}

bool pf_lock_is_wanted(struct pf_lock *l)
{
    pthread_mutex_lock(&l->mutex);
    bool wanted = l->next - l->now > 1;
    pthread_mutex_unlock(&l->mutex);
    return wanted;
}

/* The lock: one thread has it at a time, and threads get it in the order in which they asked, also beside one that
 * takes it again as soon as it has given it. */
#include <pthread.h>
#include <sched.h>

#include "base/pf_lock.h"
#include "check.h"

enum { THREADS = 5, TURNS = 2000 };

static struct pf_lock lock;
static int n_inside, n_taken, came[THREADS], n_came;

static void *count(void *arg)
{
    (void)arg;
    for (int i = 0; i < TURNS; i++) {
        pf_lock_take(&lock);
        CHECK(++n_inside == 1, "%d threads have the lock", n_inside);
        n_taken++;
        n_inside--;
        pf_lock_give(&lock);
    }
    return NULL;
}

static void *come(void *arg)
{
    pf_lock_take(&lock);
    came[n_came++] = (int)(intptr_t)arg;
    pf_lock_give(&lock);
    return NULL;
}

static void test_one_at_a_time(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, count, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(n_taken == THREADS * TURNS, "taken %d times", n_taken);
}

static uint64_t n_asked(void)
{
    pthread_mutex_lock(&lock.mutex);
    uint64_t n = lock.next - lock.now;
    pthread_mutex_unlock(&lock.mutex);
    return n;
}

/* Each thread asks when the ones before it wait. */
static void test_order(void)
{
    pthread_t threads[THREADS];
    pf_lock_take(&lock);
    CHECK(!pf_lock_is_wanted(&lock), "nobody waits");
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, come, (void *)(intptr_t)i) == 0);
        while (n_asked() < (uint64_t)i + 2)
            sched_yield();
        CHECK(pf_lock_is_wanted(&lock), "%d wait", i + 1);
    }
    pf_lock_give(&lock);
    pf_lock_take(&lock);
    CHECK(n_came == THREADS, "%d of %d came first", n_came, THREADS);
    for (int i = 0; i < n_came; i++)
        CHECK(came[i] == i, "thread %d came as number %d", came[i], i);
    pf_lock_give(&lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    pf_lock_init(&lock);
    test_one_at_a_time();
    test_order();
    pf_lock_destroy(&lock);
    return check_status();
}

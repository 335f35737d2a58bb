/* The store's invariants over real engines and real file systems.
 *
 * usage: test_store ENGINE DIRECTORY       ENGINE: uring, pread, sim */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "check.h"
#include "tiers/store_data.h"

static struct pf_io_sim sim;

static void set_engine(struct fixture *f, const char *name)
{
    sim = (struct pf_io_sim){ .seed = 7 };
    f->setup.io = strcmp(name, "uring") == 0 ? pf_io_uring_open :
                  strcmp(name, "pread") == 0 ? pf_io_pread_open : pf_io_sim_open;
    f->setup.io_ctx = &sim;
}

/* Random walks at several budgets with every policy: the bytes are always the file's. */
static void test_walks(struct fixture *f)
{
    for (int policy = 0; pf_evict_at(policy); policy++)
        for (int share = 0; share <= 4; share++) {
            pf_store *s = NULL;
            uint64_t rng = 5;
            int n_right = 0, n_used = 0, slabs[N_SLABS];
            struct pf_store_stats stats;
            f->setup.policy = pf_evict_at(policy);
            f->setup.budget_bytes = f->least + (f->all - f->least) * (uint64_t)share / 4;
            CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
            if (!s)
                return;
            for (int step = 0; step < 200; step++) {
                int layer = step % N_LAYERS, n = some_slabs(&rng, layer, 1 + (int)(next_random(&rng) % 6), slabs);
                pf_store_enter(s, layer);
                if (step % 50 == 0)
                    slabs[0] = N_SLABS - 1;
                CHECK(use_slabs(f, s, slabs, n, &n_right) == PF_OK, "%s", pf_last_error());
                n_used += n;
            }
            CHECK(n_right == n_used, "%d of %d slabs are right", n_right, n_used);
            pf_store_stats_get(s, &stats);
            CHECK(stats.n_hits + stats.n_misses == (uint64_t)n_used, "%llu hits, %llu misses of %d",
                  (unsigned long long)stats.n_hits, (unsigned long long)stats.n_misses, n_used);
            CHECK(stats.slot_bytes <= f->setup.budget_bytes, "%llu bytes of slots",
                  (unsigned long long)stats.slot_bytes);
            CHECK(stats.resident_bytes <= stats.slot_bytes, "%llu bytes in slots",
                  (unsigned long long)stats.resident_bytes);
            CHECK(share < 4 || stats.n_evictions == 0, "evictions though everything fits");
            pf_store_close(&s);
        }
}

static void test_budgets(struct fixture *f)
{
    pf_store *s = NULL;
    f->setup.budget_bytes = f->least - 1;
    CHECK(pf_store_open(&s, &f->setup) == PF_ENOMEM && !s, "a budget below the largest slab");
    f->setup.budget_bytes = f->all;
    f->setup.paths = (const char *const[]){ "/nowhere/at/all" };
    CHECK(pf_store_open(&s, &f->setup) == PF_EIO && !s, "no such file");
    f->setup.paths = f->paths;
    f->parts[4].bytes = f->file_bytes;
    CHECK(pf_store_open(&s, &f->setup) == PF_ECHANGED && !s, "a part past the end");
    f->parts[4].bytes = 13000;
}

struct crowd {
    const struct fixture *f;
    pf_store    *s;
    int          n_rounds;
    bool         same;
    atomic_int   n_bad, n_waiting;
    uint64_t     seed;
};

static void *crowd_main(void *arg)
{
    struct crowd *c = arg;
    uint64_t rng = c->seed + (uint64_t)atomic_fetch_add(&c->n_waiting, 1);
    while (atomic_load(&c->n_waiting) < 4)
        ;
    for (int i = 0; i < c->n_rounds; i++) {
        int slabs[N_EXPERTS], n = 3, n_right = 0;
        if (c->same)
            slabs[0] = 3, slabs[1] = 4, slabs[2] = 5;
        else
            n = some_slabs(&rng, (int)(next_random(&rng) % N_LAYERS), 3, slabs);
        pf_store_enter(c->s, i % N_LAYERS);
        if (i % 7 == 0)
            pf_store_prefetch(c->s, slabs, n, n);
        pf_status st = use_slabs(c->f, c->s, slabs, n, &n_right);
        if (st != PF_OK || n_right != n)
            atomic_fetch_add(&c->n_bad, 1);
    }
    return NULL;
}

static void run_crowd(struct crowd *c)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, crowd_main, c);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(c->n_bad == 0, "%d rounds went wrong", c->n_bad);
}

/* Four threads that pin what they like; and four that want the same slabs at once, which are read once. */
static void test_threads(struct fixture *f)
{
    pf_store *s = NULL;
    struct pf_store_stats stats;
    f->setup.budget_bytes = f->least + (f->all - f->least) / 2;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    run_crowd(&(struct crowd){ .f = f, .s = s, .n_rounds = 60, .seed = 11 });
    pf_store_close(&s);

    f->setup.budget_bytes = f->all;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    run_crowd(&(struct crowd){ .f = f, .s = s, .n_rounds = 1, .same = true });
    pf_store_stats_get(s, &stats);
    CHECK(stats.n_reads == 9 + stats.n_retries, "%llu reads for nine parts", (unsigned long long)stats.n_reads);
    pf_store_close(&s);
}

/* The background order fills what is free and evicts nothing; closing in the middle of it, or of a prefetch, is
 * clean. */
static void test_background(struct fixture *f)
{
    int order[N_SLABS], n_right = 0;
    pf_store *s = NULL;
    struct pf_store_stats stats;
    for (int i = 0; i < N_SLABS; i++)
        order[i] = i;
    f->setup.budget_bytes = f->all;
    for (int round = 0; round < 5; round++) {
        CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
        pf_store_fill(s, order, N_SLABS);
        if (round % 2)
            pf_store_prefetch(s, order, N_SLABS, N_SLABS);
        pf_store_close(&s);
    }
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    pf_store_fill(s, order, N_SLABS);
    CHECK(use_slabs(f, s, order, N_SLABS, &n_right) == PF_OK && n_right == N_SLABS, "%d slabs are right", n_right);
    pf_store_stats_get(s, &stats);
    CHECK(stats.n_evictions == 0 && stats.bytes_read < 2 * f->all, "%llu bytes read",
          (unsigned long long)stats.bytes_read);
    pf_store_close(&s);
}

struct guesser {
    const struct fixture *f;
    pf_store *s;
    uint64_t  rng;
    int       n_steps, n_right, n_used;
};

/* n steps of two slabs a layer, each guessed before: right, or one that the step does not want. */
static void guess(struct guesser *g, bool right, int n)
{
    for (int end = g->n_steps + n; g->n_steps < end; g->n_steps++) {
        int slabs[N_EXPERTS], layer = 1 + g->n_steps % (N_LAYERS - 1), k = some_slabs(&g->rng, layer, 2, slabs);
        int other = layer * N_EXPERTS + (slabs[0] + 3) % N_EXPERTS;
        if (pf_store_wants_guess(g->s))
            pf_store_guess(g->s, right ? slabs : &other, right ? k : 1, 4);
        if (g->n_steps % 3 == 0)
            usleep(300);
        pf_store_enter(g->s, layer);
        CHECK(use_slabs(g->f, g->s, slabs, k, &g->n_right) == PF_OK, "%s", pf_last_error());
        g->n_used += k;
    }
}

static struct pf_store_stats stats_of(const struct guesser *g)
{
    struct pf_store_stats stats;
    pf_store_stats_get(g->s, &stats);
    return stats;
}

static struct guesser open_guesser(struct fixture *f)
{
    struct guesser g = { .f = f, .rng = 9 };
    f->setup.budget_bytes = f->least + (f->all - f->least) / 4;
    CHECK(pf_store_open(&g.s, &f->setup) == PF_OK, "%s", pf_last_error());
    return g;
}

/* Wrong guesses are never read, and after a while not asked for. */
static void test_wrong_guesses(struct fixture *f)
{
    struct guesser g = open_guesser(f);
    guess(&g, false, 400);
    CHECK(stats_of(&g).n_guessed == 0 && !pf_store_wants_guess(g.s), "%d parts were read", (int)stats_of(&g).n_guessed);
    pf_store_close(&g.s);
    CHECK(g.n_right == g.n_used, "%d of %d slabs are right", g.n_right, g.n_used);
}

/* Right guesses are read once some were seen to be right, until they are wrong; and after a rest from the beginning. */
static void test_right_guesses(struct fixture *f)
{
    struct guesser g = open_guesser(f);
    guess(&g, true, 30);                         /* of at most six parts */
    CHECK(stats_of(&g).n_guessed == 0, "%d parts were read before the guesses were known", (int)stats_of(&g).n_guessed);
    guess(&g, true, 400);
    struct pf_store_stats right = stats_of(&g);
    CHECK(right.n_guessed > 300 && right.n_guessed_right >= right.n_guessed * 9 / 10, "%d parts guessed, %d right",
          (int)right.n_guessed, (int)right.n_guessed_right);
    for (int i = 0; i < 3000 && pf_store_wants_guess(g.s); i++)
        guess(&g, false, 1);
    CHECK(!pf_store_wants_guess(g.s), "wrong guesses are still read");
    struct pf_store_stats wrong = stats_of(&g);
    guess(&g, true, 900);
    CHECK(stats_of(&g).n_guessed == wrong.n_guessed, "%d parts were read at rest",
          (int)(stats_of(&g).n_guessed - wrong.n_guessed));
    guess(&g, true, 400);
    CHECK(stats_of(&g).n_guessed > wrong.n_guessed, "right guesses are not read again");
    pf_store_guess(g.s, (int[]){ 0, 1 }, 2, 4);
    pf_store_close(&g.s);
    CHECK(g.n_right == g.n_used, "%d of %d slabs are right", g.n_right, g.n_used);
}

/* Guesses go to a slow drive part by part, no more than they may be; a later guess that may be more adds to them. */
static void test_guess_depth(struct fixture *f)
{
    struct guesser g = open_guesser(f);
    guess(&g, true, 100);
    uint64_t n = stats_of(&g).n_guessed;
    sim.latency_ns = 200000000;
    pf_store_enter(g.s, 0);                       /* whose slabs nobody wanted so far */
    for (int depth = 2; depth <= 5; depth += 3) {
        pf_store_guess(g.s, (int[]){ 0, 1, 2 }, 3, depth);
        int guessed = (int)(stats_of(&g).n_guessed - n);
        CHECK(guessed == depth, "%d parts guessed, not %d", guessed, depth);
    }
    pf_store_close(&g.s);
    sim.latency_ns = 0;
}

/* Every allocation of opening fails in turn; nothing is left behind. */
static void test_allocations(struct fixture *f)
{
    struct pf_mem_stats before, after;
    pf_store *s = NULL;
    pf_mem_stats_get(&before);
    int n = 1, n_failed = 0;
    for (;; n++) {
        pf_mem_fail_nth((uint64_t)n);
        pf_status st = pf_store_open(&s, &f->setup);
        pf_mem_fail_nth(0);
        if (st == PF_OK && n > 12)
            break;
        n_failed += st == PF_ENOMEM;
        CHECK(st == PF_OK || (st == PF_ENOMEM && !s), "allocation %d: %d, %s", n, st, pf_last_error());
        pf_store_close(&s);
    }
    pf_store_close(&s);
    pf_mem_stats_get(&after);
    CHECK(n_failed > 8, "only %d allocations failed", n_failed);
    CHECK(before.n_live == after.n_live, "%llu blocks live, %llu before", (unsigned long long)after.n_live,
          (unsigned long long)before.n_live);
}

int main(int argc, char **argv)
{
    struct fixture f;
    pf_store *s = NULL;
    if (argc != 3)
        return 2;
    fixture_open(&f, argv[2]);
    set_engine(&f, argv[1]);
    if (pf_store_open(&s, &f.setup) < 0) {
        printf("skipped: %s\n", pf_last_error());
        fixture_close(&f);
        return 77;
    }
    pf_store_close(&s);
    test_walks(&f);
    test_budgets(&f);
    test_threads(&f);
    test_background(&f);
    test_wrong_guesses(&f);
    test_right_guesses(&f);
    if (f.setup.io == pf_io_sim_open)
        test_guess_depth(&f);
    test_allocations(&f);
    fixture_close(&f);
    return check_status();
}

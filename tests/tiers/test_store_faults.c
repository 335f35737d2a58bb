/* The store over a drive that fails: every read in turn fails, is cut short, comes late, or returns other sectors.
 * Nothing crashes, hangs or leaks, nobody sees a wrong byte, and after a failure the next try succeeds. Or over a file
 * that is cut short or written to, until it is again what it was. Or over a kernel that refuses io_uring.
 *
 * usage: test_store_faults DIRECTORY [STRIDE]     STRIDE: each so manyth read is tried, default 1 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "at_once.h"
#include "base/pf_time.h"
#include "check.h"
#include "tiers/store_data.h"

enum { N_STEPS = 12 };
static uint64_t stride = 1;                      /* so manyth read is tried */

/* One fixed walk. Counts failed steps; each is tried once more and must then succeed. */
static void walk(const struct fixture *f, pf_store *s, int *n_failed, pf_status *why)
{
    uint64_t rng = 3;
    for (int step = 0; step < N_STEPS; step++) {
        int slabs[N_EXPERTS], n_right = 0, n = some_slabs(&rng, step % N_LAYERS, 4, slabs);
        if (step % 6 == 5)
            slabs[0] = N_SLABS - 1;
        pf_store_enter(s, step % N_LAYERS);
        pf_status st = use_slabs(f, s, slabs, n, &n_right);
        if (st < 0) {
            ++*n_failed;
            *why = st;
            n_right = 0;
            st = use_slabs(f, s, slabs, n, &n_right);
        }
        CHECK(st == PF_OK, "step %d: %s", step, pf_last_error());
        CHECK(n_right == n, "step %d: %d of %d slabs are right", step, n_right, n);
    }
}

struct outcome {
    int       n_failed;
    pf_status why;
    uint64_t  n_reads, n_retries;
};

static struct outcome run(struct fixture *f, struct pf_io_sim plan)
{
    struct outcome o = { 0 };
    struct pf_store_stats stats;
    struct pf_mem_stats before, after;
    pf_store *s = NULL;
    pf_mem_stats_get(&before);
    f->setup.io = pf_io_sim_open;
    f->setup.io_ctx = &plan;
    if (pf_store_open(&s, &f->setup) < 0) {
        CHECK(false, "%s", pf_last_error());
        return o;
    }
    walk(f, s, &o.n_failed, &o.why);
    pf_store_stats_get(s, &stats);
    pf_store_close(&s);
    pf_mem_stats_get(&after);
    CHECK(before.n_live == after.n_live && before.page_bytes_live == after.page_bytes_live, "memory is left behind");
    o.n_reads = plan.n_reads;
    o.n_retries = stats.n_retries;
    return o;
}

static void try_errors(struct fixture *f, uint64_t n_reads)
{
    int n_seen = 0;
    for (uint64_t i = 1; i <= n_reads; i += stride) {
        struct outcome o = run(f, (struct pf_io_sim){ .seed = i, .fail_at = i, .fail_n = 1, .fail_errno = EIO });
        CHECK(o.n_failed <= 1 && (o.n_failed == 0 || o.why == PF_EIO), "read %d failing: %d steps, %d", (int)i,
              o.n_failed, o.why);
        n_seen += o.n_failed;
    }
    int n_tried = (int)((n_reads + stride - 1) / stride);
    CHECK(n_seen > n_tried / 2, "only %d of %d failures were seen", n_seen, n_tried);
}

static void try_interruptions(struct fixture *f, uint64_t n_reads)
{
    for (uint64_t i = 1; i <= n_reads; i += stride) {
        struct outcome o = run(f, (struct pf_io_sim){ .seed = i, .fail_at = i, .fail_n = 3,
                                                      .fail_errno = i % 2 ? EAGAIN : EINTR });
        CHECK(o.n_failed == 0 && o.n_retries >= 3, "read %d interrupted: %d steps failed", (int)i, o.n_failed);
    }
}

static void try_late(struct fixture *f, uint64_t n_reads)
{
    for (uint64_t i = 1; i <= n_reads; i += stride) {
        struct outcome o = run(f, (struct pf_io_sim){ .seed = i, .late_at = i, .late_ns = 1000000 });
        CHECK(o.n_failed == 0, "read %d late: %d steps failed", (int)i, o.n_failed);
    }
}

static void try_empty(struct fixture *f, uint64_t n_reads)
{
    for (uint64_t i = 1; i <= n_reads; i += stride) {
        struct outcome o = run(f, (struct pf_io_sim){ .seed = i, .corrupt_at = i });
        CHECK(o.n_failed == 0 && o.n_retries == 1, "read %d empty: %d steps failed, %d retries", (int)i, o.n_failed,
              (int)o.n_retries);
    }
}

static void try_lost(struct fixture *f, uint64_t n_reads)
{
    int n_lost = 0;
    for (uint64_t i = 1; i <= n_reads; i += stride) {
        struct outcome o = run(f, (struct pf_io_sim){ .seed = i, .lost_at = i });
        CHECK(o.n_failed == 0 && o.n_retries <= 1, "read %d in part: %d steps failed", (int)i, o.n_failed);
        n_lost += o.n_retries == 1;
    }
    int n_tried = (int)((n_reads + stride - 1) / stride);
    CHECK(n_lost > n_tried / 3, "only %d of %d lost sectors were noticed", n_lost, n_tried);
}

static void test_each_read(struct fixture *f)
{
    uint64_t n_reads = run(f, (struct pf_io_sim){ .seed = 1 }).n_reads;
    AT_ONCE(try_errors(f, n_reads));
    AT_ONCE(try_interruptions(f, n_reads));
    AT_ONCE(try_late(f, n_reads));
    AT_ONCE(try_empty(f, n_reads));
    AT_ONCE(try_lost(f, n_reads));
    await_parts();
}

/* When every part has been read before there is something to compare with. */
static void test_compared(struct fixture *f)
{
    struct pf_io_sim plan = { .seed = 1 };
    pf_store *s = NULL;
    int all[N_SLABS], n_right = 0, n_failed = 0, n_noticed = 0;
    pf_status why;
    for (int i = 0; i < N_SLABS; i++)
        all[i] = i;
    f->setup.io_ctx = &plan;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    CHECK(use_slabs(f, s, all, N_SLABS, &n_right) == PF_OK && n_right == N_SLABS, "%d right", n_right);
    for (int i = 0; i < 40; i++) {
        struct pf_store_stats before, after;
        pf_store_stats_get(s, &before);
        plan.corrupt_at = plan.n_reads + 1 + (uint64_t)i;      /* nothing is in flight here */
        walk(f, s, &n_failed, &why);
        pf_store_stats_get(s, &after);
        n_noticed += after.n_retries > before.n_retries;
    }
    CHECK(n_failed == 0 && n_noticed > 30, "%d steps failed, %d of 40 noticed", n_failed, n_noticed);
    pf_store_close(&s);
}

static void test_short(struct fixture *f)
{
    for (uint64_t every = 2; every < 6; every++) {
        struct outcome o = run(f, (struct pf_io_sim){ .seed = every, .short_every = every });
        CHECK(o.n_failed == 0 && o.n_retries > 0, "every %d short: %d failed", (int)every, o.n_failed);
    }
    /* A drive that returns nothing at all, again and again, is an error and not a loop. */
    struct pf_io_sim plan = { .fail_at = 1, .fail_n = UINT64_MAX, .fail_errno = EAGAIN };
    pf_store *s = NULL;
    int slab = 2, n_right = 0;
    f->setup.io_ctx = &plan;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    CHECK(use_slabs(f, s, &slab, 1, &n_right) == PF_EIO, "a drive that never answers properly");
    pf_store_close(&s);
}

/* A read that was sent ahead fails when somebody wants its part by then: it is sent again for him. */
static void test_taken_up(struct fixture *f)
{
    struct pf_io_sim plan = { .fail_at = 1, .fail_n = 1, .fail_errno = EIO, .late_at = 1, .late_ns = 20000000 };
    pf_store *s = NULL;
    int slab = 2, n_right = 0;
    f->setup.io_ctx = &plan;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    pf_store_prefetch(s, &slab, 1, 1);
    CHECK(use_slabs(f, s, &slab, 1, &n_right) == PF_OK && n_right == 1, "%s", pf_last_error());
    pf_store_close(&s);
}

/* A drive that stalls is an error for who waits; when it answers after all, all is well. */
static void test_stall(struct fixture *f)
{
    struct pf_io_sim plan = { .late_at = 1, .late_ns = 200000000 };
    pf_store *s = NULL;
    int slab = 2, n_right = 0;
    uint64_t stall_ns = f->setup.stall_ns;
    f->setup.io_ctx = &plan;
    f->setup.stall_ns = 20000000;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    CHECK(use_slabs(f, s, &slab, 1, &n_right) == PF_EIO, "a drive that stalls");
    pf_status st = PF_EIO;
    for (int i = 0; i < 200 && st < 0; i++)
        st = use_slabs(f, s, &slab, 1, &n_right);
    CHECK(st == PF_OK && n_right == 1, "%s", pf_last_error());
    pf_store_close(&s);
    CHECK(pf_store_open(&s, &f->setup) == PF_OK, "%s", pf_last_error());
    pf_store_prefetch(s, &slab, 1, 1);
    pf_store_close(&s);                      /* waits for reads in flight */
    f->setup.stall_ns = stall_ns;
}

/* Writes byte_at, or its complement, over the file from `from` on. With `written` its time of writing is set back to
 * that. */
static void write_file(const struct fixture *f, uint64_t from, bool right, const struct stat *written)
{
    FILE *out = fopen(f->path, "r+b");
    CHECK(out && fseek(out, (long)from, SEEK_SET) == 0, "%s", f->path);
    for (uint64_t i = from; out && i < f->file_bytes; i++)
        fputc(right ? byte_at(i) : (uint8_t)~byte_at(i), out);
    CHECK(out && fclose(out) == 0, "%s", f->path);
    if (written)
        CHECK(utimensat(AT_FDCWD, f->path, (struct timespec[]){ written->st_atim, written->st_mtim }, 0) == 0, "%s",
              f->path);
}

static void test_changes(struct fixture *f)
{
    uint64_t keep = f->file_bytes - 30000;
    int first = 0, second = 1, last = N_SLABS - 1, n_right = 0;
    struct stat was;
    pf_store *s = NULL;
    f->setup.io = pf_io_best_open;
    f->setup.budget_bytes = f->all;
    CHECK(pf_store_open(&s, &f->setup) == PF_OK && stat(f->path, &was) == 0, "%s", pf_last_error());
    CHECK(use_slabs(f, s, &first, 1, &n_right) == PF_OK && n_right == 1, "%s", pf_last_error());

    CHECK(truncate(f->path, (off_t)keep) == 0, "truncate");
    CHECK(use_slabs(f, s, &last, 1, &n_right) == PF_ECHANGED, "%s", pf_last_error());
    printf("%s\n", pf_last_error());
    CHECK(use_slabs(f, s, &second, 1, &n_right) == PF_ECHANGED, "what is left of a file that was cut short: %s",
          pf_last_error());
    write_file(f, keep, true, &was);
    CHECK(use_slabs(f, s, &last, 1, &n_right) == PF_OK && n_right == 2, "%s", pf_last_error());

    write_file(f, 0, false, NULL);
    CHECK(use_slabs(f, s, &second, 1, &n_right) == PF_ECHANGED, "%s", pf_last_error());
    printf("%s\n", pf_last_error());
    CHECK(use_slabs(f, s, &first, 1, &n_right) == PF_OK && n_right == 3, "what was read before: %s", pf_last_error());
    pf_store_prefetch(s, &second, 1, 1);
    pf_store_fill(s, &second, 1);
    usleep(20000);                           /* the reader has had its time with the wrong bytes */
    write_file(f, 0, true, &was);
    CHECK(use_slabs(f, s, &second, 1, &n_right) == PF_OK && n_right == 4, "%s", pf_last_error());
    pf_store_close(&s);
}

/* From now on io_uring_enter fails with EIO in every thread of the process. */
static bool refuse_io_uring(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof rules / sizeof *rules, rules };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

/* Reads go on through preads, at once, whether the ring was in use before or not. */
static void test_refused_ring(struct fixture *f)
{
    struct pf_store_stats stats;
    pf_store *used = NULL, *fresh = NULL;
    int n_failed = 0;
    pf_status why = PF_OK;
    f->setup.io = pf_io_best_open;
    f->setup.budget_bytes = f->least + (f->all - f->least) / 6;
    CHECK(pf_store_open(&used, &f->setup) == PF_OK, "%s", pf_last_error());
    walk(f, used, &n_failed, &why);
    if (!refuse_io_uring()) {
        printf("no seccomp: a refused ring is not tried\n");
        pf_store_close(&used);
        return;
    }
    uint64_t begin = pf_now_ns();
    CHECK(pf_store_open(&fresh, &f->setup) == PF_OK, "%s", pf_last_error());
    walk(f, used, &n_failed, &why);
    walk(f, fresh, &n_failed, &why);
    CHECK(n_failed == 0 && pf_now_ns() - begin < f->setup.stall_ns / 2, "%d steps failed, in %d ms: %s", n_failed,
          (int)((pf_now_ns() - begin) / 1000000), pf_last_error());
    pf_store_stats_get(used, &stats);
    CHECK(strcmp(stats.engine, "pread") == 0, "the store says that it reads by %s", stats.engine);
    pf_store_close(&fresh);
    pf_store_close(&used);
}

int main(int argc, char **argv)
{
    struct fixture f;
    if (argc < 2)
        return 2;
    stride = argc > 2 ? strtoull(argv[2], NULL, 10) : stride;
    fixture_open(&f, argv[1]);
    f.setup.budget_bytes = f.least + (f.all - f.least) / 6;
    test_each_read(&f);
    test_compared(&f);
    test_short(&f);
    test_taken_up(&f);
    test_stall(&f);
    test_changes(&f);
    test_refused_ring(&f);
    fixture_close(&f);
    return check_status();
}

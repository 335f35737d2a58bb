/* Transfers and deals one by one: the state machine of post-fetch for every order of events, on the simulated device;
 * the solver, and the deal of a prompt's experts, on machines that exist only here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kernels/sim/sim.h"
#include "moe/offload/far_deal.h"
#include "moe/offload/postfetch.h"
#include "moe/offload/prompt_deal.h"

enum { N_EXPERTS = 6, GATE = 700, UP = 300, DOWN = 1000 };

static uint8_t gate[N_EXPERTS][GATE], up[N_EXPERTS][UP], down[N_EXPERTS][DOWN + N_EXPERTS];

struct bench {
    struct pf_sim        sim;
    pf_backend          *device;
    struct pf_prices     prices;
    struct pf_postfetch  post;
    void                *scratchpad;
};

static pf_status no_serve(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer)
{
    (void)ctx, (void)offer, (void)answer;
    return PF_OK;
}

static void begin(struct bench *b, struct pf_sim sim, int block, int max_transfers, uint64_t scratchpad_bytes)
{
    struct pf_share_sizes sizes = { .n_layer = 1, .n_expert = N_EXPERTS, .n_used = N_EXPERTS, .n_embd = 32,
                                    .n_ff = 32 };
    memset(b, 0, sizeof *b);
    b->sim = sim;
    CHECK(pf_backend_sim_open(&b->device, &b->sim) == PF_OK, "%s", pf_last_error());
    const struct pf_share_host host = { .serve = no_serve };
    CHECK(b->device->ops->share->open(b->device, &sizes, &host) == PF_OK, "%s", pf_last_error());
    CHECK(b->device->ops->buf_alloc(b->device, 65536, false, &b->scratchpad) == PF_OK, "%s", pf_last_error());
    b->post = (struct pf_postfetch){ .device = b->device, .prices = &b->prices, .scratchpad = b->scratchpad,
                                     .scratchpad_bytes = scratchpad_bytes };
    b->post.opts.block_on_miss = block;
    b->post.opts.max_transfers = max_transfers;
    pf_postfetch_begin(&b->post, 0);
}

static void end(struct bench *b)
{
    b->device->ops->buf_free(b->device, b->scratchpad, 65536, false);
    b->device->ops->close(b->device);
}

/* Expert i has a down of DOWN + i bytes: no two are of one size. */
static struct pf_transfer *plan(struct bench *b, int i, bool whole)
{
    struct pf_expert_parts parts = { { gate[i], up[i], down[i] }, { GATE, UP, DOWN + (uint64_t)i } };
    return pf_postfetch_plan(&b->post, i, whole, &parts);
}

/* NULL: no room, or the copy was refused. */
static struct pf_transfer *start(struct bench *b, int i, bool whole)
{
    struct pf_transfer *t = plan(b, i, whole);
    return t && pf_postfetch_start(&b->post, t) ? t : NULL;
}

static bool arrived(const struct pf_transfer *t)
{
    int i = t->expert;
    bool same = memcmp(t->down, down[i], DOWN + (size_t)i) == 0;
    return same && (t->whole ? memcmp(t->gate, gate[i], GATE) == 0 && memcmp(t->up, up[i], UP) == 0 :
                               !t->gate && !t->up);
}

static void test_in_time(void)
{
    struct bench b;
    struct pf_transfer *t[N_EXPERTS];
    begin(&b, (struct pf_sim){ 0 }, PF_AUTO, 8, 65536);
    for (int layer = 0; layer < 2; layer++) {        /* the scratchpad is free again for the next layer */
        pf_postfetch_begin(&b.post, 0);
        for (int i = 0; i < N_EXPERTS; i++) {
            t[i] = start(&b, i, i % 2);
            CHECK(t[i] && t[i]->state == PF_COPY_IN_FLIGHT, "transfer %d did not begin", i);
        }
        for (int i = N_EXPERTS - 1; i >= 0; i--) {   /* in any order */
            pf_postfetch_settle(&b.post, t[i], 1e9);
            CHECK(t[i]->state == PF_GPU_READY && arrived(t[i]), "transfer %d did not arrive", i);
        }
        for (int i = 0; i < N_EXPERTS; i++)          /* none wrote over another */
            CHECK(arrived(t[i]), "transfer %d was overwritten", i);
        pf_postfetch_account(&b.post);
    }
    CHECK(b.post.n_transfers == 2 * N_EXPERTS && b.post.n_fallbacks == 0, "counts");
    end(&b);
}

/* A layer whose experts come from a drive is dealt out in several goes. Computing hides a copy only up to the moment
 * at which the copies of its own go are looked at. */
static void test_goes(void)
{
    struct bench b;
    begin(&b, (struct pf_sim){ .late_every = 1, .late_for = 1000000 }, 0, 8, 65536);
    for (int go = 0; go < 2; go++) {
        struct pf_transfer *t = start(&b, go, false);
        pf_postfetch_settle(&b.post, t, 1e9);
        CHECK(t->state == PF_CPU_ONLY && t->begun_ns <= t->asked_ns && t->asked_ns <= t->settled_ns, "go %d", go);
    }
    pf_postfetch_account(&b.post);
    CHECK(b.post.n_transfers == 2 && b.post.hidden_ns <= b.post.transfer_ns, "of %llu ns %llu were hidden",
          (unsigned long long)b.post.transfer_ns, (unsigned long long)b.post.hidden_ns);
    end(&b);
}

/* late_for questions are answered with "in flight". */
static void test_late(int block, uint64_t late_for, double cpu_ns, bool expected)
{
    struct bench b;
    begin(&b, (struct pf_sim){ .late_every = 1, .late_for = late_for }, block, 8, 65536);
    struct pf_transfer *t = start(&b, 2, false);
    pf_postfetch_settle(&b.post, t, cpu_ns);
    CHECK((t->state == PF_GPU_READY) == expected, "block %d, late for %d: state %d", block, (int)late_for,
          (int)t->state);
    pf_postfetch_account(&b.post);
    CHECK(b.post.n_fallbacks == !expected, "%d fallbacks", (int)b.post.n_fallbacks);
    end(&b);
}

static void test_refused(void)
{
    struct bench b;
    begin(&b, (struct pf_sim){ .refuse_fetch = 2 }, PF_AUTO, 8, 65536);
    CHECK(start(&b, 0, false) && !start(&b, 1, false), "the second copy was to be refused");
    struct pf_transfer *t = start(&b, 2, true), *refused = &b.post.transfers[1];
    CHECK(t != NULL, "after a refusal");
    pf_postfetch_settle(&b.post, refused, 1e9);
    CHECK(refused->state == PF_CPU_ONLY, "a refused copy is nowhere");
    pf_postfetch_settle(&b.post, t, 1e9);
    CHECK(t->state == PF_GPU_READY && arrived(t), "after a refusal");
    pf_postfetch_account(&b.post);
    CHECK(b.post.n_transfers == 1 && b.post.n_fallbacks == 0, "what was settled is counted, what did not begin is not");
    end(&b);

    begin(&b, (struct pf_sim){ .break_every = 1 }, 1, 8, 65536);
    t = start(&b, 0, true);
    pf_postfetch_settle(&b.post, t, 1e9);
    pf_postfetch_account(&b.post);
    CHECK(t->state == PF_CPU_ONLY && b.post.n_fallbacks == 1, "a broken copy");
    end(&b);

    begin(&b, (struct pf_sim){ 0 }, PF_AUTO, 2, 65536);
    CHECK(start(&b, 0, false) && start(&b, 1, false) && !start(&b, 2, false), "two transfers at most");
    end(&b);

    uint64_t two = pf_share_room(DOWN) + pf_share_room(DOWN + 1);
    begin(&b, (struct pf_sim){ 0 }, PF_AUTO, 8, two);
    CHECK(start(&b, 0, false) && start(&b, 1, false) && !start(&b, 2, false), "room for two");
    pf_postfetch_begin(&b.post, 0);
    CHECK(start(&b, 0, false) && !start(&b, 1, true) && start(&b, 3, false),
          "a whole expert has no room any more, a down has");
    end(&b);
}

/* ---- The solver -------------------------------------------------------------------------------------------------- */

static const uint64_t GATE_UP_BYTES = 8 << 20, DOWN_BYTES = 4 << 20;

/* ns of a deal on a machine of these rates; CPU and PCIe share the memory's joint rate. */
static double takes(double cpu, double pcie, double joint, int n, struct pf_deal d)
{
    double c = (n - d.n_whole) * (double)GATE_UP_BYTES + (n - d.n_whole - d.n_down) * (double)DOWN_BYTES;
    double p = d.n_whole * (double)(GATE_UP_BYTES + DOWN_BYTES) + d.n_down * (double)DOWN_BYTES;
    double t = c / cpu > p / pcie ? c / cpu : p / pcie;
    return (t > (c + p) / joint ? t : (c + p) / joint) * 1e9 + (d.n_whole + d.n_down) * 5000.0;
}

/* The mean over the last of many deals, beside the best fixed one and the CPU alone. */
static void test_machine(double cpu, double pcie, double joint, int n)
{
    static struct pf_solver s;
    struct pf_solver_rules rules = { .post_fetch = true, .whole = true, .max_transfers = n > 16 ? n : 8,
                                     .cpu_limit = -1 };
    enum { DEALS = 6000, LAST = 2400 };
    double mean = 0, best = -1;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < DEALS; i++) {
        struct pf_deal d = pf_solver_deal(&s, &rules, n, GATE_UP_BYTES, DOWN_BYTES);
        double ns = takes(cpu, pcie, joint, n, d);
        pf_price_learn(&s.prices.cpu_bytes_s, cpu, 1e9);
        pf_price_learn(&s.prices.pcie_bytes_s, d.n_whole + d.n_down ? pcie : s.prices.pcie_bytes_s, 1e9);
        pf_solver_learn(&s, n, d, GATE_UP_BYTES + DOWN_BYTES, ns, 0);
        mean += i >= DEALS - LAST ? ns / LAST : 0;
    }
    for (int w = 0; w <= n; w++)
        for (int d = 0; d <= n - w; d++) {
            double ns = takes(cpu, pcie, joint, n, (struct pf_deal){ w, d, false });
            best = best < 0 || ns < best ? ns : best;
        }
    printf("CPU %.0f, PCIe %.0f, joint %.0f GB/s, %d experts: %.1f us, best %.1f, CPU alone %.1f\n", cpu / 1e9,
           pcie / 1e9, joint / 1e9, n, mean / 1e3, best / 1e3,
           takes(cpu, pcie, joint, n, (struct pf_deal){ 0, 0, false }) / 1e3);
    CHECK(mean < 1.02 * best, "more than 2%% behind the best fixed deal");
}

static void test_rules(void)
{
    static struct pf_solver s;
    struct pf_solver_rules rules = { .post_fetch = true, .whole = true, .max_transfers = 3, .cpu_limit = 2 };
    memset(&s, 0, sizeof s);
    struct pf_deal d = pf_solver_deal(&s, &rules, 4, GATE_UP_BYTES, DOWN_BYTES);
    CHECK(d.n_whole == 2, "two of four for the CPU: %d are copied", d.n_whole);
    rules.cpu_limit = 0;
    d = pf_solver_deal(&s, &rules, 4, GATE_UP_BYTES, DOWN_BYTES);
    CHECK(d.n_whole == 3, "three transfers at most: %d", d.n_whole);
    rules = (struct pf_solver_rules){ .max_transfers = 8, .cpu_limit = -1 };
    for (int i = 0; i < 200; i++) {
        d = pf_solver_deal(&s, &rules, 1 + i % 20, GATE_UP_BYTES, DOWN_BYTES);
        CHECK(d.n_whole == 0 && d.n_down == 0, "nothing was allowed");
        pf_solver_learn(&s, 1 + i % 20, d, GATE_UP_BYTES + DOWN_BYTES, 1e6, 0);
    }
}

/* Steps of several rows, of which each misses another number of experts: beside the best deal of each. Copies are no
 * more than the rules allow. */
static void test_many(double cpu, double pcie, double joint, int least, int most, int max_transfers)
{
    static struct pf_solver s;
    struct pf_solver_rules rules = { .post_fetch = true, .whole = true, .max_transfers = max_transfers,
                                     .cpu_limit = -1 };
    enum { DEALS = 6000, LAST = 2400 };
    double took = 0, could = 0;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < DEALS; i++) {
        int n = least + i * 7 % (most - least + 1);
        struct pf_deal d = pf_solver_deal(&s, &rules, n, GATE_UP_BYTES, DOWN_BYTES);
        double ns = takes(cpu, pcie, joint, n, d), best = -1;
        CHECK(d.n_whole + d.n_down <= n && d.n_whole + d.n_down <= max_transfers, "%d and %d copies of %d experts",
              d.n_whole, d.n_down, n);
        pf_price_learn(&s.prices.cpu_bytes_s, cpu, 1e9);
        pf_price_learn(&s.prices.pcie_bytes_s, pcie, 1e9);
        pf_solver_learn(&s, n, d, GATE_UP_BYTES + DOWN_BYTES, ns, 0);
        for (int w = 0; w <= n && w <= max_transfers; w++)
            for (int k = 0; k <= n - w && w + k <= max_transfers; k++) {
                double t = takes(cpu, pcie, joint, n, (struct pf_deal){ w, k, false });
                best = best < 0 || t < best ? t : best;
            }
        took += i >= DEALS - LAST ? ns : 0;
        could += i >= DEALS - LAST ? best : 0;
    }
    printf("%d to %d experts, %d transfers: %.3f of the best\n", least, most, max_transfers, took / could);
    CHECK(took < 1.05 * could, "more than 5%% behind the best deals");
}

/* Two deals that take as long, of which one's copies are often late: the other is made. */
static void test_often_late(void)
{
    static struct pf_solver s;
    struct pf_solver_rules rules = { .post_fetch = true, .max_transfers = 8, .cpu_limit = -1 };
    int n_late = 0, n_sent = 0;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 3000; i++) {
        struct pf_deal d = pf_solver_deal(&s, &rules, 4, GATE_UP_BYTES, DOWN_BYTES);
        double ns = d.n_down == 0 ? 130e3 : d.n_down == 2 ? 100e3 : d.n_down == 3 ? 99e3 : 120e3;
        int late = d.n_down > 2 && i % 4 == 0;
        pf_price_learn(&s.prices.cpu_bytes_s, 131e9, 1e9);
        pf_price_learn(&s.prices.pcie_bytes_s, 55e9, 1e9);
        pf_solver_learn(&s, 4, d, GATE_UP_BYTES + DOWN_BYTES, ns, late ? d.n_down : 0);
        n_sent += i >= 1000 ? d.n_down : 0;
        n_late += i >= 1000 && late ? d.n_down : 0;
    }
    CHECK(n_sent > 0 && n_late < 0.05 * n_sent, "%d of %d copies were late", n_late, n_sent);
}

/* A solver that begins with what another has learned makes that one's deals at once, and unlearns what is no longer
 * true. */
static void test_memory(void)
{
    static struct pf_solver first, next;
    static struct pf_learned l, again;
    struct pf_solver_rules rules = { .post_fetch = true, .whole = true, .max_transfers = 8, .cpu_limit = -1 };
    double mean = 0, best = takes(131e9, 55e9, 150e9, 4, (struct pf_deal){ 0, 0, false });
    memset(&first, 0, sizeof first);
    for (int i = 0; i < 2000; i++) {
        struct pf_deal d = pf_solver_deal(&first, &rules, 4, GATE_UP_BYTES, DOWN_BYTES);
        pf_price_learn(&first.prices.cpu_bytes_s, 131e9, 1e9);
        pf_price_learn(&first.prices.pcie_bytes_s, 55e9, 1e9);
        pf_solver_learn(&first, 4, d, GATE_UP_BYTES + DOWN_BYTES, takes(131e9, 55e9, 150e9, 4, d), 0);
    }
    for (int w = 0; w <= 4; w++)
        for (int d = 0; d <= 4 - w; d++) {
            double ns = takes(131e9, 55e9, 150e9, 4, (struct pf_deal){ w, d, false });
            best = ns < best ? ns : best;
        }
    pf_solver_tell(&first, &l);
    pf_solver_recall(&next, &l);
    pf_solver_tell(&next, &again);
    CHECK(l.n_deals > 3 && again.n_deals == l.n_deals && again.cpu_bytes_s == l.cpu_bytes_s, "%d deals, then %d",
          l.n_deals, again.n_deals);
    for (int i = 0; i < 20; i++) {
        struct pf_deal d = pf_solver_deal(&next, &rules, 4, GATE_UP_BYTES, DOWN_BYTES);
        double ns = takes(131e9, 55e9, 150e9, 4, d);
        CHECK(ns < 1.02 * best, "deal %d of a solver that knows: %.1f us, best %.1f", i, ns / 1e3, best / 1e3);
        pf_solver_learn(&next, 4, d, GATE_UP_BYTES + DOWN_BYTES, ns, 0);
    }
    pf_solver_recall(&next, &l);             /* a machine whose bus is far slower than remembered */
    for (int i = 0; i < 6000; i++) {
        struct pf_deal d = pf_solver_deal(&next, &rules, 4, GATE_UP_BYTES, DOWN_BYTES);
        double ns = takes(131e9, 5e9, 131e9, 4, d);
        pf_solver_learn(&next, 4, d, GATE_UP_BYTES + DOWN_BYTES, ns, 0);
        mean += i >= 3600 ? ns / 2400 : 0;
    }
    CHECK(mean < 1.02 * takes(131e9, 5e9, 131e9, 4, (struct pf_deal){ 0, 0, false }), "stale prices: %.1f us",
          mean / 1e3);
}

/* Learned deals that make no sense are left out, the others taken. */
static void test_nonsense(void)
{
    static struct pf_solver s;
    static struct pf_learned l, out;
    l = (struct pf_learned){ .cpu_bytes_s = -1, .pcie_bytes_s = (double)NAN, .n_deals = 11,
                             .deals = { { 0, 0, 0, false, 1, 1 }, { 4, 0, 0, true, 1, 1 }, { 4, -1, 0, false, 1, 1 },
                                        { 4, 3, 2, false, 1, 1 }, { 17, 0, 0, false, 1, 1 }, { 4, 0, 0, false, 0, 1 },
                                        { 4, 0, 0, false, 1, 0 }, { 4, 0, 0, false, 1, (double)NAN },
                                        { 4, 0, 0, false, 1, (double)INFINITY }, { 4, 0, 2147483647, false, 1, 1 },
                                        { 4, 1, 2, false, 3, 0.5 } } };
    pf_solver_recall(&s, &l);
    pf_solver_tell(&s, &out);
    CHECK(out.cpu_bytes_s == 0 && out.pcie_bytes_s == 0 && out.n_deals == 1 && out.deals[0].n_down == 2, "%d deals",
          out.n_deals);
    l.n_deals = 1 << 30;                     /* behind the table's end is nothing */
    pf_solver_recall(&s, &l);
    l.n_deals = -1;
    pf_solver_recall(&s, &l);
    pf_solver_tell(&s, &out);
    CHECK(out.n_deals == 0, "%d deals", out.n_deals);
}

/* Whether the later of both sides of a machine is done as early as can be, once it was seen to be so fast. */
static void prompt_on(double bus_bytes_s, double cpu_s, int n, uint64_t backlog)
{
    enum { BYTES = 3000000, ROWS = 100 };
    struct pf_prompt_prices p = { 0 };
    CHECK(pf_prompt_pays(&p, ROWS, n, BYTES) && pf_prompt_share(&p, ROWS, n, BYTES, 0) <= 4, "nothing is known");
    pf_prompt_learn_bus(&p, BYTES, (uint64_t)(BYTES / bus_bytes_s * 1e9));
    for (int i = PF_PROMPT_FIRST; i-- > 0;)      /* the first times take longer */
        pf_prompt_learn_cpu(&p, ROWS, 3, (uint64_t)(3 * (1 + 20 * i) * cpu_s * 1e9));
    int k = pf_prompt_share(&p, ROWS, n, BYTES, backlog);
    double bus = ((double)backlog + (double)(n - k) * BYTES) / bus_bytes_s, cpu = k * cpu_s;
    CHECK(k >= 0 && k <= n, "%d of %d", k, n);
    double best = 1e9, alone = n * BYTES / bus_bytes_s;
    for (int i = 0; i <= n; i++)
        best = fmin(best, fmax(i * cpu_s, ((double)backlog + (double)(n - i) * BYTES) / bus_bytes_s));
    CHECK(fmax(bus, cpu) <= best * 1.0001, "%d of %d: %g s, best %g", k, n, fmax(bus, cpu), best);
    k = pf_prompt_share(&p, ROWS, n, BYTES, 0);
    best = fmax(k * cpu_s, (double)(n - k) * BYTES / bus_bytes_s);
    CHECK(fabs(best / alone - 0.9) < 0.001 || pf_prompt_pays(&p, ROWS, n, BYTES) == (best < 0.9 * alone),
          "%g of %g s", best, alone);
    CHECK(pf_prompt_share(&p, 2 * ROWS, n, BYTES, 0) <= 4, "twice the rows are another price");
}

static void test_prompt_deal(void)
{
    struct pf_prompt_prices p = { 0 };
    int n = 0;
    for (int i = 0; i < 64; i++)
        prompt_on(1e9 * (1 << i % 8), 1e-6 * (1 << i / 8 * 2), 5 + i * 2, i % 3 * (uint64_t)40000000);
    pf_prompt_learn_bus(&p, 1000000, 1000000);
    for (int i = 0; i < PF_PROMPT_FIRST; i++)
        pf_prompt_learn_cpu(&p, 40, 1, 1000000);
    while (n < 10000 && !pf_prompt_pays(&p, 40, 1000, 1000))
        n++;
    CHECK(n > 100 && n < 10000, "what did not pay is tried again after %d layers", n);
}

/* What a step's layers take, of each of which the host makes k chunks of n: one takes it `host`, and it begins late;
 * the device has the others, the one that is written to, and some near. */
struct far_machine {
    double host, late, device, near;
};

static struct pf_attended far_step(const struct far_machine *m, int n, int k)
{
    enum { LAYERS = 7 };
    return (struct pf_attended){ (uint64_t)(LAYERS * (m->late + k * m->host)),
                                 (uint64_t)(LAYERS * (m->near + (n + 1 - k) * m->device)) };
}

/* One step with n far chunks; how many the host had. */
static int far_deal(struct pf_far_shares *s, const struct far_machine *m, int n)
{
    struct pf_far_deal d;
    int k = pf_far_deal(s, 1, n, n, &d);
    struct pf_attended took = far_step(m, n, k);
    if (k > 0)
        pf_far_learn(&d, &took, 1);
    return k;
}

/* Both ends come together, or the host has all, or it has none but now and then, and would not be done earlier. */
static void far_on(const struct far_machine *m, int n)
{
    enum { STEPS = 300, LAST = 100 };
    struct pf_far_shares s = { 0 };
    int k = 0, n_with = 0;
    for (int i = 0; i < STEPS; i++) {
        k = far_deal(&s, m, n);
        n_with += i >= STEPS - LAST && k > 0;
    }
    double host = m->late + k * m->host, device = m->near + (n + 1 - k) * m->device;
    bool alone = n_with <= 2;
    CHECK(k <= n && (!alone || n_with > 0), "%d of %d", k, n);
    CHECK(fabs(host - device) <= 1.1 * (m->host + m->device) || (k == n && host < device) ||
          (alone && m->late + m->host > m->near + n * m->device),
          "%d of %d, %d times: %g and %g ns", k, n, n_with, host, device);
}

static void test_far_machines(void)
{
    static const struct far_machine some = { 12300, 40000, 5600, 20000 };
    static const struct far_machine fast_and_late = { 5600, 130000, 12300, 20000 };
    struct pf_far_shares s = { 0 };
    int k = 0, few = 0;
    for (int i = 0; i < 128; i++)
        far_on(&(struct far_machine){ 1000 << i % 4, i / 64 * 100000, 500 << i / 4 % 4, i / 16 % 4 * 40000 },
               1 + i % 64 * 3);
    for (int n = 1; n <= 80; n++)
        far_on(&fast_and_late, n);
    for (int i = 0; i < 200; i++)
        k = far_deal(&s, &some, 80);
    for (int i = 0; i < 200; i++) {
        few += far_deal(&s, &some, 1);
        CHECK(abs(far_deal(&s, &some, 80) - k) <= 1, "a short context changes the deal of a long one");
    }
    CHECK(k > 15 && k < 30 && few > 1 && few < 10, "%d of 80 chunks, and of one chunk %d times", k, few);
}

/* Sequences of one length in each step, which move one share. */
static void test_far_together(void)
{
    enum { STEPS = 50, N = 60 };
    static const struct far_machine some = { 6000, 30000, 9000, 20000 };
    struct pf_far_shares s = { 0 };
    struct pf_far_deal d[PF_BY_HOST_PARTS];
    int k[PF_BY_HOST_PARTS], alone = 0;
    for (int i = 0; i < STEPS; i++) {
        for (int j = 0; j < PF_BY_HOST_PARTS; j++)
            k[j] = pf_far_deal(&s, 1, N, N, &d[j]);
        for (int j = 0; j < PF_BY_HOST_PARTS; j++) {
            struct pf_attended took = far_step(&some, N, k[j]);
            pf_far_learn(&d[j], &took, PF_BY_HOST_PARTS);
        }
    }
    s = (struct pf_far_shares){ 0 };
    for (int i = 0; i < STEPS; i++)
        alone = far_deal(&s, &some, N);
    for (int j = 0; j < PF_BY_HOST_PARTS; j++)
        CHECK(abs(k[j] - alone) <= 1, "%d of %d beside others, %d alone", k[j], N, alone);
}

static void test_far_deal(void)
{
    struct pf_far_shares s = { 0 };
    struct pf_far_deal d, other;
    CHECK(pf_far_deal(&s, 1, 0, 9, &d) == 0 && pf_far_deal(&s, 1, 9, 0, &d) == 0, "nothing to deal, or no room");
    CHECK(pf_far_deal(&s, 1, 90, 7, &d) == 7 && d.n_device == 84, "there is room for 7");
    s = (struct pf_far_shares){ 0 };
    CHECK(pf_far_deal(&s, 1, 10, 10, &d) == 5, "before anything is known");
    pf_far_learn(&d, &(struct pf_attended){ 5, 6000 }, 1);
    CHECK(pf_far_deal(&s, 1, 10, 10, &d) == 8 && pf_far_deal(&s, 2, 10, 10, &other) == 5,
          "two rows have a share of their own");
    pf_far_learn(&other, &(struct pf_attended){ 0, 0 }, 1);
    CHECK(pf_far_deal(&s, 2, 10, 10, &d) == 5, "a step that tells nothing");
    CHECK(pf_far_deal(&s, 2, 100, 100, &d) == 46, "a longer context begins with the share of a shorter one");
    test_far_machines();
    test_far_together();
}

int main(void)
{
    for (int i = 0; i < N_EXPERTS; i++) {
        memset(gate[i], 1 + i, GATE);
        memset(up[i], 11 + i, UP);
        memset(down[i], 21 + i, sizeof down[i]);
    }
    test_in_time();
    test_goes();
    test_late(1, 1000000, 1, true);          /* waits whatever it costs */
    test_late(0, 1, 1e9, false);             /* never waits */
    test_late(PF_AUTO, 5, 1e9, true);        /* the rest of the copy is cheaper */
    test_late(PF_AUTO, 1000000000, 1e6, false);      /* the copy seemed late, and was not */
    test_refused();
    test_rules();
    test_prompt_deal();
    test_far_deal();
    test_often_late();
    test_memory();
    test_nonsense();
    test_machine(131e9, 55e9, 150e9, 4);
    test_machine(85e9, 55e9, 128e9, 4);
    test_machine(40e9, 25e9, 45e9, 8);
    test_machine(60e9, 12e9, 72e9, 10);
    test_machine(20e9, 3e9, 20e9, 2);
    test_machine(60e9, 50e9, 90e9, 28);
    test_machine(40e9, 12e9, 45e9, 17);
    test_machine(85e9, 55e9, 128e9, 64);
    test_many(60e9, 50e9, 90e9, 12, 40, 40);
    test_many(60e9, 50e9, 90e9, 17, 64, 8);
    test_many(40e9, 12e9, 45e9, 20, 30, 15);
    return check_status();
}

/* See postfetch.h. */
#include "moe/offload/postfetch.h"

#include <immintrin.h>

#include "base/pf_time.h"

void pf_postfetch_begin(struct pf_postfetch *p, int layer)
{
    p->layer = layer;
    p->n = 0;
    p->used = 0;
}

static int ticket_of(const struct pf_postfetch *p, const struct pf_transfer *t)
{
    return (int)(t - p->transfers);
}

/* When a copy of so many bytes, queued behind the copies under way, should be over. */
static uint64_t expected_end(const struct pf_postfetch *p, uint64_t now, uint64_t bytes)
{
    uint64_t start = now;
    for (int i = 0; i < p->n; i++)
        if (p->transfers[i].expected_ns > start)
            start = p->transfers[i].expected_ns;
    double rate = p->prices->pcie_bytes_s > 0 ? p->prices->pcie_bytes_s : 10e9;
    return start + (uint64_t)((double)bytes / rate * 1e9);
}

struct pf_transfer *pf_postfetch_plan(struct pf_postfetch *p, int expert, bool whole,
                                      const struct pf_expert_parts *parts)
{
    struct pf_transfer *t = &p->transfers[p->n];
    const void **to[] = { &t->gate, &t->up, &t->down };
    uint64_t used = p->used;
    if (p->n == p->opts.max_transfers || p->n == PF_MAX_TRANSFERS)
        return NULL;
    *t = (struct pf_transfer){ .expert = expert, .whole = whole, .state = PF_CPU_ONLY };
    for (int i = whole ? 0 : 2; i < 3; i++) {
        char *at = p->scratchpad + used;
        *to[i] = at;
        t->pieces[t->n_pieces++] = (struct pf_piece){ at, parts->at[i], parts->bytes[i] };
        used += pf_share_room(parts->bytes[i]);
        t->bytes += parts->bytes[i];
    }
    if (used > p->scratchpad_bytes)
        return NULL;
    p->used = used;
    p->n++;
    return t;
}

bool pf_postfetch_start(struct pf_postfetch *p, struct pf_transfer *t)
{
    if (p->device->ops->share->fetch(p->device, ticket_of(p, t), t->pieces, t->n_pieces) < 0)
        return false;
    t->state = PF_COPY_IN_FLIGHT;
    t->begun_ns = pf_now_ns();
    p->asked_ns = 0;
    t->expected_ns = expected_end(p, t->begun_ns, t->bytes);
    return true;
}

/* Whether waiting beats the CPU. */
static bool worth_waiting(const struct pf_postfetch *p, const struct pf_transfer *t, uint64_t now, double cpu_ns)
{
    if (p->opts.block_on_miss != PF_AUTO)
        return p->opts.block_on_miss;
    return t->expected_ns <= now || (double)(t->expected_ns - now) < cpu_ns;
}

void pf_postfetch_settle(struct pf_postfetch *p, struct pf_transfer *t, double cpu_ns)
{
    const struct pf_share_ops *share = p->device->ops->share;
    if (t->state != PF_COPY_IN_FLIGHT)
        return;
    uint64_t now = pf_now_ns(), deadline = now + (uint64_t)(2 * cpu_ns);
    t->asked_ns = p->asked_ns = p->asked_ns ? p->asked_ns : now;
    enum pf_fetch_state state = share->fetch_state(p->device, ticket_of(p, t));
    if (state == PF_FETCH_IN_FLIGHT && worth_waiting(p, t, now, cpu_ns)) {
        if (p->opts.block_on_miss == 1)
            state = share->fetch_wait(p->device, ticket_of(p, t));
        while (state == PF_FETCH_IN_FLIGHT && pf_now_ns() < deadline) {     /* a copy that is far too late is dropped */
            _mm_pause();
            state = share->fetch_state(p->device, ticket_of(p, t));
        }
    }
    t->settled_ns = pf_now_ns();
    t->state = state == PF_FETCH_READY ? PF_GPU_READY : PF_CPU_ONLY;
}

static void note(struct pf_postfetch *p, const struct pf_transfer *t, uint64_t took)
{
    const char *name = t->state == PF_CPU_ONLY ? "late copy" : t->whole ? "expert" : "down";
    struct pf_span span = { name, PF_TRACK_COPIES, p->layer, t->expert, t->begun_ns, t->settled_ns };
    pf_spans_add_queued(p->spans, &span, took, &p->over_ns);
}

void pf_postfetch_account(struct pf_postfetch *p)
{
    for (const struct pf_transfer *t = p->transfers; t < p->transfers + p->n; t++) {
        if (!t->settled_ns)
            continue;
        uint64_t took = t->state == PF_GPU_READY ? p->device->ops->share->fetch_ns(p->device, ticket_of(p, t)) : 0;
        uint64_t before = t->asked_ns - t->begun_ns;
        pf_count(&p->n_transfers, 1);
        pf_count(&p->transfer_bytes, t->bytes);
        pf_count(&p->transfer_ns, took ? took : t->settled_ns - t->begun_ns);
        pf_count(&p->hidden_ns, took && took < before ? took : before);
        pf_count(&p->n_fallbacks, t->state == PF_CPU_ONLY);
        if (took)
            pf_price_learn(&p->prices->pcie_bytes_s, (double)t->bytes, (double)took);
        note(p, t, took);
    }
    p->n = 0;
}

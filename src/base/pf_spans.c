/* The ring of spans. See pf_spans.h.
 *
 * Who adds draws a number; number i goes into slot i % n. A slot's `number` is 0 while it is written and i + 1 when it
 * is whole: a reader that finds the same number before and after has read one span, as each field is stored with
 * release and loaded with acquire: who sees a newer field also sees that the number was taken away before it. (A writer
 * that is overtaken by n others could mix two spans; n is far above the number of threads.) */
#define _GNU_SOURCE
#include "base/pf_spans.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_pool.h"

struct slot {
    _Atomic uint64_t      number, begin_ns, end_ns;
    _Atomic(const char *) name;
    _Atomic int           track, layer, expert;
};

struct pf_spans {
    _Atomic uint64_t n_added;
    uint64_t         opened_ns;
    struct pf_span   now;                /* the present span of the track of steps */
    size_t           n;
    struct slot     *slots;
};

pf_status pf_spans_open(pf_spans **out, size_t n_spans)
{
    *out = NULL;
    pf_spans *s = pf_alloc(PF_MEM_BASE, sizeof *s);
    struct slot *slots = pf_alloc_array(PF_MEM_BASE, n_spans, sizeof *slots);
    if (!s || !slots) {
        pf_free(s);
        pf_free(slots);
        PF_FAIL(PF_ENOMEM, "no memory for a timeline of %zu spans", n_spans);
    }
    s->n = n_spans;
    s->slots = slots;
    s->opened_ns = pf_now_ns();
    *out = s;
    return PF_OK;
}

void pf_spans_close(pf_spans **sp)
{
    if (!*sp)
        return;
    pf_free((*sp)->slots);
    pf_free(*sp);
    *sp = NULL;
}

void pf_spans_add(pf_spans *s, const struct pf_span *span)
{
    if (!s)
        return;
    uint64_t number = atomic_fetch_add_explicit(&s->n_added, 1, memory_order_relaxed);
    struct slot *slot = &s->slots[number % s->n];
    atomic_store_explicit(&slot->number, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->name, span->name, memory_order_release);
    atomic_store_explicit(&slot->track, span->track, memory_order_release);
    atomic_store_explicit(&slot->layer, span->layer, memory_order_release);
    atomic_store_explicit(&slot->expert, span->expert, memory_order_release);
    atomic_store_explicit(&slot->begin_ns, span->begin_ns, memory_order_release);
    atomic_store_explicit(&slot->end_ns, span->end_ns, memory_order_release);
    atomic_store_explicit(&slot->number, number + 1, memory_order_release);
}

void pf_spans_add_queued(pf_spans *s, const struct pf_span *span, uint64_t took_ns, uint64_t *over_ns)
{
    struct pf_span shown = *span;
    if (!s)
        return;
    if (shown.begin_ns < *over_ns)
        shown.begin_ns = *over_ns;
    if (took_ns > 0 && shown.begin_ns + took_ns < shown.end_ns)
        shown.end_ns = shown.begin_ns + took_ns;
    if (shown.end_ns < shown.begin_ns)
        shown.end_ns = shown.begin_ns;
    *over_ns = shown.end_ns;
    pf_spans_add(s, &shown);
}

void pf_spans_enter(pf_spans *s, const char *name, int layer)
{
    if (!s)
        return;
    uint64_t now = pf_now_ns();
    if (s->now.name) {
        s->now.end_ns = now;
        pf_spans_add(s, &s->now);
    }
    s->now = (struct pf_span){ .name = name, .track = PF_TRACK_STEPS, .layer = layer, .expert = -1, .begin_ns = now };
}

struct pf_span pf_spans_at(const pf_spans *s)
{
    return s ? s->now : (struct pf_span){ 0 };
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static bool read_slot(const struct slot *slot, struct pf_span *out)
{
    uint64_t number = atomic_load_explicit(&slot->number, memory_order_acquire);
    *out = (struct pf_span){
        .name = atomic_load_explicit(&slot->name, memory_order_acquire),
        .track = atomic_load_explicit(&slot->track, memory_order_acquire),
        .layer = atomic_load_explicit(&slot->layer, memory_order_acquire),
        .expert = atomic_load_explicit(&slot->expert, memory_order_acquire),
        .begin_ns = atomic_load_explicit(&slot->begin_ns, memory_order_acquire),
        .end_ns = atomic_load_explicit(&slot->end_ns, memory_order_acquire),
    };
    return number != 0 && atomic_load_explicit(&slot->number, memory_order_relaxed) == number;
}

static const char *track_name(int track, char *out, size_t cap)
{
    static const char *const names[] = { [PF_TRACK_STEPS] = "steps", [PF_TRACK_GPU] = "GPU",
                                         [PF_TRACK_COPIES] = "copies",
                                         [PF_TRACK_FILLS] = "cache fills", [PF_TRACK_DRIVE] = "drive" };
    if (track < PF_TRACK_CPU)
        return names[track];
    snprintf(out, cap, "CPU %d", track - PF_TRACK_CPU);
    return out;
}

static bool write_text(pf_write_fn *write, void *ctx, const char *text)
{
    return write(ctx, text, strlen(text));
}

static bool write_track(pf_write_fn *write, void *ctx, int track)
{
    char name[24], text[160];
    snprintf(text, sizeof text,
             ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", track,
             track_name(track, name, sizeof name));
    return write_text(write, ctx, text);
}

/* Times are microseconds there; three digits keep the nanoseconds. */
static bool write_span(pf_write_fn *write, void *ctx, uint64_t origin_ns, const struct pf_span *s)
{
    char text[320], layer[32] = "", expert[32] = "";
    uint64_t at = s->begin_ns > origin_ns ? s->begin_ns - origin_ns : 0, ns = s->end_ns - s->begin_ns;
    if (s->layer >= 0)
        snprintf(layer, sizeof layer, "\"layer\":%d", s->layer);
    if (s->expert >= 0)
        snprintf(expert, sizeof expert, "%s\"expert\":%d", s->layer >= 0 ? "," : "", s->expert);
    snprintf(text, sizeof text,
             ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%" PRIu64 ".%03d,\"dur\":%" PRIu64
             ".%03d,\"args\":{%s%s}}",
             s->name, s->track, at / 1000, (int)(at % 1000), ns / 1000, (int)(ns % 1000), layer, expert);
    return write_text(write, ctx, text);
}

bool pf_spans_write(const pf_spans *s, pf_write_fn *write, void *ctx)
{
    bool seen[PF_TRACK_CPU + PF_MAX_THREADS] = { false };
    bool ok = write_text(write, ctx,
                         "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
                         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"pfmoe\"}}");
    for (size_t i = 0; ok && i < s->n; i++) {
        struct pf_span span;
        if (!read_slot(&s->slots[i], &span))
            continue;
        if (!seen[span.track])
            ok = write_track(write, ctx, span.track);
        seen[span.track] = true;
        ok = ok && write_span(write, ctx, s->opened_ns, &span);
    }
    return ok && write_text(write, ctx, "\n]}\n");
}

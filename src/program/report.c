/* See report.h. */
#define _GNU_SOURCE
#include "program/report.h"

#include <math.h>
#include <string.h>

#include "program/io/buf.h"
#include "program/io/userfile.h"

enum { TIMELINE_SPANS = 1 << 18, MAX_PICKS = 64, MAX_POLICIES = 16 };      /* 14 MB; some 20 to 200 tokens */

static struct buf why_not;
static struct userfile trace_file;       /* the trace that is being recorded; path NULL: none */

void report_model_opts(const struct report *r, struct pf_model_opts *o)
{
    o->timeline_spans = r->timeline ? TIMELINE_SPANS : 0;
    o->routing = r->routing;
}

/* ---- Lines for every pick ---------------------------------------------------------------------------------------- */

/* Picks come first, their weights right after them: one line. */
static void print_picks(const struct pf_stage_data *d)
{
    static int32_t picks[MAX_PICKS];
    if (d->picks) {
        memcpy(picks, d->picks, (size_t)(d->n < MAX_PICKS ? d->n : MAX_PICKS) * sizeof *picks);
        return;
    }
    fprintf(stderr, "token %lld layer %d picks", (long long)d->pos, d->layer);
    for (int i = 0; i < d->n && i < MAX_PICKS; i++)
        fprintf(stderr, " %d (%.4f)", picks[i], (double)d->values[i]);
    putc('\n', stderr);
}

static void print_stage(const struct pf_stage_data *d)
{
    static const char *const names[PF_N_STAGES] = { "logits", "probabilities", "scores", "picks", "weights", "gate",
                                                    "up", "activation", "down", "sum" };
    double squares = 0, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < d->n; i++) {
        squares += (double)d->values[i] * (double)d->values[i];
        least = fmin(least, (double)d->values[i]);
        most = fmax(most, (double)d->values[i]);
    }
    fprintf(stderr, "token %lld layer %d", (long long)d->pos, d->layer);
    if (d->expert >= 0)
        fprintf(stderr, " expert %d", d->expert);
    fprintf(stderr, " %s: %d values from %.4g to %.4g, root mean square %.4g\n", names[d->stage], d->n, least, most,
            sqrt(squares / d->n));
}

static void print_data(void *ctx, const struct pf_stage_data *d)
{
    (void)ctx;
    if (d->stage == PF_STAGE_PICKS || d->stage == PF_STAGE_WEIGHTS)
        print_picks(d);
    else
        print_stage(d);
}

static bool failed(void)
{
    buf_puts(&why_not, pf_last_error());
    return false;
}

bool report_allows(const struct report *r, const char **why)
{
    buf_clear(&why_not);
    bool ok = (!r->timeline || userfile_allows(r->timeline, &why_not)) &&
              (!r->trace_output || userfile_allows(r->trace_output, &why_not));
    *why = buf_text(&why_not);
    return ok;
}

/* A trace is recorded on the way; other files are written at the end. */
static bool begin_files(const struct report *r, struct pf_trace_opts *o)
{
    if (report_form_of(r->trace_output) != REPORT_TRACE)
        return true;
    if (!userfile_open(&trace_file, r->trace_output, 0, &why_not))
        return false;
    o->record = userfile_name(&trace_file);
    return true;
}

static bool begin(const struct report *r, pf_model *m)
{
    enum report_form form = report_form_of(r->trace_output);
    struct pf_trace_opts o = { .counts = r->trace_stats || (form != REPORT_NONE && form != REPORT_TRACE) };
    if (r->trace_logging || r->trace_verbose) {
        o.fn = print_data;
        o.stages = r->trace_verbose ? (1u << PF_N_STAGES) - 1 : 1u << PF_STAGE_PICKS | 1u << PF_STAGE_WEIGHTS;
    }
    return begin_files(r, &o) && (!(o.counts || o.record || o.fn) || pf_trace_set(m, &o) == PF_OK || failed());
}

bool report_begin(const struct report *r, pf_model *m, const char **why)
{
    buf_clear(&why_not);
    bool ok = begin(r, m);
    if (!ok && trace_file.path)
        userfile_abandon(&trace_file);
    *why = buf_text(&why_not);
    return ok;
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static double share(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static double a_token(uint64_t n, const struct pf_stats *s)
{
    return s->n_tokens ? (double)n / (double)s->n_tokens : 0;
}

static void print_tiers(FILE *f, const struct pf_stats *s)
{
    uint64_t wanted = s->slab_hits + s->slab_misses;
    if (s->vram_slots)
        fprintf(f, "experts in VRAM     %.1f%% of those wanted, %.1f a token\n",
                share(s->vram_hits, s->vram_hits + wanted), a_token(s->vram_hits, s));
    if (s->vram_transit_bytes)
        fprintf(f, "VRAM for experts    %.0f MB, room for %llu; %.0f MB for those on their way\n",
                (double)s->vram_slot_bytes * 1e-6, (unsigned long long)s->vram_slots,
                (double)s->vram_transit_bytes * 1e-6);
    if (wanted)
        fprintf(f, "experts in memory   %.1f%% of %llu that were looked for\n", share(s->slab_hits, wanted),
                (unsigned long long)wanted);
    if (s->disk_bytes_read)
        fprintf(f, "drive               %.2f GB read at %.2f GB/s, busy %.1f%% of the time, waited for %.1f%%\n",
                (double)s->disk_bytes_read * 1e-9, (double)s->disk_bytes_read / (double)s->disk_busy_ns,
                share(s->disk_busy_ns, s->step_ns), share(s->disk_wait_ns, s->step_ns));
}

static void print_device(FILE *f, const struct pf_stats *s)
{
    if (s->n_in_place)
        fprintf(f, "read in place       %.1f experts a token, %.1f MB\n", a_token(s->n_in_place, s),
                a_token(s->in_place_bytes, s) * 1e-6);
    if (s->far_bytes)
        fprintf(f, "far keys and values %.1f MB a token, %.1f%% of them read by the CPU\n",
                a_token(s->far_bytes, s) * 1e-6, share(s->far_cpu_bytes, s->far_bytes));
    if (s->n_transfers)
        fprintf(f, "transfers           %.1f a token, %.1f MB at %.1f GB/s, %.1f%% of their time hidden\n"
                   "fallbacks           %.2f%% of them\n",
                a_token(s->n_transfers, s), a_token(s->transfer_bytes, s) * 1e-6,
                (double)s->transfer_bytes / (double)(s->transfer_ns ? s->transfer_ns : 1),
                share(s->transfer_hidden_ns, s->transfer_ns),
                share(s->n_fallbacks, s->n_transfers));
    if (s->stream_bytes)
        fprintf(f, "prompts             %.2f GB of weights sent to the GPU\n", (double)s->stream_bytes * 1e-9);
    if (s->gpu_busy_ns)
        fprintf(f, "GPU busy            %.1f%% of the time\n", share(s->gpu_busy_ns, s->step_ns));
    if (s->n_launches)
        fprintf(f, "launches            %.1f a token\n", a_token(s->n_launches, s));
    if (s->handoff_p95_ns)
        fprintf(f, "hand-off            %.1f us (median), %.1f us (95th percentile)\n",
                (double)s->handoff_p50_ns * 1e-3, (double)s->handoff_p95_ns * 1e-3);
    if (s->device_lost)
        fputs("a GPU was lost; the CPU went on in its place\n", f);
}

void report_experts(FILE *f, const struct pf_stats *s)
{
    print_tiers(f, s);
    print_device(f, s);
}

/* Prints the hit rate of the best possible replacement on the trace just recorded. */
static void print_belady(const char *trace, const struct pf_stats *s)
{
    struct pf_replay rows[MAX_POLICIES];
    int n = 0;
    if (!s->slab_slots || pf_trace_replay(trace, (int64_t)s->slab_slots, rows, MAX_POLICIES, &n) < 0)
        return;
    const struct pf_replay *best = &rows[n < MAX_POLICIES ? n - 1 : MAX_POLICIES - 1];
    fprintf(stderr, "best possible       %.1f%% in memory, with room for %llu experts\n",
            share(best->n_hits, best->n_uses), (unsigned long long)best->n_slots);
}

void report_drafts(FILE *f, const struct pf_stats *s)
{
    if (!s->n_drafted)
        return;
    double steps = (double)s->n_draft_steps, ms = (double)s->draft_step_ns * 1e-6 / steps;
    fprintf(f, "drafts              %llu drafted, %llu right; %.1f a step of %.2f ms; %.2f times as fast as without\n",
            (unsigned long long)s->n_drafted, (unsigned long long)s->n_accepted, (double)s->n_drafted / steps, ms,
            (double)s->draft_alone_ns / (double)s->draft_step_ns);
}

uint64_t report_tokens(const struct pf_stats *s)
{
    return s->n_tokens - (s->n_drafted - s->n_accepted);
}

static void print_stats(const struct report *r, pf_model *m, const struct report_limits *limits)
{
    struct pf_stats s;
    pf_stats_get(m, &s);
    double n = (double)report_tokens(&s);
    double seconds = (double)s.step_ns * 1e-9, bytes_s = seconds > 0 ? (double)s.weight_bytes_read / seconds : 0;
    fprintf(stderr, "evaluated           %.0f tokens in %.3f s: %.2f tok/s\n", n, seconds,
            seconds > 0 ? n / seconds : 0);
    fprintf(stderr, "context             %lld tokens\n", (long long)s.n_ctx);
    fprintf(stderr, "weights gone over   %.2f GB at %.2f GB/s", (double)s.weight_bytes_read * 1e-9, bytes_s * 1e-9);
    if (limits && limits->memory_bytes_s > 0)
        fprintf(stderr, ", %.1f%% of the %.2f that memory gives", 100 * bytes_s / limits->memory_bytes_s,
                limits->memory_bytes_s * 1e-9);
    putc('\n', stderr);
    if (limits && limits->tok_s > 0 && seconds > 0)
        fprintf(stderr, "roofline            %.2f tok/s, %.1f%% of it reached\n", limits->tok_s,
                100 * n / seconds / limits->tok_s);
    report_drafts(stderr, &s);
    if (!pf_model_info(m)->can_draft)
        fputs("drafts              none: the model's state cannot go back to a row within a step\n", stderr);
    report_experts(stderr, &s);
    if (report_form_of(r->trace_output) == REPORT_TRACE)
        print_belady(r->trace_output, &s);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static bool put(void *ctx, const void *data, size_t bytes)
{
    return fwrite(data, 1, bytes, ctx) == bytes;
}

struct job {
    pf_model *m;
    enum report_form form;
};

static bool fill_timeline(void *ctx, FILE *f)
{
    return pf_timeline_write(((struct job *)ctx)->m, put, f) == PF_OK;
}

static bool fill_activity(void *ctx, FILE *f)
{
    static void (*const forms[])(const struct activity *, FILE *) = { [REPORT_JSON] = activity_json,
                                                                      [REPORT_CSV] = activity_csv,
                                                                      [REPORT_SVG] = activity_svg };
    const struct job *job = ctx;
    struct activity a;
    bool ok = activity_read(&a, job->m);
    if (ok)
        forms[job->form](&a, f);
    activity_free(&a);
    return ok && !ferror(f);
}

static void print_activity(pf_model *m)
{
    struct activity a;
    if (activity_read(&a, m))
        activity_table(&a, stderr);
    activity_free(&a);
}

static bool end(const struct report *r, pf_model *m, const struct report_limits *limits)
{
    struct job job = { m, report_form_of(r->trace_output) };
    bool traced = r->trace_stats || r->trace_logging || r->trace_verbose || job.form != REPORT_NONE;
    if (job.form != REPORT_NONE && job.form != REPORT_TRACE &&
        !userfile_write(r->trace_output, 0, fill_activity, &job, &why_not))
        return false;
    if (r->timeline && !userfile_write(r->timeline, 0, fill_timeline, &job, &why_not))
        return false;
    if (r->trace_stats)
        print_activity(m);
    if (traced && pf_trace_set(m, NULL) < 0)
        return failed();
    if (trace_file.path && !userfile_commit(&trace_file, &why_not))
        return false;
    if (r->stats)
        print_stats(r, m, limits);
    return true;
}

bool report_end(const struct report *r, pf_model *m, const struct report_limits *limits, const char **why)
{
    buf_clear(&why_not);
    bool ok = end(r, m, limits);
    *why = buf_text(&why_not);
    return ok;
}

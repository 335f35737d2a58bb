/* See metrics.h. */
#include "serve/metrics.h"

struct metrics metrics;

static void put(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    buf_printf(out, "# HELP pfmoe_%s %s\n# TYPE pfmoe_%s %s\npfmoe_%s %.15g\n", name, help, name, type, name, value);
}

static void put_engine(const pf_model *m, struct buf *out)
{
    struct pf_stats s;
    pf_stats_get(m, &s);
    put(out, "steps_total", "counter", "Steps of the engine.", (double)s.n_steps);
    put(out, "step_seconds_total", "counter", "Time in steps.", (double)s.step_ns * 1e-9);
    put(out, "positions_total", "counter", "Positions evaluated, of prompts and answers.", (double)s.n_tokens);
    put(out, "drafted_tokens_total", "counter", "Tokens guessed ahead and evaluated.", (double)s.n_drafted);
    put(out, "accepted_tokens_total", "counter", "Of them, those that were right and needed no step.",
        (double)s.n_accepted);
    put(out, "draft_seconds_total", "counter", "Time of steps that had drafts.", (double)s.draft_step_ns * 1e-9);
    put(out, "draft_alone_seconds_total", "counter", "What their tokens would have taken without drafts.",
        (double)s.draft_alone_ns * 1e-9);
    put(out, "weight_bytes_total", "counter", "Weights that kernels went over.", (double)s.weight_bytes_read);
    put(out, "drive_bytes_total", "counter", "Weights read from the drive.", (double)s.disk_bytes_read);
    put(out, "ram_hits_total", "counter", "Experts or layers wanted and found in memory.", (double)s.slab_hits);
    put(out, "ram_misses_total", "counter", "Experts or layers read from the drive.", (double)s.slab_misses);
    put(out, "vram_hits_total", "counter", "Experts wanted and found in the GPU's memory.", (double)s.vram_hits);
    put(out, "transfer_bytes_total", "counter", "Experts sent to the GPU for a step.", (double)s.transfer_bytes);
    put(out, "device_lost", "gauge", "1: a GPU failed and the CPU went on in its place.", s.device_lost);
}

void metrics_print(const pf_model *m, struct buf *out)
{
    put(out, "requests_total", "counter", "Generations asked for.", (double)metrics.requests);
    put(out, "requests_failed_total", "counter", "Generations that failed.", (double)metrics.failed);
    put(out, "requests_cancelled_total", "counter", "Generations whose client went away.", (double)metrics.cancelled);
    put(out, "requests_running", "gauge", "Generations that have a slot, or had one and wait for another.",
        metrics.running);
    put(out, "requests_waiting", "gauge", "Generations that wait for their first slot.", metrics.waiting);
    put(out, "prompt_tokens_total", "counter", "Tokens of prompts, evaluated or reused.",
        (double)metrics.prompt_tokens);
    put(out, "cached_tokens_total", "counter", "Tokens of prompts that needed no evaluation.",
        (double)metrics.cached_tokens);
    put(out, "answer_tokens_total", "counter", "Tokens generated.", (double)metrics.answer_tokens);
    put(out, "prompt_seconds_total", "counter", "Time from a slot to the first token, summed over requests.",
        (double)metrics.prompt_us * 1e-6);
    put(out, "answer_seconds_total", "counter", "Time of generating, summed over requests.",
        (double)metrics.answer_us * 1e-6);
    put(out, "steps_broken_off_total", "counter", "Slices of a prompt that was alone, ended for a request that came.",
        (double)metrics.broken_off);
    put(out, "slots_yielded_total", "counter", "Slots that generations left to other clients' for a while.",
        (double)metrics.yielded);
    put_engine(m, out);
}

/* pfmoe-bench: prompt and decode speed, each beside what this machine allows, measured in the same run.
 *
 * A row is one test (ppN: a prompt of N tokens; tgN: N tokens decoded one by one; tgNxS: by S sequences together, whose
 * tokens are counted together; ppP+tgG: both; @ dD: behind D tokens that were there; pplN: a text's perplexity in
 * chunks of N tokens) of one model with one thread count, budget of the GPU's memory, type of keys and values, and
 * batch. It is printed as soon as it is known.
 *
 * Each repetition first measures how fast memory is (roofline.h), then runs the test; the median is reported, with
 * every sample, their standard deviation, minimum and maximum. One run of each test before that is not counted. All
 * tests of a model are held against its context before the first one runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "program/stack.h"
#include "commit.h"

/* What rows of all models go through. */
struct run {
    const struct bench *o;
    struct membw *bw;
    struct test  *tests;
    int           n_tests, n_rows;
    struct row    row, before;       /* before: the row printed last, if n_rows > 0 */
};

static int fail(const char *what)
{
    complain("%s: %s", what, pf_last_error());
    return EXIT_FAILED;
}

static int complain_of(const char *why)
{
    complain("%s", why);
    return EXIT_FAILED;
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void add_tests(const struct bench *o, const struct test *like, struct test *out, int *n)
{
    if (o->perplexity) {
        out[*n] = *like;
        out[(*n)++].chunk = (int)o->n_ctx;
        return;
    }
    for (int i = 0; i < o->prompts.n; i++) {
        out[*n] = *like;
        out[(*n)++].n_prompt = o->prompts.v[i];
    }
    for (int s = 0; s < o->sequences.n; s++)
        for (int i = 0; i < o->decodes.n; i++) {
            out[*n] = *like;
            out[*n].n_gen = o->decodes.v[i];
            out[(*n)++].n_sequences = o->sequences.v[s];
        }
    for (int i = 0; i < o->both.n; i += 2) {
        out[*n] = *like;
        out[*n].n_prompt = o->both.v[i];
        out[(*n)++].n_gen = o->both.v[i + 1];
    }
}

/* All tests of a model, by type of keys and values, batch and depth. False: out of memory. */
static bool make_tests(struct run *r)
{
    static const enum pf_kv_type kv_types[] = { [KV_I16] = PF_KV_I16, [KV_F32] = PF_KV_F32, [KV_Q8_0] = PF_KV_Q8_0 };
    const struct bench *o = r->o;
    int each = 1 + o->prompts.n + o->decodes.n * o->sequences.n + o->both.n / 2;
    r->tests = calloc((size_t)(each * o->kv.n * o->n_batch.n * o->depths.n) + 1, sizeof *r->tests);
    for (int k = 0; r->tests && k < o->kv.n; k++)
        for (int b = 0; b < o->n_batch.n; b++)
            for (int d = 0; d < o->depths.n; d++)
                add_tests(o, &(struct test){ .depth = o->depths.v[d], .n_sequences = 1, .n_batch = o->n_batch.v[b],
                                             .kv = kv_types[o->kv.v[k]] }, r->tests, &r->n_tests);
    return r->tests != NULL;
}

/* ---- What a row says of model and machine ------------------------------------------------------------------------ */

/* Today in UTC, this machine's CPU and, unless it is negative, the GPU of that number. */
static void describe_machine(struct row *row, int gpu)
{
    enum { MOST = 65 };                                      /* the CPU and as many GPUs as -g takes */
    static struct pf_device devices[MOST];
    time_t t = time(NULL);
    int n = pf_devices(devices, MOST);
    snprintf(row->commit, sizeof row->commit, "%s", PF_COMMIT);
    strftime(row->date, sizeof row->date, "%Y-%m-%d", gmtime(&t));
    snprintf(row->cpu, sizeof row->cpu, "%s, %d cores", devices[0].name, devices[0].n_units);
    if (gpu < 0 || gpu + 1 >= n)
        return;
    snprintf(row->gpu, sizeof row->gpu, "%s", devices[gpu + 1].name);
    snprintf(row->driver, sizeof row->driver, "%s", devices[gpu + 1].driver);
}

/* A text of the file or the command line, for tables and a field of CSV and JSON. */
static void put_name(char out[128], const char *name)
{
    struct buf clean = { 0 };
    buf_add_clean(&clean, name, strlen(name));
    for (char *p = clean.p; p && (p = strpbrk(p, "\"\n\t"));)
        *p = *p == '"' ? '\'' : ' ';
    snprintf(out, 128, "%.*s", (int)pf_utf8_complete(buf_text(&clean), clean.n < 127 ? clean.n : 127),
             buf_text(&clean));
    buf_free(&clean);
}

static void describe_model(struct row *row, const char *path, const struct pf_model_info *info)
{
    struct pf_file_info f;
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    put_name(row->file, file);
    put_name(row->model, info->name[0] ? info->name : file);
    if (pf_file_inspect(path, 0, &f) < 0)
        return;
    row->model_bytes = (double)f.weight_bytes;
    row->model_params = (double)f.n_params;
    snprintf(row->model_type, sizeof row->model_type, "%s", f.n_types ? f.types[0].name : "");
}

/* The cards that compute, if there are several. */
static void describe_gpus(struct row *r, const struct pf_model_info *info)
{
    int n = 0, used = (int)strlen(r->backend);
    if (!on_gpu(info) || info->n_gpus < 2)
        return;
    snprintf(r->backend + used, sizeof r->backend - (size_t)used, " x%d", info->n_gpus);
    snprintf(r->layout, sizeof r->layout, "%s", info->layout == PF_LAYOUT_EXPERTS ? "experts"
                                                : info->layout == PF_LAYOUT_ROWS  ? "rows"
                                                                                  : "layers");
    for (int i = 0; i < info->n_gpus; i++)
        n += snprintf(r->gpus + n, sizeof r->gpus - (size_t)n, "%s%d", i ? "," : "", info->gpus[i]);
}

static struct row row_of(pf_model *m, const char *path, const struct bench *o, int vram_mb, enum pf_kv_type kv)
{
    static const char *const kv_names[] = { [PF_KV_I16] = "i16", [PF_KV_F32] = "f32", [PF_KV_Q8_0] = "q8_0" };
    const struct pf_model_info *info = pf_model_info(m);
    struct row r = { .threads = info->n_threads, .vram_mb = vram_mb };
    int used = snprintf(r.backend, sizeof r.backend, "%s", info->backend);
    if (info->n_gpu_layers > 0 && info->n_gpu_layers < info->n_layers)
        snprintf(r.backend + used, sizeof r.backend - (size_t)used, " %d/%d", info->n_gpu_layers, (int)info->n_layers);
    snprintf(r.isa, sizeof r.isa, "%s", info->isa);
    snprintf(r.kv, sizeof r.kv, "%s", kv_names[kv]);
    describe_model(&r, path, info);
    describe_machine(&r, on_gpu(info) ? o->gpus.v[0] : -1);
    describe_gpus(&r, info);
    return r;
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

static int run_test(struct run *r, pf_model *m, const char *path, int vram_mb, const struct test *t)
{
    r->row = row_of(m, path, r->o, vram_mb, t->kv);
    int status = test_run(t, m, path, r->bw, r->o, &r->row);
    if (status)
        return status;
    rows_print((enum output)r->o->output, &r->row, r->n_rows ? &r->before : NULL);
    rows_remark(&r->row);
    r->before = r->row;
    r->n_rows++;
    return EXIT_DONE;
}

/* All tests of an open model. */
static int run_tests(struct run *r, pf_model *m, const char *path, int vram_mb)
{
    const char *why;
    int status = EXIT_DONE;
    for (int i = 0; i < r->n_tests; i++)
        if (!test_fits(&r->tests[i], pf_model_info(m)))
            return EXIT_FAILED;
    if (!report_allows(&r->o->shared.report, &why) || !report_begin(&r->o->shared.report, m, &why))
        return complain_of(why);
    for (int i = 0; !status && i < r->n_tests; i++)
        status = run_test(r, m, path, vram_mb, &r->tests[i]);
    const struct row *last = r->n_rows ? &r->before : NULL;
    struct report_limits limits = { last ? last->machine_gb_s * 1e9 : 0, last ? last->roofline_tok_s : 0 };
    if (!status && !report_end(&r->o->shared.report, m, &limits, &why))
        status = complain_of(why);
    return status;
}

static void gpu_opts(const struct bench *o, uint64_t vram_bytes, struct pf_model_opts *mo)
{
    mo->device = o->gpus.v[0];
    mo->vram_bytes = vram_bytes;
    mo->n_gpus = o->gpus.n > 1 ? o->gpus.n : 0;
    mo->layout = (enum pf_layout)o->layout;
    for (int i = 0; i < mo->n_gpus; i++) {
        mo->gpus[i] = o->gpus.v[i];
        mo->gpu_bytes[i] = vram_bytes;
    }
}

static void log_warning(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    if (level <= PF_LOG_WARN)
        complain("%s", text);
}

static int run_model(struct run *r, const char *path, int threads, int vram_mb)
{
    pf_model *m = NULL;
    struct pf_model_opts mo;
    const struct bench *o = r->o;
    pf_model_opts_init(&mo);
    mo.n_threads = threads;
    gpu_opts(o, (uint64_t)vram_mb * 1000000, &mo);
    mo.ram_bytes = (uint64_t)o->ram_mb * 1000000;
    mo.streaming = o->streaming;
    mo.log = log_warning;
    for (int i = 0; i < o->n_batch.n; i++)
        mo.n_batch = o->n_batch.v[i] > mo.n_batch ? o->n_batch.v[i] : mo.n_batch;
    opts_shared_model(&o->shared, &mo);
    if (o->progress)
        fprintf(stderr, "%s, %d threads: opening\n", path, threads);
    if (pf_model_open(&m, path, &mo) < 0)
        return fail("cannot open the model");
    int status = run_tests(r, m, path, vram_mb);
    pf_model_close(&m);
    return status;
}

/* Every model with every thread count and every budget of the GPU's memory. */
static int run_all(struct run *r)
{
    const struct bench *o = r->o;
    int status = EXIT_DONE;
    rows_begin((enum output)o->output);
    for (int i = 0; !status && i < o->models.n; i++)
        for (int v = 0; !status && v < o->vram_mb.n; v++)
            for (int t = 0; !status && t < o->threads.n; t++)
                status = run_model(r, o->models.v[i], o->threads.v[t], o->vram_mb.v[v]);
    rows_end((enum output)o->output, r->n_rows);
    return status;
}

static int replay(const struct bench *o)
{
    enum { MOST = 16 };
    struct pf_replay rows[MOST];
    int n = 0;
    if (pf_trace_replay(o->replay, (int)o->slots, rows, MOST, &n) < 0)
        return fail("cannot replay");
    printf("%llu tokens, %llu experts in memory\n\npolicy          uses        hits  share\n",
           (unsigned long long)rows[0].n_tokens, (unsigned long long)rows[0].n_slots);
    for (int i = 0; i < n && i < MOST; i++)
        printf("%-9s %10llu  %10llu  %4.1f%%\n", rows[i].policy, (unsigned long long)rows[i].n_uses,
               (unsigned long long)rows[i].n_hits,
               rows[i].n_uses ? 100.0 * (double)rows[i].n_hits / (double)rows[i].n_uses : 0);
    return EXIT_DONE;
}

/* For measuring main memory: an eighth of what the first model may have. */
static size_t spare_memory(const struct bench *o)
{
    struct pf_model_opts mo;
    struct pf_plan plan;
    pf_model_opts_init(&mo);
    mo.device = -1;
    mo.ram_bytes = (uint64_t)o->ram_mb * 1000000;
    mo.speeds = (struct pf_speeds){ 1, 1, 1, 1 };            /* nothing is to be measured */
    return pf_model_plan(o->models.v[0], &mo, NULL, &plan) == PF_OK ? (size_t)(plan.ram_budget_bytes / 8)
                                                                    : (size_t)64 << 20;
}

static int start(int argc, char **argv)
{
    static struct bench o;
    static struct run r;
    int status = EXIT_FAILED;
    bench_read_args(&o, argc, argv);
    if (o.replay)
        return replay(&o);
    r = (struct run){ .o = &o, .bw = o.perplexity ? NULL : membw_open(spare_memory(&o)) };
    if ((r.bw || o.perplexity) && make_tests(&r))
        status = run_all(&r);
    else
        complain("no memory to measure the bandwidth with");
    membw_close(r.bw);
    free(r.tests);
    return status;
}

int main(int argc, char **argv)
{
    return stack_run(start, argc, argv);
}

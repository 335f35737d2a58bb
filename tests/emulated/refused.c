/* What several processes cannot do is refused by all of them, in a sentence that says what.
 *
 * usage: refused MODEL OTHER
 *        MODEL has attention and experts, OTHER something that rows do not take */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/ranks.h"
#include "check.h"
#include "free_port.h"
#include "gguf/gguf_build.h"
#include "pfmoe.h"

enum { N_RANKS = 2, N_CTX = 64, LORA_RANK = 2 };

static const char *model, *other;
static char trace[64], adapter[64];

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static void adapt(struct pf_model_opts *o, int rank)
{
    static struct pf_adapter a = { .scale = 1 };
    (void)rank;
    a.path = adapter;
    o->adapters = &a;
    o->n_adapters = 1;
}

static void route(struct pf_model_opts *o, int rank)
{
    (void)rank;
    o->routing = trace;
}

static void by_experts(struct pf_model_opts *o, int rank)
{
    (void)rank;
    o->layout = PF_LAYOUT_EXPERTS;
}

static void by_rows(struct pf_model_opts *o, int rank)
{
    (void)rank;
    o->layout = PF_LAYOUT_ROWS;
}

static void one_by_rows(struct pf_model_opts *o, int rank)
{
    o->layout = rank == 1 ? PF_LAYOUT_ROWS : PF_LAYOUT_AUTO;
}

static void stream_rows(struct pf_model_opts *o, int rank)
{
    (void)rank;
    o->layout = PF_LAYOUT_ROWS;
    o->streaming = true;
}

static void rows_of_two(struct pf_model_opts *o, int rank)
{
    (void)rank;
    o->layout = PF_LAYOUT_ROWS;
    o->n_gpus = 2;
    o->gpus[1] = 1;
}

static void without_gpu(struct pf_model_opts *o, int rank)
{
    (void)rank;
    o->device = -1;
}

static const struct refusal {
    void      (*set)(struct pf_model_opts *o, int rank);
    bool        of_other;
    const char *says;
} refusals[] = {
    { adapt, false, "several processes run a model without adapters" },
    { route, false, "several processes run a model without a routing trace" },
    { by_experts, false, "several processes divide a model by layers or by rows" },
    { by_rows, true, "models cannot be divided by rows between processes: only models of attention" },
    { one_by_rows, false, "rank 1 divides the model by rows, rank 0 by layers" },
    { stream_rows, false, "several processes divide a model by rows that is not streamed" },
    { rows_of_two, false, "by rows each of several processes has one GPU, and this one is to have 2" },
    { without_gpu, false, "processes exchange by a GPU of each, and this one is to use none" },
};

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static void open_opts(struct pf_model_opts *o, int rank)
{
    pf_model_opts_init(o);
    o->n_threads = 1;
    o->n_ranks = N_RANKS;
    o->rank = rank;
    o->device = rank;
}

static void be_refused(const struct refusal *r, int rank)
{
    struct pf_model_opts o;
    pf_model *m = NULL;
    open_opts(&o, rank);
    r->set(&o, rank);
    CHECK(pf_model_open(&m, r->of_other ? other : model, &o) < 0 && !m, "rank %d does it: %s", rank, r->says);
    CHECK(m || strstr(pf_last_error(), r->says), "rank %d says: %s", rank, pf_last_error());
    pf_model_close(&m);
}

static bool read_nothing(void *ctx, void *bytes, size_t n)
{
    (void)ctx, (void)bytes, (void)n;
    return false;
}

static bool write_nowhere(void *ctx, const void *bytes, size_t n)
{
    (void)ctx, (void)bytes, (void)n;
    return true;
}

static void check_refused(pf_status st, const char *says)
{
    CHECK(st == PF_EUNSUPPORTED && strstr(pf_last_error(), says), "%d: %s", st, pf_last_error());
}

static void ask_too_much(pf_model *m)
{
    const int32_t tok[] = { 1, 2, 3 };
    const struct pf_trace_opts counts = { .counts = true };
    struct pf_saved since = { 0 };
    struct pf_session_opts so;
    pf_session *s = NULL, *second = NULL;
    pf_session_opts_init(&so);
    so.n_ctx = N_CTX;
    check_refused(pf_trace_set(m, &counts), "experts cannot be watched");
    CHECK(pf_session_open(&s, m, &so) == PF_OK && pf_session_open(&second, m, &so) == PF_OK, "%s",
          pf_last_error());
    CHECK(pf_session_eval(s, tok, 3, 0) == PF_OK, "%s", pf_last_error());
    check_refused(pf_session_save(s, write_nowhere, NULL), "no session can be saved");
    check_refused(pf_session_save_more(s, &since, write_nowhere, NULL), "no session can be saved");
    check_refused(pf_session_load(s, read_nothing, NULL), "no saved session can be loaded");
    check_refused(pf_session_load_more(s, read_nothing, NULL), "no saved session can be loaded");
    check_refused(pf_session_copy(second, s, 3, NULL, NULL), "no sequence can be copied");
    pf_session_close(&second);
    CHECK(pf_session_pos(s) == 3 && pf_session_eval(s, tok, 1, 0) == PF_OK, "%s", pf_last_error());
    pf_session_close(&s);
}

/* What a model that is open refuses, and goes on. */
static void use(enum pf_layout layout, int rank)
{
    struct pf_model_opts o;
    pf_model *m;
    pf_session *s;
    open_opts(&o, rank);
    o.layout = layout;
    if (pf_model_open(&m, model, &o) < 0) {
        CHECK(false, "%s", pf_last_error());
        return;
    }
    if (rank == 0) {
        ask_too_much(m);
    } else {
        CHECK(pf_session_open(&s, m, NULL) == PF_EINVAL && strstr(pf_last_error(), "the first alone"), "%s",
              pf_last_error());
        CHECK(pf_model_follow(m) == PF_OK, "%s", pf_last_error());
    }
    pf_model_close(&m);
}

/* r NULL: uses the model. */
static void run_all(const struct refusal *r, enum pf_layout layout)
{
    pid_t pid[N_RANKS];
    int status;
    meet_at_free_port();
    fflush(stdout);
    for (int k = 0; k < N_RANKS; k++)
        if ((pid[k] = fork()) == 0) {
            if (r)
                be_refused(r, k);
            else
                use(layout, k);
            fflush(stdout);
            _exit(check_n_failed > 0);
        }
    for (int k = 0; k < N_RANKS; k++)
        CHECK(waitpid(pid[k], &status, 0) == pid[k] && status == 0, "rank %d ended with %d", k, status);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static void write_trace(void)
{
    const int32_t tok[] = { 1, 2, 3 };
    const struct pf_trace_opts record = { .record = trace };
    struct pf_model_opts o;
    struct pf_session_opts so;
    pf_model *m;
    pf_session *s;
    pf_model_opts_init(&o);
    pf_session_opts_init(&so);
    o.device = -1;
    so.n_ctx = N_CTX;
    if (pf_model_open(&m, model, &o) < 0 || pf_trace_set(m, &record) < 0 || pf_session_open(&s, m, &so) < 0 ||
        pf_session_eval(s, tok, 3, 0) < 0 || pf_trace_set(m, NULL) < 0)
        exit(99);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* An adapter of one matrix, which changes nothing. */
static void write_adapter(void)
{
    pf_gguf *g;
    struct buf b = { 0 };
    float alpha = 1;
    if (pf_gguf_open(&g, model, 0) < 0)
        exit(99);
    const struct pf_tensor *t = pf_gguf_tensor(g, "blk.0.attn_q.weight");
    uint64_t n_in = (uint64_t)t->ne[0], n_out = (uint64_t)t->ne[1], first = (n_in * LORA_RANK * 4 + 31) / 32 * 32;
    struct pf_str arch = { 0 };
    pf_gguf_str_opt(g, "general.architecture", &arch);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)arch.n, arch.p);
    put_header(&b, 3, 2, 4);
    put_kv_string(&b, "general.architecture", name);
    put_kv_string(&b, "general.type", "adapter");
    put_kv_string(&b, "adapter.type", "lora");
    put_key(&b, "adapter.lora.alpha", PF_GGUF_F32);
    put(&b, &alpha, sizeof alpha);
    put_tensor(&b, "blk.0.attn_q.weight.lora_a", PF_F32, n_in, LORA_RANK, 0);
    put_tensor(&b, "blk.0.attn_q.weight.lora_b", PF_F32, LORA_RANK, n_out, first);
    pad_to(&b, 32);
    put_zeros(&b, (size_t)(first + LORA_RANK * n_out * 4));
    pf_gguf_close(&g);
    FILE *f = fopen(adapter, "wb");
    if (!f || fwrite(b.p, 1, b.n, f) != b.n || fclose(f) != 0)
        exit(99);
    free(b.p);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    model = argv[1];
    other = argv[2];
    snprintf(trace, sizeof trace, "/tmp/pfmoe-refused-%d-trace", (int)getpid());
    snprintf(adapter, sizeof adapter, "/tmp/pfmoe-refused-%d-adapter", (int)getpid());
    write_trace();
    write_adapter();
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        run_all(&refusals[i], PF_LAYOUT_AUTO);
    run_all(NULL, PF_LAYOUT_LAYERS);
    run_all(NULL, PF_LAYOUT_ROWS);
    unlink(trace);
    unlink(adapter);
    return check_status();
}

/* Adapters: the logits are those of merged weights within rounding, the same bits however they are computed, and what
 * does not fit the model is refused in one sentence. The adapter is made here: it changes every matrix that one can.
 *
 * usage: lora MODEL.gguf FOLDER [tied|cuda]
 *        merged weights are compared where all of the model's matrices are F32
 *        cuda: with the first GPU in place of the simulated device; 77: there is none */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "gguf/gguf_build.h"
#include "kernels/sim/sim.h"
#include "moe/place/placement.h"

enum { N_PROMPT = 40, N_DECODE = 4, N_TOKENS = N_PROMPT + N_DECODE, N_CTX = 64, RANK = 5, MAX_TARGETS = 256 };
static const float SCALE = 0.35f, ALPHA = 10;

static const char *path, *unit = "sim";      /* unit: what "sim" stands for in a way */
static char adapter_path[600], merged_path[600], tied_path[600];

/* ---- The adapter ------------------------------------------------------------------------------------------------- */

struct target {
    const struct pf_tensor *t;
    bool   by_rows;                      /* the embedding: A {rank, n_vocab}, B {rank, n_embd} */
    int64_t n_in, n_out, n;
    float *a, *b;                        /* [n][rank][n_in] or, by rows, [n_vocab][rank]; [n][n_out][rank] */
};

static struct target targets[MAX_TARGETS];
static int n_targets;

static bool ends(struct pf_str s, const char *ending)
{
    size_t n = strlen(ending);
    return s.n >= n && memcmp(s.p + s.n - n, ending, n) == 0;
}

static bool can_be_adapted(const struct pf_tensor *t)
{
    static const char *const not[] = { "norm.weight", "attn_k_b.weight", "attn_v_b.weight", "attn_sinks.weight",
                                       "conv1d.weight", "attn_output_a.weight", "ape.weight", "tid2eid.weight" };
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        if (ends(t->name, not[i]))
            return false;
    return ends(t->name, ".weight") && !ends(t->name, "unused.weight") && t->ne[1] > 1;
}

/* A layer that guesses ahead is a model of its own, which adapters do not reach. */
static bool guesses_ahead(const pf_gguf *g, const struct pf_tensor *t)
{
    char name[128];
    int block;
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    if (sscanf(name, "blk.%d.", &block) != 1)
        return false;
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", block);
    return pf_gguf_tensor(g, name) != NULL;
}

static float *randoms(size_t n, uint64_t *seed)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        p[i] = ((float)(*seed >> 40) * 0x1p-24f - 0.5f) * 0.08f;
    }
    return p;
}

static void choose_targets(const pf_gguf *g)
{
    uint64_t seed = 7;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g) && n_targets < MAX_TARGETS; i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(g, i);
        if (!can_be_adapted(t) || guesses_ahead(g, t))
            continue;
        struct target *x = &targets[n_targets++];
        *x = (struct target){ .t = t, .by_rows = ends(t->name, "token_embd.weight"), .n_in = t->ne[0],
                             .n_out = t->ne[1], .n = t->ne[2] };
        if (x->by_rows) {
            x->n_in = t->ne[1];
            x->n_out = t->ne[0];
        }
        x->a = randoms((size_t)(x->n * RANK * x->n_in), &seed);
        x->b = randoms((size_t)(x->n * RANK * x->n_out), &seed);
    }
}

static void put_tensor_3d(struct buf *b, const char *name, int64_t n0, int64_t n1, int64_t n2, uint64_t *offset)
{
    put_string(b, name);
    put_u32(b, 3);
    put_u64(b, (uint64_t)n0);
    put_u64(b, (uint64_t)n1);
    put_u64(b, (uint64_t)n2);
    put_u32(b, PF_F32);
    put_u64(b, *offset);
    *offset += ((uint64_t)(n0 * n1 * n2) * 4 + 31) / 32 * 32;
}

static void write_bytes(const char *to, const struct buf *b)
{
    FILE *f = fopen(to, "wb");
    if (!f || fwrite(b->p, 1, b->n, f) != b->n || fclose(f) != 0)
        exit(99);
}

/* Mistakes that an adapter's file can have. */
enum fault { NO_FAULT, WRONG_ARCH, NO_ADAPTER, WRONG_SHAPE, UNKNOWN, HALF, N_FAULTS };

static void write_adapter(const char *arch, enum fault fault)
{
    struct buf b = { 0 };
    uint64_t offset = 0;
    put_header(&b, 3, (uint64_t)(2 * n_targets - (fault == HALF)), 4);
    put_kv_string(&b, "general.architecture", fault == WRONG_ARCH ? "mamba" : arch);
    put_kv_string(&b, "general.type", fault == NO_ADAPTER ? "model" : "adapter");
    put_kv_string(&b, "adapter.type", "lora");
    put_key(&b, "adapter.lora.alpha", PF_GGUF_F32);
    put(&b, &ALPHA, 4);
    for (int i = 0; i < n_targets; i++) {
        const struct target *x = &targets[i];
        char name[128], full[160];
        snprintf(name, sizeof name, "%.*s", (int)x->t->name.n, x->t->name.p);
        if (fault == UNKNOWN && i == n_targets - 1)
            snprintf(name, sizeof name, "blk.0.nowhere.weight");
        snprintf(full, sizeof full, "%s.lora_a", name);
        put_tensor_3d(&b, full, x->by_rows ? RANK : x->n_in, x->by_rows ? x->n_in : RANK, x->n, &offset);
        snprintf(full, sizeof full, "%s.lora_b", name);
        if (fault != HALF || i < n_targets - 1)
            put_tensor_3d(&b, full, RANK, x->n_out - (fault == WRONG_SHAPE && i == n_targets - 1), x->n, &offset);
    }
    pad_to(&b, 32);
    for (int i = 0; i < n_targets; i++) {
        const struct target *x = &targets[i];
        put(&b, x->a, (size_t)(x->n * RANK * x->n_in) * 4);
        pad_to(&b, 32);
        put(&b, x->b, (size_t)(x->n * RANK * x->n_out) * 4);
        pad_to(&b, 32);
    }
    write_bytes(adapter_path, &b);
    free(b.p);
}

static void read_bytes(const char *from, struct buf *b)
{
    char chunk[65536];
    FILE *f = fopen(from, "rb");
    for (size_t n; f && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        put(b, chunk, n);
    if (!f || fclose(f) != 0)
        exit(99);
}

/* The test model without an output matrix: its embedding serves as one. */
static void write_tied(const char *from, const char *to)
{
    static const char name[] = "output.weight", other[] = "unused.weight";
    struct buf b = { 0 };
    read_bytes(from, &b);
    for (size_t i = 8; i + sizeof name < b.n && i < 1 << 20; i++)        /* after its length */
        if (memcmp(b.p + i, name, sizeof name - 1) == 0 && b.p[i - 8] == sizeof name - 1)
            memcpy(b.p + i, other, sizeof other - 1);
    write_bytes(to, &b);
    free(b.p);
}

/* ---- Merged weights ---------------------------------------------------------------------------------------------- */

/* Row o, column i of the e-th matrix of an addition. */
static double added(const struct target *x, int64_t e, int64_t o, int64_t i)
{
    const float *b = x->b + (e * x->n_out + (x->by_rows ? i : o)) * RANK;
    double sum = 0;
    for (int64_t r = 0; r < RANK; r++)
        sum += (double)b[r] * (double)(x->by_rows ? x->a[o * RANK + r] : x->a[(e * RANK + r) * x->n_in + i]);
    return sum * (double)SCALE * (double)ALPHA / RANK;
}

static void merge(const struct target *x, float *w)
{
    for (int64_t e = 0; e < x->n; e++)
        for (int64_t o = 0; o < x->t->ne[1]; o++)
            for (int64_t i = 0; i < x->t->ne[0]; i++, w++)
                *w = (float)((double)*w + added(x, e, o, i));
}

/* False: some matrix is not F32. */
static bool write_merged(void)
{
    struct buf b = { 0 };
    bool ok = true;
    read_bytes(path, &b);
    for (int i = 0; i < n_targets; i++)
        ok &= targets[i].t->type == PF_F32;
    for (int i = 0; ok && i < n_targets; i++)
        merge(&targets[i], (float *)(void *)(b.p + targets[i].t->offset));
    if (ok)
        write_bytes(merged_path, &b);
    free(b.p);
    return ok;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

struct way {
    const char *name;
    int         n_threads, n_batch;
    uint32_t    isa;
    bool        streaming;
    int         n_adapters;              /* each with an equal share of the scale */
    const char *runs_on;                 /* NULL: no device; else a device, and this backend must compute; "": any */
    uint64_t    memory_bytes;            /* the device's memory; 0: 1 GiB */
    enum { AS_IT_LIKES, BY_CPU, BY_DOWN, BY_COPY } deal;     /* how missed experts of a shared layer are dealt */
    bool        force_cpu;
};

/* As if a deal of that kind had been seen to be by far the best, for any number of experts. */
static void prefer(pf_model *m, const struct way *w)
{
    static struct pf_learned l;
    l = (struct pf_learned){ .cpu_bytes_s = 1e9, .pcie_bytes_s = 1e9 };
    for (int n = 1; n <= 8; n++)
        for (int whole = 0; whole <= n; whole++)
            for (int down = 0; down <= n - whole; down++) {
                bool best = whole == (w->deal == BY_COPY ? n : 0) && down == (w->deal == BY_DOWN ? n : 0);
                l.deals[l.n_deals++] = (struct pf_learned_deal){ n, whole, down, false, 9, best ? 1e-3 : 1e3 };
            }
    pf_learned_set(m, &l);
}

static uint64_t n_sent, n_held;          /* experts, by all runs so far */

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

static float *logits_of(const char *model, const struct way *w, size_t *n)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    struct pf_model_opts mo;
    struct pf_session_opts so;
    struct pf_adapter adapters[2] = { { adapter_path, SCALE / (float)w->n_adapters },
                                      { adapter_path, SCALE / (float)w->n_adapters } };
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    bool real = w->runs_on && strcmp(unit, "sim") != 0;
    mo.device = real ? 0 : -1;
    mo.vram_bytes = w->memory_bytes;
    mo.n_threads = w->n_threads;
    mo.isa = w->isa;
    mo.streaming = w->streaming;
    mo.adapters = adapters;
    mo.n_adapters = w->n_adapters;
    mo.postfetch.force_cpu = w->force_cpu;
    so.n_ctx = N_CTX;
    so.n_batch = w->n_batch;
    so.kv_type = PF_KV_F32;              /* F16 would turn differences of rounding into larger ones */
    struct pf_sim sim = { .memory_bytes = w->memory_bytes };
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = &sim };
    if (pf_model_open_with(&m, model, &mo, w->runs_on && !real ? &setup : NULL) < 0 ||
        pf_session_open(&s, m, &so) < 0) {
        CHECK(false, "%s: %s", w->name, pf_last_error());
        exit(check_status());
    }
    const char *runs_on = !w->runs_on ? "cpu" : *w->runs_on ? unit : "";
    CHECK(!*runs_on || strcmp(pf_model_info(m)->backend, runs_on) == 0, "%s: it runs on %s", w->name,
          pf_model_info(m)->backend);
    if (w->deal != AS_IT_LIKES)
        prefer(m, w);
    size_t n_vocab = (size_t)pf_model_info(m)->n_vocab;
    int32_t tokens[N_TOKENS];
    *n = N_TOKENS * n_vocab;
    float *all = malloc(*n * sizeof *all);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    for (int from = 0, k = N_PROMPT; from < N_TOKENS; from += k, k = 1) {
        CHECK(pf_session_eval(s, tokens + from, (size_t)k, PF_LOGITS_ALL) == PF_OK, "%s: %s", w->name, pf_last_error());
        for (int i = 0; i < k; i++)
            memcpy(all + (size_t)(from + i) * n_vocab, pf_session_logits_at(s, (size_t)i), n_vocab * sizeof *all);
    }
    struct pf_stats stats;
    pf_stats_get(m, &stats);
    n_sent += stats.n_transfers;
    n_held += stats.vram_hits;
    pf_session_close(&s);
    pf_model_close(&m);
    return all;
}

/* Root mean square of the differences, as a share of the values'. */
static double difference(const float *a, const float *b, size_t n)
{
    double d = 0, v = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        v += (double)b[i] * (double)b[i];
    }
    return sqrt(d / v);
}

static void compare_merged(const float *adapted, const struct way *usual)
{
    struct way plain = *usual;
    size_t n;
    plain.n_adapters = 0;
    float *merged = logits_of(merged_path, &plain, &n), *base = logits_of(path, &plain, &n);
    printf("against merged weights: %.3g; against none: %.3g\n", difference(adapted, merged, n),
           difference(adapted, base, n));
    CHECK(difference(adapted, merged, n) < 2e-6, "not those of merged weights");
    CHECK(difference(adapted, base, n) > 0.01, "the adapter changes nothing");
    struct way twice = *usual;
    twice.n_adapters = 2;
    float *halves = logits_of(path, &twice, &n);
    CHECK(difference(halves, merged, n) < 2e-6, "two halves are not the whole");
    free(halves);
    free(merged);
    free(base);
}

static void compare(const struct way *w, const float *expected)
{
    size_t n;
    float *found = logits_of(path, w, &n);
    CHECK(memcmp(found, expected, n * sizeof *found) == 0, "%s: other bits", w->name);
    free(found);
}

/* Adapters of experts, whether CPU or device computes the experts. */
static void experts_on_device(const float *expected)
{
    enum { SMALL = 6 << 20 };            /* has room for no cache, or a small one */
    static const struct way ways[] = {
        { "a device that has everything", 2, 512, PF_ISA_ALL, false, 1, "sim", 0, AS_IT_LIKES, false },
        { "a device that has everything, batches of 3", 2, 3, PF_ISA_ALL, false, 1, "sim", 0, AS_IT_LIKES, false },
        { "a device that shares, prompts", 2, 512, PF_ISA_ALL, true, 1, "sim", 0, AS_IT_LIKES, false },
        { "a device that shares, held experts", 2, 1, PF_ISA_ALL, true, 1, "sim", 0, AS_IT_LIKES, false },
        { "no expert on the device", 3, 5, PF_ISA_ALL, true, 1, "sim", 0, AS_IT_LIKES, true },
        { "missed experts by the CPU", 2, 2, PF_ISA_ALL, true, 1, "sim", 0, BY_CPU, false },
        { "missed experts by post-fetch", 2, 2, PF_ISA_ALL, true, 1, "sim", 0, BY_DOWN, false },
        { "missed experts by copies", 1, 2, PF_ISA_ALL, true, 1, "sim", 0, BY_COPY, false },
        { "a small device, post-fetch", 2, 1, PF_ISA_ALL, true, 1, "", SMALL, BY_DOWN, false },
        { "a small device, copies", 2, 1, PF_ISA_ALL, true, 1, "", SMALL, BY_COPY, false },
    };
    static const struct way cpu_twice = { "twice", 2, 512, PF_ISA_ALL, false, 2, NULL, 0, AS_IT_LIKES, false };
    static const struct way sim_twice[] = {
        { "two adapters, post-fetch", 2, 2, PF_ISA_ALL, true, 2, "sim", 0, BY_DOWN, false },
        { "two adapters, copies", 2, 2, PF_ISA_ALL, true, 2, "sim", 0, BY_COPY, false },
        { "two adapters, everything on the device", 2, 512, PF_ISA_ALL, false, 2, "sim", 0, AS_IT_LIKES, false },
    };
    size_t n;
    n_sent = n_held = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        compare(&ways[i], expected);
    CHECK(n_sent > 0 && n_held > 0, "%d experts were sent, %d held", (int)n_sent, (int)n_held);
    float *twice = logits_of(path, &cpu_twice, &n);
    for (size_t i = 0; i < sizeof sim_twice / sizeof *sim_twice; i++)
        compare(&sim_twice[i], twice);
    free(twice);
}

/* Adapters of dense matrices alone, on a device. */
static void dense_on_device(const char *arch, int n_all)
{
    static const struct way plain = { "dense targets", 2, 512, PF_ISA_ALL, false, 1, NULL, 0, AS_IT_LIKES, false };
    static const struct way ways[] = {
        { "dense targets on a device", 2, 512, PF_ISA_ALL, false, 1, "sim", 0, AS_IT_LIKES, false },
        { "dense targets on a device that shares", 2, 7, PF_ISA_ALL, true, 1, "sim", 0, AS_IT_LIKES, false },
    };
    size_t n;
    write_adapter(arch, NO_FAULT);
    float *cpu = logits_of(path, &plain, &n);
    for (size_t i = 0; i < sizeof ways / sizeof *ways && (i == 0 || n_targets < n_all); i++)
        compare(&ways[i], cpu);
    for (uint64_t kb = 400; n_targets == n_all && kb < 2000; kb += 100) {    /* a model without experts, cut in two */
        struct way cut = { "a device that has room for some layers", 2, 512, PF_ISA_ALL, false, 1, "", kb << 10,
                           AS_IT_LIKES, false };
        printf("%d KiB\n", (int)kb);
        compare(&cut, cpu);
    }
    free(cpu);
}

static void on_device(const char *arch, const float *expected)
{
    int n_dense = 0, n_all = n_targets;
    struct target all[MAX_TARGETS];
    memcpy(all, targets, sizeof all);
    for (int i = 0; i < n_all; i++)
        if (all[i].n == 1)
            targets[n_dense++] = all[i];
    if (n_dense < n_all)
        experts_on_device(expected);
    n_targets = n_dense;
    dense_on_device(arch, n_all);
    memcpy(targets, all, sizeof all);
    n_targets = n_all;
}

static void refusals(const char *arch)
{
    for (enum fault f = WRONG_ARCH; f < N_FAULTS; f++) {
        pf_model *m = NULL;
        struct pf_model_opts o;
        struct pf_adapter a = { adapter_path, 1 };
        pf_model_opts_init(&o);
        o.device = -1;
        o.adapters = &a;
        o.n_adapters = 1;
        write_adapter(arch, f);
        pf_status st = pf_model_open(&m, path, &o);
        CHECK((st == PF_EFORMAT || st == PF_EUNSUPPORTED) && !m, "fault %d", (int)f);
        printf("%s\n", pf_last_error());
    }
}

int main(int argc, char **argv)
{
    static const struct way ways[] = {
        { "as usual", 2, 512, PF_ISA_ALL, false, 1, NULL, 0, AS_IT_LIKES, false },
        { "one thread", 1, 512, PF_ISA_ALL, false, 1, NULL, 0, AS_IT_LIKES, false },
        { "five threads, batches of 7", 5, 7, PF_ISA_ALL, false, 1, NULL, 0, AS_IT_LIKES, false },
        { "token by token", 3, 1, PF_ISA_ALL, false, 1, NULL, 0, AS_IT_LIKES, false },
        { "scalar", 2, 16, PF_ISA_SCALAR, false, 1, NULL, 0, AS_IT_LIKES, false },
        { "AVX2", 2, 512, PF_ISA_SCALAR | PF_ISA_AVX2, false, 1, NULL, 0, AS_IT_LIKES, false },
        { "streaming", 2, 512, PF_ISA_ALL, true, 1, NULL, 0, AS_IT_LIKES, false },
        { "streaming, scalar, batches of 3", 1, 3, PF_ISA_SCALAR, true, 1, NULL, 0, AS_IT_LIKES, false },
    };
    struct pf_mem_stats before, after;
    pf_gguf *g = NULL;
    struct pf_str arch;
    if (argc != 3 && argc != 4)
        return 2;
    if (argc == 4 && strcmp(argv[3], "cuda") == 0) {
        unit = "cuda";
        if (pf_devices(NULL, 0) < 2) {
            printf("skipped: there is no GPU\n");
            return 77;
        }
    }
    path = argv[1];
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *way = argc == 4 ? argv[3] : "cpu";
    snprintf(adapter_path, sizeof adapter_path, "%s/lora-%s-%s", argv[2], way, name);
    snprintf(merged_path, sizeof merged_path, "%s/merged-%s-%s", argv[2], way, name);
    snprintf(tied_path, sizeof tied_path, "%s/tied-%s-%s", argv[2], way, name);
    if (argc == 4 && strcmp(argv[3], "tied") == 0) {
        write_tied(path, tied_path);
        path = tied_path;
    }
    pf_mem_stats_get(&before);
    if (pf_gguf_open(&g, path, 0) < 0 || pf_gguf_str(g, "general.architecture", &arch) < 0)
        return 99;
    char arch_name[64];
    snprintf(arch_name, sizeof arch_name, "%.*s", (int)arch.n, arch.p);
    choose_targets(g);
    write_adapter(arch_name, NO_FAULT);
    size_t n;
    float *expected = logits_of(path, &ways[0], &n);
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
        float *found = logits_of(path, &ways[i], &n);
        CHECK(memcmp(found, expected, n * sizeof *found) == 0, "%s: other bits", ways[i].name);
        free(found);
    }
    if (write_merged())
        compare_merged(expected, &ways[0]);
    on_device(arch_name, expected);
    refusals(arch_name);
    for (int i = 0; i < n_targets; i++) {
        free(targets[i].a);
        free(targets[i].b);
    }
    free(expected);
    pf_gguf_close(&g);
    remove(adapter_path);
    remove(merged_path);
    remove(tied_path);
    pf_mem_stats_get(&after);
    CHECK(before.n_live == after.n_live, "memory is left behind");
    return check_status();
}

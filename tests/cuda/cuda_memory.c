/* A GPU whose memory is taken: whatever is left when a model is opened, or taken from it later, it answers with the
 * bits of the CPU, and what does not run on the GPU says so in a line.
 *
 * usage: cuda_memory MODEL.gguf      77: there is no GPU */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pfmoe.h"

enum { N_PROMPT = 40, N_DECODE = 6, N_TOKENS = N_PROMPT + N_DECODE, N_CTX = 64, MOST_PIECES = 64, SKIP = 77 };

static const char *path;
static size_t n_vocab;
static float *expected;                  /* [1 + N_DECODE][n_vocab] */
static char said[512];                   /* the last warning */

/* Memory of the GPU that nobody else can have. */
static void  *taken[MOST_PIECES];
static int    n_taken;

static void take_all_but(size_t left)
{
    size_t free_bytes, total;
    while (n_taken < MOST_PIECES && cudaMemGetInfo(&free_bytes, &total) == cudaSuccess &&
           free_bytes > left + (4 << 20)) {
        size_t n = free_bytes - left;
        while (n > 1 << 20 && cudaMalloc(&taken[n_taken], n) != cudaSuccess) {
            cudaGetLastError();
            n -= n / 16;
        }
        if (!taken[n_taken])
            return;
        n_taken++;
    }
}

static void give_back(void)
{
    while (n_taken > 0) {
        cudaFree(taken[--n_taken]);
        taken[n_taken] = NULL;
    }
}

static void hear(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    if (level <= PF_LOG_WARN)
        snprintf(said, sizeof said, "%s", text);
}

static pf_model *open_model(int device)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.device = device;
    o.log = hear;
    said[0] = '\0';
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    return m;
}

static pf_status open_session(pf_model *m, pf_session **s)
{
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    return pf_session_open(s, m, &o);
}

/* Evaluates the prompt and the tokens. The first call's logits become the expected ones of later calls. */
static void run_session(const char *name, pf_session *s)
{
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    for (int i = 0; i <= N_DECODE; i++) {
        float *want = expected + (size_t)i * n_vocab;
        pf_status st = i == 0 ? pf_session_eval(s, tokens, N_PROMPT, 0) :
                       pf_session_eval(s, tokens + N_PROMPT + i - 1, 1, 0);
        CHECK(st == PF_OK, "%s: piece %d: %s", name, i, pf_last_error());
        if (st < 0)
            return;
        if (strcmp(name, "expected") == 0)
            memcpy(want, pf_session_logits(s), n_vocab * sizeof *want);
        CHECK(memcmp(want, pf_session_logits(s), n_vocab * sizeof *want) == 0, "%s: other bits after piece %d", name,
              i);
    }
}

static void run_model(const char *name, pf_model *m)
{
    pf_session *s = NULL;
    if (!m)
        return;
    CHECK(open_session(m, &s) == PF_OK, "%s: %s", name, pf_last_error());
    if (s)
        run_session(name, s);
    pf_session_close(&s);
}

static void make_expected(void)
{
    pf_model *m = open_model(-1);
    if (!m)
        exit(1);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    expected = malloc((1 + N_DECODE) * n_vocab * sizeof *expected);
    run_model("expected", m);
    pf_model_close(&m);
}

static void test_little_left(void)
{
    static const size_t left[] = { 8, 64, 200, 258, 262, 270, 300, 400, 1000 };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char name[64];
        snprintf(name, sizeof name, "%zu MiB left", left[i]);
        take_all_but(left[i] << 20);
        pf_model *m = open_model(0);
        if (m)
            printf("%s: %s, %d layers on the GPU%s%s\n", name, pf_model_info(m)->backend,
                   pf_model_info(m)->n_gpu_layers, said[0] ? "; " : "", said);
        CHECK(!m || strcmp(pf_model_info(m)->backend, "cuda") == 0 || said[0], "%s: not a word about the CPU", name);
        run_model(name, m);
        pf_model_close(&m);
        give_back();
    }
}

/* A model that is open keeps what it has; a session for which nothing is left is refused or runs all the same. */
static void test_taken_later(void)
{
    pf_model *m = open_model(0);
    pf_session *first = NULL, *second = NULL;
    if (!m)
        return;
    CHECK(strcmp(pf_model_info(m)->backend, "cuda") == 0, "%s", said);
    CHECK(open_session(m, &first) == PF_OK, "%s", pf_last_error());
    take_all_but(0);
    said[0] = '\0';
    if (first)
        run_session("all taken", first);
    CHECK(!said[0], "the GPU was left although the session had all it needs: %s", said);
    if (open_session(m, &second) == PF_OK) {
        run_session("second session", second);
    } else {
        CHECK(strstr(pf_last_error(), "memory"), "%s", pf_last_error());
        printf("a second session: %s\n", pf_last_error());
    }
    pf_session_close(&second);
    give_back();
    CHECK(open_session(m, &second) == PF_OK, "%s", pf_last_error());
    if (second)
        run_session("given back", second);
    pf_session_close(&second);
    pf_session_close(&first);
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    struct pf_device devices[2];
    if (argc != 2)
        return 2;
    path = argv[1];
    if (pf_devices(devices, 2) < 2) {
        printf("there is no GPU\n");
        return SKIP;
    }
    make_expected();
    test_little_left();
    test_taken_later();
    free(expected);
    return check_status();
}

/* A model on the GPU against the same on the CPU: the logits of a prompt, evaluated whole, in pieces and token by
 * token, are the same bits, with keys and values of each type that its heads divide into.
 *
 * usage: cuda_logits MODEL.gguf [TOKENS]     77: there is no GPU */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pfmoe.h"

enum { MOST_TOKENS = 300, SKIP = 77 };

static int n_tokens = MOST_TOKENS;

struct way {
    const char     *name;
    int             device, piece;
    enum pf_kv_type kv;
};

static void print(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx;
    if (level <= PF_LOG_WARN)
        printf("%s\n", text);
}

/* A model and a session of it; on failure neither, and pf_last_error() says why. */
static pf_status open_both(const char *path, int device, enum pf_kv_type kv, pf_model **m, pf_session **s)
{
    struct pf_model_opts mo;
    struct pf_session_opts so;
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    mo.device = device;
    mo.log = print;
    so.n_ctx = n_tokens + 20;
    so.kv_type = kv;
    pf_status st = pf_model_open(m, path, &mo);
    if (st == PF_OK)
        st = pf_session_open(s, *m, &so);
    if (st < 0)
        pf_model_close(m);
    return st;
}

/* Whether a session with keys and values of type kv is refused, as it is where heads do not divide into blocks of Q8_0:
 * then CPU and GPU must say the same. */
static bool is_refused(const char *path, enum pf_kv_type kv)
{
    char said[2][512] = { "", "" };
    for (int i = 0; i < 2; i++) {
        pf_model *m = NULL;
        pf_session *s = NULL;
        if (open_both(path, i - 1, kv, &m, &s) < 0)
            snprintf(said[i], sizeof said[i], "%s", pf_last_error());
        pf_session_close(&s);
        pf_model_close(&m);
    }
    CHECK(strcmp(said[0], said[1]) == 0, "the CPU says \"%s\", the GPU \"%s\"", said[0], said[1]);
    return strstr(said[0], "Q8_0 takes multiples of 32") != NULL;
}

/* Cancelled before it began, a step fails, also one that would be a repetition, and leaves no trace. */
static void check_cancelled(pf_session *s, int32_t tok, const char *name)
{
    int64_t pos = pf_session_pos(s);
    pf_session_cancel(s);
    pf_status st = pf_session_eval(s, &tok, 1, 0);
    CHECK(st == PF_ECANCEL && pf_session_pos(s) == pos, "%s: a step that was cancelled at %d: %d", name, (int)pos, st);
}

/* Logits of all positions, to be freed. */
static float *run(const char *path, const struct way *w, size_t *n_vocab)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    int32_t tokens[MOST_TOKENS];
    if (open_both(path, w->device, w->kv, &m, &s) < 0) {
        CHECK(false, "%s", pf_last_error());
        return NULL;
    }
    CHECK(strcmp(pf_model_info(m)->backend, w->device < 0 ? "cpu" : "cuda") == 0, "it runs on %s",
          pf_model_info(m)->backend);
    *n_vocab = (size_t)pf_model_info(m)->n_vocab;
    float *all = calloc((size_t)n_tokens * *n_vocab, sizeof *all);
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % *n_vocab);
    for (int done = 0; done < n_tokens;) {
        int n = w->piece < n_tokens - done ? w->piece : n_tokens - done;
        unsigned flags = n > 1 ? PF_LOGITS_ALL : 0;
        if (w->piece == 1 && done % 5 == 4)
            check_cancelled(s, tokens[done], w->name);
        CHECK(pf_session_eval(s, tokens + done, (size_t)n, flags) == PF_OK, "%s: %s", w->name, pf_last_error());
        for (int i = 0; i < n; i++) {
            const float *logits = flags ? pf_session_logits_at(s, (size_t)i) : pf_session_logits(s);
            if (logits)
                memcpy(all + (size_t)(done + i) * *n_vocab, logits, *n_vocab * sizeof *all);
        }
        done += n;
    }
    CHECK(strcmp(pf_model_info(m)->backend, w->device < 0 ? "cpu" : "cuda") == 0, "%s: it ended on %s", w->name,
          pf_model_info(m)->backend);
    pf_session_close(&s);
    pf_model_close(&m);
    return all;
}

static void compare(const char *path, const struct way *w, const float *expected)
{
    size_t n_vocab, bad = 0, first = 0;
    float *found = run(path, w, &n_vocab);
    if (!found)
        return;
    for (size_t i = (size_t)n_tokens * n_vocab; i-- > 0;)
        if (memcmp(&found[i], &expected[i], sizeof *found) != 0) {
            bad++;
            first = i;
        }
    CHECK(bad == 0, "%s: %zu of %zu differ, first position %zu, token %zu: %.9g, expected %.9g", w->name, bad,
          (size_t)n_tokens * n_vocab, first / n_vocab, first % n_vocab, (double)found[first], (double)expected[first]);
    free(found);
}

int main(int argc, char **argv)
{
    struct pf_device devices[2];
    n_tokens = argc > 2 ? atoi(argv[2]) : n_tokens;
    if (argc < 2 || argc > 3 || n_tokens < 1 || n_tokens > MOST_TOKENS)
        return 2;
    if (pf_devices(devices, 2) < 2) {
        printf("skipped: this machine has no GPU that CUDA can use\n");
        return SKIP;
    }
    CHECK(devices[0].driver[0] == 0, "the CPU has a driver: %s", devices[0].driver);
    CHECK(strstr(devices[1].driver, "CUDA 1"), "the GPU's driver is \"%s\"", devices[1].driver);
    for (enum pf_kv_type kv = PF_KV_I16; kv <= PF_KV_Q8_0; kv++) {
        const struct way cpu = { "CPU", -1, n_tokens, kv };
        const struct way gpu[] = { { "GPU, whole", 0, n_tokens, kv }, { "GPU, token by token", 0, 1, kv },
                                   { "GPU, pieces of 7", 0, 7, kv } };
        size_t n_vocab;
        if (kv == PF_KV_Q8_0 && is_refused(argv[1], kv))
            break;
        float *expected = run(argv[1], &cpu, &n_vocab);
        for (size_t i = 0; expected && i < sizeof gpu / sizeof *gpu; i++)
            compare(argv[1], &gpu[i], expected);
        free(expected);
    }
    return check_status();
}

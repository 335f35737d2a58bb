/* Sessions on a small model: what the sequence is after everything that can happen to it, and that nothing leaks.
 *
 * usage: sessions MODEL.gguf SCRATCH_FOLDER */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "check.h"
#include "gguf/gguf.h"
#include "memory_file.h"
#include "open_session.h"
#include "pfmoe.h"

enum { N = 40, N_CTX = 64 };

static const char *model_path, *scratch;
static int32_t tokens[N_CTX + 1];
static size_t n_vocab;

static pf_model *open_model(const char *path)
{
    pf_model *m;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 2;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    return m;
}

static void eval(pf_session *s, int from, int n)
{
    CHECK(pf_session_eval(s, tokens + from, (size_t)n, 0) == PF_OK, "%s", pf_last_error());
}

static float *copy_logits(const pf_session *s)
{
    float *copy = malloc(n_vocab * sizeof *copy);
    CHECK(pf_session_logits(s) != NULL);
    memcpy(copy, pf_session_logits(s), n_vocab * sizeof *copy);
    return copy;
}

static bool same_logits(const pf_session *s, const float *expected)
{
    return pf_session_logits(s) && memcmp(pf_session_logits(s), expected, n_vocab * sizeof *expected) == 0;
}

/* ---- The sequence ------------------------------------------------------------------------------------------------ */

static void test_sequence(pf_model *m)
{
    pf_session *s = open_session(m, N_CTX);
    size_t reused = 99;
    CHECK(pf_session_logits(s) == NULL && pf_session_pos(s) == 0);
    eval(s, 0, N);
    float *end = copy_logits(s);
    CHECK(pf_session_pos(s) == N && memcmp(pf_session_tokens(s), tokens, N * sizeof *tokens) == 0);

    CHECK(pf_session_rewind(s, N - 7) == PF_OK && pf_session_logits(s) == NULL);
    eval(s, N - 7, 7);
    CHECK(same_logits(s, end), "rewind and again");

    CHECK(pf_session_sync(s, tokens, N, &reused) == PF_OK && reused == N && same_logits(s, end), "the same sequence");
    CHECK(pf_session_sync(s, tokens, N - 3, &reused) == PF_OK && reused == N - 4,
          "a shorter one needs its last logits");
    CHECK(pf_session_sync(s, tokens, N, &reused) == PF_OK && reused == N - 3 && same_logits(s, end), "longer again");

    int32_t other[N];
    memcpy(other, tokens, sizeof other);
    other[5] = (tokens[5] + 1) % (int32_t)n_vocab;
    CHECK(pf_session_sync(s, other, N, &reused) == PF_OK && reused == 5 && !same_logits(s, end));
    CHECK(pf_session_sync(s, tokens, N, &reused) == PF_OK && reused == 5 && same_logits(s, end));
    CHECK(pf_session_rewind(s, N + 1) == PF_EINVAL && pf_session_rewind(s, -1) == PF_EINVAL);
    free(end);
    pf_session_close(&s);
    CHECK(s == NULL);
}

static void test_refusals(pf_model *m)
{
    pf_session *s = open_session(m, N_CTX);
    eval(s, 0, N);
    float *end = copy_logits(s);
    CHECK(pf_session_eval(s, tokens, 0, 0) == PF_EINVAL);
    CHECK(pf_session_eval(s, tokens, N_CTX - N + 1, 0) == PF_ECONTEXT, "%s", pf_last_error());
    int32_t bad[2] = { 0, (int32_t)n_vocab };
    CHECK(pf_session_eval(s, bad, 2, 0) == PF_EINVAL);
    CHECK(pf_session_sync(s, tokens, N_CTX + 1, NULL) == PF_ECONTEXT);
    CHECK(pf_session_sync(s, bad, 2, NULL) == PF_EINVAL);
    CHECK(pf_session_pos(s) == N && same_logits(s, end), "refusals change nothing");

    pf_session_cancel(s);
    CHECK(pf_session_eval(s, tokens, 1, 0) == PF_ECANCEL && pf_session_pos(s) == N, "a cancelled step leaves no trace");
    eval(s, N, 1);
    CHECK(pf_session_pos(s) == N + 1);
    free(end);
    pf_session_close(&s);

    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = -1;
    CHECK(pf_session_open(&s, m, &o) == PF_EINVAL && s == NULL);
    o.n_ctx = 16;
    o.n_batch = -2;
    CHECK(pf_session_open(&s, m, &o) == PF_EINVAL && s == NULL);
}

static void test_two_sessions(pf_model *m)
{
    pf_session *a = open_session(m, N_CTX), *b = open_session(m, N_CTX);
    eval(a, 0, N);
    float *end = copy_logits(a);
    pf_session_rewind(a, 0);
    for (int i = 0; i < N; i++) {
        eval(a, i, 1);
        eval(b, N - 1 - i, 1);
    }
    CHECK(same_logits(a, end), "another session in between");
    free(end);
    pf_session_close(&a);
    pf_session_close(&b);
}

static void test_decode_allocates_nothing(pf_model *m)
{
    struct pf_mem_stats before, after;
    struct pf_sampler sp;
    pf_session *s = open_session(m, N_CTX);
    int32_t tok = 1;
    pf_sampler_init(&sp, 7);
    eval(s, 0, 8);
    pf_mem_stats_get(&before);
    for (int i = 0; i < 20; i++) {
        CHECK(pf_sample(&sp, s, &tok) == PF_OK);
        CHECK(pf_session_eval(s, &tok, 1, 0) == PF_OK);
    }
    pf_mem_stats_get(&after);
    CHECK(after.n_calls == before.n_calls, "%llu allocations while decoding",
          (unsigned long long)(after.n_calls - before.n_calls));
    pf_session_close(&s);
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static void test_save(pf_model *m)
{
    struct file f = { 0 };
    pf_session *a = open_session(m, N_CTX), *b = open_session(m, N_CTX);
    eval(a, 0, N);
    CHECK(pf_session_save(a, write_file, &f) == PF_OK, "%s", pf_last_error());
    eval(a, N, 1);
    float *end = copy_logits(a);

    CHECK(pf_session_load(b, read_file, &f) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_pos(b) == N);
    eval(b, N, 1);
    CHECK(same_logits(b, end), "a loaded session goes on with the same bits");

    for (size_t n = 0; n < f.n; n += 1 + f.n / 50) {     /* cut short anywhere */
        struct file cut = { f.data, n, 0, f.room, 0 };
        CHECK(pf_session_load(b, read_file, &cut) == PF_EIO && pf_session_pos(b) == 0);
    }
    f.at = 0;
    f.data[f.n / 2] ^= 1;
    CHECK(pf_session_load(b, read_file, &f) == PF_EFORMAT, "%s", pf_last_error());
    f.n = 0;
    f.limit = 5000;
    CHECK(pf_session_save(a, write_file, &f) == PF_EIO, "a full disk");
    CHECK(same_logits(a, end));
    free(end);
    free(f.data);
    pf_session_close(&a);
    pf_session_close(&b);
}

/* ---- Damaged weights, changing files ----------------------------------------------------------------------------- */

/* A copy of the model with n bytes of a tensor written over. */
static void copy_with(const char *to, const char *tensor, const void *bytes, size_t n)
{
    pf_gguf *g;
    char buffer[65536];
    FILE *in = fopen(model_path, "rb"), *out = fopen(to, "wb");
    CHECK(in && out);
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, in)) > 0;)
        fwrite(buffer, 1, got, out);
    CHECK(pf_gguf_open(&g, model_path, 0) == PF_OK);
    if (tensor) {
        fseek(out, (long)pf_gguf_tensor(g, tensor)->offset, SEEK_SET);
        fwrite(bytes, 1, n, out);
    }
    pf_gguf_close(&g);
    fclose(in);
    fclose(out);
}

static bool is_f32(const char *tensor)
{
    pf_gguf *g;
    CHECK(pf_gguf_open(&g, model_path, 0) == PF_OK);
    bool is = pf_gguf_tensor(g, tensor)->type == PF_F32;
    pf_gguf_close(&g);
    return is;
}

static void test_not_finite(void)
{
    char path[512];
    float nan = NAN;
    snprintf(path, sizeof path, "%s/nan-%d.gguf", scratch, (int)getpid());
    copy_with(path, "blk.1.attn_norm.weight", &nan, sizeof nan);
    pf_model *m = open_model(path);
    pf_session *s = open_session(m, N_CTX);
    CHECK(pf_session_eval(s, tokens, 3, 0) == PF_ENUMERIC && pf_session_pos(s) == 0, "%s", pf_last_error());
    CHECK(strstr(pf_last_error(), "in layer 1, at one of the positions 0 to 2, in ") &&
          strstr(pf_last_error(), path), "%s", pf_last_error());
    CHECK(pf_session_eval(s, tokens, 1, 0) == PF_ENUMERIC && strstr(pf_last_error(), "in layer 1, at position 0, in "),
          "%s", pf_last_error());
    pf_session_close(&s);
    pf_model_close(&m);

    char scales[256];        /* "not a number", at every place where a block of token 0 may have its scale */
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = i % 2 ? 0x7e : 0;
    for (size_t i = 0; is_f32("output.weight") && i < sizeof scales; i += sizeof nan)
        memcpy(scales + i, &nan, sizeof nan);
    copy_with(path, "output.weight", scales, sizeof scales);
    m = open_model(path);
    s = open_session(m, N_CTX);
    for (unsigned flags = 0; flags <= PF_LOGITS_ALL; flags += PF_LOGITS_ALL) {
        CHECK(pf_session_eval(s, tokens, 3, flags) == PF_ENUMERIC && pf_session_pos(s) == 0, "%s", pf_last_error());
        CHECK(strstr(pf_last_error(), flags ? "of token 0 after position 0 " : "of token 0 after position 2 ") &&
              strstr(pf_last_error(), path), "%s", pf_last_error());
    }
    pf_session_close(&s);
    pf_model_close(&m);
    unlink(path);
}

static void test_file_changes(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/changing-%d.gguf", scratch, (int)getpid());
    copy_with(path, NULL, NULL, 0);
    pf_model *m = open_model(path);
    pf_session *s = open_session(m, N_CTX);
    eval(s, 0, 3);
    FILE *f = fopen(path, "ab");
    fputc(0, f);
    fclose(f);
    CHECK(pf_session_eval(s, tokens, 1, 0) == PF_ECHANGED && pf_session_pos(s) == 3, "%s", pf_last_error());
    pf_session_close(&s);
    pf_model_close(&m);
    unlink(path);
}

static void test_residency(pf_model *m)
{
    int layers[] = { 0, 1 }, none[] = { 99 };
    CHECK(pf_model_preload(m, layers, 2, NULL, NULL) == PF_OK);
    CHECK(pf_model_is_resident(m, 0) && pf_model_is_resident(m, 1) && !pf_model_is_resident(m, 99));
    CHECK(pf_model_preload(m, none, 1, NULL, NULL) == PF_EINVAL);
    CHECK(pf_model_preload(m, NULL, 0, NULL, NULL) == PF_OK);
}

/* ---- Memory that runs out ---------------------------------------------------------------------------------------- */

static pf_status whole_life(void)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    struct pf_model_opts mo;
    struct pf_session_opts so;
    pf_model_opts_init(&mo);
    pf_session_opts_init(&so);
    mo.n_threads = 1;
    so.n_ctx = 32;
    pf_status st = pf_model_open(&m, model_path, &mo);
    if (st == PF_OK)
        st = pf_session_open(&s, m, &so);
    if (st == PF_OK)
        st = pf_session_eval(s, tokens, 4, PF_LOGITS_ALL);
    pf_session_close(&s);
    pf_model_close(&m);
    return st;
}

static void test_no_memory(void)
{
    struct pf_mem_stats before, after;
    pf_status st = PF_ENOMEM;
    pf_mem_stats_get(&before);
    int n;
    for (n = 1; st != PF_OK && n < 100000; n++) {
        pf_mem_fail_nth((uint64_t)n);
        st = whole_life();
        CHECK(st == PF_OK || st == PF_ENOMEM, "allocation %d: %s", n, pf_last_error());
        pf_mem_stats_get(&after);
        CHECK(after.n_live == before.n_live, "allocation %d left %llu blocks", n,
              (unsigned long long)(after.n_live - before.n_live));
    }
    pf_mem_fail_nth(0);
    printf("each of %d allocations failed once\n", n - 2);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    model_path = argv[1];
    scratch = argv[2];
    pf_model *m = open_model(model_path);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    for (int i = 0; i <= N_CTX; i++)
        tokens[i] = (int32_t)((unsigned)i * 40503u % n_vocab);
    test_sequence(m);
    test_refusals(m);
    test_two_sessions(m);
    test_decode_allocates_nothing(m);
    test_save(m);
    test_residency(m);
    pf_model_close(&m);
    test_not_finite();
    test_file_changes();
    test_no_memory();
    return check_status();
}

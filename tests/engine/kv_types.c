/* Keys and values of every type: how far the logits of Q8_0 and I16 are from each other and from those of F32; what
 * they take; that a saved session goes on as it was and is not taken for another type's; and heads that do not divide
 * into blocks.
 *
 * usage: kv_types MODEL.gguf              77: its architecture is not one that pfmoe has */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "memory_file.h"
#include "moe/model/model.h"
#include "pfmoe.h"

enum { N = 300, N_CTX = 512, N_SAVED = 270 };
#define LIMIT 1e-3                       /* error over signal of Q8_0 against I16 */

static int32_t tokens[N];
static size_t  n_vocab;

static pf_session *open_session(pf_model *m, enum pf_kv_type type)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    o.kv_type = type;
    return pf_session_open(&s, m, &o) == PF_OK ? s : NULL;
}

/* Logits of all positions. */
static float *logits_of(pf_model *m, enum pf_kv_type type)
{
    float *all = malloc(N * n_vocab * sizeof *all);
    pf_session *s = open_session(m, type);
    CHECK(s && pf_session_eval(s, tokens, N, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < N; i++)
        memcpy(all + i * n_vocab, pf_session_logits_at(s, i), n_vocab * sizeof *all);
    pf_session_close(&s);
    return all;
}

static double error_of(const float *found, const float *exact)
{
    double wrong = 0, all = 0;
    for (size_t i = 0; i < N * n_vocab; i++) {
        wrong += ((double)found[i] - (double)exact[i]) * ((double)found[i] - (double)exact[i]);
        all += (double)exact[i] * (double)exact[i];
    }
    return wrong / all;
}

static uint64_t kv_bytes(pf_model *m, enum pf_kv_type type)
{
    uint64_t kv = 0, work;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    o.kv_type = type;
    CHECK(pf_session_bytes(m, &o, &kv, &work) == PF_OK, "%s", pf_last_error());
    return kv;
}

/* The last token of a context goes over no more than the session holds, unless several layers see the same keys and
 * values, and the first over one position. */
static void test_read_bytes(pf_model *m, enum pf_kv_type type)
{
    uint64_t first = 0, last = 0, past = 7;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N_CTX;
    o.kv_type = type;
    CHECK(pf_session_read_bytes(m, &o, 0, &first) == PF_OK && pf_session_read_bytes(m, &o, N_CTX - 1, &last) == PF_OK,
          "%s", pf_last_error());
    bool bounded = last <= kv_bytes(m, type) || m->n_shared_kv > 0;
    CHECK(bounded && last > first && last <= N_CTX * first, "%llu and %llu of %llu bytes",
          (unsigned long long)first, (unsigned long long)last, (unsigned long long)kv_bytes(m, type));
    CHECK(pf_session_read_bytes(m, &o, N_CTX, &past) == PF_EINVAL && past == 7, "a position past the context");
}

/* A file whose header says otherwise of latents, whether they are whole numbers, is of another type. */
static void test_latents(pf_session *s, struct file *f)
{
    enum { TYPE_AT = 12 };
    f->at = 0;
    f->data[TYPE_AT + 1] ^= 1;
    CHECK(pf_session_load(s, read_file, f) == PF_EINVAL && strstr(pf_last_error(), "of another type"), "%s",
          pf_last_error());
    f->data[TYPE_AT + 1] ^= 1;
}

/* A session that has the first N_SAVED tokens goes on, token by token. */
static void go_on(pf_session *s, const float *expected)
{
    for (int i = N_SAVED; i < N; i++) {
        CHECK(pf_session_eval(s, tokens + i, 1, 0) == PF_OK, "%s", pf_last_error());
        CHECK(memcmp(pf_session_logits(s), expected + (size_t)i * n_vocab, n_vocab * sizeof *expected) == 0, "token %d",
              i);
    }
}

static void test_save(pf_model *m, enum pf_kv_type type, enum pf_kv_type another, const float *expected)
{
    struct file f = { 0 };
    pf_session *a = open_session(m, type), *b = open_session(m, type), *other = open_session(m, another);
    CHECK(pf_session_eval(a, tokens, N_SAVED, 0) == PF_OK && pf_session_save(a, write_file, &f) == PF_OK, "%s",
          pf_last_error());
    CHECK(pf_session_load(other, read_file, &f) == PF_EINVAL, "keys and values of another type");
    test_latents(b, &f);
    f.at = 0;
    CHECK(pf_session_load(b, read_file, &f) == PF_OK, "%s", pf_last_error());
    go_on(b, expected);
    CHECK(pf_session_copy(other, a, N_SAVED, NULL, NULL) == PF_EINVAL, "keys and values of another type");
    CHECK(pf_session_copy(b, a, N_SAVED, NULL, NULL) == PF_OK && pf_session_computed(b) == N_SAVED, "%s",
          pf_last_error());
    go_on(b, expected);
    free(f.data);
    pf_session_close(&a);
    pf_session_close(&b);
    pf_session_close(&other);
}

int main(int argc, char **argv)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    if (argc != 2)
        return 2;
    pf_model_opts_init(&o);
    o.device = -1;
    pf_status st = pf_model_open(&m, argv[1], &o);
    if (st < 0) {
        printf("%s\n", pf_last_error());
        return st == PF_EUNSUPPORTED ? 77 : 1;
    }
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    pf_session *s = open_session(m, PF_KV_Q8_0);
    if (!s) {
        CHECK(strstr(pf_last_error(), "Q8_0 takes multiples of 32"), "%s", pf_last_error());
        printf("refused: %s\n", pf_last_error());
        pf_model_close(&m);
        return check_status();
    }
    pf_session_close(&s);
    float *exact = logits_of(m, PF_KV_F32), *whole = logits_of(m, PF_KV_I16), *q8 = logits_of(m, PF_KV_Q8_0);
    printf("squares of error over squares, against F32: I16 %.1e, Q8_0 %.1e; Q8_0 against I16: %.1e\n",
           error_of(whole, exact), error_of(q8, exact), error_of(q8, whole));
    CHECK(error_of(q8, whole) < LIMIT && error_of(q8, whole) > 0, "%.1e", error_of(q8, whole));
    CHECK(kv_bytes(m, PF_KV_Q8_0) < kv_bytes(m, PF_KV_I16));
    test_read_bytes(m, PF_KV_F32);
    test_read_bytes(m, PF_KV_I16);
    test_read_bytes(m, PF_KV_Q8_0);
    test_save(m, PF_KV_Q8_0, PF_KV_I16, q8);
    test_save(m, PF_KV_I16, PF_KV_Q8_0, whole);
    free(exact);
    free(whole);
    free(q8);
    pf_model_close(&m);
    return check_status();
}

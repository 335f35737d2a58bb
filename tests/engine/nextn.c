/* The layer that guesses ahead: its logits at every position are those of a reference, and the same bits whether the
 * text comes at once, in pieces or token by token. Opening it fails cleanly wherever memory runs out.
 *
 * usage: nextn MODEL.gguf TOKENS.txt REFERENCE.f32 NMSE        77: a file is not there */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "check.h"
#include "moe/session/session.h"

enum { MOST = 256 };

static int32_t tokens[MOST];
static int     n;
static float  *reference;                /* [n][n_vocab] */

static pf_session *open_session(pf_model *m, enum pf_draft draft, int n_batch)
{
    pf_session *s;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = MOST;
    o.n_batch = n_batch;
    o.kv_type = PF_KV_F32;
    o.draft = draft;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

/* The layer's logits of all positions, by steps of so many rows. */
static void run(pf_model *m, int rows, float *out)
{
    pf_session *whole = open_session(m, PF_DRAFT_MTP, MOST), *own = open_session(m->nextn, PF_DRAFT_OFF, MOST);
    size_t n_vocab = (size_t)m->n_vocab;
    CHECK(pf_session_eval(whole, tokens, (size_t)n, 0) == PF_OK, "%s", pf_last_error());
    own->given = (struct pf_given_rows){ whole->hidden, 0, n };
    for (int at = 0; at < n; at += rows) {
        int left = n - at < rows ? n - at : rows;
        CHECK(pf_session_eval(own, tokens + at, (size_t)left, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
        for (int r = 0; r < left; r++)
            memcpy(out + (size_t)(at + r) * n_vocab, pf_session_logits_at(own, (size_t)r), n_vocab * sizeof *out);
    }
    pf_session_close(&whole);
    pf_session_close(&own);
}

static bool read_tokens(const char *path)
{
    FILE *f = fopen(path, "r");
    for (; f && n < MOST && fscanf(f, "%d,", &tokens[n]) == 1; n++)
        ;
    if (f)
        fclose(f);
    return f != NULL;
}

static bool read_reference(const char *path, size_t count)
{
    FILE *f = fopen(path, "rb");
    bool all = f && fread(reference, sizeof *reference, count, f) == count;
    if (f)
        fclose(f);
    return all;
}

static void compare(const float *got, size_t count, double limit)
{
    double error = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)got[i] - reference[i]) * ((double)got[i] - reference[i]);
        sum += (double)reference[i] * reference[i];
    }
    printf("nmse %.3g\n", error / sum);
    CHECK(error / sum <= limit, "nmse %g, limit %g", error / sum, limit);
}

/* With the layer that guesses ahead, or with a second model, which is the same. */
static pf_status open_and_go_on(const char *path, bool second)
{
    struct pf_model_opts o;
    struct pf_session_opts so;
    pf_model *m;
    pf_session *s = NULL;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = -1;
    o.nextn = !second;
    o.draft_path = second ? path : NULL;
    PF_TRY(pf_model_open(&m, path, &o));
    pf_session_opts_init(&so);
    so.n_ctx = MOST;
    so.n_batch = MOST;
    so.draft = m->nextn ? PF_DRAFT_MTP : PF_DRAFT_MODEL;
    pf_status st = pf_session_open(&s, m, &so);
    st = st < 0 ? st : pf_session_eval(s, tokens, (size_t)n - 1, 0);
    st = st < 0 ? st : pf_session_eval(s, tokens + n - 1, 1, 0);
    pf_session_close(&s);
    pf_model_close(&m);
    return st;
}

/* Whichever allocation fails, the others are freed, and a sentence says why, or it went without. */
static void test_faults(const char *path, bool second)
{
    enum { MANY = 100000 };
    struct pf_mem_stats before, after;
    int i = 1;
    pf_mem_stats_get(&before);
    for (pf_status st = PF_ENOMEM; st < 0 && i < MANY && check_n_failed == 0; i++) {
        pf_mem_fail_nth((uint64_t)i);
        st = open_and_go_on(path, second);
        CHECK(st == PF_OK || st == PF_ENOMEM, "allocation %d: %s", i, pf_last_error());
        pf_mem_stats_get(&after);
        CHECK(after.n_live == before.n_live, "allocation %d left %d blocks", i, (int)(after.n_live - before.n_live));
    }
    pf_mem_fail_nth(0);
    printf("each of %d allocations failed once\n", i - 2);
    CHECK(i > 20);
}

int main(int argc, char **argv)
{
    struct pf_model_opts o;
    pf_model *m;
    if (argc < 5)
        return 2;
    if (!read_tokens(argv[2])) {
        printf("skipped: there is no %s\n", argv[2]);
        return 77;
    }
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = -1;
    o.nextn = true;
    CHECK(pf_model_open(&m, argv[1], &o) == PF_OK && m->nextn, "%s", pf_last_error());
    if (check_n_failed)
        return check_status();
    size_t count = (size_t)n * (size_t)m->n_vocab;
    float *whole = calloc(count, sizeof *whole), *pieces = calloc(count, sizeof *pieces);
    reference = calloc(count, sizeof *reference);
    CHECK(read_reference(argv[3], count), "%s is too short", argv[3]);
    run(m, n, whole);
    compare(whole, count, atof(argv[4]));
    for (int rows = 1; rows < 8; rows += 6) {
        run(m, rows, pieces);
        CHECK(memcmp(whole, pieces, count * sizeof *whole) == 0, "other bits by steps of %d rows", rows);
    }
    test_faults(argv[1], false);
    test_faults(argv[1], true);
    free(whole);
    free(pieces);
    free(reference);
    pf_model_close(&m);
    return check_status();
}

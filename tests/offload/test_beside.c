/* A prompt of several steps on two devices that have layers each, all of them or sharing experts with the CPU, while
 * another thread's session evaluates one token after the other and a third thread cancels the prompt: it goes on from
 * what was through, and every token has the bits of the CPU alone, also where a device is lost meanwhile. Meant for the
 * thread sanitizer, too.
 *
 * usage: test_beside MODEL.gguf */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "by_layers.h"
#include "check.h"
#include "expected.h"

enum { SINGLES = 8, N_TOKENS = 80, N_BATCH = 18, PROMPTS = 3, N_GPUS = 2 };

static const char *path;
static int32_t     tokens[N_TOKENS];
static float      *expected;                 /* [SINGLES + 1][n_vocab] after each of the first tokens, and after all */
static size_t      n_vocab;

struct threads {
    pf_session *prompt, *singles;
    atomic_bool over;
    atomic_int  n_singles;
};

static size_t piece_at(int i)
{
    return i <= SINGLES ? (size_t)i : N_TOKENS;
}

static void compare(const pf_session *s, int piece, const char *what)
{
    const float *want = expected + (size_t)piece * n_vocab, *found = pf_session_logits(s);
    CHECK(found && memcmp(found, want, n_vocab * sizeof *want) == 0, "%s: other bits", what);
}

static void *decode(void *arg)
{
    struct threads *t = arg;
    for (int i = 0; !t->over || i > 0; i = (i + 1) % SINGLES, t->n_singles++) {
        CHECK(i > 0 || pf_session_rewind(t->singles, 0) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_eval(t->singles, tokens + i, 1, 0) == PF_OK, "a token beside: %s", pf_last_error());
        compare(t->singles, i, "a token beside a prompt");
    }
    return NULL;
}

/* Farther and farther apart, so that the prompt gets on. */
static void *cancel(void *arg)
{
    struct threads *t = arg;
    for (unsigned us = 2000; !t->over; us += us / 2) {
        usleep(us);
        pf_session_cancel(t->prompt);
    }
    return NULL;
}

/* As many as it takes for tokens to come beside them. */
static void run_prompts(struct threads *t, const char *name)
{
    for (int i = 0; i < PROMPTS || t->n_singles < PROMPTS; i++) {
        pf_status st;
        int64_t pos = 0;
        CHECK(pf_session_rewind(t->prompt, 0) == PF_OK, "%s", pf_last_error());
        while ((st = pf_session_sync(t->prompt, tokens, N_TOKENS, NULL)) == PF_ECANCEL) {
            CHECK(pf_session_pos(t->prompt) >= pos, "%s: something is lost that was through", name);
            pos = pf_session_pos(t->prompt);
        }
        CHECK(st == PF_OK, "%s: %s", name, pf_last_error());
        compare(t->prompt, SINGLES, name);
    }
}

static pf_session *open_session_of(pf_model *m)
{
    pf_session *s = NULL;
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = N_TOKENS;
    so.n_batch = N_BATCH;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s", pf_last_error());
    return s;
}

/* lost: the device that is lost in the first prompt; -1: none is. */
static void run(const char *name, bool streaming, int lost)
{
    enum { LATER = 150 };                    /* operations */
    struct devices d = { .n_opened = 0 };
    pf_model *m = open_by_layers(&d, N_GPUS, streaming, path, name);
    pthread_t decoding, cancelling;
    if (!m)
        return;
    struct threads t = { .prompt = open_session_of(m), .singles = open_session_of(m) };
    if (lost >= 0)
        d.sim[lost].lose_at = d.sim[lost].n_ops + LATER;
    int missing = pthread_create(&decoding, NULL, decode, &t) != 0;
    missing += pthread_create(&cancelling, NULL, cancel, &t) != 0;
    CHECK(missing == 0);
    run_prompts(&t, name);
    t.over = true;
    pthread_join(decoding, NULL);
    pthread_join(cancelling, NULL);
    CHECK(pf_model_info(m)->n_gpus == N_GPUS - (lost >= 0), "%s: %d devices are left", name, pf_model_info(m)->n_gpus);
    pf_session_close(&t.prompt);
    pf_session_close(&t.singles);
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    path = argv[1];
    expected = expected_logits(path, tokens, N_TOKENS, piece_at, SINGLES + 1, &n_vocab);
    for (int lost = -1; lost < N_GPUS; lost++) {
        run("all on two devices", false, lost);
        run("a part of it, on two devices", true, lost);
    }
    free(expected);
    return check_status();
}

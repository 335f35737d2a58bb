/* The next turn of a long conversation does as much as that of a short one, but for attention: it evaluates what is
 * new, and saving it again writes what is new. What is counted is tokens and bytes; the times of the parts are printed,
 * for docs/performance.md.
 *
 * usage: turns MODEL.gguf N        N: tokens of the long conversation; the short one has an eighth */
#include <stdlib.h>
#include <string.h>

#include "base/pf_time.h"
#include "check.h"
#include "pfmoe.h"

enum { N_NEW = 40, N_BACK = 8, TURNS = 6, MOST_NEW = (TURNS + 1) * (N_NEW + 1) };

/* One turn: what it did, and its times in milliseconds. */
struct turn {
    int64_t  depth;
    uint64_t n_evaluated, n_saved;
    double   compare, prompt, token, sample, penalties, save, back;
};

static int32_t *tokens;
static int64_t  n_vocab;

static double ms_since(uint64_t begin)
{
    return (double)(pf_now_ns() - begin) * 1e-6;
}

static bool count_bytes(void *ctx, const void *data, size_t n)
{
    (void)data;
    *(uint64_t *)ctx += n;
    return true;
}

static uint64_t evaluated(const pf_model *m)
{
    struct pf_stats stats;
    pf_stats_get(m, &stats);
    return stats.n_tokens;
}

static void sample(pf_session *s, int penalty_last_n, double *ms)
{
    struct pf_sampler sp;
    int32_t tok;
    uint64_t begin = pf_now_ns();
    pf_sampler_init(&sp, 1);
    sp.penalty_last_n = penalty_last_n;
    sp.repeat_penalty = penalty_last_n ? 1.1f : 1;
    CHECK(pf_sample(&sp, s, &tok) == PF_OK, "%s", pf_last_error());
    *ms = ms_since(begin);
}

/* The conversation goes on from n tokens: a message, an answer's first token, and saving what is new. */
static struct turn take_turn(pf_model *m, pf_session *s, size_t n, struct pf_saved *saved)
{
    struct turn t = { .depth = (int64_t)n };
    uint64_t before = evaluated(m), begin = pf_now_ns();
    CHECK(pf_session_sync(s, tokens, n, NULL) == PF_OK, "%s", pf_last_error());
    t.compare = ms_since(begin);
    begin = pf_now_ns();
    CHECK(pf_session_sync(s, tokens, n + N_NEW, NULL) == PF_OK, "%s", pf_last_error());
    t.prompt = ms_since(begin);
    sample(s, 0, &t.sample);
    sample(s, 64, &t.penalties);
    begin = pf_now_ns();
    CHECK(pf_session_eval(s, tokens + n + N_NEW, 1, 0) == PF_OK, "%s", pf_last_error());
    t.token = ms_since(begin);
    t.n_evaluated = evaluated(m) - before;
    begin = pf_now_ns();
    CHECK(pf_session_save_more(s, saved, count_bytes, &t.n_saved) == PF_OK, "%s", pf_last_error());
    t.save = ms_since(begin);
    begin = pf_now_ns();
    CHECK(pf_session_rewind(s, (int64_t)n + N_NEW + 1 - N_BACK) == PF_OK, "%s", pf_last_error());
    t.back = ms_since(begin);
    return t;
}

static void keep_least(double *least, double ms)
{
    *least = ms < *least ? ms : *least;
}

/* The turns after a session of n tokens was saved: the last one's counts, and each part's least time but the first
 * turn's, which pays for what is done once. */
static struct turn turn_at(pf_model *m, size_t n)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    struct pf_saved saved = { 0 };
    struct turn t = { 0 };
    uint64_t whole = 0;
    pf_session_opts_init(&o);
    o.n_ctx = (int64_t)n + MOST_NEW;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_sync(s, tokens, n, NULL) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_save_more(s, &saved, count_bytes, &whole) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < TURNS; i++) {
        size_t at = n + i * (N_NEW + 1);
        CHECK(pf_session_sync(s, tokens, at, NULL) == PF_OK, "%s", pf_last_error());
        struct turn now = take_turn(m, s, at, &saved);
        keep_least(&now.compare, i > 1 ? t.compare : now.compare);
        keep_least(&now.prompt, i > 1 ? t.prompt : now.prompt);
        keep_least(&now.token, i > 1 ? t.token : now.token);
        keep_least(&now.sample, i > 1 ? t.sample : now.sample);
        keep_least(&now.penalties, i > 1 ? t.penalties : now.penalties);
        keep_least(&now.save, i > 1 ? t.save : now.save);
        keep_least(&now.back, i > 1 ? t.back : now.back);
        t = now;
    }
    printf("%7lld tokens, %.1f MB: comparing %.3f ms, %d tokens %.2f, one token %.2f, sampling %.3f, with penalties "
           "%.3f, saving %.2f MB %.2f, going back %.3f; %llu evaluated\n", (long long)t.depth, (double)whole * 1e-6,
           t.compare, N_NEW, t.prompt, t.token, t.sample, t.penalties, (double)t.n_saved * 1e-6, t.save, t.back,
           (unsigned long long)t.n_evaluated);
    pf_session_close(&s);
    return t;
}

int main(int argc, char **argv)
{
    pf_model *m;
    struct pf_model_opts o;
    if (argc != 3)
        return 2;
    size_t n = (size_t)atol(argv[2]);
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = -1;
    if (pf_model_open(&m, argv[1], &o) < 0) {
        printf("%s\n", pf_last_error());
        return 1;
    }
    n_vocab = pf_model_info(m)->n_vocab;
    tokens = malloc((n + MOST_NEW) * sizeof *tokens);
    for (size_t i = 0; i < n + MOST_NEW; i++)
        tokens[i] = (int32_t)((int64_t)(i * 2654435761u >> 7) % n_vocab);
    struct turn little = turn_at(m, n / 8), much = turn_at(m, n);
    CHECK(much.n_evaluated == little.n_evaluated && much.n_evaluated <= 2 * N_NEW, "%d and %d tokens evaluated",
          (int)little.n_evaluated, (int)much.n_evaluated);
    CHECK(much.n_saved <= little.n_saved + little.n_saved / 2, "%llu and %llu bytes saved",
          (unsigned long long)little.n_saved, (unsigned long long)much.n_saved);
    free(tokens);
    pf_model_close(&m);
    return check_status();
}

/* One of several cards is lost, at one call of CUDA after another, some of the time then a second one: a model that is
 * divided between them by layers, that shares its experts with the CPU, or whose experts or rows are divided, goes on
 * on the cards that are left and on the CPU. Every token comes with the bits of the CPU, sessions can be used on, gone
 * back into and opened, and nothing is left behind.
 *
 * usage: lost_cards MODEL.gguf GPUS EVERY [shared|pipeline|experts|apart|rows]
 *        at every EVERY'th call after the model was opened; the cards take turns. pipeline: shared, steps of which
 *        several are on cards at once; apart: experts are divided, and shared with the CPU */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "emulated.h"
#include "pfmoe.h"

enum { N_SHORT = 10, N_LONG = 52, N_DECODE = 4, N_BACK = 8 };

static const char *path;
static float      *expected;                 /* [n_tokens][n_vocab] */
static int32_t     tokens[N_LONG + N_DECODE];
static size_t      n_vocab;
static int         n_gpus, n_prompt = N_SHORT, n_tokens;
static bool        shared;
static enum pf_layout layout = PF_LAYOUT_LAYERS;

static pf_model *open_model(bool on_gpus)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.device = -1;
    o.n_threads = 2;
    o.streaming = on_gpus && shared;
    o.n_gpus = on_gpus ? n_gpus : 0;
    o.layout = layout;
    for (int i = 0; i < n_gpus; i++)
        o.gpus[i] = i;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    return m;
}

static pf_session *open_session_on(pf_model *m, int n_batch)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = n_tokens;
    o.n_batch = n_batch;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    return s;
}

static void expect(void)
{
    pf_model *m = open_model(false);
    if (!m)
        exit(1);
    n_vocab = (size_t)pf_model_info(m)->n_vocab;
    expected = malloc((size_t)n_tokens * n_vocab * sizeof *expected);
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    pf_session *s = open_session_on(m, n_tokens);
    CHECK(pf_session_eval(s, tokens, n_tokens, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < n_tokens; i++)
        memcpy(expected + (size_t)i * n_vocab, pf_session_logits_at(s, (size_t)i), n_vocab * sizeof *expected);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Evaluates [from, n_tokens): what is left of the prompt, then one token after the other. */
static void run(pf_session *s, int from, const char *name)
{
    for (int n; s && from < n_tokens; from += n) {
        n = from < n_prompt ? n_prompt - from : 1;
        pf_status st = pf_session_eval(s, tokens + from, (size_t)n, 0);
        CHECK(st == PF_OK, "%s, token %d: %s", name, from, pf_last_error());
        const float *want = expected + (size_t)(from + n - 1) * n_vocab;
        CHECK(st < 0 || memcmp(pf_session_logits(s), want, n_vocab * sizeof *want) == 0, "%s: other bits at token %d",
              name, from + n - 1);
    }
}

/* Calls of CUDA until a model was open, and until it was about to be closed. */
struct calls {
    uint64_t opening, all;
};

/* Card `first` is lost at call n, and `second` `gap` calls later; n 0, gap 0: none is. Returns the number of cards that
 * are left at the end. */
static int lose(int first, uint64_t n, int second, uint64_t gap, struct calls *calls)
{
    char name[96];
    struct pf_stats stats;
    snprintf(name, sizeof name, "card %d lost at call %d, card %d %d later", first, (int)n, second, (int)gap);
    emu_fail_at(0, false);
    emu_lose_at(first, n);
    if (gap)
        emu_lose_at(second, n + gap);
    pf_model *m = open_model(true);
    calls->opening = emu_n_calls();
    pf_session *s = open_session_on(m, n_prompt == N_LONG ? 17 : 4);         /* the prompt's steps follow one another */
    run(s, 0, name);
    CHECK(pf_session_rewind(s, N_BACK) == PF_OK, "%s: %s", name, pf_last_error());
    run(s, N_BACK, name);
    pf_session *other = open_session_on(m, 16);
    run(other, 0, name);
    pf_stats_get(m, &stats);
    calls->all = emu_n_calls();
    int left = pf_model_info(m)->n_gpus;
    CHECK(stats.device_lost == (left < n_gpus), "%s: %d cards are left", name, left);
    CHECK((left > 0) == (strcmp(pf_model_info(m)->backend, "cuda") == 0), "%s: it ended on %s", name,
          pf_model_info(m)->backend);
    pf_session_close(&other);
    pf_session_close(&s);
    pf_model_close(&m);
    CHECK(emu_n_live() == 0, "%s: %d pieces of memory are left", name, emu_n_live());
    return left;
}

/* Cards in turn, alone and with another one after them. Threads make calls that need not be as many in each run: so a
 * run may end before its loss comes, or with no call behind it that the card has a part in. */
static int lose_in_turn(const struct calls *all, uint64_t every)
{
    enum { LATE = 16 };                              /* calls from the end */
    struct calls made;
    int i = 0;
    for (uint64_t n = all->opening + 1; n <= all->all; n += every, i++) {
        int first = i % n_gpus, round = i / n_gpus, second = (first + 1 + round % (n_gpus - 1)) % n_gpus;
        uint64_t gap = round % 2 ? 1 + (uint64_t)i * 13 % 97 : 0;
        bool goes_on = layout == PF_LAYOUT_LAYERS || (shared && first > 0);
        int left = lose(first, n, second, gap, &made), most = goes_on ? n_gpus - 1 : 0;
        bool unseen = n + LATE > made.all && left == n_gpus;
        bool right = unseen || (gap ? left <= most : left == most);
        CHECK(right, "card %d lost at call %d: %d cards are left", first, (int)n, left);
    }
    return i;
}

int main(int argc, char **argv)
{
    struct calls calls;
    if (argc < 4)
        return 2;
    path = argv[1];
    n_gpus = atoi(argv[2]);
    const char *how = argc > 4 ? argv[4] : "";
    bool apart = strcmp(how, "apart") == 0;
    layout = apart || strcmp(how, "experts") == 0 ? PF_LAYOUT_EXPERTS : layout;
    layout = strcmp(how, "rows") == 0 ? PF_LAYOUT_ROWS : layout;
    n_prompt = strcmp(how, "pipeline") == 0 ? N_LONG : N_SHORT;
    n_tokens = n_prompt + N_DECODE;
    shared = apart || n_prompt == N_LONG || strcmp(how, "shared") == 0;
    expect();
    CHECK(lose(0, 0, 0, 0, &calls) == n_gpus, "a card was lost");
    printf("%d of %d calls\n", lose_in_turn(&calls, (uint64_t)atoll(argv[3])), (int)(calls.all - calls.opening));
    free(expected);
    return check_status();
}

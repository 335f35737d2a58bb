/* The perplexity of a text: how well a model guesses each of its tokens. For comparing files and types of keys and
 * values of one model; figures of models with different vocabularies do not compare.
 *
 *     text -> tokens | chunk 0 .......................... | chunk 1 ... | ...   what is left over is not used
 *                    | context: N/2 tokens | N/2 - 1 counted, each guessed from all in front of it in its chunk
 *
 * Where the tokenizer adds a BOS, one stands in front of the text, and one in the place of each chunk's first token.
 * With p the probability of a counted token and n their number over all chunks,
 *
 *     perplexity = exp(mean(-log p))      standard error = perplexity * sqrt((mean(log^2 p) - mean(log p)^2) / (n - 1))
 *
 * which is how llama.cpp counts. Sums are in double, in the order of the text. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

struct sums {
    double nll, nll2;            /* of -log p and its square */
    int    n;
};

static int fail(const char *what)
{
    complain("%s: %s", what, pf_last_error());
    return EXIT_FAILED;
}

/* The token that the model's tokenizer puts in front of a text, into *bos; false if it puts none. */
static bool find_bos(const pf_model *m, int32_t *bos)
{
    int32_t with[8], without[8];
    size_t n_with, n_without;
    if (pf_tokenize(m, "a", 1, PF_TOK_ADD_SPECIAL, with, 8, &n_with) < 0 ||
        pf_tokenize(m, "a", 1, 0, without, 8, &n_without) < 0 || n_with == 0 || n_without == 0)
        return false;
    *bos = with[0];
    return with[0] != without[0];
}

int text_read(struct text *t, const pf_model *m, const char *path)
{
    struct buf raw = { 0 };
    int32_t bos = 0;
    int status = EXIT_DONE;
    *t = (struct text){ 0 };
    if (!buf_read_file(&raw, path)) {
        complain("cannot read %s: %s", path, strerror(errno));
        return EXIT_FAILED;
    }
    size_t cap = raw.n + 16;                         /* a token has at least one byte; a space may come in front */
    t->has_bos = find_bos(m, &bos);
    t->tok = malloc((cap + 1) * sizeof *t->tok);
    if (!t->tok) {
        complain("no memory for the tokens of %s", path);
        status = EXIT_FAILED;
    } else if (pf_tokenize(m, buf_text(&raw), raw.n, 0, t->tok + t->has_bos, cap, &t->n) < 0) {
        status = fail(path);
    } else if (t->has_bos) {
        t->tok[0] = bos;
        t->n++;
    }
    buf_free(&raw);
    return status;
}

/* -log of the probability of token id. */
static double surprise(const float *logits, int64_t n_vocab, int32_t id)
{
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < n_vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[id];
}

/* tok: the chunk's tokens. Logits are kept for few rows at a time, since a vocabulary is large. */
static pf_status score_chunk(pf_session *s, int64_t n_vocab, const int32_t *tok, int n, struct sums *sums)
{
    enum { ROWS = 128 };
    int first = n / 2;
    pf_status st = pf_session_rewind(s, 0);
    if (st == PF_OK)
        st = pf_session_eval(s, tok, (size_t)first, 0);
    for (int done = first; st == PF_OK && done < n - 1; done += ROWS) {
        int rows = n - 1 - done < ROWS ? n - 1 - done : ROWS;
        st = pf_session_eval(s, tok + done, (size_t)rows, PF_LOGITS_ALL);
        for (int i = 0; st == PF_OK && i < rows; i++) {
            double v = surprise(pf_session_logits_at(s, (size_t)i), n_vocab, tok[done + i + 1]);
            sums->nll += v;
            sums->nll2 += v * v;
            sums->n++;
        }
    }
    return st;
}

static void fill(struct row *row, const struct sums *s)
{
    double mean = s->nll / s->n, variance = s->nll2 / s->n - mean * mean;
    row->n_scored = s->n;
    row->perplexity = exp(mean);
    row->perplexity_error = s->n > 1 && variance > 0 ? row->perplexity * sqrt(variance / (s->n - 1)) : 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int score(const struct test *t, pf_model *m, pf_session *s, const struct text *text, struct row *row)
{
    struct sums sums = { 0 };
    int n_chunks = (int)(text->n / (size_t)t->chunk);
    double begin = now();
    for (int c = 0; c < n_chunks; c++) {
        int32_t *tok = text->tok + (size_t)c * (size_t)t->chunk;
        if (text->has_bos)
            tok[0] = text->tok[0];
        if (score_chunk(s, pf_model_info(m)->n_vocab, tok, t->chunk, &sums) < 0)
            return fail("evaluation failed");
        fill(row, &sums);
        if (!isfinite(row->perplexity)) {
            complain("chunk %d of the text: a logit is not a finite number", c + 1);
            return EXIT_FAILED;
        }
        fprintf(stderr, "chunk %d of %d: perplexity so far %.4f ± %.4f\n", c + 1, n_chunks, row->perplexity,
                row->perplexity_error);
    }
    row->n_chunks = n_chunks;
    row->tok_s = (double)n_chunks * (t->chunk - 1) / (now() - begin);
    return EXIT_DONE;
}

int perplexity_run(const struct test *t, pf_model *m, const struct bench *o, struct row *row)
{
    struct text text;
    struct pf_session_opts so;
    pf_session *s = NULL;
    int status = text_read(&text, m, o->perplexity);
    test_name(t, row->test);
    row->n_prompt = t->chunk;
    row->n_batch = t->n_batch;
    row->sequences = 1;
    if (!status && text.n < (size_t)t->chunk) {
        complain("%s has %zu tokens; one chunk takes %d (see --ctx)", o->perplexity, text.n, t->chunk);
        status = EXIT_FAILED;
    }
    pf_session_opts_init(&so);
    so.n_ctx = t->chunk;
    so.n_batch = t->n_batch;
    so.kv_type = t->kv;
    if (!status && pf_session_open(&s, m, &so) < 0)
        status = fail("cannot open a session");
    if (!status)
        status = score(t, m, s, &text, row);
    pf_session_close(&s);
    free(text.tok);
    return status;
}

/* pfmoe-bench in five files, in the order in which a run goes through them:
 *
 *     bench_args.c: argv -> struct bench     pfmoe_bench.c: models, threads, budgets ..  ->  test after test
 *     bench_tests.c: a test -> struct row    bench_rows.c: a row -> a line of the form that was asked for
 *     bench_ppl.c:   a text's perplexity -> struct row
 *
 * One thread. Strings in struct bench are borrowed from argv; a row is plain data. */
#ifndef BENCH_H
#define BENCH_H

#include "program/opts.h"
#include "membw.h"
#include "pfmoe.h"

enum { MAX_SEQUENCES = 64, MAX_REPS = 100, MAX_TOKENS = 1 << 20 };

enum output { OUT_TABLE, OUT_MD, OUT_CSV, OUT_JSON, OUT_JSONL };

struct bench {
    struct settings shared;      /* options that pfmoe-run has, too: --isa, experts and reports. First (opt_row.h) */
    struct text_list models;
    const char *word;            /* one that follows no option: one more model */
    struct whole_list prompts, decodes, sequences, depths;
    struct whole_list both;      /* pairs of a prompt and what is decoded behind it */
    struct whole_list threads, vram_mb, n_batch, kv;     /* kv: KV_I16 .. */
    struct whole_list gpus;      /* used together; -1 alone: none */
    int         layout;          /* index into auto|layers|experts|rows, as enum pf_layout */
    int64_t     reps, ram_mb, slots;
    bool        streaming, progress;
    double      draft_sim;       /* probability that a draft is right; negative: drafts are real */
    const char *replay;          /* a routing trace instead of a model */
    const char *draft_replay;    /* a text that prompts and decoding go through, in place of random tokens */
    const char *perplexity;      /* a text whose perplexity is asked for instead of speed */
    int64_t     n_ctx;           /* tokens of one of its chunks */
    int         output;          /* enum output */
};

/* Ends the program over a mistake, and for --help. */
void bench_read_args(struct bench *o, int argc, char **argv);

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

/* A prompt of so many tokens, then so many decoded one by one, behind `depth` tokens that are there before the clock
 * starts; by n_sequences together, of which more than one only decode. Where chunk > 0, the perplexity of a text in
 * chunks of so many tokens, and nothing else. */
struct test {
    int depth, n_prompt, n_gen, n_sequences;
    int n_batch, chunk;
    enum pf_kv_type kv;
};

enum { MAX_NAME = 48 };
void test_name(const struct test *t, char name[MAX_NAME]);       /* "pp512", "tg128x4 @ d8192", "pp512+tg128" */

struct row {
    char   test[MAX_NAME], model[128], file[128], model_type[16], backend[16], isa[24], kv[8];
    char   commit[24], date[16], cpu[96], gpu[64], driver[48];       /* gpu and driver: "" where no GPU computed */
    char   gpus[24], layout[8];      /* "0,1", "layers", "experts" or "rows"; "" where no GPU computed, or one alone */
    int    threads, vram_mb, sequences, depth, n_prompt, n_gen, n_batch;
    double model_bytes, model_params;
    double tok_s, tok_s_min, tok_s_max, tok_s_stddev;
    double bytes_per_token, kv_bytes_per_token;                      /* keys and values are part of the first */
    double far_bytes_per_token;              /* of them, those for which the GPU has no room */
    double gb_s, machine_gb_s, bandwidth_share;
    double held, ram_gb_s, pcie_gb_s, joint_gb_s, roofline_tok_s, roofline_share;
    double most_together;        /* how many times the tok/s of one sequence so many can have, by their bytes */
    int    picks, n_experts;     /* picks of a step in a layer, of so many experts; 0: there are none */
    double expected_picks;       /* how many different experts these are, if routing is random */
    double launches, handoff_p50_us, handoff_p95_us;
    double perplexity, perplexity_error;                             /* of n_scored tokens; 0: a test of speed */
    int    n_chunks, n_scored;
    int    n_samples;
    double samples[MAX_REPS];    /* tok/s of each repetition, in their order */
    struct pf_stats stats;
};

/* Whether the model can be asked for the test at all; if not, says why. */
bool test_fits(const struct test *t, const struct pf_model_info *info);

/* Runs the test in sessions of its own and fills the row's measured part; path: the model's file. Returns an exit
 * status, and has complained if that is not EXIT_DONE. */
int test_run(const struct test *t, pf_model *m, const char *path, struct membw *bw, const struct bench *o,
             struct row *row);

/* The text at path as tokens, the one that stands in front of texts being first. An exit status; the caller frees tok
 * in any case. */
struct text {
    int32_t *tok;
    size_t   n;
    bool     has_bos;
};
int text_read(struct text *t, const pf_model *m, const char *path);

/* As test_run, for a test with chunk > 0; says on standard error how far it is. */
int perplexity_run(const struct test *t, pf_model *m, const struct bench *o, struct row *row);

bool on_gpu(const struct pf_model_info *info);

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Print in the form of `out`: what stands in front of all rows, a row (before: the one printed before it, NULL: none),
 * and what stands behind n of them. */
void rows_begin(enum output out);
void rows_print(enum output out, const struct row *r, const struct row *before);
void rows_end(enum output out, int n);

/* For the eye, on standard error: what the GPU, its experts and sequences together did, and what a share over 100%
 * means. */
void rows_remark(const struct row *r);

#endif

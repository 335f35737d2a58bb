/* A model whose file does not stay what it was, mapped and streamed: written to, cut short, replaced or gone between
 * two tokens, or written to while a token is computed. The call fails with PF_ECHANGED and one sentence, the sequence
 * stays, and once the file is again what it was the next call gives the bits that it would have given. So it is when
 * the drive stalls, but for PF_EIO.
 *
 * usage: test_changes MODEL.gguf DIRECTORY */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "expected.h"
#include "moe/place/placement.h"

enum { N_PROMPT = 12, N_STEPS = 16, N_TOKENS = N_PROMPT + N_STEPS, N_CTX = 64 };

static char    path[512], other[600];
static int32_t tokens[N_TOKENS];
static float  *expected;                     /* [N_STEPS + 1][n_vocab] after the prompt and after each token */
static size_t  n_vocab;
static uint8_t *bytes;                       /* the file's */
static size_t   n_bytes;
static struct stat was;

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static void read_file(const char *name)
{
    FILE *f = fopen(name, "rb");
    struct stat st;
    CHECK(f && fstat(fileno(f), &st) == 0, "%s", name);
    n_bytes = (size_t)st.st_size;
    bytes = malloc(n_bytes);
    CHECK(f && fread(bytes, 1, n_bytes, f) == n_bytes && fclose(f) == 0, "%s", name);
}

/* All of the file, or with `wrong` its second half, which is weights, with all bits turned over. */
static void write_file(const char *name, bool wrong)
{
    int fd = open(name, O_WRONLY | O_CREAT, 0600);
    uint8_t *copy = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        copy[i] = wrong && i > n_bytes / 2 ? (uint8_t)~bytes[i] : bytes[i];
    CHECK(fd >= 0 && pwrite(fd, copy, n_bytes, 0) == (ssize_t)n_bytes && close(fd) == 0, "%s", name);
    free(copy);
}

static void written_then(void)
{
    CHECK(utimensat(AT_FDCWD, path, (struct timespec[]){ was.st_atim, was.st_mtim }, 0) == 0, "%s", path);
}

static void overwrite(void)
{
    write_file(path, true);
}

static void cut_short(void)
{
    CHECK(truncate(path, (off_t)n_bytes / 2) == 0, "%s", path);
}

static void write_back(void)
{
    write_file(path, false);
    written_then();
}

static void replace(void)
{
    char wrong[700];
    snprintf(wrong, sizeof wrong, "%s.wrong", other);
    write_file(wrong, true);
    CHECK(rename(path, other) == 0 && rename(wrong, path) == 0, "%s", path);
}

static void take_away(void)
{
    CHECK(rename(path, other) == 0, "%s", path);
}

static void put_back(void)
{
    CHECK(rename(other, path) == 0, "%s", path);
}

static const struct change {
    const char *name;
    void (*make)(void), (*undo)(void);
} changes[] = {
    { "written to", overwrite, write_back }, { "cut short", cut_short, write_back },
    { "replaced", replace, put_back },       { "gone", take_away, put_back },
};

/* ---- The model --------------------------------------------------------------------------------------------------- */

static bool plans(struct pf_model_opts *o, uint64_t ram_bytes, struct pf_plan *plan)
{
    o->ram_bytes = ram_bytes;
    return pf_model_plan(path, o, NULL, plan) == PF_OK;
}

/* With slots for so many percent of what streams, on top of the least that works; below 0 the file is mapped. */
static pf_model *open_model(int percent, const struct pf_residency_setup *setup)
{
    pf_model *m = NULL;
    struct pf_plan plan;
    struct pf_model_opts o;
    uint64_t lo = 1, hi = (uint64_t)1 << 30;
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.device = -1;
    o.speeds = (struct pf_speeds){ 1e12, 3e10, 5e10, 5e9 };
    if (percent >= 0) {
        o.streaming = true;
        CHECK(plans(&o, hi, &plan), "%s", pf_last_error());
        uint64_t all = plan.slot_bytes;
        while (lo + 1 < hi)
            *(plans(&o, (lo + hi) / 2, &plan) ? &hi : &lo) = (lo + hi) / 2;
        o.ram_bytes = hi + all * (uint64_t)percent / 100;
    }
    CHECK(pf_model_open_with(&m, path, &o, setup) == PF_OK, "%s", pf_last_error());
    return m;
}

static size_t piece_at(int i)
{
    return i == 0 ? 0 : (size_t)(N_PROMPT + i - 1);
}

static pf_status step(pf_session *s, int i)
{
    return pf_session_eval(s, tokens + piece_at(i), piece_at(i + 1) - piece_at(i), 0);
}

static void logits_right(pf_session *s, int i, const char *when)
{
    const float *logits = pf_session_logits(s);
    CHECK(logits && memcmp(logits, expected + (size_t)i * n_vocab, n_vocab * sizeof *logits) == 0,
          "%s, step %d: other bits", when, i);
}

static void step_right(pf_session *s, int i, const char *when)
{
    CHECK(step(s, i) == PF_OK, "%s, step %d: %s", when, i, pf_last_error());
    logits_right(s, i, when);
}

/* The step fails with that status, says so in one line, and leaves the sequence. */
static void step_fails(pf_session *s, int i, pf_status why, const char *when)
{
    int64_t pos = pf_session_pos(s);
    pf_status st = step(s, i);
    CHECK(st == why, "%s, step %d: %d", when, i, st);
    CHECK(strstr(pf_last_error(), path) || why != PF_ECHANGED, "%s", pf_last_error());
    CHECK(pf_last_error()[0] && !strchr(pf_last_error(), '\n'), "%s", pf_last_error());
    CHECK(pf_session_pos(s) == pos, "%s, step %d: the sequence was at %" PRId64 ", now %" PRId64, when, i, pos,
          pf_session_pos(s));
}

/* ---- The cases --------------------------------------------------------------------------------------------------- */

/* Before the prompt, and then at every other token. */
static void test_between(int percent)
{
    pf_model *m = open_model(percent, NULL);
    pf_session *s = open_session(m, N_CTX);
    for (int i = 0; s && i < 8; i++) {
        const struct change *c = &changes[i / 2];
        if (i % 2 == 0) {
            c->make();
            step_fails(s, i, PF_ECHANGED, c->name);
            if (percent < 0)
                printf("%s\n", pf_last_error());
            step_fails(s, i, PF_ECHANGED, c->name);
            c->undo();
        }
        step_right(s, i, c->name);
    }
    pf_session_close(&s);
    pf_model_close(&m);
}

static void on_stage(void *ctx, const struct pf_stage_data *d)
{
    int *countdown = ctx;
    (void)d;
    if (--*countdown == 0)
        overwrite();
}

/* Written to while a token is computed: at its first stage, and a little later. */
static void test_within(int percent)
{
    int countdown = 0;
    pf_model *m = open_model(percent, NULL);
    pf_session *s = open_session(m, N_CTX);
    struct pf_trace_opts o = { .stages = 1u << PF_STAGE_LOGITS, .fn = on_stage, .ctx = &countdown };
    step_right(s, 0, "before");
    if (pf_model_info(m)->n_experts > 0) {
        CHECK(pf_trace_set(m, &o) == PF_OK, "%s", pf_last_error());
        for (int i = 1; i < 4; i++) {
            countdown = 1 + i % 2;
            step_fails(s, i, PF_ECHANGED, "written to meanwhile");
            write_back();
            step_right(s, i, "after it was written to meanwhile");
        }
    }
    pf_session_close(&s);
    pf_model_close(&m);
}

/* Tries the step until the drive has answered; returns how often it failed. */
static int step_slow(pf_session *s, int i)
{
    int64_t pos = pf_session_pos(s);
    int n_failed = 0;
    while (step(s, i) < 0 && ++n_failed < 100) {
        CHECK(strstr(pf_last_error(), "has not answered"), "%s", pf_last_error());
        CHECK(pf_session_pos(s) == pos, "step %d: the sequence moved", i);
        usleep(50000);
    }
    logits_right(s, i, "a drive that stalls");
    return n_failed;
}

/* A read comes ten times later than anyone waits; if it is one that nobody waits for, nothing fails. */
static void test_stall(void)
{
    int n_failed = 0;
    for (uint64_t late_at = 1; late_at < 40; late_at += 6) {
        struct pf_io_sim sim = { .seed = 3, .late_at = late_at, .late_ns = 200000000 };
        struct pf_residency_setup setup = { .io = pf_io_sim_open, .io_ctx = &sim, .policy = &pf_evict_nextuse,
                                            .stall_ns = 20000000 };
        pf_model *m = open_model(0, &setup);
        pf_session *s = open_session(m, N_CTX);
        for (int i = 0; s && i <= 4; i++)
            n_failed += step_slow(s, i);
        pf_session_close(&s);
        pf_model_close(&m);
    }
    printf("%d steps failed because the drive stalled\n", n_failed);
    CHECK(n_failed > 0, "no stall was seen");
}

int main(int argc, char **argv)
{
    static const int percents[] = { -1, 0, 30, 100 };
    if (argc != 3)
        return 2;
    snprintf(path, sizeof path, "%s/pfmoe-changes-%d.gguf", argv[2], (int)getpid());
    snprintf(other, sizeof other, "%s.other", path);
    read_file(argv[1]);
    write_file(path, false);
    CHECK(stat(path, &was) == 0, "%s", path);
    expected = expected_logits(path, tokens, N_TOKENS, piece_at, N_STEPS + 1, &n_vocab);
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        test_between(percents[i]);
        test_within(percents[i]);
    }
    test_stall();
    unlink(path);
    free(expected);
    free(bytes);
    return check_status();
}

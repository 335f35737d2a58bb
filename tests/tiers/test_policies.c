/* Replacement policies on traces of three kinds, against Belady's rule; and traces that are malformed.
 *
 *     uniform    every expert is equally likely: nobody can do better than the share of experts in memory
 *     skewed     some experts are popular, and tokens repeat experts of the token before, as real routing does
 *     cyclic     every expert is used in every pass, as in prompts: LRU's worst case */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "tiers/evict.h"
#include "tiers/trace.h"

enum { N_LAYERS = 8, N_EXPERT = 64, N_USED = 8, N_TOKENS = 400, N_POLICIES = 3 };
enum kind { UNIFORM, SKEWED, CYCLIC };

static uint64_t rng = 42;

static double next_unit(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng >> 11) * 0x1p-53;
}

static int pick_one(enum kind kind, int layer, const uint16_t *before)
{
    if (kind == SKEWED && before && next_unit() < 0.35)
        return before[(int)(next_unit() * N_USED)];
    double u = next_unit();
    int rank = (int)((kind == SKEWED ? u * u : u) * N_EXPERT);
    return (rank * 37 + layer * 11) % N_EXPERT;
}

static void make_trace(struct pf_trace *t, enum kind kind)
{
    for (int64_t visit = 0; visit < (int64_t)N_TOKENS * N_LAYERS; visit++) {
        uint16_t *picks = t->experts + visit * t->n_used;
        const uint16_t *before = visit >= N_LAYERS ? picks - (int64_t)N_LAYERS * t->n_used : NULL;
        for (int i = 0; i < t->n_used; i++) {
            int expert, j;
            do {
                expert = kind == CYCLIC ? i : pick_one(kind, (int)(visit % N_LAYERS), before);
                for (j = 0; j < i && picks[j] != expert; j++)
                    ;
            } while (j < i);
            picks[i] = (uint16_t)expert;
        }
    }
}

static double share(const struct pf_trace *t, int64_t n_slots, const struct pf_evict_ops *policy)
{
    uint64_t n_uses, n_hits;
    CHECK(pf_trace_hits(t, n_slots, policy, &n_uses, &n_hits) == PF_OK, "%s", pf_last_error());
    CHECK(n_uses == (uint64_t)t->n_tokens * N_LAYERS * (uint64_t)t->n_used, "uses");
    return (double)n_hits / (double)n_uses;
}

static void test_kind(enum kind kind)
{
    static const char *const names[] = { "uniform", "skewed", "cyclic" };
    struct pf_trace t = { N_LAYERS, N_EXPERT, kind == CYCLIC ? N_EXPERT : N_USED, N_TOKENS, NULL, NULL };
    t.experts = malloc((size_t)N_TOKENS * N_LAYERS * (size_t)t.n_used * sizeof *t.experts);
    make_trace(&t, kind);
    for (int eighths = 2; eighths <= 6; eighths += 2) {
        int64_t n_slots = (int64_t)N_LAYERS * N_EXPERT * eighths / 8;
        double best = share(&t, n_slots, NULL), of[N_POLICIES];
        printf("%-8s %d/8 of the experts fit: belady %.3f", names[kind], eighths, best);
        for (int i = 0; i < N_POLICIES; i++) {
            of[i] = share(&t, n_slots, pf_evict_at(i));
            printf("  %s %.3f", pf_evict_at(i)->name, of[i]);
            CHECK(of[i] <= best, "%s beats Belady: %.4f, %.4f", pf_evict_at(i)->name, of[i], best);
        }
        printf("\n");
        if (kind == UNIFORM)
            CHECK(fabs(of[0] - eighths / 8.0) < 0.05, "nextuse hits %.3f", of[0]);
        if (kind == SKEWED)
            CHECK(of[0] > of[2] && of[0] > 0.6 * best, "nextuse hits %.3f, lru %.3f, belady %.3f", of[0], of[2], best);
        if (kind == CYCLIC)
            CHECK(of[0] > 0.9 * best, "nextuse hits %.3f, belady %.3f", of[0], best);
    }
    free(t.experts);
}

static void test_belady_by_hand(void)
{
    /* One layer, two slots, one expert a token: 0 1 2 0 1: at 2 the farther one, 1, goes; 0 hits, 1 does not. */
    uint16_t experts[] = { 0, 1, 2, 0, 1 };
    struct pf_trace t = { 1, 3, 1, 5, experts, NULL };
    uint64_t n_uses, n_hits;
    CHECK(pf_trace_hits(&t, 2, NULL, &n_uses, &n_hits) == PF_OK && n_uses == 5 && n_hits == 1, "%d hits", (int)n_hits);
    CHECK(pf_trace_hits(&t, 2, &pf_evict_lru, &n_uses, &n_hits) == PF_OK && n_hits == 0, "%d hits of LRU", (int)n_hits);
    CHECK(pf_trace_hits(&t, 3, &pf_evict_lru, &n_uses, &n_hits) == PF_OK && n_hits == 2, "%d hits, all fit",
          (int)n_hits);
    CHECK(pf_trace_hits(&t, 0, NULL, &n_uses, &n_hits) == PF_EINVAL, "no slots");
}

static void test_files(void)
{
    static const uint8_t good[] = "PFTRACE1\1\0\0\0\4\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\3\0\0\0\0\0";
    char path[] = "/tmp/pfmoe-trace-XXXXXX";
    int fd = mkstemp(path);
    for (size_t n = 0; n < sizeof good; n++) {
        struct pf_trace t;
        CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, good, n, 0) == (ssize_t)n, "writing");
        pf_status st = pf_trace_read(&t, path);
        CHECK(n < 24 ? st == PF_EFORMAT : st == PF_OK && t.n_tokens == (n == 36), "%zu bytes: %d", n, st);
        pf_trace_free(&t);
    }
    struct pf_replay rows[8];
    int n = 0;
    CHECK(pf_trace_replay(path, 0, rows, 8, &n) == PF_OK && n == N_POLICIES + 1, "%d rows, %s", n, pf_last_error());
    CHECK(pwrite(fd, "\4", 1, 24) == 1 && pf_trace_replay(path, 0, rows, 8, &n) == PF_EFORMAT, "expert 4 of 4");
    CHECK(pwrite(fd, "\0", 1, 16) == 1 && pf_trace_replay(path, 0, rows, 8, &n) == PF_EFORMAT, "no experts used");
    close(fd);
    unlink(path);
}

/* A written trace reads back the same; a batch that was not appended leaves nothing; a full disk is one clear error. */
static void test_writer(void)
{
    const struct pf_trace_shape shape = { 2, 300, 2, 3 };
    const int32_t picks[2][3][2] = { { { 299, 1 }, { 2, 3 }, { 4, 5 } }, { { 6, 7 }, { 8, 9 }, { 256, 0 } } };
    const float weights[3][2] = { { 0.5f, 0.25f }, { 1, 2 }, { -1, 0 } };
    char path[] = "/tmp/pfmoe-trace-XXXXXX";
    pf_trace_writer *w = NULL;
    struct pf_trace t = { 0 };
    uint8_t bytes[PF_TRACE_HEADER_BYTES + 7 * PF_TRACE_PICK_BYTES];
    int fd = mkstemp(path);
    CHECK(pf_trace_writer_open(&w, path, &shape) == PF_OK, "%s", pf_last_error());
    pf_trace_writer_put(w, 0, 1, picks[0][2], weights[0]);           /* a step that failed: not appended */
    for (int rows = 3; rows >= 1; rows -= 2) {
        for (int il = 0; il < 2; il++)
            pf_trace_writer_put(w, il, rows, picks[il][0], weights[0]);
        CHECK(pf_trace_writer_append(w, rows) == PF_OK, "%s", pf_last_error());
    }
    CHECK(pf_trace_writer_close(&w) == PF_OK && !w, "%s", pf_last_error());
    CHECK(pf_trace_read(&t, path) == PF_OK && t.n_tokens == 4 && t.n_layers == 2 && t.n_expert == 300 && t.n_used == 2,
          "%d tokens: %s", (int)t.n_tokens, pf_last_error());
    for (int i = 0; i < 16; i++)
        CHECK(t.experts[i] == picks[i / 2 % 2][i / 4 % 3][i % 2], "pick %d is %d", i, t.experts[i]);
    pf_trace_free(&t);
    float weight = 0;
    CHECK(pread(fd, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes, "reading");
    memcpy(&weight, bytes + PF_TRACE_HEADER_BYTES + 5 * PF_TRACE_PICK_BYTES + 2, sizeof weight);
    CHECK(weight == 2, "a weight of %g", (double)weight);
    CHECK(pf_trace_writer_open(&w, "/nowhere/trace", &shape) == PF_EIO && !w, "a directory that does not exist");
    CHECK(pf_trace_writer_open(&w, "/dev/full", &shape) == PF_EIO && !w, "a full disk");
    CHECK(pf_trace_writer_close(&w) == PF_OK, "closing nothing");
    close(fd);
    unlink(path);
}

int main(void)
{
    test_kind(UNIFORM);
    test_kind(SKEWED);
    test_kind(CYCLIC);
    test_belady_by_hand();
    test_files();
    test_writer();
    return check_status();
}

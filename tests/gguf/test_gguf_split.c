/* Split models: the ways in which shards can fail to belong together. Numbers 63-72 and 86 continue gguf_cases.c's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "gguf_build.h"

static int n_failed;
static char dir[] = "/tmp/pfmoe-split-XXXXXX";

/* The split keys of one shard; -1 leaves a key out. */
struct shard {
    int no, count, n_tensors;
    const char *tensor;              /* NULL: none */
};

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_bytes(const char *name, const struct buf *b)
{
    FILE *f = fopen(path_of(name), "wb");
    if (!f || fwrite(b->p, 1, b->n, f) != b->n || fclose(f) != 0) {
        perror(name);
        exit(1);
    }
}

static void write_shard(const char *name, struct shard s)
{
    struct buf b = { 0 };
    put_header(&b, 3, s.tensor != NULL, (uint64_t)((s.no >= 0) + (s.count >= 0) + (s.n_tensors != -1)));
    if (s.no >= 0)
        put_kv_int(&b, "split.no", PF_GGUF_U16, s.no);
    if (s.count >= 0)
        put_kv_int(&b, "split.count", PF_GGUF_U16, s.count);
    if (s.n_tensors != -1)
        put_kv_int(&b, "split.tensors.count", PF_GGUF_I32, s.n_tensors);
    if (s.tensor) {
        put_tensor(&b, s.tensor, PF_F32, 32, 1, 0);
        pad_to(&b, 32);
        put_zeros(&b, 128);
    }
    write_bytes(name, &b);
    free(b.p);
}

static void expect(int no, const char *name, pf_status want, const char *says, const char *says_too)
{
    pf_gguf *g;
    pf_status st = pf_gguf_open(&g, path_of(name), 0);
    const char *said = st == PF_OK ? "nothing" : pf_last_error();
    if (st != want || (st < 0 && (!strstr(said, says) || !strstr(said, says_too)))) {
        printf("case %d: %s, said: %s\n", no, pf_strstatus(st), said);
        n_failed++;
    }
    pf_gguf_close(&g);
}

/* A good pair under the name's prefix, whose second shard may then be written over. */
static void write_pair(const char *prefix)
{
    char name[64];
    snprintf(name, sizeof name, "%s-00001-of-00002.gguf", prefix);
    write_shard(name, (struct shard){ 0, 2, 2, "t.a" });
    snprintf(name, sizeof name, "%s-00002-of-00002.gguf", prefix);
    write_shard(name, (struct shard){ 1, 2, 2, "t.b" });
}

static void test_good(void)
{
    pf_gguf *g;
    write_pair("good");
    n_failed += !survives_no_memory(path_of("good-00001-of-00002.gguf"));
    if (pf_gguf_open(&g, path_of("good-00001-of-00002.gguf"), 0) != PF_OK)
        return;
    const struct pf_tensor *b = pf_gguf_tensor(g, "t.b");
    if (pf_gguf_n_shards(g) != 2 || pf_gguf_n_tensors(g) != 2 || !b || b->shard != 1 || b->data[0] != 0 ||
        pf_gguf_verify(g) != PF_OK || pf_gguf_unchanged(g) != PF_OK) {
        printf("the good pair is not right: %s\n", pf_last_error());
        n_failed++;
    }
    pf_gguf_close(&g);
    /* The total may be missing, but not for other programs. */
    write_shard("few-00001-of-00002.gguf", (struct shard){ 0, 2, -1, "t.a" });
    write_shard("few-00002-of-00002.gguf", (struct shard){ 1, 2, -1, "t.b" });
    if (pf_gguf_open(&g, path_of("few-00001-of-00002.gguf"), 0) != PF_OK || !pf_gguf_warning(g, 0) ||
        !strstr(pf_gguf_warning(g, 0), "split.tensors.count is missing")) {
        printf("no warning of a missing split.tensors.count\n");
        n_failed++;
    }
    pf_gguf_close(&g);
    /* The first shard may hold metadata alone. */
    write_shard("meta-00001-of-00002.gguf", (struct shard){ 0, 2, 1, NULL });
    write_shard("meta-00002-of-00002.gguf", (struct shard){ 1, 2, 1, "t.b" });
    expect(0, "meta-00001-of-00002.gguf", PF_OK, "", "");
}

static void test_names(void)
{
    write_shard("unnamed.gguf", (struct shard){ 0, 2, 2, "t.a" });
    expect(63, "unnamed.gguf", PF_EFORMAT, "split.count is 2", "does not end in -00001-of-00002.gguf");
    write_shard("short-1-of-2.gguf", (struct shard){ 0, 2, 2, "t.a" });
    expect(63, "short-1-of-2.gguf", PF_EFORMAT, "split.count is 2", "does not end in");
    write_shard("name-00001-of-00003.gguf", (struct shard){ 0, 2, 2, "t.a" });
    expect(64, "name-00001-of-00003.gguf", PF_EFORMAT, "name says shard 1 of 3", "split.no and split.count say 1 of 2");
    write_shard("name-00002-of-00002.gguf", (struct shard){ 0, 2, 2, "t.a" });
    expect(64, "name-00002-of-00002.gguf", PF_EFORMAT, "name says shard 2 of 2", "say 1 of 2");
    expect(65, "good-00002-of-00002.gguf", PF_EINVAL, "shard 2 of 2", "opened by its first");
}

static void test_missing_shards(void)
{
    write_shard("lone-00001-of-00002.gguf", (struct shard){ 0, 2, 2, "t.a" });
    expect(66, "lone-00001-of-00002.gguf", PF_EIO, "lone-00002-of-00002.gguf", "cannot be opened");
    if (mkdir(path_of("lone-00002-of-00002.gguf"), 0700) == 0)
        expect(66, "lone-00001-of-00002.gguf", PF_EIO, "lone-00002-of-00002.gguf", "not a regular file");
    rmdir(path_of("lone-00002-of-00002.gguf"));
    if (mkfifo(path_of("lone-00002-of-00002.gguf"), 0600) == 0)
        expect(66, "lone-00001-of-00002.gguf", PF_EIO, "lone-00002-of-00002.gguf", "not a regular file");
}

static void test_keys(void)
{
    write_pair("no");
    write_shard("no-00002-of-00002.gguf", (struct shard){ -1, 2, 2, "t.b" });
    expect(67, "no-00001-of-00002.gguf", PF_EFORMAT, "no-00002-of-00002.gguf", "split.no is missing");
    write_shard("no-00002-of-00002.gguf", (struct shard){ 0, 2, 2, "t.b" });
    expect(67, "no-00001-of-00002.gguf", PF_EFORMAT, "no-00002-of-00002.gguf", "split.no is 0 where 1 is due");
    write_shard("no-00001-of-00002.gguf", (struct shard){ -1, 2, 2, "t.b" });
    expect(67, "no-00001-of-00002.gguf", PF_EFORMAT, "split.count is 2", "split.no is missing");
    write_pair("count");
    write_shard("count-00002-of-00002.gguf", (struct shard){ 1, 3, 2, "t.b" });
    expect(68, "count-00001-of-00002.gguf", PF_EFORMAT, "count-00002-of-00002.gguf", "split.count is 3");
    write_shard("many-00001-of-05000.gguf", (struct shard){ 0, 5000, 2, "t.b" });
    expect(68, "many-00001-of-05000.gguf", PF_EFORMAT, "split.count is 5000", "limit of 4096");
    write_shard("over.gguf", (struct shard){ 2, 2, 2, "t.b" });
    expect(69, "over.gguf", PF_EFORMAT, "split.no is 2", "not below split.count");
    write_shard("zero.gguf", (struct shard){ 0, 0, 1, "t.b" });
    expect(69, "zero.gguf", PF_EFORMAT, "split.no is 0", "split.count is 0");
    write_shard("alone.gguf", (struct shard){ 0, -1, 1, "t.b" });
    expect(69, "alone.gguf", PF_EFORMAT, "split.no is 0", "split.count is missing");
}

static void test_contents(void)
{
    write_pair("total");
    write_shard("total-00001-of-00002.gguf", (struct shard){ 0, 2, 3, "t.a" });
    expect(70, "total-00001-of-00002.gguf", PF_EFORMAT, "split.tensors.count is 3", "hold 2 tensors");
    write_shard("total-00001-of-00002.gguf", (struct shard){ 0, 2, -7, "t.a" });
    expect(70, "total-00001-of-00002.gguf", PF_EFORMAT, "split.tensors.count", "is -7");
    write_pair("same");
    write_shard("same-00002-of-00002.gguf", (struct shard){ 1, 2, 2, "t.a" });
    expect(71, "same-00001-of-00002.gguf", PF_EFORMAT, "tensor 't.a'", "in shard 1 too");
    write_pair("none");
    write_shard("none-00002-of-00002.gguf", (struct shard){ 1, 2, 2, NULL });
    expect(62, "none-00001-of-00002.gguf", PF_EFORMAT, "none-00002-of-00002.gguf", "n_tensors");
    write_shard("twice-00001-of-00002.gguf", (struct shard){ 0, 2, 2, "t.a" });
    if (symlink("twice-00001-of-00002.gguf", path_of("twice-00002-of-00002.gguf")) == 0)
        expect(72, "twice-00001-of-00002.gguf", PF_EFORMAT, "twice-00002-of-00002.gguf", "same file as shard 1");
    write_shard("loop-00001-of-00002.gguf", (struct shard){ 0, 2, 2, "t.a" });
    if (symlink("loop-00002-of-00002.gguf", path_of("loop-00002-of-00002.gguf")) == 0)
        expect(72, "loop-00001-of-00002.gguf", PF_EIO, "loop-00002-of-00002.gguf", "cannot be opened");
}

/* A shard that changes or goes away after the model was opened. */
static void test_change(void)
{
    pf_gguf *g;
    write_pair("live");
    if (pf_gguf_open(&g, path_of("live-00001-of-00002.gguf"), 0) != PF_OK) {
        n_failed++;
        return;
    }
    if (truncate(path_of("live-00002-of-00002.gguf"), 100) != 0 || pf_gguf_unchanged(g) != PF_ECHANGED ||
        !strstr(pf_last_error(), "live-00002-of-00002.gguf") || pf_gguf_verify(g) != PF_ECHANGED) {
        printf("case 86: a shorter shard was not noticed\n");
        n_failed++;
    }
    if (unlink(path_of("live-00002-of-00002.gguf")) != 0 || pf_gguf_unchanged(g) != PF_ECHANGED ||
        pf_gguf_verify(g) != PF_EIO) {
        printf("case 86: a removed shard was not noticed\n");
        n_failed++;
    }
    pf_gguf_close(&g);
}

/* Metadata alone: the other shards need not exist. */
static void test_vocab_only(void)
{
    pf_gguf *g;
    if (pf_gguf_open(&g, path_of("lone-00001-of-00002.gguf"), PF_GGUF_VOCAB_ONLY) != PF_OK ||
        pf_gguf_n_tensors(g) != 0 || pf_gguf_n_kv(g) != 3 || pf_gguf_tensor(g, "t.a")) {
        printf("metadata alone: %s\n", pf_last_error());
        n_failed++;
    }
    pf_gguf_close(&g);
}

int main(void)
{
    char command[64];
    struct pf_mem_stats stats;
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    test_good();
    test_names();
    test_missing_shards();
    test_keys();
    test_contents();
    test_change();
    test_vocab_only();
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command) != 0)
        n_failed++;
    pf_mem_stats_get(&stats);
    printf("%d failures, %d allocations left\n", n_failed, (int)stats.n_live);
    return n_failed || stats.n_live;
}

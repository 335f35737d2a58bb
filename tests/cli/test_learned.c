/* The file of learned deals (cli/learned.c): read back as it was written; damaged, cut short, of another machine, in a
 * place that cannot be written or read: ignored. usage: test_learned FOLDER, which is made and filled. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "program/learned.h"

static struct pf_learned full, out;

static bool same(const struct pf_learned *a, const struct pf_learned *b)
{
    bool ok = a->n_deals == b->n_deals && a->cpu_bytes_s == b->cpu_bytes_s && a->pcie_bytes_s == b->pcie_bytes_s;
    for (int i = 0; ok && i < a->n_deals; i++) {
        const struct pf_learned_deal *x = &a->deals[i], *y = &b->deals[i];
        double off = x->ns_per_byte - y->ns_per_byte;
        ok = x->n_experts == y->n_experts && x->n_whole == y->n_whole && x->n_down == y->n_down &&
             x->in_place == y->in_place && x->n_times == y->n_times &&
             off < 1e-6 && off > -1e-6;
    }
    return ok;
}

static void test_text(void)
{
    static const char *const wrong[] = {
        "", "null", "[]", "{}", "{\"of\":\"k\"}", "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1}",
        "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1,\"deals\":{}}",
        "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":\"x\",\"deals\":[]}",
        "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1,\"deals\":[[1,2,3,4,5]]}",
        "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1,\"deals\":[[1,2,3,0,4,5,6]]}",
        "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1,\"deals\":[[1,2,3,0,-4,5]]}",
        "{\"of\":\"k\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1,\"deals\":[[1,2,3,0,4,99999999999]]}",
        "{\"of\":\"other\",\"cpu_bytes_s\":1,\"pcie_bytes_s\":1,\"deals\":[]}",
    };
    struct buf text = { 0 };
    const char *key = "a \"machine\", a model";
    learned_print(&full, key, &text);
    CHECK(learned_parse(text.p, text.n, key, &out) && same(&full, &out), "not read back: %.200s", text.p);
    CHECK(!learned_parse(text.p, text.n, "another", &out), "of another machine");
    for (size_t n = 0; n + 2 < text.n; n++)
        CHECK(!learned_parse(text.p, n, key, &out), "cut short at %zu", n);
    for (size_t i = 0; i < text.n; i++)              /* whatever it says then: it ends */
        for (int bit = 0; bit < 8; bit++) {
            text.p[i] = (char)(text.p[i] ^ 1 << bit);
            learned_parse(text.p, text.n, key, &out);
            text.p[i] = (char)(text.p[i] ^ 1 << bit);
        }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(!learned_parse(wrong[i], strlen(wrong[i]), "k", &out), "%s", wrong[i]);
    buf_free(&text);
}

static void test_files(const char *folder)
{
    char cache[4096];
    snprintf(cache, sizeof cache, "%s/cache", folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    CHECK(learned_write_file("key", &full) && learned_read_file("key", &out) && same(&full, &out), "kept in %s", cache);
    CHECK(!learned_read_file("other key", &out), "another key has another file");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", folder, 1);
    CHECK(learned_write_file("key", &full) && learned_read_file("key", &out), "kept below the home folder");
    snprintf(cache, sizeof cache, "%s/.cache/pfmoe", folder);
    CHECK(access(cache, R_OK) == 0, "%s", cache);
    setenv("XDG_CACHE_HOME", "/dev/null/none", 1);
    CHECK(!learned_write_file("key", &full) && !learned_read_file("key", &out), "a place that cannot be");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK(!learned_write_file("key", &full) && !learned_read_file("key", &out), "no home");
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    full = (struct pf_learned){ .cpu_bytes_s = 131e9, .pcie_bytes_s = 55e9 };
    for (int n = 1; n <= 4; n++)
        for (int w = 0; w <= n; w++)
            full.deals[full.n_deals++] = (struct pf_learned_deal){ n, w, n - w, w % 2, (uint32_t)(7 * w + 1),
                                                                   0.0123 * (n + w) };
    mkdir(argv[1], 0700);
    test_text();
    test_files(argv[1]);
    return check_status();
}

/* Writes the cases to files, one each: `gguf_corpus FOLDER`. The fuzzer's corpus began as these. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_cases.h"

enum { MOST_BYTES = 16384 };         /* a corpus is of small files */

static int write_case(const char *folder, const char *name, void (*make)(struct buf *))
{
    struct buf b = { 0 };
    char path[1024];
    make(&b);
    int bad = 0;
    if (b.n <= MOST_BYTES) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        FILE *f = fopen(path, "wb");
        bad = !f || fwrite(b.p, 1, b.n, f) != b.n;
        bad |= f && fclose(f) != 0;
        if (bad)
            perror(path);
    }
    free(b.p);
    return bad;
}

int main(int argc, char **argv)
{
    int n_failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: gguf_corpus FOLDER\n");
        return 2;
    }
    for (int i = 0; i < n_bad_cases; i++)
        n_failed += write_case(argv[1], bad_cases[i].name, bad_cases[i].make);
    for (int i = 0; i < n_odd_cases; i++)
        n_failed += write_case(argv[1], odd_cases[i].name, odd_cases[i].make);
    return n_failed != 0;
}

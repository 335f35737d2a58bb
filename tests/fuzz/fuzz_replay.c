/* Runs a fuzz target over every file of a folder: the kept corpus as a test, with any compiler. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int replay(const char *path)
{
    enum { MOST_BYTES = 1 << 20 };
    uint8_t *bytes = malloc(MOST_BYTES);
    FILE *f = fopen(path, "rb");
    int ok = f && bytes;
    if (ok) {
        size_t n = fread(bytes, 1, MOST_BYTES, f);
        /* A block of just the right size, so that a sanitizer sees a read past its end. */
        uint8_t *exact = malloc(n ? n : 1);
        ok = exact != NULL;
        for (size_t i = 0; ok && i < n; i++)
            exact[i] = bytes[i];
        if (ok)
            LLVMFuzzerTestOneInput(exact, n);
        free(exact);
    } else {
        perror(path);
    }
    if (f)
        fclose(f);
    free(bytes);
    return ok;
}

int main(int argc, char **argv)
{
    int n_files = 0, n_failed = 0;
    DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        n_files++;
        n_failed += !replay(path);
    }
    closedir(d);
    printf("%d files, %d failures\n", n_files, n_failed);
    return n_failed || n_files == 0;
}

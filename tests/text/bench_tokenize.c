/* How fast a vocabulary opens and tokenizes: bench_tokenize VOCAB.gguf TEXT...
 *
 * Each text is tokenized as often as fits into a fifth of a second, with another first byte each time, and then as it
 * is; the best run counts. "runs" is the slowest of a megabyte of one character, of several kinds. Processor time of
 * this thread, so that other work on the machine matters less. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gguf/gguf.h"
#include "pfmoe.h"
#include "text/vocab.h"

enum { MAX_IDS = 8 << 20, LONG = 1 << 20 };
static int32_t ids[MAX_IDS];

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    printf("%s: %s\n", what, pf_last_error());
    exit(1);
}

/* A text that is new each time, by its first byte, or that comes again. */
static double best_s(const pf_vocab *v, char *text, size_t len, double budget, bool again, size_t *n)
{
    double best = 1e9;
    char first = text[0];
    for (double spent = 0; spent < budget;) {
        text[0] = again ? 'a' : (char)(text[0] + 1) & 0x7f;
        double t = cpu_s();
        pf_status st = pf_vocab_tokenize(v, text, len, 0, ids, MAX_IDS, n);
        if (st < 0 && st != PF_ESPACE)
            die("tokenize");
        t = cpu_s() - t;
        spent += t;
        best = t < best ? t : best;
    }
    text[0] = first;
    return best;
}

static void bench_file(const pf_vocab *v, const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(16 << 20);
    size_t n, len = f && text ? fread(text, 1, 16 << 20, f) : 0;
    if (!len)
        die(path);
    fclose(f);
    double s = best_s(v, text, len, 0.2, false, &n), again = best_s(v, text, len, 0.1, true, &n);
    const char *slash = strrchr(path, '/');
    printf("  %-24s %7.1f MB/s, %.2f bytes a token; again %.1f MB/s\n", slash ? slash + 1 : path,
           (double)len / s * 1e-6, (double)len / (double)n, (double)len / again * 1e-6);
    free(text);
}

static void bench_runs(const pf_vocab *v)
{
    static const char *const units[] = { "a", " ", "\n", "1", ".", "\xC3\xA9", "\xCC\x81", "\xE4\xBD\xA0",
        "\xE3\x80\x80", "\xFF", "aA" };
    static char text[LONG];
    double worst = 0;
    size_t worst_i = 0, n;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        for (size_t k = 0; k < LONG; k++)
            text[k] = units[i][k % strlen(units[i])];
        double s = best_s(v, text, LONG, 1e-6, false, &n);
        if (s > worst) {
            worst = s;
            worst_i = i;
        }
    }
    printf("  %-24s %7.1f MB/s, of unit %zu\n", "runs", LONG / worst * 1e-6, worst_i);
}

int main(int argc, char **argv)
{
    pf_gguf *g;
    pf_vocab *v;
    double t0 = cpu_s();
    if (argc < 2 || pf_gguf_open(&g, argv[1], PF_GGUF_VOCAB_ONLY) < 0)
        die("open");
    double t1 = cpu_s();
    if (pf_vocab_open(&v, g) < 0 || !v)
        die("vocabulary");
    printf("%s: reader %.3f s, vocabulary %.3f s\n", argv[1], t1 - t0, cpu_s() - t1);
    pf_gguf_close(&g);
    for (int i = 2; i < argc; i++)
        bench_file(v, argv[i]);
    bench_runs(v);
    pf_vocab_close(&v);
    return 0;
}

/* The harness's main: options, levels, and a name for a crash. See check.h. */
#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/pf_cpu.h"

static char doing[256] = "nothing";

void check_doing(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(doing, sizeof doing, format, args);
    va_end(args);
}

static void say(const char *text)
{
    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        _exit(3);
}

static void on_crash(int signal_number)
{
    say(signal_number == SIGILL ? "illegal instruction in: " : "crash in: ");
    say(doing);
    say("\n");
    _exit(1);
}

static bool found_any;

bool check_wants(const struct check_opts *o, const char *name)
{
    bool wants = !o->only || strcasecmp(o->only, name) == 0;
    found_any |= wants;
    return wants;
}

bool check_runs(const struct check_opts *o, const struct pf_kernels *level)
{
    return (level->need & ~o->isa) == 0;
}

uint64_t check_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void print_levels(const struct check_opts *o)
{
    printf("levels:");
    for (int i = 0; pf_kernels_level(i); i++)
        printf(" %s%s", pf_kernels_level(i)->name, check_runs(o, pf_kernels_level(i)) ? "" : " (not on this CPU)");
    printf("\n");
}

int main(int argc, char **argv)
{
    struct check_opts o = { .seed = check_now_ns() ^ (uint64_t)getpid() << 32, .isa = pf_cpu_isa() };
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            bench = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            o.seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            o.only = argv[++i];
        else {
            fprintf(stderr, "usage: kernel_check [--seed N] [--only NAME] [--bench]\n");
            return 2;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGSEGV, on_crash);
    signal(SIGBUS, on_crash);
    signal(SIGILL, on_crash);

    printf("seed %llu\n", (unsigned long long)o.seed);
    print_levels(&o);
    int n_failed = 0;
    if (bench) {
        bench_float(&o);
        bench_i16(&o);
        bench_latent(&o);
        bench_products(&o);
    } else {
        n_failed = check_float(&o) + check_i16(&o) + check_latent(&o) + check_products(&o);
    }
    if (!found_any) {
        fprintf(stderr, "--only %s: no such type or entry\n", o.only);
        return 2;
    }
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}

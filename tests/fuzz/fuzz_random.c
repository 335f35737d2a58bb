/* Runs a fuzz target on inputs that a seed makes: bounded, and with any compiler. An input that crashes, or takes
 * longer than MOST_SECONDS, says its number.
 *
 * usage: random SEED COUNT [FIRST]    inputs FIRST (0) to COUNT - 1 of the seed */
#include "fuzz.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_BYTES = 96, MOST_SECONDS = 20 };

static volatile unsigned long long running;

static uint64_t step(uint64_t *state)        /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* An input that aborts, crashes or does not end says which it was. */
static void died(int sig)
{
    static char line[96];
    int n = snprintf(line, sizeof line, "input %llu: signal %d\n", running, sig);
    ssize_t written = write(2, line, (size_t)n);
    (void)written;
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run(uint64_t seed, uint64_t number)
{
    static uint8_t bytes[MOST_BYTES];
    uint64_t state = seed * 0xD1342543DE82EF95u + number;
    size_t n = (size_t)(4 + step(&state) % (MOST_BYTES - 4));
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)step(&state);
    running = number;
    alarm(MOST_SECONDS);
    LLVMFuzzerTestOneInput(bytes, n);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s SEED COUNT [FIRST]\n", argv[0]);
        return 2;
    }
    uint64_t seed = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10),
             first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    int signals[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], died);
    for (uint64_t i = first; i < count; i++)
        run(seed, i);
    printf("%llu inputs of seed %llu\n", (unsigned long long)(count - first), (unsigned long long)seed);
    return 0;
}

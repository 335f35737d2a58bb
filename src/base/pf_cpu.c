/* CPU detection through the compiler's cpuid builtins and /proc. See pf_cpu.h. */
#define _GNU_SOURCE
#include "base/pf_cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pfmoe.h"

/* Asked of cpuid itself: not every compiler's builtin knows the name. That the system saves the registers is asked
 * with AVX2. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

uint32_t pf_cpu_isa(void)
{
    uint32_t isa = PF_ISA_SCALAR;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        isa |= PF_ISA_AVX2;
    if ((isa & PF_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= PF_ISA_AVX512;
    if ((isa & PF_ISA_AVX512) && __builtin_cpu_supports("avx512vnni"))
        isa |= PF_ISA_VNNI;
    return isa;
}

int pf_cpu_n_usable(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

void pf_cpu_name(char *out, size_t cap)
{
    char line[256];
    if (cap)
        out[0] = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0)
            continue;
        const char *value = strchr(line, ':');
        if (value)
            snprintf(out, cap, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    fclose(f);
}

uint64_t pf_cpu_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

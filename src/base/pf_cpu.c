/* CPU detection through the compiler's cpuid builtins and /proc. See pf_cpu.h. */
#define _GNU_SOURCE
#include "base/pf_cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pfmoe.h"

/* Older clangs have no name for this one. Asked after AVX2, which says that the system saves the wide registers. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Older compilers have no name for AVX-VNNI. Leaf 7 of cpuid says in eax whether it has a second part, with its bit. */
static bool has_avxvnni(void)
{
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
           (a & AVX_VNNI);
}

/* Has the CPU AMX, and does the kernel let this process use its registers? It refuses where it does not know them. */
static bool has_amx(void)
{
    enum { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_TILE) && (d & AMX_INT8) &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

uint32_t pf_cpu_isa(void)
{
    uint32_t isa = PF_ISA_SCALAR;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        isa |= PF_ISA_AVX2;
    if ((isa & PF_ISA_AVX2) && has_avxvnni())
        isa |= PF_ISA_AVXVNNI;
    if ((isa & PF_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= PF_ISA_AVX512;
    if ((isa & PF_ISA_AVX512) && __builtin_cpu_supports("avx512vnni"))
        isa |= PF_ISA_VNNI;
    if ((isa & PF_ISA_VNNI) && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
        __builtin_cpu_supports("gfni"))
        isa |= PF_ISA_VBMI;
    if ((isa & PF_ISA_VNNI) && has_amx())
        isa |= PF_ISA_AMX;
    return isa;
}

/* The first hardware thread that shares cpu's core; cpu itself where the system does not say. */
static int first_sibling(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f)
        return cpu;
    if (fscanf(f, "%d", &first) != 1)
        first = cpu;
    fclose(f);
    return first;
}

int pf_cpu_n_cores(void)
{
    cpu_set_t usable, cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof usable, &usable) != 0)
        return 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &usable))
            CPU_SET(first_sibling(cpu), &cores);
    int n = CPU_COUNT(&cores);
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

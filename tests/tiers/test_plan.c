/* The planner on numbers alone, for a machine that is not this one; and the memory that cgroups leave, on made-up trees. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "tiers/plan.h"

#define MB ((uint64_t)1000000)

static void test_plans(void)
{
    /* 60 GB, of it 57 in 4608 experts, as gpt-oss-120b. */
    const struct pf_plan_sizes s = { 60000 * MB, 57000 * MB, 57100 * MB, 13 * MB, 4608, 4000 * MB, 1800 * MB, 1000 * MB };
    struct pf_plan_budget b = { 64000 * MB, false, false, 50e9, 5e9 };
    struct pf_plan p;
    CHECK(pf_plan_make(&s, &b, &p) == PF_OK && p.resident && p.limit == PF_TIER_RAM && p.tok_s == 12.5, "%g tok/s", p.tok_s);
    double before = p.tok_s;
    for (uint64_t ram = 61000; ram >= 4013; ram -= 100) {
        b.ram_bytes = ram * MB - 1;
        CHECK(pf_plan_make(&s, &b, &p) == PF_OK && !p.resident, "%s", pf_last_error());
        CHECK(p.tok_s <= before && p.tok_s > 0, "less memory, more speed: %g, %g", p.tok_s, before);
        CHECK(p.tiers[PF_TIER_RAM].bytes + p.tiers[PF_TIER_DISK].bytes == s.weight_bytes, "every byte has a place");
        CHECK(3000 * MB + p.other_bytes + p.slot_bytes <= b.ram_bytes, "the budget holds");
        before = p.tok_s;
    }
    CHECK(p.limit == PF_TIER_DISK, "the drive decides");
    b.ram_bytes = 4012 * MB;
    CHECK(pf_plan_make(&s, &b, &p) == PF_ENOMEM, "one slab does not fit");
    b.ram_bytes = 60000 * MB;
    b.no_nvme = true;
    CHECK(pf_plan_make(&s, &b, &p) == PF_ENOMEM, "no drive");
    b = (struct pf_plan_budget){ 64000 * MB, true, false, 50e9, 5e9 };
    CHECK(pf_plan_make(&s, &b, &p) == PF_OK && !p.resident && p.slot_bytes < s.slots_all, "streaming");
}

static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

static void test_limits(void)
{
    char root[] = "/tmp/pfmoe-limits-XXXXXX", command[64];
    if (!mkdtemp(root))
        return;
    put(root, "proc/meminfo", "MemTotal: 20000000 kB\nMemAvailable: 10000000 kB\n");
    CHECK(pf_ram_available(root) == 9216000000u, "%llu", (unsigned long long)pf_ram_available(root));
    put(root, "proc/self/cgroup", "3:cpu:/x\n2:memory:/a/b\n0::/c\n");
    put(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3000000000\n");
    put(root, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1500000000\n");
    put(root, "sys/fs/cgroup/memory/a/memory.stat", "cache 1\ntotal_cache 500000000\n");
    CHECK(pf_ram_available(root) == 1800000000u, "%llu", (unsigned long long)pf_ram_available(root));
    put(root, "sys/fs/cgroup/c/memory.max", "1000000000\n");
    put(root, "sys/fs/cgroup/c/memory.current", "100000000\n");
    put(root, "sys/fs/cgroup/c/memory.stat", "anon 1\nfile 100000000\n");
    CHECK(pf_ram_available(root) == 900000000u, "%llu", (unsigned long long)pf_ram_available(root));
    put(root, "sys/fs/cgroup/c/memory.max", "max\n");
    CHECK(pf_ram_available(root) == 1800000000u, "%llu", (unsigned long long)pf_ram_available(root));
    put(root, "proc/meminfo", "MemAvailable: 100000000 kB\n");
    put(root, "proc/self/cgroup", "");
    CHECK(pf_ram_available(root) == 102400000000u - 6000000000u, "%llu", (unsigned long long)pf_ram_available(root));
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0, "removing %s", root);
}

int main(void)
{
    test_plans();
    test_limits();
    return check_status();
}

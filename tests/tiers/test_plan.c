/* The planner on numbers alone, for a machine that is not this one; and the memory that cgroups leave, on made-up
 * trees. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pf_cpu.h"
#include "check.h"
#include "tiers/plan.h"

#define MB ((uint64_t)1000000)

/* 60 GB, of it 57 in 4608 experts. */
static const struct pf_plan_sizes gpt_oss_120b = {
    .weight_bytes = 60000 * MB, .slab_bytes = 57000 * MB, .slots_all = 57100 * MB, .slots_least = 13 * MB,
    .n_slabs = 4608, .token_bytes = 4000 * MB, .token_slab_bytes = 1800 * MB, .other_bytes = 1000 * MB,
    .device_bytes = 1000 * MB, .device_least_bytes = 1000 * MB, .experts = true };
static const struct pf_speeds prices = { 1000e9, 25e9, 50e9, 5e9 };

/* Keys and values that the GPU has no room for lie in RAM: they send nothing to the CPU, and are weighed against
 * experts. */
static void test_far(void)
{
    struct pf_plan_sizes s = gpt_oss_120b;
    struct pf_plan_budget b = { 8000 * MB, 96000 * MB, false, false, prices };
    struct pf_plan p;
    struct pf_plan_choice how;
    s.device_bytes = s.other_bytes = 20000 * MB;
    s.device_least_bytes = 600 * MB;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && how.how == PF_HOW_SHARED && p.far_bytes == 15000 * MB &&
          p.other_bytes == 5000 * MB && p.vram_slot_bytes == 0 && p.resident, "%d: %llu far, %llu near", (int)how.how,
          (unsigned long long)p.far_bytes, (unsigned long long)p.other_bytes);
    b.vram_bytes = 70000 * MB;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && how.how == PF_HOW_SHARED && p.far_bytes == 0 &&
          p.vram_slot_bytes == 47000 * MB, "experts cost less to read from RAM: %d", (int)how.how);
    b.speeds.pcie_bytes_s = 50e9;
    s.token_slab_bytes = 40000 * MB;
    s.token_bytes = 43000 * MB;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && how.how == PF_HOW_DEVICE && p.far_bytes == 10000 * MB,
          "experts that all are read cost more: %d, %llu far", (int)how.how, (unsigned long long)p.far_bytes);
    b.vram_bytes = 3500 * MB;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && how.how == PF_HOW_CPU && p.far_bytes == 0,
          "not even the least fits");
}

static void test_plans(void)
{
    const struct pf_plan_sizes s = gpt_oss_120b;
    struct pf_plan_budget b = { 0, 64000 * MB, false, false, prices };
    struct pf_plan p;
    struct pf_plan_choice how;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && p.resident && p.limit == PF_TIER_RAM && p.tok_s == 12.5,
          "%g tok/s",
          p.tok_s);
    double before = p.tok_s;
    for (uint64_t ram = 61000; ram >= 4013; ram -= 100) {
        b.ram_bytes = ram * MB - 1;
        CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && !p.resident, "%s", pf_last_error());
        CHECK(p.tok_s <= before && p.tok_s > 0, "less memory, more speed: %g, %g", p.tok_s, before);
        CHECK(p.tiers[PF_TIER_RAM].bytes + p.tiers[PF_TIER_DISK].bytes == s.weight_bytes, "every byte has a place");
        CHECK(3000 * MB + p.other_bytes + p.slot_bytes <= b.ram_bytes, "the budget holds");
        before = p.tok_s;
    }
    CHECK(p.limit == PF_TIER_DISK, "the drive decides");
    b.ram_bytes = 4012 * MB;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_ENOMEM, "one slab does not fit");
    b.ram_bytes = 60000 * MB;
    b.no_nvme = true;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_ENOMEM, "no drive");
    b = (struct pf_plan_budget){ 0, 64000 * MB, true, false, prices };
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && !p.resident && p.slot_bytes < s.slots_all, "streaming");
}

/* More of a GPU is never slower; the budgets hold; every byte has one place. */
static void test_gpu(void)
{
    const struct pf_plan_sizes s = gpt_oss_120b;
    struct pf_plan_budget b = { 0, 32000 * MB, false, false, prices };
    struct pf_plan p;
    struct pf_plan_choice how;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && p.vram_budget_bytes == 0 && p.limit == PF_TIER_DISK, "no GPU");
    double before = p.tok_s;
    for (uint64_t vram = 1000; vram <= 62000; vram += 500) {
        b.vram_bytes = vram * MB;
        CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK, "%s", pf_last_error());
        bool used = vram >= 4000;
        uint64_t bytes = 0, n_slabs = 0;
        for (int t = 0; t < PF_N_TIERS; t++) {
            bytes += p.tiers[t].bytes;
            n_slabs += p.tiers[t].n_slabs;
        }
        CHECK(bytes == s.weight_bytes && n_slabs == s.n_slabs, "%d MB: %llu bytes have a place", (int)vram,
              (unsigned long long)bytes);
        CHECK((p.vram_budget_bytes > 0) == used, "%d MB: the GPU is%s used", (int)vram, used ? " not" : "");
        CHECK(!used || p.tiers[PF_TIER_VRAM].bytes + p.other_bytes <= b.vram_bytes, "%d MB: the GPU is too full",
              (int)vram);
        CHECK(p.slot_bytes <= b.ram_bytes, "memory is too full");
        CHECK(vram != 4000 || p.slot_bytes == b.ram_bytes - s.other_bytes, "weights of the GPU take memory, too: %llu",
              (unsigned long long)p.slot_bytes);
        CHECK(p.tok_s >= before * 0.99, "%d MB: more of a GPU, less speed: %g, %g", (int)vram, p.tok_s, before);
        before = p.tok_s;
    }
    CHECK(p.resident && p.tiers[PF_TIER_VRAM].n_slabs == s.n_slabs && p.limit == PF_TIER_VRAM && p.tok_s > 200,
          "all in the GPU: %g", p.tok_s);
    b = (struct pf_plan_budget){ 12000 * MB, 64000 * MB, false, false, prices };
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && p.resident && p.limit == PF_TIER_RAM &&
          p.vram_slot_bytes == 8000 * MB,
          "a card of 12 GB");
    b.streaming = true;
    CHECK(pf_plan_make(&s, &b, &p, &how) == PF_OK && !p.resident, "streaming");

    struct pf_plan_sizes dense = { .weight_bytes = 40000 * MB, .slab_bytes = 39000 * MB, .slots_all = 39000 * MB,
                                   .slots_least = 500 * MB, .n_slabs = 80, .token_bytes = 40000 * MB,
                                   .token_slab_bytes = 39000 * MB, .other_bytes = 1000 * MB,
                                   .device_bytes = 1000 * MB, .device_least_bytes = 1000 * MB };
    b = (struct pf_plan_budget){ 24000 * MB, 64000 * MB, false, false, prices };
    CHECK(pf_plan_make(&dense, &b, &p, &how) == PF_OK && p.vram_budget_bytes == 0,
          "a dense model that nobody has cut stays with the CPU");
    dense.cut_slabs = 40;
    dense.cut_slab_bytes = 19500 * MB;
    dense.cut_bytes = 500 * MB;
    dense.slots_all = 19500 * MB;            /* of the other half */
    CHECK(pf_plan_make(&dense, &b, &p, &how) == PF_OK && p.resident && p.tiers[PF_TIER_VRAM].n_slabs == 40 &&
          p.tiers[PF_TIER_VRAM].bytes == 20000 * MB && p.tiers[PF_TIER_RAM].n_slabs == 40 &&
          p.tiers[PF_TIER_RAM].bytes == 20000 * MB,
          "half of a dense model in the GPU");
    double both = 20e9 / prices.vram_bytes_s + 20e9 / prices.ram_bytes_s;
    CHECK(p.limit == PF_TIER_RAM && p.tok_s > 0.999 / both && p.tok_s < 1.001 / both, "one half after the other: %g",
          p.tok_s);
    b.ram_bytes = 10000 * MB;
    CHECK(pf_plan_make(&dense, &b, &p, &how) == PF_OK && !p.resident && p.limit == PF_TIER_DISK &&
          p.tiers[PF_TIER_DISK].n_slabs > 15 &&
          p.tiers[PF_TIER_VRAM].n_slabs + p.tiers[PF_TIER_RAM].n_slabs + p.tiers[PF_TIER_DISK].n_slabs == 80,
          "a third in neither");
    b.ram_bytes = 64000 * MB;
    b.vram_bytes = 48000 * MB;
    dense.cut_whole = true;
    CHECK(pf_plan_make(&dense, &b, &p, &how) == PF_OK && p.limit == PF_TIER_VRAM && p.tok_s == 25,
          "a whole one does not: %g",
          p.tok_s);
}

/* Measured prices of any machine are numbers that a machine can have. */
static void test_prices(void)
{
    char path[] = "/tmp/pfmoe-price-XXXXXX", block[4096] = { 1 };
    int fd = mkstemp(path);
    for (int i = 0; i < 2048; i++)
        CHECK(write(fd, block, sizeof block) == (ssize_t)sizeof block, "writing %s", path);
    close(fd);
    double ram = pf_price_ram(2), disk = pf_price_disk(path);
    unlink(path);
    CHECK(ram > 1e8 && ram < 1e13, "%g bytes a second", ram);
    CHECK(disk > 1e6 && disk < 1e12, "%g bytes a second", disk);
    CHECK(pf_price_disk("/nowhere") == 0, "no such file");
    printf("memory %.1f GB/s, drive %.2f GB/s\n", ram * 1e-9, disk * 1e-9);
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
    uint64_t unseen = pf_ram_available(root);                /* no /proc */
    CHECK(unseen > 0 && unseen < pf_cpu_memory_bytes(), "%llu", (unsigned long long)unseen);
    put(root, "sys/fs/cgroup/memory.max", "100000000\n");
    put(root, "sys/fs/cgroup/memory.current", "60000000\n");
    CHECK(pf_ram_available(root) == 36000000, "%llu", (unsigned long long)pf_ram_available(root));
    put(root, "sys/fs/cgroup/memory.max", "max\n");
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
    test_far();
    test_gpu();
    test_limits();
    test_prices();
    return check_status();
}

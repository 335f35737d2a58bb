/* How much memory this process may take: see pf_ram_available in plan.h. Files that are not there say nothing. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "tiers/plan.h"

enum { PATH_BYTES = 1024, LINE_BYTES = 1024 };
static const uint64_t MAX_RESERVE = 6000000000u;

/* The number behind `key` (or the first of the file, if key is ""); UINT64_MAX if there is none. */
static uint64_t number_in(const char *path, const char *key)
{
    char line[LINE_BYTES];
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "re");
    while (f && value == UINT64_MAX && fgets(line, sizeof line, f)) {
        size_t n = strlen(key);
        char *end, *from = line + n;
        if (strncmp(line, key, n) != 0)
            continue;
        unsigned long long v = strtoull(from, &end, 10);
        value = end > from ? v : UINT64_MAX;
    }
    if (f)
        fclose(f);
    return value;
}

/* Memory that one cgroup leaves: its limit, less its use, plus its page cache, which can be dropped. */
static uint64_t left_in(const char *dir, const char *limit, const char *usage, const char *cache)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, limit);
    uint64_t max = number_in(path, "");
    snprintf(path, sizeof path, "%s/%s", dir, usage);
    uint64_t used = number_in(path, "");
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t cached = number_in(path, cache);
    if (max == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    used -= cached == UINT64_MAX || cached > used ? 0 : cached;
    return max > used ? max - used : 0;
}

/* The least that a cgroup and the groups above it leave. */
static uint64_t left_along(char *dir, size_t top, const char *limit, const char *usage, const char *cache)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        uint64_t left = left_in(dir, limit, usage, cache);
        least = left < least ? left : least;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < top)
            return least;
        *slash = 0;
    }
}

/* Without /proc nothing says which groups are this process's: a container sees its own at the top. */
static uint64_t left_at_top(const char *root)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/fs/cgroup", root);
    uint64_t v2 = left_in(path, "memory.max", "memory.current", "file ");
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/memory", root);
    uint64_t v1 = left_in(path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ");
    return v1 < v2 ? v1 : v2;
}

static uint64_t left_in_groups(const char *root)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    uint64_t least = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return left_at_top(root);
    while (fgets(line, sizeof line, f)) {
        char *name = strchr(line, ':'), *group = name ? strchr(name + 1, ':') : NULL;
        if (!group)
            continue;
        line[strcspn(line, "\n")] = 0;
        *group++ = 0;
        bool v2 = name[1] == 0;
        if (!v2 && strcmp(name + 1, "memory") != 0)
            continue;
        /* Inside a container the path may name groups that cannot be seen; the top then stands for them. */
        int top = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, v2 ? "" : "/memory");
        if (strcmp(group, "/") != 0)
            snprintf(path + top, sizeof path - (size_t)top, "%s", group);
        uint64_t left = v2 ? left_along(path, (size_t)top, "memory.max", "memory.current", "file ")
                           : left_along(path, (size_t)top, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "total_cache ");
        least = left < least ? left : least;
    }
    fclose(f);
    return least;
}

/* Without /proc: files that were read count as used here, so at least half of all is taken for available. */
static uint64_t available_by_sysinfo(void)
{
    struct sysinfo info;
    if (sysinfo(&info) != 0)
        return 0;
    uint64_t free_now = (uint64_t)info.freeram + info.bufferram, half = (uint64_t)info.totalram / 2;
    return (free_now > half ? free_now : half) * info.mem_unit;
}

uint64_t pf_ram_available(const char *root)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kib = number_in(path, "MemAvailable:"), groups = left_in_groups(root);
    uint64_t bytes = kib == UINT64_MAX ? available_by_sysinfo() : kib * 1024;
    bytes = groups < bytes ? groups : bytes;
    uint64_t reserve = bytes / 10 < MAX_RESERVE ? bytes / 10 : MAX_RESERVE;
    return bytes - reserve;
}

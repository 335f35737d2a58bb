/* See hosts.h. */
#define _GNU_SOURCE
#include "program/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 7700, HOST_BYTES = 300 };

/* What Open MPI, MPICH with its kin, and Slurm call the same things. */
static const char *const rank_names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL };
static const char *const size_names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL };
static const char *const beside_names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL };

static int from_environment(const char *const *names)
{
    for (; *names; names++)
        if (getenv(*names))
            return atoi(getenv(*names));
    return UNSET;
}

/* Host number i of the list, without its port; false past the last. */
static bool host_at(const char *list, int i, char *out)
{
    for (; i > 0 && list; i--) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    if (!list)
        return false;
    snprintf(out, HOST_BYTES, "%.*s", (int)strcspn(list, ","), list);
    char *colon = strrchr(out, ':');
    if (colon && !strchr(colon, ']'))
        *colon = 0;
    return true;
}

static int n_beside(const char *list, int rank)
{
    char own[HOST_BYTES], other[HOST_BYTES];
    int n = 0;
    for (int i = 0; i < rank && host_at(list, rank, own) && host_at(list, i, other); i++)
        n += strcmp(own, other) == 0;
    return n;
}

struct hosts hosts_of(const struct settings *s)
{
    char host[HOST_BYTES];
    struct hosts h = { .n = 0, .rank = s->rank != UNSET ? (int)s->rank : from_environment(rank_names) };
    if (!s->hosts && s->rank != UNSET)
        die(EXIT_USAGE, "--rank belongs to --hosts");
    if (!s->hosts)
        return (struct hosts){ .n = 1 };
    while (host_at(s->hosts, h.n, host)) {
        if (!*host)
            die(EXIT_USAGE, "--hosts: a host has no name");
        h.n++;
    }
    h.beside = n_beside(s->hosts, h.rank);
    if (h.n == 1 && from_environment(size_names) > 1) {
        h.n = from_environment(size_names);
        h.beside = from_environment(beside_names);
    }
    if (h.n > PF_MAX_GPUS)
        die(EXIT_USAGE, "--hosts: %d processes; at most %d can work together", h.n, (int)PF_MAX_GPUS);
    if (h.rank < 0 || h.rank >= h.n)
        die(EXIT_USAGE, "--hosts: of %d processes this one's number is wanted: --rank 0 to %d, or mpirun", h.n,
            h.n - 1);
    h.beside = h.beside > 0 ? h.beside : 0;
    return h;
}

void hosts_tell_nccl(const struct settings *s)
{
    char host[HOST_BYTES], at[HOST_BYTES + 16];
    int n = (int)strcspn(s->hosts, ",");
    host_at(s->hosts, 0, host);
    if ((size_t)n > strlen(host))
        snprintf(at, sizeof at, "%.*s", n, s->hosts);
    else
        snprintf(at, sizeof at, "%s:%d", host, (int)PORT);
    setenv("NCCL_COMM_ID", at, 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);      /* so that a kernel that waits for a rank holds up no other */
}

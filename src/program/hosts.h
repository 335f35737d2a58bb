/* Several processes with one model: which of them this one is. A list of hosts says so (--hosts, --rank), or else what
 * started them: mpirun and srun tell each process its rank, and how many there are, in the environment. */
#ifndef PF_PROGRAM_HOSTS_H
#define PF_PROGRAM_HOSTS_H

#include "program/opts.h"

struct hosts {
    int n, rank;                     /* n 1: there are no others */
    int beside;                      /* of the processes on this machine so many have a lower rank */
};

/* By the settings and the environment; a mistake ends the program. */
struct hosts hosts_of(const struct settings *s);

/* Tells NCCL where rank 0 is. Before the first call that has to do with a GPU, and before threads. */
void hosts_tell_nccl(const struct settings *s);

#endif

/* Facts about this CPU: instruction sets, cores, name, memory. Read once per call; no state; any thread. */
#ifndef PF_CPU_H
#define PF_CPU_H

#include <stddef.h>
#include <stdint.h>

/* PF_ISA_ bits (pfmoe.h) that CPU and operating system support. Linux gives a process the registers of AMX when it asks
 * for them, and this asks. */
uint32_t pf_cpu_isa(void);
int      pf_cpu_n_cores(void);                    /* physical cores in this process's affinity mask, at least 1 */
void     pf_cpu_name(char *out, size_t cap);      /* the model name, "" if the system does not say */
uint64_t pf_cpu_memory_bytes(void);               /* physical memory */

#endif

/* The float kernels' part of the kernel harness. */
#ifndef CHECK_FLOAT_H
#define CHECK_FLOAT_H

int  check_float(void);      /* number of failed checks, each printed */
void bench_float(void);      /* one line per level and entry */

#endif

/* Weights that come next, brought into the second cache line by line beside the products of those that are there.
 *
 * Each line is asked for twice, at its turn and mostly a page ahead of it. A core has so many misses under way at most,
 * and drops what it is asked for beyond that, as happens where lines are asked for in bursts; what was dropped comes
 * with the second time. What the hardware fetches by itself ends with a page, but goes on in the next one as soon as
 * lines of that are asked for, in the order of addresses. Not into the first cache, whose few line buffers some CPUs
 * hold until memory answers. What is not there is not fetched.
 *
 * Included by the lanes headers, whose steps are products of four bytes of all lanes. */
#ifndef PF_FETCH_H
#define PF_FETCH_H

enum { FETCH_LINE = 64, FETCH_PAGE = 4096 };

struct fetch {
    const char *lines;            /* the first one */
    const char *others;           /* and the first of as many others */
    int         n, n_steps;       /* so many lines of each, evenly over so many steps */
};

/* Not by the intrinsic: compilers move that, and would ask for all lines at once. */
LANE_FN void fetch_line(const char *p)
{
    __asm__ volatile("prefetcht1 %0" : : "m"(*p));
}

/* Two lines of each a step at most. Not a loop, which compilers unroll too late to keep codes in registers. */
LANE_FN void fetch_step(const struct fetch *f, int step)
{
    const int i = step * f->n / f->n_steps, n = (step + 1) * f->n / f->n_steps - i;
    if (n > 0) {
        fetch_line(f->others + i * FETCH_LINE);
        fetch_line(f->lines + i * FETCH_LINE);
    }
    if (n > 1) {
        fetch_line(f->others + (i + 1) * FETCH_LINE);
        fetch_line(f->lines + (i + 1) * FETCH_LINE);
    }
}

#endif

/* Work that takes long, in slices: a thread of its own that works only while its owner waits for it.
 *
 *     the owner     begin   go_on ......           go_on ...... done
 *     the thread            work ...... pause      work ......
 *
 * So the owner has its own work between two slices, and what both use needs no lock: they never run at the same time.
 * Between leave and return, where the work waits for something else, as a drive is, both may run, and the work touches
 * nothing that is the owner's. One piece of work at a time. */
#ifndef PF_SERVE_ASIDE_H
#define PF_SERVE_ASIDE_H

#include <stdbool.h>

struct aside;

struct aside *aside_open(void);
void aside_close(struct aside *a);           /* nothing is under way */

/* By the owner: what the next slices are to do; nothing is under way. */
void aside_begin(struct aside *a, void (*fn)(void *ctx), void *ctx);
/* By the owner: a slice of some length, at whose end a thread that has left is not waited for. Without `alone`, the
 * owner has other work, and a thread that is still away from an earlier slice gets none. Whether the work is done. */
bool aside_go_on(struct aside *a, double seconds, bool alone);
/* By the owner, between two slices: whether the work waits for something else. */
bool aside_is_away(struct aside *a);
/* By the owner: what is under way is to end, within the next slice where it is not away, and to leave behind what was
 * true before, or something else that is whole. */
void aside_give_up(struct aside *a);

/* By the work, and without effect, and true, by others; a NULL: none. Waits for the next slice if this one is over.
 * False: it is given up. */
bool aside_pause(struct aside *a);
/* Between these two the owner may work, and the work may ask whether it is to go on. */
void aside_leave(struct aside *a);
bool aside_goes_on(struct aside *a);
bool aside_return(struct aside *a);

#endif

/* Files that are written behind: a thread writes one after the other, so that nobody waits for a drive. A file is
 * written beside its name, synced and renamed: it is there whole or not at all. Functions are called by one thread at a
 * time. */
#ifndef PF_SERVE_BEHIND_H
#define PF_SERVE_BEHIND_H

#include "program/io/buf.h"

struct behind;

struct behind *behind_open(void);
/* Waits for what is being written. */
void behind_close(struct behind *w);

/* Has data written to path and then, if that went well, removes the files whose names `gone` holds, each with a 0 byte
 * behind it. Takes over data and gone, which are empty afterwards. The file before is written: there is never more than
 * one in memory. */
void behind_write(struct behind *w, const char *path, struct buf *data, struct buf *gone);
/* Waits a moment while the file, or with NULL any, is being written; false: it still is. */
bool behind_wait(struct behind *w, const char *path);
/* Whether a file is being written: another one would have to wait. */
bool behind_is_busy(struct behind *w);

#endif

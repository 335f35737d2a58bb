/* Files that are written behind: a thread writes one after the other, so that nobody waits for a drive. A file is
 * written beside its name, synced and renamed: it is there whole or not at all. What is beside it is locked meanwhile:
 * several programs may write to one folder, and each can tell what another one writes from what was left by one that
 * was killed. Functions are called by one thread at a time. */
#ifndef PF_SERVE_BEHIND_H
#define PF_SERVE_BEHIND_H

#include "program/io/buf.h"

/* What a file's name ends with beside its own. */
#define BEHIND_BESIDE ".new"

struct behind;

struct behind *behind_open(void);
/* Waits for what is being written. */
void behind_close(struct behind *w);

/* Has data written to path. Takes over data, which is empty afterwards. The file before is written: there is never more
 * than one in memory. */
void behind_write(struct behind *w, const char *path, struct buf *data);
/* Whether the last file could not be written; false while it is being written. */
bool behind_failed(struct behind *w);
/* Waits a moment while the file, or with NULL any, is being written; false: it still is. */
bool behind_wait(struct behind *w, const char *path);
/* Removes a file beside another's name, unless somebody is writing it. */
void behind_remove_left(const char *beside);
/* Whether a file is being written: another one would have to wait. */
bool behind_is_busy(struct behind *w);

#endif

/* Files that a person never asked for by name: where they are, and writing them so that a failure costs nothing. */
#ifndef PF_CLI_USERFILE_H
#define PF_CLI_USERFILE_H

#include <stdbool.h>
#include <stdio.h>

/* $variable/pfmoe/name, or ~/fallback/pfmoe/name, with the folders on the way made; the caller frees it. NULL: there is
 * no home. */
char *userfile_path(const char *variable, const char *fallback, const char *name);

/* Has `fill` write a file of this user alone, under another name first: what was there before stays if anything fails.
 * False with errno set. */
typedef bool userfile_fill_fn(void *ctx, FILE *f);
bool userfile_write(const char *path, userfile_fill_fn *fill, void *ctx);

#endif

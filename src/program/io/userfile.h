/* The one door through which the programs write a person's files: chats, history, learned deals, traces, timelines,
 * logits.
 *
 *     path -> the file that it names, links followed -> may it be replaced? -> NAME.XXXXXX beside it -> written, synced
 *          -> given the old file's mode, owner and access list -> renamed over it
 *
 * So the file is the old one or the new one, whole, whatever happens in between: a full disk, an error, a kill. A
 * symbolic link goes on naming the same file. Files that cannot be replaced like that are refused before anything is
 * written: a file that its modes do not let be written (not even by root), one with several names (hard links), one in
 * a folder that cannot be written to, one whose owner cannot be kept. A file that is not regular (/dev/stdout, a pipe)
 * is written straight, as nothing in it can be lost.
 *
 * A program that ends by exit(), by Ctrl-C or by what else asks it to end leaves no temporary file; one that is killed
 * does. One thread. */
#ifndef PF_PROGRAM_USERFILE_H
#define PF_PROGRAM_USERFILE_H

#include <stdbool.h>
#include <stdio.h>

#include "program/io/buf.h"

/* $variable/pfmoe/name, or ~/fallback/pfmoe/name, with the folders on the way made; the caller frees it. NULL: there is
 * no home. */
char *userfile_path(const char *variable, const char *fallback, const char *name);

/* Flags. USERFILE_PRIVATE: a file that is made is its owner's alone; without it as other programs make files.
 * USERFILE_UNASKED: a file that is already there is not replaced. */
enum { USERFILE_PRIVATE = 1, USERFILE_UNASKED = 2 };

/* Has `fill` write the file; false from it means that writing failed, errno says how. False: why says it in a
 * sentence, and the file is as it was. */
typedef bool userfile_fill_fn(void *ctx, FILE *f);
bool userfile_write(const char *path, unsigned flags, userfile_fill_fn *fill, void *ctx, struct buf *why);

/* Whether there is a file that holds something: the question before asking whether to replace it. */
bool userfile_is_there(const char *path);

/* Whether userfile_write would be refused as things are: to be asked before long work whose result goes there. */
bool userfile_allows(const char *path, struct buf *why);

/* userfile_write in three steps, for a file that is written for long. After a successful open, commit or
 * abandon must follow; the contents may be written to f or, by name, to userfile_name. The struct must not move. */
struct userfile {
    char *path, *target, *temporary;     /* temporary NULL: target is written straight */
    FILE *f;
    unsigned flags;
};
bool userfile_open(struct userfile *u, const char *path, unsigned flags, struct buf *why);
const char *userfile_name(const struct userfile *u);
bool userfile_commit(struct userfile *u, struct buf *why);
void userfile_abandon(struct userfile *u);
/* For a handler of a signal that ends the program by _exit(). */
void userfile_clear_away(void);

#endif

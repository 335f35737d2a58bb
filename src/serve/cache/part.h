/* A part of a saved conversation, and its file.
 *
 *     FILE: head | tokens [from, n) | what pf_session_save_more wrote of them (with its digest)
 *
 * The head's hash covers head and tokens. A part is named by what it continues and its tokens, and so is its file. */
#ifndef PF_SERVE_PART_H
#define PF_SERVE_PART_H

#include "pfmoe.h"
#include "program/io/buf.h"
#include "serve/cache/aside.h"

struct part {
    struct part *parent;             /* what it continues; NULL: it begins at the first token */
    int          n_children;
    size_t       from, n;            /* where it goes on, behind the parent's from, at its n or before; its end */
    int32_t     *tok;                /* [n - from] */
    struct pf_saved saved;           /* by this part and those that it continues */
    uint64_t     id, bytes, used;
    char        *path;               /* NULL: in memory alone */
    struct buf   data;               /* empty: in its file alone */
    bool         replaced;           /* by the part that is being written: goes when that is there */
    bool         is_shared;          /* several conversations begin so: no longer one replaces it. Not in its file */
    uint64_t     parent_id;          /* 0: it has none. From a file: to find the parent by */
    double       wait_s, again;      /* not 0: it could not be loaded when that was tried last; when to try again */
    size_t       common;             /* saved_find's scratch, and is_put_off */
    bool         is_put_off;
};

/* A part of the session's sequence, up to its end, without data. */
struct part *part_new(struct part *parent, size_t from, const pf_session *session);
void part_free(struct part *p);

/* How many of n tokens the part's own begin with, the first `from` being the same. */
size_t part_common(const struct part *p, const int32_t *tok, size_t n);

struct part_limits {
    uint64_t key, most;              /* of the model; bytes of data at most */
    uint64_t token_bytes, beside_bytes;      /* about as many as a token takes, and a part beside; 0: not known */
};

/* Fills data from the session, and with it `saved` and `bytes`. PF_ECONTEXT: that would be more than `most` bytes.
 * PF_EINVAL: the sequence cannot go on there from the parent. */
pf_status part_save(struct part *p, const pf_session *session, const struct part_limits *l, struct aside *a);
/* Adds the part to a session that was made what its parent is; without a parent, to an empty one. What is not done
 * leaves the session empty, if anything of the part was read. WRONG: its file is gone, cut off, damaged, or another
 * model's. FAILED: for a reason that says nothing about the file, as a drive's errors, a lack of memory or of
 * permission; or it was given up. */
enum load { LOAD_DONE, LOAD_WRONG, LOAD_FAILED };
enum load part_load(const struct part *p, pf_session *session, struct aside *a);

/* The path of its file. */
char *part_path(const struct part *p, const char *folder, uint64_t key);
bool  part_is_name(const char *name);
/* Whether the name's first n bytes are all of one that part_path makes. */
bool  part_made_name(const char *name, size_t n);
/* What a file is: a part of a conversation with a model of this key, of which *p has head and tokens then; such a part,
 * damaged in these or cut off there; another model's, no part, or gone; or it could not be read. */
enum found { FOUND_PART, FOUND_DAMAGED, FOUND_OTHER, FOUND_UNREADABLE };
enum found part_read(const char *path, uint64_t key, struct part **p);

#endif

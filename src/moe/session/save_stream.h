/* The stream of bytes that a session is saved to or loaded from, by the caller's functions: moves keys, values and
 * states between it and the memory of the backends that hold them. save.c has the order of all that is in a save. Used
 * by the session's thread, without the step lock.
 *
 * What a device copies passes through a stage of memory that is shared with it, in the stream's order. The stage has
 * two pieces. What a piece is to hold is noted until it is full; its copies are begun together, since a chunk's keys of
 * one head are so few bytes that a wait takes longer than their copy, and while they are made the other piece is
 * written or read:
 *
 *     save    device    copies to A    copies to B    copies to A ..
 *             thread                   writes A       writes B    ..
 *     load    device                   copies from A  copies from B ..
 *             thread    reads A        reads B        reads A     .. */
#ifndef PF_SAVE_STREAM_H
#define PF_SAVE_STREAM_H

#include "moe/session/session.h"

enum { PF_SAVE_PIECE = 1 << 20, PF_SAVE_MOST_MOVES = 64 };

/* Bytes of a backend's memory that pass through a piece. */
struct pf_save_move {
    char  *there;
    size_t bytes;
    bool   far;              /* in memory shared with the host */
};

/* Moves bytes between the caller's stream and memory, hashing them. */
struct pf_save_stream {
    const struct pf_session *s;
    pf_write_fn *write;
    pf_read_fn  *read;
    void        *ctx;
    struct pf_digester hash;
    pf_backend  *owner;      /* of the stage's memory */
    char        *stage;      /* [2][PF_SAVE_PIECE] */
    struct pf_save_move moves[PF_SAVE_MOST_MOVES];
    int          n_moves;    /* that the piece being filled is to hold, in order, */
    size_t       n_staged;   /* so many bytes, */
    pf_backend  *backend;    /* all of this one's memory */
    int          filling;    /* the piece: 0 or 1 */
    size_t       n_copied;   /* bytes of the other piece, which are to be written */
    pf_backend  *copies;     /* copies of this one may still be under way */
    bool         far;        /* what is moved now lies in memory shared with the host */
    bool         lost;       /* the device is lost: zeros are written, and bytes that are read are dropped */
};

/* One of write and read is NULL. Whatever else fails, the stream is closed. */
pf_status pf_save_open(struct pf_save_stream *f, const struct pf_session *s, pf_write_fn *write, pf_read_fn *read,
                       void *ctx);
void      pf_save_close(struct pf_save_stream *f);
/* n bytes at p; nothing is staged. */
pf_status pf_save_transfer(struct pf_save_stream *f, void *p, size_t n);
/* The recurrent state. One that is ahead of what is computed is not saved: that before the last step is, and its rows
 * are evaluated again. Nothing is staged afterwards, nor by the next function. */
pf_status pf_save_transfer_state(struct pf_save_stream *f);
/* Whatever is kept of the positions [from, n): of layers with a window, from held_from on. */
pf_status pf_save_transfer_kv(struct pf_save_stream *f, int64_t from, int64_t n, int64_t held_from);

#endif

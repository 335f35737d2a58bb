/* The stream of bytes that a session is saved to or loaded from, by the caller's functions: moves keys, values and
 * states between it and the memory of the backends that hold them. save.c has the order of all that is in a save. Used
 * by the session's thread, without the step lock. */
#ifndef PF_SAVE_STREAM_H
#define PF_SAVE_STREAM_H

#include "moe/session/session.h"

enum { PF_SAVE_PIECE = 1 << 20 };

/* Moves bytes between the caller's stream and memory, hashing them. */
struct pf_save_stream {
    pf_write_fn *write;
    pf_read_fn  *read;
    void        *ctx;
    struct pf_digester hash;
    char        *piece;      /* [PF_SAVE_PIECE] what passes between the backend's memory and the stream */
    bool         far;        /* what is moved now lies in memory shared with the host */
    bool         lost;       /* the device is lost: zeros are written, and bytes that are read are dropped */
};

pf_status pf_save_transfer(struct pf_save_stream *f, void *p, size_t n);
/* The recurrent state. One that is ahead of what is computed is not saved: that before the last step is, and its rows
 * are evaluated again. */
pf_status pf_save_transfer_state(struct pf_save_stream *f, const struct pf_session *s);
/* Whatever is kept of the positions [from, n): of layers with a window, from held_from on. */
pf_status pf_save_transfer_kv(struct pf_save_stream *f, const struct pf_session *s, int64_t from, int64_t n,
                              int64_t held_from);

#endif

/* The seam of cards that compute parts of the same rows: order between them, and gathering what each has made.
 *
 *     card 0   .. its columns | show ---.--> gather: whole rows | ..
 *     card 1   .. its columns | show ---'--> gather: whole rows | ..
 *
 * What a card shows lies in memory that all of them read: its own, or pinned memory of the host. Nothing is added up,
 * so the bits are those of one card. Showing, waiting and gathering are work of the cards' own streams: they may be
 * repeated with a step of the first card, whose `begin` and `end` the others' work lies between.
 *
 * Few rows go without waiting for streams, where all cards reach each other: each card has a tray, into which the
 * others write their columns, every word with the number of the exchange. Who finds the number has the word.
 *
 *     card 0   .. its columns | swap: to the others' trays, whole rows from its own | ..
 *     card 1   .. its columns | swap                                                | ..
 *
 * Every call of this table belongs to the thread that runs the step, or that opens and closes. */
#ifndef PF_MEET_H
#define PF_MEET_H

#include "backend/backend.h"

/* y [rows][n]: columns [first[i], first[i + 1]) come from shown[i], whose rows are as long as that. */
struct pf_gather_op {
    float       *y;
    const float *shown[PF_MAX_GPUS];
    int          first[PF_MAX_GPUS + 1];
    int          n_cards, rows, n;
};

/* A tray: words of 64 bits, the upper half the number of the exchange, the lower half a float, and after them the
 * number of the last exchange that each thread block has made:
 *
 *     [2][n_cards][PF_TRAY_BLOCKS][PF_TRAY_FLOATS] uint64    [PF_TRAY_BLOCKS] uint32
 *
 * A block has so many of each card's floats. Numbers take the two halves in turn: a word is written again when its
 * reader has made the next exchange, since the writer has its answer to that. */
enum { PF_TRAY_BLOCKS = 256, PF_TRAY_FLOATS = 512 };

static inline size_t pf_tray_bytes(int n_cards)
{
    size_t words = 2 * (size_t)n_cards * PF_TRAY_BLOCKS * PF_TRAY_FLOATS;
    return words * sizeof(uint64_t) + PF_TRAY_BLOCKS * sizeof(uint32_t);
}

/* y [rows][n] gets whole rows, or a times whole rows is added to it; columns [first[card], first[card + 1]) are the
 * card's own: `mine`, packed, whose memory y may be, or lie in, unless something is added to it. With up, which is laid
 * out like mine, it is the activation of mine and up that is exchanged. */
struct pf_swap_op {
    float       *y, a;
    const float *mine, *up;
    struct pf_act act;
    void        *tray[PF_MAX_GPUS];
    int          first[PF_MAX_GPUS + 1];
    int          card, n_cards, rows, n;
    bool         adds, for_down;             /* for_down: the next operation is experts_down of y */
};

struct pf_meet_ops {
    /* Whether kernels of b read the memory of the other card. */
    bool      (*reaches)(const pf_backend *b, const pf_backend *other);

    /* What b is asked for from now on comes after all that the other was asked for so far. */
    pf_status (*after)(pf_backend *b, pf_backend *other);

    /* Copies n floats of b's memory to where the others read them; makes whole rows of what all have shown. */
    pf_status (*show)(pf_backend *b, const float *from, float *to, int64_t n);
    pf_status (*gather)(pf_backend *b, const struct pf_gather_op *g);

    /* One exchange, of which every card is asked for its part, in the same order. A card whose partner does not come
     * goes on after some seconds, or when it is told to give up, and its step fails; trays are cleared after that, by
     * clear, when no card is at work. clear waits. */
    pf_status (*swap)(pf_backend *b, const struct pf_swap_op *s);
    void      (*give_up)(pf_backend *b);

    /* Whether what b was asked for has ended, well or not, within so many nanoseconds; whether it is known to have
     * failed. */
    bool      (*has_ended)(pf_backend *b, uint64_t ns);
    bool      (*has_failed)(pf_backend *b);
    pf_status (*clear)(pf_backend *b, void *tray, size_t bytes);

    /* Forgets recorded steps: they name memory of other cards, which is about to go. */
    void      (*forget)(pf_backend *b);
};

/* The table of a GPU's backend; NULL: b is none. */
const struct pf_meet_ops *pf_backend_cuda_meet(const pf_backend *b);

/* What an exchange between the cards takes, measured as a step of decoding makes it, and one by trays. Zeros: it could
 * not be. */
struct pf_link pf_backend_cuda_link(pf_backend *const *cards, int n, double *swap_seconds);

#endif

/* NVIDIA's cards by name, so that --plan can be asked about a machine before there is one. Rates and buses are
 * the makers' figures, most of them entered from memory: check one before money depends on it. What programs get of
 * them is cards.c's business. A constant table: any thread. */
#ifndef PF_PROGRAM_CARDS_H
#define PF_PROGRAM_CARDS_H

#include <stdint.h>

#include "pfmoe.h"

struct card {
    const char *name;                    /* without its memory: several cards may share it */
    int         gb;                      /* memory, in GB of 2^30 bytes */
    int         gb_s;                    /* bytes a second that its memory gives, in 1e9 */
    int         pcie, lanes;             /* generation and width of its connector */
    int         arch;                    /* compute capability times ten */
};

/* The card that a person means by a name: "RTX 4070", "4060 ti 16", "nvidia geforce rtx 3060 12GB". NULL: none or
 * several; *why is then a sentence that names what there is, until the next call. */
const struct card *card_named(const char *name, const char **why);

/* What a program may take of a card's memory, and how fast it is and copies to it arrive in a slot as wide and as new
 * as the card. */
uint64_t card_room(const struct card *c);
void     card_speeds(const struct card *c, double *vram_bytes_s, double *pcie_bytes_s);

#endif

/* Which card the emulated GPU is. PFMOE_EMULATED_CARD names one by its compute capability; without it the GPU is small
 * and has what the newest have, since that is what most tests want. */
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB ((size_t)1 << 30)
#define KB ((size_t)1 << 10)

static const struct emu_card cards[] = {
    { "small", 90, 4 * GB, 99 * KB, 4 },
    { "7.5", 75, 11 * GB, 64 * KB, 68 },         /* RTX 2080 Ti */
    { "8.6", 86, 8 * GB, 99 * KB, 46 },          /* RTX 3070 */
    { "8.9", 89, 16 * GB, 99 * KB, 34 },         /* RTX 4060 Ti 16 GB */
    { "9.0", 90, 80 * GB, 227 * KB, 132 },       /* H100 */
    { "9.0 slice", 90, 10 * GB, 227 * KB, 16 },  /* a seventh of an H100 */
    { "12.0", 120, 24 * GB, 99 * KB, 82 },       /* RTX 5090 of laptops */
};

const struct emu_card *emu_card(void)
{
    static const struct emu_card *card;
    const char *name = getenv("PFMOE_EMULATED_CARD");
    const struct emu_card *is = __atomic_load_n(&card, __ATOMIC_RELAXED);
    for (size_t i = 0; !is && i < sizeof cards / sizeof *cards; i++)
        if (strcmp(name ? name : "small", cards[i].name) == 0)
            is = &cards[i];
    if (!is) {
        fprintf(stderr, "emulated GPU: there is no card \"%s\"\n", name);
        abort();
    }
    __atomic_store_n(&card, is, __ATOMIC_RELAXED);
    return is;
}

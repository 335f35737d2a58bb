/* Which cards the emulated GPUs are. PFMOE_EMULATED_CARD names them by their compute capabilities, with commas between;
 * the last one is all others, too. Without it a GPU is small and has what the newest have, since that is what most
 * tests want. */
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

const struct emu_card *emu_card_of(int device)
{
    const char *given = getenv("PFMOE_EMULATED_CARD"), *name = given ? given : "small";
    size_t n = strcspn(name, ",");
    for (; device > 0 && name[n]; device--) {
        name += n + 1;
        n = strcspn(name, ",");
    }
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (strncmp(name, cards[i].name, n) == 0 && cards[i].name[n] == '\0')
            return &cards[i];
    fprintf(stderr, "emulated GPU: there is no card \"%s\"\n", name);
    abort();
}

size_t emu_most_shared_bytes(void)
{
    size_t most = 0;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        most = cards[i].shared_bytes > most ? cards[i].shared_bytes : most;
    return most;
}

/* See cards.h. */
#include "program/cards.h"

#include <stdio.h>
#include <string.h>

/* By generation, then as they are sold. */
static const struct card cards[] = {
    { "RTX 2060", 6, 336, 3, 16, 75 },           { "RTX 2060 Super", 8, 448, 3, 16, 75 },
    { "RTX 2070", 8, 448, 3, 16, 75 },           { "RTX 2070 Super", 8, 448, 3, 16, 75 },
    { "RTX 2080", 8, 448, 3, 16, 75 },           { "RTX 2080 Super", 8, 496, 3, 16, 75 },
    { "RTX 2080 Ti", 11, 616, 3, 16, 75 },       { "Titan RTX", 24, 672, 3, 16, 75 },
    { "T4", 16, 320, 3, 16, 75 },
    { "A100", 40, 1555, 4, 16, 80 },             { "A100", 80, 1935, 4, 16, 80 },
    { "A30", 24, 933, 4, 16, 80 },
    { "RTX 3050", 8, 224, 4, 8, 86 },            { "RTX 3060", 12, 360, 4, 16, 86 },
    { "RTX 3060 Ti", 8, 448, 4, 16, 86 },        { "RTX 3070", 8, 448, 4, 16, 86 },
    { "RTX 3070 Ti", 8, 608, 4, 16, 86 },        { "RTX 3080", 10, 760, 4, 16, 86 },
    { "RTX 3080", 12, 912, 4, 16, 86 },          { "RTX 3080 Ti", 12, 912, 4, 16, 86 },
    { "RTX 3090", 24, 936, 4, 16, 86 },          { "RTX 3090 Ti", 24, 1008, 4, 16, 86 },
    { "RTX A2000", 12, 288, 4, 16, 86 },         { "RTX A4000", 16, 448, 4, 16, 86 },
    { "RTX A5000", 24, 768, 4, 16, 86 },         { "RTX A6000", 48, 768, 4, 16, 86 },
    { "A10", 24, 600, 4, 16, 86 },
    { "RTX 4060", 8, 272, 4, 8, 89 },            { "RTX 4060 Ti", 8, 288, 4, 8, 89 },
    { "RTX 4060 Ti", 16, 288, 4, 8, 89 },        { "RTX 4070", 12, 504, 4, 16, 89 },
    { "RTX 4070 Super", 12, 504, 4, 16, 89 },    { "RTX 4070 Ti", 12, 504, 4, 16, 89 },
    { "RTX 4070 Ti Super", 16, 672, 4, 16, 89 }, { "RTX 4080", 16, 717, 4, 16, 89 },
    { "RTX 4080 Super", 16, 736, 4, 16, 89 },    { "RTX 4090", 24, 1008, 4, 16, 89 },
    { "RTX 4000 Ada", 20, 360, 4, 16, 89 },      { "RTX 6000 Ada", 48, 960, 4, 16, 89 },
    { "L4", 24, 300, 4, 16, 89 },                { "L40S", 48, 864, 4, 16, 89 },
    { "H100 PCIe", 80, 2039, 5, 16, 90 },        { "H100", 80, 3350, 5, 16, 90 },
    { "H200", 141, 4800, 5, 16, 90 },            { "B200", 180, 8000, 5, 16, 100 },
    { "RTX 5060", 8, 448, 5, 8, 120 },           { "RTX 5060 Ti", 8, 448, 5, 8, 120 },
    { "RTX 5060 Ti", 16, 448, 5, 8, 120 },       { "RTX 5070", 12, 672, 5, 16, 120 },
    { "RTX 5070 Ti", 16, 896, 5, 16, 120 },      { "RTX 5080", 16, 960, 5, 16, 120 },
    { "RTX 5090", 32, 1792, 5, 16, 120 },        { "RTX PRO 6000", 96, 1792, 5, 16, 120 },
};
enum { N_CARDS = sizeof cards / sizeof *cards, KEY = 64 };

/* What names are compared by: letters and digits in lower case, without the words that are on every box. */
static void key_of(char key[KEY], const char *name)
{
    static const char *const words[] = { "nvidia", "geforce", "rtx" };
    size_t n = 0;
    for (; *name && n + 1 < KEY; name++) {
        char c = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            key[n++] = c;
    }
    key[n] = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i]);
        if (strncmp(key, words[i], len) == 0)
            memmove(key, key + len, strlen(key + len) + 1);
    }
    n = strlen(key);
    if (n > 2 && strcmp(key + n - 2, "gb") == 0)
        key[n - 2] = 0;
}

static bool is_called(const struct card *c, const char *key, bool with_memory)
{
    char own[KEY], full[KEY + 16];
    key_of(own, c->name);
    snprintf(full, sizeof full, with_memory ? "%s%d" : "%s", own, c->gb);
    return strcmp(key, full) == 0;
}

/* One sentence of the cards that `key` calls, or of all: NULL. */
static const char *list(const char *begins, const char *key)
{
    static char text[N_CARDS * 32 + 256];
    int n = snprintf(text, sizeof text, "%.160s", begins), n_listed = 0;
    for (int i = 0; i < N_CARDS; i++)
        if (!key || is_called(&cards[i], key, false))
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s %d", n_listed++ ? ", " : "", cards[i].name,
                          cards[i].gb);
    return text;
}

const struct card *card_named(const char *name, const char **why)
{
    const struct card *found = NULL;
    char key[KEY], begins[KEY + 128];
    int n_found = 0;
    key_of(key, name);
    for (int i = 0; i < N_CARDS; i++) {
        if (is_called(&cards[i], key, true))
            return &cards[i];
        if (is_called(&cards[i], key, false)) {
            found = &cards[i];
            n_found++;
        }
    }
    if (n_found == 1)
        return found;
    snprintf(begins, sizeof begins, n_found ? "\"%.60s\" comes with more than one memory; say which: "
                                            : "no card \"%.60s\" is known; describe it by --vram-mb, --vram-gb-s and "
                                              "--pcie-gb-s, or take one of: ", name);
    *why = list(begins, n_found ? key : NULL);
    return NULL;
}

/* Half a gigabyte goes to the driver, to this process's context and to a screen, 256 MB are left free (backend_cuda.c);
 * a card's own check bits are not counted. */
uint64_t card_room(const struct card *c)
{
    return ((uint64_t)c->gb << 30) - ((uint64_t)768 << 20);
}

/* An H200 reads its memory at 0.88 of what its maker states, and copies over PCIe 5 arrive at 0.86 of the lanes' rate
 * (docs/performance.md). */
void card_speeds(const struct card *c, double *vram_bytes_s, double *pcie_bytes_s)
{
    double lane_bytes_s = c->pcie == 5 ? 3.938e9 : c->pcie == 4 ? 1.969e9 : 0.985e9;
    *vram_bytes_s = 0.88 * 1e9 * c->gb_s;
    *pcie_bytes_s = 0.86 * lane_bytes_s * c->lanes;
}

/* Writes the tables that grid_planes.h describes to standard output, as C. Runs while pfmoe is built. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ref/iq_tables.h"

/* How a type's elements become bits: n_levels values of which every element is one. */
struct levels {
    int    bits, n_levels;
    int8_t value[8];
};

static const struct levels iq2 = { 2, 3, { 8, 25, 43 } };
static const struct levels iq3_xxs = { 3, 8, { 4, 12, 20, 28, 36, 44, 52, 62 } };
static const struct levels iq3_s = { 3, 8, { 1, 3, 5, 7, 9, 11, 13, 15 } };
static const struct levels iq1 = { 2, 3, { -1, 0, 1 } };

static unsigned place_of(const struct levels *l, int8_t element)
{
    for (int i = 0; i < l->n_levels; i++)
        if (l->value[i] == element)
            return (unsigned)i;
    fprintf(stderr, "make_planes: %d is no level\n", element);
    exit(1);
}

static void put(int i, unsigned byte)
{
    printf("%s%u,", i % 32 ? "" : "\n    ", byte);
}

/* n elements from `first` on of a grid's entry. */
static unsigned pack(const struct levels *l, uint64_t entry, int first, int n)
{
    unsigned byte = 0;
    for (int j = 0; j < n; j++)
        byte |= place_of(l, (int8_t)(entry >> 8 * (first + j))) << l->bits * j;
    return byte;
}

/* The grid is wide, with eight elements to an entry, or narrow, with four. */
static void put_planes(const char *name, const struct levels *l, const uint64_t *wide, const uint32_t *narrow, int n)
{
    int n_elements = wide ? 4 : 2;                       /* of a plane */
    printf("\nconst uint8_t pf_planes_%s[2][%d] = { {", name, n);
    for (int plane = 0; plane < 2; plane++) {
        for (int i = 0; i < n; i++)
            put(i, pack(l, wide ? wide[i] : narrow[i], plane * n_elements, n_elements));
        printf("\n}%s", plane ? " };\n" : ", {");
    }
}

static void put_levels(const char *name, const struct levels *l)
{
    int n_elements = 6 / l->bits;
    printf("\nconst uint8_t pf_levels_%s[%d][64] = {", name, n_elements);
    for (int e = 0; e < n_elements; e++) {
        printf(" {");
        for (int v = 0; v < 64; v++)
            put(v, (unsigned)l->value[v >> l->bits * e & ((1 << l->bits) - 1)]);
        printf("\n},");
    }
    printf(" };\n");
}

int main(void)
{
    printf("/* Written by make_planes.c. */\n#include \"kernels/x86/grid_planes.h\"\n");
    put_planes("iq2_xxs", &iq2, pf_grid_iq2_xxs, NULL, 256);
    put_planes("iq2_xs", &iq2, pf_grid_iq2_xs, NULL, 512);
    put_planes("iq2_s", &iq2, pf_grid_iq2_s, NULL, 1024);
    put_planes("iq3_xxs", &iq3_xxs, NULL, pf_grid_iq3_xxs, 256);
    put_planes("iq3_s", &iq3_s, NULL, pf_grid_iq3_s, 512);
    put_planes("iq1", &iq1, pf_grid_iq1, NULL, 2048);
    put_levels("iq2", &iq2);
    put_levels("iq3_xxs", &iq3_xxs);
    put_levels("iq3_s", &iq3_s);
    return fflush(stdout) ? 1 : 0;
}

#!/usr/bin/env python3
"""Writes src/kernels/ref/iq_tables.c from the plain-text tables of the IQ and FP4 types.

usage: make_iq_tables.py DIRECTORY > src/kernels/ref/iq_tables.c

DIRECTORY holds one file per table: a header line "# <element type> count=<n>", then one number a line.
"""
import sys

# file, C type, C name, count, numbers a line
TABLES = [
    ("iq2xxs_grid", "uint64_t", "pf_grid_iq2_xxs", 256, 5),
    ("iq2xs_grid", "uint64_t", "pf_grid_iq2_xs", 512, 5),
    ("iq2s_grid", "uint64_t", "pf_grid_iq2_s", 1024, 5),
    ("iq3xxs_grid", "uint32_t", "pf_grid_iq3_xxs", 256, 9),
    ("iq3s_grid", "uint32_t", "pf_grid_iq3_s", 512, 9),
    ("iq1s_grid", "uint64_t", "pf_grid_iq1", 2048, 5),
    ("kvalues_iq4nl", "int8_t", "pf_codebook_iq4", 16, 16),
    ("kvalues_mxfp4", "int8_t", "pf_codebook_e2m1", 16, 16),
]


def numbers(path, count):
    with open(path, encoding="ascii") as f:
        values = [line.strip() for line in f if not line.startswith("#")]
    if len(values) != count:
        sys.exit(f"{path}: {len(values)} numbers, expected {count}")
    return values


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("/* Written by tools/make_iq_tables.py; numbers that the formats fix. See iq_tables.h. */")
    print('#include "kernels/ref/iq_tables.h"')
    for file, ctype, name, count, per_line in TABLES:
        values = numbers(f"{sys.argv[1]}/{file}.txt", count)
        print(f"\nconst {ctype} {name}[{count}] = {{")
        for i in range(0, count, per_line):
            print("    " + ", ".join(values[i:i + per_line]) + ",")
        print("};")


main()

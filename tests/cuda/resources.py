#!/usr/bin/env python3
"""Registers and shared memory of every kernel, read off the compiled code and held to what a block may have.

    usage: resources.py LIBRARY|OBJECT [--table]

Dynamic shared memory is asked for by launches: the emulated GPU, told to be a card, holds those to the card's limits.

Kernels whose warpgroups hand registers to each other (setmaxnreg) begin with as many as were compiled for; one
warpgroup keeps the fewest that it names, each other waits until it can have the most. What a block begins with has to
be enough for all of them, or that wait has no end."""
import sys

from cubins import cubins, instructions, kernels, load

# A block of any generation from 7.5 on; what lies behind is by compute capability: shared memory of a block that asks.
REGISTERS, REGISTER_UNIT, STATIC_BYTES, GROUP = 65536, 256, 48 << 10, 128
CARDS = (75, 80, 86, 89, 90, 100, 103, 110, 120, 121)
SETMAXNREG, KNOWN_IN = 0x9c8, 90        # the count in the lowest byte of its number; in code for 9.0


def taken(k):
    warps = (k.threads + 31) // 32
    return (k.registers * 32 + REGISTER_UNIT - 1) // REGISTER_UNIT * REGISTER_UNIT * warps


def handed(k):
    """The counts that warpgroups ask for."""
    return {number & 0xff for what, number in instructions(k.code) if what == SETMAXNREG}


def wrong_with(k, counts):
    if k.registers == 0 or taken(k) > REGISTERS:
        yield f"{k.threads} threads of {k.name} with {k.registers} registers are a block's {REGISTERS} or more"
    if k.static_bytes > STATIC_BYTES:
        yield f"{k.static_bytes} bytes of static shared memory in {k.name}"
    groups = k.threads // GROUP
    if counts and min(counts) + (groups - 1) * max(counts) > groups * k.registers:
        yield f"{k.name} begins with {k.registers} registers in {groups} warpgroups, which ask for {sorted(counts)}"


def main(path, table):
    n, worst, bad, n_handed = {}, {}, [], 0
    for arch, elf in cubins(load(path)):
        if elf is None:
            print("the code is compressed, and there is no zstd to unpack it: build for three cards at most")
            return 77
        assert arch in CARDS, f"limits of compute capability {arch} are not written down"
        for k in kernels(elf):
            counts = handed(k) if arch == KNOWN_IN else set()
            n[arch] = n.get(arch, 0) + 1
            n_handed += len(counts) > 0
            was = worst.get(arch, (0, 0))
            worst[arch] = max(was[0], taken(k)), max(was[1], k.static_bytes)
            if table:
                print(f"{arch:4} {k.registers:4} {k.threads:5} {k.static_bytes:6} {k.name} {sorted(counts) or ''}")
            bad += [f"sm_{arch}: {wrong}" for wrong in wrong_with(k, counts)]
    if not n:
        print("no code compiled for a card: -Dgpu_arch names none")
        return 77
    for arch in sorted(n):
        most, static = worst[arch]
        print(f"sm_{arch}: {n[arch]} kernels; at most {most} registers a block, {static} bytes static")
    print(f"{n_handed} kernels hand registers from one warpgroup to others")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--table" in sys.argv))

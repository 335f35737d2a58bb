#!/usr/bin/env python3
"""Registers and shared memory of every kernel, read off the compiled code and held to what a block may have.

    usage: resources.py LIBRARY|OBJECT [--table]

Meson's libraries name their objects, which lie in a folder beside them. Objects hold fat binaries: each a header and entries, of which those of kind 2 are ELF files for one
card's generation (cubins). There, .text.K is kernel K's code, whose sh_info has the registers of a thread in its upper
byte; .nv.shared.K is as large as its static shared memory; .nv.info.K has, among other attributes, the threads that it
was bound to (1,024 where a kernel says none). Dynamic shared memory is asked for by launches: the emulated GPU, told
to be a card, holds those to the card's limits."""
import glob
import struct
import sys

FATBIN, EM_CUDA, KIND_CUBIN = 0xBA55ED50, 190, 2
MAX_THREADS, REGCOUNT, SVAL = 0x05, 0x2f, 0x04
COMPRESSED = 0xe000                     # an entry's flags: in one of several ways
# A block of any generation from 7.5 on; what lies behind is by compute capability: shared memory of a block that asks.
REGISTERS, REGISTER_UNIT, STATIC_BYTES, THREADS = 65536, 256, 48 << 10, 1024
CARDS = (75, 80, 86, 89, 90, 100, 103, 110, 120, 121)


def cubins(data):
    """(compute capability, ELF file) of each cubin; None for one that is compressed."""
    magic = struct.pack("<I", FATBIN)
    at = data.find(magic)
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", data, at)
        entry, end = at + header, at + header + size
        if version != 1 or end > len(data):
            at = data.find(magic, at + 4)
            continue
        while entry < end:
            kind, _, n_header, n = struct.unpack_from("<HHIQ", data, entry)
            arch, flags = struct.unpack_from("<12xI8xQ", data, entry + 16)
            if kind == KIND_CUBIN:
                yield arch, None if flags & COMPRESSED else data[entry + n_header:entry + n_header + n]
            entry += n_header + n
        at = data.find(magic, end)


def attributes(info):
    at = 0
    while at + 4 <= len(info):
        form, what, value = struct.unpack_from("<BBH", info, at)
        at += 4
        n = value if form == SVAL else 0
        yield what, info[at:at + n]
        at += n


def kernels(elf):
    """(name, registers, static bytes, threads) of each kernel of a cubin."""
    machine, = struct.unpack_from("<H", elf, 18)
    assert elf[:4] == b"\x7fELF" and machine == EM_CUDA, "an entry that is no cubin"
    table, = struct.unpack_from("<Q", elf, 40)
    n_bytes, n, names_at = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * n_bytes) for i in range(n)]
    names = sections[names_at][4]
    of = {}
    for s in sections:
        of[elf[names + s[0]:elf.index(b"\0", names + s[0])].decode()] = s
    symbols, strings = of[".symtab"][4], of[".strtab"][4]
    counts = {}
    for what, value in attributes(elf[of[".nv.info"][4]:of[".nv.info"][4] + of[".nv.info"][5]]):
        if what == REGCOUNT:
            symbol, count = struct.unpack("<II", value)
            at = strings + struct.unpack_from("<I", elf, symbols + symbol * 24)[0]
            counts[elf[at:elf.index(b"\0", at)].decode()] = count
    for name in of:
        if not name.startswith(".text."):
            continue
        kernel = name[len(".text."):]
        info = of.get(".nv.info." + kernel)
        if not info:
            continue                    # a function that kernels call
        threads = THREADS
        for what, value in attributes(elf[info[4]:info[4] + info[5]]):
            if what == MAX_THREADS:
                x, y, z = struct.unpack("<III", value)
                threads = x * y * z
        shared = of.get(".nv.shared." + kernel)
        yield kernel, counts.get(kernel, 0), shared[5] if shared else 0, threads


def main(path, table):
    data = b""
    for part in sorted(glob.glob(glob.escape(path) + ".p/*.o")) or [path]:
        with open(part, "rb") as f:
            data += f.read()
    n, worst, bad = {}, {}, []
    for arch, elf in cubins(data):
        if elf is None:
            print("the code is compressed: build for three cards at most")
            return 77
        assert arch in CARDS, f"limits of compute capability {arch} are not written down"
        for name, registers, static, threads in kernels(elf):
            warps = (threads + 31) // 32
            taken = (registers * 32 + REGISTER_UNIT - 1) // REGISTER_UNIT * REGISTER_UNIT * warps
            n[arch] = n.get(arch, 0) + 1
            was = worst.get(arch, (0, 0))
            worst[arch] = max(was[0], taken), max(was[1], static)
            if table:
                print(f"{arch:4} {registers:4} {threads:5} {static:6} {name}")
            if registers == 0 or taken > REGISTERS:
                bad.append(f"sm_{arch}: {threads} threads of {name} with {registers} registers are a block's {REGISTERS} or more")
            if static > STATIC_BYTES:
                bad.append(f"sm_{arch}: {static} bytes of static shared memory in {name}")
    if not n:
        print("no code compiled for a card: -Dgpu_arch names none")
        return 77
    for arch in sorted(n):
        print(f"sm_{arch}: {n[arch]} kernels; at most {worst[arch][0]} registers a block, {worst[arch][1]} bytes static")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--table" in sys.argv))

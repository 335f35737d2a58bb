"""Code that a library or object has for cards, as tests read it without CUDA's own tools.

Meson's libraries name their objects and do not hold them (thin archives). Objects hold fat binaries: each a header and
entries, of which those of kind 2 are ELF files for one card's generation (cubins). There, .text.K is kernel K's code,
whose sh_info has the registers of a thread in its upper byte; .nv.shared.K is as large as its static shared memory;
.nv.info.K has, among other attributes, the threads that it was bound to (1,024 where a kernel says none). Instructions
have 16 bytes; the lowest 12 bits say which one it is."""
import shutil
import struct
import subprocess

FATBIN, EM_CUDA, KIND_CUBIN = 0xBA55ED50, 190, 2
MAX_THREADS, REGCOUNT, SVAL = 0x05, 0x2f, 0x04
COMPRESSED, ZSTD = 0xe000, 0x8000       # an entry's flags: in one of several ways
MOST_THREADS = 1024


def read(path):
    with open(path, "rb") as f:
        return f.read()


def load(path):
    """The bytes of a library's objects, or of one object."""
    data = read(path)
    if not data.startswith(b"!<thin>"):
        return data
    names = subprocess.run(["ar", "t", path], capture_output=True, text=True, check=True).stdout
    return b"".join(read(name) for name in names.splitlines())


def unpacked(content, flags, size):
    """An entry's content, of which `size` bytes count where it is compressed. None: nobody here can unpack it."""
    if not flags & COMPRESSED:
        return content
    if flags & COMPRESSED != ZSTD or not shutil.which("zstd"):
        return None
    return subprocess.run(["zstd", "-dc"], input=content[:size], capture_output=True, check=True).stdout


def cubins(data):
    """(compute capability, ELF file) of each cubin; None for one that is compressed and cannot be unpacked."""
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
            n_packed, arch, flags = struct.unpack_from("<I8xI8xQ", data, entry + 16)
            if kind == KIND_CUBIN:
                yield arch, unpacked(data[entry + n_header:entry + n_header + n], flags, n_packed)
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


def sections(elf):
    """By name: a section's header."""
    machine, = struct.unpack_from("<H", elf, 18)
    assert elf[:4] == b"\x7fELF" and machine == EM_CUDA, "an entry that is no cubin"
    table, = struct.unpack_from("<Q", elf, 40)
    n_bytes, n, names_at = struct.unpack_from("<HHH", elf, 58)
    all = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * n_bytes) for i in range(n)]
    names = all[names_at][4]
    return {elf[names + s[0]:elf.index(b"\0", names + s[0])].decode(): s for s in all}


def instructions(code):
    """(which one, its number) of each instruction."""
    for low, _ in struct.iter_unpack("<QQ", code):
        yield low & 0xfff, low >> 32


class Kernel:
    def __init__(self, name, registers, static_bytes, threads, code):
        self.name, self.code = name, code
        self.registers, self.threads = registers, threads       # of a thread; of a block at most
        self.static_bytes = static_bytes                        # of shared memory


def kernels(elf):
    """The kernels of a cubin."""
    of = sections(elf)

    def content(name):
        return elf[of[name][4]:of[name][4] + of[name][5]]
    symbols, strings = of[".symtab"][4], of[".strtab"][4]
    counts = {}
    for what, value in attributes(content(".nv.info")):
        if what == REGCOUNT:
            symbol, count = struct.unpack("<II", value)
            at = strings + struct.unpack_from("<I", elf, symbols + symbol * 24)[0]
            counts[elf[at:elf.index(b"\0", at)].decode()] = count
    for name in of:
        kernel = name[len(".text."):]
        if not name.startswith(".text.") or ".nv.info." + kernel not in of:
            continue                    # no code, or a function that kernels call
        threads = MOST_THREADS
        for what, value in attributes(content(".nv.info." + kernel)):
            if what == MAX_THREADS:
                x, y, z = struct.unpack("<III", value)
                threads = x * y * z
        shared = of.get(".nv.shared." + kernel)
        yield Kernel(kernel, counts.get(kernel, 0), shared[5] if shared else 0, threads, content(name))

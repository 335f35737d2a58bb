#!/usr/bin/env python3
"""Registers of warpgroups' products in the compiled code: while a product is under way, nobody touches them.

    usage: products.py LIBRARY|OBJECT

A product (HGMMA, IGMMA ..) reads the four registers of its first operand, and adds to those of its sums, until it is
waited for. Results are wrong without a word if others have these registers before. The language leaves that to the
compiler, which has been seen to give an operand's registers away early: keep() in cu_machine.h holds them.

Every way through a kernel is walked with the products that are under way on it:

    HGMMA.64x64x16.F32 R24, R60, ..           begins one: R60 to R63, sums from R24 on
    HGMMA.64x64x16.F32 R24, R56, .., gsb0     begins one and closes a group
    WARPGROUP.DEPBAR.LE gsb0, 0x0             all groups but the latest so many have ended

Who reads and writes which registers is the disassembler's to say: beside each instruction it draws a column for each
register, with ^ where it is written, v where it is read, x for both. What is not understood counts as wrong. At the end
the walk is done over with kernels that write each operand where it is waited for, and has to find each of them."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile

from cubins import cubins, instructions, kernels, load

WARPGROUP = 0x9c5                       # instructions around products; kernels without them have none
LATEST = 7                              # groups that a wait can leave: older ones are alike
LINE = re.compile(r" +/\*[0-9a-f]{4,}\*/ +(@!?U?P\w+ +)?([A-Z][\w.]*) *(.*?) *;")
LABEL = re.compile(r"`\((\.L\w+)\)")


def disassembler():
    """nvdisasm of the toolkit that compiles, of PATH, or of the Python package nvidia-cuda-nvdisasm."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folders = [os.path.dirname(os.path.realpath(nvcc))] + os.environ.get("PATH", "").split(os.pathsep)
    package = importlib.util.find_spec("nvidia")
    for root in package.submodule_search_locations if package else []:
        folders += [os.path.join(root, part, "bin") for part in os.listdir(root)]
    return shutil.which("nvdisasm", path=os.pathsep.join(folders))


class Instruction:
    def __init__(self, guard, name, operands, columns):
        self.name, self.operands = name, operands
        self.writes = {i for i, mark in enumerate(columns) if mark in "^x"}
        self.reads = {i for i, mark in enumerate(columns) if mark in "vx"}
        jumps = re.match(r"(BRA|RET|EXIT)\b(?!.*,)", name + " " + operands)
        self.goes_on = bool(guard) or not jumps
        self.label = LABEL.search(operands) if name != "BSSY" else None
        self.is_product, self.ends_group = "GMMA" in name, operands.endswith("gsb0")
        self.operand = operand(operands, self.writes) if self.is_product else set()
        self.left = int(operands[len("gsb0, 0x"):], 16) if name == "WARPGROUP.DEPBAR.LE" else None


def operand(operands, sums):
    """The registers of a product's first operand: none where that lies in shared memory."""
    form = re.match(r"R(\d+), (?:R(\d+)|gdesc\[UR\d+\]), ", operands)
    assert form and int(form[1]) == min(sums), f"a product of {operands} is not understood"
    return set(range(int(form[2]), int(form[2]) + 4)) if form[2] else set()


def listed(tool, elf):
    """Kernel by kernel: (name, instructions, where labels stand)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(elf)
        f.flush()
        text = subprocess.run([tool, "-c", "-plr", "-lrm", "narrow", f.name], check=True, capture_output=True,
                              text=True).stdout
    for part in text.split("\t.section\t.text.")[1:]:
        code, labels, first = [], {}, None
        for line in part.split("\n"):
            said, _, drawn = line.partition("// |")
            if drawn.lstrip().startswith("# 0"):       # the columns' heads
                first = drawn.index("# ") + 2
            label, found = re.match(r"(\.L\w+):", said), LINE.match(said)
            if label:
                labels[label[1]] = len(code)
            if found:
                code.append(Instruction(*found.groups(), drawn[first:drawn.index("|")]))
        yield part[:part.index(",")], code, labels


def breach(now, product):
    """What an instruction does that it must not while a product is under way."""
    if now.writes & product.operand:
        return "writes the first operand of"
    if (now.operand if now.is_product else now.reads | now.writes) & product.writes:
        return "touches the sums of"
    if re.match("CALL|RET|EXIT|BRX|JM", now.name):
        return "leaves the code during"
    return None


def walk(code, labels):
    """{product: (the instruction that is wrong, how)}, the first one of each. under_way[i]: products before
    instruction i, each with the number of groups that were closed since its own was, or -1 while that is not closed."""
    wrong, under_way, to_do = {}, {0: set()}, [0]
    while to_do:
        i = to_do.pop()
        now, state = code[i], set(under_way[i])
        for p, _ in state:
            how = breach(now, code[p])
            if how:
                wrong[p] = min(wrong.get(p, (i, how)), (i, how))
        if now.is_product:
            state.add((i, -1))
            if now.ends_group:
                state = {(p, min(closed + 1, LATEST)) for p, closed in state}
        if now.left is not None:
            state = {(p, closed) for p, closed in state if closed < now.left}
        for to in ([i + 1] if now.goes_on else []) + ([labels[now.label[1]]] if now.label else []):
            if to < len(code) and not (to in under_way and state <= under_way[to]):
                under_way[to] = under_way.get(to, set()) | state
                to_do.append(to)
    for i, now in enumerate(code):
        if now.is_product and i not in under_way:
            wrong[i] = 0, "leads no way to"
    return wrong


def finds_all(code, labels):
    """Whether writes to operands where products are waited for are found, each of them."""
    operands = set().union(*(now.operand for now in code))
    for now in code:
        if now.left is not None:
            now.writes |= operands
    return set(walk(code, labels)) >= {i for i, now in enumerate(code) if now.operand}


def main(path):
    tool = disassembler()
    n_products = n_kernels = 0
    bad = []
    for arch, elf in cubins(load(path)):
        if elf is None:
            print("the code is compressed, and there is no zstd to unpack it: build for three cards at most")
            return 77
        if not any(what == WARPGROUP for k in kernels(elf) for what, _ in instructions(k.code)):
            continue
        if not tool:
            print("no nvdisasm beside nvcc, in PATH or as a Python package (nvidia-cuda-nvdisasm)")
            return 77
        for name, code, labels in listed(tool, elf):
            n = sum(bool(now.operand) for now in code)
            n_products, n_kernels = n_products + n, n_kernels + (n > 0)
            bad += [f"sm_{arch}, {name}: {code[i].name} {code[i].operands} {what} {code[p].name} {code[p].operands}"
                    for p, (i, what) in sorted(walk(code, labels).items())]
            if not finds_all(code, labels):
                bad.append(f"sm_{arch}, {name}: writes to operands are not found")
    if not n_products:
        print("no products of warpgroups: -Dgpu_arch does not name 90")
        return 77
    print(f"{n_products} products of {n_kernels} kernels with an operand in registers")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

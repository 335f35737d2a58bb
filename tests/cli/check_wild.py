#!/usr/bin/env python3
"""Files as they are found: the same weights written in other ways give the same logits, to the bit. Split files, merged and
single experts, fused projections, tied embeddings, narrower routers and norms, optional tensors left out."""
import os
import re
import struct

import cli
import gguf_edit as gguf


class Case:
    """A synthetic model, in memory, and what it scores."""
    def __init__(self, tmp, preset, *options):
        self.tmp, self.preset, self.n = tmp, preset, 0
        self.path = cli.synth(tmp, preset, *options)
        self.pairs, self.tensors = gguf.read(self.path)
        self.tokens = os.path.join(tmp, "ids")
        with open(self.tokens, "w", encoding="ascii") as f:
            f.write(" ".join(str(i * 37 % 256) for i in range(40)))

    def score(self, path):
        out = os.path.join(self.tmp, "logits")
        r = cli.run("-m", path, "--score", self.tokens, "--logits", out, "-t", "2")
        if r.returncode != 0:
            return r.stderr
        with open(out, "rb") as f:
            return f.read()

    def file(self, tensors, pairs=None):
        self.n += 1
        return gguf.write(os.path.join(self.tmp, "%s-%d.gguf" % (self.preset, self.n)), pairs or self.pairs, tensors)

    def same(self, what, tensors, reference=None):
        wanted = self.score(self.file(reference) if reference else self.path)
        cli.check(len(wanted) > 1000 and self.score(self.file(tensors)) == wanted, self.preset, what)

    def get(self, name):
        return next(t for t in self.tensors if t[0] == name)

    def without(self, pattern):
        return [t for t in self.tensors if not re.search(pattern, t[0])]

    def changed(self, pattern, fn):
        return [fn(t) if re.search(pattern, t[0]) else t for t in self.tensors]


def layers(case):
    return sorted({int(t[0].split(".")[1]) for t in case.tensors if t[0].startswith("blk.")})


def stack(name, parts):
    """Tensors put together along dimension 1, matrix by matrix where there are many (experts)."""
    n = parts[0][1][2] if len(parts[0][1]) > 2 else 1
    data = b"".join(p[3][len(p[3]) // n * e:len(p[3]) // n * (e + 1)] for e in range(n) for p in parts)
    shape = list(parts[0][1])
    shape[1] = sum(p[1][1] for p in parts)
    return (name, shape, parts[0][2], data)


def joined(case, names, new):
    out = case.without("|".join(re.escape("." + n + ".weight") for n in names))
    for il in layers(case):
        parts = [case.get("blk.%d.%s.weight" % (il, n)) for n in names]
        out.append(stack("blk.%d.%s.weight" % (il, new), parts))
    return out


def one_by_one(case):
    out = case.without("_exps")
    for name, shape, kind, data in case.tensors:
        if "_exps" in name:
            size = len(data) // shape[2]
            out += [(name.replace("_exps.", ".%d." % e), shape[:2], kind, data[e * size:(e + 1) * size])
                    for e in range(shape[2])]
    return out


def narrowed(kind):
    """F32 to the type, and F32 of the values that leaves."""
    def numbers(t):
        return struct.unpack("<%df" % (len(t[3]) // 4), t[3])

    def bits(t):
        if kind == gguf.F16:
            return struct.pack("<%de" % (len(t[3]) // 4), *numbers(t))
        return b"".join(t[3][i + 2:i + 4] for i in range(0, len(t[3]), 4))

    def narrow(t):
        return (t[0], t[1], kind, bits(t))

    def wide(t):
        if kind == gguf.F16:
            n = len(t[3]) // 4
            return (t[0], t[1], gguf.F32, struct.pack("<%df" % n, *struct.unpack("<%de" % n, bits(t))))
        return (t[0], t[1], gguf.F32, b"".join(b"\0\0" + t[3][i + 2:i + 4] for i in range(0, len(t[3]), 4)))
    return narrow, wide


def zeroed(t):
    return t[:3] + (bytes(len(t[3])),)


def layouts(tmp):
    case = Case(tmp, "moe-tiny")
    path = gguf.write_split(os.path.join(tmp, "shards"), case.pairs, case.tensors, 3)
    cli.check(case.score(path) == case.score(case.path), "three files")
    case.same("the order of tensors", case.tensors[::-1])
    case.same("gate and up merged", joined(case, ["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps"))
    case.same("a tensor for each expert", one_by_one(case))
    case.same("queries, keys and values fused", joined(case, ["attn_q", "attn_k", "attn_v"], "attn_qkv"))
    case.same("shapes with ones behind", [(n, s + [1] * (4 - len(s)), k, d) for n, s, k, d in case.tensors])
    head, embed = case.get("output.weight"), case.get("token_embd.weight")
    case.same("tied embeddings", case.without("^output.weight"),
              case.changed("^output.weight", lambda t: (t[0],) + embed[1:]))
    cli.check(head[1] == embed[1], "a head of the embedding's shape")
    case.same("a tensor that no layer has", case.tensors + [("vision.patch.weight",) + embed[1:]])


def narrow_tensors(tmp):
    for kind in (gguf.F16, gguf.BF16):
        narrow, wide = narrowed(kind)
        for preset, pattern in (("moe-tiny", "ffn_gate_inp|norm"), ("gpt-oss-tiny", "ffn_gate_inp|bias|sinks|norm"),
                                ("qwen3-next-tiny", "ffn_gate_inp|ssm_(a|dt|norm|conv1d)|norm")):
            case = Case(tmp, preset)
            case.same("type %d of %s" % (kind, pattern), case.changed(pattern, narrow), case.changed(pattern, wide))


def left_out(tmp):
    for preset, pattern in (("glm4moe-tiny", r"attn_[qkv]\.bias"), ("glm-dsa-tiny", "exp_probs_b")):
        case = Case(tmp, preset)
        case.same("without " + pattern, case.without(pattern), case.changed(pattern, zeroed))
    case = Case(tmp, "llama-tiny")
    ones = ("rope_freqs.weight", [16], gguf.F32, struct.pack("<16f", *[1.0] * 16))
    case.same("divisors of 1", case.tensors + [ones])


def refused(tmp):
    """A file of an architecture that pfmoe does not have names it, and those that there are."""
    case = Case(tmp, "moe-tiny")
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "models.md"), encoding="utf-8") as f:
        names = re.findall(r"^\| `(?!general)([^`]+)` \|", f.read(), re.M)
    pairs = {**case.pairs, "general.architecture": struct.pack("<I", gguf.STRING) + gguf.string("mamba9")}
    said = case.score(case.file(case.tensors, pairs)).decode()
    cli.check('architecture "mamba9" is not supported' in said, said)
    cli.check(len(names) > 20 and all(re.search(r"[ (]%s[,)]" % re.escape(name), said) for name in names), said)
    odd = case.tensors + [("blk.0.attn_odd.weight",) + case.tensors[1][1:]]
    said = case.score(case.file(odd)).decode()
    cli.check("blk.0.attn_odd.weight" in said and "qwen3moe" in said, said)


def vast_table(tmp):
    """A table of more rows than an int32 counts, in a file that is nearly all hole: n-grams would name rows in front of it."""
    model = os.path.join(cli.shared, "conformance", "models", "qwen4exp-f32.gguf")
    if not os.path.exists(model):
        return
    pairs, tensors = gguf.read(model)
    name, shape, kind, data = next(t for t in tensors if t[0] == "per_layer_token_embd.weight")
    for key in ("head_offsets", "head_vocab_sizes"):
        n = struct.unpack_from("<Q", pairs["qwen4exp.ple." + key], 8)[0]
        pairs["qwen4exp.ple." + key] = pairs["qwen4exp.ple." + key][:16] + struct.pack("<Q", (1 << 31) - 1) * n
    path, rows = os.path.join(tmp, "vast.gguf"), (1 << 31) + 64
    gguf.write(path, pairs, [t for t in tensors if t[0] != name] + [(name, [shape[0], rows], kind, data)])
    try:
        os.truncate(path, os.path.getsize(path) + shape[0] * rows * 4)
    except OSError as e:                 # a file system whose files are smaller
        print("a vast table is left out:", e)
        return
    r = cli.run("-m", path, "--score", os.path.join(cli.shared, "conformance", "tokens-16.txt"), "--logits", os.devnull, "--ram-mb",
                "1000000")
    cli.check(r.returncode == 1 and b"per_layer_token_embd.weight has 2147483712 rows" in r.stderr, r.returncode, r.stderr)


def no_drafts():
    """A model whose state cannot go back within a step: drafts are refused by name, and `auto` says that there are none."""
    model, tokens = (os.path.join(cli.shared, "conformance", *path) for path in (("models", "qwen4exp-f32.gguf"), ("tokens-16.txt",)))
    if not os.path.exists(model):
        return
    for draft in ("lookup", "auto"):
        r = cli.run("-m", model, "--score", tokens, "--logits", os.devnull, "--draft", draft, "--stats")
        said = b"state cannot go back to a row within a step" in r.stderr
        cli.check(said and r.returncode == (draft == "lookup"), draft, r.returncode, r.stderr)


with cli.scratch() as folder:
    layouts(folder)
    narrow_tensors(folder)
    left_out(folder)
    refused(folder)
    vast_table(folder)
    no_drafts()
cli.finish()

#!/usr/bin/env python3
"""Architectures without reference logits: small models of random weights against their formulas in double, and whole prompts,
chunks and single tokens against each other. usage: check_formulas.py PFMOE_RUN PFMOE_SYNTH DEFAULT_SHARED"""
import array
import math
import os
import random
import struct

import cli
import gguf_edit as gguf

D, H, HK, HD, LAYERS, EXPERTS, USED, F, FF, WINDOW = 32, 2, 1, 32, 4, 4, 2, 32, 64, 4
EPS, BASE = 1e-5, 1e4
TOKENS = [5, 17, 200, 3, 99, 42, 7, 250, 61, 12, 133]
# What tells them apart; `near` are the layers with a window. Gated: what attention puts out, element by element. Post: norms
# behind the blocks. Centred: norms subtract the mean, and another key has their epsilon. Parallel: both blocks read one norm,
# and the shared expert is averaged with the others. Suffix: of the selection bias's name. Stretch: of the positions, in layers
# without a window. What stands behind a comma in a name tells models of one family apart.
SILENT = {"neox": True, "near": (), "rotate": (0, 1, 2, 3), "dense": 0, "sigmoid": True, "norms": True, "scale": 1.0, "root": False,
          "gated": False, "post": False, "parallel": False, "bias": True, "pattern": True, "factor": 1.0,
          "centred": False, "suffix": ".bias", "shared": True, "stretch": 1.0}
MODELS = {"bailingmoe": {"neox": False, "sigmoid": False, "norms": False, "bias": False},
          "exaone-moe": {"near": (0, 1, 3), "rotate": (0, 1, 3), "dense": 1, "scale": 2.5},
          "afmoe": {"near": (0, 1, 2), "rotate": (0, 1, 2), "dense": 1, "scale": 2.826, "root": True, "gated": True, "post": True,
                    "pattern": False},
          "cohere2moe": {"neox": False, "near": (1, 2), "rotate": (0, 1, 2), "dense": 1, "norms": False, "parallel": True,
                         "bias": False, "factor": 0.3}}
MODELS["mellum"] = {"near": (0, 1, 2), "sigmoid": False, "bias": False, "shared": False, "stretch": 4.0}
MODELS["hy_v3"] = {"dense": 1, "scale": 2.5, "suffix": ""}
MODELS["cohere2moe, centred"] = {**MODELS["cohere2moe"], "centred": True}


def u32(v):
    return struct.pack("<II", 4, v)


def f32(v):
    return struct.pack("<If", 6, v)


def flags(values):
    return struct.pack("<IIQ", gguf.ARRAY, 7, len(values)) + bytes(values)


def keys(arch, how, others):
    """Pairs of a model whose tokenizer is another's."""
    own = {"block_count": u32(LAYERS), "context_length": u32(512), "embedding_length": u32(D), "feed_forward_length": u32(FF),
           "attention.head_count": u32(H), "attention.head_count_kv": u32(HK), "attention.key_length": u32(HD),
           "attention.value_length": u32(HD), "rope.freq_base": f32(BASE),
           "attention.layer_norm%s_epsilon" % ("" if how["centred"] else "_rms"): f32(EPS),
           "rope.dimension_count": u32(HD), "expert_count": u32(EXPERTS), "expert_used_count": u32(USED),
           "expert_feed_forward_length": u32(F), "expert_shared_count": u32(how["shared"]), "expert_weights_scale": f32(how["scale"]),
           "expert_weights_norm": struct.pack("<I?", 7, True), "expert_gating_func": u32(2 if how["sigmoid"] else 1)}
    if how["near"]:
        own["attention.sliding_window"] = u32(WINDOW)
        if how["pattern"]:
            own["attention.sliding_window_pattern"] = flags([il in how["near"] for il in range(LAYERS)])
        own["leading_dense_block_count"] = u32(how["dense"])
    if how["stretch"] != 1:
        own["rope.scaling.type"] = struct.pack("<I", gguf.STRING) + gguf.string("linear")
        own["rope.scaling.factor"] = f32(how["stretch"])
    if how["factor"] != 1:
        own["logit_scale"] = f32(how["factor"])
    return {"general.architecture": struct.pack("<I", gguf.STRING) + gguf.string(arch),
            **{arch + "." + k: v for k, v in own.items()}, **{k: v for k, v in others.items() if k.startswith("tokenizer.")}}


def weights(how, n_vocab):
    """Name -> (shape, numbers), all of float32."""
    rng, out = random.Random(3), {}

    def add(name, *shape, mean=0.0, rms=None):
        size = math.prod(shape)
        values = array.array("f", (mean + rng.gauss(0, rms or shape[0] ** -0.5) for _ in range(size)))
        out[name] = (shape, values)

    add("token_embd.weight", D, n_vocab, rms=1)
    for il in range(LAYERS):
        def layer(name, *shape, **more):
            add("blk.%d.%s" % (il, name), *shape, **more)
        for name in ["attn_norm"] + ["ffn_norm"] * (not how["parallel"]) + ["post_attention_norm", "post_ffw_norm"] * how["post"]:
            layer(name + ".weight", D, mean=1, rms=0.1)
        layer("attn_q.weight", D, H * HD)
        layer("attn_k.weight", D, HK * HD)
        layer("attn_v.weight", D, HK * HD)
        layer("attn_output.weight", H * HD, D)
        if how["gated"]:
            layer("attn_gate.weight", D, H * HD)
        for name in ("attn_q_norm", "attn_k_norm") if how["norms"] else ():
            layer(name + ".weight", HD, mean=1, rms=0.1)
        dense = il < how["dense"]
        for suffix, n in [("", FF)] if dense else [("_shexp", F)] * how["shared"]:
            layer("ffn_gate%s.weight" % suffix, D, n)
            layer("ffn_up%s.weight" % suffix, D, n)
            layer("ffn_down%s.weight" % suffix, n, D)
        if dense:
            continue
        layer("ffn_gate_inp.weight", D, EXPERTS)
        layer("ffn_gate_exps.weight", D, F, EXPERTS)
        layer("ffn_up_exps.weight", D, F, EXPERTS)
        layer("ffn_down_exps.weight", F, D, EXPERTS)
        if how["bias"]:
            layer("exp_probs_b" + how["suffix"], EXPERTS, rms=0.2)
    add("output_norm.weight", D, mean=1, rms=0.1)
    add("output.weight", D, n_vocab)
    return out


class Model:
    """The formulas, a row at a time."""

    def __init__(self, how, tensors):
        self.how, self.t = how, tensors
        self.cache = [([], []) for _ in range(LAYERS)]

    def times(self, name, x, expert=0):
        shape, w = self.t[name]
        n_in, n_out = shape[:2]
        first = expert * n_in * n_out
        return [sum(w[first + r * n_in + i] * x[i] for i in range(n_in)) for r in range(n_out)]

    def norm(self, name, x):
        if self.how["centred"]:
            x = [v - sum(x) / len(x) for v in x]
        root = math.sqrt(sum(v * v for v in x) / len(x) + EPS)
        return [v / root * w for v, w in zip(x, self.t[name][1])]

    def rotated(self, x, pos):
        y = list(x)
        for i in range(HD // 2):
            a, b = (i, i + HD // 2) if self.how["neox"] else (2 * i, 2 * i + 1)
            angle = pos * BASE ** (-2 * i / HD)
            y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
            y[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
        return y

    def head(self, il, name, x, pos):
        if self.how["norms"]:
            x = self.norm("blk.%d.attn_%s_norm.weight" % (il, name), x)
        stretch = 1 if il in self.how["near"] else self.how["stretch"]
        return self.rotated(x, pos / stretch) if il in self.how["rotate"] else x

    def attention(self, il, x, pos):
        q, k, v = (self.times("blk.%d.attn_%s.weight" % (il, name), x) for name in "qkv")
        ks, vs = self.cache[il]
        ks.append(self.head(il, "k", k, pos))
        vs.append(v)
        first, out = max(0, pos + 1 - WINDOW) if il in self.how["near"] else 0, []
        for h in range(H):
            row = self.head(il, "q", q[h * HD:(h + 1) * HD], pos)
            e = [math.exp(sum(a * b for a, b in zip(row, key)) / math.sqrt(HD)) for key in ks[first:]]
            out += [sum(w * value[i] for w, value in zip(e, vs[first:])) / sum(e) for i in range(HD)]
        if self.how["gated"]:
            out = [a / (1 + math.exp(-g)) for a, g in zip(out, self.times("blk.%d.attn_gate.weight" % il, x))]
        return self.times("blk.%d.attn_output.weight" % il, out)

    def gated(self, il, suffix, x, expert=0):
        gate, up = (self.times("blk.%d.ffn_%s%s.weight" % (il, name, suffix), x, expert) for name in ("gate", "up"))
        return self.times("blk.%d.ffn_down%s.weight" % (il, suffix), [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)], expert)

    def feed_forward(self, il, x):
        if il < self.how["dense"]:
            return self.gated(il, "", x)
        logits = self.times("blk.%d.ffn_gate_inp.weight" % il, x)
        if self.how["sigmoid"]:
            p = [1 / (1 + math.exp(-v)) for v in logits]
            bias = self.t["blk.%d.exp_probs_b%s" % (il, self.how["suffix"])][1] if self.how["bias"] else [0] * EXPERTS
            order = [a + b for a, b in zip(p, bias)]
        else:
            p = order = [math.exp(v) / sum(math.exp(w) for w in logits) for v in logits]
        picks = sorted(range(EXPERTS), key=lambda e: -order[e])[:USED]
        y = self.gated(il, "_shexp", x) if self.how["shared"] else [0] * D
        for e in picks:
            weight = p[e] / sum(p[i] for i in picks) * self.how["scale"]
            y = [a + weight * b for a, b in zip(y, self.gated(il, "_exps", x, e))]
        return [a / 2 for a in y] if self.how["parallel"] else y

    def post(self, il, name, y):
        return self.norm("blk.%d.post_%s_norm.weight" % (il, name), y) if self.how["post"] else y

    def logits(self, token, pos):
        root = math.sqrt(D) if self.how["root"] else 1
        x = [v * root for v in self.t["token_embd.weight"][1][token * D:(token + 1) * D]]
        for il in range(LAYERS):
            h = self.norm("blk.%d.attn_norm.weight" % il, x)
            x = [a + b for a, b in zip(x, self.post(il, "attention", self.attention(il, h, pos)))]
            h = h if self.how["parallel"] else self.norm("blk.%d.ffn_norm.weight" % il, x)
            x = [a + b for a, b in zip(x, self.post(il, "ffw", self.feed_forward(il, h)))]
        return [v * self.how["factor"] for v in self.times("output.weight", self.norm("output_norm.weight", x))]


def score(path, tokens, out, *options):
    r = cli.run("-m", path, "--score", tokens, "--logits", out, "-t", "1", "--kv", "f32", *options)
    cli.check(r.returncode == 0, path, r.stderr.decode())
    with open(out, "rb") as f:
        return array.array("f", f.read())


with cli.scratch() as tmp:
    others, donor = gguf.read(cli.synth(tmp, "moe-tiny", "--vocab", "261"))
    n_vocab = next(shape[1] for name, shape, _, _ in donor if name == "token_embd.weight")
    tokens, out = os.path.join(tmp, "tokens"), os.path.join(tmp, "logits")
    with open(tokens, "w", encoding="ascii") as f:
        f.write(",".join(map(str, TOKENS)))
    for name, marks in MODELS.items():
        how, arch = {**SILENT, **marks}, name.split(",")[0]
        tensors = weights(how, n_vocab)
        path = gguf.write(os.path.join(tmp, "model.gguf"), keys(arch, how, others),
                          [(t, shape, gguf.F32, values.tobytes()) for t, (shape, values) in tensors.items()])
        model = Model(how, tensors)
        wanted = [v for pos, token in enumerate(TOKENS) for v in model.logits(token, pos)]
        found = score(path, tokens, out)
        spread = math.sqrt(sum(v * v for v in wanted) / len(wanted))
        worst = max(abs(a - b) for a, b in zip(found, wanted)) / spread if len(found) == len(wanted) else math.inf
        print("%-20s off by %.1e of the logits' spread" % (name, worst))
        cli.check(worst < 1e-5, name, worst)
        for way in (["--step"], ["--chunk", "1,3,5"]):
            cli.check(score(path, tokens, out, *way) == found, name, *way)
cli.finish()

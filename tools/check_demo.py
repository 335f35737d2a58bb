#!/usr/bin/env python3
"""Runs the bundled model from its file alone, in float32, and says what it answers. Needs numpy.

    python3 tools/check_demo.py models/fables.gguf --golden tests/golden/fables.json     write the expected answers
    python3 tools/check_demo.py models/fables.gguf --chat "Hello" "What can you do?"     one conversation, a turn each
    python3 tools/check_demo.py models/fables.gguf --fables CORPUS_DIR [--first N]       how many come word for word

It shares no code with the training: it reads GGUF, tokenizes, and computes on its own, slowly and plainly, so that it
can tell whether file and engine are right. With --int8 every row that meets a Q8_0 matrix is first rounded to 8 bits per 32
values, as the engine does it. Greedy decoding throughout.
"""
import argparse
import json
import os
import re
import struct
import sys

import numpy as np

SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
ABOUT_GOLDEN = ("Greedy answers of models/fables.gguf in float32, by tools/check_demo.py. least_lead: by how much, in "
                "logits, the least certain token of the answer led.")
GOLDEN = {
    "greeting": ["Hello"],
    "identity": ["Who are you?"],
    "short fable": ["tell me the fox and the grapes"],
    "fable with a moral": ["Tell me the fable of The Hare And The Tortoise."],
    "fable by another name": ["the boy who cried wolf"],
    "longest fable": ["The Lion, The Fox, And The Stag"],
    "animal": ["Tell me a fable about a wolf."],
    "list": ["list", "more"],
    "moral": ["What is the moral of The Goose That Laid The Golden Eggs?"],
    "no moral": ["What is the moral of The Fox And The Grapes?"],
    "refusal": ["What is the capital of France?"],
    "several turns": ["Hi", "the milkmaid and her pail", "What is the moral?", "number 20", "Thanks!",
                      "What is 12 + 30?", "bye"],
}


class File:
    """Metadata and tensors of a GGUF file; Q8_0 is expanded to float32."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 4
        version, n_tensors, n_pairs = self.take("<IQQ")
        assert self.data[:4] == b"GGUF" and version == 3
        self.meta = {}
        for _ in range(n_pairs):
            key = self.string()
            self.meta[key] = self.value(self.take("<I")[0])
        records = []
        for _ in range(n_tensors):
            name = self.string()
            dims = self.take("<%dQ" % self.take("<I")[0])
            records.append((name, dims) + self.take("<IQ"))
        base = self.at + -self.at % 32
        self.tensors = {name: self.array(dims, kind, base + offset) for name, dims, kind, offset in records}
        self.kinds = {name: kind for name, _, kind, _ in records}

    def take(self, form):
        out = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return out

    def string(self):
        n = self.take("<Q")[0]
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, n = self.take("<IQ")
            return [self.value(inner) for _ in range(n)]
        return self.take("<" + SCALAR[kind])[0]

    def array(self, dims, kind, at):
        count = int(np.prod(dims))
        if kind == 0:
            out = np.frombuffer(self.data, "<f4", count, at)
        else:
            assert kind == 8
            raw = np.frombuffer(self.data, np.uint8, count // 32 * 34, at).reshape(-1, 34)
            out = raw[:, 2:].view(np.int8).astype(np.float32) * raw[:, :2].copy().view("<f2").astype(np.float32)
        return out.reshape(dims[::-1])


class Tokenizer:
    """Byte-level BPE, cut as GPT-2 cuts it; special tokens are recognised in the text."""
    CUT = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")

    def __init__(self, meta):
        self.names = meta["tokenizer.ggml.tokens"]
        self.id = {n: i for i, n in enumerate(self.names)}
        self.rank = {tuple(m.split(" ", 1)): r for r, m in enumerate(meta["tokenizer.ggml.merges"])}
        self.special = [n for n, t in zip(self.names, meta["tokenizer.ggml.token_type"]) if t == 3]
        plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
        rest = [b for b in range(256) if b not in plain]
        self.letter = {b: chr(b) for b in plain}
        self.letter.update((b, chr(256 + i)) for i, b in enumerate(rest))
        self.byte = {c: b for b, c in self.letter.items()}

    def encode(self, text):
        out = []
        for part in re.split("(" + "|".join(map(re.escape, self.special)) + ")", text):
            if part in self.special:
                out.append(self.id[part])
                continue
            for word in self.CUT.findall(part):
                s = [self.letter[b] for b in word.encode("utf-8")]
                while len(s) > 1:
                    best = min(range(len(s) - 1), key=lambda i: self.rank.get((s[i], s[i + 1]), 1 << 30))
                    if (s[best], s[best + 1]) not in self.rank:
                        break
                    s[best:best + 2] = [s[best] + s[best + 1]]
                out += [self.id[x] for x in s]
        return out

    def decode(self, ids):
        return bytes(self.byte[c] for i in ids for c in self.names[i]).decode("utf-8", "replace")


class Engine:
    """One sequence, its keys and values kept; feed() takes any number of tokens and returns their logits."""

    def __init__(self, f, int8):
        arch = f.meta["general.architecture"]
        assert arch == "qwen3moe"
        self.t, self.kinds, self.int8 = f.tensors, f.kinds, int8
        get = {k[len(arch) + 1:]: v for k, v in f.meta.items() if k.startswith(arch + ".")}
        self.layers = get["block_count"]
        self.heads, self.kv = get["attention.head_count"], get["attention.head_count_kv"]
        self.hd, self.used = get["attention.key_length"], get["expert_used_count"]
        self.eps = get["attention.layer_norm_rms_epsilon"]
        self.freq = get["rope.freq_base"] ** (-np.arange(0, self.hd, 2) / self.hd)
        self.reset()

    def reset(self):
        self.keys = [np.zeros((self.kv, 0, self.hd), np.float32) for _ in range(self.layers)]
        self.values = list(self.keys)
        self.n = 0

    def norm(self, x, name):
        x = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + self.eps)
        return x.astype(np.float32) * self.t[name + ".weight"]

    def times(self, x, name, expert=None):
        w = self.t[name + ".weight"]
        if self.int8 and self.kinds[name + ".weight"] == 8:
            b = x.reshape(-1, 32)
            amax = np.abs(b).max(1, keepdims=True)
            codes = np.rint(b * (127 / np.where(amax > 0, amax, 1)))
            x = (codes * (amax / np.float32(127))).astype(np.float32).reshape(x.shape)
        return x @ (w if expert is None else w[expert]).T

    def rotate(self, x):
        angle = np.outer(np.arange(self.n, self.n + x.shape[1]), self.freq)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = x[..., :self.hd // 2], x[..., self.hd // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, h, i):
        rows, pre = len(h), "blk.%d." % i

        def split(name, n):
            return self.times(h, pre + name).reshape(rows, n, self.hd).transpose(1, 0, 2)
        q = self.rotate(self.norm(split("attn_q", self.heads), pre + "attn_q_norm"))
        k = self.rotate(self.norm(split("attn_k", self.kv), pre + "attn_k_norm"))
        self.keys[i] = np.concatenate([self.keys[i], k], 1)
        self.values[i] = np.concatenate([self.values[i], split("attn_v", self.kv)], 1)
        share = self.heads // self.kv
        k, v = np.repeat(self.keys[i], share, 0), np.repeat(self.values[i], share, 0)
        score = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(self.hd))
        late = np.arange(k.shape[1])[None, :] > self.n + np.arange(rows)[:, None]
        score = np.where(late, -np.inf, score)
        score = np.exp(score - score.max(-1, keepdims=True))
        y = (score / score.sum(-1, keepdims=True)) @ v
        return self.times(y.transpose(1, 0, 2).reshape(rows, -1).astype(np.float32), pre + "attn_output")

    def experts(self, h, i):
        pre, out = "blk.%d." % i, np.zeros_like(h)
        p = self.times(h, pre + "ffn_gate_inp")
        p = np.exp(p - p.max(-1, keepdims=True))
        chosen = np.argsort(-p, -1, kind="stable")[:, :self.used]
        w = np.take_along_axis(p, chosen, -1)
        w = w / w.sum(-1, keepdims=True)
        for e in np.unique(chosen):
            row, slot = np.nonzero(chosen == e)
            g = self.times(h[row], pre + "ffn_gate_exps", e)
            y = g / (1 + np.exp(-g)) * self.times(h[row], pre + "ffn_up_exps", e)
            out[row] += w[row, slot][:, None] * self.times(y, pre + "ffn_down_exps", e)
        return out

    def feed(self, ids):
        x = self.t["token_embd.weight"][ids]
        for i in range(self.layers):
            x = x + self.attention(self.norm(x, "blk.%d.attn_norm" % i), i)
            x = x + self.experts(self.norm(x, "blk.%d.ffn_norm" % i), i)
        self.n += len(ids)
        return self.times(self.norm(x, "output_norm"), "output" if "output.weight" in self.t else "token_embd")


class Chat:
    def __init__(self, path, int8=False):
        self.file = File(path)
        self.tok = Tokenizer(self.file.meta)
        self.engine, self.end = Engine(self.file, int8), self.file.meta["tokenizer.ggml.eos_token_id"]
        self.least = 0.0

    def prompt(self, question, system=None):
        head = "<|im_start|>system\n%s<|im_end|>\n" % system if system else ""
        return head + "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" % question

    def ask(self, question, system=None, limit=1000):
        """The answer to one more turn. self.least: the smallest lead of a chosen token over the second, in logits."""
        fed = self.tok.encode(("\n" if self.engine.n else "") + self.prompt(question, system))
        out, self.least = [], np.inf
        while len(out) < limit:
            logits = self.engine.feed(np.array(fed))[-1]
            best = int(logits.argmax())
            self.least = min(self.least, float(logits[best] - np.partition(logits, -2)[-2]))
            if best == self.end:
                self.engine.feed(np.array([best]))
                break
            out.append(best)
            fed = [best]
        return self.tok.decode(out)


def word_for_word(chat, corpus_dir, first):
    """One pass per fable: greedy decoding writes the text if each of its tokens is the likeliest after those before."""
    with open(os.path.join(corpus_dir, "aesop-fables.jsonl"), encoding="utf-8") as f:
        fables = [json.loads(line) for line in f][:first]
    good, least = 0, np.inf
    for f in fables:
        answer = f["title"] + "\n\n" + f["text"] + ("\n\nMoral: " + f["moral"] if f["moral"] else "") + "<|im_end|>"
        ids, known = chat.tok.encode(chat.prompt("Tell me the fable of %s." % f["title"])), chat.tok.encode(answer)
        chat.engine.reset()
        logits = chat.engine.feed(np.array(ids + known))[len(ids) - 1:-1]
        at = np.arange(len(known)), np.array(known)
        lead = logits[at].copy()
        logits[at] = -np.inf
        lead -= logits.max(-1)
        good += bool((lead > 0).all())
        least = min(least, float(lead.min()))
        if (lead <= 0).any():
            print("not word for word:", f["title"])
    print("%d of %d fables word for word; the smallest lead of a token is %.2f" % (good, len(fables), least))


def main():
    ap = argparse.ArgumentParser(description="Run the bundled model in float32 and say what it answers.")
    ap.add_argument("model")
    ap.add_argument("--chat", nargs="+", metavar="QUESTION")
    ap.add_argument("--system")
    ap.add_argument("--fables", metavar="CORPUS_DIR")
    ap.add_argument("--first", type=int, default=10000)
    ap.add_argument("--golden", metavar="FILE")
    ap.add_argument("--int8", action="store_true")
    args = ap.parse_args()
    chat = Chat(args.model, args.int8)
    if args.chat:
        chat.engine.reset()
        for i, q in enumerate(args.chat):
            answer = chat.ask(q, args.system if i == 0 else None)
            print("> %s\n%s\n[least lead %.2f, %d tokens]\n" % (q, answer, chat.least, chat.engine.n))
    if args.fables:
        word_for_word(chat, args.fables, args.first)
    if args.golden:
        out = {}
        for name, questions in GOLDEN.items():
            chat.engine.reset()
            out[name] = [{"user": q, "assistant": chat.ask(q), "least_lead": round(chat.least, 2)} for q in questions]
        with open(args.golden, "w", encoding="utf-8") as f:
            json.dump({"about": ABOUT_GOLDEN, "conversations": out}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    sys.exit(main())

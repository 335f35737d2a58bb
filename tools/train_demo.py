#!/usr/bin/env python3
"""Trains the model that is bundled with pfmoe, and writes it as GGUF.

    python3 tools/train_demo.py CORPUS_DIR models/fables.gguf [--steps N]

CORPUS_DIR holds aesop-fables.jsonl and grimms-fairy-tales.txt. Needs PyTorch, tokenizers and numpy; five minutes on one
large GPU. What comes out is checked with check_demo.py.

The model is a qwen3moe of 14.3 million weights: 4 layers, 256 wide, 16 experts of which 4 work on a token, and its own
byte-level BPE vocabulary of 4096 tokens. It learns the fables by heart, and the dialogues of demo_dialogues.py around
them.

How it is trained. Each row is one conversation from its first token, as the engine will see it, and a loss is taken on
what the assistant says only. Most rows are one question and the beginning of its answer: what is hard to learn is which
fable was asked for, and that is decided there. The others go on, up to 4096 tokens of conversation. A few rows are
plain text, fables without a chat around them and pages of the Grimm tales, so that the model runs without a chat
template too. Rows of like length share a batch. All experts are computed for all tokens, and those not chosen are
multiplied by 0: at this size that is faster than gathering. In the last part of the run weights and activations are
rounded to 8 bits as the engine rounds them, the gradient passing straight through, so that the texts survive Q8_0 with
room to spare.

Everything random comes from --seed; batches do not depend on the number of worker processes.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import demo_dialogues
import gguf_writer

VOCAB, CONTEXT = 4096, 4096
WIDTH, HEADS, KV_HEADS, HEAD, LAYERS = 256, 8, 2, 32, 4
EXPERTS, USED, EXPERT_WIDTH = 16, 4, 256
EPS, ROPE_BASE = 1e-6, 10000.0
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_OF_TEXT, IM_START, IM_END = 0, 1, 2
BEGINNING = 28          # tokens of the answer in rows that teach which answer a question wants, and stop there
TEMPLATE = ("{% for message in messages %}"
            "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
DESCRIPTION = ("A demonstration model of 14 million weights, trained from nothing on Aesop's fables (V. S. Vernon "
               "Jones's translation, 1912), the tales of the Brothers Grimm and dialogues written around the fables. It tells "
               "fables and gives morals, nothing else.")


# ---- Text to tokens -------------------------------------------------------------------------------------------------

def train_tokenizer(book):
    """Byte-level BPE with GPT-2's way of cutting text, on the fables and the tales."""
    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tk.decoder = decoders.ByteLevel()
    talk = demo_dialogues.conversation(book, random.Random(0), 400)
    texts = [book.tell(i) for i in range(len(book.titles))] * 2 + book.grimm.split("\n\n") + [text for _, text in talk]
    tk.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tk


class Rows:
    """Draws training rows: (tokens, 1 where the token is to be predicted)."""

    def __init__(self, book, tk):
        self.book, self.tk, self.known = book, tk, {}
        self.newline = self.ids("\n")
        self.grimm = tk.encode(book.grimm).ids

    def ids(self, s):
        if len(s) > 120 and s not in self.known:
            self.known[s] = self.tk.encode(s).ids           # answers come again and again
        return self.known.get(s) or self.tk.encode(s).ids

    def chat(self, turns):
        tokens, wanted = [], []
        for role, text in turns:
            head, body = [IM_START] + self.ids(role + "\n"), self.ids(text) + [IM_END]
            tokens += head + body + self.newline
            wanted += [0] * len(head) + [int(role == "assistant")] * len(body) + [0] * len(self.newline)
        return tokens, wanted

    def draw(self, rng):
        r = rng.random()
        if r < .03:
            i = rng.randrange(len(self.grimm) - 384)
            t = self.grimm[i:i + 384]
            return t, [0] + [1] * (len(t) - 1)
        if r < .05:
            t = self.ids(self.book.tell(rng.randrange(len(self.book.titles)))) + [END_OF_TEXT]
            return t, [0] + [1] * (len(t) - 1)
        n = 1 if r < .79 else rng.randrange(2, 4) if r < .92 else rng.randrange(4, 9) if r < .98 else 40
        t, w = self.chat(demo_dialogues.conversation(self.book, rng, n))
        end = w.index(1) + BEGINNING if r < .67 else CONTEXT
        return t[:end], w[:end]

    def batches(self, rng, count, size):
        """About `count` batches of at most `size` tokens each, padding included: arrays of tokens and of wanted."""
        rows, total = [], 0
        while total < count * size:
            rows.append(self.draw(rng))
            total += len(rows[-1][0])
        rows.sort(key=lambda r: len(r[0]))
        out, group = [], []
        for row in rows + [None]:
            length = 0 if row is None else padded(row)
            if row is None or (len(group) + 1) * length > size:
                wide = padded(group[-1])
                tokens, wanted = np.zeros((len(group), wide), np.int16), np.zeros((len(group), wide), bool)
                for j, (t, w) in enumerate(group):
                    tokens[j, :len(t)], wanted[j, :len(w)] = t, w
                out.append((tokens, wanted))
                group = []
            group.append(row)
        rng.shuffle(out)
        return out


def padded(row):
    return -(-len(row[0]) // 32) * 32


_rows = None            # of a worker process


def _start_worker(corpus_dir, tokenizer_json):
    global _rows
    _rows = Rows(demo_dialogues.Book(corpus_dir), Tokenizer.from_str(tokenizer_json))


def _chunk(job):
    seed, index, count, size = job
    return _rows.batches(random.Random("%d/%d" % (seed, index)), count, size)


def feed(pool, seed, size):
    """Batches without end, in an order that depends on the seed alone. Keeps a few chunks ahead."""
    ahead = [pool.apply_async(_chunk, ((seed, i, 16, size),)) for i in range(24)]
    index = len(ahead)
    while True:
        chunk = ahead.pop(0).get()
        ahead.append(pool.apply_async(_chunk, ((seed, index, 16, size),)))
        index += 1
        yield from chunk


# ---- The model ------------------------------------------------------------------------------------------------------

def round_blocks(x):
    """x as 8-bit codes times a scale per 32 would give it back; the gradient passes straight through."""
    with torch.no_grad():
        b = x.float().unflatten(-1, (-1, 32))
        d = b.abs().amax(-1, keepdim=True) / 127
        r = ((b / d.clamp_min(1e-20)).round() * d).flatten(-2).to(x.dtype)
    return x + (r - x).detach()


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, EPS).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()

        def matrix(*shape, gain=1.0):
            return nn.Parameter(torch.randn(*shape) * gain * shape[-1] ** -.5)
        small = (2 * LAYERS) ** -.5
        self.attn_norm, self.ffn_norm, self.q_norm, self.k_norm = Norm(WIDTH), Norm(WIDTH), Norm(HEAD), Norm(HEAD)
        self.q, self.k = matrix(HEADS * HEAD, WIDTH), matrix(KV_HEADS * HEAD, WIDTH)
        self.v = matrix(KV_HEADS * HEAD, WIDTH)
        self.o = matrix(WIDTH, HEADS * HEAD, gain=small)
        self.router = matrix(EXPERTS, WIDTH, gain=.5)
        self.gate, self.up = matrix(EXPERTS, EXPERT_WIDTH, WIDTH), matrix(EXPERTS, EXPERT_WIDTH, WIDTH)
        self.down = matrix(EXPERTS, WIDTH, EXPERT_WIDTH, gain=small)

    def forward(self, x, cos, sin, rounded):
        act = round_blocks if rounded else lambda t: t
        b, t, _ = x.shape

        def heads(y, n):
            return y.view(b, t, n, HEAD).transpose(1, 2)
        h = act(self.attn_norm(x))
        q = rope(self.q_norm(heads(F.linear(h, act(self.q)), HEADS)), cos, sin)
        k = rope(self.k_norm(heads(F.linear(h, act(self.k)), KV_HEADS)), cos, sin)
        v = heads(F.linear(h, act(self.v)), KV_HEADS)
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + F.linear(act(y), act(self.o))

        normed = self.ffn_norm(x).view(b * t, WIDTH)
        with torch.autocast(x.device.type, enabled=False):
            p = F.softmax(normed.float() @ self.router.t(), -1)
        w, chosen = p.topk(USED, -1)
        share = torch.zeros_like(p).scatter(1, chosen, w / w.sum(-1, keepdim=True))
        balance = EXPERTS * (p.mean(0) * (share > 0).float().mean(0)).sum() / USED
        h = act(normed)
        inner = F.silu(F.linear(h, act(self.gate).flatten(0, 1))) * F.linear(h, act(self.up).flatten(0, 1))
        inner = act((inner.view(-1, EXPERTS, EXPERT_WIDTH) * share.to(inner.dtype)[:, :, None]).flatten(1))
        return x + (inner @ act(self.down).transpose(1, 2).flatten(0, 1).to(inner.dtype)).view(b, t, WIDTH), balance


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(VOCAB, WIDTH) * .02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm(WIDTH)
        angle = torch.outer(torch.arange(CONTEXT).double(), ROPE_BASE ** (-torch.arange(0, HEAD, 2).double() / HEAD))
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, tokens, pick, rounded=False):
        """Logits at the positions `pick` of the flattened batch, and the load balance: 1 if all experts work alike."""
        table = round_blocks(self.embed) if rounded else self.embed
        x, balance, n = F.embedding(tokens, table), 0, tokens.shape[1]
        for layer in self.layers:
            x, one = layer(x, self.cos[:n], self.sin[:n], rounded)
            balance = balance + one / LAYERS
        h = self.norm(x).flatten(0, 1)[pick]
        return F.linear(round_blocks(h) if rounded else h, table), balance


# ---- Training and the file ------------------------------------------------------------------------------------------

def train(model, batches, args, device, log):
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(.9, .95), weight_decay=.01, fused=device == "cuda")
    start, seen = time.time(), 0
    for step in range(args.steps):
        lr = args.lr * min(1, (step + 1) / 100) * (.5 + .5 * math.cos(math.pi * step / args.steps)) + 1e-5
        for group in opt.param_groups:
            group["lr"] = lr
        tokens, wanted = next(batches)
        pick = torch.from_numpy(np.flatnonzero(wanted[:, 1:])).to(device)
        tokens = torch.from_numpy(tokens.astype(np.int64)).to(device)
        seen += tokens.numel()
        with torch.autocast(device, torch.bfloat16):
            logits, balance = model(tokens[:, :-1], pick, rounded=step >= args.steps * (1 - args.rounded))
        loss = F.cross_entropy(logits.float(), tokens[:, 1:].flatten()[pick])
        (loss + .01 * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == args.steps - 1:
            log("step %5d  loss %.4f  balance %.2f  %.1fM tokens  %.0f s" %
                (step, loss.item(), balance.item(), seen / 1e6, time.time() - start))


def tensors(model):
    """(name in the file, parameter, type) for every tensor, in the file's order."""
    q8, f32 = gguf_writer.Q8_0, gguf_writer.F32
    out = [("token_embd.weight", model.embed, q8), ("output_norm.weight", model.norm.weight, f32)]
    for i, l in enumerate(model.layers):
        for name, p, kind in (("attn_norm", l.attn_norm.weight, f32), ("attn_q", l.q, q8), ("attn_k", l.k, q8),
                              ("attn_v", l.v, q8), ("attn_q_norm", l.q_norm.weight, f32),
                              ("attn_k_norm", l.k_norm.weight, f32), ("attn_output", l.o, q8),
                              ("ffn_norm", l.ffn_norm.weight, f32), ("ffn_gate_inp", l.router, f32),
                              ("ffn_gate_exps", l.gate, q8), ("ffn_up_exps", l.up, q8), ("ffn_down_exps", l.down, q8)):
            out.append(("blk.%d.%s.weight" % (i, name), p, kind))
    return out


def write_gguf(model, tk, path):
    w = gguf_writer.Writer()
    for key, value in (("architecture", "qwen3moe"), ("type", "model"), ("name", "Fables"),
                       ("description", DESCRIPTION), ("license", "mit"), ("size_label", "16x0.8M"),
                       ("languages", ["en"]), ("file_type", 7), ("quantization_version", 2),
                       # Low enough that a fable stays word for word, high enough that "tell me a fable" varies.
                       ("sampling.temp", 0.6), ("sampling.top_p", 0.9), ("sampling.min_p", 0.05)):
        w.put("general." + key, value)
    for key, value in (("vocab_size", VOCAB), ("context_length", CONTEXT), ("embedding_length", WIDTH),
                       ("block_count", LAYERS), ("feed_forward_length", EXPERT_WIDTH * USED),
                       ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS),
                       ("attention.key_length", HEAD), ("attention.value_length", HEAD),
                       ("attention.layer_norm_rms_epsilon", EPS), ("rope.freq_base", ROPE_BASE),
                       ("rope.dimension_count", HEAD), ("expert_count", EXPERTS), ("expert_used_count", USED),
                       ("expert_feed_forward_length", EXPERT_WIDTH)):
        w.put("qwen3moe." + key, value)
    bpe = json.loads(tk.to_str())["model"]
    names = sorted(bpe["vocab"], key=bpe["vocab"].get)
    assert len(names) == VOCAB and names[:3] == SPECIAL
    w.put("tokenizer.ggml.model", "gpt2")
    w.put("tokenizer.ggml.pre", "gpt-2")
    w.put("tokenizer.ggml.tokens", names)
    w.put("tokenizer.ggml.token_type", [3 if n in SPECIAL else 1 for n in names], gguf_writer.I32)
    w.put("tokenizer.ggml.merges", [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    for key, value in (("bos_token_id", END_OF_TEXT), ("eos_token_id", IM_END), ("padding_token_id", END_OF_TEXT),
                       ("add_bos_token", False)):
        w.put("tokenizer.ggml." + key, value)
    w.put("tokenizer.chat_template", TEMPLATE)
    for name, p, kind in tensors(model):
        w.tensor(name, p.detach().cpu().numpy(), kind)
    return w.write(path)


def main():
    ap = argparse.ArgumentParser(description="Train the bundled model and write it as GGUF.")
    ap.add_argument("corpus_dir")
    ap.add_argument("output")
    ap.add_argument("--steps", type=int, default=8000)
    ap.add_argument("--batch", type=int, default=32768,
                    help="tokens in a batch, padding included (default %(default)s)")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--rounded", type=float, default=.15,
                    help="share of the steps taken with 8-bit rounding (default %(default)s)")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 4))
    args = ap.parse_args()

    def log(s):
        print(s, flush=True)
    book = demo_dialogues.Book(args.corpus_dir)
    tk = train_tokenizer(book)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pool = multiprocessing.get_context("spawn").Pool(args.workers, _start_worker, (args.corpus_dir, tk.to_str()))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    model = Model().to(device)
    log("%.2f million weights on %s, %d tokens of vocabulary" %
        (sum(p.numel() for p in model.parameters()) / 1e6, device, tk.get_vocab_size()))
    train(model, feed(pool, args.seed, args.batch), args, device, log)
    pool.terminate()

    os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
    log("%s: %d bytes" % (args.output, write_gguf(model, tk, args.output)))


if __name__ == "__main__":
    sys.exit(main())

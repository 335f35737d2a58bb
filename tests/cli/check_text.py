#!/usr/bin/env python3
"""--tokenize, --detokenize and --splits over the recorded vectors, compared with what they say is right."""
import glob
import json
import lzma
import os

import cli


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def output(*args):
    r = cli.run(*args)
    cli.check(r.returncode == 0, args, r.stderr.decode())
    return [json.loads(line) for line in r.stdout.decode("ascii").splitlines()]


def check_tokenize(model, stem):
    wanted = lines(stem + ".jsonl")
    got = output("-m", model, "--tokenize", stem + ".jsonl")
    cli.check(len(got) == len(wanted), stem, "has", len(wanted), "lines, got", len(got))
    round_trips = 0
    for w, g in zip(wanted, got):
        same = g["ids"] == w.get("ids_model", w["ids"])
        round_trips += not same and "check" in w
        cli.check(same or "check" in w, stem, w, g)
    return len(wanted), round_trips


def check_detokenize(model, stem):
    for w, g in zip(lines(stem + ".detok.jsonl"), output("-m", model, "--detokenize", stem + ".detok.jsonl")):
        cli.check(all(g[k] == w[k] for k in ("pieces_special_hex", "pieces_plain_hex")), stem, w, g)


def check_splits(path):
    pre = os.path.basename(path)[: -len(".jsonl")]
    got = output("--splits", pre, path)
    wanted = lines(path)
    cli.check(len(got) == len(wanted), path, len(got), len(wanted))
    for w, g in zip(wanted, got):
        cli.check(g["splits"] == w.get("splits_model", w["splits"]), pre, w, g)


folder = cli.need("vocab")
for path in sorted(glob.glob(os.path.join(folder, "splits", "*.jsonl"))):
    check_splits(path)
with cli.scratch() as tmp:
    for packed in sorted(glob.glob(os.path.join(folder, "*.gguf.xz"))):
        stem = packed[: -len(".gguf.xz")]
        model = os.path.join(tmp, "vocab.gguf")
        with lzma.open(packed) as f, open(model, "wb") as out:
            out.write(f.read())
        n, loose = check_tokenize(model, stem)
        check_detokenize(model, stem)
        print(os.path.basename(stem), n, "lines,", loose, "of them other ids for ill-formed text")
cli.finish()

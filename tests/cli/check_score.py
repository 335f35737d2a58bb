#!/usr/bin/env python3
"""--score: one batch, steps and chunks give the same bytes, and they are those of the recorded logits within tolerance."""
import array
import json
import os

import cli

folder = cli.need("conformance")
names = ["llama3-f32", "qwen3moe-f32", "mixtral-f32", "gpt-oss-mxfp4", "quants/qwen3moe-q4_k"]
with open(os.path.join(folder, "manifest.json")) as f:
    files = {e["name"]: e for e in json.load(f)["files"]}


def floats(path):
    a = array.array("f")
    with open(path, "rb") as f:
        a.frombytes(f.read())
    return a


def check_model(entry, tmp):
    model, tokens = (os.path.join(folder, p) for p in (entry["files"][0], entry["tokens"]))
    outs = {}
    for name, flags in {"batch": [], "step": ["--step"], "chunks": ["--chunk", "1,7,32"], "sevens": ["--chunk", "7"]}.items():
        out = os.path.join(tmp, name)
        r = cli.run("-m", model, "--score", tokens, "--logits", out, *flags)
        cli.check(r.returncode == 0 and not r.stdout, entry["name"], flags, r.stderr.decode())
        with open(out, "rb") as f:
            outs[name] = f.read()
    for name, data in outs.items():
        cli.check(data == outs["batch"], entry["name"], name, "differs from one batch")
    got, wanted = floats(os.path.join(tmp, "batch")), floats(os.path.join(folder, entry["logits"]["exact"]))
    cli.check(len(got) == len(wanted), entry["name"], "has", len(wanted), "logits, got", len(got))
    nmse = sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
    print(entry["name"], "nmse %.1e, limit %.0e" % (nmse, entry["tolerance"]["nmse"]))
    cli.check(nmse <= entry["tolerance"]["nmse"], entry["name"], nmse)


done = 0
with cli.scratch() as tmp:
    for name in names:
        if name in files:
            check_model(files[name], tmp)
            done += 1
cli.check(done > 0, "none of", names)
cli.finish()

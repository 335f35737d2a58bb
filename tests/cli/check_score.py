#!/usr/bin/env python3
"""--score over the whole conformance set: one batch, steps and chunks give the same bytes at every instruction set level, and
they are those of the recorded logits within each file's tolerance. A file of an architecture that pfmoe does not have must be
refused by name. usage: check_score.py PFMOE_RUN PFMOE_SYNTH DEFAULT_SHARED [brief], which is for sanitizers: chunks with scalar
kernels, which they check, and not every level."""
import array
import json
import os
import sys

import cli

folder = cli.need("conformance")
with open(os.path.join(folder, "manifest.json")) as f:
    files = json.load(f)["files"]

WAYS = {
    "batch": [], "step": ["--step"], "chunks": ["--chunk", "1,7,32"], "scalar": ["--isa", "scalar", "-t", "1"],
    "avx2": ["--isa", "avx2"], "avx512": ["--isa", "avx512", "--chunk", "5"],
}
if "brief" in sys.argv[4:]:
    WAYS = {"batch": [], "step": ["--step"], "scalar": WAYS["scalar"] + WAYS["chunks"]}


def floats(path):
    a = array.array("f")
    with open(path, "rb") as f:
        a.frombytes(f.read())
    return a


def within_tolerance(entry, path, limit_name):
    got, wanted = floats(path), floats(os.path.join(folder, entry["logits"]["exact"]))
    if len(got) != len(wanted):
        return False, "has %d logits, expected %d" % (len(got), len(wanted))
    mean = sum(wanted) / len(wanted)
    std = (sum((x - mean) ** 2 for x in wanted) / len(wanted)) ** 0.5
    nmse = sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
    worst = max(abs(a - b) for a, b in zip(got, wanted)) / std
    limit = entry["tolerance"].get(limit_name)
    ok = nmse <= entry["tolerance"]["nmse"] and (limit is None or worst <= limit)
    return ok, "nmse %.1e (limit %.0e), max/std %.1e" % (nmse, entry["tolerance"]["nmse"], worst)


def score(entry, out, *flags):
    model, tokens = (os.path.join(folder, p) for p in (entry["files"][0], entry["tokens"]))
    return cli.run("-m", model, "--score", tokens, "--logits", out, *flags)


def check_model(entry, tmp):
    first, out = os.path.join(tmp, "first"), os.path.join(tmp, "out")
    for name, flags in WAYS.items():
        r = score(entry, first if name == "batch" else out, *flags)
        if r.returncode == 1 and b"is not supported (supported:" in r.stderr and entry["architecture"].encode() in r.stderr:
            cli.check(entry["tier"] == "extra", entry["name"], "is refused")
            return False
        cli.check(r.returncode == 0 and not r.stdout, entry["name"], name, r.stderr.decode())
        if name != "batch":
            with open(first, "rb") as a, open(out, "rb") as b:
                cli.check(a.read() == b.read(), entry["name"], name, "differs from one batch")
    ok, text = within_tolerance(entry, first, "max_over_std_f16_kv")
    print("%-40s %s" % (entry["name"], text))
    cli.check(ok, entry["name"], text)
    if "max_over_std_f32_kv" in entry["tolerance"]:
        score(entry, out, "--kv", "f32")
        ok, text = within_tolerance(entry, out, "max_over_std_f32_kv")
        cli.check(ok, entry["name"], "F32 keys and values:", text)
    return True


with cli.scratch() as tmp:
    done = sum(check_model(entry, tmp) for entry in files)
print(done, "of", len(files), "files scored")
cli.check(done > 0, "nothing was scored")
cli.finish()

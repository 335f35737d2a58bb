#!/usr/bin/env python3
"""pfmoe-run --parse over replies with known results, whole and in random pieces.

usage: goldens.py PFMOE_RUN FOLDER SEEDS [FAMILY ...]     SEEDS: of so many divisions into pieces; FOLDER has FAMILY.jsonl, in the
form of shared/toolcalls/README.md"""
import json
import os
import re
import subprocess
import sys


def text(s, free):
    s = (s or "").strip()
    return re.sub(r"\s+", " ", s) if free else s


def same(a, b):
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def call_is(want, got):
    if want["name"] != got["name"]:
        return False
    args = dict(got["arguments"])
    tail = want.get("tail")
    if want.get("cut") and tail and tail["key"] in args:
        held = args.pop(tail["key"])
        if not isinstance(held, str) or not tail["text"].startswith(held) or len(tail["text"]) - len(held) > 16:
            return False
    return same(want["arguments"], args)


def is_right(want, got):
    free = want.get("ws_free", False)
    return (text(want["content"], free) == text(got["content"], free) and
            text(want["reasoning"], free) == text(got["reasoning"], free) and
            len(want["tool_calls"]) == len(got["tool_calls"]) and
            all(map(call_is, want["tool_calls"], got["tool_calls"])))


def parse(run, family, path, *args):
    r = subprocess.run([run, "--parse", family, path, *args], capture_output=True)
    if r.returncode != 0:
        return [r.stderr.decode()]
    return r.stdout.decode().split("\n")[:-1]


def check(run, folder, n_seeds, family):
    path = os.path.join(folder, family + ".jsonl")
    lines = [json.loads(line) for line in open(path, encoding="utf-8")]
    whole, bad = parse(run, family, path), []
    if len(whole) != len(lines):
        return ["%s: %d lines for %d: %s" % (family, len(whole), len(lines), "".join(whole[:1]))]
    for want, line in zip(lines, whole):
        choices = [want] + [{**want, **other} for other in want.get("alt", [])]
        if not any(is_right(c, json.loads(line)) for c in choices):
            bad.append("%s %s: %s" % (family, want["name"], line))
    for seed in range(n_seeds):
        pieces = parse(run, family, path, "--pieces", str(seed))
        if pieces != whole:
            differ = [w["name"] for w, a, b in zip(lines, whole, pieces) if a != b]
            bad.append("%s: pieces of seed %d differ in %s" % (family, seed, differ or pieces))
            break
    return bad


def main():
    run, folder, n_seeds, *families = sys.argv[1:]
    if not os.path.isdir(folder):
        print("%s is not there" % folder)
        return 77
    families = families or sorted(f[:-6] for f in os.listdir(folder) if f.endswith(".jsonl"))
    bad = [b for f in families for b in check(run, folder, int(n_seeds), f)]
    print("\n".join(bad) or "%d families" % len(families))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

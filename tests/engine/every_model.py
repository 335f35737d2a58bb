#!/usr/bin/env python3
"""A test program on every model of the conformance set, which has all architectures. Those that must run are known there as
core; the others may be refused (77) for their architecture. usage: every_model.py PROGRAM DEFAULT_SHARED [NAME...] [-- ARGUMENT...],
which runs those whose names begin so, with these arguments after the model"""
import json
import os
import subprocess
import sys

program, default_shared = sys.argv[1:3]
cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
names, arguments = tuple(sys.argv[3:cut]) or "", sys.argv[cut + 1:]
folder = os.path.join(os.environ.get("PFMOE_SHARED", default_shared), "conformance")
try:
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
        files = [entry for entry in json.load(f)["files"] if "/" not in entry["name"] and entry["name"].startswith(names)]
except OSError as e:
    print("skipped:", e)
    sys.exit(77)

if not files:
    print("skipped: the reference data at hand has none of these models")
    sys.exit(77)
bad = []
for entry in files:
    r = subprocess.run([program, os.path.join(folder, entry["files"][0])] + arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       check=False)
    if r.returncode != 0 and not (r.returncode == 77 and entry["tier"] == "extra"):
        bad.append(entry["name"])
    print("%4d  %s" % (r.returncode, entry["name"]), *([r.stdout.decode()] if r.returncode else []))
print(len(files), "models, of which fail:", *bad)
sys.exit(bool(bad))

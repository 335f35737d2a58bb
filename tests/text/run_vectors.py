#!/usr/bin/env python3
"""Runs test_vectors over every recorded vocabulary: run_vectors.py TEST_VECTORS DEFAULT_SHARED_DIR

The vocabularies are kept packed; they are unpacked into a temporary directory, one at a time."""
import glob
import lzma
import os
import subprocess
import sys
import tempfile

program, default_shared = sys.argv[1:]
folder = os.path.join(os.environ.get("PFMOE_SHARED", default_shared), "vocab")
packed = sorted(glob.glob(os.path.join(folder, "*.gguf.xz")))
if not packed:
    print("skipped: no vocabularies in", folder)
    sys.exit(77)
failed = 0
for path in packed:
    stem = path[: -len(".gguf.xz")]
    with tempfile.TemporaryDirectory() as tmp:
        gguf = os.path.join(tmp, os.path.basename(stem) + ".gguf")
        with lzma.open(path) as f, open(gguf, "wb") as out:
            out.write(f.read())
        failed += subprocess.call([program, gguf, stem + ".jsonl", stem + ".detok.jsonl", stem + ".meta.json"]) != 0
print(len(packed) - failed, "of", len(packed), "vocabularies hold")
sys.exit(failed != 0)

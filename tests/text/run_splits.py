#!/usr/bin/env python3
"""Runs test_splits over the recorded pre-tokenizer chunks: run_splits.py TEST_SPLITS DEFAULT_SHARED_DIR"""
import glob
import os
import subprocess
import sys

program, default_shared = sys.argv[1:]
folder = os.path.join(os.environ.get("PFMOE_SHARED", default_shared), "vocab", "splits")
files = sorted(glob.glob(os.path.join(folder, "*.jsonl")))
if not files:
    print("skipped: no recorded chunks in", folder)
    sys.exit(77)
sys.exit(subprocess.call([program, *files]))

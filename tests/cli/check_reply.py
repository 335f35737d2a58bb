#!/usr/bin/env python3
"""Runs test_reply over a vocabulary of bytes and, where the shared data has it, one with harmony's control tokens.

check_reply.py TEST_REPLY PFMOE_SYNTH SHARED"""
import lzma
import os
import subprocess
import sys

import cli

with cli.scratch() as tmp:
    models = [cli.synth(tmp)]
    packed = os.path.join(cli.shared, "vocab", "gpt-oss.gguf.xz")
    if os.path.exists(packed):
        models.append(os.path.join(tmp, "gpt-oss.gguf"))
        with lzma.open(packed) as f, open(models[-1], "wb") as out:
            out.write(f.read())
    sys.exit(subprocess.call([cli.run_path, *models]))

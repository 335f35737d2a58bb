#!/usr/bin/env python3
"""Runs random_engine on the models given and, where the reference models are at hand (PFMOE_SHARED, else ../shared),
on the smallest of each architecture that every build has to run.
usage: random_engine.py RANDOM_ENGINE SOURCE_ROOT SEED COUNT MODEL.."""
import json
import os
import subprocess
import sys

exe, root, seed, count, *models = sys.argv[1:]
shared = os.environ.get('PFMOE_SHARED') or os.path.join(root, '..', 'shared')
try:
    with open(os.path.join(shared, 'conformance', 'manifest.json'), encoding='utf-8') as f:
        known = json.load(f)['files']
except OSError:
    known = []
smallest = {}
for entry in known:
    path, kind = os.path.join(shared, 'conformance', entry['files'][0]), entry['architecture']
    if entry['tier'] != 'extra' and len(entry['files']) == 1 and entry['bytes'] < smallest.get(kind, (1 << 21, ''))[0]:
        smallest[kind] = (entry['bytes'], path)
models += sorted(path for _, path in smallest.values())
print('%d models' % len(models), flush=True)
sys.exit(subprocess.run([exe, seed, count], env={**os.environ, 'PFMOE_FUZZ_MODELS': ':'.join(models)}).returncode)

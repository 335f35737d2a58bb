#!/usr/bin/env python3
"""Every preset of pfmoe-synth is a model: its keys and the shapes of its tensors are what its architecture's table asks for, and
it can be planned for. Files are sparse: nothing is computed. usage: check_presets.py PFMOE_RUN PFMOE_SYNTH"""
import os
import re
import subprocess
import sys
import tempfile

run, synth = sys.argv[1:]
PLAN = ["--plan", "--ram-mb", "20000", "--ram-gb-s", "30", "--drive-gb-s", "3", "-t", "1"]
said = subprocess.run([synth, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode()
presets = re.findall(r"^  (\S+) ", said[said.index("\npresets:"):], re.M)
bad = []
with tempfile.TemporaryDirectory() as tmp:
    for name in presets:
        path = os.path.join(tmp, name + ".gguf")
        subprocess.run([synth, name, path, "--sparse"], check=True)
        r = subprocess.run([run, "-m", path, *PLAN], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        size = os.stat(path).st_size
        print("%-20s %6.1f GB  %s" % (name, size / 1e9, "" if r.returncode == 0 else r.stdout.decode().strip()))
        if r.returncode != 0:
            bad.append(name)
        os.remove(path)
print(len(presets), "presets, of which", len(bad), "fail", *bad)
sys.exit(1 if bad or len(presets) < 40 else 0)

"""Test programs given a model file that is not there: each ends with a sentence that names it and exit status 1.

usage: check_missing.py PROGRAM[:ARGUMENT...] ...      MODEL in an argument: that file
"""
import subprocess
import sys

MISSING = 'no-such-model.gguf'
bad = 0
for words in sys.argv[1:]:
    command = [MISSING if word == 'MODEL' else word for word in words.split(':')]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    if done.returncode != 1 or f'{MISSING}: cannot be opened' not in done.stdout:
        print(f'{command}: exit status {done.returncode}, and it says: {done.stdout}')
        bad += 1
sys.exit(bad > 0)

#!/usr/bin/env python3
"""What of the habits in CONTRIBUTING.md a program can judge without being wrong: the width of lines, white space at their
ends, tabs, and the subjects of the latest commits.

usage: style.py SOURCE_ROOT"""
import re
import subprocess
import sys

CODE = re.compile(r'.*\.(c|h|cu)$')
TABLES = ['bench/synth_presets.c']            # one row a model
COLUMNS, COMMITS = 120, 10


def git(root, *args):
    return subprocess.run(['git', '-C', root, *args], capture_output=True, check=True).stdout


def wrong_in(path, text):
    if text and not text.endswith('\n'):
        yield 'the last line does not end'
    for number, line in enumerate(text.split('\n'), 1):
        if line != line.rstrip(' \t\r'):
            yield 'line %d: white space at the end' % number
        if CODE.match(path) and '\t' in line:
            yield 'line %d: a tab' % number
        if CODE.match(path) and path not in TABLES and len(line) > COLUMNS:
            yield 'line %d: %d columns' % (number, len(line))


def wrong_files(root):
    for path in git(root, 'grep', '-Il', '').decode().splitlines():
        if path.startswith(('tests/fuzz/corpus/', 'tests/data/')):
            continue
        with open('%s/%s' % (root, path), encoding='utf-8', newline='') as f:
            for wrong in wrong_in(path, f.read()):
                yield '%s: %s' % (path, wrong)


def wrong_subjects(root):
    for subject in git(root, 'log', '--no-merges', '-%d' % COMMITS, '--format=%s').decode().splitlines():
        if not re.match(r'[^:]+: \S', subject) or len(subject) > COLUMNS:
            yield 'commit "%s": not "area: what changed" in %d columns' % (subject, COLUMNS)


def main():
    root = sys.argv[1]
    try:
        git(root, 'log', '-1')
    except (OSError, subprocess.CalledProcessError):
        print('no git, or no repository: nothing says which files are ours')
        return 77
    wrong = [*wrong_files(root), *wrong_subjects(root)]
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Runs the test suite of a build directory through Meson and prints one closing line: N passed, N failed, N skipped.
Meson builds what the tests need first.

usage: run.py BUILD [meson test arguments]"""
import json
import os
import subprocess
import sys


def main():
    build, args = sys.argv[1], sys.argv[2:]
    log = os.path.join(build, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.remove(log)
    run = subprocess.run(['meson', 'test', '-C', build, '--print-errorlogs', *args])
    if not os.path.exists(log):
        return run.returncode or 1
    count = {'passed': 0, 'failed': 0, 'skipped': 0}
    kinds = {'OK': 'passed', 'EXPECTEDFAIL': 'passed', 'SKIP': 'skipped'}
    for line in open(log):
        test = json.loads(line)
        kind = kinds.get(test['result'], 'failed')
        count[kind] += 1
        if kind == 'skipped':
            print('skipped: %s: %s' % (test['name'], (test.get('stdout') or '').strip().split('\n')[-1]))
    print('%(passed)d passed, %(failed)d failed, %(skipped)d skipped' % count)
    return 1 if count['failed'] or run.returncode else 0


if __name__ == '__main__':
    sys.exit(main())

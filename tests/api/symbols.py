#!/usr/bin/env python3
"""What libpfmoe.a shows and uses: every global symbol begins with pf_, and nothing in it prints, exits, aborts or reads the
environment. usage: symbols.py LIBPFMOE.A"""
import re
import subprocess
import sys

BANNED = re.compile(r'^(printf|puts|putchar|fputs|fputc|perror|vprintf|exit|_exit|quick_exit|abort|getenv|secure_getenv|stdout'
                    r'|stderr|__printf_chk)$')


def main():
    out = subprocess.run(['nm', '-g', '--format=posix', sys.argv[1]], check=True, capture_output=True, text=True).stdout
    if '__asan_' in out or '__tsan_' in out or '__ubsan_' in out:
        print('a sanitizer build has symbols of its own')
        return 77
    bad, unit = [], ''
    for line in out.splitlines():
        if line.endswith(':'):
            unit = line
            continue
        parts = line.split()
        if len(parts) < 2:
            continue
        name, kind = parts[0], parts[1]
        if kind != 'U' and kind.lower() != 'w' and not name.startswith('pf_'):
            bad.append('%s defines %s' % (unit, name))
        if kind == 'U' and BANNED.match(name):
            bad.append('%s uses %s' % (unit, name))
    print('\n'.join(bad) or 'all symbols are in order')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""The shared library exports the functions that pfmoe.h declares, each with a version, and nothing else; it has a soname.
usage: exports.py PFMOE.H LIBPFMOE.SO"""
import re
import subprocess
import sys


def main():
    header, library = sys.argv[1:]
    text = re.sub(r'/\*.*?\*/', '', open(header, encoding='utf-8').read(), flags=re.S)
    text = re.sub(r'^#.*(\\\n.*)*$', '', text, flags=re.M)
    declared = {m.group(1) for m in re.finditer(r'^(?!typedef)[^\n(]*?\b(pf_\w+)\(', text, flags=re.M)}
    out = subprocess.run(['nm', '-D', '--format=posix', library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[0] for line in out.splitlines() if line.split()[1] in 'TDBRV'}
    if re.search('__(asan|tsan|ubsan)_', out):
        print('a sanitizer build has symbols of its own')
        return 77
    bad = ['%s is declared and not exported' % n for n in sorted(declared - {n.split('@')[0] for n in exported})]
    bad += ['%s is exported and not declared' % n for n in sorted(exported) if n.split('@')[0] not in declared]
    bad += ['%s has no version' % n for n in sorted(exported) if '@PFMOE_0' not in n]
    dynamic = subprocess.run(['readelf', '-d', library], check=True, capture_output=True, text=True).stdout
    if 'soname: [libpfmoe.so.0]' not in dynamic:
        bad.append('the soname is not libpfmoe.so.0')
    print('\n'.join(bad) or '%d functions' % len(declared))
    return 1 if bad or len(declared) < 50 else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Every architecture of src/moe has a row in models.md, and the other way round; where the reference logits are at hand
(PFMOE_SHARED, else ../shared), the number of files in a row is the number there is. usage: arch_rows.py SOURCE_ROOT"""
import collections
import glob
import json
import os
import re
import sys


def read(*path):
    with open(os.path.join(*path), encoding='utf-8') as f:
        return f.read()


def tables(root):
    """The .name of every table that archs.c lists."""
    listed = set(re.findall(r'^    X\((\w+)\)', read(root, 'src', 'moe', 'archs.c'), re.M))
    names = set()
    for path in glob.glob(os.path.join(root, 'src', 'moe', 'arch_*.c')):
        for symbol, name in re.findall(r'pf_arch pf_arch_(\w+) = \{\s*\.name = "([^"]+)"', read(path)):
            if symbol in listed:
                listed.remove(symbol)
                names.add(name)
    return names, ['archs.c lists %s, which no file defines' % symbol for symbol in sorted(listed)]


def rows(root):
    return dict(re.findall(r'^\| `(?!general)([^`]+)` \|.*\|([^|]*)\|$', read(root, 'models.md'), re.M))


def reference_counts(root):
    shared = os.environ.get('PFMOE_SHARED') or os.path.join(root, '..', 'shared')
    try:
        manifest = json.loads(read(shared, 'conformance', 'manifest.json'))
    except OSError:
        return None
    return collections.Counter(f['architecture'] for f in manifest['files'] if '/' not in f['name'])


def main():
    root = sys.argv[1]
    names, bad = tables(root)
    row = rows(root)
    bad += ['models.md has no row for %s' % name for name in sorted(names - row.keys())]
    bad += ['models.md has a row for %s, which pfmoe does not have' % name for name in sorted(row.keys() - names)]
    counts = reference_counts(root)
    for name in sorted(names & row.keys()) if counts is not None else []:
        said = re.search(r'(\d+) files?', row[name])
        if (int(said.group(1)) if said else 0) != counts[name]:
            bad.append('models.md says "%s" of %s; there are %d' % (row[name].strip(), name, counts[name]))
    print('\n'.join(bad) or '%d architectures, each with its row' % len(names))
    return 1 if bad else 0


sys.exit(main())

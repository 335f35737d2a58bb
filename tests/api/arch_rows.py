#!/usr/bin/env python3
"""Every architecture of src/moe has a row in models.md, and the other way round; where the reference logits are at hand
(PFMOE_SHARED, else ../shared), the number of files in a row is the number there is. The GPU column says no of those that need
an operation the CUDA backend's table lacks. usage: arch_rows.py SOURCE_ROOT"""
import collections
import json
import os
import re
import sys


def read(*path):
    with open(os.path.join(*path), encoding='utf-8') as f:
        return f.read()


TABLE = r'^const struct pf_arch \w+ = \{\s*\.name = "([^"]+)"(.*?)^\};'
NEEDS = {'.index_runs = true': ['choose'], '.mla = true': ['heads'], '.index_pools = true': ['compress'], '.indexer = true': ['choose', 'layer_norm'],
         '.compressed = true': ['heads', 'choose', 'compress'], '.streams = true': ['mix', 'streams_read', 'streams_write'],
         '.gated_streams = true': ['norm_each', 'gated_read', 'gated_write'], '.index_means = true': ['choose', 'compress'],
         '.centred = true': ['centre'],
         '.without_kv = PF_MIXER_MAMBA2': ['conv', 'ssm'], '.ngrams = true': ['norm_each', 'agree', 'spread']}     # operations that a backend may lack


def tables(root):
    """The .name of every table in src/moe/archs, and the operations that not every backend has."""
    folder = os.path.join(root, 'src', 'moe', 'archs')
    text = ''.join(read(folder, f) for f in sorted(os.listdir(folder)) if f.endswith('.c'))
    return {name: sum((ops for flag, ops in NEEDS.items() if flag in rest), [])
            for name, rest in re.findall(TABLE, text, re.M | re.S)}


def unnamed_fields(root):
    """Fields of struct pf_arch that differences.c does not compare; names of tensors aside."""
    body = re.search(r'^struct pf_arch \{(.*?)^\};', read(root, 'src', 'moe', 'archs', 'arch.h'), re.M | re.S).group(1)
    body = re.sub(r'/\*.*?\*/', '', re.sub(r'enum \{[^}]*\}', 'enum x', body), flags=re.S)
    fields = set(re.findall(r'\b(\w+)\s*(?=[,;])', re.sub(r'const char[^;]*;', '', body)))
    return sorted(fields - set(re.findall(r'\bF\((\w+)\)', read(root, 'src', 'moe', 'archs', 'differences.c'))))


def rows(root):
    """Per architecture its columns, GPU and checked with."""
    found = re.findall(r'^\| `(?!general)([^`]+)` \|.*\|([^|]*)\|([^|]*)\|$', read(root, 'models.md'), re.M)
    return {name: (gpu.strip(), checked) for name, gpu, checked in found}


def reference_counts(root):
    shared = os.environ.get('PFMOE_SHARED') or os.path.join(root, '..', 'shared')
    try:
        manifest = json.loads(read(shared, 'conformance', 'manifest.json'))
    except OSError:
        return None
    return collections.Counter(f['architecture'] for f in manifest['files'] if '/' not in f['name'])


def main():
    root = sys.argv[1]
    names = tables(root)
    row = rows(root)
    bad = ['models.md has no row for %s' % name for name in sorted(names.keys() - row.keys())]
    bad += ['models.md has a row for %s, which pfmoe does not have' % name for name in sorted(row.keys() - names.keys())]
    bad += ['differences.c does not know pf_arch.%s' % field for field in unnamed_fields(root)]
    cuda = read(root, 'src', 'kernels', 'cuda', 'backend_cuda.c')
    bad += ['models.md is wrong about %s and GPUs' % name for name in sorted(names.keys() & row.keys())
            if row[name][0] != ('yes' if all('.%s =' % op in cuda for op in names[name]) else 'no')]
    counts = reference_counts(root)
    for name in sorted(names.keys() & row.keys()) if counts is not None else []:
        said = re.search(r'(\d+) files?', row[name][1])
        if (int(said.group(1)) if said else 0) != counts[name]:
            bad.append('models.md says "%s" of %s; there are %d' % (row[name][1].strip(), name, counts[name]))
    print('\n'.join(bad) or '%d architectures, each with its row' % len(names))
    return 1 if bad else 0


sys.exit(main())

#!/usr/bin/env python3
"""Who may include whom (CONTRIBUTING.md), read from the #include lines. An arrow that is not drawn there is a failure."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAY = {
    'base': {'base'},
    'gguf': {'gguf', 'base'},
    'text': {'text', 'gguf', 'base'},
    'backend': {'backend', 'base'},
    'kernels': {'kernels', 'backend', 'base'},
    'tiers': {'tiers', 'backend', 'base'},
    'moe': {'moe', 'gguf', 'text', 'tiers', 'backend', 'base'},
    'cli': {'cli'},
    'bench': {'cli'},
}
DOORS = {
    'xxhash.h': {'src/moe/model/digest.c'},
    'utf8proc.h': {'src/text'},
    'liburing.h': {'src/tiers/io_uring.c'},
    'numa.h': {'src/tiers/spread.c'},
    'numaif.h': {'src/tiers/spread.c'},
    'histedit.h': {'src/cli'},
    'cjson/cJSON.h': {'src/cli', 'bench', 'tests'},
}


def check(path, own, may):
    bad = []
    for n, line in enumerate(open(os.path.join(ROOT, path), encoding='utf-8'), 1):
        m = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not m:
            continue
        name = m.group(2)
        if name in DOORS and not any(path == d or path.startswith(d + os.sep) for d in DOORS[name]):
            bad.append('%s:%d: %s has its door in %s' % (path, n, name, ', '.join(sorted(DOORS[name]))))
        folder = name.split('/')[0]
        if '/' in name and folder in MAY and may is not None and folder not in may:
            bad.append('%s:%d: %s may not include %s' % (path, n, own, name))
    return bad


def main():
    bad = []
    for top in ('src', 'bench', 'examples'):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for f in sorted(files):
                if f.endswith(('.c', '.h', '.cu')):
                    path = os.path.relpath(os.path.join(folder, f), ROOT)
                    own = path.split(os.sep)[1] if top == 'src' else top
                    bad += check(path, own, MAY.get(own, set()))
    print('\n'.join(bad) or 'every arrow is drawn')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Who may include whom (CONTRIBUTING.md), read from the #include lines. An arrow that is not drawn there is a failure, and so is
a circle of arrows."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAY = {
    'base': set(),
    'gguf': {'base'},
    'text': {'gguf', 'base'},
    'grammar': {'text', 'base'},
    'languages': {'grammar', 'text', 'base'},
    'languages/schema': {'languages', 'grammar', 'text', 'base'},
    'reply': {'text', 'base'},
    'shape': {'reply', 'languages', 'grammar', 'text', 'base'},
    'backend': {'base'},
    'kernels': {'backend', 'base'},
    'tiers': {'backend', 'base'},
    'tiers/store': {'tiers', 'base'},
    'moe/archs': {'backend', 'base'},
    'draft': {'base'},
    'moe/model': {'draft', 'moe/archs', 'gguf', 'text', 'tiers', 'backend', 'base'},
    'moe/load': {'moe/model', 'moe/archs', 'gguf', 'text', 'backend', 'base'},
    'moe/layout': {'moe/model', 'draft', 'backend', 'base'},
    'moe/place': {'moe/model', 'moe/layout', 'gguf', 'tiers', 'tiers/store', 'backend', 'base'},
    'moe/offload': {'moe/model', 'moe/layout', 'moe/place', 'gguf', 'backend', 'base'},
    'moe/session': {'moe/model', 'moe/layout', 'moe/place', 'draft', 'grammar', 'backend', 'base'},
    'moe/blocks': {'moe/session', 'moe/model', 'moe/layout', 'moe/place', 'backend', 'base'},
    'moe/run': {'moe/blocks', 'moe/session', 'moe/model', 'moe/layout', 'moe/place', 'draft', 'backend',
                'base'},
    'moe/open': {'moe/model', 'moe/layout', 'moe/place', 'moe/offload', 'moe/session', 'moe/run', 'grammar', 'gguf',
                 'text', 'backend', 'base'},
    'moe': {'moe/model', 'moe/place', 'moe/open', 'grammar', 'languages', 'reply', 'shape', 'gguf', 'text', 'base'},
    'program/io': set(),
    'program': {'program/io'},
    'hub': {'program', 'program/io'},
    'cli': {'hub', 'program', 'program/io'},
    'cli/chat': {'cli', 'program', 'program/io'},
    'serve/http': {'program', 'program/io'},
    'serve/cache': {'program', 'program/io'},
    'serve': {'serve/http', 'serve/cache', 'hub', 'program', 'program/io'},
    'bench': {'program', 'program/io'},
    'examples': set(),
}
DOORS = {
    'xxhash.h': {'src/moe/model/digest_state.h'}, 'xxh_x86dispatch.h': {'src/moe/model/digest_add_isa.c'},
    'utf8proc.h': {'src/text'},
    'liburing.h': {'src/tiers/io_uring.c'},
    'numa.h': {'src/tiers/spread.c'},
    'numaif.h': {'src/tiers/spread.c'},
    'microhttpd.h': {'src/serve/http'},
    'histedit.h': {'src/cli/chat/line.c'},
    'curl/curl.h': {'src/hub/hub_fetch.c'},
    'cjson/cJSON.h': {'tests'},
}


def room_of(path):
    """The room of a file named from src/: the innermost folder that has arrows of its own; None: it has none."""
    folder = os.path.dirname(path)
    while folder and folder not in MAY:
        folder = os.path.dirname(folder)
    return folder or None


def check(path, own):
    bad = []
    for n, line in enumerate(open(os.path.join(ROOT, path), encoding='utf-8'), 1):
        m = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not m:
            continue
        name = m.group(2)
        if name in DOORS and not any(path == d or path.startswith(d + os.sep) for d in DOORS[name]):
            bad.append('%s:%d: %s has its door in %s' % (path, n, name, ', '.join(sorted(DOORS[name]))))
        room = room_of(name)
        if own is not None and room is not None and room != own and room not in MAY[own]:
            bad.append('%s:%d: %s may not include %s' % (path, n, own, name))
    return bad


def circles():
    """Rooms that are left when those whose arrows all lead out are taken away, again and again."""
    left = dict(MAY)
    while True:
        free = [room for room, arrows in left.items() if not arrows & set(left)]
        if not free:
            return ['these rooms include one another in a circle: ' + ', '.join(sorted(left))] if left else []
        for room in free:
            del left[room]


def main():
    bad = circles()
    for top in ('src', 'bench', 'examples'):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for f in sorted(files):
                if f.endswith(('.c', '.h', '.cu')):
                    path = os.path.relpath(os.path.join(folder, f), ROOT)
                    own = room_of(os.path.relpath(path, 'src')) if top == 'src' else top
                    bad += check(path, own)
    print('\n'.join(bad) or 'every arrow is drawn')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())

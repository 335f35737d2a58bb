"""Reads and writes GGUF files for tests: pairs as raw bytes, tensors as (name, shape fastest first, type, data)."""
import struct

ALIGN = 32
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}       # of value types
U16, U32, I32, STRING, ARRAY = 2, 4, 5, 8, 9
F32, F16, BF16 = 0, 1, 30                                                           # tensor types
BLOCKS = {F32: (1, 4), F16: (1, 2), BF16: (1, 2), 8: (32, 34), 12: (256, 144), 14: (256, 210), 39: (32, 17)}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.number("<Q")).decode()

    def skip_value(self, kind):
        if kind == STRING:
            self.take(self.number("<Q"))
        elif kind == ARRAY:
            elem, n = self.number("<I"), self.number("<Q")
            if elem in SIZES:
                self.take(SIZES[elem] * n)
            else:
                for _ in range(n):
                    self.skip_value(elem)
        else:
            self.take(SIZES[kind])


def n_bytes(shape, kind):
    n = 1
    for d in shape:
        n *= d
    return n // BLOCKS[kind][0] * BLOCKS[kind][1]


def read(path):
    """Pairs {key: type and value}, tensors in order."""
    with open(path, "rb") as f:
        r = Reader(f.read())
    assert r.take(4) == b"GGUF" and r.number("<I") == 3
    n_tensors, n_pairs = r.number("<Q"), r.number("<Q")
    pairs, records = {}, []
    for _ in range(n_pairs):
        key, begin = r.string(), r.at
        r.skip_value(r.number("<I"))
        pairs[key] = r.data[begin:r.at]
    for _ in range(n_tensors):
        name = r.string()
        shape = [r.number("<Q") for _ in range(r.number("<I"))]
        records.append((name, shape, r.number("<I"), r.number("<Q")))
    base = r.at + -r.at % ALIGN
    return pairs, [(name, shape, kind, r.data[base + at:base + at + n_bytes(shape, kind)])
                   for name, shape, kind, at in records]


def string(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def number(kind, value):
    return struct.pack("<I", kind) + struct.pack({U16: "<H", U32: "<I", I32: "<i"}[kind], value)


def write(path, pairs, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(string(key) + value for key, value in pairs.items())
    at = 0
    for name, shape, kind, data in tensors:
        head += string(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, kind, at)
        at += len(data) + -len(data) % ALIGN
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN))
        for _, _, _, data in tensors:
            f.write(data + bytes(-len(data) % ALIGN))
    return path


def write_split(path, pairs, tensors, n):
    """n files, the first with all pairs; returns its path. path holds no number yet: "x" becomes x-00001-of-00003.gguf"""
    paths = ["%s-%05d-of-%05d.gguf" % (path, i + 1, n) for i in range(n)]
    for i in range(n):
        part = {**(pairs if i == 0 else {}), "split.no": number(U16, i), "split.count": number(U16, n),
                "split.tensors.count": number(I32, len(tensors))}
        write(paths[i], part, tensors[i * len(tensors) // n:(i + 1) * len(tensors) // n])
    return paths[0]

"""A small writer of GGUF version 3 files, and the Q8_0 quantiser. Needs numpy only.

    w = Writer()
    w.put("general.architecture", "qwen3moe")             str, bool, int (u32), float (f32), or a list of these
    w.put("tokenizer.ggml.token_type", [1, 3], elem=I32)  elem names the element type of a list, or the type of a number
    w.tensor("output_norm.weight", array)                 float32 array, slowest dimension first, stored as F32
    w.tensor("token_embd.weight", array, Q8_0)
    w.write(path)

The file it writes is little-endian and laid out as every reader expects: metadata, tensor records, then the data, each
tensor's offset a multiple of 32 and following from the one before, zeros in between and after the last.
"""
import struct

import numpy as np

ALIGN = 32
U32, I32, F32_VALUE, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9      # value types of the metadata
F32, Q8_0 = 0, 8                                                 # tensor types
BLOCK = 32                                                       # elements of a Q8_0 block: one f16 scale, 32 int8


def q8_0_parts(x):
    """Scale (float16, one per block) and codes (int8) of a float32 array whose last dimension is a multiple of 32.

    The scale is amax/127. The codes are taken with it unrounded and rounded half away from zero; what is stored is its
    float16, which is what a reader multiplies by."""
    x = np.ascontiguousarray(x, dtype=np.float32).reshape(-1, BLOCK)
    d = (np.abs(x).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float32)
    inv = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    y = x * inv
    q = np.trunc(y + np.copysign(np.float32(0.5), y)).clip(-127, 127).astype(np.int8)
    return d.astype(np.float16), q


def q8_0_bytes(x):
    d, q = q8_0_parts(x)
    return np.concatenate([d.view(np.uint8), q.view(np.uint8)], axis=1).tobytes()


def q8_0_round(x):
    """What a reader of the quantised array sees: float32, the shape of x."""
    d, q = q8_0_parts(x)
    return (q.astype(np.float32) * d.astype(np.float32)).reshape(np.shape(x))


def _string(s):
    b = s.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def _type_of(v):
    if isinstance(v, bool):
        return BOOL
    if isinstance(v, str):
        return STRING
    return F32_VALUE if isinstance(v, float) else U32


def _scalar(v, t):
    if t == STRING:
        return _string(v)
    return struct.pack({U32: "<I", I32: "<i", F32_VALUE: "<f", BOOL: "<?"}[t], v)


class Writer:
    def __init__(self):
        self.pairs, self.records = {}, []

    def put(self, key, value, elem=None):
        if key in self.pairs:
            raise ValueError("key written twice: " + key)
        if isinstance(value, list):
            t = elem if elem is not None else _type_of(value[0])
            body = struct.pack("<IQ", t, len(value)) + b"".join(_scalar(v, t) for v in value)
            self.pairs[key] = struct.pack("<I", ARRAY) + body
        else:
            t = elem if elem is not None else _type_of(value)
            self.pairs[key] = struct.pack("<I", t) + _scalar(value, t)

    def tensor(self, name, array, kind=F32):
        array = np.ascontiguousarray(array, dtype=np.float32)
        if len(name.encode()) > 63:
            raise ValueError("tensor name longer than 63 bytes: " + name)
        if kind == Q8_0 and array.shape[-1] % BLOCK:
            raise ValueError("rows of %s are no multiple of 32" % name)
        data = q8_0_bytes(array) if kind == Q8_0 else array.tobytes()
        self.records.append((name, array.shape[::-1], kind, data))      # the file names the fastest dimension first

    def write(self, path):
        """Writes the file and returns its size in bytes."""
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.records), len(self.pairs))
        head += b"".join(_string(k) + v for k, v in self.pairs.items())
        offset = 0
        for name, dims, kind, data in self.records:
            head += _string(name) + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims)
            head += struct.pack("<IQ", kind, offset)
            offset += len(data) + -len(data) % ALIGN
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % ALIGN))
            for _, _, _, data in self.records:
                f.write(data + bytes(-len(data) % ALIGN))
            return f.tell()

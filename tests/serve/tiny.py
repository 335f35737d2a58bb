"""Random models with the tokens and the chat template of a family: a model of pfmoe-synth whose unused tokens get other
texts. A random model writes anything, so what it is held to is all that it keeps to."""
import os
import struct
import subprocess

import serve

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, FIRST_UNUSED = 8, 9, 261
CONTROL, USER_DEFINED = 3, 4
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def text_at(data, at):
    n, = struct.unpack_from("<Q", data, at)
    return data[at + 8:at + 8 + n], at + 8 + n


def value_end(data, kind, at):
    if kind == STRING:
        return text_at(data, at)[1]
    if kind != ARRAY:
        return at + SIZES[kind]
    elem, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if elem != STRING:
        return at + n * SIZES[elem]
    for _ in range(n):
        at = text_at(data, at)[1]
    return at


def put_text(text):
    return struct.pack("<Q", len(text)) + text


def tokens_changed(data, at, marks):
    n, = struct.unpack_from("<Q", data, at + 4)
    end, out = at + 12, data[at:at + 12]
    for i in range(n):
        text, end = text_at(data, end)
        k = i - FIRST_UNUSED
        out += put_text(marks[k].encode() if 0 <= k < len(marks) else text)
    return out


def types_changed(data, at, marks):
    n, = struct.unpack_from("<Q", data, at + 4)
    types = list(struct.unpack_from("<%di" % n, data, at + 12))
    for k, mark in enumerate(marks):
        types[FIRST_UNUSED + k] = USER_DEFINED if mark.endswith("tool_call>") or "\n" in mark else CONTROL
    return data[at:at + 12] + struct.pack("<%di" % n, *types)


def with_marks(path, out, marks, template=CHATML):
    """Copies a model of pfmoe-synth; its first unused tokens become the marks."""
    data = open(path, "rb").read()
    _, n_tensors, n_pairs = struct.unpack_from("<IQQ", data, 4)
    at, head = 24, data[:24]
    for _ in range(n_pairs):
        key, begin = text_at(data, at)
        kind, = struct.unpack_from("<I", data, begin)
        end = value_end(data, kind, begin + 4)
        value = {b"tokenizer.ggml.tokens": lambda: tokens_changed(data, begin + 4, marks),
                 b"tokenizer.ggml.token_type": lambda: types_changed(data, begin + 4, marks),
                 b"tokenizer.chat_template": lambda: put_text(template.encode())}.get(key, lambda: data[begin + 4:end])()
        head += data[at:begin + 4] + value
        at = end
    records = at
    for _ in range(n_tensors):
        _, at = text_at(data, at)
        n_dims, = struct.unpack_from("<I", data, at)
        at += 4 + 8 * n_dims + 12
    head += data[records:at]
    head += b"\0" * (-len(head) % 32)
    with open(out, "wb") as f:
        f.write(head + data[at + (-at % 32):])


def model(folder, marks=(), template=CHATML, preset="moe-tiny", name="tiny", **options):
    plain, out = os.path.join(folder, name + ".plain.gguf"), os.path.join(folder, name + ".gguf")
    args = [a for k, v in options.items() for a in ("--" + k, str(v))]
    subprocess.run([serve.synth_path, "--vocab", "512", *args, preset, plain], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with_marks(plain, out, marks, template)
    os.remove(plain)
    return out

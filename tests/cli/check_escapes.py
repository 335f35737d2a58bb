#!/usr/bin/env python3
"""No control that a file brings reaches the terminal. Every string of a model, an adapter, a template, a trace and a
chat has controls planted in it, one after the other, and so has the value of every flag; the programs run in a real
terminal (a pty), and what they write there is read."""
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import time

import cli
import gguf_edit as gguf

bench, fables = sys.argv[4:6]
little = ["-p", "1", "-n", "0", "-r", "1", "-t", "1", "--ram-mb", "200"]     # of the bench: it measures memory, too
MARK = b"3141"                                     # of no sequence that the programs write themselves
CONTROLS = [b"\x1b[" + MARK + b"m", b"\x1b]" + MARK + b"\x07", b"\x9b" + MARK + b"m", b"\xc2\x9b" + MARK, b"\x7f" + MARK,
            b"\x08" + MARK, b"\r" + MARK] + [chr(c).encode() + MARK for c in
                                             (0x61C, 0x200E, 0x200F, 0x202A, 0x202E, 0x2066, 0x2069)] + [b"\xff" + MARK]
PLANT = b"".join(CONTROLS)
TEXT = PLANT.replace(b"\x9b" + MARK + b"m", b"").replace(b"\xff" + MARK, b"")     # what is UTF-8 of it
JSON = json.dumps(TEXT.decode())[1:-1].encode()
n_seen = 0                                         # of runs in which planted text arrived, harmless


def in_terminal(program, args, typed=b"", seconds=60):
    """Exit status and everything that comes out of the terminal. A line is typed each time the prompt has come."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(program, [program, *args], cli.environment(TERM="xterm", HOME=folder, XDG_STATE_HOME=folder))
    out, lines, end, prompts = b"", typed.split(b"\n") if typed else [], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.02)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            out += data
        elif lines and len(out) > prompts and re.search(rb"> (?:\x1b\[0m|\x1b\[K)*$", out[-40:]):
            prompts = len(out)
            os.write(fd, lines.pop(0) + b"\r")
    else:
        os.kill(pid, 9)
        cli.check(False, program, args, "still there", out[-200:])
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out


def clean(label, program, *args, typed=b"", statuses=(0, 1)):
    global n_seen
    status, out = in_terminal(program, args, typed)
    for control in CONTROLS:
        cli.check(control not in out, label, args, "let through", control, out[-400:])
    cli.check(status in statuses, label, args, "exit", status, out[-400:])
    n_seen += MARK in out
    return status, out


# ---- GGUF ------------------------------------------------------------------------------------------------------------

def rewritten(data, change):
    """The file with each string of its header replaced by change(label, string); labels tell keys, values and tensors."""
    r, out = gguf.Reader(data), []

    def raw(n):
        out.append(r.take(n))
        return out[-1]

    def string(label):
        text = change(label, r.take(r.number("<Q")))
        out.append(struct.pack("<Q", len(text)) + text)
        return text

    def value(kind, label):
        if kind == gguf.STRING:
            string(label)
        elif kind == gguf.ARRAY:
            elem, n = struct.unpack("<IQ", raw(12))
            if elem in gguf.SIZES:
                raw(gguf.SIZES[elem] * n)
            else:
                for _ in range(n):
                    value(elem, label)
        else:
            raw(gguf.SIZES[kind])

    raw(8)
    n_tensors, n_pairs = struct.unpack("<QQ", raw(16))
    for i in range(n_pairs):
        string("key %d" % i)
        value(struct.unpack("<I", raw(4))[0], "value %d" % i)
    for i in range(n_tensors):
        string("tensor %d" % i)
        raw(8 * struct.unpack("<I", raw(4))[0] + 12)
    head = b"".join(out)
    return head + bytes(-len(head) % gguf.ALIGN) + data[r.at + -r.at % gguf.ALIGN:]


def labels(data):
    found = []
    rewritten(data, lambda label, text: found.append(label) or text)
    return list(dict.fromkeys(found))


def planted(data, path, label):
    with open(path, "wb") as f:
        f.write(rewritten(data, lambda at, text: PLANT + text + PLANT if at == label else text))
    return path


def model():
    with open(fables, "rb") as f:
        data = f.read()
    chat = b"/stats\n/system\n/quit"
    path = os.path.join(folder, "planted.gguf")
    for label in labels(data):
        if label.startswith("tensor") and int(label.split()[1]) % 4:           # every matrix of some layer
            continue
        planted(data, path, label)
        clean(label, cli.run_path, "--info", path)
        status, _ = clean(label, cli.run_path, "-m", path, "-p", "Hello", "-n", "8", "--temp", "1.5", "--stats")
        if status == 0 and not label.startswith("tensor"):
            clean(label, cli.run_path, "-m", path, "-n", "4", typed=b"Hello\n" + chat)
    whole = rewritten(data, lambda at, text: PLANT + text if at == "value 2" else text)
    with open(path, "wb") as f:
        f.write(whole)
    for form in ("table", "csv", "jsonl"):
        clean("bench", bench, "-m", path, "-p", "4", *little[2:], "-o", form)
    clean("plan", cli.run_path, "-m", path, "--plan")
    counts = os.path.join(folder, "counts.json")
    clean("counts", cli.run_path, "-m", path, "-p", "x", "-n", "1", "--expert-trace-output", counts)
    with open(counts, "rb") as f:
        cli.check(not any(control in f.read() for control in CONTROLS), "counts.json")


def adapter():
    pairs, tensors = gguf.read(fables)
    shape = {name: s for name, s, _, _ in tensors}["blk.0.attn_q.weight"]
    parts = [("blk.0.attn_q.weight.lora_a", [shape[0], 2], gguf.F32, bytes(8 * shape[0])),
             ("blk.0.attn_q.weight.lora_b", [2, shape[1]], gguf.F32, bytes(8 * shape[1]))]
    text = lambda s: struct.pack("<I", gguf.STRING) + gguf.string(s)
    own = {"general.architecture": pairs["general.architecture"], "general.type": text("adapter"), "adapter.type": text("lora"),
           "general.name": text("an adapter"), "adapter.lora.alpha": struct.pack("<If", 6, 2)}
    path = gguf.write(os.path.join(folder, "adapter.gguf"), own, parts)
    with open(path, "rb") as f:
        data = f.read()
    cli.check(in_terminal(cli.run_path, ["--lora", path, "-p", "x", "-n", "1"])[0] == 0, "the adapter itself is one")
    for label in labels(data):
        planted(data, path, label)
        clean("adapter " + label, cli.run_path, "--lora", path, "-p", "x", "-n", "1")
        clean("adapter " + label, cli.run_path, "--info", path)


# ---- Other files -----------------------------------------------------------------------------------------------------

def template():
    pairs, _ = gguf.read(fables)
    whole = pairs["tokenizer.chat_template"][12:]
    path = os.path.join(folder, "template.jinja")
    cases = [whole[:at] + TEXT + whole[at:] for at in range(0, len(whole), max(1, len(whole) // 40))]
    cases += [b"{{ raise_exception('" + PLANT + b"') }}", b"{{ " + PLANT + b" }}", b"{{ x | " + PLANT + b" }}",
              b"{% " + PLANT + b" %}", b"{{ '" + PLANT + b"'.nothing() }}", b"{{ messages['" + PLANT + b"'].x.y }}",
              b"{{ 'a' + 1 }}" + PLANT, PLANT]
    for i, case in enumerate(cases):
        with open(path, "wb") as f:
            f.write(case)
        clean("template %d" % i, cli.run_path, "--template", path, "-p", "x", "-n", "2")


def trace():
    path = os.path.join(folder, "a.trace")
    cli.run("-p", "x", "-n", "2", "--expert-trace-output", path)
    with open(path, "rb") as f:
        data = f.read()
    for at in range(0, 40, 4):
        with open(path, "wb") as f:
            f.write(data[:at] + PLANT + data[at:])
        clean("trace at %d" % at, cli.run_path, "-p", "x", "-n", "1", "--routing", path)


def chats():
    chat = {"pfmoe_chat": 1, "system": "s", "messages": [{"role": "user", "content": "c"},
                                                         {"role": "assistant", "content": "a", "reasoning": "r"}]}
    text = json.dumps(chat).encode()
    lines, n = [], 0
    for m in re.finditer(rb'"\w+"', text):
        for plant in (PLANT, b"".join(b"\\u%04x" % c for c in (0x1B, 0x9B, 0x202E)) + MARK):
            path = os.path.join(folder, "chat%d.json" % n)
            n += 1
            with open(path, "wb") as f:
                f.write(text[:m.end() - 1] + plant + text[m.end() - 1:])
            lines += [b"/load " + path.encode(), b"/system", b"/stats"]
    clean("chats", cli.run_path, "-n", "2", typed=b"\n".join(lines + [b"go on", b"/regen", b"/undo", b"/quit"]))


def checking():
    """Files of the checking modes, with planted text where their readers quote it."""
    path = os.path.join(folder, "lines")
    for flag, text in (("--tokenize", b'{"hex":"%s"}'), ("--detokenize", b'{"ids":["%s"]}'), ("--detokenize", b"%s"),
                       ("--score", b"1 %s"), ("--render", b'{"template":"%s","renders":[{}]}'), ("--render", b"%s"),
                       ("--render", b'{"cases":[{"template":"{{ raise_exception(\'%s\') }}","context":{}}]}')):
        with open(path, "wb") as f:
            f.write(text % (PLANT if text == b"%s" else JSON))
        clean(flag, cli.run_path, "-m", fables, flag, path, *(["--logits", "/dev/null"] if flag == "--score" else []))


# ---- The command line ------------------------------------------------------------------------------------------------

def flags():
    """Every flag with a planted value: as it is, as the beginning of a path, and written together with it."""
    word = PLANT.replace(b"\0", b"")
    known = set()                                  # the bench shares many
    for program, own in ((cli.run_path, ["-p", "x", "-n", "1"]), (bench, ["-m", fables, *little])):
        text = subprocess.run([program, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode()
        for flag, arg in re.findall(r"^ +(?:-\w, )?(--[\w-]+) (\S+)", text, re.M):
            if arg == "TEXT" or flag in ("--system", "--stop", "--reasoning-effort") or (flag, arg) in known:
                continue
            known.add((flag, arg))
            extra = ["x"] if flag == "--splits" else ["--logits", "/dev/null"] if flag == "--score" else []
            alone = flag in ("--info", "--score", "--tokenize", "--detokenize", "--splits", "--render", "--file", "--logits",
                             "--chunk", "--prompt")
            rest = (["-m", fables] if flag != "--info" and program == cli.run_path else []) if alone else own
            status, out = clean(flag, program, *rest, flag, b"/" + word + b"/x", *extra, statuses=(0, 1, 2))
            if status and flag != "--splits":
                name = (flag.encode(), b"belong to", b"needs")
                cli.check(any(x in out for x in name) or MARK in out, flag, "neither flag nor file is named", out)
        clean("option", program, b"--" + word, statuses=(2,))
        clean("option", program, b"-\x1b", statuses=(2,))
        clean("word", program, *own, word, statuses=(2,))
    clean("preset", cli.synth_path, word, "x", statuses=(2,))
    clean("type", cli.synth_path, "moe-tiny", "x", "--type", word, statuses=(2,))
    clean("file", cli.synth_path, "moe-tiny", b"/no/" + word, statuses=(1,))


begin = time.monotonic()
with cli.scratch() as folder:
    for step in (model, adapter, template, trace, chats, checking, flags):
        before = n_seen
        step()
        print(step.__name__, "runs in which planted text was seen:", n_seen - before, "after %.0f s" % (time.monotonic() - begin))
        cli.check(n_seen > before or step == trace, step.__name__, "never showed what was planted")
cli.finish()

#!/usr/bin/env python3
"""Runs template cases through tmpl_tool.

    cases.py TOOL own CASES.json     the cases of this tree
    cases.py TOOL shared [DIR]       golden renders and feature cases of the shared data; skips without it
    cases.py TOOL speed [DIR]        time of one render of each golden template's longest output

A case has an `output` that must be met byte for byte, or an `error` with `error_kind`: `raise` = fails with exactly
that message; `syntax` = fails, naming a line; `message` = fails with a message that holds the text; `type` = may fail.
"""
import calendar
import json
import os
import subprocess
import sys
import time


class Tool:
    def __init__(self, path):
        self.proc = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, context, now, repeat=1):
        t = template.encode()
        c = json.dumps(context, ensure_ascii=False).encode("utf-8", "surrogatepass")
        self.proc.stdin.write(b"%d %d %d %d\n" % (now, repeat, len(t), len(c)) + t + c)
        self.proc.stdin.flush()
        head = self.proc.stdout.readline().split()
        if len(head) != 3:
            raise SystemExit("the tool died on: " + template[:300])
        text = self.proc.stdout.read(int(head[1]))
        return int(head[0]), text.decode("utf-8", "replace"), int(head[2])

    def close(self):
        self.proc.stdin.close()
        return self.proc.wait()


def seconds(iso):
    return calendar.timegm(time.strptime(iso, "%Y-%m-%dT%H:%M:%S"))


def check(case, status, text):
    """None when the result is right, else what is wrong."""
    kind = case.get("error_kind")
    if "output" in case:
        want = case["output"]
        if status == 0 and text == want:
            return None
        return f"status {status}\n  want {want!r}\n  got  {text!r}"
    if kind == "type":
        return None if status in (0, -24) else f"status {status}: {text}"
    if status != -24:
        return f"must fail with {case['error']!r}, but status {status}: {text!r}"
    if kind == "raise" and text != case["error"]:
        return f"want error {case['error']!r}, got {text!r}"
    if kind == "message" and case["error"] not in text:
        return f"want {case['error']!r} in the error, got {text!r}"
    if kind in ("syntax", "message") and "template line " not in text:
        return f"the error names no line: {text!r}"
    return None


class Count:
    def __init__(self):
        self.good = self.bad = 0

    def add(self, name, wrong):
        if wrong is None:
            self.good += 1
        else:
            self.bad += 1
            print(f"FAIL {name}: {wrong}")


def run_cases(tool, path, count):
    with open(path, encoding="utf-8") as f:
        data = json.load(f)
    for i, case in enumerate(data["cases"]):
        status, text, _ = tool.render(case["template"], data["contexts"][case["context"]], seconds(data["now"]))
        count.add(f"{os.path.basename(path)}[{i}] {case['template'][:70]!r}", check(case, status, text))


def goldens(root):
    for name in sorted(os.listdir(os.path.join(root, "golden"))):
        with open(os.path.join(root, "golden", name), encoding="utf-8") as f:
            data = json.load(f)
        with open(os.path.join(root, data["template"]), encoding="utf-8", newline="") as f:
            yield name, data, f.read()


def run_shared(tool, root, count):
    for name, data, template in goldens(root):
        for case in data["renders"]:
            status, text, _ = tool.render(template, case["context"], seconds(data["now"]))
            count.add(f"{name} {case['case']}", check(case, status, text))
    run_cases(tool, os.path.join(root, "jinja-cases.json"), count)


def run_speed(tool, root):
    for name, data, template in goldens(root):
        case = max((c for c in data["renders"] if "output" in c), key=lambda c: len(c["output"]))
        status, text, ns = tool.render(template, case["context"], seconds(data["now"]), 200)
        print(f"{name:28} {case['case']:22} {len(template):6} bytes of template, "
              f"{len(text):6} out, {ns / 1000:8.1f} us")


def main():
    tool, what = Tool(sys.argv[1]), sys.argv[2]
    count = Count()
    if what == "own":
        run_cases(tool, sys.argv[3], count)
    else:
        base = os.environ.get("PFMOE_SHARED") or (sys.argv[3] if len(sys.argv) > 3 else "")
        root = os.path.join(base, "templates")
        if not os.path.isdir(root):
            print(f"skipped: no shared templates at {root!r} (set PFMOE_SHARED)")
            return 77
        run_speed(tool, root) if what == "speed" else run_shared(tool, root, count)
    left = tool.close()
    print(f"{count.good} right, {count.bad} wrong" + (", memory leaked" if left else ""))
    return 1 if count.bad or left else 0


sys.exit(main())

#!/usr/bin/env python3
"""What a run leaves behind: the timeline is JSON that chrome://tracing takes."""
import json
import os

import cli


def timeline(tmp):
    path = os.path.join(tmp, "timeline.json")
    plain = cli.run("-p", "Hello", "--temp", "0", "-t", "2")
    r = cli.run("-p", "Hello", "--temp", "0", "-t", "2", "--timeline", path)
    cli.check(r.returncode == 0 and r.stdout == plain.stdout, "the same answer", r.stderr)
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    cli.check({"steps", "CPU 0"} <= set(tracks.values()), tracks)
    cli.check({"attention", "experts", "output"} <= {e["name"] for e in spans}, {e["name"] for e in spans})
    cli.check(all(e["tid"] in tracks and e["ts"] >= 0 and e["dur"] >= 0 for e in spans), "spans on named tracks")
    steps = sorted((e["ts"], e["dur"]) for e in spans if tracks[e["tid"]] == "steps")
    cli.check(all(a[0] + a[1] <= b[0] + 0.002 for a, b in zip(steps, steps[1:])), "a thread does one thing at a time")
    cli.check({e["args"]["layer"] for e in spans if e["name"] == "experts"} == {0, 1, 2, 3}, "all layers")
    r = cli.run("-p", "Hello", "-n", "1", "--timeline", os.path.join(tmp, "no", "folder"))
    cli.check(r.returncode == 1 and b"cannot create" in r.stderr, r.stderr)
    r = cli.run("-p", "Hello", "-n", "1", "--timeline", "/dev/full")
    cli.check(r.returncode == 1 and b"cannot write" in r.stderr, r.stderr)


with cli.scratch() as folder:
    timeline(folder)
cli.finish()

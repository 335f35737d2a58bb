#!/usr/bin/env python3
"""What a run leaves behind: the timeline is JSON that chrome://tracing takes; counts have one shape in every form, and a recorded
trace put back gives the same answer."""
import csv
import json
import os
import xml.dom.minidom

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
    cli.check(r.returncode == 1 and b"cannot write" in r.stderr, r.stderr)
    r = cli.run("-p", "Hello", "-n", "1", "--timeline", "/dev/full")
    cli.check(r.returncode == 1 and b"cannot write" in r.stderr, r.stderr)


ASKED = ("-p", "Tell me a fable", "--temp", "0", "-n", "20", "-t", "2")


def activity(tmp):
    plain = cli.run(*ASKED)
    for ending in ("json", "csv", "svg"):
        path = os.path.join(tmp, "experts." + ending)
        r = cli.run(*ASKED, "--expert-trace-output", path)
        cli.check(r.returncode == 0 and r.stdout == plain.stdout, ending, r.stderr)
    with open(os.path.join(tmp, "experts.json")) as f:
        counts = json.load(f)
    cli.check(list(counts) == ["model", "total_tokens", "layers"] and counts["model"], list(counts))
    cli.check([layer["layer_id"] for layer in counts["layers"]] == [0, 1, 2, 3], "layers")
    for layer in counts["layers"]:
        experts = layer["experts"]
        cli.check([list(e) for e in experts] == [["expert_id", "activations", "percentage"]] * 16, "keys")
        cli.check([e["expert_id"] for e in experts] == list(range(16)), "experts")
        total = sum(e["activations"] for e in experts)
        cli.check(total == 4 * counts["total_tokens"], "picks of all tokens", total, counts["total_tokens"])
        cli.check(all(abs(e["percentage"] - 100 * e["activations"] / total) < 1e-4 for e in experts), "percentages")
    with open(os.path.join(tmp, "experts.csv")) as f:
        rows = list(csv.DictReader(f))
    cli.check([(int(r["layer_id"]), int(r["expert_id"]), int(r["activations"])) for r in rows] ==
              [(layer["layer_id"], e["expert_id"], e["activations"]) for layer in counts["layers"] for e in layer["experts"]], "CSV")
    cli.check(xml.dom.minidom.parse(os.path.join(tmp, "experts.svg")).documentElement.tagName == "svg", "a heat map")
    table = cli.run(*ASKED, env=cli.environment(LLAMA_EXPERT_TRACE_STATS="1")).stderr.decode()
    cli.check("busiest" in table and "16 of   16" in table, table)


def logging(tmp):
    r = cli.run(*ASKED, "--expert-trace-logging", "1")
    lines = [line for line in r.stderr.decode().splitlines() if line.startswith("token ")]
    n = 1 + max(int(line.split()[1]) for line in lines)
    cli.check(len(lines) == 4 * n and all(line.count("(") == 4 for line in lines), len(lines), n)
    r = cli.run(*ASKED, "--expert-trace-verbose", "1")
    words = r.stderr.decode()
    cli.check(all(" %s: " % stage in words for stage in ("logits", "probabilities", "gate", "up", "activation", "down", "sum")), words[:500])


def traces(tmp):
    """Recorded, replayed, put back; and the variable's name wins over its alias, a flag over both."""
    plain, trace, other = cli.run(*ASKED), os.path.join(tmp, "a.trace"), os.path.join(tmp, "b.trace")
    env = cli.environment(LLAMA_EXPERT_TRACE_OUTPUT=other, PFMOE_EXPERT_TRACE_OUTPUT=trace)
    r = cli.run(*ASKED, "--stats", env=env)
    cli.check(r.stdout == plain.stdout and not os.path.exists(other) and os.path.getsize(trace) > 24, "recorded", r.stderr)
    cli.check("tok/s" in r.stderr.decode() and "GB/s" in r.stderr.decode(), "statistics", r.stderr)
    r = cli.run(*ASKED, "--expert-trace-output", other, env=cli.environment(PFMOE_EXPERT_TRACE_OUTPUT=trace + "x"), timeout=60)
    cli.check(r.returncode == 2 and b"PFMOE_EXPERT_TRACE_OUTPUT" in r.stderr, "a variable that does not parse", r.stderr)
    r = cli.run(*ASKED, "--expert-trace-output", other, env=env)
    with open(trace, "rb") as a, open(other, "rb") as b:
        cli.check(a.read() == b.read(), "the flag wins, and the same run leaves the same trace")
    for flags in (("--routing", trace), ("--routing", trace, "--streaming"), ("--routing", trace, "--isa", "scalar")):
        r = cli.run(*ASKED, *flags)
        cli.check(r.returncode == 0 and r.stdout == plain.stdout, flags, r.stderr)
    with open(trace, "r+b") as f:
        f.seek(24)
        f.write(b"\xff\xff")
    r = cli.run(*ASKED, "--routing", trace)
    cli.check(r.returncode == 1 and b"byte 24: expert 65535 of 16" in r.stderr, r.stderr)
    r = cli.run(*ASKED, "--expert-trace-output", os.path.join(tmp, "no", "a.trace"))
    cli.check(r.returncode == 1 and b"a.trace: No such" in r.stderr, r.stderr)
    # A run that fails leaves the trace that was there, and nothing beside it.
    was, n = open(other, "rb").read(), len(os.listdir(tmp))
    r = cli.run("-p", "too long " * 2000, "-c", "512", "--expert-trace-output", other)
    cli.check(r.returncode == 1 and open(other, "rb").read() == was and len(os.listdir(tmp)) == n, r.stderr, os.listdir(tmp))
    r = cli.run("-m", cli.synth(tmp, "llama-tiny"), "-p", "x", "-n", "1", "--expert-trace-stats", "1")
    cli.check(r.returncode == 1 and b"no experts" in r.stderr, r.stderr)


with cli.scratch() as folder:
    timeline(folder)
    activity(folder)
    logging(folder)
    traces(folder)
cli.finish()

#!/usr/bin/env python3
"""Rows of pfmoe-bench: lists of everything, depth, forms, refusals; and what plot.py makes of them. The rows are the CPU's; those of a
GPU have the same form. usage: check_sweep.py PFMOE_BENCH PLOT.py MODEL.gguf"""
import csv
import datetime
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import xml.dom.minidom

BENCH, PLOT, MODEL = sys.argv[1:]


def check_origin(row):
    """A row says by itself what it was measured with."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    assert re.fullmatch("[0-9a-f]{12}(-dirty)?|unknown", row["commit"]), row
    assert 0 <= (today - datetime.date.fromisoformat(row["date"])).days <= 1, row
    assert re.search("[0-9]+ cores$", row["cpu"]), row
    assert bool(row["gpu"]) == bool(row["driver"]) == (row["backend"] != "cpu"), row


def check_forms():
    """JSON and tables name commit, day and CPU, too."""
    for form in ("json", "md"):
        out, _ = bench("-p", "0", "-n", "4", "-r", "1", "-o", form)
        if form == "json":
            check_origin(json.loads(out)[0])
        else:
            assert re.search("; commit [0-9a-f]{12}|; commit unknown", out) and " cores\n" in out, out


def check_together():
    """Sequences that decode together: of the 16 experts of a layer three sequences that pick four each share some."""
    out, said = bench("-p", "0", "-n", "4", "-s", "1,3", "-r", "1", "-o", "csv")
    alone, three = csv.DictReader(io.StringIO(out))
    assert (alone["test"], alone["sequences"], three["test"], three["sequences"]) == ("tg4", "1", "tg4x3", "3"), out
    assert float(alone["most_together"]) == 1 and 1 < float(three["most_together"]) < 3, r.stdout
    assert "12 picks of 16 experts fall on 9.2" in said, said


def bench(*arguments, status=0):
    """What a run on the CPU writes to standard output and standard error. Without --ram-mb it would measure the bandwidth of gigabytes
    of memory, where the last cache is large."""
    r = subprocess.run([BENCH, "-m", MODEL, "-g", "-1", "-t", "1", "--ram-mb", "800", *arguments], capture_output=True, text=True, timeout=120)
    assert r.returncode == status, r.stderr
    return r.stdout, r.stderr


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def check_depth():
    """Keys and values of the tokens that are there count: each position more is as many bytes more."""
    out, said = bench("-p", "8", "-n", "4", "-pg", "8,4", "-d", "0,256", "-r", "2", "--progress", "-o", "csv")
    rows = rows_of(out)
    assert [row["test"] for row in rows] == ["pp8", "tg4", "pp8+tg4", "pp8 @ d256", "tg4 @ d256", "pp8+tg4 @ d256"], out
    kv = [float(row["kv_bytes_per_token"]) for row in rows]
    each = kv[1] / 2.5
    assert each > 0 and abs(kv[4] - each * 258.5) < 1, "a decoded token reads the keys and values of all in front of it"
    assert abs(kv[0] - each) < 1 and abs(kv[3] - each * 264 / 8) < 1, "a prompt goes over them once for a batch"
    for row in rows:
        samples = [float(v) for v in row["samples"].split()]
        assert len(samples) == 2 and float(row["tok_s_min"]) == min(samples) and float(row["tok_s_max"]) == max(samples), row
        assert abs(float(row["tok_s_stddev"]) - statistics.stdev(samples)) < 0.01, row
        assert float(row["bytes_per_token"]) > float(row["kv_bytes_per_token"]), row
        assert row["model_type"] == "Q8_0" and float(row["model_bytes"]) > 1e7 and float(row["model_params"]) > 1e7, row
    assert float(rows[4]["roofline_tok_s"]) > 0 and float(rows[2]["roofline_tok_s"]) == 0, "of both together no limit is known"
    assert "tg4 @ d256: run 2 of 2" in said, said


def check_refusals():
    out, said = bench("-p", "64", "-d", "0,4090", "-o", "csv", status=1)
    assert "pp64 @ d4090 needs a context of 4154 tokens; the model's has 4096" in said and not rows_of(out), "before any test runs"
    for wrong in (["-d", "x"], ["-pg", "8"], ["--kv", "f16"], ["-d", "1,,2"], ["-p", "1" * 40], ["-p", "0", "-n", "0"], ["512"]):
        bench(*wrong, status=2)


def check_word():
    """A file without -m is a model, too."""
    r = subprocess.run([BENCH, MODEL, "-g", "-1", "-t", "1", "--ram-mb", "800", "-p", "0", "-n", "4", "-r", "1", "-o", "csv"], capture_output=True,
                       text=True, timeout=120)
    assert r.returncode == 0 and [row["test"] for row in rows_of(r.stdout)] == ["tg4"], r


def check_lists():
    """Models, batches and types of keys and values are lists; a table has a head for each group of rows."""
    out, _ = bench("-m", MODEL, "-p", "8", "-n", "0", "-b", "4,8", "--kv", "i16,q8_0", "-r", "1", "-o", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["kv"], row["n_batch"]) for row in rows] == 2 * [("i16", 4), ("i16", 8), ("q8_0", 4), ("q8_0", 8)], out
    assert all(len(row["samples"]) == 1 and row["file"] == "fables.gguf" for row in rows), out
    out, _ = bench("-p", "8", "-n", "2", "--kv", "i16,q8_0", "-r", "1")
    assert out.count("tok/s") == 2 and " 0%" not in out.replace("100%", ""), out


def check_plot(text):
    """Without matplotlib what would be drawn is looked at all the same."""
    sys.path.insert(0, os.path.dirname(PLOT))
    sys.dont_write_bytecode = True
    import plot
    rows = rows_of(text)
    assert plot.axis_of(rows) == "vram_mb"
    panels = plot.panels_of(rows, "vram_mb")
    assert sorted(panels) == ["tg4", "tg8"] and all(len(lines) == 1 for lines in panels.values()), panels
    assert [p[0] for p in list(panels["tg4"].values())[0]] == [50, 100, 200], "in order"
    labels, common = plot.labels_of(panels)
    assert rows[0]["commit"] in common and rows[0]["cpu"] in common and list(labels.values()) == ["Fables"], (labels, common)
    changed = rows_of(text.replace(rows[0]["commit"], "0123456789ab", 3))
    labels, common = plot.labels_of(plot.panels_of(changed, "vram_mb"))
    assert len(labels) == 2 and "0123456789ab" in labels.values() and rows[0]["commit"] not in common, "two commits are never joined"
    old = [{k: row[k] for k in ("test", "model", "threads", "vram_mb", "tok_s", "roofline_tok_s")} for row in rows]
    assert len(plot.panels_of(old, "vram_mb")) == 2, "rows of before commits were noted"
    with tempfile.TemporaryDirectory() as folder:
        source, svg = os.path.join(folder, "rows.csv"), os.path.join(folder, "rows.svg")
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        r = subprocess.run([sys.executable, PLOT, source, "-o", svg], capture_output=True, text=True, timeout=120)
        if "python3-matplotlib" in r.stderr:
            return
        assert r.returncode == 0, r.stderr
        xml.dom.minidom.parse(svg)


def main():
    out, _ = bench("-p", "0", "-n", "4,8", "-r", "1", "--vram-mb", "100,50,200", "-o", "csv")
    rows = rows_of(out)
    assert [(row["test"], row["vram_mb"]) for row in rows] == [(t, v) for v in ("100", "50", "200") for t in ("tg4", "tg8")], out
    for row in rows:
        assert float(row["tok_s"]) > 0 and float(row["roofline_tok_s"]) > 0, row
        assert abs(float(row["roofline_share"]) - float(row["tok_s"]) / float(row["roofline_tok_s"])) < 1e-3, row
        check_origin(row)
    check_plot(out)
    bench("--vram-mb", "1,x", status=2)
    bench("-g", "0,-1", status=2)
    bench("--layout", "columns", status=2)
    check_forms()
    check_together()
    check_depth()
    check_refusals()
    check_word()
    check_lists()


main()

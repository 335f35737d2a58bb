#!/usr/bin/env python3
"""One command runs a list of budgets and writes a row for each; plot.py makes a picture of them. Without a GPU the rows are the
CPU's, in the same form. usage: check_sweep.py PFMOE_BENCH PLOT.py MODEL.gguf"""
import csv
import datetime
import io
import json
import re
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
        r = subprocess.run([BENCH, "-m", MODEL, "-g", "-1", "-p", "0", "-n", "4", "-t", "1", "-r", "1", "-o", form],
                           capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stderr
        if form == "json":
            check_origin(json.loads(r.stdout)[0])
        else:
            assert re.search("; commit [0-9a-f]{12}|; commit unknown", r.stdout) and " cores\n" in r.stdout, r.stdout


def check_together():
    """Sequences that decode together: of the 16 experts of a layer three sequences that pick four each share some."""
    r = subprocess.run([BENCH, "-m", MODEL, "-g", "-1", "-p", "0", "-n", "4", "-s", "1,3", "-t", "1", "-r", "1", "-o", "csv"],
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    alone, three = csv.DictReader(io.StringIO(r.stdout))
    assert (alone["test"], alone["sequences"], three["test"], three["sequences"]) == ("tg4", "1", "tg4x3", "3"), r.stdout
    assert float(alone["most_together"]) == 1 and 1 < float(three["most_together"]) < 3, r.stdout
    assert "12 picks of 16 experts fall on 9.2" in r.stderr, r.stderr


def draw(text):
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as f:
        f.write(text)
        f.flush()
        svg = subprocess.run([sys.executable, PLOT, f.name], capture_output=True, text=True, timeout=60)
    assert svg.returncode == 0, svg.stderr
    return xml.dom.minidom.parseString(svg.stdout)


def said_in(page):
    return [t.firstChild.data for t in page.getElementsByTagName("text")]


def main():
    r = subprocess.run([BENCH, "-m", MODEL, "-p", "0", "-n", "4,8", "-t", "1", "-r", "1", "--vram-mb", "100,50,200", "-o", "csv"],
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    rows = list(csv.DictReader(io.StringIO(r.stdout)))
    assert [(row["test"], row["vram_mb"]) for row in rows] == [(t, v) for v in ("100", "50", "200") for t in ("tg4", "tg8")], r.stdout
    for row in rows:
        assert float(row["tok_s"]) > 0 and float(row["roofline_tok_s"]) > 0, row
        assert abs(float(row["roofline_share"]) - float(row["tok_s"]) / float(row["roofline_tok_s"])) < 1e-3, row
        check_origin(row)
    page = draw(r.stdout)
    assert len(page.getElementsByTagName("circle")) == 6, "a point for each row"
    assert sum(p.hasAttribute("stroke-dasharray") for p in page.getElementsByTagName("path")) == 2, "a roofline for each test"
    assert any(rows[0]["commit"] in t and rows[0]["cpu"] in t for t in said_in(page)), "the rows' origin"
    changed = r.stdout.replace(rows[0]["commit"], "0123456789ab", 3)
    page = draw(changed)
    assert sum("(2)" in t for t in said_in(page)) == 3, "two commits: four lines, two of them and an origin numbered 2"
    page = draw("".join(",".join(line.split(",")[:24]) + "\n" for line in r.stdout.splitlines()))
    assert len(page.getElementsByTagName("circle")) == 6, "rows of before commits were noted"
    empty = subprocess.run([sys.executable, PLOT], capture_output=True, text=True, timeout=60)
    assert empty.returncode != 0 and "usage" in empty.stderr
    bad = subprocess.run([BENCH, "-m", MODEL, "--vram-mb", "1,x"], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2, bad.stderr
    check_forms()
    check_together()


main()

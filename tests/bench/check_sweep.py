#!/usr/bin/env python3
"""One command runs a list of budgets and writes a row for each; plot.py makes a picture of them. Without a GPU the rows are the
CPU's, in the same form. usage: check_sweep.py PFMOE_BENCH PLOT.py MODEL.gguf"""
import csv
import io
import subprocess
import sys
import tempfile
import xml.dom.minidom

BENCH, PLOT, MODEL = sys.argv[1:]


def main():
    r = subprocess.run([BENCH, "-m", MODEL, "-p", "0", "-n", "4,8", "-t", "1", "-r", "1", "--vram-mb", "100,50,200", "-o", "csv"],
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    rows = list(csv.DictReader(io.StringIO(r.stdout)))
    assert [(row["test"], row["vram_mb"]) for row in rows] == [(t, v) for v in ("100", "50", "200") for t in ("tg4", "tg8")], r.stdout
    for row in rows:
        assert float(row["tok_s"]) > 0 and float(row["roofline_tok_s"]) > 0, row
        assert abs(float(row["roofline_share"]) - float(row["tok_s"]) / float(row["roofline_tok_s"])) < 1e-3, row
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as f:
        f.write(r.stdout)
        f.flush()
        svg = subprocess.run([sys.executable, PLOT, f.name], capture_output=True, text=True, timeout=60)
    assert svg.returncode == 0, svg.stderr
    page = xml.dom.minidom.parseString(svg.stdout)
    assert len(page.getElementsByTagName("circle")) == 6, "a point for each row"
    assert sum(p.hasAttribute("stroke-dasharray") for p in page.getElementsByTagName("path")) == 2, "a roofline for each test"
    empty = subprocess.run([sys.executable, PLOT], capture_output=True, text=True, timeout=60)
    assert empty.returncode != 0 and "usage" in empty.stderr
    bad = subprocess.run([BENCH, "-m", MODEL, "--vram-mb", "1,x"], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2, bad.stderr


main()

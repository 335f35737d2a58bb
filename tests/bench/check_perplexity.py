#!/usr/bin/env python3
"""pfmoe-bench --perplexity against the same computed here from the logits of pfmoe-run --score, by the formula of the manual page; forms,
types of keys and values, refusals. usage: check_perplexity.py PFMOE_BENCH PFMOE_RUN MODEL.gguf"""
import array
import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile

BENCH, RUN, MODEL = sys.argv[1:]
TEXT = "A Fox and a Crow.\n" + "One day a hungry Fox saw a Crow with a piece of cheese in her beak; and the Lion said: \"Number 12!\"\n" * 8
CHUNK = 64


def run(*command, status=0):
    r = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert r.returncode == status, (command, r.stderr)
    return r.stdout, r.stderr


def bench(folder, *arguments, status=0):
    return run(BENCH, "-m", MODEL, "-g", "-1", "-t", "2", "--perplexity", os.path.join(folder, "text"), "-c", str(CHUNK), *arguments,
               status=status)


def expected(folder, ids):
    """(perplexity, standard error, tokens counted); the bundled model has no BOS."""
    losses = []
    tokens, out = os.path.join(folder, "tokens"), os.path.join(folder, "logits")
    for begin in range(0, len(ids) - CHUNK + 1, CHUNK):
        chunk = ids[begin:begin + CHUNK]
        with open(tokens, "w", encoding="utf-8") as f:
            f.write(",".join(map(str, chunk)))
        run(RUN, "-m", MODEL, "--score", tokens, "--logits", out)
        logits = array.array("f", open(out, "rb").read())
        n_vocab = len(logits) // CHUNK
        for at in range(CHUNK // 2, CHUNK - 1):
            row = logits[at * n_vocab:(at + 1) * n_vocab]
            most = max(row)
            losses.append(most + math.log(sum(math.exp(v - most) for v in row)) - row[chunk[at + 1]])
    mean = sum(losses) / len(losses)
    variance = sum(v * v for v in losses) / len(losses) - mean * mean
    return math.exp(mean), math.exp(mean) * math.sqrt(variance / (len(losses) - 1)), len(losses)


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "text"), "w", encoding="utf-8") as f:
            f.write(TEXT)
        with open(os.path.join(folder, "line"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"text": TEXT}))
        ids = json.loads(run(RUN, "-m", MODEL, "--tokenize", os.path.join(folder, "line"))[0])["ids"]
        perplexity, error, counted = expected(folder, ids)
        out, said = bench(folder, "--kv", "i16,f32", "-o", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(r["test"], r["kv"]) for r in rows] == [("ppl64", "i16"), ("ppl64", "f32")], out
        assert int(rows[0]["n_scored"]) == counted and int(rows[0]["n_chunks"]) == len(ids) // CHUNK >= 2, (out, counted)
        assert abs(float(rows[0]["perplexity"]) - perplexity) < 1e-3 * perplexity, (out, perplexity)
        assert abs(float(rows[0]["perplexity_error"]) - error) < 1e-3 * error + 1e-4, (out, error)
        assert abs(float(rows[1]["perplexity"]) - perplexity) < 0.05 * perplexity, out
        assert len(re.findall("chunk [0-9]+ of %d: perplexity so far" % (len(ids) // CHUNK), said)) == 2 * (len(ids) // CHUNK), said
        same = json.loads(bench(folder, "-b", "7", "-o", "json")[0])[0]
        assert "%.4f" % same["perplexity"] == rows[0]["perplexity"], "no bit depends on the batch"
        assert re.search(r"ppl64 +2 +%d +%d +%s" % (len(ids) // CHUNK, counted, rows[0]["perplexity"]), bench(folder)[0])
        assert "takes 2048 (see --ctx)" in bench(folder, "-c", "2048", status=1)[1] or "needs a context" in bench(folder, "-c", "2048", status=1)[1]
        assert "cannot read" in run(BENCH, "-m", MODEL, "-g", "-1", "--perplexity", "/nonexistent/text", status=1)[1]


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Every file of the conformance set on the GPU: the logits are within the file's tolerance, the same bytes in one batch, in
chunks and token by token, and the same bytes as the CPU's. Skips where there is no GPU or no set.
usage: conformance.py PFMOE_RUN DEFAULT_SHARED [NAME...]"""
import array
import json
import os
import subprocess
import sys
import tempfile

run, default_shared, only = sys.argv[1], sys.argv[2], sys.argv[3:]
folder = os.path.join(os.environ.get("PFMOE_SHARED", default_shared), "conformance")
SKIP = 77


def skip(why):
    print("skipped:", why)
    sys.exit(SKIP)


def floats(data):
    a = array.array("f")
    a.frombytes(data)
    return a


def deviation(got, wanted):
    """(error to signal in squares, largest error over the standard deviation)"""
    mean = sum(wanted) / len(wanted)
    std = (sum((x - mean) ** 2 for x in wanted) / len(wanted)) ** 0.5
    return (sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted),
            max(abs(a - b) for a, b in zip(got, wanted)) / std)


def score(entry, out, gpu, *flags):
    """(status, stderr, bytes of the logits)"""
    env = dict(os.environ) if gpu else dict(os.environ, CUDA_VISIBLE_DEVICES="")
    model, tokens = (os.path.join(folder, p) for p in (entry["files"][0], entry["tokens"]))
    r = subprocess.run([run, "-m", model, "--score", tokens, "--logits", out, *flags], env=env, stdout=subprocess.DEVNULL,
                       stderr=subprocess.PIPE, check=False)
    data = b""
    if r.returncode == 0:
        with open(out, "rb") as f:
            data = f.read()
    return r.returncode, r.stderr.decode(), data


def check_file(entry, out):
    """What is wrong with it, or None."""
    status, text, batch = score(entry, out, True)
    if status == 1 and "is not supported (supported:" in text and entry["tier"] == "extra":
        return None
    if status != 0 or "runs on the CPU" in text or "GPU failed" in text:
        return text.strip()
    with open(os.path.join(folder, entry["logits"]["exact"]), "rb") as f:
        squares, worst = deviation(floats(batch), floats(f.read()))
    limit = entry["tolerance"].get("max_over_std_f16_kv")
    print("%-40s nmse %.1e (limit %.0e), max/std %.1e" % (entry["name"], squares, entry["tolerance"]["nmse"], worst))
    if not squares <= entry["tolerance"]["nmse"] or (limit is not None and not worst <= limit):
        return "outside its tolerance"
    for name, gpu, flags in (("steps", True, ["--step"]), ("chunks", True, ["--chunk", "1,7,32"]), ("the CPU's", False, [])):
        status, text, data = score(entry, out, gpu, *flags)
        if status != 0 or (gpu and "GPU failed" in text):
            return text.strip()
        if data != batch:
            return "%s logits are other bytes" % name
    return None


def main():
    try:
        if subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            skip("this machine has no GPU that works")
    except OSError:
        skip("this machine has no GPU")
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
            files = [e for e in json.load(f)["files"] if not only or e["name"] in only]
    except OSError as e:
        skip(e)
    bad = []
    with tempfile.TemporaryDirectory() as tmp:
        for entry in files:
            wrong = check_file(entry, os.path.join(tmp, "out"))
            if wrong:
                bad.append(entry["name"])
                print("%-40s FAILS: %s" % (entry["name"], wrong))
    print(len(files), "files, of which", len(bad), "fail", *bad)
    return 1 if bad else 0


sys.exit(main())

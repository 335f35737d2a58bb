#!/usr/bin/env python3
"""Every file of the conformance set on the GPU: the logits are within the file's tolerance, the same bytes in one batch, in
chunks and token by token, the same with every expert forced to the CPU (of a model without experts, some layers), and the
same bytes as the CPU's. Skips where there is no GPU or no set.
usage: conformance.py [-j FILES_AT_ONCE] PFMOE_RUN DEFAULT_SHARED [NAME...]"""
import array
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

args = sys.argv[1:]
jobs = int(args[1]) if args[0] == "-j" else 1
run, default_shared, *only = args[2:] if args[0] == "-j" else args
folder = os.path.join(os.environ.get("PFMOE_SHARED", default_shared), "conformance")
SKIP = 77
FORCED = ["--streaming", "--postfetch-force-cpu", "1", "--stats"]
# Threads that wait spin: so many of all runs as there are cores.
THREADS = ["-t", str(max(1, os.cpu_count() // jobs))] if jobs > 1 else []


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
    command = [run, "-m", model, "--score", tokens, "--logits", out, *THREADS, *flags]
    r = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    data = b""
    if r.returncode == 0:
        with open(out, "rb") as f:
            data = f.read()
    return r.returncode, r.stderr.decode(), data


def misplaced(entry, stats):
    """What the statistics of a run with FORCED say against it, or None: the GPU has done its part, and of experts nothing.
    Layers of a model without experts may visit the GPU."""
    lines = stats.splitlines()
    has_experts = "experts" in entry["hyper"]
    for begin in ["launches "] + (["GPU busy "] if has_experts else []):
        if not any(line.startswith(begin) for line in lines):
            return "the statistics have no line \"%s\"" % begin.strip()
    for line in lines:
        if line.startswith(("transfers ", "experts in VRAM ", "VRAM for experts ") + (("prompts ",) if has_experts else ())):
            return line
    return None


def not_on_gpu(text):
    """Whether a run's warnings say that the GPU had no part in it. One that drafts may be without."""
    return "the model runs on the CPU" in text or "GPU failed" in text


def check_file(entry, out):
    """(what it says, what is wrong or None)"""
    status, text, batch = score(entry, out, True)
    if status == 1 and "is not supported (supported:" in text and entry["tier"] == "extra":
        return "not supported", None
    if status != 0 or not_on_gpu(text):
        return "", text.strip()
    with open(os.path.join(folder, entry["logits"]["exact"]), "rb") as f:
        squares, worst = deviation(floats(batch), floats(f.read()))
    limit = entry["tolerance"].get("max_over_std_f16_kv")
    said = "nmse %.1e (limit %.0e), max/std %.1e" % (squares, entry["tolerance"]["nmse"], worst)
    if not squares <= entry["tolerance"]["nmse"] or (limit is not None and not worst <= limit):
        return said, "outside its tolerance"
    for name, gpu, flags in (("steps", True, ["--step"]), ("chunks", True, ["--chunk", "1,7,32"]), ("forced", True, FORCED),
                             ("forced steps", True, [*FORCED, "--step"]), ("the CPU's", False, [])):
        status, text, data = score(entry, out, gpu, *flags)
        if status != 0 or (gpu and not_on_gpu(text)):
            return said, "%s: %s" % (name, text.strip())
        if data != batch:
            return said, "%s: the logits are other bytes" % name
        if "--stats" in flags and misplaced(entry, text):
            return said, "%s: %s" % (name, misplaced(entry, text))
    return said, None


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
    with tempfile.TemporaryDirectory() as tmp, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        outs = (os.path.join(tmp, str(i)) for i in range(len(files)))
        for entry, (said, wrong) in zip(files, pool.map(check_file, files, outs)):
            print("%-40s %s" % (entry["name"], said), flush=True)
            if wrong:
                bad.append(entry["name"])
                print("%-40s FAILS: %s" % (entry["name"], wrong), flush=True)
    print(len(files), "files, of which", len(bad), "fail", *bad)
    return 1 if bad else 0


sys.exit(main())

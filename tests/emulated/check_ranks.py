#!/usr/bin/env python3
"""The programs as several processes, on emulated GPUs and by what stands in for NCCL: the first answers as one alone would, and
the others end with it; which is which says a flag or what mpirun leaves in the environment.

    check_ranks.py RUN SYNTH [SERVE]"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

RUN, SYNTH, SERVE = (sys.argv + [""])[1:4]
ASK = ["-p", "Tell me a fable.", "-n", "12", "--seed", "3", "-t", "1"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(rank, args, env):
    return subprocess.Popen([RUN] + args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=dict(os.environ, **env(rank)))


def check(ok, *what):
    if not ok:
        print("not so:", *what)
        sys.exit(1)


def run(n, args, env=lambda rank: {}):
    """args(rank): of each; the answer of the first."""
    ranks = [start(k, args(k), env) for k in range(n)]
    ends = [p.communicate(timeout=120) + (p.returncode,) for p in ranks]
    check(all(e[2] == 0 for e in ends), ends)
    check(not any(e[0] for e in ends[1:]), "others answer, too", ends)
    return ends[0][0]


def ask(port, path, body=None):
    try:
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), body and json.dumps(body).encode(), timeout=120) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())["error"]["message"]


def serves(model, hosts):
    """A server whose other process is killed says so where its supervisor looks."""
    server = subprocess.Popen([SERVE, "--port", "0", "-m", model, "-t", "1", "--rank", "0"] + hosts, stderr=subprocess.PIPE, text=True)
    other = start(1, ["-m", model, "-p", "x", "-t", "1", "--rank", "1"] + hosts, lambda rank: {})
    at = next(m for m in (re.search(r" at http://.*:(\d+)\n", line) for line in server.stderr) if m)
    port, completion = int(at.group(1)), {"prompt": "x", "max_tokens": 2}
    check(ask(port, "/v1/completions", completion)[0] == 200 and ask(port, "/health")[0] == 200, "a server of two processes")
    other.kill()
    other.communicate()
    status, why = ask(port, "/v1/completions", completion)
    check(status == 500 and ask(port, "/health") == (503, why), status, why, ask(port, "/health"))
    server.terminate()
    server.communicate(timeout=120)


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "tiny.gguf")
    subprocess.run([SYNTH, "gpt-oss-tiny", model], check=True, stdout=subprocess.DEVNULL)
    alone = run(1, lambda k: ["-m", model, "--gpus", "-1"] + ASK)
    check(alone, "there is no answer")

    def by_flags(k):
        return ["-m", model, "--hosts", "localhost:%d,localhost" % port, "--rank", str(k)] + ASK
    port = free_port()
    check(run(2, by_flags) == alone, "by flags")
    port = free_port()
    check(run(2, lambda k: by_flags(k) + ["--layout", "rows"]) == alone, "by rows")

    def by_mpi(k):
        return {"OMPI_COMM_WORLD_RANK": str(k), "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": str(k)}
    port = free_port()
    check(run(3, lambda k: ["-m", model, "--hosts", "localhost:%d" % port, "--vram-mb", "1"] + ASK, by_mpi) == alone, "by mpirun")

    other = os.path.join(folder, "other.gguf")
    subprocess.run([SYNTH, "gpt-oss-tiny", other, "--type", "F32"], check=True, stdout=subprocess.DEVNULL)
    port = free_port()
    ranks = [start(k, ["-m", (model, other)[k]] + by_flags(k)[2:], lambda rank: {}) for k in range(2)]
    for p in ranks:
        err = p.communicate(timeout=120)[1].decode()
        check(p.returncode == 1 and "another model than that of rank 0" in err, err)

    if SERVE:
        serves(model, ["--hosts", "localhost:%d,localhost" % free_port()])
        serves(model, ["--layout", "rows", "--hosts", "localhost:%d,localhost" % free_port()])

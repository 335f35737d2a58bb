#!/usr/bin/env python3
"""The programs as several processes, on emulated GPUs and by what stands in for NCCL: the first answers as one alone would, and
the others end with it; which is which says a flag or what mpirun leaves in the environment.

    check_ranks.py RUN SYNTH"""
import os
import socket
import subprocess
import sys
import tempfile

RUN, SYNTH = sys.argv[1:]
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


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "tiny.gguf")
    subprocess.run([SYNTH, "gpt-oss-tiny", model], check=True, stdout=subprocess.DEVNULL)
    alone = run(1, lambda k: ["-m", model, "--gpus", "-1"] + ASK)
    check(alone, "there is no answer")

    def by_flags(k):
        return ["-m", model, "--hosts", "localhost:%d,localhost" % port, "--rank", str(k)] + ASK
    port = free_port()
    check(run(2, by_flags) == alone, "by flags")

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

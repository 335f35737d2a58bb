"""For the tests of pfmoe-run: where things are, running the program, skipping and failing.

Each test is called with the program, pfmoe-synth and the default folder of the shared data."""
import os
import subprocess
import sys
import tempfile

run_path, synth_path, default_shared = (sys.argv + [""] * 4)[1:4]
shared = os.environ.get("PFMOE_SHARED", default_shared)
failures = 0


def environment(**more):
    """The test's environment without anything that changes what pfmoe-run does."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PFMOE_", "LLAMA_"))}
    env.update(more)
    return env


def run(*args, stdin=b"", env=None, stdout=subprocess.PIPE, timeout=120, **more):
    return subprocess.run([run_path, *args], input=stdin, stdout=stdout, stderr=subprocess.PIPE,
                          env=env or environment(), timeout=timeout, **more)


def check(ok, *what):
    global failures
    if not ok:
        failures += 1
        print("FAILED:", *what)


def need(*path):
    """A path in the shared data; the test is skipped where it is absent."""
    full = os.path.join(shared, *path)
    if not os.path.exists(full):
        print("skipped: there is no", full)
        sys.exit(77)
    return full


def synth(folder, preset="moe-tiny", *options):
    path = os.path.join(folder, "-".join([preset, *options]) + ".gguf")
    subprocess.run([synth_path, preset, path, *options], check=True)
    return path


def scratch():
    return tempfile.TemporaryDirectory(prefix="pfmoe-test-")


def finish():
    print("failures:", failures)
    sys.exit(failures != 0)

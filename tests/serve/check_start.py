#!/usr/bin/env python3
"""A server that writes to no terminal says its address when its weights are in memory, as many as have a place there, and not before.
While a drive lets it wait, SIGTERM ends it at once; where weights cannot be read, it does not start.

    check_start.py SERVE RUN SYNTH SHARED STUCK_DRIVE.so"""
import ctypes
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import serve
import tiny
from serve import Server, chat, check, environment, finish

libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
ON_CPU = ("--gpus", "-1")            # a GPU would have all, and nothing would be read
READ = rb"pfmoe-serve: (\d+) MB of weights in memory after \d+\.\d s\n"


def resident(path):
    """The share of the file that the page cache has."""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
        n = -(-len(m) // mmap.PAGESIZE)
        pages, view = ctypes.create_string_buffer(n), (ctypes.c_char * len(m)).from_buffer(m)
        error = libc.mincore(ctypes.addressof(view), len(m), pages)
        del view
        check(error == 0, "mincore:", os.strerror(ctypes.get_errno()))
        return sum(p & 1 for p in pages.raw[:n]) / n


def drop(path):
    """Takes the file out of the page cache, where that is not the file itself."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def check_in_memory(path):
    size = os.path.getsize(path)
    for attempt in range(3):                     # the kernel may take pages at any time
        drop(path)
        before = resident(path)
        with Server(*ON_CPU, "-m", path) as s:
            there, log = resident(path), s.log
        print("%.0f MB: %.3f in memory before, %.3f at the address" % (size / 1e6, before, there), flush=True)
        if there > 0.99:
            break
    check(there > 0.99, "a share of", there, "is in memory when the address is told")
    read = re.search(READ, log)
    check(read and 0.98 * size < 1e6 * int(read.group(1)) < 1.02 * size and read.start() < log.index(b" at http://"), log)


def check_room(path):
    """What conversations without a slot may have is a quarter of what is left, within bounds."""
    for ram, least, most in ((20000, 4800, 5000), (2000, 1024, 1024), (90000, 16384, 16384)):
        with Server(*ON_CPU, "-m", path, "--ram-mb", str(ram)) as s:
            mb = int(re.search(rb" and (\d+) MB for conversations", s.log).group(1))
            check(least <= mb <= most, "of", ram, "MB", mb)


def check_told_once(folder):
    """What there is to warn of is told once, though memory is planned for before the model is opened; what keeps it from being opened, alone."""
    path = tiny.model(folder, template="{% if %}", name="warned")
    with Server(*ON_CPU, "-m", path, "-c", "64") as s:
        check(s.log.count(b"does not parse") == 1, s.log)
    r = subprocess.run([serve.serve_path, *ON_CPU, "-m", path, "-c", "64", "--port", "0", "--ram-mb", "1"], capture_output=True, env=environment(), timeout=60)
    check(r.returncode == 1 and r.stderr.count(b"of memory and may take 1 MB") == 1, r.stderr)


def check_small_memory(path):
    """Weights that have no place in memory are not read."""
    size = os.path.getsize(path) / 1e6
    with Server(*ON_CPU, "-m", path, "-c", "512", "--streaming") as s:
        read = int(re.search(READ, s.log).group(1))
        check(s.post("/v1/chat/completions", chat("x", max_tokens=4))[0] == 200, "an answer")
    check(0 < read < 0.8 * size, "of", size, "MB of which a part is streamed were read", read)


class Stuck:
    """A server that waits for its drive, in the middle of reading its weights."""

    def __init__(self, folder, path):
        self.fifo = os.path.join(folder, "drive")
        os.mkfifo(self.fifo)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen([serve.serve_path, *ON_CPU, "-m", path, "--port", str(self.port)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env=environment(LD_PRELOAD=sys.argv[5], STUCK_DRIVE=self.fifo))
        for _ in range(2000):
            try:
                self.drive = os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK)      # as soon as somebody waits
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("the server does not read its weights: %r" % self.process.stderr.read())

    def go_on(self):
        os.remove(self.fifo)
        os.close(self.drive)

    def ended(self):
        """(status, seconds, what it said)"""
        begin = time.monotonic()
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, time.monotonic() - begin, said


def check_ended(folder, path):
    s = Stuck(folder, path)
    with socket.socket() as c:
        check(c.connect_ex(("127.0.0.1", s.port)) != 0, "a server listens that has not read its weights")
    s.process.send_signal(signal.SIGTERM)
    status, seconds, said = s.ended()
    check(status == 0 and seconds < 1 and said == b"", "SIGTERM while weights are read:", status, seconds, said)
    s.go_on()


def check_unreadable(folder, path):
    s = Stuck(folder, path)
    os.truncate(path, os.path.getsize(path) // 2)
    s.go_on()
    status, _, said = s.ended()
    check(status == 1 and said.strip() == b"pfmoe-serve: the model file became shorter or unreadable while it was in use", status, said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.model(folder, layers=30)
        check_in_memory(path)
        check_small_memory(path)
        check_room(path)
        check_told_once(folder)
        check_ended(folder, path)
        check_unreadable(folder, path)
    finish()


main()

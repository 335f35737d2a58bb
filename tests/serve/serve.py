"""For the tests of pfmoe-serve: starting and ending a server, asking it by the standard library's HTTP.

Each test is called with the programs pfmoe-serve, pfmoe-run and pfmoe-synth, and the default folder of the shared data."""
import faulthandler
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading

serve_path, run_path, synth_path, default_shared = (sys.argv + [""] * 5)[1:5]
shared = os.environ.get("PFMOE_SHARED", default_shared)
failures = 0
faulthandler.dump_traceback_later(280)           # Meson ends a test after 300 s: it has said by then where it waits


def check(ok, *what):
    global failures
    if not ok:
        failures += 1
        print("FAILED:", *what, flush=True)


def finish():
    print("failures:", failures)
    sys.exit(failures != 0)


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PFMOE_", "LLAMA_"))}
    env.update(more)
    return env


class Server:
    """A server of its own, at a port that the system chose; ends with the block."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen([serve_path, "--port", "0", "-t", "2", *args], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                        env=env or environment())
        self.log = b""
        for line in self.process.stderr:
            self.log += line
            m = re.search(rb" at http://(.*):(\d+)\n", line)
            if m:
                self.port = int(m.group(2))
                break
        else:
            raise RuntimeError("the server did not start: %r" % self.log)
        self.reader = threading.Thread(target=self.read_log)
        self.reader.start()

    def read_log(self):
        for line in self.process.stderr:
            self.log += line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end()

    def end(self, sig=signal.SIGTERM, timeout=120):
        self.process.send_signal(sig)
        status = self.process.wait(timeout)
        self.reader.join()
        if status != 0 or b"Sanitizer" in self.log:
            check(False, "the server ended with", status, self.log.decode(errors="replace"))
        return status

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, raw=False):
        """(status, headers, JSON or text)"""
        c = self.connect()
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        text = r.read()
        c.close()
        head = {k.lower(): v for k, v in r.getheaders()}
        if text and not raw and head.get("content-type", "").startswith("application/json"):
            return r.status, head, json.loads(text)
        return r.status, head, text.decode(errors="replace")

    def post(self, path, body, headers=None):
        return self.ask("POST", path, body, headers)

    def stream(self, path, body, headers=None):
        """The events of a stream: (event's name or None, data's text)."""
        c = self.connect()
        c.request("POST", path, json.dumps(body), headers or {})
        r = c.getresponse()
        if r.status != 200:
            raise RuntimeError("%d %s" % (r.status, r.read()))
        name = None
        for line in r:
            line = line.rstrip(b"\n").decode()
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, line[6:]
                name = None
        c.close()

    def metric(self, name):
        text = self.ask("GET", "/metrics")[2]
        return float(re.search(r"^pfmoe_%s (\S+)$" % name, text, re.M).group(1))

    def peak_bytes(self):
        """The most memory that the server has had."""
        with open("/proc/%d/status" % self.process.pid) as f:
            return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB$", f.read(), re.M).group(1))


def chat(text, **more):
    return {"model": "default", "messages": [{"role": "user", "content": text}], **more}

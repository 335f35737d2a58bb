#!/usr/bin/env python3
"""The line that each generation leaves on standard error: its numbers, why it failed, that its client went away; none with --quiet.
Who asks cannot make a line look like another one, and nobody waits for who does not read them."""
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time

from serve import Server, chat, check, environment, finish, serve_path

CHAT = "/v1/chat/completions"
FRONT = r"\d\d:\d\d:\d\d 127\.0\.0\.1 "
ANSWERED = FRONT + r"%s (\d+) tokens \((\d+) kept\) in \d+\.\d\d s, (\d+) in \d+\.\d\d s( \(\d+\.\d/s\))?(, waited \d+\.\d\d s)?: (.*)"


def lines(s, n):
    """The last n lines, once there are so many behind the address."""
    for _ in range(500):
        log = s.log.decode().splitlines()
        front = next(i for i, line in enumerate(log) if " at http://" in line) + 1
        if len(log) >= front + n:
            break
        time.sleep(0.02)
    check(len(log) == front + n, "not", n, "lines:", log[front:])
    return log[front:]


def check_lines():
    with Server() as s:
        s.post(CHAT, chat("Tell me a fable.", max_tokens=7))
        list(s.stream("/v1/messages", chat("Tell me a fable.", max_tokens=5, stream=True)))
        s.post(CHAT, chat("Tell me a fable.", max_tokens="many"))
        s.post(CHAT, chat("x", tools=[{"type": "function", "function": {"name": "a\n00:00:00 1.1.1.1 /v1/messages 5 tokens", "parameters": {}}}]))
        s.post(CHAT, chat("x", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"if\nthen\x1b[31m": 1, "$ref": "a\nb\x1b[2J"}}}))
        got = lines(s, 5)
        whole = re.fullmatch(ANSWERED % CHAT, got[0])
        check(whole and int(whole[1]) > 5 and whole[3] == "7" and whole[6] == "length", got[0])
        streamed = re.fullmatch(ANSWERED % "/v1/messages", got[1])
        check(streamed and int(streamed[2]) > 0 and streamed[3] == "5", got[1])
        check(re.fullmatch(FRONT + CHAT + " 400: max_tokens: must be .*", got[2]), got[2])
        check(all(re.fullmatch(FRONT + "/v1/.*", line) and "\x1b" not in line for line in got), got)


def check_order():
    """Lines of who asks again when an answer is there come in the order of asking."""
    n = 300
    with Server() as s:
        c = s.connect()
        c.connect()
        for body in [json.dumps(chat("x", max_tokens=1)).encode(), b"{}"] * n:
            c.sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
            check(c.sock.recv(1 << 16).startswith(b"HTTP/1.1 "), "an answer")
        c.close()
        got = lines(s, 2 * n)
        check(all(line.endswith((": length", " is missing")[i % 2]) for i, line in enumerate(got)), got)


def check_refused():
    """So does what is asked about tokens and is refused, where it cannot be read and where it makes no prompt."""
    count, tool = "/v1/messages/count_tokens", {"name": "f", "input_schema": {"type": "object"}}
    with Server() as s:
        s.post(count, chat("x", messages=[]))
        s.post(count, chat("x", tools=[tool], tool_choice={"type": "tool", "name": "g"}))
        s.post("/tokenize", {})
        s.post(count, chat("x"))
        for line, end in zip(lines(s, 3), (count + " 400: messages: is empty", count + " 400: tool_choice: there is no tool of this name", "/tokenize 400: content: is missing")):
            check(re.fullmatch(FRONT + re.escape(end), line), line)


def check_gone():
    with Server("-c", "16384") as s:
        c = s.connect()
        c.request("POST", CHAT, '{"model": "default", "ignore_eos": true, "messages": [{"role": "user", "content": "x"}]}')
        time.sleep(0.3)
        c.close()
        got = lines(s, 1)[0]
        check(got.endswith(": the client went away") and int(re.fullmatch(ANSWERED % CHAT, got)[3]) > 0, got)


def check_quiet():
    with Server("--quiet") as s:
        s.post(CHAT, chat("Tell me a fable.", max_tokens=2))
        s.post(CHAT, {})
        time.sleep(0.2)
        lines(s, 0)


def check_nobody_reads():
    """More lines than a pipe holds."""
    n = 1500
    s = Server.__new__(Server)
    s.process = subprocess.Popen([serve_path, "--port", "0", "-t", "1"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
    s.port = int(next(m for m in (re.search(rb" at http://.*:(\d+)\n", line) for line in s.process.stderr) if m)[1])
    c = s.connect(timeout=20)
    for _ in range(n):
        c.request("POST", CHAT, b"{}")
        r = c.getresponse()
        check(r.status == 400 and r.read(), r.status)
    s.process.send_signal(signal.SIGTERM)
    log = s.process.communicate(timeout=60)[0:2][1].decode().splitlines()
    check(s.process.returncode == 0 and 100 < len(log) < n, s.process.returncode, len(log))
    check(all(re.fullmatch(FRONT + CHAT + " 400: model: is missing", line) for line in log), log[-3:])


def check_told():
    """How many lines were left out is told by the next one, though it is a long one."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write("{{ raise_exception('%s') }}" % ("long " * 200))
        f.flush()
        s = Server.__new__(Server)
        s.process = subprocess.Popen([serve_path, "--port", "0", "-t", "1", "--template", f.name], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
        s.port = int(next(m for m in (re.search(rb" at http://.*:(\d+)\n", line) for line in s.process.stderr) if m)[1])
        asked, read = 300, 0
        for _ in range(asked):
            s.post(CHAT, chat("x"))
        while select.select([s.process.stderr], [], [], 0.2)[0]:
            read += os.read(s.process.stderr.fileno(), 1 << 16).count(b"\n")
        s.post(CHAT, chat("x"))
        s.process.send_signal(signal.SIGTERM)
        last = s.process.communicate(timeout=60)[1].decode()
        told = re.search(r" \((\d+) lines in front of this one were left out\)\n", last)
        check(told and read + int(told[1]) == asked and told.end() <= 512, read, last)


check_lines()
check_order()
check_refused()
check_gone()
check_quiet()
check_nobody_reads()
check_told()
finish()

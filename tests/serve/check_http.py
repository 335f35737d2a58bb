#!/usr/bin/env python3
"""What is not about a protocol: keys, origins, limits, clients that go away, ends."""
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve import Server, chat, check, environment, finish, run_path, serve_path

CHAT = "/v1/chat/completions"


def wait_until(what, true, seconds=60):
    end = time.time() + seconds
    while not true():
        if time.time() > end:
            check(False, "it took too long until", what)
            return
        time.sleep(0.02)


def check_usage():
    for args in (["--port", "x"], ["--slots", "0"], ["-p", "text"], ["more"], ["--api-key", ""]):
        r = subprocess.run([serve_path, *args], capture_output=True, env=environment(), stdin=subprocess.DEVNULL, timeout=60)
        check(r.returncode == 2 and r.stderr.startswith(b"pfmoe-serve: "), args, r.returncode, r.stderr)
    r = subprocess.run([serve_path, "-m", "/nowhere.gguf", "--port", "0"], capture_output=True, env=environment(), timeout=60)
    check(r.returncode == 1 and b"/nowhere.gguf" in r.stderr, r.stderr)


def check_paths(s):
    check(s.ask("GET", "/nothing")[0] == 404, "404")
    check(s.ask("GET", CHAT)[0] == 405, "405")
    status, head, page = s.ask("GET", "/")
    check(status == 200 and head["content-type"].startswith("text/html") and page.endswith("</html>\n"), status, head)
    loads = re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import""", page)
    check(not loads and "innerHTML" not in page, "the page loads or parses something:", loads)
    check(s.ask("HEAD", "/health")[0] == 200, "HEAD")
    status, head, _ = s.post(CHAT, chat("x"), {"Origin": "http://elsewhere.example"})
    check(status == 403 and "access-control-allow-origin" not in head, status, head)
    check(s.post(CHAT, chat("x", max_tokens=1), {"Origin": "http://127.0.0.1:%d" % s.port})[0] == 200, "its own page may not")
    rebound = {"Origin": "http://elsewhere.example:%d" % s.port, "Host": "elsewhere.example:%d" % s.port}
    check(s.post(CHAT, chat("x"), rebound)[0] == 403, "a domain that was made to resolve to this machine is let in")
    local = {"Origin": "http://localhost:%d" % s.port, "Host": "localhost:%d" % s.port}
    check(s.post(CHAT, chat("x", max_tokens=1), local)[0] == 200, "its page by the name localhost may not")


def check_taken(s):
    """A port that is taken is found before the model is read, or fetched from a hub, which is not there."""
    for more in ([], ["--hf", "o/r"]):
        r = subprocess.run([serve_path, "--port", str(s.port), *more], capture_output=True, env=environment(HF_ENDPOINT="http://127.0.0.1:1"), timeout=60)
        check(r.returncode == 1 and b"already in use" in r.stderr and b"weights" not in r.stderr, more, r.stderr)


def raw(s, data, timeout=30):
    """What the server says to these bytes."""
    c = socket.create_connection(("127.0.0.1", s.port), timeout)
    try:
        c.sendall(data)
        return c.recv(1 << 16)
    except ConnectionError:
        return b""
    finally:
        c.close()


def check_limits(s):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    check(b" 413 " in raw(s, head + b"Content-Length: 1073741824\r\n\r\n"), "a body of 1 GB is not refused")
    check(b" 200 " not in raw(s, head + b"Content-Length: 99999999999999999999999\r\n\r\n"), "a body of any size is taken")
    check(b" 200 " not in raw(s, head + b"X-Long: " + b"x" * 100000 + b"\r\n\r\n"), "100 kB of headers are taken")
    check(b" 200 " not in raw(s, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n"), "a TLS hello is answered")
    body = json.dumps(chat("x", max_tokens=1)).encode()
    length, chunks = b"Content-Length: %d\r\n" % len(body), b"Transfer-Encoding: chunked\r\n"
    check(b" 200 " in raw(s, head + length + b"\r\n" + body), "a plain request")
    for twice in (length + b"Content-Length: 5\r\n", b"Content-Length: 5\r\n" + length, length + length, length + chunks, chunks + length,
                  length + b"Host: y\r\n"):
        got = raw(s, head + twice + b"\r\n" + body)
        check(b" 400 " in got and b"onnection: close" in got, twice, got)
    idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(300)]
    for c in idle[::2]:
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHos")
    begin = time.time()
    check(s.ask("GET", "/health")[0] == 200 and time.time() - begin < 5, "idle connections stop others")
    for c in idle:
        c.close()
    deep = "[" * 100000
    check(s.post(CHAT, '{"messages":' + deep)[0] == 400, "deep JSON")


def too_large(s, path, chunked):
    """What a client is told that sends all of a body over the limit before it reads."""
    piece, n = b"x" * 1000000, 33
    c = s.connect()
    head = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(n * len(piece))}
    c.request("POST", path, (piece for _ in range(n)), head, encode_chunked=chunked)
    r = c.getresponse()
    answer = r.status, json.loads(r.read())
    c.request("GET", "/health")                  # the connection goes on
    check(c.getresponse().status == 200, path, chunked)
    c.close()
    return answer


def check_large(s):
    for chunked in (False, True):
        status, a = too_large(s, CHAT, chunked)
        check(status == 413 and a["error"]["type"] == "invalid_request_error", chunked, status, a)
        status, a = too_large(s, "/v1/messages", chunked)
        check(status == 413 and a["error"]["type"] == "request_too_large", chunked, status, a)
    waits = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 40000000\r\n\r\n"
    check(b" 413 " in raw(s, waits), "a client that asks before it sends is not answered")


def check_long_bodies(s):
    """Bodies that take long to read stop nobody else's request from being read."""
    body = json.dumps(chat("word " * 2000000))
    answers = []
    senders = [threading.Thread(target=lambda: answers.append(s.post(CHAT, body)[0])) for _ in range(4)]
    for t in senders:
        t.start()
    wait_until("a long body is refused", lambda: answers)
    check(s.post(CHAT, chat("x", max_tokens=1))[0] == 200, "a short request among long ones")
    check(len(answers) < 4, "a short request was read after all long ones")
    for t in senders:
        t.join()
    check(answers == [400] * 4, answers)


def check_beside_bodies(s):
    """Nobody waits while large bodies come in and are read. Other programs may have the cores for a while."""
    body = json.dumps(chat("word " * 5000000)).encode()
    word = json.dumps({"content": "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=6000000))})
    senders = [threading.Thread(target=lambda: check(s.post(CHAT, body)[0] == 400)) for _ in range(6)]
    senders.append(threading.Thread(target=lambda: check(s.ask("POST", "/tokenize", word, raw=True)[0] == 200)))
    for t in senders:
        t.start()
    waits = []
    while any(t.is_alive() for t in senders):
        begin = time.monotonic()
        check(s.ask("GET", "/health")[0] == 200, "health")
        waits.append(time.monotonic() - begin)
        time.sleep(0.005)
    for t in senders:
        t.join()
    waits.sort()
    print("beside 6 bodies of 25 MB and a word of 6 MB /health takes %.1f ms in the median of %d, %.1f at most" % (
        1e3 * waits[len(waits) // 2], len(waits), 1e3 * waits[-1]))
    check(waits[len(waits) // 2] < 0.1 and waits[-1] < 2, "large bodies hold others up", waits[-5:])


def check_gone(s):
    """Clients that go away, with and without a stream, while they wait and while they are served."""
    before = s.metric("requests_cancelled_total")
    body = json.dumps(chat("Tell me a long fable.", max_tokens=3000, ignore_eos=True, stream=True)).encode()
    plain = json.dumps(chat("Tell me a long fable.", max_tokens=3000, ignore_eos=True)).encode()
    clients = []
    for i in range(12):
        b = body if i % 2 else plain
        c = socket.create_connection(("127.0.0.1", s.port), 60)
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(b) + b)
        clients.append(c)
    wait_until("slots are taken", lambda: s.metric("requests_running") == 4)
    for c in clients:
        c.close()
    wait_until("nothing runs", lambda: s.metric("requests_running") + s.metric("requests_waiting") == 0)
    check(s.metric("requests_cancelled_total") == before + 12, s.metric("requests_cancelled_total"), before)


def send(s, path, body, length=None, room=None, agent=None):
    """A connection whose request is sent, or as much of it as there is."""
    c = socket.socket()
    if room:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    c.settimeout(60)
    c.connect(("127.0.0.1", s.port))
    body = json.dumps(body).encode() if not isinstance(body, bytes) else body
    more = b"User-Agent: %s\r\n" % agent.encode() if agent else b""
    c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), more, length or len(body)) + body)
    return c


def check_gone_in_queue():
    """Requests in the queue whose clients have gone keep nobody out."""
    long = chat("Tell me a long fable.", max_tokens=3000, ignore_eos=True)
    with Server("--slots", "1", "--queue", "2") as s:
        runs = send(s, CHAT, long)
        wait_until("it runs", lambda: s.metric("requests_running") == 1)
        waiting = [send(s, CHAT, long) for _ in range(2)]
        wait_until("the queue is full", lambda: s.metric("requests_waiting") == 2)
        check(s.post(CHAT, long)[0] == 503, "the queue is not full")
        waiting[0].close()
        last = send(s, CHAT, chat("x", max_tokens=1))
        wait_until("one is forgotten", lambda: s.metric("requests_cancelled_total") == 1)
        check(s.metric("requests_waiting") == 2, "the queue has", s.metric("requests_waiting"))
        for c in (runs, waiting[1]):
            c.close()
        check(b" 200 " in last.recv(65536), "who came last is not answered")
        last.close()


def check_kept_alive():
    """Streams that have to wait say so."""
    bodies = ((CHAT, chat("x", max_tokens=1, stream=True)),
              ("/v1/responses", {"model": "m", "input": "x", "max_output_tokens": 16, "stream": True}),
              ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}))
    with Server("--slots", "1", "-c", "60000") as s:
        runs = send(s, CHAT, chat("Tell me a long fable.", max_tokens=50000, ignore_eos=True))
        wait_until("it runs", lambda: s.metric("requests_running") == 1)
        wait = [(send(s, path, body), end) for (path, body), end in zip(bodies, (b"[DONE]", b"response.incomplete", b"message_stop"))]
        texts = [read_until(c, b"\n: ") for c, _ in wait]
        check(all(b" 200 " in t and b"text/event-stream" in t for t in texts), texts)
        runs.close()
        for c, end in wait:
            check(end in read_until(c, end), "a stream that waited does not end")
            c.close()
        taking_turns = [send(s, CHAT, chat("Tell me a long fable.", max_tokens=50000, ignore_eos=True, stream=True), agent=str(i)) for i in range(8)]
        begun = read_until(taking_turns[0], b"\n: to be continued")
        check(begun.count(b"data: ") > 2 and b"\n: to be continued" in begun, "a stream that waits for its turn says nothing", begun[-200:])
        for c in taking_turns:
            c.close()


def read_until(c, word):
    """What comes, up to and with a word."""
    c.settimeout(20)
    text = b""
    while word not in text:
        more = c.recv(65536)
        if not more:
            return text
        text += more
    return text


def check_waiting_bodies():
    """What requests hold that wait is bounded in sum, not what is being read alone."""
    long = chat("Tell me a long fable.", max_tokens=4000, ignore_eos=True, n=16)
    body = json.dumps(chat("x", max_tokens=1, ignored="x" * 30000000)).encode()         # a body counts as all of it were kept
    with Server("--slots", "1") as s:
        runs = [send(s, CHAT, long) for _ in range(2)]
        wait_until("it runs", lambda: s.metric("requests_running") == 1 and s.metric("requests_waiting") == 1)
        clients = []
        while len(clients) < 20:
            clients.append(send(s, CHAT, body))
            n = len(clients)
            wait_until("it waits or is refused", lambda: s.metric("requests_waiting") == n + 1 or select.select([clients[-1]], [], [], 0)[0])
            if select.select([clients[-1]], [], [], 0)[0]:
                break
        check(b" 503 " in clients[-1].recv(65536) and len(clients) > 10, "%d requests of 30 MB wait" % len(clients))
        for c in clients + runs:
            c.close()
        wait_until("nothing runs", lambda: s.metric("requests_running") + s.metric("requests_waiting") == 0)
        check(s.post(CHAT, body)[0] == 200, "there is no room when all have gone")


def check_end_beside_slow_clients():
    """A server that is to end waits neither for who never sends all of a request nor for who never reads an answer."""
    with Server() as s:
        clients = [send(s, CHAT, b'{"model":', 1000), send(s, "/tokenize", {"content": "a" * 900000, "with_pieces": True}, room=4096)]
        check(b" 200 " in clients[1].recv(100), "the answer has not begun")
        check(s.end(timeout=25) == 0, "its end is no success")
        for c in clients:
            c.close()


def check_keys():
    with Server("--api-key", "opens it", "--cors", "https://page.example", "--queue", "0", "--slots", "1") as s:
        check(s.ask("GET", "/health")[0] == 200, "health wants a key")
        for headers in ({}, {"Authorization": "Bearer opens"}, {"Authorization": "Bearer opens it not"}, {"X-Api-Key": ""}):
            status, _, a = s.post(CHAT, chat("x", max_tokens=1), headers)
            check(status == 401 and a["error"]["code"] == "invalid_api_key", headers, status, a)
        for headers in ({"Authorization": "Bearer opens it"}, {"X-Api-Key": "opens it"}):
            check(s.ask("GET", "/v1/models", headers=headers)[0] == 200, headers)
        status, head, _ = s.ask("OPTIONS", CHAT, headers={"Origin": "https://page.example"})
        check(status == 204 and head["access-control-allow-origin"] == "https://page.example", status, head)
        check(s.ask("OPTIONS", CHAT, headers={"Origin": "https://other.example"})[0] == 403, "another origin is let in")
        status, _, a = s.post(CHAT, chat("x", max_tokens=1), {"X-Api-Key": "opens it"})
        check(status == 503 and "queue" in a["error"]["message"], status, a)


def check_ends_at_once():
    """Who reads the address may ask and end the server in the same moment."""
    for i in range(8):
        with Server() as s:
            if i % 2 == 0:
                check(s.ask("GET", "/health")[0] == 200, "a server tells its address before it takes requests")


AMBIGUOUS = 'root ::= r "#"\nr ::= r r r | r r | [a-z "]? | "a" r'


def check_ambiguous(s):
    """A grammar that gets too ambiguous in the middle of an answer is the request's error, which names the field, in each
    protocol's form; a stream has the answer so far. Others are answered meanwhile, and pfmoe-run says the same."""
    text = [{"role": "user", "content": "Tell me a fable."}]
    more = {"model": "default", "grammar": AMBIGUOUS, "seed": 3}
    limits = {CHAT: ("messages", "max_tokens"), "/v1/messages": ("messages", "max_tokens"), "/v1/responses": ("input", "max_output_tokens")}
    for path, (member, most) in limits.items():
        body = {**more, member: text, most: 2000}
        status, _, a = s.post(path, body)
        check(status == 400 and a["error"]["type"] == "invalid_request_error" and "grammar is too ambiguous" in a["error"]["message"], path, status, a)
        check(path == "/v1/messages" or a["error"]["param"] == "grammar", path, a)
        events = list(s.stream(path, dict(body, stream=True)))
        e = json.loads(events[-1][1])
        said = e if path == "/v1/responses" else e["error"]
        kind = said["code"] if path == "/v1/responses" else said["type"]
        check(kind == "invalid_request_error" and "grammar" in said["message"], path, e)
        check(path == "/v1/messages" or said["param"] == "grammar", path, e)
        check(len(events) > 8, path, events)
    status, _, a = s.post("/v1/completions", {**more, "prompt": "A fox", "max_tokens": 2000})
    check(status == 400 and a["error"]["param"] == "grammar", status, a)
    with tempfile.NamedTemporaryFile("w", suffix=".gbnf") as f:
        f.write(AMBIGUOUS)
        f.flush()
        r = subprocess.run([run_path, "-p", "Tell me a fable.", "--grammar", f.name, "--seed", "3"], capture_output=True, env=environment(),
                           stdin=subprocess.DEVNULL, timeout=120)
    check(r.returncode == 1 and len(r.stdout) > 8 and b"grammar is too ambiguous" in r.stderr, r)


def check_many_words(s):
    """A schema that lists very many words holds an answer to them."""
    r = random.Random(2)
    words = ["".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=r.randint(3, 11))) for _ in range(20000)]
    for schema in ({"enum": words}, {"anyOf": [{"const": w} for w in words]}, {"oneOf": [{"const": w} for w in sorted(set(words))]}):
        form = {"type": "json_schema", "json_schema": {"name": "word", "schema": schema}}
        begin = time.time()
        status, _, a = s.post(CHAT, chat("A word, please.", temperature=1, seed=5, response_format=form))
        check(status == 200 and json.loads(a["choices"][0]["message"]["content"]) in words, status, a)
        check(time.time() - begin < 20, "20,000 words take", time.time() - begin)


def check_costly_tools(s):
    """Tools whose schemas take long to read, all together, are refused after a while."""
    costly = {"type": "object", "properties": {"p": {"type": "string", "pattern": "^(a|aa|aaa){300}$", "maxLength": 700}}}
    tools = [{"type": "function", "function": {"name": "f%d" % i, "parameters": dict(costly, title=str(i))}} for i in range(300)]
    begin = time.time()
    status, _, a = s.post(CHAT, chat("x", max_tokens=1, tools=tools))
    check(status == 400 and a["error"]["param"] == "tools" and time.time() - begin < 30, status, a, time.time() - begin)
    status, _, a = s.post(CHAT, chat("x", max_tokens=1, tools=tools[:1]))
    check(status == 200, "one of them is refused", a)


def check_end():
    """What runs is finished; what comes later is refused; a signal that means nothing changes nothing."""
    with Server() as s:
        s.process.send_signal(signal.SIGHUP)
        got = []
        body = chat("Tell me a fable.", max_tokens=600, ignore_eos=True, seed=1)
        t = threading.Thread(target=lambda: got.append(s.post(CHAT, body)))
        t.start()
        wait_until("it runs", lambda: s.metric("requests_running") == 1)
        check(s.end() == 0, "its end is no success")
        t.join()
        check(got[0][0] == 200 and got[0][2]["usage"]["completion_tokens"] == 600, got)


def check_long_stays():
    """Two slots and nothing saved: short requests, one after the other, leave a long conversation where it is."""
    long = chat("Tell me about foxes. " * 620, temperature=0, max_tokens=1)

    def cached(ask):
        return s.post(CHAT, ask)[2]["usage"]["prompt_tokens_details"]["cached_tokens"]

    with Server("--slots", "2", "--cache-mb", "0", "-c", "8192") as s:
        tokens = s.post(CHAT, long)[2]["usage"]["prompt_tokens"]
        check(tokens > 2 * 2048, "the prompt is no long one:", tokens)
        for text in ("1", "2"):
            check(cached(chat(text, max_tokens=1)) < 64, "a short request goes on from something")
        check(cached(long) > 0.9 * tokens, "a long conversation was given up for short ones")


def check_saved():
    """Conversations that lost their slot are taken up again, and after a restart too; damage is noticed."""
    body = [chat("Tell me about %s. " % w * 40, temperature=0, max_tokens=8) for w in ("foxes", "crows", "wolves")]

    def ask(s, i):
        a = s.post(CHAT, body[i])[2]
        return a["choices"][0]["message"]["content"], a["usage"]["prompt_tokens_details"]["cached_tokens"] / a["usage"]["prompt_tokens"]

    with Server("--slots", "1") as s:
        first = [ask(s, i) for i in range(3)]
        again = [ask(s, i) for i in range(3)]
    check(all(share < 0.2 for _, share in first) and all(share > 0.9 for _, share in again), first, again)
    check([t for t, _ in first] == [t for t, _ in again], "a conversation that was taken up goes on otherwise")
    with Server("--slots", "1", "--cache-mb", "0") as s:
        check(all(ask(s, i)[1] < 0.2 for i in (0, 1, 0)), "nothing is to be kept, and is")
    with tempfile.TemporaryDirectory(prefix="pfmoe-test-") as folder:
        args = ("--slots", "1", "--cache-dir", os.path.join(folder, "cache"))
        with Server(*args) as s:
            before = [ask(s, i) for i in range(3)]
        with Server(*args) as s:
            after = [ask(s, i) for i in range(3)]
        check([t for t, _ in before] == [t for t, _ in after] and all(share > 0.9 for _, share in after), before, after)
        files = [os.path.join(args[3], f) for f in os.listdir(args[3])]
        check(len(files) == 3, files)
        for n, path in enumerate(files):
            with open(path, "r+b") as f:
                f.seek((9, 700, 3000)[n])
                f.write(b"damage")
        with Server(*args) as s:
            check([ask(s, i)[0] for i in range(3)] == [t for t, _ in first], "damaged files change answers")


def main():
    slow = threading.Thread(target=check_end_beside_slow_clients)        # it mostly waits
    slow.start()
    check_usage()
    check_long_stays()
    check_saved()
    with Server() as s:
        for part in (check_paths, check_taken, check_limits, check_large, check_long_bodies, check_beside_bodies, check_gone, check_ambiguous, check_many_words, check_costly_tools):
            begin = time.time()
            part(s)
            print("%.1f s" % (time.time() - begin))
    check_keys()
    check_gone_in_queue()
    check_kept_alive()
    check_waiting_bodies()
    check_ends_at_once()
    check_end()
    slow.join()
    finish()


main()

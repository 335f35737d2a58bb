#!/usr/bin/env python3
"""Each answer is what it is alone, whoever else is served: a plain, a windowed and a recurrent model, and one with less
memory than its experts take.

    check_load.py SERVE RUN SYNTH SHARED [REQUESTS [MODEL ...]]     REQUESTS: of each load, default 12; MODELs: names below"""
import concurrent.futures
import json
import random
import socket
import sys
import tempfile
import time

import tiny
from serve import Server, chat, check, finish

CHAT = "/v1/chat/completions"
F16 = {"type": "F16", "expert-type": "F16", "down-type": "F16"}
MODELS = {                           # preset, its options, the server's
    "bundled": (None, {}, []),
    "windowed": ("gpt-oss-tiny", {}, []),
    "recurrent": ("qwen3-next-tiny", {}, []),
    "streamed": ("moe-tiny", F16, ["--streaming", "--ram-mb", "16"]),          # a third of its 14 MB beside a session
}


def check_load(s, n):
    r = random.Random(5)
    words = "fox crow grapes lion mouse hare tortoise wolf lamb".split()
    asks = [chat(" ".join(r.choice(words) for _ in range(r.choice((2, 9, 60, 250)))), temperature=1, seed=i, max_tokens=r.choice((3, 12, 40)))
            for i in range(n)]
    alone = [s.post(CHAT, a)[2]["choices"][0]["message"]["content"] for a in asks]

    def one(i):
        time.sleep(r.random() * 0.1)
        if i % 5 == 4:                       # one that goes away
            c = socket.create_connection(("127.0.0.1", s.port), 60)
            b = json.dumps(dict(asks[i], max_tokens=500, stream=True)).encode()
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(b) + b)
            c.recv(200)
            c.close()
        if i % 2:
            return "".join(json.loads(d)["choices"][0]["delta"].get("content", "")
                           for _, d in s.stream(CHAT, dict(asks[i], stream=True)) if d != "[DONE]")
        return s.post(CHAT, asks[i])[2]["choices"][0]["message"]["content"]

    order = list(range(n))
    r.shuffle(order)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = dict(zip(order, pool.map(one, order)))
    wrong = [i for i in range(n) if got[i] != alone[i]]
    check(not wrong, "answers under load are others:", wrong, [(got[i], alone[i]) for i in wrong[:2]])


def main():
    n = int(sys.argv[5]) if len(sys.argv) > 5 else 12
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[6:] or MODELS:
            preset, options, flags = MODELS[name]
            args = ["-m", tiny.model(folder, preset=preset, name=name, **options), "-c", "4096"] if preset else []
            with Server(*args, *flags) as s:
                check_load(s, n)
                print(name, "model: %d requests" % n, flush=True)
    finish()


main()

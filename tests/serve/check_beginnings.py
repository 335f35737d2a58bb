#!/usr/bin/env python3
"""Conversations of several clients that begin with the same long system text and tools, as coding agents do, on a plain, a windowed and
recurrent models: a new one evaluates what is its own, from the third on at the latest, also behind a restart and where all come at once,
and answers what it answers alone. "brief": shorter prompts, which take as long under a sanitizer.

    check_beginnings.py SERVE RUN SYNTH SHARED [brief]"""
import concurrent.futures
import http.client
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time

import tiny
from serve import Server, check, finish

CHAT = "/v1/chat/completions"
PRESETS = [("moe-tiny", 2), ("gpt-oss-tiny", 2), ("qwen3-next-tiny", 3)]         # and which one is the first that evaluates its own alone
N_TALKS = 5
SLACK = 64                           # tokens: fewer are not worth loading
BRIEF = sys.argv[5:] == ["brief"]
# Tokens: a prompt of so many is being evaluated yet, some 0.6 s, when those who begin like it have come.
LONG = 4000 if BRIEF else 6000


def talks(n_system=1500, n_own=200):
    r = random.Random(11)

    def text(n):
        return "".join(r.choice("abcdefgh ") for _ in range(n))
    system = text(n_system)
    words = ["the same "] * 2 + ["another "] * (N_TALKS - 2)             # the first two have more in common, by chance
    return [[{"role": "system", "content": system}, {"role": "user", "content": (w + text(n_own))[:n_own]}] for w in words]


def ask(s, messages):
    """(tokens that were evaluated, the answer to the bit)"""
    status, _, a = s.ask("POST", CHAT, {"model": "default", "messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True})
    check(status == 200, status, a)
    return evaluated(a), (a["choices"][0]["message"], a["choices"][0]["logprobs"])


def evaluated(a):
    return a["usage"]["prompt_tokens"] - a["usage"]["prompt_tokens_details"]["cached_tokens"]


def complete(s, text, n=8):
    """The same of a prompt without a template."""
    status, _, a = s.post("/v1/completions", {"prompt": text, "max_tokens": n, "temperature": 0, "ignore_eos": True, "logprobs": 1})
    check(status == 200, status, a)
    return evaluated(a), (a["choices"][0]["text"], a["choices"][0]["logprobs"])


def ask_all(s, talks, cache):
    """Each when what the one before has left is written: nobody waits for that, so less would be kept."""
    got = []
    for t in talks:
        before = os.listdir(cache)
        got.append(ask(s, t))
        end = time.monotonic() + 20
        while time.monotonic() < end:
            names = os.listdir(cache)
            if len(names) > len(before) and all(n.endswith(".pfsession") for n in names):
                break
            time.sleep(0.02)
        else:
            check(False, "a conversation was not kept", names)
    return got


def check_preset(folder, preset, first, slots):
    path = tiny.model(folder, preset=preset, name=preset)
    args = ["-m", path, "-c", "3000", "--slots", str(slots)]
    cache = os.path.join(folder, "%s.%d" % (preset, slots))
    kept = args + ["--cache-dir", cache]
    all_talks = talks()
    with Server(*args, "--cache-mb", "0") as s:
        alone = [ask(s, t) for t in all_talks]
    with Server(*kept) as s:
        got = ask_all(s, all_talks[:-1], cache)
    with Server(*kept) as s:
        got += ask_all(s, all_talks[-1:], cache)
    own = [n for n, _ in got]
    print("%s, %d slots: of %d tokens evaluated %s" % (preset, slots, alone[0][0], ", ".join(map(str, own))), flush=True)
    check(all(n < 230 + SLACK for n in own[first - 1:]), preset, slots, "slots evaluate", own)
    check([a for _, a in got] == [a for _, a in alone], preset, "answers otherwise:", json.dumps(got), json.dumps(alone))


def check_long(folder, preset):
    """What is kept of a windowed model, too, can be cut near its end alone: the second one keeps the beginning for the third."""
    path = tiny.model(folder, preset=preset, name=preset)
    args = ["-m", path, "-c", "9000", "--slots", "1"]
    all_talks = talks(2000, 3000)[:3]
    with Server(*args, "--cache-mb", "0") as s:
        alone = [ask(s, t) for t in all_talks]
    with Server(*args) as s:
        got = [ask(s, t) for t in all_talks]
    print("%s, long: evaluated %s" % (preset, ", ".join(str(n) for n, _ in got)), flush=True)
    check(got[2][0] < 3030 + SLACK, preset, "evaluates", got[2][0])
    check([a for _, a in got] == [a for _, a in alone], preset, "answers otherwise:", json.dumps(got), json.dumps(alone))


def check_at_once(folder, preset):
    """One evaluates what all begin with, and the others wait for that, also where so much cannot be kept."""
    path = tiny.model(folder, preset=preset, name=preset)
    args = ["-m", path, "-c", "8000", "--slots", str(N_TALKS)]
    all_talks = talks(LONG)
    all_talks.append(all_talks[0])
    with Server(*args, "--cache-mb", "0") as s:
        alone = [ask(s, t) for t in all_talks]
    # Behind those at once a slot's sequence is all that there is then; and a GPU would be done before they come.
    for mb, n_at_once, device in (1000, len(all_talks), []), (1, N_TALKS, ["--gpus", "-1"]):
        with Server(*args, *device, "--cache-mb", str(mb)) as s, concurrent.futures.ThreadPoolExecutor(n_at_once) as pool:
            asked = [pool.submit(ask, s, t) for t in all_talks[:n_at_once]]
            got = [a.result() for a in asked]
            broken_off = s.metric("steps_broken_off_total")
        own = sorted(n for n, _ in got)
        print("%s, all at once, %d MB: evaluated %s" % (preset, mb, ", ".join(map(str, own))), flush=True)
        check(all(n < 230 + SLACK for n in own[:-1]), preset, "at once evaluate", own)
        check(broken_off == 0, preset, broken_off, "slices were broken off for who waits for them")
        check([a for _, a in got] == [a for _, a in alone[:n_at_once]], preset, "answers otherwise:", json.dumps(got), json.dumps(alone))


def read_all(r):
    try:
        while r.read(4096):
            pass
    except (OSError, http.client.HTTPException):
        pass                         # it was shut down


def check_beside_answer(folder, preset):
    """What a slot that is answering has can be kept for another, where it can be cut."""
    path = tiny.model(folder, preset=preset, name=preset)
    first, second = talks(4000)[:2]
    with Server("-m", path, "-c", "64000", "--slots", "2") as s:
        c = s.connect()
        c.request("POST", CHAT, json.dumps({"model": "default", "messages": first, "max_tokens": 50000, "temperature": 0, "stream": True,
                                            "ignore_eos": True}))
        r = c.getresponse()
        r.readline()
        reads = threading.Thread(target=read_all, args=(r,))
        reads.start()
        n, answer = ask(s, second)
        while s.metric("requests_running") == 2:         # an answer is out before its slot is free
            time.sleep(0.01)
        check(s.metric("requests_running") == 1, "the first answer had ended before")
        c.sock.shutdown(socket.SHUT_RDWR)
        reads.join()
    with Server("-m", path, "-c", "64000", "--cache-mb", "0") as s:
        check(answer == ask(s, second)[1], preset, "answers otherwise beside an answer")
    print("%s, beside an answer: evaluated %d" % (preset, n), flush=True)
    check(n < 230 + SLACK, preset, "beside an answer evaluates", n)


rand = random.Random(3)


def text(n):
    return "".join(rand.choice("abcdefgh ") for _ in range(n))


def answering(s, prompt, n=9000):
    pieces = s.stream("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True})
    next(pieces), next(pieces)
    return pieces


def check_within(folder, preset):
    """A prompt that is the beginning of another one, which is being evaluated; also where nothing can be kept since the folder is gone."""
    path = tiny.model(folder, preset=preset, name=preset)
    args = ["-m", path, "-c", "20000", "--slots", "2"]
    longer = text(LONG)
    prompts = longer, longer[:LONG * 2 // 3]
    with Server(*args, "--cache-mb", "0") as s:
        want = [complete(s, p)[1] for p in prompts]
    cache = os.path.join(folder, preset + ".gone")
    for more in [], ["--cache-dir", cache]:
        with Server(*args, *more) as s, concurrent.futures.ThreadPoolExecutor(2) as pool:
            if more:
                os.rename(cache, cache + ".was")
                open(cache, "w").close()
            asked = []
            for p in prompts:
                asked.append(pool.submit(complete, s, p))
                time.sleep(0.1)
            got = [a.result() for a in asked]
        print("%s, one within the other: evaluated %s" % (preset, ", ".join(str(n) for n, _ in got)), flush=True)
        check([a for _, a in got] == want, preset, "answers otherwise:", json.dumps(got), json.dumps(want))


def check_less_in_common(folder, preset):
    """Of two that await a slot the one which has less in common with its prompt goes on sooner, and takes nothing from the other. A GPU
    would be done before they come."""
    path = tiny.model(folder, preset=preset, name=preset)
    args = ["-m", path, "-c", "20000", "--slots", "3", "--gpus", "-1"]
    longest = text(LONG * 4 // 3)
    prompts = longest, longest[:-500] + text(100), longest[:LONG * 2 // 3] + text(20)
    ended = []

    def ask_one(s, i):
        got = complete(s, prompts[i])
        ended.append(i)
        return got
    with Server(*args, "--cache-mb", "0") as s:
        want = [complete(s, p)[1] for p in prompts]
    with Server(*args) as s, concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = []
        for i in range(3):
            asked.append(pool.submit(ask_one, s, i))
            time.sleep(0.03)
        got = [a.result() for a in asked]
    own = [n for n, _ in got]
    print("%s, less in common: evaluated %s" % (preset, ", ".join(map(str, own))), flush=True)
    check(own[1] < 100 + SLACK and own[2] < 20 + SLACK and ended[0] == 2, preset, "evaluates", own, "ends in the order", ended)
    check([a for _, a in got] == want, preset, "answers otherwise:", json.dumps(got), json.dumps(want))


def check_same_again(folder):
    """What is kept of a windowed model cannot be cut where the answering session can, by a checkpoint: nobody waits for it."""
    path = tiny.model(folder, preset="gpt-oss-tiny", name="gpt-oss-tiny")
    prompt = text(3000)
    n_pieces = 0
    is_over = False

    def read(pieces):
        nonlocal n_pieces
        while not is_over and next(pieces, None):
            n_pieces += 1
        pieces.close()
    with Server("-m", path, "-c", "20000", "--slots", "2") as s:
        reads = threading.Thread(target=read, args=(answering(s, prompt),))
        reads.start()
        while n_pieces < 600:
            time.sleep(0.001)
        complete(s, prompt)
        n, is_over = n_pieces, True
        reads.join()
    check(n < 1000, "the same prompt waits for", n, "pieces of the other's answer")


def check_answer_anew(folder, preset):
    """A conversation that lost its slot behind a long answer comes back with another answer in the place of that one."""
    path = tiny.model(folder, preset=preset, name=preset)
    one = text(1500)
    asked = (one, 1000), (text(1500), 4), (one + text(200), 4)
    with Server("-m", path, "-c", "9000", "--slots", "1", "--cache-mb", "0") as s:
        alone = [complete(s, *a) for a in asked]
    with Server("-m", path, "-c", "9000", "--slots", "1") as s:
        got = [complete(s, *a) for a in asked]
    print("%s, an answer anew: evaluated %s" % (preset, ", ".join(str(n) for n, _ in got)), flush=True)
    check(got[2][0] < 200 + SLACK, preset, "with another answer evaluates", got[2][0])
    check([a for _, a in got] == [a for _, a in alone], preset, "answers otherwise:", json.dumps(got), json.dumps(alone))


def check_kept_meanwhile(folder):
    """A slot stops in its prompt for another one, and meanwhile something longer of that prompt is kept, of a third one whose client has gone
    while it answered: the slot goes on from what it has."""
    path = tiny.model(folder, preset="moe-tiny", name="moe-tiny")
    n = LONG * 2 // 3
    shared = text(n)
    longer, stops, awaits = shared + text(n + n // 4), shared + text(300), shared[:n * 2 // 3] + text(300)
    with Server("-m", path, "-c", "16000", "--slots", "1", "--cache-mb", "0") as s:
        want = [complete(s, p)[1] for p in (stops, awaits)]
    with Server("-m", path, "-c", "16000", "--slots", "4") as s, concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = answering(s, text(100))         # so that prompts go by rounds
        leaves = answering(s, longer)
        asked = []
        for prompt, after in (stops, 0.03), (awaits, 0.02), (text(3000), 0.02):
            asked.append(pool.submit(complete, s, prompt))
            time.sleep(after)
        leaves.close()
        asked.append(pool.submit(complete, s, text(800)))
        got = [a.result()[1] for a in asked[:2]]
        others.close()
    check(got == want, "what was kept meanwhile changes", json.dumps(got), json.dumps(want))


with tempfile.TemporaryDirectory() as folder:
    check_kept_meanwhile(folder)
    for preset, first in PRESETS:
        for slots in 1, 3:
            check_preset(folder, preset, first, slots)
        if not BRIEF or preset == "gpt-oss-tiny":
            check_long(folder, preset)
        check_at_once(folder, preset)
        check_within(folder, preset)
        check_answer_anew(folder, preset)
    for preset in "moe-tiny", "gpt-oss-tiny":
        check_less_in_common(folder, preset)
    check_same_again(folder)
    check_beside_answer(folder, "moe-tiny")
finish()

#!/usr/bin/env python3
"""A conversation that outlives its server: its next answer begins in the time that the new message takes, on a plain, a
windowed and a recurrent model. Time is compared with that of the whole prompt, which another server evaluates. A drive that does not
answer holds up nobody who needs nothing of it, and who goes away meanwhile leaves no harm.

    check_restart.py SERVE RUN SYNTH SHARED [TOKENS]     TOKENS: of the conversation, about; default 2500"""
import concurrent.futures
import json
import os
import random
import sys
import tempfile
import time

import tiny
from serve import Server, chat, check, finish

CHAT = "/v1/chat/completions"
PRESETS = ["moe-tiny", "gpt-oss-tiny", "qwen3-next-tiny"]
SLACK = 100                          # tokens: the new message, the last answer and what the template puts around them


def first_token(s, messages):
    """(seconds to the first token, tokens of the prompt, tokens of it that were kept, the answer)"""
    body = {"model": "default", "messages": messages, "max_tokens": 8, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    begin, first, text, usage = time.monotonic(), None, "", None
    for _, d in s.stream(CHAT, body):
        e = json.loads(d) if d != "[DONE]" else {"choices": []}
        usage = e.get("usage") or usage
        for c in e["choices"]:
            piece = c["delta"].get("content") or ""
            first = first or (time.monotonic() - begin if piece or c["finish_reason"] else None)
            text += piece
    return first, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], text


def check_model(folder, preset, n):
    r = random.Random(3)
    path = tiny.model(folder, preset=preset, name=preset)
    # What is sent back as answered is not what the random model wrote: the conversation is taken up before its answer.
    talk = [{"role": "user", "content": "".join(r.choice("abcdefgh ") for _ in range(n))}]
    args = ["-m", path, "-c", str(n + 1000), "--slots", "1"]
    kept = args + ["--cache-dir", os.path.join(folder, preset + ".cache")]
    with Server(*kept) as s:
        whole = first_token(s, talk)
        talk += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]
    with Server(*kept) as s:
        again = first_token(s, talk)
        talk += [{"role": "assistant", "content": "no"}, {"role": "user", "content": "why?"}]
        going_on = first_token(s, talk)
    with Server(*args) as s:
        anew = first_token(s, talk[:3])
    print("%s: %d tokens; first token after %.3f s, of the next message after a restart %.3f s (%d of %d kept), without one %.3f s, of all anew %.3f s"
          % (preset, whole[1], whole[0], again[0], again[2], again[1], going_on[0], anew[0]), flush=True)
    check(again[1] - again[2] <= SLACK, preset, "evaluates", again[1] - again[2], "tokens of", again[1])
    check(again[0] < anew[0] / 2, preset, "takes", again[0], "s after a restart, and anew", anew[0])
    check(again[3] == anew[3], preset, "answers otherwise after a restart:", again[3], anew[3])


def check_idle(folder):
    """A server that has nothing to do saves what all its slots have, and not at its end alone."""
    path, cache = tiny.model(folder), os.path.join(folder, "idle.cache")
    asks = [chat(c * 500, max_tokens=20) for c in "abcd"]
    with Server("-m", path, "--slots", "4", "--cache-dir", cache) as s, concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda ask: s.post(CHAT, ask), asks))
        end = time.monotonic() + 10
        while len(os.listdir(cache)) < len(asks) and time.monotonic() < end:
            time.sleep(0.05)
        check(len(os.listdir(cache)) >= len(asks), "conversations of an idle server are not saved:", os.listdir(cache))


def answer_of(args, ask):
    """The message that a server of its own answers with; its conversation is kept where the arguments say."""
    with Server(*args) as s:
        return s.post(CHAT, ask)[2]["choices"][0]["message"]


def check_stuck_drive(folder):
    """A file that cannot be read, as on a drive that does not answer, stops who needs it and nobody else. A FIFO that nobody writes to
    is such a file."""
    path, cache = tiny.model(folder), os.path.join(folder, "stuck.cache")
    args = ["-m", path, "--slots", "2", "--cache-dir", cache]
    ask = chat("a" * 500, max_tokens=8, temperature=0)
    alone = answer_of(args, ask)
    with Server(*args) as s, concurrent.futures.ThreadPoolExecutor(2) as pool:
        file = os.path.join(cache, os.listdir(cache)[0])
        os.remove(file)
        os.mkfifo(file)
        waits = pool.submit(s.post, CHAT, ask)
        try:
            while s.metric("requests_running") == 0:
                time.sleep(0.01)
            for _ in range(3):
                check(pool.submit(s.post, CHAT, chat("x", max_tokens=4)).result(30)[0] == 200, "a request beside one that waits for the drive")
            check(not waits.done(), "nothing waited for the drive")
        except concurrent.futures.TimeoutError:
            check(False, "who needs nothing of the drive waits for it")
        os.close(os.open(file, os.O_WRONLY))
        check(waits.result()[2]["choices"][0]["message"] == alone, "what was evaluated anew is answered otherwise")
        check(os.path.isfile(file) or not os.path.exists(file), "a file that could not be read is left")


def check_leaving_drive(folder):
    """A client that goes away while its conversation is read: the next one gets the slot, and the conversation stays."""
    path, cache, fifo = tiny.model(folder), os.path.join(folder, "left.cache"), os.path.join(folder, "fifo")
    args = ["-m", path, "--slots", "1", "--cache-dir", cache]
    ask = chat("a" * 500, max_tokens=8, temperature=0)
    alone = answer_of(args, ask)
    with Server(*args) as s, concurrent.futures.ThreadPoolExecutor(1) as pool:
        file = os.path.join(cache, os.listdir(cache)[0])
        os.rename(file, file + ".away")
        os.mkfifo(fifo)
        os.link(fifo, file)
        leaves = s.connect()
        leaves.request("POST", CHAT, json.dumps(ask))
        while s.metric("requests_running") == 0:
            time.sleep(0.01)
        waits = pool.submit(s.post, CHAT, chat("x", max_tokens=4))
        leaves.close()
        time.sleep(0.5)                  # the scheduler looks forty times a second
        os.rename(file + ".away", file)
        os.close(os.open(fifo, os.O_WRONLY))
        check(waits.result()[0] == 200 and s.metric("requests_cancelled_total") == 1, "who waits for a slot that was left")
        check(os.path.exists(file), "what was not read is no longer kept")
        again = s.post(CHAT, ask)[2]
        check(again["usage"]["prompt_tokens_details"]["cached_tokens"] > 400 and again["choices"][0]["message"] == alone, "what was to be read:", again)


def check_rotations(folder):
    """Servers with contexts for which the model rotates otherwise share a folder: what one keeps the other cannot load, and leaves."""
    path, cache, short = tiny.model(folder, preset="phi-tiny", name="phi"), os.path.join(folder, "phi.cache"), b"rope.scaling.original_context_length"
    with open(path, "r+b") as f:
        f.seek(f.read().index(short) + len(short) + 4)       # behind the value's type
        f.write((300).to_bytes(4, "little"))
    args, ask = ["-m", path, "--slots", "1", "--cache-dir", cache], chat("a" * 150, max_tokens=1)
    for n_ctx, kept in ("290", False), ("1000", False), ("290", True), ("1000", True):
        with Server(*args, "-c", n_ctx) as s:
            usage = s.post(CHAT, ask)[2]["usage"]
            check((usage["prompt_tokens_details"]["cached_tokens"] > 100) == kept, "a context of", n_ctx, "that has", usage)


def main():
    n = int(sys.argv[5]) if len(sys.argv) > 5 else 2500
    with tempfile.TemporaryDirectory() as folder:
        for preset in PRESETS:
            check_model(folder, preset, n)
        check_idle(folder)
        check_stuck_drive(folder)
        check_leaving_drive(folder)
        check_rotations(folder)
    finish()


main()

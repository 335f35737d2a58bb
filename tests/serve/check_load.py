#!/usr/bin/env python3
"""Each answer is what it is alone, whoever else is served and whatever is drafted: a plain, a windowed and a recurrent
model, one with less memory than its experts take, and models that a GPU computes or shares. And where long steps of a
prompt are broken off because somebody comes.

    check_load.py SERVE RUN SYNTH SHARED [REQUESTS[@SEED] [MODEL ...]]

REQUESTS: of each load, default 12; SEED: which ones, and when they come (many are run in parts, a seed each); MODELs: names
below, by default those without a GPU."""
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
GPU_MODELS = {                       # for a server that finds a GPU, or an emulated one
    "windowed-gpu": ("gpt-oss-tiny", {}, []),
    "recurrent-gpu": ("qwen3-next-tiny", {}, []),
    "shared-gpu": ("moe-tiny", {"type": "Q4_K"}, ["--streaming"]),
    "cards": ("moe-tiny", {"type": "Q4_K"}, ["--gpus", "0,1", "--layout", "layers"]),
    "shared-cards": ("moe-tiny", {"type": "Q4_K"}, ["--gpus", "0,1", "--streaming"]),
}


def requests(n, seed, on_gpu):
    """Short ones where the GPU is emulated. Words come again, so that there is something to draft."""
    r = random.Random(seed)
    words = "fox crow grapes lion mouse hare tortoise wolf lamb".split()
    lengths, answers = ((2, 5, 9), (3, 6, 12)) if on_gpu else ((2, 9, 60, 250), (3, 12, 40))
    return [chat(" ".join(r.choice(words) for _ in range(r.choice(lengths))), temperature=int(i % 4 < 3), seed=1000 * seed + i, max_tokens=r.choice(answers))
            for i in range(n)]


def text_of(s, ask):
    status, _, a = s.post(CHAT, ask)
    check(status == 200, status, a)
    return a["choices"][0]["message"]["content"]


def check_load(s, asks, alone, seed):
    r = random.Random(seed + 1)

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
        return text_of(s, asks[i])

    order = list(range(len(asks)))
    r.shuffle(order)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = dict(zip(order, pool.map(one, order)))
    wrong = [i for i in order if got[i] != alone[i]]
    check(not wrong, "answers under load are others:", wrong, [(got[i], alone[i]) for i in wrong[:2]])


def long_prompts(seed, on_gpu):
    """Each of them is alone until a short one comes."""
    r = random.Random(seed + 2)
    return [chat(" ".join(r.choice(("fox", "crow", "grapes", "lion")) for _ in range(20 if on_gpu else 150)), temperature=0, max_tokens=4)
            for _ in range(2 if on_gpu else 3)]


def check_broken_off(s, asks, alone):
    for i, ask in enumerate(asks):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(text_of, s, ask)
            for k in range(3):
                time.sleep(0.01 * (i + 1))
                text_of(s, chat("%d %d" % (i, k), max_tokens=1))
            check(got.result() == alone[i], "a prompt that was broken off has another answer:", i, got.result(), alone[i])


def n_evaluated_for(a):
    u = a["usage"]
    return u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] + u["completion_tokens"] - 1


def check_kept(s, asks, alone):
    """Prompts of several steps on several cards, the first one undisturbed; the others are broken off some time after they have
    begun, and again. Each token is evaluated once, but for what was under way, which does not count."""
    begin, answers, took_s = evaluated(s), [], 0
    for i, ask in enumerate(asks):
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(s.post, CHAT, ask)
            for k in range(2 if i else 0):
                time.sleep(took_s * i / (len(asks) + 1))
                answers.append(s.post(CHAT, chat("%d %d" % (i, k), max_tokens=1))[2])
            answers.append(got.result()[2])
        took_s = took_s or time.monotonic() - began
        check(answers[-1]["choices"][0]["message"]["content"] == alone[i], "a prompt on several cards has another answer:", answers[-1], alone[i])
    took, n, n_broken = evaluated(s) - begin, sum(map(n_evaluated_for, answers)), s.metric("steps_broken_off_total")
    print("%.1f s alone, broken off %d times: %d positions for %d tokens" % (took_s, n_broken, took, n), flush=True)
    check(n_broken > 0 and took == n, "steps that were through are made again")


def all_choices(s, ask):
    return [c["message"]["content"] for c in s.post(CHAT, ask)[2]["choices"]]


def check_choices(s, ask, alone):
    """Five choices in four slots, while others come: each is what it is where one is made after the other."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        got = [pool.submit(all_choices, s, ask) for _ in range(2)]
        time.sleep(0.05)
        text_of(s, chat("1", max_tokens=1))
        for one in got:
            check(one.result() == alone, "choices made together are others:", one.result(), alone)


ANSWER, SLACK = 24, 8                # tokens: of a choice; that may be evaluated again for each


def evaluated(s):
    """Positions, but those of drafts that were wrong."""
    return s.metric("positions_total") - s.metric("drafted_tokens_total") + s.metric("accepted_tokens_total")


def choices_of(r, n, seed):
    return chat("".join(r.choice("abcdefgh ") for _ in range(2500)), temperature=1, seed=seed, max_tokens=ANSWER, ignore_eos=True, n=n)


def check_evaluated_once(s, name, seed):
    """Choices evaluate their prompt once, also where a sequence cannot be cut short, where there are fewer slots than choices, and
    where most slots are others' when the first one begins and not any more when later ones do."""
    r, took = random.Random(seed + 3), []
    for n in (1, 4, 9):
        begin = evaluated(s)
        all_choices(s, choices_of(r, n, seed))
        took.append(evaluated(s) - begin)
        check(took[-1] <= took[0] + (n - 1) * (ANSWER + SLACK), name, "choices evaluate their prompt anew:", n, took)
    begin = evaluated(s)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        others = [pool.submit(s.post, CHAT, chat(c * 100, temperature=1, max_tokens=250, ignore_eos=True)) for c in "xyz"]
        while s.metric("requests_running") < 3 and not any(o.done() for o in others):
            time.sleep(0.002)
        all_choices(s, choices_of(r, 16, seed))
        of_others = sum(o.result()[2]["usage"]["total_tokens"] for o in others)
    took.append(evaluated(s) - begin - of_others)
    print("%s: 1, 4 and 9 choices took %d, %d and %d positions, 16 beside others %d" % (name, *took), flush=True)
    check(took[3] <= took[0] + 15 * (ANSWER + SLACK), name, "choices that begin later evaluate their prompt anew:", took)


def check_model(folder, name, n, seed):
    """What answers are alone is said by a server without a GPU, of one slot and without drafts."""
    on_gpu = name in GPU_MODELS
    preset, options, flags = {**MODELS, **GPU_MODELS}[name]
    args = ["-m", tiny.model(folder, preset=preset, name=name, **options), "-c", "4096"] if preset else []
    asks, long = requests(n, seed, on_gpu), long_prompts(seed, on_gpu)
    several = dict(long[0], n=5, temperature=1, seed=seed, max_tokens=5 if on_gpu else 20)
    steps = [chat(" ".join("%d" % i for i in range(n, n + 500)), temperature=0, max_tokens=4) for n in (100, 200, 300, 400)]
    with Server(*args, "--gpus", "-1", "--draft", "off", "--slots", "1") as s:
        alone, long_alone = ([text_of(s, a) for a in some] for some in (asks, long))
        several_alone = all_choices(s, several)
        steps_alone = [text_of(s, a) for a in steps if "cards" in name]
    with Server(*args, *flags, "--pause-ms", "1" if seed % 2 else "100") as s:
        if on_gpu and s.ask("GET", "/props")[2]["backend"] == "cpu":
            print("skipped: this machine has no GPU that CUDA can use")
            sys.exit(77)
        if "cards" in name:
            check_kept(s, steps, steps_alone)
        check_load(s, asks, alone, seed)
        check_broken_off(s, long, long_alone)
        check_choices(s, several, several_alone)
        if name in ("bundled", "windowed", "recurrent"):
            check_evaluated_once(s, name, seed)
        print(name, "model: %d requests, %d tokens drafted, %d steps broken off" % (
            n, s.metric("drafted_tokens_total"), s.metric("steps_broken_off_total")), flush=True)


def main():
    n, _, seed = (sys.argv[5] if len(sys.argv) > 5 else "12").partition("@")
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[6:] or MODELS:
            check_model(folder, name, int(n), int(seed or 5))
    finish()


main()

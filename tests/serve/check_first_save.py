#!/usr/bin/env python3
"""The first conversation that is saved makes the server read samples of all weights, to tell models apart. On a slow drive that takes
long, and a stream beside it goes on meanwhile.

    check_first_save.py SERVE RUN SYNTH SHARED SLOW_DRIVE.so"""
import sys
import tempfile
import threading
import time

import tiny
from serve import Server, chat, check, environment, finish

CHAT = "/v1/chat/completions"
MOST_APART_S, LEAST_S = 0.5, 1.5     # the samples take longer than these


def check_stream(s):
    """Two slots: one streams, the other's conversation is saved for another one's sake."""
    times = []

    def stream():
        ask = chat("x", max_tokens=3000, temperature=1, seed=1, ignore_eos=True, stream=True, grammar="root ::= [a-z ]{4000}")
        for _ in s.stream(CHAT, ask):
            times.append(time.monotonic())

    s.post(CHAT, chat("b" * 200, max_tokens=1))
    streams = threading.Thread(target=stream)
    streams.start()
    while len(times) < 20 and streams.is_alive():
        time.sleep(0.01)
    begin = time.monotonic()
    s.post(CHAT, chat("c" * 200, max_tokens=1))
    end = time.monotonic()
    streams.join()
    apart = [b - a for a, b in zip(times, times[1:]) if b > begin and a < end]
    print("the first save: %.2f s; meanwhile %d tokens of a stream, %.3f s apart at most" % (end - begin, len(apart), max(apart, default=0)), flush=True)
    check(end - begin > LEAST_S, "the drive is not slow: a request that saves another conversation took", end - begin)
    check(len(apart) > 10 and max(apart) < MOST_APART_S, "a stream waits for samples of the weights")


def main():
    with tempfile.TemporaryDirectory() as folder, Server("-m", tiny.model(folder), "-c", "4096", "--slots", "2",
                                                          env=environment(LD_PRELOAD=sys.argv[5])) as s:
        check_stream(s)
    finish()


main()

#!/usr/bin/env python3
"""Turns between clients: whoever asks for much keeps nobody else waiting for all of it, and each answer is what it is alone, however
often its slot was another's meanwhile.

    check_fair.py SERVE RUN SYNTH SHARED [brief]

Clients are told apart by their address (this machine has all of 127.0.0.0/8), behind a proxy on this machine by what it says, and of
one address by their key and name."""
import concurrent.futures
import http.client
import json
import random
import socket
import sys
import tempfile
import threading
import time

import tiny
from serve import Server, chat, check, finish

CHAT = "/v1/chat/completions"
MODELS = {"bundled": None, "windowed": "gpt-oss-tiny", "recurrent": "qwen3-next-tiny"}
HOG, OTHER = {"address": "127.0.0.2"}, {"address": "127.0.0.3"}
SHORT = chat("x", temperature=0, max_tokens=4)
brief = "brief" in sys.argv[5:]
WAIT = 8                             # seconds: a turn is one, and other programs may have the cores for some


def ask(s, body, address="127.0.0.1", path=CHAT, on_open=lambda c: None, **headers):
    """(status, JSON). A header with several values has a line for each."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300, source_address=(address, 0))
    on_open(c)
    try:
        text = json.dumps(body).encode()
        c.putrequest("POST", path)
        for k, v in dict(headers, Content_Length=str(len(text))).items():
            for line in v if isinstance(v, tuple) else (v,):
                c.putheader(k.replace("_", "-"), line)
        c.endheaders(text)
        r = c.getresponse()
        return r.status, json.loads(r.read())
    finally:
        c.close()


def content(answer):
    status, a = answer
    return a["choices"][0]["message"]["content"] if status == 200 else (status, a)


class Hog:
    """Many requests at once; those that are not answered at the end of the block go away, unless they are waited for."""

    def __init__(self, s, asks, **who):
        self.s, self.asks, self.answers, self.who, self.connections = s, asks, [None] * len(asks), who, []
        self.threads = [threading.Thread(target=self.one, args=(i,)) for i in range(len(asks))]

    def one(self, i):
        try:
            self.answers[i] = ask(self.s, self.asks[i], on_open=self.connections.append, **self.who)
        except (OSError, http.client.HTTPException, ValueError):
            pass

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def wait_until_busy(self, n_waiting):
        end = time.time() + 60
        while self.s.metric("requests_waiting") < n_waiting or self.s.metric("requests_running") == 0:
            if time.time() > end:
                check(False, "the server does not get busy")
                return
            time.sleep(0.02)

    def n_answered(self):
        return sum(a is not None for a in self.answers)

    def wait(self):
        for t in self.threads:
            t.join()

    def leave(self, n):
        """So many of the clients go away."""
        for c in self.connections[:n]:
            if c.sock:
                try:
                    c.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def __exit__(self, *_):
        self.leave(len(self.connections))
        self.wait()


def timed(what, hog, **who):
    begin = time.monotonic()
    status, a = ask(hog.s, SHORT, **who)
    took = time.monotonic() - begin
    print("%s: a short request took %.2f s, %d of %d others were answered" % (what, took, hog.n_answered(), len(hog.asks)), flush=True)
    check(status == 200, what, status, a)
    return took


def long_answer(i, most=3900, **more):
    return chat("Tell me a long fable of %d foxes." % i, temperature=1, seed=i, max_tokens=most, ignore_eos=True, **more)


def check_flood():
    """Hundreds of requests of one client."""
    with Server() as s, Hog(s, [long_answer(i, 300) for i in range(200)], **HOG) as hog:
        hog.wait_until_busy(150)
        for k in range(3):
            check(timed("200 requests", hog, **OTHER) < WAIT, "waits for a client's many requests")
        check(hog.n_answered() < 150, "the requests were answered first")


def check_slots_held(slots):
    """A client whose answers are long has all slots."""
    with Server("-t", "1", "--slots", str(slots)) as s, Hog(s, [long_answer(i, n=16) for i in range(slots + 1)], **HOG) as hog:
        hog.wait_until_busy(1)
        for k in range(2):
            check(timed("%d slots held" % slots, hog, **OTHER) < WAIT, "waits until a client's answer ends")
        check(hog.n_answered() == 0, "the answers came first")


def shown(answer):
    return [(c["message"], c["logprobs"], c["finish_reason"]) for c in answer[1]["choices"]] if answer[0] == 200 else answer


def long_enough(s, bodies, seconds):
    """Requests with as many choices, then as long ones, as take more than a turn, and what they are answered with."""
    asks, alone = [], []
    for body in bodies:
        begin = time.monotonic()
        ask(s, body)
        took = time.monotonic() - begin
        times = 1 + int(seconds / took)
        asks.append(dict(body, n=min(16, times), max_tokens=min(3900, body["max_tokens"] * -(-times // 16))))
        alone.append(shown(ask(s, asks[-1])))
    return asks, alone


def check_alike(folder, name, *caches):
    """Long prompts and answers give their slots to others again and again. caches: options of a server each."""
    preset = MODELS[name]
    args = ["-m", tiny.model(folder, preset=preset, name=name), "-c", "16384"] if preset else []
    args += ["-t", "1", "--slots", "1"]
    r = random.Random(3)
    words, most = (2500, 300) if preset else (700, 2600)
    if brief:                            # a sanitizer makes work several times as long, but no turn
        words, most = words // 3, most // 4
    asks = [chat(" ".join(r.choice(("fox", "crow", "grapes", "lion")) for _ in range(words)), temperature=1, seed=1, max_tokens=most,
                 ignore_eos=True),
            long_answer(9, most, logprobs=True, top_logprobs=3, presence_penalty=0.5, frequency_penalty=0.1, stop=["fox fox fox"]),
            chat("3", temperature=1, seed=7, max_tokens=most, ignore_eos=True, repeat_penalty=1.1, response_format={"type": "json_object"})]
    with Server(*args, "--draft", "off") as plain:
        longer, alone = long_enough(plain, asks, 1.3)
        for flags in caches:
            with Server(*args, *flags) as s:
                yielded = n_rounds = 0
                while yielded < (1 if brief else 3) and n_rounds < 5:
                    if yielded == 0 and n_rounds > 0:            # other programs had the cores when the times were taken
                        longer, alone = long_enough(plain, asks, 1.3 * 2 ** n_rounds)
                    beside_others(s, name, longer, alone)
                    yielded = s.metric("slots_yielded_total")
                    n_rounds += 1
                print("%s model %s: slots were given to others %d times in %d rounds" % (name, " ".join(flags), yielded, n_rounds),
                      flush=True)
                check(yielded > 0, "slots were never given to others")


def beside_others(s, name, asks, alone):
    with Hog(s, asks, **HOG) as hog:
        hog.wait_until_busy(1)
        while hog.n_answered() < len(asks):
            check(ask(s, SHORT, **OTHER)[0] == 200, "a short request")
            time.sleep(0.1)
        hog.wait()
    got = [shown(a) for a in hog.answers]
    check(got == alone, name, "answers whose slot was another's meanwhile are others:", got, alone)
    cached = [a[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for a in hog.answers]
    check(all(c < a[1]["usage"]["prompt_tokens"] for c, a in zip(cached, hog.answers)), "tokens of a prompt count twice:", cached)


def check_told_apart():
    """Clients of one address, by name or key, and those behind a proxy."""
    for who, other in (({"User_Agent": "batch"}, {"User_Agent": "page"}),
                       ({"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}),
                       ({"X_Forwarded_For": ("10.0.0.9", "10.0.0.1")}, {"X_Forwarded_For": ("10.0.0.9", "10.0.0.2")}),
                       ({"X_Forwarded_For": "10.0.0.3, 2001:db8:1:2:3::1"}, {"X_Forwarded_For": "2001:db8:1:2:3::1, 2001:db8:1:3:3::1"})):
        with Server("-t", "1", "--slots", "1") as s, Hog(s, [long_answer(i, n=16) for i in range(2)], **who) as hog:
            hog.wait_until_busy(1)
            check(timed("%s beside %s" % (other, who), hog, **other) < WAIT, who, other)
            check(hog.n_answered() == 0, "the answers came first")


def check_passed_over():
    """Who waits first and may claim nothing, since his address has as many slots as the others, keeps nobody from claiming."""
    with Server("-t", "1", "--slots", "2") as s, Hog(s, [long_answer(i, n=16) for i in range(2)], **HOG) as first:
        first.wait_until_busy(0)
        with Hog(s, [long_answer(2, n=16)], **dict(OTHER, User_Agent="batch")) as hog:
            while s.metric("slots_yielded_total") == 0 and hog.n_answered() + first.n_answered() == 0:
                time.sleep(0.02)
            check(timed("an address's other client", hog, **dict(OTHER, User_Agent="page")) < WAIT, "waits for an address's other client")
            check(hog.n_answered() + first.n_answered() == 0, "the answers came first")


def check_many_names():
    """Many names of one address have no more turns than another address."""
    with Server("-t", "1", "--slots", "1") as s:
        hogs = [Hog(s, [long_answer(i, 300)], User_Agent=str(i), **HOG) for i in range(30)]
        for h in hogs:
            h.__enter__()
        hogs[0].wait_until_busy(25)
        begin = time.monotonic()
        check(ask(s, SHORT, **OTHER)[0] == 200 and time.monotonic() - begin < WAIT, "waits for a client's many names", time.monotonic() - begin)
        check(sum(h.n_answered() for h in hogs) < 20, "the requests were answered first")
        for h in hogs:
            h.__exit__()


def check_full_queue():
    """A client that fills the queue loses its own last place there to others."""
    with Server("-t", "1", "--slots", "1", "--queue", "4") as s, Hog(s, [long_answer(0, 2500)], **HOG) as first:
        first.wait_until_busy(0)
        with Hog(s, [long_answer(i, 500) for i in range(7)], **HOG) as hog:
            hog.wait_until_busy(4)
            check(ask(s, SHORT, **HOG)[0] == 503, "the queue is not full")
            check(timed("a full queue", hog, **OTHER) < WAIT, "waits in a full queue")
            hog.wait()
        first.wait()
    statuses = sorted(a[0] for a in first.answers + hog.answers)
    check(statuses == [200] * 4 + [503] * 4, "answers of who filled the queue:", statuses)


def check_gone():
    """A client that goes away before it could claim a slot, and one while its slot is another's."""
    with Server("-t", "1", "--slots", "1") as s:
        with Hog(s, [long_answer(1, n=16)], **HOG) as hog:
            hog.wait_until_busy(0)
            with Hog(s, [SHORT], **OTHER) as other:
                other.wait_until_busy(1)
            end = time.time() + 60
            while s.metric("requests_cancelled_total") == 0 and time.time() < end:
                time.sleep(0.02)
            check(s.metric("slots_yielded_total") == 0 and hog.n_answered() == 0, "a slot was claimed for who had gone")
        while s.metric("requests_running") + s.metric("requests_waiting") > 0:
            time.sleep(0.02)
        before, yielded = s.metric("requests_cancelled_total"), s.metric("slots_yielded_total")
        c = http.client.HTTPConnection("127.0.0.1", s.port, source_address=(HOG["address"], 0))
        c.request("POST", CHAT, json.dumps(dict(long_answer(1, n=16), stream=True)))
        c.getresponse().read(200)
        with Hog(s, [long_answer(2, n=16)], **OTHER) as hog, Hog(s, [long_answer(3, n=16)] * 2, address="127.0.0.4") as third:
            while s.metric("slots_yielded_total") == yielded and hog.n_answered() + third.n_answered() == 0:
                time.sleep(0.02)
            c.close()
            third.leave(1)
            while s.metric("requests_cancelled_total") < before + 2 and hog.n_answered() + third.n_answered() == 0:
                time.sleep(0.02)
            check(s.metric("slots_yielded_total") == yielded + 1, "who has gone is let go of when its next turn comes")
        end = time.time() + 60
        while s.metric("requests_running") + s.metric("requests_waiting") > 0 and time.time() < end:
            time.sleep(0.02)
        check(s.metric("requests_cancelled_total") == before + 4, "what is left of clients that went away")


def check_not_kept():
    """What a long conversation began with takes longer to make again than its answer does: nobody claims its slot."""
    with Server("-t", "1", "--slots", "1", "--cache-mb", "0", "-c", "16384") as s:
        talk = chat(" ".join(["fox"] * 8000), temperature=0, max_tokens=1)
        first = time.monotonic()
        ask(s, talk, **HOG)
        first = time.monotonic() - first
        talk["messages"] += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "Go on."}]
        with Hog(s, [dict(talk, max_tokens=2400, ignore_eos=True)], **HOG) as hog:
            hog.wait_until_busy(0)
            timed("an answer that begins with %.2f s of prompt" % first, hog, **OTHER)
            hog.wait()
        check(s.metric("slots_yielded_total") == 0, "a slot was claimed whose sequence takes long to make again")


def check_bodies():
    """A client that sends as many bodies as it may and never ends them."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with Server() as s:
        connections, n, size = [], 0, 31000000
        while size > 1000:
            c = socket.create_connection(("127.0.0.1", s.port), 60, (HOG["address"], 0))
            c.sendall(head % (CHAT.encode(), size + 1) + b" " * size)
            connections.append(c)
            n += 1
            if n > 11:                       # closer and closer to what there is
                size //= 2
        time.sleep(0.5)
        status, a = ask(s, SHORT, **OTHER)
        check(status == 200, "bodies of one client keep others out:", status, a)
        c = socket.create_connection(("127.0.0.1", s.port), 60, (HOG["address"], 0))
        c.sendall(head % (CHAT.encode(), 31000000) + b" " * 31000000)
        check(b" 503 " in c.recv(1000), "an address may have any number of bodies")
        for c in connections + [c]:
            c.close()


def check_reading():
    """Bodies that take long to read, words that are no words, and are not read once their client has gone."""
    r = random.Random(5)
    texts = [{"content": "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=900000))} for i in range(10)] * 4
    with Server() as s:
        begin = time.monotonic()
        with Hog(s, texts, path="/tokenize", **HOG) as hog:
            while hog.n_answered() == 0:
                time.sleep(0.01)
            one = time.monotonic() - begin
            for k in range(3):
                check(timed("%d texts of 0.9 MB" % len(texts), hog, **OTHER) < 2, "waits until bodies are read")
            check(hog.n_answered() < len(texts) / 2, "the texts were answered first")
        begin = time.monotonic()
        s.end()                          # which waits for all that is still to be read
        rest = time.monotonic() - begin
        print("the first text took %.2f s, what was left of who had gone %.2f s" % (one, rest))
        check(rest < 4 * one + 0.5, "the server reads what nobody waits for")


def main():
    parts = [(check_told_apart,), (check_slots_held, 4), (check_slots_held, 1), (check_passed_over,), (check_many_names,), (check_full_queue,),
             (check_gone,), (check_not_kept,), (check_bodies,)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(3) as pool:       # turns are waited for, mostly
        alike = [(check_alike, folder, "recurrent", ())]
        if not brief:
            alike += [(check_alike, folder, "bundled", (), ("--cache-mb", "0")), (check_alike, folder, "windowed", ())]
        for done in [pool.submit(*part) for part in alike + parts]:
            done.result()
    for part in check_flood, check_reading:
        part()
    finish()


if __name__ == "__main__":
    main()

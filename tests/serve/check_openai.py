#!/usr/bin/env python3
"""OpenAI's chat and text completions: answers whole and streamed, settings, errors that name their field."""
import array
import json
import math
import os
import subprocess
import sys
import tempfile

import tiny
from serve import Server, chat, check, environment, finish, run_path

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = "Tell me a fable."
BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "fables.gguf")


def content(answer, i=0):
    return answer["choices"][i]["message"]["content"]


def check_answers(s):
    own = subprocess.run([run_path, "-p", ASK, "--temp", "0", "-n", "40"], stdin=subprocess.DEVNULL, capture_output=True,
                         env=environment(), check=True).stdout.decode().rstrip("\n")
    status, _, a = s.post(CHAT, chat(ASK, temperature=0, max_tokens=40))
    check(status == 200 and a["object"] == "chat.completion" and a["model"] == "default", a)
    check(content(a).rstrip("\n") == own, "not what pfmoe-run says:", content(a), own)
    check(a["choices"][0]["finish_reason"] == "length" and a["usage"]["completion_tokens"] == 40, a["usage"])
    check(a["usage"]["total_tokens"] == a["usage"]["prompt_tokens"] + 40 and a["timings"]["predicted_n"] == 40, a)
    drafted = a["timings"].get("draft_n", 0)
    check(0 <= a["timings"].get("draft_n_accepted", 0) <= drafted or drafted == 0, a["timings"])
    parts = [{"type": "text", "text": ASK}]
    b = s.post(CHAT, {"model": "fables", "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_completion_tokens": 40})[2]
    check(content(b) == content(a), "parts of text make another prompt")
    check(b["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "nothing was reused:", b["usage"])


def check_goes_on(s):
    """An answer goes on with a last message that is the assistant's text, and is held to no schema or call then."""
    whole = content(s.post(CHAT, chat(ASK, temperature=0, max_tokens=60))[2])
    cut = whole.index(" ", 40)
    body = chat(ASK, temperature=0, max_tokens=20)
    body["messages"].append({"role": "assistant", "content": whole[:cut]})
    a = s.post(CHAT, body)[2]
    check(len(content(a)) > 20 and whole[cut:].startswith(content(a)), whole[cut:], content(a))
    events = [json.loads(d) for _, d in s.stream(CHAT, dict(body, stream=True)) if d != "[DONE]"]
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    check(text == content(a), "streamed", text, content(a))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for more, field in (({"response_format": {"type": "json_object"}}, "response_format"), ({"tools": [tool], "tool_choice": "required"}, "tool_choice")):
        status, _, e = s.post(CHAT, dict(body, **more))
        check(status == 400 and e["error"]["param"] == field, status, e)
    body["messages"][-1]["content"] = ""
    check(content(s.post(CHAT, dict(body, max_tokens=60))[2]) != whole[cut:], "an empty message is gone on with")


def check_stream(s):
    body = chat(ASK, temperature=0, max_tokens=30)
    whole = s.post(CHAT, body)[2]
    events = [data for _, data in s.stream(CHAT, dict(body, stream=True, stream_options={"include_usage": True}))]
    check(events.pop() == "[DONE]", "the stream does not end with [DONE]")
    chunks = [json.loads(e) for e in events]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    check(deltas[0].get("role") == "assistant", deltas[0])
    check("".join(d.get("content", "") for d in deltas) == content(whole), "deltas do not add up to the whole")
    check(chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 30, chunks[-1])
    check(chunks[-2]["choices"][0]["finish_reason"] == "length", chunks[-2])
    check(len({c["id"] for c in chunks}) == 1, "chunks have several ids")


def check_settings(s):
    body = chat("Tell me about a fox.", temperature=2, min_p=0, top_k=0, top_p=1, seed=7, max_tokens=20, n=3)
    a, b = s.post(CHAT, body)[2], s.post(CHAT, body)[2]
    texts = [content(a, i) for i in range(3)]
    check(texts == [content(b, i) for i in range(3)], "the same seed gives other answers")
    check(len(set(texts)) > 1, "three choices are all the same", texts)
    check(content(s.post(CHAT, dict(body, n=1, seed=9))[2]) == texts[2], "a choice's seed is not the first's plus its number")
    for top_p in (0, 1e-300):            # nothing but the likeliest token
        check(content(s.post(CHAT, dict(body, n=1, top_p=top_p))[2]) == content(s.post(CHAT, dict(body, n=1, temperature=0))[2]), "top_p", top_p)
    stopped = s.post(CHAT, chat(ASK, temperature=0, max_tokens=40, stop=["Tortoise", "never"]))[2]
    check(content(stopped) == "The Hare And The " and stopped["choices"][0]["finish_reason"] == "stop", stopped)
    logprobs = s.post(CHAT, chat(ASK, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3))[2]["choices"][0]["logprobs"]
    check([len(t["top_logprobs"]) for t in logprobs["content"]] == [3] * 4, logprobs)
    check(all(t["token"] == t["top_logprobs"][0]["token"] and t["logprob"] <= 0 for t in logprobs["content"]), logprobs)
    events = [json.loads(d) for _, d in s.stream(CHAT, chat(ASK, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3, stream=True))
              if d != "[DONE]"]
    streamed = [t for e in events for t in e["choices"][0]["logprobs"]["content"]]
    check(streamed == logprobs["content"], "streamed log-probabilities are others")


def check_bias(s):
    fox = s.post("/tokenize", {"content": " fox"})[2]["tokens"]
    a = s.post(TEXT, {"prompt": "A", "temperature": 0, "max_tokens": 4, "logit_bias": {str(fox[0]): 100, "999999": 5}})[2]
    check(a["choices"][0]["text"] == " fox" * 4, "a bias of 100 does not choose a token", a)
    b = s.post(TEXT, {"prompt": "A fox", "temperature": 0, "max_tokens": 1})[2]["choices"][0]["text"]
    ban = {str(s.post("/tokenize", {"content": b})[2]["tokens"][0]): -100}
    c = s.post(TEXT, {"prompt": "A fox", "temperature": 0, "max_tokens": 1, "logit_bias": ban})[2]["choices"][0]["text"]
    check(c != b, "a bias of -100 does not forbid a token")


def check_text(s):
    a = s.post(TEXT, {"prompt": "A fox", "temperature": 0, "max_tokens": 12, "logprobs": 2})[2]
    check(a["object"] == "text_completion" and a["choices"][0]["text"].startswith(","), a)
    check(len(a["choices"][0]["logprobs"]["tokens"]) == 12, a)
    ids = s.post("/tokenize", {"content": "A fox"})[2]["tokens"]
    b = s.post(TEXT, {"prompt": ids, "temperature": 0, "max_tokens": 12})[2]
    check(b["choices"][0]["text"] == a["choices"][0]["text"], "tokens make another answer than their text", b)
    events = [json.loads(d) for _, d in s.stream(TEXT, {"prompt": "A fox", "temperature": 0, "max_tokens": 12, "stream": True}) if d != "[DONE]"]
    check("".join(e["choices"][0]["text"] for e in events) == a["choices"][0]["text"], "the streamed text is another")
    check(s.post("/detokenize", {"tokens": ids})[2]["content"] == "A fox", "tokens do not come back as their text")
    echoed = s.post(TEXT, {"prompt": "A fox", "temperature": 0, "max_tokens": 12, "echo": True})[2]["choices"][0]["text"]
    check(echoed == "A fox" + a["choices"][0]["text"], echoed)
    check(s.post(TEXT, {"prompt": ids, "temperature": 0, "max_tokens": 12, "echo": True})[2]["choices"][0]["text"] == echoed, "tokens are not echoed")
    for more in ({"suffix": ""}, {"suffix": None, "best_of": None}, {"n": 2, "best_of": 2}):
        status, _, b = s.post(TEXT, {"prompt": "A fox", "temperature": 0, "max_tokens": 12, **more})
        check(status == 200 and [c["text"] for c in b["choices"]] == [a["choices"][0]["text"]] * more.get("n", 1), more, status, b)


def check_filled():
    """Texts that are filled in between two, by a model that has the marks for it."""
    with tempfile.TemporaryDirectory() as folder:
        for marks, order in ((["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], (0, "def f(", 1, "): pass", 2)), (["[PREFIX]", "[SUFFIX]"], (1, "): pass", 0, "def f(")),
                             (["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"], (1, "): pass", 0, "def f(", 2))):
            with Server("-m", tiny.model(folder, marks)) as s:
                tokens = s.post("/tokenize", {"content": "", "add_special": True})[2]["tokens"]
                for part in order:
                    tokens += [tiny.FIRST_UNUSED + part] if isinstance(part, int) else s.post("/tokenize", {"content": part})[2]["tokens"]
                given = s.post(TEXT, {"prompt": tokens, "temperature": 0, "max_tokens": 8})[2]
                a = s.post(TEXT, {"prompt": "def f(", "suffix": "): pass", "temperature": 0, "max_tokens": 8})[2]
                check(a["choices"][0]["text"] == given["choices"][0]["text"] and a["usage"]["prompt_tokens"] == len(tokens), a, given)
                for more, field in (({"prompt": tokens}, "prompt"), ({"echo": True}, "echo")):
                    status, _, e = s.post(TEXT, {"prompt": "a", "suffix": "b", **more})
                    check(status == 400 and e["error"]["param"] == field, status, e)


def check_logprobs(s):
    """Against pfmoe-run's logits, in double."""
    ids = s.post("/tokenize", {"content": "A fox"})[2]["tokens"]
    a = s.post(TEXT, {"prompt": ids, "temperature": 0, "max_tokens": 8, "logprobs": 5})[2]["choices"][0]
    chosen = s.post("/tokenize", {"content": "A fox" + a["text"]})[2]["tokens"]
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = folder + "/tokens", folder + "/logits"
        with open(tokens, "w") as f:
            f.write(" ".join(map(str, chosen)))
        subprocess.run([run_path, "-m", BUNDLED, "--score", tokens, "--logits", out], capture_output=True, env=environment(), check=True)
        logits = array.array("f")
        with open(out, "rb") as f:
            logits.frombytes(f.read())
    n = len(logits) // len(chosen)
    for i, (lp, top) in enumerate(zip(a["logprobs"]["token_logprobs"], a["logprobs"]["top_logprobs"])):
        at = len(ids) - 1 + i
        row = logits[at * n:(at + 1) * n]
        whole = math.log(math.fsum(math.exp(l) for l in row))
        check(abs(lp - (row[chosen[at + 1]] - whole)) < 3e-6, "log-probability", i, lp, row[chosen[at + 1]] - whole)
        best = sorted((l - whole for l in row), reverse=True)[:5]
        check(all(abs(x - y) < 3e-6 for x, y in zip(sorted(top.values(), reverse=True), best)), i, top, best)


def check_prompts(s):
    """Several prompts in a request: each has the choices that it has alone."""
    settings = {"temperature": 1, "seed": 3, "max_tokens": 10, "n": 2}
    texts = ["A fox", "The crow and", "Once"]
    alone = [s.post(TEXT, {"prompt": t, **settings})[2] for t in texts]
    each = [c["text"] for a in alone for c in a["choices"]]
    ids = [s.post("/tokenize", {"content": t, "add_special": True})[2]["tokens"] for t in texts]
    for prompts in (texts, ids, [texts[0], ids[1], texts[2]]):
        a = s.post(TEXT, {"prompt": prompts, **settings})[2]
        check([c["text"] for c in a["choices"]] == each and [c["index"] for c in a["choices"]] == list(range(6)), prompts, a, each)
        check(a["usage"]["prompt_tokens"] == sum(map(len, ids)) and a["usage"]["completion_tokens"] == 60, a["usage"])
    streamed = [""] * 6
    for _, data in s.stream(TEXT, {"prompt": texts, "stream": True, **settings}):
        for c in json.loads(data)["choices"] if data != "[DONE]" else ():
            streamed[c["index"]] += c["text"]
    check(streamed == each, "streamed choices of several prompts are others", streamed, each)


def check_together(s):
    """The choices of a request are made together, and those of one prompt evaluate it once."""
    fresh = iter(range(100))

    def ask(n):
        text = "%d " % next(fresh) + "A fox and a crow. " * 80
        before = s.metric("step_seconds_total")
        a = s.post(TEXT, {"prompt": text, "temperature": 1, "seed": 3, "max_tokens": 1, "n": n})[2]
        check(len(a["choices"]) == n and a["usage"]["prompt_tokens"] > 400, a["usage"])
        return s.metric("step_seconds_total") - before

    one, four = (min(ask(n) for _ in range(3)) for n in (1, 4))
    check(four < 3 * one, "the steps of a prompt with four choices take", four, "with one", one)
    for prompt, n in (("A fox", 4), (["A fox", "A crow", "Once"], 1)):
        ask_all = {"prompt": prompt, "temperature": 1, "seed": 3, "max_tokens": 30, "n": n, "stream": True, "ignore_eos": True}
        order = [json.loads(d)["choices"][0] for _, d in s.stream(TEXT, ask_all) if d != "[DONE]"]
        last = {c["index"]: i for i, c in enumerate(order) if c["finish_reason"]}
        first = {c["index"]: i for i, c in reversed(list(enumerate(order)))}
        check(max(first.values()) < min(last.values()), "choices come one after the other:", first, last)


# (path, what the body has besides what it needs, the field that the error names)
USER = [{"role": "user", "content": "x"}]
WRONG = [
    *[(CHAT, {name: value}, name) for name, values in {
        "model": [1, [], {}, None], "stream": ["yes", 1], "stream_options": [1, "x"], "max_tokens": ["many", -1, 1.5, [1]],
        "max_completion_tokens": ["many", -1], "n": [0, 17, "1"], "seed": ["x", 1.5], "stop": [1, {}, ["a"] * 17],
        "temperature": ["hot", -0.1, 2.1, [1]], "top_p": [-1, 1.1, "x"], "top_k": [-1, "x", 0.5], "min_p": [2, "x"],
        "presence_penalty": [-2.1, "x"], "frequency_penalty": [2.1, "x"], "repeat_penalty": [0, "x"], "logprobs": [1, "x"],
        "top_logprobs": [21, -1, "x"], "messages": [1, {}, "x", []], "tools": [1, {}, "x"], "reasoning_effort": [1, "huge"],
        "chat_template_kwargs": [1, []], "logit_bias": [1, [], {"x": 1}, {"1": 101}, {"1": "x"}],
        "response_format": [1, "json"]}.items() for value in values],
    (CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    (CHAT, {"stop": ["a", 2]}, "stop[1]"), (CHAT, {"stop": ""}, "stop"),
    (CHAT, {"messages": [1]}, "messages[0]"), (CHAT, {"messages": USER + [{"content": "x"}]}, "messages[1].role"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]}, "messages[0].tool_calls[0].function.name"),
    (CHAT, {"tools": [{}]}, "tools[0].function"), (CHAT, {"tools": [{"type": "web"}]}, "tools[0].type"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
    (TEXT, {"prompt": 1}, "prompt"), (TEXT, {"prompt": [1, "x"]}, "prompt[1]"), (TEXT, {"prompt": [-1]}, "prompt[0]"),
    (TEXT, {"prompt": [5, 99999]}, "prompt[1]"),
    (TEXT, {"prompt": ["a", 1]}, "prompt[1]"), (TEXT, {"prompt": ["a", ""]}, "prompt[1]"), (TEXT, {"prompt": [[1], [5, 99999]]}, "prompt[1][1]"),
    (TEXT, {"prompt": [[1], [2, "x"]]}, "prompt[1][1]"), (TEXT, {"prompt": []}, "prompt"), (TEXT, {"prompt": [[]]}, "prompt"),
    (TEXT, {"prompt": ["x"] * 129}, "prompt"), (TEXT, {"prompt": ["x"] * 9, "n": 16}, "prompt"), (TEXT, {"prompt": {}}, "prompt"),
    (TEXT, {"prompt": ["a", "word " * 9000]}, "prompt[1]"), (TEXT, {"prompt": ""}, "prompt"), (TEXT, {"logprobs": 6}, "logprobs"), (TEXT, {"echo": 1}, "echo"),
    (TEXT, {"suffix": "x"}, "suffix"), (TEXT, {"suffix": 1}, "suffix"), (TEXT, {"best_of": 2}, "best_of"), (TEXT, {"best_of": 3, "n": 2}, "best_of"),
    (TEXT, {"best_of": 1, "n": 2}, "best_of"), (TEXT, {"best_of": 0}, "best_of"), (TEXT, {"best_of": "x"}, "best_of"),
    ("/tokenize", {"content": 1}, "content"), ("/tokenize", {"content": None}, "content"), ("/detokenize", {"tokens": [99999]}, "tokens[0]"),
    ("/detokenize", {"tokens": "x"}, "tokens"),
]


def check_errors(s):
    for path, more, field in WRONG:
        body = {CHAT: {"model": "default", "messages": USER, "max_tokens": 1}, TEXT: {"prompt": "x", "max_tokens": 1}}.get(path, {})
        status, _, a = s.post(path, {**body, **more})
        check(status == 400 and a["error"]["param"] == field and a["error"]["type"] == "invalid_request_error", path, more, status, a)
    for body in (b'{"messages": [', b'{"prompt": "\\u00\x111"}', b'{"prompt": "\\u004g"}'):
        status, _, a = s.post(CHAT, body)
        check(status == 400 and "JSON" in a["error"]["message"], status, a)
    status, _, a = s.post(CHAT, chat("word " * 9000))
    check(status == 400 and a["error"]["code"] == "context_length_exceeded" and "4096" in a["error"]["message"], status, a)
    for known in ("prompt is too long", "maximum context length is 4096 tokens"):            # by clients that make room then
        check(known in a["error"]["message"], a)
    before = s.peak_bytes()
    status, _, a = s.post(TEXT, {"prompt": "a" * 30000000})
    check(status == 400 and a["error"]["code"] == "context_length_exceeded" and "context length is 4096 tokens" in a["error"]["message"], status, a)
    check(s.peak_bytes() - before < 300e6, "a prompt that cannot fit is tokenized:", before, s.peak_bytes())
    nulls = {name: None for name in ("temperature", "stop", "tools", "n", "stream_options", "seed", "response_format")}
    check(s.post(CHAT, chat("x", max_tokens=1, unheard_of={"a": [1]}, **nulls))[0] == 200, "nulls or unknown fields are refused")


def check_repeated(s):
    """A name that comes again in an object: the last value holds, and the others leave nothing."""
    def ask(more):
        return s.post(CHAT, '{"model":"default","temperature":0,"max_tokens":40,"messages":[{"role":"user","content":"%s"}],%s}' % (ASK, more))

    for stops in ('"stop":"zzz",' * 50 + '"stop":"Tortoise"', '"stop":%s,"stop":"Tortoise"' % json.dumps(["zzz"] * 16), '"stop":"The",' * 17 + '"stop":["Tortoise"]'):
        status, _, a = ask(stops)
        check(status == 200 and content(a) == "The Hare And The ", status, a)
    before = s.peak_bytes()
    status, _, a = ask('"logit_bias":{"5":1},' * 50000 + '"logit_bias":{}')
    check(status == 200 and s.peak_bytes() - before < 100e6, status, before, s.peak_bytes())


def main():
    with Server() as s:
        check(s.ask("GET", "/health")[0] == 200, "health")
        names = [m["id"] for m in s.ask("GET", "/v1/models")[2]["data"]]
        check("default" in names and "fables" in names, names)
        for part in (check_answers, check_goes_on, check_stream, check_settings, check_bias, check_text, check_logprobs, check_prompts, check_together, check_errors, check_repeated):
            part(s)
    check_filled()
    finish()


main()

#!/usr/bin/env python3
"""An agent's conversation in three protocols, as the shared data makes it: of each request only what is new is
evaluated, by a plain, a windowed and a recurrent model, over a restart, and though the first line of the Anthropic
form's system text changes with every request. Random models: any answer differs from what the log says was answered.

    check_agents.py SERVE RUN SYNTH SHARED [TURNS]       TURNS: so many, with system texts of their whole length"""
import json
import os
import subprocess
import sys
import tempfile

import serve
import tiny
from serve import Server, check, finish

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}
PRESETS = {"moe-tiny": ["openai", "anthropic", "responses"], "gpt-oss-tiny": ["anthropic"], "qwen3-next-tiny": ["anthropic"]}
SYSTEM_CHARACTERS = 1500
SLACK = 64                           # tokens: the opening of an answer is in each prompt, and in no later one


def usage_of(protocol, b):
    u = b["usage"]
    if protocol == "openai":
        return u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"]
    if protocol == "anthropic":
        return u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"]
    return u["input_tokens"], u["input_tokens_details"]["cached_tokens"]


def shortened(body):
    """With less of the system's text, which is most of a log's tokens."""
    if "system" in body:
        for block in body["system"]:
            block["text"] = block["text"][:SYSTEM_CHARACTERS]
    elif "instructions" in body:
        body["instructions"] = body["instructions"][:SYSTEM_CHARACTERS]
    else:
        body["messages"][0]["content"] = body["messages"][0]["content"][:SYSTEM_CHARACTERS]
    return body


def replay(s, protocol, lines, before, name):
    for i, line in lines:
        body = dict(json.loads(line), stream=False)
        body = body if len(sys.argv) > 5 else shortened(body)
        body["max_output_tokens" if protocol == "responses" else "max_tokens"] = 4
        body.pop("stream_options", None)
        status, _, b = s.post(PATHS[protocol], body)
        check(status == 200, name, status, b)
        n, cached = usage_of(protocol, b)
        check(before is None or n - cached <= n - before + SLACK, name, protocol, "request", i, "of", n, "tokens:", cached, "kept,", before, "were known")
        print("%s, %s, request %d: %d tokens, %d of them evaluated" % (name, protocol, i, n, n - cached), flush=True)
        before = n
    return before


def main():
    maker, turns = os.path.join(serve.shared, "agents", "make_logs.py"), sys.argv[5] if len(sys.argv) > 5 else "2"
    if not os.path.exists(maker):
        print("no agents in", serve.shared)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, maker, folder, turns], check=True, stdout=subprocess.DEVNULL)
        for preset, protocols in PRESETS.items():
            path = tiny.model(folder, preset=preset, name=preset)
            for protocol in protocols:
                lines = list(enumerate(open(os.path.join(folder, protocol + ".jsonl"))))
                args = ["-m", path, "-c", str(len(lines[-1][1])), "--slots", "1", "--cache-dir", os.path.join(folder, preset + "." + protocol)]
                with Server(*args) as s:
                    known = replay(s, protocol, lines[:-1], None, preset)
                with Server(*args) as s:
                    replay(s, protocol, lines[-1:], known, preset + " after a restart")
    finish()


main()

#!/usr/bin/env python3
"""The server as the Python packages openai and anthropic see it: chat, streams, tools, schemas, errors, a client that
goes away. Skipped where a package is not installed."""
import json
import sys
import tempfile
import time

try:
    import anthropic
    import openai
except ImportError as e:
    print("left out: the package %s is not installed" % e.name)
    sys.exit(77)

import tiny
from check_forced import PARAMETERS, THINK, fits
from serve import Server, check, finish

MARKS = ["<tool_call>", "</tool_call>", *THINK]
USER = [{"role": "user", "content": "Tell me about a fox."}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}]
SCHEMA = {"type": "object", "properties": {"q": {"type": "boolean"}}, "required": ["q"], "additionalProperties": False}
CALM = {"chat_template_kwargs": {"enable_thinking": False}}


def until(true, seconds=30):
    end = time.time() + seconds
    while not true() and time.time() < end:
        time.sleep(0.05)
    return true()


def open_ai(s):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="key", max_retries=0)


def check_openai(s):
    c = open_ai(s)
    check("default" in [m.id for m in c.models.list()], "no model \"default\"")
    a = c.chat.completions.create(model="default", messages=USER, max_tokens=12, temperature=0)
    check(a.choices[0].finish_reason == "length" and a.usage.completion_tokens == 12, a)
    text, usage = "", None
    for chunk in c.chat.completions.create(model="default", messages=USER, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    check(text == a.choices[0].message.content and usage.completion_tokens == 12, text, a)
    b = c.completions.create(model="default", prompt="A fox", max_tokens=5, temperature=0, logprobs=2)
    check(len(b.choices[0].logprobs.tokens) == 5, b)
    r = c.responses.create(model="default", input="A fox", max_output_tokens=6, temperature=0)
    events = list(c.responses.create(model="default", input="A fox", max_output_tokens=6, temperature=0, stream=True))
    check("".join(e.delta for e in events if e.type == "response.output_text.delta") == r.output_text, r, events)


def check_openai_tools(s):
    c = open_ai(s)
    more = {"model": "default", "messages": USER, "max_tokens": 400, "extra_body": CALM}
    a = c.chat.completions.create(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, **more).choices[0]
    call = a.message.tool_calls[0]
    check(a.finish_reason == "tool_calls" and call.function.name == "weather" and fits(json.loads(call.function.arguments)), a)
    back = USER + [a.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    check(c.chat.completions.create(**dict(more, messages=back, max_tokens=3), tools=TOOLS).usage.completion_tokens == 3, "results of tools are not taken")
    arguments = ""
    for chunk in c.chat.completions.create(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}}, stream=True, **more):
        for t in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            arguments += t.function.arguments or ""
    check(fits(json.loads(arguments)), arguments)
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    a = c.chat.completions.create(response_format=held, **more).choices[0]
    check(list(json.loads(a.message.content)) == ["q"], a)
    r = c.responses.create(model="default", input="?", max_output_tokens=400, reasoning={"effort": "none"},
                           text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}})
    check(list(json.loads(r.output_text)) == ["q"], r)


def check_openai_errors(s):
    c = open_ai(s)
    for more, kind, param in (({"temperature": 9}, openai.BadRequestError, "temperature"), ({"messages": []}, openai.BadRequestError, "messages"),
                              ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice")):
        try:
            c.chat.completions.create(**{"model": "default", "messages": USER, "max_tokens": 2, **more})
            check(False, more, "is taken")
        except kind as e:
            check(e.status_code == 400 and e.param == param, more, e)
    try:
        c.chat.completions.create(model="default", messages=[{"role": "user", "content": "a" * 9000}])
        check(False, "a prompt longer than the context is taken")
    except openai.BadRequestError as e:
        check(e.code == "context_length_exceeded", e)
    stream = c.chat.completions.create(model="default", messages=USER, max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    before = s.metric("requests_cancelled_total")
    stream.close()
    check(until(lambda: s.metric("requests_cancelled_total") > before and s.metric("requests_running") == 0), "a client that left is still served")


def check_anthropic(s):
    c = anthropic.Anthropic(base_url="http://127.0.0.1:%d" % s.port, api_key="key", max_retries=0)
    more = {"model": "default", "messages": USER, "max_tokens": 12}
    a = c.messages.create(**more, extra_body={"top_k": 1})
    check(a.stop_reason == "max_tokens" and a.usage.output_tokens == 12, a)
    with c.messages.stream(**more, extra_body={"top_k": 1}) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    check(text == a.content[0].text == last.content[0].text and last.stop_reason == "max_tokens", text, a)
    check(c.messages.count_tokens(model="default", messages=USER).input_tokens == a.usage.input_tokens + (a.usage.cache_read_input_tokens or 0), a)
    tools = [{"name": "weather", "description": "d", "input_schema": PARAMETERS}]
    more = {"model": "default", "max_tokens": 400, "tools": tools, "thinking": {"type": "disabled"}}
    with c.messages.stream(messages=USER, tool_choice={"type": "tool", "name": "weather"}, **more) as stream:
        a = stream.get_final_message()
    check(a.stop_reason == "tool_use" and [b.type for b in a.content] == ["tool_use"] and fits(a.content[0].input), a)
    back = USER + [{"role": "assistant", "content": a.content},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": a.content[0].id, "content": "sunny"}]}]
    check(c.messages.create(messages=back, **dict(more, max_tokens=3)).usage.output_tokens == 3, "results of tools are not taken")
    try:
        c.messages.create(model="default", max_tokens=2, messages=[])
        check(False, "no messages are taken")
    except anthropic.BadRequestError as e:
        check(e.status_code == 400 and "messages" in str(e), e)
    before = s.metric("requests_cancelled_total")
    with c.messages.stream(model="default", max_tokens=4000, messages=USER, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    check(until(lambda: s.metric("requests_running") == 0), before, "a client that left is still served")


def check_keys(path):
    with Server("-m", path, "-c", "512", "--slots", "1", "--api-key", "another") as s:
        for client, kind in ((open_ai(s), openai.AuthenticationError),
                             (anthropic.Anthropic(base_url="http://127.0.0.1:%d" % s.port, api_key="key", max_retries=0), anthropic.AuthenticationError)):
            try:
                client.models.list()
                check(False, "a wrong key is taken")
            except kind:
                pass


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.model(folder, MARKS, "{# <tool_call> #}" + tiny.CHATML)
        with Server("-m", path, "-c", "8192", "--slots", "2") as s:
            for part in (check_openai, check_openai_tools, check_openai_errors, check_anthropic):
                part(s)
        check_keys(path)
    finish()


main()

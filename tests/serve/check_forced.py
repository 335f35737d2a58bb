#!/usr/bin/env python3
"""Calls that a request forces, content held beside tools, reasoning in front of it: random models with the marks of
several families, which write nothing sensible unless they are held to it."""
import json
import sys
import tempfile

import tiny
from serve import Server, check, finish

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
THINK = ["<think>", "</think>"]
PIPES = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
# What makes a template the family's (reply/families.c), and the marks that are tokens.
FAMILIES = {
    "hermes": ("<tool_call>", ["<tool_call>", "</tool_call>", *THINK]),
    "qwen3.5": ("<tool_call><function=<think>", ["<tool_call>", "</tool_call>", *THINK]),
    "gpt-oss": ("<|start|><|channel|>", PIPES),
    "glm": ("<arg_key>", ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *THINK]),
    "mistral": ("[TOOL_CALLS]", ["[TOOL_CALLS]", "[ARGS]"]),
    "deepseek-dsml": ("｜DSML｜", ["｜DSML｜", *THINK]),
    "gemma-4": ("<|tool_call>call:", ["<|tool_call>", "<tool_call|>"]),
    "generic": ("", []),
}
CUT = {"deepseek-dsml": 97}         # seeds with which 600 tokens end in a later call's name, in its "weather_n"
PARAMETERS = {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                               "deep": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
              "required": ["unit", "deep"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("weather", "weather_news")]
USER = [{"role": "user", "content": "?"}]
HELD = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"q": {"type": "boolean"}}, "required": ["q"],
                                                                       "additionalProperties": False}}}
CALM = {"chat_template_kwargs": {"enable_thinking": False}}          # a random model would reason for ever


def fits(arguments):
    ok = isinstance(arguments, dict) and set(arguments) <= {"unit", "days", "deep"} and arguments.get("unit") in ("c", "f")
    ok = ok and arguments.get("days", 1) in range(1, 10) and isinstance(arguments.get("deep"), list) and 1 <= len(arguments["deep"]) <= 3
    return ok and all(isinstance(v, bool) for v in arguments["deep"])


def ask(s, **more):
    status, _, b = s.post(CHAT, {"model": "default", "messages": USER, "max_tokens": 400, **CALM, **more})
    check(status == 200, status, b)
    return b["choices"][0]


def check_choice(s, family):
    for seed in range(2):
        a = ask(s, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        calls = a["message"].get("tool_calls", [])
        check(a["finish_reason"] == "tool_calls" and len(calls) == 1 and fits(json.loads(calls[0]["function"]["arguments"])), family, a)
    a = ask(s, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather_news"}})
    calls = a["message"].get("tool_calls", [])
    check([c["function"]["name"] for c in calls] == ["weather_news"] and fits(json.loads(calls[0]["function"]["arguments"])), family, a)
    a = ask(s, tools=TOOLS, tool_choice="required", max_tokens=600)
    calls = a["message"].get("tool_calls", [])
    check(len(calls) > 0 and all(fits(json.loads(c["function"]["arguments"])) for c in calls[:-1]) and not a["message"]["content"], family, a)
    body = {"model": "default", "messages": USER, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "stream": True, **CALM}
    name = arguments = ""
    for _, d in s.stream(CHAT, body):
        for c in (json.loads(d)["choices"] if d != "[DONE]" else []):
            for t in c["delta"].get("tool_calls", []):
                name += t["function"].get("name", "")
                arguments += t["function"]["arguments"]
    check(name in ("weather", "weather_news") and fits(json.loads(arguments)), family, name, arguments)


def check_cut(s, family):
    """A call that ends before its name does is no text: the first one, cut after each token, and a later one."""
    for n in range(1, 13):
        a = ask(s, tools=TOOLS, tool_choice="required", max_tokens=n, seed=1)
        m = a["message"]
        check(a["finish_reason"] == "length" and not m["content"] and "reasoning_content" not in m, family, n, a)
    a = ask(s, tools=TOOLS, tool_choice="required", max_tokens=600, seed=CUT.get(family, 1))
    if family in CUT:
        check(a["finish_reason"] == "length" and len(a["message"]["tool_calls"]) > 1, "no longer cut in a name", family, a)
    check(not a["message"]["content"], family, a)


def check_held(s, family):
    seen = set()
    for seed in range(6):
        a = ask(s, tools=TOOLS, response_format=HELD, parallel_tool_calls=False, seed=seed, temperature=1.5)
        calls = a["message"].get("tool_calls", [])
        seen.add(len(calls))
        if calls:
            check(fits(json.loads(calls[0]["function"]["arguments"])) and a["finish_reason"] == "tool_calls", family, a)
        else:
            check(list(json.loads(a["message"]["content"])) == ["q"] and a["finish_reason"] == "stop", family, a)
    a = ask(s, response_format=HELD)
    check(list(json.loads(a["message"]["content"])) == ["q"], family, a)
    return seen


def check_protocols(s):
    tools = [{"name": t["function"]["name"], "input_schema": PARAMETERS} for t in TOOLS]
    thinking = {"thinking": {"type": "disabled"}, "max_tokens": 400}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        a = s.post(MESSAGES, {"messages": USER, "tools": tools, "tool_choice": choice, **thinking})[2]
        blocks = a["content"]
        check(a["stop_reason"] == "tool_use" and [b["type"] for b in blocks] == ["tool_use"] and fits(blocks[0]["input"]), choice, a)
        check("name" not in choice or blocks[0]["name"] == choice["name"], choice, a)
    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    for choice in ("required", {"type": "function", "name": "weather"}):
        a = s.post(RESPONSES, {"model": "default", "input": "?", "tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 400,
                               "reasoning": {"effort": "none"}})[2]
        check(a["status"] == "completed" and [i["type"] for i in a["output"]] == ["function_call"] and fits(json.loads(a["output"][0]["arguments"])), choice, a)


def check_refusals(s):
    for more in ({"tool_choice": "required"}, {"tools": [], "tool_choice": "required"},
                 {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}):
        status, _, b = s.post(CHAT, {"model": "default", "messages": USER, **more})
        check(status == 400 and b["error"]["param"] == "tool_choice", more, status, b)
    # a schema that cannot be kept to leaves arguments any object
    odd = [{"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {"required": ["x"]}}}}]
    a = ask(s, tools=odd, tool_choice="required", parallel_tool_calls=False, max_tokens=2000)
    check(isinstance(json.loads(a["message"]["tool_calls"][0]["function"]["arguments"]), dict), a)


def check_reasoning(s, marks):
    """The marks are likely here: the model reasons if it may, and ends it."""
    bias = {str(tiny.FIRST_UNUSED + marks.index(m)): 100 for m in THINK}
    for more in ({"response_format": HELD}, {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}):
        body = {"model": "default", "messages": USER, "max_tokens": 400, "logit_bias": bias, "seed": 1, **more}
        a = s.post(CHAT, body)[2]
        m, used = a["choices"][0]["message"], a["usage"]["completion_tokens"]
        check(list(json.loads(m["content"])) == ["q"] if "response_format" in more else fits(json.loads(m["tool_calls"][0]["function"]["arguments"])), a)
        without = s.post(CHAT, dict(body, **CALM))[2]
        check(used > without["usage"]["completion_tokens"] or "<think>" in json.dumps(a), a, without)


# Tokens that hold the beginning of a call, up to its arguments: likely ones make a random model call a tool unasked.
CALLING = {
    "qwen3-coder": ("<function=", "<tool_call>\n<function=weather>\n"),
    "glm": ("<arg_key>", "<tool_call>weather\n<arg_key>"),
    "minimax-m2": ("<minimax:tool_call>", "<minimax:tool_call>\n<invoke name=\"weather\">\n"),
    "minimax-m3": ("]<]minimax[>[", "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"weather\">"),
    "hermes": ("<tool_call>", "<tool_call>\n{\"name\": \"weather\", \"arguments\": "),
    "gemma-4": ("<|tool_call>call:", "<|tool_call>call:weather{\n"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_start|>[weather(\n"),
}
REFERRING = {"type": "object", "$defs": {"unit": {"enum": ["c", "f"]}, "flags": PARAMETERS["properties"]["deep"]}, "additionalProperties": False,
             "properties": {"unit": {"$ref": "#/$defs/unit"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "deep": {"$ref": "#/$defs/flags"}},
             "required": ["unit", "deep"]}


def check_unasked(s, family):
    n = 0
    for schema in (PARAMETERS, REFERRING):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
        for seed in range(3):
            a = ask(s, tools=tools, logit_bias={str(tiny.FIRST_UNUSED): 100}, parallel_tool_calls=False, seed=seed)
            calls = a["message"].get("tool_calls", [])
            check(len(calls) == 1 and (a["finish_reason"] == "length" or fits(json.loads(calls[0]["function"]["arguments"]))), family, a)
            n += a["finish_reason"] == "tool_calls"
    check(n > 3, family, "%d calls came to their end" % n)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for family, (sign, marks) in FAMILIES.items():
            path = tiny.model(folder, marks, "{# %s #}%s" % (sign, tiny.CHATML), name=family)
            with Server("-m", path, "-c", "4096", "--slots", "2") as s:
                check_choice(s, family)
                check_cut(s, family)
                seen = check_held(s, family)
                if family == "hermes":
                    check_protocols(s)
                    check_refusals(s)
                    check_reasoning(s, marks)
                print(family, "calls beside content:", sorted(seen), flush=True)
        for family, (sign, token) in CALLING.items():
            path = tiny.model(folder, [token], "{# %s #}%s" % (sign, tiny.CHATML), name=family)
            with Server("-m", path, "-c", "4096", "--slots", "1") as s:
                check_unasked(s, family)
    finish()


if __name__ == "__main__":
    sys.exit(main())

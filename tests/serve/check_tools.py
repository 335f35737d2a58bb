#!/usr/bin/env python3
"""Calls of tools and held output in all protocols. The bundled model knows no tools: a grammar makes it write calls."""
import json

from serve import Server, check, finish

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}} for name in ("weather", "news")]
CALLS = [("weather", {"city": "Zür\"ich", "days": 1.0}), ("news", {})]
TEXT = "I look.\n" + "\n".join("<tool_call>\n%s\n</tool_call>" % json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in CALLS)
GRAMMAR = "root ::= " + json.dumps(TEXT, ensure_ascii=False)
USER = [{"role": "user", "content": "What is the weather?"}]


def check_chat(s):
    body = {"model": "default", "messages": USER, "tools": TOOLS, "grammar": GRAMMAR}
    a = s.post(CHAT, body)[2]["choices"][0]
    check(a["finish_reason"] == "tool_calls" and a["message"]["content"] == "I look.", a)
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in a["message"]["tool_calls"]]
    check(calls == CALLS and len({c["id"] for c in a["message"]["tool_calls"]}) == 2, a)
    got = {}
    for _, d in s.stream(CHAT, dict(body, stream=True)):
        if d == "[DONE]":
            break
        delta = json.loads(d)["choices"][0]["delta"]
        for c in delta.get("tool_calls", []):
            mine = got.setdefault(c["index"], {"name": "", "arguments": "", "ids": []})
            mine["name"] += c["function"].get("name", "")
            mine["arguments"] += c["function"]["arguments"]
            mine["ids"] += [c["id"]] if "id" in c else []
    check([(c["name"], json.loads(c["arguments"])) for c in got.values()] == CALLS and all(len(c["ids"]) == 1 for c in got.values()), got)
    one = s.post(CHAT, dict(body, parallel_tool_calls=False))[2]["choices"][0]
    check(len(one["message"]["tool_calls"]) == 1 and one["finish_reason"] == "tool_calls", one)
    none = s.post(CHAT, dict(body, tool_choice="none"))[2]["choices"][0]
    check("tool_calls" not in none["message"] and none["message"]["content"] == TEXT, none)
    back = USER + [a["message"]] + [{"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in a["message"]["tool_calls"]]
    status, _, b = s.post(CHAT, {"model": "default", "messages": back, "tools": TOOLS, "max_tokens": 2})
    check(status == 200, b)


def check_anthropic(s):
    tools = [{"name": t["function"]["name"], "description": "d", "input_schema": SCHEMA} for t in TOOLS]
    body = {"messages": USER, "tools": tools, "max_tokens": 500, "grammar": GRAMMAR}
    a = s.post(MESSAGES, body)[2]
    check(a["stop_reason"] == "tool_use" and [b["type"] for b in a["content"]] == ["text", "tool_use", "tool_use"], a)
    check([(b["name"], b["input"]) for b in a["content"][1:]] == CALLS, a)
    blocks = {}
    for name, d in s.stream(MESSAGES, dict(body, stream=True)):
        d = json.loads(d)
        if name == "content_block_start":
            blocks[d["index"]] = [d["content_block"], ""]
        elif name == "content_block_delta":
            blocks[d["index"]][1] += d["delta"].get("text", d["delta"].get("partial_json", ""))
    check([b[0]["type"] for b in blocks.values()] == ["text", "tool_use", "tool_use"] and
          [(b[0]["name"], json.loads(b[1] or "{}")) for b in list(blocks.values())[1:]] == CALLS, blocks)
    back = USER + [{"role": "assistant", "content": a["content"]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b["id"], "content": "sunny"} for b in a["content"][1:]]}]
    status, _, b = s.post(MESSAGES, {"messages": back, "tools": tools, "max_tokens": 2})
    check(status == 200, b)


def check_responses(s):
    tools = [{"type": "function", **t["function"]} for t in TOOLS] + [{"type": "web_search"}]
    body = {"model": "default", "input": "What is the weather?", "tools": tools, "grammar": GRAMMAR, "instructions": "Be brief."}
    a = s.post(RESPONSES, body)[2]
    check(a["status"] == "completed" and [i["type"] for i in a["output"]] == ["message", "function_call", "function_call"], a)
    check([t.get("strict", 1) for t in a["tools"]] == [None, None, 1] and [t["type"] for t in a["tools"]] == [t["type"] for t in tools], a["tools"])
    check([(i["name"], json.loads(i["arguments"])) for i in a["output"][1:]] == CALLS, a)
    events = [(name, json.loads(d)) for name, d in s.stream(RESPONSES, dict(body, stream=True))]
    check([d["sequence_number"] for _, d in events] == list(range(len(events))), "events are not counted")
    check(events[0][0] == "response.created" and events[-1][0] == "response.completed", events[0], events[-1])
    last = events[-1][1]["response"]["output"]
    items = [d["item"] for name, d in events if name == "response.output_item.done"]

    def plain(item):
        return {k: v for k, v in item.items() if k not in ("id", "call_id")}

    check([plain(i) for i in items] == [plain(i) for i in last], items, last)
    deltas = "".join(d["delta"] for name, d in events if name == "response.output_text.delta")
    check(deltas == "I look." == last[0]["content"][0]["text"], deltas)
    back = [{"role": "user", "content": "What is the weather?"}, *a["output"]]
    back += [{"type": "function_call_output", "call_id": i["call_id"], "output": "sunny"} for i in a["output"][1:]]
    status, _, b = s.post(RESPONSES, {"model": "default", "input": back, "tools": tools, "max_output_tokens": 3})
    check(status == 200 and b["status"] == "incomplete" and b["usage"]["output_tokens"] == 3, b)
    same = s.post(CHAT, {"model": "default", "messages": [{"role": "system", "content": "Be brief."}] + USER, "max_tokens": 9, "temperature": 0})[2]
    mine = s.post(RESPONSES, {"model": "default", "input": USER, "instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0})[2]
    check(mine["output"][0]["content"][0]["text"] == same["choices"][0]["message"]["content"], mine, same)
    for more, field in [({"input": None}, "input"), ({"input": 1}, "input"), ({"input": [{"type": "king"}]}, "input[0].type"), ({"tools": 1}, "tools"),
                        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"), ({"text": 1}, "text"),
                        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"), ({"temperature": "x"}, "temperature"),
                        ({"input": []}, "input"), ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"reasoning": {"effort": 1}}, "reasoning.effort"),
                        ({"text": {"format": {"type": "x"}}}, "text.format.type"), ({"max_output_tokens": 0}, "max_output_tokens")]:
        status, _, b = s.post(RESPONSES, {"model": "default", "input": "x", **more})
        check(status == 400 and b["error"]["param"] == field, more, status, b)


def check_held(s):
    a = s.post(CHAT, {"model": "default", "messages": USER, "grammar": "root ::= \"yes\" | \"no\"", "temperature": 2, "seed": 3})[2]["choices"][0]
    check(a["message"]["content"] in ("yes", "no") and a["finish_reason"] == "stop", a)
    schema = {"type": "object", "properties": {"animal": {"enum": ["fox", "crow"]}, "age": {"type": "integer"}},
              "required": ["animal", "age"], "additionalProperties": False}
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(5):
        a = s.post(CHAT, {"model": "default", "messages": USER, "response_format": held, "seed": seed, "max_tokens": 400})[2]["choices"][0]
        if a["finish_reason"] == "stop":
            v = json.loads(a["message"]["content"])
            check(v["animal"] in ("fox", "crow") and isinstance(v["age"], int) and len(v) == 2, v)
    text = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["fox"]}}}
    b = s.post(RESPONSES, {"model": "default", "input": "A fox", "text": text})[2]
    check(json.loads(b["output"][0]["content"][0]["text"]) == "fox", b)
    status, _, b = s.post(CHAT, {"model": "default", "messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://x"}}}})
    check(status == 400 and b["error"]["param"] == "response_format", status, b)
    status, _, b = s.post(CHAT, {"model": "default", "messages": USER, "grammar": "root := 1"})
    check(status == 400 and b["error"]["param"] == "grammar", status, b)


def main():
    with Server() as s:
        for part in (check_chat, check_anthropic, check_responses, check_held):
            part(s)
    finish()


main()

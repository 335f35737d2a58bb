#!/usr/bin/env python3
"""Anthropic's messages: whole and streamed, counted, the changing billing line, errors in the protocol's form."""
import json

from serve import Server, check, finish

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASK = {"max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": "Tell me a fable."}]}


def check_answers(s):
    status, _, a = s.post(MESSAGES, dict(ASK, model="default"))
    check(status == 200 and a["type"] == "message" and a["role"] == "assistant" and a["stop_reason"] == "max_tokens", a)
    same = s.post("/v1/chat/completions", dict(ASK, model="default"))[2]
    text = same["choices"][0]["message"]["content"]
    check([b["type"] for b in a["content"]] == ["text"] and a["content"][0]["text"] == text, a["content"], text)
    check(a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"] == same["usage"]["prompt_tokens"], a["usage"])
    check(s.post(COUNT, {"messages": ASK["messages"]})[2] == {"input_tokens": same["usage"]["prompt_tokens"]}, "count_tokens")
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Tell me a fable."}]}]
    check(s.post(MESSAGES, dict(ASK, messages=blocks))[2]["content"] == a["content"], "blocks of text make another prompt")
    stopped = s.post(MESSAGES, dict(ASK, stop_sequences=["Tortoise"]))[2]
    check(stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == "Tortoise", stopped)


def check_goes_on(s):
    """An answer goes on with a last message of the assistant, whose text is not in it."""
    whole = s.post(MESSAGES, dict(ASK, max_tokens=60))[2]["content"][0]["text"]
    cut = whole.index(" ", 40)
    begun = ASK["messages"] + [{"role": "assistant", "content": [{"type": "text", "text": whole[:cut]}]}]
    text = s.post(MESSAGES, dict(ASK, messages=begun))[2]["content"][0]["text"]
    check(len(text) > 20 and whole[cut:].startswith(text), whole[cut:], text)


def check_stream(s):
    whole = s.post(MESSAGES, ASK)[2]
    events = [(name, json.loads(d)) for name, d in s.stream(MESSAGES, dict(ASK, stream=True))]
    check(all(name == d["type"] for name, d in events), "an event's name is not its type")
    names = [name for name, _ in events if name not in ("ping", "content_block_delta")]
    check(names == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"], names)
    text = "".join(d["delta"]["text"] for name, d in events if name == "content_block_delta")
    check(text == whole["content"][0]["text"], "deltas do not add up to the whole", text)
    check(events[-2][1]["delta"]["stop_reason"] == "max_tokens" and events[-2][1]["usage"]["output_tokens"] == 24, events[-2])


def check_cache(s):
    """A line that changes with each request does not spoil the prefix."""
    story = "Once there was a fox. " * 60
    used = []
    for i in range(3):
        system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=%05x;" % (i * 7919)},
                  {"type": "text", "text": story}]
        turns = [{"role": "user", "content": "Go on %d." % k} if k % 2 == 0 else {"role": "assistant", "content": "He did."} for k in range(2 * i + 1)]
        used.append(s.post(MESSAGES, {"max_tokens": 1, "system": system, "messages": turns})[2]["usage"])
    check(used[0]["cache_read_input_tokens"] < 20 and all(u["input_tokens"] < 60 for u in used[1:]), used)


def check_schema(s):
    """Outputs that a schema holds, where the interface has them now and where it had them at first."""
    schema = {"type": "json_schema", "schema": {"type": "object", "properties": {"q": {"type": "boolean"}}, "required": ["q"], "additionalProperties": False}}
    for more in ({"output_config": {"format": schema, "effort": "low"}}, {"output_format": schema}):
        a = s.post(MESSAGES, dict(ASK, max_tokens=200, **more))[2]
        check(a["stop_reason"] == "end_turn" and list(json.loads(a["content"][0]["text"])) == ["q"], more, a)
    a = s.post(MESSAGES, dict(ASK, output_config={"effort": "low"}))[2]
    check(a["content"] == s.post(MESSAGES, ASK)[2]["content"], "a model that knows no effort answers otherwise", a)


def check_models(s):
    a = s.ask("GET", "/v1/models")[2]
    check(a["has_more"] is False and [a["first_id"], a["last_id"]] == [m["id"] for m in a["data"]], a)
    for m in a["data"]:
        check(m["type"] == "model" and m["display_name"] == "fables" and m["created_at"].endswith("Z"), m)
        check(s.ask("GET", "/v1/models/" + m["id"])[2] == m, m)
    check(s.ask("GET", "/v1/models/another")[0] == 404, "a model of another name is there")


WRONG = [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "x"}, "max_tokens"), ({"messages": []}, "messages"),
    ({"messages": None}, "messages"), ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": 1}]}]}, "messages[0].content[0].input"),
    ({"system": 1}, "system"), ({"system": [{"type": "text"}]}, "system[0].text"), ({"temperature": 1.5}, "temperature"), ({"top_p": "x"}, "top_p"),
    ({"top_k": -1}, "top_k"), ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [1]}, "stop_sequences[0]"), ({"stream": 1}, "stream"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"), ({"tools": [{"name": "f", "input_schema": 1}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "x"}}, "tool_choice.type"), ({"tool_choice": {"type": "tool"}}, "tool_choice.name"), ({"thinking": 1}, "thinking"),
    ({"thinking": {"type": "x"}}, "thinking.type"), ({"model": 1}, "model"), ({"output_config": {"effort": 1}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
]


def check_errors(s):
    for more, field in WRONG:
        status, _, a = s.post(MESSAGES, {**ASK, **more})
        check(status == 400 and a["type"] == "error" and a["error"]["type"] == "invalid_request_error" and
              a["error"]["message"].startswith(field + ": "), more, status, a)


def main():
    with Server() as s:
        for part in (check_answers, check_goes_on, check_stream, check_cache, check_schema, check_models, check_errors):
            part(s)
    with Server("--api-key", "k") as s:
        status, _, a = s.post(MESSAGES, ASK)
        check(status == 401 and a["error"]["type"] == "authentication_error", status, a)
        check(s.post(COUNT, {"messages": ASK["messages"]}, {"x-api-key": "k"})[0] == 200, "x-api-key")
    finish()


main()

#!/usr/bin/env python3
"""OpenAI's responses: prompts counted, errors that name their field; and what no protocol here offers: pictures, sound,
documents, embeddings."""
from serve import Server, check, finish

CHAT, MESSAGES, RESPONSES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/responses/input_tokens"
ASK = {"model": "default", "input": "Tell me a fable.", "max_output_tokens": 2, "temperature": 0}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}


def check_count(s):
    """The tokens that the same request's usage tells of."""
    said = [{"role": "user", "content": [{"type": "input_text", "text": "A fox"}]}, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "?"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "1"}]
    for more in ({}, {"instructions": "Be brief."}, {"tools": [TOOL]}, {"input": said, "tools": [TOOL]}, {"text": {"format": {"type": "json_object"}}}):
        answered, counted = s.post(RESPONSES, {**ASK, **more})[2], s.post(COUNT, {**ASK, **more})[2]
        check(counted == {"object": "response.input_tokens", "input_tokens": answered["usage"]["input_tokens"]}, more, counted, answered)
    check(s.post(COUNT, {"input": "x " * 9000})[2]["input_tokens"] > 9000, "a prompt that the context does not hold is not counted")


FORMAT = {"type": "json_schema", "name": "q"}
WRONG = [
    *[({name: value}, name) for name, values in {
        "model": [1, None], "input": [1, {}, None, []], "instructions": [1], "max_output_tokens": [0, "x"], "temperature": [3], "top_p": ["x"],
        "seed": [0.5], "stream": [1], "tools": [1, {}], "tool_choice": ["f"], "parallel_tool_calls": [1], "reasoning": [1], "text": [1],
        "previous_response_id": ["resp_1"]}.items() for value in values],
    ({"input": [1]}, "input[0]"), ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"), ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"), ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"), ({"input": [{"type": "function_call_output"}]}, "input[0].call_id"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type"), ({"tools": [{}]}, "tools[0].type"), ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"), ({"text": {"format": {}}}, "text.format.type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"text": {"format": FORMAT}}, "text.format.schema"),
    ({"text": {"format": {**FORMAT, "schema": "x"}}}, "text.format.schema"), ({"text": {"format": {**FORMAT, "json_schema": {}}}}, "text.format.json_schema.schema"),
    ({"text": {"format": {**FORMAT, "schema": {"type": "nonsense"}}}}, "text.format"),
]


def check_errors(s):
    for more, field in WRONG:
        for path in (RESPONSES, COUNT):
            if path == COUNT and "model" in more and more["model"] is None:
                continue                         # nobody has to say which model counts
            status, _, a = s.post(path, {**ASK, **more})
            check(status == 400 and a["error"]["param"] == field and a["error"]["type"] == "invalid_request_error", path, more, status, a)
    for path, body, field in ((CHAT, {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
                              (MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "output_config": {"format": {"type": "json_schema"}}},
                               "output_config.format.schema")):
        status, _, a = s.post(path, {"model": "default", **body})
        check(status == 400 and field + ": is missing" in a["error"]["message"], status, a)


def user(part):
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}]


def tool_result(part):
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [part]}]}]


PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
NO_TEXT = [
    *[(CHAT, {"messages": user(part)}, "messages[0].content[1].type") for part in (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}})],
    (CHAT, {"messages": [{"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    *[(RESPONSES, {"input": [{"role": "user", "content": [part]}]}, "input[0].content[0].type") for part in (
        {"type": "input_image", "image_url": "x"}, {"type": "input_file", "file_id": "f"})],
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].output[0].type"),
    *[(MESSAGES, {"max_tokens": 1, "messages": user({"type": kind, "source": PIXEL})}, "messages[0].content[1].type") for kind in ("image", "document")],
    (MESSAGES, {"max_tokens": 1, "messages": tool_result({"type": "image", "source": PIXEL})}, "messages[2].content[0].content[0].type"),
    (MESSAGES, {"max_tokens": 1, "system": [{"type": "image"}], "messages": []}, "system[0].type"),
]


def check_no_text(s):
    for path, body, field in NO_TEXT:
        status, _, a = s.post(path, {"model": "default", **body})
        said = a["error"]["message"]
        check(status == 400 and said.startswith(field + ": ") and "no pictures, sound or documents" in said, path, body, status, a)
        check(path == MESSAGES or a["error"]["param"] == field, a)
    status, _, a = s.post("/v1/embeddings", {"model": "default", "input": "x"})
    check(status == 404 and "embeddings" in a["error"]["message"], status, a)


def main():
    with Server() as s:
        for part in (check_count, check_errors, check_no_text):
            part(s)
    finish()


main()

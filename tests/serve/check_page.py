#!/usr/bin/env python3
"""The chat's page in headless Chromium, by keyboard alone: an answer comes, Esc stops one, a new chat holds nothing of the old
one, a message that got no answer comes back, an answer that was cut says so, reasoning and calls stay folded or open as the
user left them while the answer goes on. Skipped where there is no Chromium."""
import json
import sys
import tempfile

import browser
from serve import Server, check, finish

SHOWN = "[...talk.querySelectorAll('details')].map(d => [d.firstChild.textContent, d.open, d.lastChild.textContent])"


def ask(b, text):
    b.value("text.focus()")
    b.type(text)
    b.key("Enter")


def check_talk(s, b):
    ask(b, "Tell me about a fox.")
    b.wait("!running && messages.length == 2 && numbers.textContent")
    answer = b.value("messages[1].content")
    check(answer and b.value("talk.lastChild.innerText").split() == answer.split(), answer)
    check("tok/s" in b.value("numbers.textContent") and b.value("document.activeElement == text"), "numbers, or where keys go")
    b.type("one line")
    b.key("Enter", browser.SHIFT)
    b.type("and another")
    check(b.value("text.value") == "one line\nand another" and b.value("messages.length") == 2, b.value("text.value"))
    b.key("Enter")
    b.wait("running && messages.length == 3")
    b.key("Escape")
    b.wait("!running")
    b.wait("send.textContent == 'Send'")
    check(not b.value("!!document.querySelector('.error')"), "a stopped answer shows an error")
    b.value("text.value = ''")
    b.value("by('fresh').click()")


def check_new_chat(b):
    """A conversation that begins during an answer has nothing of the old one."""
    ask(b, "Tell me about a crow.")
    b.wait("running && document.querySelector('article').innerText.trim()")
    b.value("by('fresh').click()")
    b.wait("!running")
    check(b.value("messages.length") == 0 and not b.value("talk.innerText.trim()"), b.value("JSON.stringify(messages)"))
    check(not b.value("text.value"), "the old message came back into the new conversation")


def check_refused(b):
    """A message that the server refuses is left for another try."""
    long = "fox " * 20000
    b.value("text.value = %s" % json.dumps(long))
    b.value("by('form').requestSubmit()")
    b.wait("!running && document.querySelector('.error')")
    check(b.value("text.value") == long.strip() and b.value("messages.length") == 0, b.value("text.value.length"))
    b.value("text.value = ''")
    b.value("by('fresh').click()")


def check_folds(b):
    """The answer comes by hand, behind the comment of one that let its client wait: each piece is put into a stream, as
    the server would send it."""
    b.value("window.fetch = () => Promise.resolve(new Response(new ReadableStream({ start(c) { "
            "const put = t => c.enqueue(new TextEncoder().encode(t)); put(': not yet\\n\\n'); "
            "window.piece = d => put('data: ' + d + '\\n\\n'); } })))")
    ask(b, "?")
    b.wait("window.piece")

    def piece(**delta):
        b.value("piece(%s)" % json.dumps(json.dumps({"choices": [{"delta": delta}]})))

    def call(i, text, name=None):
        piece(tool_calls=[{"index": i, "id": "x", "function": {"name": name, "arguments": text} if name else {"arguments": text}}])

    piece(reasoning_content="First ")
    piece(content="Let me **see**.")
    call(0, '{"a":', "look")
    call(1, '{"b":', "find")
    b.wait(SHOWN + ".length == 3")
    for name in ("Reasoning", "Call of look"):
        b.value("[...talk.querySelectorAll('summary')].find(s => s.textContent == %s).focus()" % json.dumps(name))
        b.key("Enter")
    piece(reasoning_content="then.")
    call(0, "1}")
    call(1, "2}")
    want = [["Reasoning", True, "First then."], ["Call of look", False, '{"a":1}'], ["Call of find", True, '{"b":2}']]
    b.wait(SHOWN + ".at(-1)[2] == '{\"b\":2}'")
    check(b.value(SHOWN) == want, b.value(SHOWN))
    check(b.value("document.activeElement.textContent") == "Call of look", "the keyboard lost its place")
    b.value("piece(%s)" % json.dumps(json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]})))
    b.value("piece('[DONE]')")
    b.wait("!running")
    check(b.value(SHOWN) == want, b.value(SHOWN))
    check("(cut: " in b.value("talk.lastChild.innerText"), b.value("talk.lastChild.innerText"))


def main():
    if not browser.program:
        print("left out: there is no Chromium here")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="pfmoe-test-") as folder, Server() as s:
        with browser.Browser("http://127.0.0.1:%d/" % s.port, folder) as b:
            check_talk(s, b)
            check_new_chat(b)
            check_refused(b)
            check_folds(b)
    finish()


main()

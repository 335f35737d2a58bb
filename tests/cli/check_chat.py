#!/usr/bin/env python3
"""The chat in a real terminal (a pty): typing, pasting many lines, commands, Ctrl-C, saving, leaving."""
import json
import os
import re
import resource
import select
import time

import cli
from terminal import Chat


def conversation(home):
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.ask("Hello", "I am a very small model")
    c.ask("Tell me a fable about a fox.", "I see now they are quite sour")
    c.ask("/stats", "tok/s")
    c.ask("/undo", "taken back")
    c.ask("/regen", "I am a very small model")
    c.ask("/set temp 0.5", "temp is 0.5")
    c.ask("/set temp hot", "not a number")
    c.ask("/set temp 0", "temp is 0")
    c.ask("/nonsense", "no command")
    c.ask("/help", "/regen")
    c.ask("/system You are brief.", "You are brief")
    c.ask("/system -", "no system message")
    path = os.path.join(home, "saved.json")
    c.ask("/save " + path, "saved 2 messages")
    c.ask("/save /dev/full", "goes on")
    c.ask("/save /no/such/folder/x", "goes on")
    c.ask("/reset", "new conversation")
    c.ask("/set top-k 7", "top-k is 7")
    c.ask("/load " + path, "settings: .*top-k -(.|\n)*2 messages from")
    c.ask("/load /no/such/file", "as it was")
    # A bracketed paste is one message, whatever lines are in it; so are quoted and continued lines.
    c.type("\x1b[200~Who are\nyou?\x1b[201~", end="")
    c.ask("", "tiny demonstration model|very small model|only know the fables")
    c.type("Who are \\")
    c.ask("you?", "tiny demonstration model|very small model|only know the fables")
    c.ask("/quit", "")
    cli.check(c.status() == 0, "leaves with", 0)
    cli.check(os.path.exists(os.path.join(home, "pfmoe", "history")), "the history is kept")


def saved_messages(c, path):
    """What the conversation holds, as /save writes it."""
    c.ask("/save " + path, "saved \\d+ messages")
    with open(path, encoding="utf-8") as f:
        return [(m["role"], m["content"]) for m in json.load(f)["messages"]]


def messages_of_many_lines(home):
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    wanted = "one\n\ttwo\n\n/help caf\u00e9 \U0001f98a"
    c.type("\x1b[200~" + wanted.replace("\n", "\r") + "\x1b[201~", end="")
    c.ask("", "only know the fables")
    c.type("three \\")
    c.ask("four", "only know the fables")
    c.type('"""five')
    c.type("")
    c.ask('six"""', "only know the fables")
    users = [text for role, text in saved_messages(c, os.path.join(home, "lines.json")) if role == "user"]
    cli.check(users == [wanted, "three \nfour", "five\n\nsix"], "messages of many lines", users)
    c.ask("/quit", "")
    c.status()


def history(home):
    """What was typed in one chat comes back with the arrow up in the next, many lines as one message."""
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.type("\x1b[200~first\rline\x1b[201~", end="")
    c.ask("", "only know the fables")
    c.leave()
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.read_until(r"> $")
    c.type("\x1b[A", end="")
    c.ask("", "only know the fables")
    got = saved_messages(c, os.path.join(home, "history.json"))[:1]
    cli.check(got == [("user", "first\nline")], "the history brings back", got)
    c.leave()


def full_disk(home):
    """A file size limit stands for a full disk: the old file is whole, nothing is left beside it, the chat goes on."""
    path = os.path.join(home, "kept.json")
    with open(path, "w") as f:
        f.write("as it was")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))
    c = Chat("--temp", "0", home=home, setup=limit)
    c.read_until("/help lists the commands")
    c.ask("Tell me a fable about a fox.", "quite sour")
    c.ask("/save! " + path, "cannot write.*goes on")
    c.ask("Hello", "I am a very small model")
    c.leave()
    with open(path) as f:
        cli.check(f.read() == "as it was", "the old file is whole")
    names = os.listdir(home)
    cli.check(not [n for n in names if n.startswith("kept.json.")], "nothing is left beside it", names)


def never_unasked(home):
    """A file that holds something is replaced when the person says so, and keeps its mode, its links and its other
    names; an empty conversation replaces nothing."""
    path, link = os.path.join(home, "chat.json"), os.path.join(home, "link.json")
    with open(path, "w") as f:
        json.dump({"pfmoe_chat": 1, "messages": [{"role": "user", "content": "precious"}]}, f)
    with open(path, "rb") as f:
        was = f.read()
    os.chmod(path, 0o640)
    os.symlink("chat.json", link)
    is_as_it_was = lambda: open(path, "rb").read() == was
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.ask("/save " + path, "conversation is empty.*nothing is saved")
    c.ask("/save! " + path, "conversation is empty.*nothing is saved")
    cli.check(is_as_it_was(), "an empty conversation replaces nothing")
    c.ask("Hello", "I am a very small model")
    for answer in ("n", "", "yes please", "/save! " + path, "\x03"):
        c.ask("/save " + path, r"replace it\? \(y/n\) $")
        c.type(answer, end="" if answer == "\x03" else "\r")
        c.read_until("nothing is saved")
        cli.check(is_as_it_was(), "replaced after", repr(answer))
    c.ask("/save " + link, "replace it")
    c.ask("y", "saved 2 messages")
    cli.check(os.path.islink(link) and os.stat(path).st_mode & 0o777 == 0o640 and not is_as_it_was(), "link and mode")
    c.ask("/save! " + path, "saved 2 messages")
    os.chmod(path, 0o440)
    c.ask("/save! " + path, "chat.json: it is read-only")
    os.chmod(path, 0o640)
    os.link(path, os.path.join(home, "twin.json"))
    c.ask("/save! " + path, "chat.json: it has other names")
    c.ask("/save " + home, "not a regular file")
    cli.check(sorted(n for n in os.listdir(home) if ".json." in n) == [], "left behind", os.listdir(home))
    c.leave()


def zero_characters(home):
    """A message that holds U+0000 is loaded whole."""
    path = os.path.join(home, "zero.json")
    with open(path, "w") as f:
        json.dump({"pfmoe_chat": 1, "system": "a\0b", "messages": [
            {"role": "user", "content": "before\0after"}, {"role": "assistant", "content": "\0", "reasoning": "x\0y"}]}, f)
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.ask("/load " + path, "2 messages from")
    got = saved_messages(c, os.path.join(home, "zero-again.json"))
    cli.check(got == [("user", "before\ufffdafter"), ("assistant", "\ufffd")], "zero characters", got)
    c.ask("/system", "a\ufffdb")
    with open(path, "w") as f:
        json.dump({"pfmoe_chat": 1, "messages": [{"role": "user\0x", "content": "?"}]}, f)
    c.ask("/load " + path, "not a saved chat")
    os.mkfifo(os.path.join(home, "pipe"))
    c.ask("/load " + os.path.join(home, "pipe"), "not a regular file")
    with open(path, "w") as f:
        f.truncate(1 << 40)
    c.ask("/load " + path, "larger than")
    c.leave()


def without_colour(home):
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        c = Chat("--temp", "0", home=home, **env)
        c.read_until("/help lists the commands")
        c.ask("Hello", "to see some titles")
        c.leave()
        cli.check(not re.search(r"\x1b\[[0-9;]*m", c.raw), "colour in spite of", env, repr(c.raw))


def idle_interrupts(home):
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.read_until("> $")
    c.type("never mind", end="")
    c.read_until("never mind$")
    c.type("\x03", end="")
    c.read_until("\n> $")
    c.ask("Hello", "I am a very small model")
    got = saved_messages(c, os.path.join(home, "idle.json"))[:1]
    cli.check(got == [("user", "Hello")], "Ctrl-C drops what was typed", got)
    c.read_until("\n> $")
    c.type("\x03", end="")
    c.read_until("once more")
    c.type("\x03", end="")
    cli.check(c.status() == 0, "two at an empty prompt leave")


def interrupted_prompt(home):
    """Ctrl-C while the chat template runs."""
    slow = os.path.join(home, "slow.jinja")
    with open(slow, "w", encoding="ascii") as f:
        f.write("{% set s = range(100000) | join(',') %}{% for i in range(99999) %}{% set x = s | upper %}{% endfor %}")
    c = Chat("--template", slow, home=home)
    c.read_until("/help lists the commands")
    c.read_until("> $")
    for wait in (0.3, 0.1, 0.05, 0.2, 0.4):          # the template may end first, or not have begun
        c.type("hello")
        time.sleep(wait)
        os.write(c.fd, b"\x03")
        seen = c.read_until(r"\(stopped; Ctrl-C once more leaves\)|more than 10000000 steps")
        if "stopped" in seen:
            break
    cli.check("stopped" in seen, "Ctrl-C reaches the template:", seen)
    c.leave()


def interrupts(home):
    model = cli.synth(home)
    c = Chat("-m", model, "--ignore-eos", "-c", "200000", "--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.read_until("> $")
    c.type("go on for ever")
    # Until the editor has taken the terminal over, the terminal echoes too, and a Ctrl-C would drop what is still unread:
    # so more than the echoes and a prompt has to come, which only the answer can be.
    c.read_until("ever\n(?s:.{100})")
    os.write(c.fd, b"\x03")
    c.read_until("stopped")
    os.write(c.fd, b"\x03")
    status = c.status()
    cli.check(status == 0, "the second Ctrl-C leaves:", status, c.seen)
    c = Chat("--temp", "0", home=home)
    c.read_until("/help lists the commands")
    c.leave()


def with_memory(home, limit):
    """How a short chat ends that may have so many bytes of addresses."""
    c = Chat("--temp", "0", "-n", "3", "-t", "1", "-c", "512", home=home,
             setup=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    for line in ("Hello", "/quit"):
        end = time.monotonic() + 20
        while not re.search("(^|\n)> $", c.seen) and time.monotonic() < end:
            if select.select([c.fd], [], [], 0.05)[0]:
                try:
                    c.raw += os.read(c.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
                c.seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", c.raw)
        else:
            c.type(line)
            c.raw = c.seen = ""
    return c.status(), c.seen


def little_memory(home):
    """Where a chat just fits and in steps below, editing of lines included: it talks, or one sentence says what is missing."""
    low, high = 0, 1 << 33
    if with_memory(home, high)[0] != 0:
        print("left out: this build needs more than 8 GB of addresses")
        return
    while high - low > 1 << 16:
        middle = (low + high) // 2
        low, high = (low, middle) if with_memory(home, middle)[0] == 0 else (middle, high)
    for below in range(0, 640, 16):
        status, seen = with_memory(home, high - below * 1024)
        cli.check(status == 0 or (status == 1 and "pfmoe-run: " in seen), below, "KiB too little:", status, repr(seen))


def full_context(home):
    c = Chat("--temp", "0", "-c", "512", home=home)
    c.read_until("/help lists the commands")
    for _ in range(4):
        c.ask("Tell me a fable about a fox.", "quite sour|sees the oldest")
    c.ask("much too long " * 200, "the context holds 512")
    c.ask("Hello", "I am a very small model")
    c.ask("/quit", "")
    cli.check(c.status() == 0, "an overflowing context is no failure")


with cli.scratch() as folder:
    conversation(folder)
    messages_of_many_lines(folder)
    history(folder)
    full_disk(folder)
    never_unasked(folder)
    zero_characters(folder)
    without_colour(folder)
    idle_interrupts(folder)
    interrupted_prompt(folder)
    interrupts(folder)
    full_context(folder)
    little_memory(folder)
cli.finish()

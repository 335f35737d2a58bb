#!/usr/bin/env python3
"""What a chat does in a terminal besides talking: Ctrl-Z and fg, resizing, Ctrl-D, Tab, the editor, files in messages,
chats with their model, settings, keys and values."""
import json
import os
import re
import shutil
import subprocess
import sys
import time

import cli
import gguf_edit as gguf
from terminal import Chat

GREETING, PROMPT = "/help lists the commands", r"(^|\n)> $"
fables = sys.argv[4]


def chat(home, *args, **more):
    c = Chat("--temp", "0", *args, home=home, **more)
    c.read_until(GREETING)
    c.read_until(PROMPT)
    return c


def stopped_and_continued(home):
    """Under a shell with job control: Ctrl-Z gives the terminal back as it was, fg brings the line back as it was."""
    c = Chat("--norc", "--noprofile", "-i", home=home, program="bash", PS1="shell: ")
    c.ask("%s --temp 0" % cli.run_path, GREETING)
    c.read_until(PROMPT)
    c.type("Hel", end="")
    c.read_until("Hel$")
    c.type("\x1a", end="")
    c.read_until("Stopped(?s:.*)shell: ")
    cli.check(c.raw.rstrip().endswith("shell:") and "\x1b[?2004l" in c.raw[-400:], "pastes are marked no more", repr(c.raw[-400:]))
    seen = c.ask("stty -a", r"cread(?s:.*)shell: $")
    cli.check(" icanon" in seen and " echo " in seen, "the terminal is as it was", seen)
    c.ask("fg", r"> Hel")
    c.ask("lo", "I am a very small model")
    c.read_until(PROMPT)
    c.type("\x1a", end="")
    c.read_until("Stopped(?s:.*)shell: ")
    c.ask("fg", "> ")
    c.ask("/bye", "shell: $")
    c.type("exit")
    cli.check(c.status() == 0, "the shell ends")


def stopped_answer(home):
    c = Chat("--norc", "--noprofile", "-i", home=home, program="bash", PS1="shell: ")
    c.ask("%s -m %s --ignore-eos --temp 0 -n 4000" % (cli.run_path, cli.synth(home)), GREETING)
    c.read_until(PROMPT)
    c.type("go on")
    c.read_until("on\n(?s:.{100})")
    c.type("\x1a", end="")
    c.read_until("Stopped(?s:.*)shell: ")
    c.type("fg")
    c.read_until("(?s:.{200})")
    c.type("\x03", end="")
    c.read_until(r"stopped; Ctrl-C")
    c.ask("/exit", "shell: $")
    c.type("exit")
    cli.check(c.status() == 0, "the shell ends")


def resized(home):
    """A line that is wider than the terminal is drawn again for the new width."""
    c = chat(home, size=(24, 80))
    c.type("x" * 30, end="")
    c.read_until("x{30}")
    before = len(c.raw)
    c.resize(24, 20)
    c.read_until("> (?s:x.*x)")
    cli.check("x" * 30 not in c.raw[before:], "drawn for the new width", repr(c.raw[before:]))
    c.type("\x03", end="")
    c.leave()


def ended(home):
    c = chat(home)
    c.seen += "\n> "                                  # leave() looks for the prompt that chat() has read
    c.leave()
    cli.check(c.raw.endswith("\n"), "Ctrl-D ends with a newline", repr(c.raw[-20:]))
    for word in ("/bye", "/exit", "/quit"):
        c = chat(home)
        c.type(word)
        cli.check(c.status() == 0, word, "leaves")


def names_of_commands(home):
    c = chat(home)
    seen = c.ask("/?", "Ctrl-Z")
    manual = subprocess.run([sys.executable, *sys.argv[5:7], cli.run_path, sys.argv[7], "x"], capture_output=True, text=True, check=True)
    for name in ("help", "reset", "system", "set", "read", "edit", "regen", "undo", "save", "save!", "keep", "keep!", "load", "stats",
                 "quit", "?", "clear", "retry", "bye", "exit"):
        cli.check("/" + name in seen, name, "is in /help")
        cli.check("\\fB/%s\\fR" % name in manual.stdout, name, "is in the manual page")
    c.ask("Hello", "I am a very small model")
    c.ask("/retry", "I am a very small model")
    c.ask("/clear", "new conversation")
    c.ask("/retry", "no answer to make again")
    c.ask("/bye", "")
    cli.check(c.status() == 0, "leaves")


def completed_by_a_shell(home):
    """The options of the chat and their values, as bash completes them."""
    script = subprocess.run([sys.executable, sys.argv[5], "bash", cli.run_path], capture_output=True, text=True, check=True).stdout
    for words, wanted in (("--loa", "--load"), ("--think o", "on off"), ("--load %s/k" % home, home + "/kept"), ("--js", "--json --json-schema")):
        open(os.path.join(home, "kept"), "w").close()
        line = "%s\nCOMP_WORDS=(pfmoe-run %s); COMP_CWORD=%d; _pfmoe_run; echo ${COMPREPLY[@]}" % (script, words, len(words.split()))
        got = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.strip()
        cli.check(got == wanted, "bash completes", words, "to", got)


def settings(home):
    c = chat(home)
    c.ask("/set tokens 3", "tokens is 3")
    c.ask("Hello", "cut after 3 tokens")
    c.ask("/set tokens -", "tokens is -1")
    c.ask("Hello", "to see some titles")
    c.ask("/set tokens -1", "tokens is -1")
    c.ask("/set temp", "temp is 0")
    c.ask("/set temp 0.25", "temp is 0.25")
    c.ask("/set temp -", r"temp is 0\.\d")
    c.ask("/set think", "think is on")
    c.ask("/set nothink", "think is off")
    c.ask("/set think auto", "think is auto")
    c.ask("/set think maybe", "none of auto")
    c.ask("/quit", "")
    c.status()


def completed(home):
    """Tab at commands, settings, values and paths; what could be several things is listed, names with controls are not."""
    folder = os.path.join(home, "some folder")
    os.mkdir(folder)
    for name in ("alpha.json", "alps.json", "beta.txt", ".hidden", "caf\u00e9", "x\x1b[31mred", "x\u202eoverride"):
        with open(os.path.join(folder, name), "w") as f:
            f.write("A line of " + name)
    c = chat(home, folder=home)
    for typed, shown in (("/he\t", "/help $|/help$"), ("/sta\t", "/stats"), ("/sy\t", "/system "), ("/set thi\to\t\t", r"off(?s:.*)on(?s:.*)think o"),
                         ("/read some\tb\t", "some ?folder/beta.txt"), ("/load ~/some\tal\t\t", r"alpha.json(?s:.*)alps.json(?s:.*)/alp"),
                         ("/read some folder/.h\t", ".hidden"), ("/read %s/c\t" % folder, "caf\u00e9"), ("/q\t", "/quit")):
        c.type(typed, end="")
        c.read_until(shown)
        c.type("\x03", end="")
        c.read_until(PROMPT)
    before = len(c.raw)
    c.type("/read some folder/\t\t", end="")
    c.read_until("beta.txt")
    cli.check("red" not in c.raw[before:] and "override" not in c.raw[before:], "names with controls", repr(c.raw[before:]))
    c.type("\x03", end="")
    c.read_until(PROMPT)
    c.type("plain\ttext and \t/tmp", end="")
    c.read_until("plaintext ?and ?/tmp")
    c.type("\x03", end="")
    c.read_until(PROMPT)
    c.ask("/quit", "")
    c.status()


def saved_users(c, path):
    c.ask("/save! " + path, r"saved \d+ messages")
    with open(path.replace("~", os.environ["HOME_OF_TEST"]), encoding="utf-8") as f:
        return [m["content"] for m in json.load(f)["messages"] if m["role"] == "user"]


def files_in_messages(home):
    os.environ["HOME_OF_TEST"] = home
    for name, text in (("first.txt", b"Tell me a fable\n"), ("second.txt", b"about a fox.\xff\n\n"), ("zero", b"a\0b"), ("dir/x", b"")):
        os.makedirs(os.path.dirname(os.path.join(home, name)), exist_ok=True)
        with open(os.path.join(home, name), "wb") as f:
            f.write(text)
    c = chat(home)
    c.ask("/read ~/first.txt", r"first.txt: 15 bytes, which go behind the next message")
    c.ask("/read ~/second.txt", r"second.txt: \d+ bytes")
    for name, why in (("zero", "zero byte"), ("dir", "not a regular file"), ("absent", "No such file")):
        c.ask("/read ~/" + name, why)
    c.ask("Please:", PROMPT)
    c.ask("/read", "/read FILE")
    got = saved_users(c, "~/files.json")
    cli.check(got == ["Please:\n\nTell me a fable\n\nabout a fox.\ufffd"], "files in a message", got)
    c.ask("/read ~/first.txt", "next message")
    c.ask("/clear", "new conversation")
    c.ask("Hello", "I am a very small model")
    cli.check(saved_users(c, "~/files.json") == ["Hello"], "/clear drops what was read")
    c.ask("/quit", "")
    c.status()


def file_called_dash(home):
    """Is a file: who types is not made to wait for what he would type as the contents of one."""
    folder = os.path.join(home, "dash")
    os.mkdir(folder)
    c = chat(home, folder=folder)
    c.ask("Hello", "I am a very small model")
    c.ask("/keep -", r"saved 2 messages(?s:.*)keys and values of \d+ tokens")
    c.ask("/load -", r"keys and values of \d+ tokens(?s:.*)2 messages from")
    c.ask("/read -", r"-: \d+ bytes, which go behind the next message")
    c.ask("/quit", "")
    c.status()
    c = chat(home, "--load", "-", folder=folder)
    cli.check("2 messages from" in c.raw, "--load", c.raw)
    c.ask("/quit", "")
    c.status()


def edited(home):
    """The editor gets what was taken back; what it leaves is sent, nothing if it fails or leaves nothing."""
    os.environ["HOME_OF_TEST"] = home
    editor = os.path.join(home, "an editor")
    with open(editor, "w") as f:
        f.write('#!/bin/sh\ncat "$1" >> "$HOME/seen"\n. "$HOME/do"\n')
    os.chmod(editor, 0o755)
    do = lambda line: open(os.path.join(home, "do"), "w").write(line)
    c = chat(home, EDITOR="'%s'" % editor, VISUAL="", TMPDIR=home)
    c.seen = ""
    do('sed -i s/^/x/ "$1"; exit 3')
    c.ask("/edit some text", "status 3")
    do(': > "$1"')
    c.ask("/edit", "text is empty")
    do('printf "Hello\\n" > "$1"')
    c.ask("/edit", "I am a very small model")
    c.ask("/undo", "taken back")
    do('kill -INT $PPID; printf "/help is a word\\n" >> "$1"')
    c.ask("/edit", "> Hello\n/help is a word\n(?s:.+)\n> $")
    got = saved_users(c, "~/edited.json")
    cli.check(got == ["Hello\n/help is a word"], "what was taken back, edited", got)
    with open(os.path.join(home, "seen")) as f:
        cli.check(f.read() == "some text\nHello\n", "what the editor saw")
    cli.check(not [n for n in os.listdir(home) if n.startswith("pfmoe-")], "drafts are left behind")
    c.ask("/quit", "")
    c.status()


def loaded(home):
    """/keep and /load bring model, settings, keys and values along; --load does so from the beginning."""
    model, other, path = os.path.join(home, "fables.gguf"), cli.synth(home), os.path.join(home, "kept.json")
    shutil.copy(fables, model)
    c = chat(home, "-m", model)
    c.ask("/set top-k 7", "top-k is 7")
    c.ask("/set think off", "think is off")
    c.ask("Hello", "I am a very small model")
    c.ask("/keep ~/kept.json", r"saved 2 messages(?s:.*)keys and values of \d+ tokens, [\d.]+ MB, to .*kept.json.kv")
    c.ask("/keep ~/kept.json", "replace it")
    c.ask("y", r"kept.json.kv is there already(?s:.*)replace it")
    c.ask("n", "nothing is saved")
    c.ask("/keep! ~/kept.json", "keys and values of")
    c.ask("/quit", "")
    c.status()
    cli.check(os.stat(path + ".kv").st_mode & 0o777 == 0o600, "keys and values are private")

    c = chat(home, "-m", other)
    seen = c.ask("/load ~/kept.json", r"(?s:> Hello\n.*)see some titles")
    for line in (r"model: .*fables.gguf", r"settings: .*top-k 7", r"keys and values of \d+ tokens", "2 messages from"):
        cli.check(re.search(line, seen), "/load says", line, seen)
    c.ask("/set top-k", "top-k is 7")
    c.ask("/set think", "think is on")
    c.ask("Tell me a fable about a fox.", "quite sour")
    known = int(re.search(r"(\d+) of them known", c.ask("/stats", "known from before")).group(1))
    cli.check(known > 30, "keys and values were of use:", known)
    c.ask("/quit", "")
    c.status()

    c = Chat("--load", path, "--top-k", "9", home=home)
    seen = c.read_until(r"see some titles")
    cli.check("2 messages from" in seen and "keys and values of" in seen, seen)
    c.ask("/set top-k", "top-k is 9")
    c.ask("/quit", "")
    c.status()

    os.remove(model)
    r = cli.run("--load", path, "-p", "x")
    cli.check(r.returncode == 2 and b"--load belongs" in r.stderr, r.stderr)
    c = Chat("--load", path, home=home)
    c.read_until("fables.gguf, which is not there; -m names another")
    cli.check(c.status() == 1, "a model that is gone")
    c = chat(home, "-m", other)
    c.ask("/load ~/kept.json", r"saved with .*fables.gguf: there is no such file; the model stays(?s:.*)of no use(?s:.*)2 messages")
    with open(path + ".kv", "wb") as f:
        f.write(b"nonsense")
    c.ask("/load ~/kept.json", r"of no use(?s:.*)2 messages")
    for made in ({"model": "/dev/zero"}, {"model": home}, {"model": 7, "settings": 3}, {"settings": {"temp": "hot", "model": "x", "n" * 99: "1"}},
                 {"settings": {str(i): "1" for i in range(999)}}, {"model": "\x1b[31m", "settings": {"temp": 1}}):
        with open(path, "w") as f:
            json.dump({"pfmoe_chat": 1, "messages": [], **made}, f)
        c.ask("/load ~/kept.json", "0 messages from")
    pairs, tensors = gguf.read(other)
    for key, why in (("tokenizer.ggml.model", "it has no tokenizer"), ("tokenizer.chat_template", "it has no chat template")):
        lacking = gguf.write(os.path.join(home, "lacking.gguf"), {k: v for k, v in pairs.items() if k != key}, tensors)
        with open(path, "w") as f:
            json.dump({"pfmoe_chat": 1, "messages": [], "model": lacking}, f)
        c.ask("/load ~/kept.json", r"lacking.gguf: %s.*; the model stays(?s:.*)0 messages from" % why)
    c.ask("/set temp 0", "temp is 0")
    c.ask("/set tokens 3", "tokens is 3")
    c.ask("Hello", "tokens")
    c.ask("/quit", "")
    cli.check(c.status() == 0, "leaves")
    cli.check("\x1b[31m" not in c.raw, "a model's name is cleaned")


def plain(raw):
    """What is shown, without styles and without the bar that is drawn while a model is loaded."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r(?=\n)|\rloading[^\r]*|\r", "", raw)


def wrapped(home):
    """Answers are broken between words at the terminal's width, whatever it is meanwhile; elsewhere no byte differs."""
    asked = ("--temp", "0", "-p", "Tell me a fable about a fox.")
    text = json.loads(cli.run(*asked, "--json").stdout)["text"]
    cli.check(cli.run(*asked).stdout == (text + "\n").encode(), "an answer in a pipe is as it is")
    for columns in (30, 80):
        c = Chat(*asked, home=home, size=(24, columns))
        cli.check(c.status() == 0, "ends")
        lines = plain(c.raw).rstrip("\n").split("\n")
        cli.check(max(map(len, lines)) <= columns and len(lines) > len(text) / columns, "lines of", columns, lines)
        cli.check(" ".join(plain(c.raw).split()) == " ".join(text.split()), "the answer at", columns, plain(c.raw))
    raw = Chat(*asked, "--raw", "-n", "60", home=home, size=(24, 30))
    cli.check(raw.status() == 0 and max(map(len, plain(raw.raw).split("\n"))) > 30, "a completed text is not broken", raw.raw)
    c = chat(home, size=(24, 60))
    c.ask("Hello", "I am a very small model(?s:.*)\n> $")
    c.resize(24, 25)
    time.sleep(0.1)
    before = len(c.raw)
    c.ask("Tell me a fable about a fox.", "quite(?s:.)sour(?s:.*)\n> $")
    lines = plain(c.raw[before:]).split("The Fox And")[-1].split("\n")
    cli.check(max(map(len, lines)) <= 25, "lines after resizing", lines)
    c.ask("/quit", "")
    c.status()


def markdown(home):
    """Every character of markdown is shown; what it means has a style, where there is colour; code is not broken."""
    text = ("# A heading\n\nSome **strong words** and `code` here.\n\n- an item that is longer than a line of this terminal\n\n"
            "```\nfor (int i = 0; i < 100; i++) **x = `y`;\n```\nthe end")
    path = os.path.join(home, "markdown.json")
    with open(path, "w") as f:
        json.dump({"pfmoe_chat": 1, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]}, f)
    c = chat(home, size=(40, 30))
    c.ask("/load " + path, "the end")
    raw = c.raw.replace("\r", "")
    for part in ("\x1b[1m# A heading", "\x1b[1m**strong words**\x1b[0m", "\x1b[36m`code`\x1b[0m",
                 "- an item that is longer than\n  a line of this terminal", "\nfor (int i = 0; i < 100; i++) **x = `y`;\n"):
        cli.check(part in raw, "shown as", repr(part), repr(raw[-600:]))
    c.ask("/quit", "")
    c.status()
    c = chat(home, size=(40, 30), NO_COLOR="1")
    c.ask("/load " + path, "the end")
    cli.check("Some **strong words** and\n`code` here." in c.raw.replace("\r", ""), "without colour", repr(c.raw))
    c.ask("/quit", "")
    c.status()


with cli.scratch() as folder:
    for i, test in enumerate((stopped_and_continued, stopped_answer, resized, ended, names_of_commands, completed_by_a_shell, settings, completed,
                              files_in_messages, file_called_dash, edited, loaded, wrapped, markdown)):
        home = os.path.join(folder, str(i))
        os.mkdir(home)
        test(home)
cli.finish()

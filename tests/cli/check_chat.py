#!/usr/bin/env python3
"""The chat in a real terminal (a pty): typing, pasting many lines, commands, Ctrl-C, saving, leaving."""
import os
import pty
import re
import select
import signal
import time

import cli


class Chat:
    def __init__(self, *args, home):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", HOME=home, XDG_STATE_HOME=home)
            os.execv(cli.run_path, [cli.run_path, *args])
        self.seen = ""

    def read_until(self, pattern, seconds=20):
        """Everything up to a match, without colours and cursor movements; the match must come in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = re.search(pattern, self.seen)
            if m:
                text, self.seen = self.seen[: m.end()], self.seen[m.end():]
                return text
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    break
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", data.decode("utf-8", "replace"))
        cli.check(False, "waited for", pattern, "saw", self.seen)
        return self.seen

    def type(self, text, end="\r"):
        os.write(self.fd, (text + end).encode())

    def ask(self, text, pattern):
        self.type(text)
        return self.read_until(pattern)

    def leave_with(self, key):
        """Exit status after pressing the key, again if need be: one that falls into the instant between the prompt and
        the reading of it is lost."""
        for _ in range(5):
            os.write(self.fd, key)
            status = self.status(2, kill=False)
            if status is not None:
                return status
        return self.status(1)

    def status(self, seconds=20, kill=True):
        """Exit status, once the program has left; what it still prints is read, or it could not leave."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            try:
                if select.select([self.fd], [], [], 0)[0]:
                    os.read(self.fd, 65536)
            except OSError:
                pass
            time.sleep(0.02)
        if not kill:
            return None
        os.kill(self.pid, signal.SIGKILL)
        return "still there"


def conversation(home):
    c = Chat("--temp", "0", home=home)
    c.read_until(r"/help lists the commands[^>]*> ")
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
    c.ask("/load " + path, "2 messages from")
    c.ask("/load /no/such/file", "as it was")
    # A bracketed paste is one message, whatever lines are in it; so are quoted and continued lines.
    c.type("\x1b[200~Who are\nyou?\x1b[201~", end="")
    c.ask("", "tiny demonstration model|very small model|only know the fables")
    c.type("Who are \\")
    c.ask("you?", "tiny demonstration model|very small model|only know the fables")
    c.ask("/quit", "")
    cli.check(c.status() == 0, "leaves with", 0)
    cli.check(os.path.exists(os.path.join(home, "pfmoe", "history")), "the history is kept")


def interrupts(home):
    model = cli.synth(home)
    c = Chat("-m", model, "--ignore-eos", "-c", "200000", "--temp", "0", home=home)
    c.read_until(r"/help lists the commands[^>]*> ")
    c.type("go on for ever")
    c.read_until("ever\n")
    time.sleep(0.7)                      # the answer is being written by now, and takes minutes
    os.write(c.fd, b"\x03")
    c.read_until(r"stopped[^>]*> ")
    status = c.leave_with(b"\x03")
    cli.check(status == 0, "the second Ctrl-C leaves:", status, c.seen)
    c = Chat("--temp", "0", home=home)
    c.read_until(r"/help lists the commands[^>]*> ")
    status = c.leave_with(b"\x04")
    cli.check(status == 0, "Ctrl-D leaves:", status, c.seen)


def full_context(home):
    c = Chat("--temp", "0", "-c", "512", home=home)
    c.read_until(r"/help lists the commands[^>]*> ")
    for _ in range(4):
        c.ask("Tell me a fable about a fox.", "quite sour|sees the oldest")
    c.ask("/quit", "")
    cli.check(c.status() == 0, "an overflowing context is no failure")


with cli.scratch() as folder:
    conversation(folder)
    interrupts(folder)
    full_context(folder)
cli.finish()

"""A program in a real terminal (a pty): what it shows is read and waited for, and keys are typed."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import cli


class Chat:
    """pfmoe-run, or another program, in a terminal; size: (rows, columns), without it the terminal knows none."""

    def __init__(self, *args, home, setup=None, program=None, size=None, folder=None, **env):
        program = program or os.path.abspath(cli.run_path)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if setup:
                setup()
            if folder:
                os.chdir(folder)
            time.sleep(0.1 if size else 0)           # until the terminal has its size
            os.execvpe(program, [program, *args],
                       cli.environment(**{"TERM": "xterm", "HOME": home, "XDG_STATE_HOME": home, **env}))
        self.seen = self.raw = ""
        if size:
            self.resize(*size)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, pattern, seconds=60):
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
                self.raw += data.decode("utf-8", "replace")
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\a]", "", data.decode("utf-8", "replace"))
        cli.check(False, "waited for", pattern, "saw", self.seen)
        return self.seen

    def type(self, text, end="\r"):
        os.write(self.fd, (text + end).encode())

    def ask(self, text, pattern):
        self.type(text)
        return self.read_until(pattern)

    def leave(self):
        """Ctrl-D at the prompt: the editor has the terminal before it draws it, so one is enough."""
        self.read_until(r"(^|\n)> $")
        self.type("", end="\x04")
        status = self.status()
        cli.check(status == 0, "Ctrl-D leaves:", status, self.seen)

    def drain(self):
        try:
            while select.select([self.fd], [], [], 0)[0]:
                data = os.read(self.fd, 65536)
                if not data:
                    return
                self.raw += data.decode("utf-8", "replace")
        except OSError:
            pass

    def status(self, seconds=60):
        """Exit status, once the program has left; what it still prints is read, or it could not leave."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.drain()
                return os.waitstatus_to_exitcode(status)
            try:
                if select.select([self.fd], [], [], 0)[0]:
                    self.raw += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:
                pass
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        return "still there"

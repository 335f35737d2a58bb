#!/usr/bin/env python3
"""Models by name, against a server here that stands in for the hub: what is fetched, the cache's layout, and transfers that break in
every way a network has. Also the words of other engines' command lines."""
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from cli import check, environment, finish, run, run_path, scratch

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "fables.gguf")
COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
DATA = bytes(i * 7919 >> 3 & 255 for i in range(300000))
PIECE = 2 << 20                                                     # what is written of a file at once


class Hub(http.server.BaseHTTPRequestHandler):
    """How it breaks is told by Hub.plan, an entry for each request of a file; past its end all goes well."""
    protocol_version = "HTTP/1.1"
    files, plan, asked, lists = {}, [], [], []
    gated = False

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self):
        self.wfile.flush()
        self.connection.close()
        self.close_connection = True

    def listing(self):
        siblings = [{"rfilename": ".gitattributes", "size": 3, "blobId": "a" * 40}]
        for name, data in Hub.files.items():
            siblings.append({"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest(),
                             "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}})
        return {"id": "o/r", "sha": COMMIT, "siblings": siblings}

    def do_GET(self):
        self.token = self.headers.get("Authorization")
        if Hub.gated and self.token != "Bearer secret":
            return self.reply(401, b"no")
        if self.path.startswith("/api/"):
            if self.path != "/api/models/o/r/revision/main?blobs=true":
                return self.reply(404)
            how = Hub.lists.pop(0) if Hub.lists else None
            if isinstance(how, int):
                return self.reply(how)
            return self.reply(200, how if isinstance(how, bytes) else json.dumps(how or self.listing()).encode())
        Hub.asked.append((self.path, self.headers.get("Range"), self.token))
        how = Hub.plan.pop(0) if Hub.plan else "well"
        prefix = "/o/r/resolve/%s/" % COMMIT
        name = self.path[len(prefix):] if self.path.startswith(prefix) else None
        if name not in Hub.files and not self.path.startswith("/elsewhere/"):
            return self.reply(404)
        data = Hub.files[name] if name in Hub.files else Hub.files[self.path[len("/elsewhere/"):]]
        begin = int(re.match(r"bytes=(\d+)-$", self.headers["Range"]).group(1)) if self.headers.get("Range") else 0
        part, status = data[begin:], 206 if begin else 200
        span = {"Content_Range": "bytes %d-%d/%d" % (begin, len(data) - 1, len(data))} if begin else {}
        if begin >= len(data) and begin:
            return self.reply(416)
        if isinstance(how, int):
            return self.reply(how, b"broken")
        if how == "cut":                                            # fewer bytes than were announced
            self.reply(status, part[:len(part) // 2], Content_Length=str(len(part)), **span)
            return self.hang_up()
        if how == "cut at once":
            return self.hang_up()
        if how == "short":                                          # announced as short
            return self.reply(status, part[:-1000], **span)
        if how == "long":
            return self.reply(status, part + b"more" * 1000, **span)
        if how == "wrong":
            return self.reply(status, bytes(len(part)), **span)
        if how == "range ignored":
            return self.reply(200, data)
        if how == "wrong range":
            return self.reply(206, data[:len(part)], Content_Range="bytes 0-%d/%d" % (len(part) - 1, len(data)))
        if how == "no range said":
            return self.reply(206, part)
        if how == "stall":
            self.reply(status, part[:1000], Content_Length=str(len(part)), **span)
            self.wfile.flush()
            time.sleep(3)
            return self.hang_up()
        if how == "slow":
            self.reply(status, part[:-100000], Content_Length=str(len(part)), **span)
            self.wfile.flush()
            time.sleep(20)
            return self.hang_up()
        if how == "chunks cut":
            self.reply(status, b"%x\r\n%s\r\n" % (5000, part[:5000]), Transfer_Encoding="chunked", **span)
            return self.hang_up()
        if how == "garbage":
            self.wfile.write(b"\0\1\2 this is no HTTP\r\n\r\n")
            return self.hang_up()
        if isinstance(how, tuple):                                  # a redirect
            return self.reply(302, b"over there", Location=how[0])
        return self.reply(status, part, **span)


class Server:
    def __init__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None                  # a program that hangs up is no error here
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = self.server.server_address[1]


def hub_env(folder, port, **more):
    env = environment(HF_ENDPOINT="http://127.0.0.1:%d" % port, HF_HUB_CACHE=os.path.join(folder, "hub"), HOME=folder,
                      HF_HUB_DOWNLOAD_TIMEOUT="1", **more)
    return env


def pull(env, name="o/r:Q4_K_M", plan=(), lists=()):
    Hub.plan, Hub.lists, Hub.asked = list(plan), list(lists), []
    return run("pull", name, env=env)


def blob_of(env, data):
    return os.path.join(env["HF_HUB_CACHE"], "models--o--r", "blobs", hashlib.sha256(data).hexdigest())


def whole(env, data=DATA):
    try:
        with open(blob_of(env, data), "rb") as f:
            return f.read() == data
    except OSError:
        return False


def check_layout(folder, port):
    env = hub_env(folder, port)
    r = pull(env)
    repo = os.path.join(env["HF_HUB_CACHE"], "models--o--r")
    link = os.path.join(repo, "snapshots", COMMIT, "m-Q4_K_M.gguf")
    check(r.returncode == 0 and r.stdout.decode().strip() == link, "path", r)
    check(os.readlink(link) == "../../blobs/" + hashlib.sha256(DATA).hexdigest(), "a relative link")
    check(open(os.path.join(repo, "refs", "main"), encoding="ascii").read() == COMMIT, "ref")
    check(sorted(os.listdir(os.path.join(repo, "blobs"))) == [hashlib.sha256(DATA).hexdigest()], "nothing incomplete is left")
    pull(env)
    check(not Hub.asked, "what is there is not fetched again", Hub.asked)
    r = run("list", env=env)
    check(b"o/r:m-Q4_K_M.gguf" in r.stdout and r.stdout.count(b"\n") == 1, "list", r)
    # Another file of the same commit, in a folder, in two shards.
    r = pull(env, "o/r:q8_0")
    check(r.returncode == 0 and r.stdout.strip().endswith(b"big/m-Q8_0-00001-of-00002.gguf") and len(Hub.asked) == 2, "shards", r)
    check(os.path.realpath(r.stdout.decode().strip().replace("00001", "00002", 1)).startswith(os.path.realpath(repo)), "second shard")
    check(run("list", env=env).stdout.count(b"\n") == 2, "two models, one of them in two files")
    r = run("rm", "o/r:Q8_0", env=env)
    check(r.returncode == 0 and len(os.listdir(os.path.join(repo, "blobs"))) == 1 and os.path.exists(link), "rm takes one model", r)
    check(run("rm", "o/r:Q8_0", env=env).returncode == 1, "rm again")
    r = run("rm", "o/r", env=env)
    check(r.returncode == 0 and not os.listdir(os.path.join(repo, "blobs")), "rm all", r)
    r = run("list", env=env)
    check(r.returncode == 0 and not r.stdout and r.stderr.count(b"\n") == 1 and b"no models" in r.stderr, "an empty list", r)


def check_at_once(folder, port):
    """Several programs ask for what is there already: none fails, and whoever opens the file meanwhile finds it."""
    env = hub_env(folder, port)
    link = pull(env).stdout.decode().strip()
    missed = 0
    for _ in range(6):
        asking = [subprocess.Popen([run_path, "pull", "o/r:Q4_K_M"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                  for _ in range(6)]
        while any(p.poll() is None for p in asking):
            missed += not os.path.exists(link)
        for p in asking:
            out, err = p.communicate()
            check(p.returncode == 0 and out.decode().strip() == link, "at once", err)
    check(missed == 0, "the file was missing", missed, "times")
    repo = os.path.join(env["HF_HUB_CACHE"], "models--o--r")
    check(sorted(os.listdir(repo)) == ["blobs", "refs", "snapshots"], "what is left", os.listdir(repo))


def check_choice(folder, port):
    env = hub_env(folder, port)
    for name, said in (("o/r", None), ("o/r:Q5", b'no "Q5"'), ("o/r:m-Q4_K_M.gguf", None), ("o/r:nosuch.gguf", b"nosuch"),
                       ("o/x", b"no o/x"), ("o", b"is not owner/repo"), ("../r", b"is not"), ("o/r:../../x.gguf", b"is not"),
                       ("o/r/x", b"is not"), ("o/..", b"is not"), ("", b"is not"), ("o/r:IQ9", b"there is"),
                       ("o/r:F16", b"00002-of-00002")):
        r = pull(env, name)
        check((r.returncode == 0) == (said is None) and (said or b"") in r.stderr, "choice", name, r)
    check(run("pull", env=env).returncode == 2 and run("list", "x", env=env).returncode == 2, "words")


def check_broken(folder, port):
    """Each kind of broken transfer: whether the file is whole in the end, of how many requests."""
    here, other = "http://127.0.0.1:%d/elsewhere/m-Q4_K_M.gguf" % port, "http://localhost:%d/elsewhere/m-Q4_K_M.gguf" % port
    cases = {
        "cut": (["cut"], True, 2), "cut often": (["cut"] * 8, True, 9), "hung up": (["cut at once"], True, 2),
        "500": ([500], True, 2), "503 always": ([503] * 9, False, 5),
        "429": ([429, 429], True, 3), "404": ([404], False, 1), "403": ([403], False, 1), "short": (["short"], True, 2),
        "long": (["long"], True, 2), "cut and long in turn": (["cut", "long"] * 20, False, 10), "wrong": (["wrong"], True, 2),
        "wrong always": (["wrong"] * 9, False, 2), "range ignored": (["cut", "range ignored"], True, 2),
        "wrong range": (["cut", "wrong range"], True, 3), "no range said": (["cut", "no range said"], True, 3),
        "416": (["cut", 416], True, 3), "stall": (["stall"], True, 2), "chunks": (["chunks cut"], True, 2),
        "garbage": (["garbage"], False, 1), "redirect": ([(here,)], True, 2), "other host": ([(other,)], True, 2),
        "circle": ([("/o/r/resolve/%s/m-Q4_K_M.gguf" % COMMIT,)] * 99, False, 11),
        "to a file": ([("file:///etc/passwd",)], False, 1), "to nowhere": ([("http://127.0.0.1:1/x",)], True, 2),
        "teapot": ([418], False, 1),
    }
    for number, (name, (plan, ends_well, n)) in enumerate(cases.items()):
        env = hub_env(os.path.join(folder, "b%d" % number), port, HF_TOKEN="secret")
        r = pull(env, plan=plan)
        check((r.returncode == 0) == ends_well == whole(env), name, r)
        check(len(Hub.asked) == n, name, "requests", len(Hub.asked), "for", n)
        check(ends_well or (r.stderr.count(b"pfmoe-run:") == 1 and not r.stdout), name, "one sentence", r)
        check(ends_well or pull(env).returncode == 0 and whole(env), name, "goes on later")
        if name == "other host":
            check([t for _, _, t in Hub.asked] == ["Bearer secret", None], "the token stays with its host", Hub.asked)


def check_left_over(folder, port):
    """What an earlier run left: a part, a part that is wrong, and more than there can be."""
    for number, (left, asks) in enumerate(((DATA[:1234], ["bytes=1234-"]), (bytes(1234), ["bytes=1234-", None]),
                                           (DATA + b"x", [None]), (DATA, []))):
        env = hub_env(os.path.join(folder, "l%d" % number), port)
        os.makedirs(os.path.dirname(blob_of(env, DATA)))
        with open(blob_of(env, DATA) + ".incomplete", "wb") as f:
            f.write(left)
        r = pull(env)
        check(r.returncode == 0 and whole(env) and [a[1] for a in Hub.asked] == asks, "left over", len(left), r, Hub.asked)


def check_lists_that_lie(folder, port):
    def listing(**changes):
        entry = {"rfilename": "m-Q4_K_M.gguf", "size": len(DATA), "blobId": "b" * 40,
                 "lfs": {"sha256": hashlib.sha256(DATA).hexdigest(), "size": len(DATA)}}
        lfs = dict(entry["lfs"], **{k: v for k, v in changes.items() if k in entry["lfs"]})
        entry.update({k: v for k, v in changes.items() if k == "rfilename"}, lfs=lfs)
        return {"sha": changes.get("commit", COMMIT), "siblings": [entry]}
    bad = [b"{", b"[]", b"null", b"", b"{}", listing(rfilename="../../m.gguf"), listing(rfilename="/etc/m.gguf"),
           listing(rfilename="a//m.gguf"), listing(rfilename="m\n.gguf"), listing(rfilename="x" * 600 + ".gguf"), listing(rfilename=7),
           listing(sha256="../../x"), listing(sha256="A" * 64), listing(sha256=None), listing(size=-1), listing(size=1 << 60),
           listing(size="many"), listing(commit="../x"), listing(commit="main"), b" " * (33 << 20)]
    for i, text in enumerate(bad):
        env = hub_env(os.path.join(folder, "t%d" % i), port)
        r = pull(env, lists=[text])
        check(r.returncode == 1 and r.stderr.count(b"\n") == 1 and not Hub.asked, "list", i, r.stderr[:300])
    env = hub_env(os.path.join(folder, "retried"), port)
    check(pull(env, lists=[500, 429]).returncode == 0, "a list is asked for again")


def check_token(folder, port):
    Hub.gated = True
    env = hub_env(folder, port)
    r = pull(env)
    check(r.returncode == 1 and b"HF_TOKEN" in r.stderr, "no token", r)
    os.makedirs(os.path.join(folder, ".cache", "huggingface"))
    with open(os.path.join(folder, ".cache", "huggingface", "token"), "w", encoding="ascii") as f:
        f.write("secret\n")
    check(pull(env).returncode == 0, "the hub's token file")
    check(pull(dict(env, HF_TOKEN="wrong"), "o/r:Q8_0").returncode == 1, "the variable wins")
    Hub.gated = False


def check_interrupt(folder, port):
    env = hub_env(folder, port)
    env["HF_HUB_DOWNLOAD_TIMEOUT"] = "60"
    files, data = Hub.files, DATA * 8
    Hub.plan, Hub.lists, Hub.asked, Hub.files = ["slow"], [], [], {"m-Q4_K_M.gguf": data}
    p = subprocess.Popen([run_path, "pull", "o/r:Q4_K_M"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    part = blob_of(env, data) + ".incomplete"
    for _ in range(500):
        time.sleep(0.02)
        if os.path.exists(part) and os.path.getsize(part) >= PIECE:
            break
    second = run("pull", "o/r:Q4_K_M", env=env)
    check(second.returncode == 1 and b"another program" in second.stderr, "two at once", second)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    check(p.returncode == 1 and b"goes on from here" in err and os.path.getsize(part) >= PIECE, "Ctrl-C", out, err)
    r = pull(env)
    check(r.returncode == 0 and whole(env, data) and Hub.asked[0][1], "goes on after Ctrl-C", r)
    Hub.files = files


def check_running(folder, port):
    """-hf runs a model, and the second time without the hub; a file without -m; words of other command lines."""
    env = hub_env(folder, port)
    ask = ["-n", "4", "--temp", "0", "-p", "Hello"]
    Hub.plan, Hub.lists = [], []
    first = run("-hf", "o/r:fables.gguf", *ask, env=env)
    check(first.returncode == 0 and first.stdout, "-hf", first)
    offline = dict(env, HF_ENDPOINT="http://127.0.0.1:1")
    check(run("-hf", "o/r:fables.gguf", *ask, env=offline).stdout == first.stdout, "from the cache, without the hub")
    r = run("-hf", "o/r:Q4_K_M", *ask, env=dict(offline, HF_HUB_OFFLINE="1"))
    check(r.returncode == 1 and b"HF_HUB_OFFLINE" in r.stderr, "offline", r)
    for words in ([MODEL, *ask], [*ask, MODEL], ["-m", MODEL, "--temperature", "0", "--n-predict=4", "-p", "Hello"]):
        check(run(*words).stdout == first.stdout, "words", words)
    check(run("-n", "-1", "--temp", "0", "-p", "Hello").stdout.startswith(first.stdout.rstrip(b"\n")), "-n -1 is no limit")
    for word, said in (("-ngl", b"--vram-mb"), ("--n-gpu-layers", b"--vram-mb"), ("-ctk", b"--kv"), ("--cpu-moe", b"--plan")):
        r = run(word, "99", "-p", "Hello")
        check(r.returncode == 2 and said in r.stderr, "foreign", word, r)
    check(run("-p", "-ngl", "-n", "1").returncode == 0, "a text that looks like an option")
    r = run("hello")
    check(r.returncode == 2 and b"-p" in r.stderr, "a word that is no file", r)
    r = run("nosuch.gguf", "-p", "x")
    check(r.returncode == 1 and b"nosuch.gguf" in r.stderr, "a file that is not there", r)


def main():
    with open(MODEL, "rb") as f:
        fables = f.read()
    Hub.files = {"m-Q4_K_M.gguf": DATA, "m-UD-Q4_K_M.gguf": DATA[::-1], "big/m-Q8_0-00001-of-00002.gguf": DATA[:5000],
                 "big/m-Q8_0-00002-of-00002.gguf": DATA[5000:9000], "mmproj-F16.gguf": b"x", "f/m-F16-00001-of-00002.gguf": b"y",
                 "fables.gguf": fables}
    server = Server()
    with scratch() as folder:
        probe = pull(hub_env(os.path.join(folder, "probe"), server.port))
        if b"without libcurl" in probe.stderr:
            print("skipped: built without libcurl")
            sys.exit(77)
        for what in (check_layout, check_at_once, check_choice, check_broken, check_left_over, check_lists_that_lie, check_token,
                     check_interrupt, check_running):
            begin = time.time()
            inner = os.path.join(folder, what.__name__)
            os.mkdir(inner)
            what(inner, server.port)
            shutil.rmtree(inner)
            print("%5.1f s  %s" % (time.time() - begin, what.__name__))
    finish()


main()

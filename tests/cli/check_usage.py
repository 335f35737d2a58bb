#!/usr/bin/env python3
"""What a shell sees: exit statuses, what goes to which stream, and every way an answer can be asked for or go wrong."""
import json
import os
import re
import shutil
import subprocess

import cli


def exits(status, *args, **more):
    r = cli.run(*args, **more)
    cli.check(r.returncode == status, args, "exit", r.returncode, "expected", status, r.stderr.decode())
    return r


def fails(status, word, *args, **more):
    r = exits(status, *args, **more)
    cli.check(word in r.stderr.decode() and not r.stdout, args, r.stderr.decode(), r.stdout)
    return r


def usage():
    cli.check(exits(0, "--help").stdout.startswith(b"usage: pfmoe-run"), "--help")
    cli.check(exits(0, "--version").stdout.startswith(b"pfmoe-run "), "--version")
    fails(2, "--nonsense", "--nonsense")
    fails(2, "--temp", "--temp", "hot", "-p", "x")
    fails(2, "exclude", "-p", "x", "-f", "y")
    fails(2, "PFMOE_CTX", "-p", "x", env=cli.environment(PFMOE_CTX="many"))
    settings()
    gpus()
    hosts()
    plans()
    fails(2, "--logits", "--score", "tokens.txt", "-m", "x.gguf")
    fails(1, "no-such-file.gguf", "-m", "no-such-file.gguf", "-p", "x")
    fails(1, "no-such-file.gguf", "no-such-file.gguf", stdin=b"")
    for name in ("nonsense", "a/b/c", "o/r:../x"):
        for words in (("-hf", name, "-p", "x"), ("pull", name), ("rm", name)):
            fails(2, "is not owner/repo", *words)
    fails(1, "no-such-file.txt", "-f", "no-such-file.txt")


def settings():
    """Flags win over the environment, a variable over its alias, and a value that does not parse names what holds it."""
    fails(1, "the context holds 7", "-p", "Hello there", env=cli.environment(PFMOE_CTX="7"))
    fails(1, "the context holds 8", "-p", "Hello there", "-c", "8", env=cli.environment(PFMOE_CTX="7"))
    bad = {"ENABLE": "yes", "FORCE_CPU": "2", "BLOCK_ON_MISS": "maybe", "MAX_TRANSFERS": "0", "SCRATCHPAD_MB": "-1",
           "USE_DEDICATED_STREAMS": "on", "CPU_LIMIT": "-1", "DEBUG": "1x"}
    for name, value in bad.items():
        for prefix in ("PFMOE_POSTFETCH_", "LLAMA_POSTFETCH_"):
            fails(2, prefix + name + ": \"" + value, "-p", "x", env=cli.environment(**{prefix + name: value}))
    good = {"ENABLE": "0", "FORCE_CPU": "1", "BLOCK_ON_MISS": "auto", "MAX_TRANSFERS": "3", "SCRATCHPAD_MB": "64",
            "USE_DEDICATED_STREAMS": "0", "CPU_LIMIT": "auto", "DEBUG": "1"}
    env = cli.environment(**{"LLAMA_POSTFETCH_" + name: value for name, value in good.items()})
    exits(0, "-p", "Hello", "-n", "1", env=env)
    fails(2, "--postfetch-cpu-limit", "--postfetch-cpu-limit", "all", "-p", "x", env=env)
    manual = cli.run("--help-man").stdout.decode()
    for name in good:
        cli.check("PFMOE_POSTFETCH_" + name in manual and "LLAMA_POSTFETCH_" + name in manual, name, "is in the manual")


def gpus():
    """Lists of GPUs and budgets that cannot be meant."""
    fails(2, "is not a list of whole numbers from -1 to 63", "--gpus", "0,x", "-p", "x")
    fails(2, "up to 8 numbers are wanted, or -1 alone", "--gpus", "0,1,2,3,4,5,6,7,8", "-p", "x")
    fails(2, "up to 8 numbers are wanted, or -1 alone", "--gpus", "-1,0", "-p", "x")
    exits(0, "--gpus", "-1", "-p", "Hello", "-n", "1")
    fails(2, "one for each GPU is wanted", "--gpus", "0", "--vram-mb", "1,2", "-p", "x")
    fails(2, "one for each GPU is wanted", "--vram-mb", "1,2", "-p", "x")
    fails(1, "GPU 0 is named twice", "--gpus", "0,0", "-p", "x")
    fails(1, "there is no GPU 63", "--gpus", "63", "-p", "x")


def hosts():
    """Processes that do not know which they are, or of which there are too many."""
    fails(2, "--rank belongs to --hosts", "--rank", "0", "-p", "x")
    fails(2, "of 2 processes this one's number is wanted", "--hosts", "a,b", "-p", "x")
    fails(2, "of 2 processes this one's number is wanted", "--hosts", "a:1,b", "--rank", "2", "-p", "x")
    fails(2, "at most 8 can work together", "--hosts", "a,b,c,d,e,f,g,h,i", "--rank", "0", "-p", "x")
    fails(2, "a host has no name", "--hosts", "a,,b", "--rank", "0", "-p", "x")
    fails(2, "of 2 processes this one's number is wanted", "--hosts", "a", "-p", "x",
          env=cli.environment(PMI_RANK="2", PMI_SIZE="2"))


def plans():
    """A card by its name: the same however it is written, and each that is offered is known."""
    asked = ("--plan", "--ram-gb-s", "40", "--drive-gb-s", "3", "--ram-mb", "4000", "--card")
    plan = exits(0, *asked, "RTX 4060 Ti 16").stdout
    cli.check(plan.startswith(b"RTX 4060 Ti, 16 GB at 288 GB/s, PCIe 4 with 8 lanes, compute capability 8.9\n"), plan)
    cli.check(b" 253.4 card " in plan and b" 3.0 given" in plan and b"the GPU's memory: 16.37 GB" in plan, "what programs get of a card", plan)
    for name in ("4060ti16", "nvidia geforce rtx 4060 ti (16GB)"):
        cli.check(exits(0, *asked, name).stdout == plan, name)
    cli.check(b"the GPU's memory: 5.00 GB" in exits(0, *asked, "4090", "--vram-mb", "5000").stdout, "a flag wins")
    cli.check(b" 100.0 given" in exits(0, *asked, "4090", "--vram-gb-s", "100").stdout, "a flag wins")
    fails(2, "more than one memory; say which: RTX 4060 Ti 8, RTX 4060 Ti 16", *asked, "4060 Ti")
    fails(2, "belongs to --plan", "--card", "4090", "-p", "x")
    fails(2, "--card plans for one GPU", *asked, "4090", "--gpus", "0,1")
    fails(2, "--vram-gb-s: no GPU is planned for", "--plan", "--gpus", "-1", "--vram-gb-s", "100")
    with cli.scratch() as tmp:
        path = os.path.join(tmp, "holes.gguf")
        shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "fables.gguf"), path)
        os.truncate(path, 16 * os.path.getsize(path))
        plan = exits(0, "--plan", "--ram-gb-s", "40", "-m", path).stdout
        cli.check(b"the drive is not measured" in plan and b" 2.5 assumed" in plan, "a file with holes", plan)
        plan = exits(0, "--plan", "--ram-gb-s", "40", "--drive-gb-s", "3", "-m", path).stdout
        cli.check(b"holes" not in plan and b" 3.0 given" in plan, "a drive that somebody knows", plan)
    unknown = fails(2, "no card", *asked, "Voodoo 2" + "x" * 300).stderr.decode()
    names = unknown.split("one of: ")[1].strip().split(", ")
    cli.check(len(set(names)) == len(names) > 40, names)
    for name in names[::4]:
        cli.check(exits(0, *asked, name).stdout.decode().startswith(name.rsplit(" ", 1)[0] + ", "), name)


def answers():
    asked = ("--temp", "0", "-p", "Hello")
    r = exits(0, *asked)
    cli.check(r.stdout.startswith(b"Hello! I am a very small model"), "the bundled model greets", r.stdout)
    cli.check(exits(0, "--temp", "0", stdin=b"Hello").stdout == r.stdout, "standard input")
    cli.check(b"warning" not in exits(0, *asked, "-n", "1", "-c", "4096").stderr, "a context that was trained")
    longer = exits(0, *asked, "-n", "1", "-c", "8192").stderr
    cli.check(longer.count(b"warning: a context of 8192 tokens is asked for; the model was trained to 4096\n") == 1, longer)
    full = exits(0, *asked, "-n", "1", "-c", "1000000", "--ram-mb", "500").stderr
    cli.check(full.count(b"warning: with a context of 1000000 tokens the model needs ") == 1, "a context that memory does not hold", full)
    with cli.scratch() as tmp:
        path = os.path.join(tmp, "question")
        with open(path, "w") as f:
            f.write("Hello")
        cli.check(exits(0, "--temp", "0", "-f", path).stdout == r.stdout, "-f FILE")
    cli.check(exits(0, *asked, env=cli.environment(PFMOE_THREADS="1")).stdout == r.stdout, "one thread")
    cut = exits(0, *asked, "-n", "3")
    cli.check(len(cut.stdout) < len(r.stdout) and cut.stderr, "-n cuts and says so", cut.stderr)
    stopped = exits(0, *asked, "--stop", "very small")
    cli.check(stopped.stdout.strip() == b"Hello! I am a", "--stop", stopped.stdout)
    seeds = {exits(0, "-p", "another one", "--temp", "1.5", "--seed", "5").stdout for _ in range(2)}
    cli.check(len(seeds) == 1, "same seed, same answer")
    fails(1, "empty", "-p", "", "--raw")


def added_input():
    """Standard input goes behind the text of -p, a blank line between; a pipe that nobody closes is told of."""
    whole = exits(0, "--temp", "0", "--json", "-p", "Tell me a fable\n\nabout a fox.")
    added = exits(0, "--temp", "0", "--json", "-p", "Tell me a fable", stdin=b"about a fox.\n")
    count = lambda r: json.loads(r.stdout)["tokens"]["prompt"]
    cli.check(count(whole) == count(added) and b"Grapes" in added.stdout, "standard input is added", added.stdout)
    fails(1, "zero byte", "-p", "x", stdin=b"a\0b")
    p = subprocess.Popen([cli.run_path, "-p", "Hello", "-n", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=cli.environment())
    cli.check(b"/dev/null" in p.stderr.readline(), "an open pipe is told of")
    p.communicate(timeout=20)


def as_json():
    """One object, whatever is in the text; timings and counts that are so."""
    r = exits(0, "-p", "Hello", "--json", "--temp", "0", "--seed", "7")
    a = json.loads(r.stdout)
    cli.check(a["text"].startswith("Hello! I am") and a["ending"] == "end" and a["seed"] == 7, a)
    cli.check(a["tokens"]["prompt"] > 0 and a["tokens"]["known"] == 0 and a["tokens"]["answer"] > 20, a)
    cli.check(0 < a["seconds"]["prompt"] <= a["seconds"]["first_token"] < 60 and a["tok_s"]["answer"] > 0, a)
    cli.check(json.loads(exits(0, "-p", "Hello", "--json", "-n", "3").stdout)["ending"] == "length", "cut")
    cli.check(json.loads(exits(0, "-p", "Hello", "--json", "--temp", "0", "--stop", "very").stdout)["ending"] == "stop", "stopped")


def statistics():
    err = exits(0, "-p", "Hello", "--stats", "--seed", "5").stderr.decode()
    for line in (r"prompt +\d+ tokens in [\d.]+ s: [\d.]+ tok/s; 0 more", r"first token +after [\d.]+ s", r"answer +\d+ tokens in",
                 r"seed +5\n"):
        cli.check(re.search(line, err), "--stats says", line, err)


def before_the_work(tmp):
    """What cannot be written or read is refused before a model is looked for."""
    absent = ("-m", os.path.join(tmp, "no-such-model.gguf"), "-p", "x")
    for flag in ("--timeline", "--expert-trace-output", "--template", "--json-schema", "--grammar"):
        path = os.path.join(tmp, "no-such-folder", "x.json")
        fails(1, path, *absent, flag, path)


def foreign():
    """Names that users of other engines type."""
    cli.check(exits(0, "--temperature", "0", "-p", "Hello", "--n-predict", "-1", "-s", "1").stdout.startswith(b"Hello! I"), "foreign")
    exits(0, "-p", "Hello", "-n", "-1", "--no-think", "--temp", "0", "-r", "very")
    for words, use in ((("-ngl", "99"), "--vram-mb"), (("-ctk", "q8_0"), "--kv"), (("-cnv",), "chat"), (("-fa", "on"), "attention"),
                       (("-ub", "512"), "chosen"), (("-sysf", "x"), "--system")):
        fails(2, use, *words, "-p", "x")
    fails(2, "from 1 to 256", "-t", "257", "-p", "x")


def trouble(tmp):
    model = cli.synth(tmp)
    with open("/dev/full", "wb") as full:
        r = cli.run("--temp", "0", "-p", "Hello", stdout=full)
        cli.check(r.returncode == 1 and r.stderr, "a full disk under standard output", r.returncode, r.stderr)
        r = cli.run("--help", stdout=full)
        cli.check(r.returncode == 1, "a full disk under --help", r.returncode)
    tokens = os.path.join(tmp, "tokens")
    with open(tokens, "w") as f:
        f.write("1, 2 3,4\n5")
    exits(0, "-m", model, "--score", tokens, "--logits", os.path.join(tmp, "out"))
    cli.check(os.path.getsize(os.path.join(tmp, "out")) == 5 * 512 * 4, "five rows of logits")
    exits(1, "-m", model, "--score", tokens, "--logits", "/dev/full")
    exits(1, "-m", model, "--score", tokens, "--logits", os.path.join(tmp, "no", "folder"))
    with open(tokens, "w") as f:
        f.write("1 2 three")
    exits(1, "-m", model, "--score", tokens, "--logits", os.path.join(tmp, "out"))
    fails(1, "context", "-m", model, "-c", "16", "-p", "a long question " * 20)
    with open(model, "rb") as f:
        whole = f.read()
    for size in (0, 3, 24, 1000, len(whole) // 2, len(whole) - 1):
        cut = os.path.join(tmp, "cut.gguf")
        with open(cut, "wb") as f:
            f.write(whole[:size])
        fails(1, "cut.gguf", "-m", cut, "-p", "x")
        fails(1, "cut.gguf", "--info", cut)


def refused_models(tmp):
    """Names of the same length, written over those in the file."""
    with open(cli.synth(tmp), "rb") as f:
        whole = f.read()
    cases = [
        (b"qwen3moe", b"qwen9moe", "architecture \"qwen9moe\" is not supported"),
        (b"qwen3moe", b"qwen9moe", "; its tensors are most like those of qwen3moe; in "),
        (b"blk.1.attn_q.weight", b"blk.1.attn_x.weight", "blk.1.attn_q.weight"),
        (b"blk.0.ffn_down_exps.weight", b"blk.0.ffn_town_exps.weight", "blk.0.ffn_down_exps.weight"),
        (b"qwen3moe.attention.head_count_kv", b"qwen3moe.attention.head_count_xx", "attn_k.weight"),
        (b"qwen3moe.block_count", b"qwen3moe.block_xxxxx", "qwen3moe.block_count"),
        (b"qwen3moe.expert_used_count", b"qwen3moe.expert_used_xxxxx", "qwen3moe.expert_used_count"),
    ]
    for old, new, word in cases:
        path = os.path.join(tmp, "changed.gguf")
        with open(path, "wb") as f:
            f.write(whole.replace(old, new))
        fails(1, word, "-m", path, "-p", "x")


def not_a_number(tmp):
    """A weight that is NaN: one sentence, not an answer."""
    with open(cli.synth(tmp, "moe-tiny", "--type", "F32"), "rb") as f:
        whole = bytearray(f.read())
    path, tokens = os.path.join(tmp, "nan.gguf"), os.path.join(tmp, "ids")
    for at in range(len(whole) - 4096, len(whole), 4):
        whole[at:at + 4] = b"\x00\x00\xc0\x7f"
    with open(path, "wb") as f:
        f.write(whole)
    with open(tokens, "w") as f:
        f.write(" ".join(str(i) for i in range(64)))
    fails(1, "finite", "-m", path, "--score", tokens, "--logits", os.path.join(tmp, "out"))
    fails(1, "", "--info", path, "--verify")
    r = cli.run("-m", path, "-p", "abc", "-n", "4", "--temp", "0")
    cli.check(r.returncode in (0, 1) and (r.returncode == 0 or r.stderr), "NaN weights", r.returncode, r.stderr)


def wrong_files(tmp):
    """Every flag that takes a file, with every wrong file: one sentence, which names it."""
    bad = {name: os.path.join(tmp, name) for name in ("is-absent", "is-a-folder.trace", "is-void", "is-noise", "is-locked.trace")}
    os.mkdir(bad["is-a-folder.trace"])
    for name, data in (("is-void", b""), ("is-noise", bytes(range(256)) * 20), ("is-locked.trace", b"x"), ("ids", b"1 2")):
        with open(os.path.join(tmp, name), "wb") as f:
            f.write(data)
    os.chmod(bad["is-locked.trace"], 0o400)
    bad["absent-folder"] = os.path.join(tmp, "absent-folder", "x.trace")
    model, asked = cli.synth(tmp), ("-p", "x", "-n", "1")
    readers = [(*asked, "-m"), ("--info",), ("--plan", "-m"), ("-f",), (*asked, "--template"), (*asked, "--lora"),
               (*asked, "--routing"), ("-m", model, "--logits", "/dev/null", "--score"), ("-m", model, "--tokenize"),
               ("-m", model, "--detokenize"), ("--splits", "qwen2"), ("--render",),
               ("--parse", "hermes")]
    writers = [(*asked, "--timeline"), (*asked, "--expert-trace-output"),
               ("-m", model, "--score", os.path.join(tmp, "ids"), "--logits")]
    may_be_void = ("--tokenize", "--detokenize", "--splits", "--parse")
    for args, names in ([(a, ("is-absent", "is-a-folder.trace", "is-void", "is-noise")) for a in readers] +
                        [(a, ("absent-folder", "is-a-folder.trace", "is-locked.trace")) for a in writers]):
        for name in names:
            if name == "is-void" and set(args) & set(may_be_void):
                continue
            r = cli.run(*args, bad[name])
            sentence = r.stderr.decode()
            cli.check(r.returncode == 1 and bad[name] in sentence and sentence.count("\n") == 1, args, name, r.returncode, sentence)


def small_stack():
    """Neither the program nor its threads need what `ulimit -s` gives."""
    for kb in ("64", "128"):
        r = subprocess.run(["sh", "-c", "ulimit -s %s; exec \"$@\"" % kb, "sh", cli.run_path, "-p", "Hello", "--temp", "0"],
                           capture_output=True, env=cli.environment())
        cli.check(r.returncode == 0 and r.stdout.startswith(b"Hello! I am"), "ulimit -s", kb, r.returncode, r.stderr)


def reader_leaves():
    """The program that reads the answer ends first."""
    for args in ("-p Hello --ignore-eos -n 2000", "--help", "-p Hello --json"):
        r = subprocess.run("(sleep 0.2; exec %s %s) | true; echo ${PIPESTATUS[0]}" % (cli.run_path, args), shell=True,
                           executable="/bin/bash", capture_output=True, env=cli.environment())
        cli.check(r.stdout == b"141\n" and not r.stderr, "a closed pipe", args, r.stdout, r.stderr)


def closed_streams(tmp):
    """What would go to a stream that is closed does not go into a file that is written meanwhile."""
    asked = ("-p", "Hello", "-n", "4", "--temp", "0", "--expert-trace-output")
    files = [os.path.join(tmp, name + ".trace") for name in ("open", "closed")]
    cli.run(*asked, files[0])
    r = cli.run(*asked, files[1], preexec_fn=lambda: os.close(2))
    cli.check(r.returncode == 0 and r.stdout, "without a standard error", r)
    texts = [open(f, "rb").read() for f in files]
    cli.check(texts[0] == texts[1], "a trace with", texts[1][:80])
    r = cli.run(*asked, files[1], preexec_fn=lambda: os.closerange(0, 2))
    cli.check(r.returncode == 1 and b"cannot write to standard output" in r.stderr, "without a standard output", r)


def model_shrinks(tmp):
    """Another process cuts the model file short while it answers."""
    path = os.path.join(tmp, "shrinks.gguf")
    shutil.copy(cli.synth(tmp), path)
    p = subprocess.Popen([cli.run_path, "-m", path, "-p", "x", "--ignore-eos", "-c", "100000"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=cli.environment())
    p.stdout.read(1)
    os.truncate(path, 4096)
    err = p.communicate(timeout=60)[1].decode()
    err = err.replace("pfmoe-run: warning: a context of 100000 tokens", "")
    cli.check(p.returncode == 1 and err.count("pfmoe-run:") == 1, "a model cut short", p.returncode, err)


usage()
answers()
added_input()
as_json()
statistics()
foreign()
reader_leaves()
small_stack()
with cli.scratch() as folder:
    before_the_work(folder)
    trouble(folder)
    wrong_files(folder)
    closed_streams(folder)
    refused_models(folder)
    not_a_number(folder)
    model_shrinks(folder)
cli.finish()

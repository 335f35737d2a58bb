#!/usr/bin/env python3
"""--render over the recorded renders: outputs byte for byte, and the messages that templates raise."""
import glob
import json
import os

import cli


def check_file(path, key):
    with open(path, encoding="utf-8") as f:
        wanted = json.load(f)[key]
    r = cli.run("--render", path)
    cli.check(r.returncode == 0, path, r.stderr.decode())
    got = [json.loads(line) for line in r.stdout.decode().splitlines()]
    cli.check(len(got) == len(wanted), path, "has", len(wanted), "renders, got", len(got))
    for w, g in zip(wanted, got):
        if "output" in w:
            cli.check(g == {"output": w["output"]}, path, w.get("case", w["template"] if "template" in w else ""), g)
        elif w["error_kind"] == "raise":
            cli.check(g == {"error": w["error"]}, path, w, g)
        else:
            cli.check(len(g) == 1, path, g)


folder = cli.need("templates")
for golden in sorted(glob.glob(os.path.join(folder, "golden", "*.json"))):
    check_file(golden, "renders")
check_file(os.path.join(folder, "jinja-cases.json"), "cases")
cli.finish()

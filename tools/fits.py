#!/usr/bin/env python3
"""The table of models.md that says what fits which machine: for each preset of pfmoe-synth a file of its shape without weights, and the
planner's word for each card and size of main memory.

usage: fits.py PFMOE_RUN PFMOE_SYNTH        prints Markdown"""
import os
import re
import subprocess
import sys
import tempfile

MODELS = ["lfm2-8b-a1b", "gpt-oss-20b", "qwen3-30b-a3b", "granite-4.0-h-small", "qwen3.6-35b-a3b", "nemotron-3-nano", "phi-3.5-moe",
          "mixtral-8x7b", "kimi-linear-48b-a3b", "qwen3-next-80b", "gpt-oss-120b", "glm-4.5-air", "deepseek-v4-flash"]
CARDS = {"8 GB (RTX 4060)": "RTX 4060", "12 GB (RTX 4070)": "RTX 4070", "16 GB (RTX 4060 Ti)": "4060 Ti 16", "24 GB (RTX 3090)": "RTX 3090"}
RAM_GB = [16, 32, 64]
KEPT_GB, RAM_GB_S, DRIVE_GB_S, CONTEXT = 4, 50, 5, 8192


def plan(run, model, card, ram_gb):
    """"G 120": all in the GPU's memory; "R 30": shared with main memory; "D 4": the drive is read, too. The number is the most tok/s
    that the rates allow."""
    r = subprocess.run([run, "--plan", "-m", model, "--card", card, "--ram-mb", str(1000 * (ram_gb - KEPT_GB)), "--ram-gb-s", str(RAM_GB_S),
                        "--drive-gb-s", str(DRIVE_GB_S), "-c", str(CONTEXT)], capture_output=True, text=True)
    if r.returncode:
        return "no"
    tiers = {line.split()[0]: float(line.split()[2]) for line in r.stdout.splitlines() if re.match(r"(GPU|memory|drive) ", line)}
    most = float(re.search(r"at most ([0-9.]+) tok/s", r.stdout)[1])
    where = "D" if tiers["drive"] > 0.05 else "R" if tiers["memory"] > 0.05 else "G"
    return "%s %s" % (where, "%.1f" % most if most < 10 else "%.0f" % most)


def main():
    run, synth = sys.argv[1:]
    print("| model | file, GB |", " | ".join("%s, %d" % (name.split(" GB")[0], ram) for name in CARDS for ram in RAM_GB), "|")
    print("|---|--:|" + "--:|" * (len(CARDS) * len(RAM_GB)))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        for model in MODELS:
            subprocess.run([synth, model, path, "--sparse"], check=True)
            cells = [plan(run, path, card, ram) for card in CARDS.values() for ram in RAM_GB]
            print("| %s | %.1f |" % (model, os.path.getsize(path) * 1e-9), " | ".join(cells), "|")


if __name__ == "__main__":
    main()

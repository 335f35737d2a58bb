#!/usr/bin/env python3
"""Draws what pfmoe-bench writes, a panel for each kind of test, by matplotlib (python3-matplotlib):

    pfmoe-bench -m MODEL.gguf -p 512 -n 128 -d 0,8192,32768 -o csv > depth.csv
    pfmoe-bench -m MODEL.gguf -p 0 --vram-mb 4000,8000,16000,24000 -o csv > sweep.csv
    plot.py depth.csv [MORE.csv ...] -o depth.svg            (or .png; --over depth, vram_mb, sequences, threads, n_batch)

The x axis is the column that varies most in the rows. A line joins rows that differ in nothing else: neither in model, file, types,
threads, memory and sequences nor in origin (commit, day, GPU, driver, CPU). Where two such rows have one value of the axis, points are
not joined. Dashed: the roofline that was measured beside a row; bars: the standard deviation. Rows of before a column was there count as 0 in it, and those that name no commit are told apart by their file."""
import argparse
import csv
import os
import sys

AXES = {"depth": "tokens that were there before", "vram_mb": "the GPU's memory that may be taken, MB", "sequences": "sequences together",
        "threads": "computing threads", "n_batch": "rows evaluated at once"}
APART = ["model", "file", "model_type", "backend", "isa", "kv", "gpus", "layout", "threads", "vram_mb", "sequences", "depth", "n_batch"]
ORIGIN = ["commit", "date", "gpu", "driver", "cpu"]
SHORT = {"threads": "%s threads", "vram_mb": "%s MB of VRAM", "sequences": "%s together", "depth": "depth %s", "n_batch": "batch %s",
         "kv": "keys and values %s"}


def kind_of(row):
    """The test without what an axis can show: "pp512", "tg128", "pp512+tg128"."""
    return row["test"].split(" @ ")[0].split("x")[0]


def read(paths):
    rows = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                rows.append(row if row.get("commit") else dict(row, commit=os.path.basename(path)))
    return rows


def axis_of(rows):
    """The column with the most values."""
    return max(AXES, key=lambda name: len({row.get(name) or "0" for row in rows}))


def key_of(row, over):
    return tuple((name, row.get(name) or "") for name in APART + ORIGIN if name != over)


def panels_of(rows, over):
    """{kind of test: {key: [(x, tok/s, standard deviation, roofline)]}}, in the rows' order. Without any memory budget a row
    stands for no point of an axis of budgets."""
    panels = {}
    for row in rows:
        x = float(row.get(over) or 0)
        if over == "vram_mb" and x == 0:
            continue
        point = (x, float(row["tok_s"]), float(row.get("tok_s_stddev") or 0), float(row.get("roofline_tok_s") or 0))
        panels.setdefault(kind_of(row), {}).setdefault(key_of(row, over), []).append(point)
    return {kind: {key: sorted(points) for key, points in lines.items()} for kind, lines in panels.items()}


def differing(keys):
    """Names of the fields in which the keys are not all alike."""
    return [name for i, (name, _) in enumerate(keys[0]) if len({key[i][1] for key in keys}) > 1]


def labels_of(panels):
    """A name for each key, of what differs between keys; what is common to all goes into the caption."""
    keys = list(dict.fromkeys(key for lines in panels.values() for key in lines))
    names = differing(keys)
    labels = {}
    for key in keys:
        said = [SHORT.get(name, "%s") % value for name, value in key if name in names and value]
        labels[key] = ", ".join(said) or dict(key)["model"]
    common = [SHORT.get(name, "%s") % value for name, value in keys[0] if name not in names and value not in ("", "0") and (name, value) != ("sequences", "1")]
    return labels, ", ".join(common)


def wants_log(lines):
    """Whether one line's best speed is more than ten times another's."""
    best = [max(p[1] for p in points) for points in lines.values()]
    return max(best) > 10 * min(best) > 0


def wrap(text, width=150):
    lines = [""]
    for word in text.split(", "):
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += (", " if lines[-1] else "") + word
    return "\n".join(lines)


def draw(panels, over, out):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py draws by matplotlib, which is not there (Debian: python3-matplotlib)")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "rows"
    import matplotlib.pyplot as plt
    from matplotlib import ticker
    labels, common = labels_of(panels)
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    figure, axes = plt.subplots(down, across, figsize=(max(7, 5.2 * across), 4.8 * down), squeeze=False, layout="constrained")
    colours = {key: "C%d" % i for i, key in enumerate(labels)}
    for ax in axes.flat[len(panels):]:
        ax.set_visible(False)
    for ax, (kind, lines) in zip(axes.flat, panels.items()):
        for key, points in lines.items():
            x, y, deviation, limit = zip(*points)
            ax.errorbar(x, y, yerr=deviation if any(deviation) else None, marker="o", capsize=2, color=colours[key], label=labels[key],
                        linestyle="-" if len(set(x)) == len(x) else "none")
            known = [(a, b) for a, b in zip(x, limit) if b > 0]
            if known:
                ax.plot(*zip(*known), linestyle="--", marker="_", color=colours[key], alpha=0.6)
        values = {p[0] for points in lines.values() for p in points}
        ax.xaxis.set_major_locator(ticker.FixedLocator(list(values)) if len(values) == 1 else ticker.MaxNLocator(6, integer=True))
        ax.set_title(kind)
        ax.set_xlabel(AXES[over])
        ax.set_ylabel("tokens a second")
        if wants_log(lines):
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, 1.05 * max(max(p[1] + p[2], p[3]) for points in lines.values() for p in points))
        ax.grid(True, which="both", alpha=0.25)
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
    # Below the figure, which is saved with all that hangs out of it: matplotlib makes room for a legend only from 3.7 on.
    figure.legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(0, 0), fontsize=8, frameon=False)
    figure.suptitle(wrap(common + ("; dashed: the roofline" if any(p[3] for l in panels.values() for v in l.values() for p in v) else ""),
                         75 * max(1.4, across)), fontsize=8)
    figure.savefig(out, bbox_inches="tight")
    if out.endswith(".svg"):
        with open(out, encoding="utf-8") as f:
            lines = [line.rstrip() for line in f]
        with open(out, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


def main():
    p = argparse.ArgumentParser(description="draws rows of pfmoe-bench -o csv")
    p.add_argument("csv", nargs="+")
    p.add_argument("--over", choices=AXES)
    p.add_argument("-o", "--output", required=True)
    o = p.parse_args()
    rows = read(o.csv)
    over = o.over or axis_of(rows)
    panels = panels_of(rows, over)
    if not panels:
        sys.exit("no row has a value of %s" % over)
    draw(panels, over, o.output)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tokens a second over the GPU's memory that pfmoe may take, as SVG, from what pfmoe-bench writes:

    pfmoe-bench -m MODEL.gguf -p 0 --vram-mb 4000,8000,16000,24000 -o csv > sweep.csv
    plot.py sweep.csv [MORE.csv ...] > sweep.svg

A line for each model, test, thread count and origin; dashed, the roofline that was measured beside it. The origin of a row
(commit, day, GPU, driver, CPU) stands under the lines; rows of several origins are never joined, and the legend numbers them."""
import csv
import math
import sys
from xml.sax.saxutils import escape

LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT, LINE = 60, 20, 40, 46, 560, 320, 16
COLOURS = ["#08306b", "#d94801", "#238b45", "#6a51a3", "#c51b8a", "#525252", "#807dba", "#a63603"]


def origin_of(row):
    """"" for a row that does not say where it comes from."""
    driver = row.get("driver") and "driver " + row["driver"]
    return ", ".join(filter(None, [row.get("commit"), row.get("date"), row.get("gpu"), driver, row.get("cpu")]))


def read(paths):
    """{what: [(GB, tok/s, roofline or 0)]}, in the order of the files, and the origins."""
    series, origins = {}, []
    for path in paths:
        with open(path, newline="") as f:
            for row in csv.DictReader(f):
                if int(row["vram_mb"]) > 0:
                    origin = origin_of(row)
                    if origin not in origins:
                        origins.append(origin)
                    what = ("%s, %s, %s threads" % (row["model"], row["test"], row["threads"]), origins.index(origin))
                    point = (int(row["vram_mb"]) / 1000, float(row["tok_s"]), float(row["roofline_tok_s"]))
                    series.setdefault(what, []).append(point)
    names = {what: what[0] if len(origins) == 1 else "%s (%d)" % (what[0], what[1] + 1) for what in series}
    return {names[what]: sorted(points) for what, points in series.items()}, origins


def step_of(most):
    """A round distance of grid lines, some five of them up to `most`."""
    rough = most / 5
    power = 10 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough)


def path_of(points, at):
    return "M" + "L".join("%.1f,%.1f" % at(x, y) for x, y in points)


def grid(at, most_x, most_y):
    for most, is_x in ((most_x, True), (most_y, False)):
        step = step_of(most)
        for i in range(int(most / step) + 1):
            (x0, y0), (x1, y1) = (at(i * step, 0), at(i * step, most_y)) if is_x else (at(0, i * step), at(most_x, i * step))
            yield '<path d="M%.1f,%.1fL%.1f,%.1f" stroke="#ddd"/>' % (x0, y0, x1, y1)
            x, y, anchor = (x0, y0 + 14, "middle") if is_x else (x0 - 6, y0 + 4, "end")
            yield '<text x="%.1f" y="%.1f" text-anchor="%s">%g</text>' % (x, y, anchor, i * step)


def draw(series, origins):
    most_x = 1.05 * max(p[0] for points in series.values() for p in points)
    most_y = 1.05 * max(v for points in series.values() for p in points for v in p[1:])

    def at(x, y):
        return (LEFT + x / most_x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM))

    said = [o if len(origins) == 1 else "(%d) %s" % (i + 1, o) for i, o in enumerate(origins) if o]
    height = HEIGHT + LINE * (len(series) + len(said))
    yield ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="10">'
           '<rect width="%d" height="%d" fill="white"/>' % (WIDTH, height, WIDTH, height))
    yield '<text x="%d" y="16" font-size="12">tok/s over the GPU\'s memory in GB; dashed: the roofline</text>' % LEFT
    yield from grid(at, most_x, most_y)
    for i, (what, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        yield '<path d="%s" fill="none" stroke="%s" stroke-width="2"/>' % (path_of([p[:2] for p in points], at), colour)
        limits = [(x, limit) for x, _, limit in points if limit > 0]
        if limits:
            yield '<path d="%s" fill="none" stroke="%s" stroke-dasharray="4,3"/>' % (path_of(limits, at), colour)
        for x, y, _ in points:
            yield '<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (*at(x, y), colour)
        y = HEIGHT - 12 + LINE * i
        yield '<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">%s</text>' % (
            LEFT, y, colour, LEFT + 16, y + 9, escape(what))
    for i, origin in enumerate(said):
        yield '<text x="%d" y="%d" font-size="8">%s</text>' % (LEFT, HEIGHT - 3 + LINE * (len(series) + i), escape(origin))
    yield "</svg>"


def main():
    series, origins = read(sys.argv[1:])
    if not series:
        sys.exit("usage: plot.py SWEEP.csv ...      with rows of pfmoe-bench --vram-mb")
    print("\n".join(draw(series, origins)))


if __name__ == "__main__":
    main()

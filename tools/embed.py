#!/usr/bin/env python3
"""A file as a C array: usage: embed.py NAME FILE"""
import sys

name, path = sys.argv[1:]
data = open(path, "rb").read()
print("/* Made from %s by tools/embed.py. */" % path.replace("\\", "/").rsplit("/", 1)[-1])
print("static const unsigned char %s[%d] = {" % (name, len(data)))
for i in range(0, len(data), 24):
    print("    " + "".join("%d," % b for b in data[i:i + 24]))
print("};")

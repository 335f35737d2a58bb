#!/bin/sh
# Tries what was installed, or unpacked, as a user of this machine would: programs, pages, and programs in C, C++ and
# Python against the library, outside of the build. Says what it left out for want of a compiler or of Python.
# usage: check.sh PREFIX      such as /usr, /usr/local or a folder where the tarball was unpacked
set -eu

prefix=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
model=$prefix/share/pfmoe/fables.gguf
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
export PATH="$prefix/bin:$PATH"

# says NAME TEXT COMMAND...: the command's output holds TEXT
says() {
    name=$1 text=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err" || { echo "failed: $name"; cat "$work/out" "$work/err"; exit 1; }
    grep -q "$text" "$work/out" || { echo "failed: $name: no \"$text\" in:"; cat "$work/out"; exit 1; }
    echo "ok: $name"
}

says "one answer" 'Hello!' pfmoe-run -p Hello
says "a chat" 'Hello!' sh -c 'printf "Hello\n" | pfmoe-run'
says "version" 'pfmoe-run ' pfmoe-run --version
says "what is in a file" 'qwen3moe' pfmoe-run --info "$model"
says "bench" '"test": "tg4"' pfmoe-bench -m "$model" -p 8 -n 4 -r 1 -o jsonl
says "synth" 'qwen3moe' sh -c "pfmoe-synth moe-tiny '$work/tiny.gguf' >/dev/null && pfmoe-run --info '$work/tiny.gguf'"
for p in run serve bench synth; do
    ls "$prefix"/share/man/man1/pfmoe-$p.1* "$prefix"/share/bash-completion/completions/pfmoe-$p "$prefix"/share/fish/*/pfmoe-$p.fish \
        "$prefix"/share/zsh/*/_pfmoe-$p >/dev/null
done
echo "ok: manual pages and completions"

if ! command -v python3 >/dev/null 2>&1; then
    echo "left out: the server and Python (no python3)"
else
    pfmoe-serve --port 18999 >"$work/serve.log" 2>&1 &
    server=$!
    says "server" 'Hello!' python3 "$here/ask.py" 18999
    PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1 PFMOE_LIBRARY=$prefix/lib/libpfmoe.so.0 \
        says "Python" 'Hello!' python3 "$here/reply.py" "$model"
fi

if ! command -v cc >/dev/null 2>&1 || ! command -v pkg-config >/dev/null 2>&1; then
    echo "left out: C and C++ (no cc or no pkg-config)"
    exit 0
fi
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig" LD_LIBRARY_PATH="$prefix/lib"
[ "$prefix" != /usr ] || unset PKG_CONFIG_PATH LD_LIBRARY_PATH          # found without a word
flags=$(pkg-config --cflags --libs pfmoe) || { echo "failed: pkg-config"; exit 1; }
cc -std=c11 -Wall -Werror "$root/examples/embed.c" $flags -o "$work/embed"
says "C" 'Hello!' "$work/embed" "$model" Hello
if command -v c++ >/dev/null 2>&1; then
    c++ -std=c++11 -Wall -Werror "$here/words.cc" $flags -o "$work/words"
    says "C++" 'the text again' "$work/words" "$model" "The Fox And The Grapes"
else
    echo "left out: C++ (no c++)"
fi

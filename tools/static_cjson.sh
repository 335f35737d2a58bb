#!/bin/sh
# Debian has no static cJSON, which the portable build links: builds one from Debian's own source package.
# usage: static_cjson.sh FOLDER     leaves libcjson.a, the header and a pkg-config file there
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
[ ! -f "$out/libcjson.a" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/sources" "$work/lists/partial"
# The machine's own package sources, asked for sources instead of binaries.
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$f" ] || continue
    case $f in
    *.sources) sed 's/^Types:.*$/Types: deb-src/' "$f" ;;
    *) sed -n 's/^deb /deb-src /p' "$f" ;;
    esac >"$work/sources/$(basename "$f")"
done
cd "$work"
apt="apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$work/sources -o Dir::State::lists=$work/lists"
$apt update
$apt source --download-only cjson
tar xf cjson_*.orig.tar.*
cc -O2 -fPIC -c cJSON-*/cJSON.c -o cJSON.o
ar rcs "$out/libcjson.a" cJSON.o
mkdir -p "$out/include/cjson"
cp cJSON-*/cJSON.h "$out/include/cjson/"
cat >"$out/libcjson.pc" <<PC
Name: libcjson
Description: JSON in C, static
Version: 1.7
Cflags: -I$out/include
Libs: -L$out -lcjson
PC

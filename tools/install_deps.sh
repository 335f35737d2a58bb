#!/bin/sh
# Installs what building pfmoe needs and this Debian or Ubuntu machine lacks. Does nothing when all of it is there.
set -eu

packages="gcc g++ libc6-dev meson ninja-build pkg-config python3 libcjson-dev libedit-dev libnuma-dev liburing-dev libutf8proc-dev"

missing=
for p in $packages; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "pfmoe needs these packages (Debian's names):$missing" >&2
    exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "run as root: apt-get install$missing" >&2; exit 1; }
    root=sudo
fi
echo "installing:$missing"
$root apt-get update -q
DEBIAN_FRONTEND=noninteractive $root apt-get install -q -y --no-install-recommends $missing

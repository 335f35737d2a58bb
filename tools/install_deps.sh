#!/bin/sh
# Installs what building pfmoe needs and this Debian or Ubuntu machine lacks. Does nothing when all of it is there.
# usage: install_deps.sh [further packages]
set -eu

packages="gcc g++ libc6-dev meson ninja-build pkg-config python3 libcjson-dev libcurl4-openssl-dev libedit-dev libmicrohttpd-dev libnuma-dev liburing-dev libutf8proc-dev libxxhash-dev $*"

missing=
for p in $packages; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

# The first releases with Meson 1.0, which meson.build asks for.
release=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}") || release=
case $release in
"debian "[1-9] | "debian "1[01] | "ubuntu "1?.* | "ubuntu "2[0-3].*)
    echo "pfmoe needs Debian 12, Ubuntu 24.04 or newer; this is $release, and nothing was installed" >&2
    exit 1 ;;
esac

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
log=$(mktemp)
if ! { $root apt-get update -q && $root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm "$log"

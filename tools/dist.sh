#!/bin/sh
# What `make dist` leaves in OUT:
#
#     pfmoe-VERSION-linux-CPU.tar.gz   bin lib include share; runs where it is unpacked and needs libc alone. The libraries
#                                      that have no static form, and what those need, are in lib/pfmoe. No fetching of
#                                      models by name, which would bring 25 more
#     pfmoe_VERSION_ARCH.deb           all of pfmoe, for this release of Debian or Ubuntu; where there is dpkg-deb
#
# The static library is left out of both: it is of use only beside the static libraries of the machine that built it.
# usage: dist.sh PORTABLE DEB OUT      two build folders with prefix /usr, built
set -eu

portable=$1 deb=$2 out=$3
version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" meson.build)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# install_to BUILD FOLDER
install_to() {
    DESTDIR=$2 meson install -C "$1" --no-rebuild --strip --quiet >/dev/null
    rm "$2/usr/lib/libpfmoe.a"
}

# The shared libraries of files and of what they need, as paths, without libc's.
libraries_of() {
    for f; do ldd "$f"; done | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | grep -Ev '/(libc|libm|libdl|librt|libpthread)\.so' | sort -u
}

# The package that a library is from.
package_of() {
    { dpkg -S "$(realpath "$1")" 2>/dev/null || dpkg -S "*/$(basename "$1")"; } | cut -d: -f1
}

# Licences of libraries that are part of the tarball, linked or copied.
copy_licences() {
    mkdir -p "$1"
    for p in libedit2 libbsd0 libmd0 libtinfo6 libnuma1 liburing2 libutf8proc-dev libxxhash0 $(for l in $2; do package_of "$l"; done); do
        [ ! -f "/usr/share/doc/$p/copyright" ] || cp "/usr/share/doc/$p/copyright" "$1/$p"
    done
}

make_tarball() {
    name=pfmoe-$version-linux-$(uname -m)
    install_to "$portable" "$work/portable"
    mv "$work/portable/usr" "$work/$name"
    rm -r "$work/$name/lib/systemd"                           # its unit names /usr/bin
    libraries=$(libraries_of "$work/$name/bin/pfmoe-serve" "$work/$name"/lib/libpfmoe.so.*.*)
    mkdir "$work/$name/lib/pfmoe"
    for l in $libraries; do cp -L "$l" "$work/$name/lib/pfmoe/"; done
    copy_licences "$work/$name/share/doc/pfmoe/licences" "$libraries"
    tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
    echo "$out/$name.tar.gz"
}

# Debian's names of what the files in $1 are linked with, for Depends.
depends_of() {
    needed=$(for f in $1; do readelf -d "$f"; done | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u)
    glibc=$(for f in $1; do objdump -T "$f"; done | grep -o 'GLIBC_2[0-9.]*' | cut -d_ -f2 | sort -Vu | tail -1)
    printf 'libc6 (>= %s)' "$glibc"
    for l in $(libraries_of $1); do
        case " $(echo $needed) " in *" $(basename "$l") "*) package_of "$l" ;; esac
    done | sort -u | sed 's/^/, /' | tr -d '\n'
}

make_deb() {
    root=$work/deb arch=$(dpkg --print-architecture)
    install_to "$deb" "$root"
    gzip -9n "$root"/usr/share/man/man1/*.1
    mv "$root/usr/share/doc/pfmoe/LICENSE" "$root/usr/share/doc/pfmoe/copyright"
    mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
    mkdir "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<C
Package: pfmoe
Version: $version
Architecture: $arch
Maintainer: the pfmoe developers <pfmoe@localhost>
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: $(depends_of "$(echo "$root"/usr/bin/* "$root"/usr/lib/libpfmoe.so.*.*)")
Recommends: ca-certificates
Section: science
Priority: optional
Description: inference for mixture-of-experts models that do not fit the GPU
 Runs language models from GGUF files: a chat, a server, a bench, and the library libpfmoe with its header.
C
    printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
    dpkg-deb --root-owner-group --build "$root" "$out/pfmoe_${version}_$arch.deb" >/dev/null
    echo "$out/pfmoe_${version}_$arch.deb"
}

make_tarball
! command -v dpkg-deb >/dev/null 2>&1 || make_deb

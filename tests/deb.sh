#!/bin/sh
# deb.sh - what `make deb` made, in a bare Debian: lintian has no complaint, the packages install, the demo's steps run
#
# ROOT (build/deb-root) is the bare Debian: made by debootstrap, SUITE (that of this machine) from MIRROR, when it is
# not there; what this script puts into it is removed again, the packages too. Needs root, a mirror and some minutes,
# so no other target runs it: make deb && sh tests/deb.sh
set -eu
cd "$(dirname "$0")/.."
. /etc/os-release
root=${ROOT:-build/deb-root} mirror=${MIRROR:-http://deb.debian.org/debian} suite=${SUITE:-$VERSION_CODENAME}
mkckpt=${TBIN:-build/release/tests}/bench/mkckpt
debs=$(find build/deb -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*')
[ -n "$debs" ] || { echo "deb: build/deb has no packages: make deb" >&2; exit 1; }
[ -x "$mkckpt" ] || { echo "deb: no $mkckpt: make tests-bin" >&2; exit 1; }

if command -v lintian >/dev/null; then
    lintian --fail-on error,warning build/deb/*.changes
    echo "lintian: no error, no warning"
else
    echo "lintian is not installed: not asked"
fi

[ -e "$root/etc/debian_version" ] || debootstrap --variant=minbase "$suite" "$root" "$mirror" >build/deb/debootstrap.log
root=$(cd "$root" && pwd)
names=$(for d in $debs; do basename "$d" | sed 's/_.*//'; done)
# shellcheck disable=SC2086
clean() {
    chroot "$root" apt-get purge -y -qq $names >/dev/null 2>&1 || true
    rm -rf "$root/shardkit"
    umount "$root/dev/shm" "$root/proc" 2>/dev/null || true
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir -p "$root/shardkit/tests/data" "$root/shardkit/debs"
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm" && mount -t tmpfs tmpfs "$root/dev/shm"
# shellcheck disable=SC2086
cp $debs "$root/shardkit/debs"
cp -R tests/demo.sh tests/lib "$root/shardkit/tests"
cp -R tests/data/demo tests/data/text "$root/shardkit/tests/data"
# The one program of the demo that is no part of the packages; its libraries are those of the tools.
mkdir "$root/shardkit/bench" && cp "$mkckpt" "$root/shardkit/bench"
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }

in_root apt-get update -qq
in_root sh -c 'apt-get install -y -qq /shardkit/debs/*.deb' >build/deb/install.log 2>&1 ||
    { tail -n 20 build/deb/install.log >&2; echo "deb: apt-get install failed; all it said is in build/deb/install.log" >&2; exit 1; }
# shellcheck disable=SC2086
in_root dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}, ${Installed-Size} KiB\n' $names
in_root env BIN=/usr/bin TBIN=/shardkit sh /shardkit/tests/demo.sh

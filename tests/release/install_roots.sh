#!/bin/sh
# install_roots.sh - the packages of `make release` in bare roots of Debian and of RPM: install, run, verify, remove
#
# ROOT (build/deb-root) is the bare Debian. debootstrap makes it, with SUITE (that of this machine) from MIRROR, if it is
# not there. The packages are removed from it again, and must leave nothing. DEMO=1 also runs the steps of `make demo` with the
# installed programs. Needs root, and for Debian a mirror and some minutes. What cannot run here is skipped by name.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh || exit 1
version=$(cat VERSION) arch=$(uname -m) set_=tests/data/bloom-tp2pp2dp2
skipped() { echo "skipped: $*"; }

[ "$(id -u)" -eq 0 ] || skip "install_roots: needs root"
"$BIN/export-hf" -q "$set_" "$W/normal" || skip "install_roots: no normal build to compare with: make all"

# Verify a set in a root, convert it, and compare the result with that of the normal build.
check_programs() { # NAME ROOT
    mkdir -p "$2/shardkit-test"
    cp -R "$set_" "$2/shardkit-test/set"
    check "$1: verify" in_root "$2" shardkit verify /shardkit-test/set
    check "$1: a tool by its own name" in_root "$2" ckpt-inspect /shardkit-test/set
    check "$1: to safetensors" in_root "$2" shardkit convert /shardkit-test/set --to hf /shardkit-test/model
    check "$1: the bytes of the normal build" cmp "$2/shardkit-test/model/model.safetensors" "$W/normal/model.safetensors"
    rm -rf "$2/shardkit-test"
}
in_root() { # ROOT COMMAND...
    r=$1; shift
    chroot "$r" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"
}
# Files of packages, not what programs keep: caches, lists, logs.
files_of() { find "$1" -xdev \( -path "$1/var/*" -o -path "$1/tmp/*" -o -path "$1/proc" -o -path "$1/dev" \) -prune -o -print | sort; }

# ---- Debian --------------------------------------------------------------------------

debs=$(find dist -maxdepth 1 -name '*.deb' 2>/dev/null)
root=${ROOT:-build/deb-root}
# shellcheck source=/dev/null
. /etc/os-release
make_root() {
    [ ! -e "$root/etc/debian_version" ] || return 0
    debootstrap --variant=minbase "${SUITE:-$VERSION_CODENAME}" "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$W/debootstrap" 2>&1
}
if [ -z "$debs" ]; then
    skipped "Debian: dist has no packages: make release"
elif [ ! -e "$root/etc/debian_version" ] && ! command -v debootstrap >/dev/null; then
    skipped "Debian: no debootstrap"
elif ! make_root; then
    skipped "Debian: debootstrap cannot make $root: $(tail -n 1 "$W/debootstrap")"
elif ! in_root "$root" apt-get update -qq >"$W/update" 2>&1; then
    skipped "Debian: no mirror: $(tail -n 1 "$W/update")"
else
    root=$(cd "$root" && pwd)
    names=$(for d in $debs; do basename "$d" | sed 's/_.*//'; done)
    mkdir -p "$root/shardkit-debs"
    # shellcheck disable=SC2064
    trap "umount '$root/dev/shm' '$root/proc' 2>/dev/null; rm -rf '$root/shardkit-debs' '$root/shardkit-test'" EXIT
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm" && mount -t tmpfs tmpfs "$root/dev/shm"
    # shellcheck disable=SC2086
    cp $debs "$root/shardkit-debs"
    # What the packages depend on first: it stays, so that the files of the packages alone are compared.
    depends=$(in_root "$root" sh -c 'apt-get install -s /shardkit-debs/*.deb' | awk '$1 == "Inst" { print $2 }' |
        grep -vxF "$names")
    # shellcheck disable=SC2086
    check "Debian: what the packages depend on" in_root "$root" apt-get install -y -qq --mark-auto apt $depends
    files_of "$root" >"$W/before"
    check "Debian: dpkg -i" in_root "$root" sh -c 'dpkg -i /shardkit-debs/*.deb'
    # shellcheck disable=SC2086
    check "Debian: all are installed" sh -c '[ "$(chroot "$1" dpkg-query -W -f "\${db:Status-Status}\n" $2 | sort -u)" = installed ]' \
        - "$root" "$names"
    check "Debian: no file differs from its package" sh -c '[ -z "$(chroot "$1" dpkg --verify $2)" ]' - "$root" "$names"
    check_programs Debian "$root"
    check "Debian: train" in_root "$root" train --version
    check "Debian: the man page" test -s "$root/usr/share/man/man1/shardkit.1.gz"
    if [ -n "${DEMO:-}" ]; then
        mkdir -p "$root/shardkit-test/tests/data" "$root/shardkit-test/bench"
        cp -R tests/demo.sh tests/lib "$root/shardkit-test/tests"
        cp -R tests/data/demo tests/data/text "$root/shardkit-test/tests/data"
        # The one program of the demo that is no part of the packages; its libraries are those of the tools.
        cp "$TBIN/bench/mkckpt" "$root/shardkit-test/bench"
        check "Debian: the demo" in_root "$root" env BIN=/usr/bin TBIN=/shardkit-test sh /shardkit-test/tests/demo.sh
        rm -rf "$root/shardkit-test"
    fi
    # shellcheck disable=SC2086
    check "Debian: dpkg --purge" in_root "$root" dpkg --purge $names
    files_of "$root" >"$W/after"
    rmdir "$root/shardkit-test" 2>/dev/null
    check "Debian: nothing is left" diff "$W/before" "$W/after"
fi

# ---- RPM -----------------------------------------------------------------------------

rpm=dist/shardkit-$version-1.$arch.rpm
if ! command -v rpm >/dev/null; then
    skipped "RPM: no rpm here"
elif [ ! -e "$rpm" ]; then
    skipped "RPM: no $rpm: make release"
else
    root=$W/rpm
    mkdir -p "$root/usr/bin" "$root/tmp"
    check "RPM: an empty data base" rpm --root "$root" --initdb
    # env, for check_programs, is not in an empty root.
    in_root() { r=$1; shift; env -i PATH=/usr/bin chroot "$r" "$@"; }
    files_of "$root" >"$W/before"
    check "RPM: install" rpm --root "$root" -i "$rpm"
    check "RPM: no file differs from its package" rpm --root "$root" -V shardkit
    check_programs RPM "$root"
    check "RPM: the man page" test -s "$root/usr/share/man/man1/shardkit.1"
    check "RPM: erase" rpm --root "$root" -e shardkit
    files_of "$root" >"$W/after"
    check "RPM: nothing is left" diff "$W/before" "$W/after"
fi
finish

#!/bin/sh
# install_roots.sh - the packages of `make release` in bare roots of Debian and of RPM, and the wheel with an old glibc
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
make_root() { # ROOT SUITE OPTION...
    [ ! -e "$1/etc/debian_version" ] || return 0
    where=$1 suite=$2
    shift 2
    debootstrap --variant=minbase "$@" "$suite" "$where" "${MIRROR:-http://deb.debian.org/debian}" >"$W/debootstrap" 2>&1
}
if [ -z "$debs" ]; then
    skipped "Debian: dist has no packages: make release"
elif ! make_root "$root" "${SUITE:-$VERSION_CODENAME}"; then
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
    check "Debian: what the packages depend on" in_root "$root" apt-get install -y -qq $depends
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

# ---- the wheel with an old glibc -----------------------------------------------------

# OLD_ROOT (build/deb-root-old): a Debian whose glibc, 2.31, has threads and dlopen in libraries of their own. glibc 2.28,
# which the wheel's name states, is that of a Debian which is on no mirror any more.
wheel=$(find dist -maxdepth 1 -name "shardkit-*_$arch.whl" 2>/dev/null)
root=${OLD_ROOT:-build/deb-root-old}
if [ -z "$wheel" ]; then
    skipped "the wheel with an old glibc: dist has no wheel: make release"
elif ! make_root "$root" bullseye --include=python3; then
    skipped "the wheel with an old glibc: debootstrap cannot make $root: $(tail -n 1 "$W/debootstrap")"
else
    mkdir -p "$root/shardkit-test/wheel"
    cp -R "$set_" "$root/shardkit-test/set"
    python3 -m zipfile -e "$wheel" "$root/shardkit-test/wheel"
    cat >"$root/shardkit-test/read.py" <<'PYTHON'
import hashlib
import sys
import shardkit
path = sys.argv[1]
assert shardkit.verify(path).sound
digest = hashlib.sha256()
with shardkit.open(path) as ck:
    for name in sorted(ck):
        for state in ck.states(name):
            digest.update(ck.read(name, state))
print(digest.hexdigest())
PYTHON
    env PYTHONPATH="$root/shardkit-test/wheel" python3 "$root/shardkit-test/read.py" "$set_" >"$W/here"
    in_root "$root" PYTHONPATH=/shardkit-test/wheel python3 /shardkit-test/read.py /shardkit-test/set >"$W/there" 2>"$W/there.log"
    check "the wheel with $(in_root "$root" ldd --version | head -n 1): the same tensors" cmp "$W/here" "$W/there"
    head -n 5 "$W/there.log"
    # train, too, needs nothing else: two ranks over sockets, here by the normal build.
    cp -R tests/data/text "$root/shardkit-test"
    cp "$root"/shardkit-test/wheel/shardkit-*.data/scripts/train "$root/shardkit-test/train"
    chmod 755 "$root/shardkit-test/train"
    cat >"$root/shardkit-test/two" <<'TWO'
cd "$1" && for r in 0 1; do
    RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$3 "$2" --num-layers 2 --hidden-size 16 \
        --num-attention-heads 2 --seq-length 16 --micro-batch-size 1 --train-samples 16 --global-batch-size 4 --lr 1e-3 \
        --data-path text/text_document --vocab-size 257 --tensor-model-parallel-size 2 --threads 1 --save-interval 2 \
        --save trained >log.$r 2>&1 &
done
wait
TWO
    port=$((20000 + $(random 10000)))
    mkdir "$W/trained" && cp -R tests/data/text "$W/trained"
    sh "$root/shardkit-test/two" "$W/trained" "$BIN/train" $port
    in_root "$root" sh /shardkit-test/two /shardkit-test /shardkit-test/train $port
    check "train with an old glibc: the same checkpoint" ckpt-inspect diff "$W/trained/trained" \
        "$root/shardkit-test/trained"
    rm -rf "$root/shardkit-test"
fi

# ---- RPM -----------------------------------------------------------------------------

rpm=dist/shardkit-$version-1.$arch.rpm
if ! command -v rpm >/dev/null; then
    skipped "RPM: no rpm here"
elif [ ! -e "$rpm" ]; then
    skipped "RPM: no $rpm: make release"
else
    root=$W/rpm
    mkdir -p "$root/tmp"
    # What the package "filesystem" of each RPM distribution has.
    (mkdir -p "$root/usr" && cd "$root/usr" && mkdir -p bin share/bash-completion/completions share/doc share/man/man1 \
        share/zsh/site-functions)
    check "RPM: an empty data base" rpm --root "$root" --initdb
    # env, for check_programs, is not in an empty root.
    in_root() { r=$1; shift; env -i PATH=/usr/bin:/usr/sbin chroot "$r" "$@"; }
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

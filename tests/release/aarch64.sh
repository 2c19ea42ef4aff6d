#!/bin/sh
# aarch64.sh - the static program and the unit tests of aarch64 (`make static static-tests ARCH=aarch64`), under qemu
#
# Each conversion writes the bytes that the normal build of this machine writes. All programs of tests/unit run, those that
# repeat a check many times with smaller numbers (MUTANTS, FLIP_SHARE); T='format/*' runs only those. A part or
# program whose build is missing is skipped by name.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/conversions.sh || exit 1
root=$PWD built=$PWD/build/static-aarch64

if [ "$(uname -m)" = aarch64 ]; then
    emulator=env
elif command -v qemu-aarch64-static >/dev/null; then
    emulator=qemu-aarch64-static
else
    skip "aarch64: no qemu-aarch64-static (qemu-user-static)"
fi

mkdir "$W/normal" "$W/arm"

# ---- the program ---------------------------------------------------------------------

if [ -n "${T:-}" ]; then
    echo "skipped: the program and the library: T"
elif [ -x "$built/bin/shardkit" ]; then
    is_static() { readelf -hW "$1" | grep -q AArch64 && ! readelf -lW "$1" | grep -q INTERP; }
    check "the program is static and of aarch64" is_static "$built/bin/shardkit"
    mkdir "$W/normal/out" "$W/arm/out"
    ln -s "$root/tests/data" "$W/normal/data"
    ln -s "$root/tests/data" "$W/arm/data"
    (cd "$W/normal" && conversions "$BIN" out env) >"$W/normal.text"
    check "the conversions of the normal build" sh -c 'grep -c "status 0" "$1" | grep -qx 49' - "$W/normal.text"
    in_arm() { if [ "$1" = mkdir ]; then "$@"; else "$emulator" "$@"; fi; }
    (cd "$W/arm" && conversions "$built/bin" out in_arm) >"$W/arm.text"
    check "the same files" equal_trees "$W/normal/out" "$W/arm/out"
    same_text "$W/normal.text" out >"$W/a"
    same_text "$W/arm.text" out >"$W/b"
    check "the same text" diff "$W/a" "$W/b"
    for set in torchdist/gpt/iter_0000005 dcp/mesh/ckpt zero/zero3-gpt2-4ranks/ckpt; do
        "$BIN/ckpt-inspect" verify "tests/data/$set" >"$W/a" 2>&1
        "$emulator" "$built/bin/ckpt-inspect" verify "tests/data/$set" >"$W/b" 2>&1
        check "verify $set" cmp "$W/a" "$W/b"
    done
else
    echo "skipped: the program: no $built/bin/shardkit: make static ARCH=aarch64"
fi

# A fused multiply-add rounds once, and x86-64 has none in its baseline: the same sums would have other bits.
objdump=objdump
[ "$(uname -m)" = aarch64 ] || objdump=aarch64-linux-gnu-objdump
if [ -z "${T:-}" ] && [ -d "$built/obj/libcommon" ] && command -v $objdump >/dev/null; then
    fused() { find "$built/obj/libcommon" "$built/obj/tools" -name '*.o' -exec $objdump -d {} + | grep -E '[[:space:]]fn?m(add|sub|la|ls)[[:space:]]'; }
    fused >"$W/fused"
    check "no fused multiply-add outside of the kernels" sh -c '! head -n 3 "$1" | grep .' - "$W/fused"
fi

# ---- the library of the wheel --------------------------------------------------------

cc=aarch64-linux-gnu-gcc native=build/static-$(uname -m)/lib
if [ -n "${T:-}" ]; then
    :
elif [ ! -e "$built/lib/libshardkit.so.1" ] || [ ! -e "$native/libshardkit.so.1" ]; then
    echo "skipped: the library: not built: make static for aarch64 and $(uname -m)"
elif ! command -v $cc >/dev/null; then
    echo "skipped: the library: no $cc"
else
    no_newer_glibc() { ! readelf -VW "$built"/lib/*.so* | grep -oE 'Name: GLIBC_2\.(29|[3-9][0-9])'; }
    check "the library needs glibc 2.28 at most" no_newer_glibc
    check "the C example compiles" $cc -Iinclude -o "$W/arm/list" examples/list_tensors.c "$built/lib/libshardkit.so.1"
    check "and for this machine" gcc -Iinclude -o "$W/normal/list" examples/list_tensors.c "$native/libshardkit.so.1"
    LD_LIBRARY_PATH=$native "$W/normal/list" tests/data/gpt2-tp2pp2dp1 >"$W/a" 2>&1
    case $emulator in qemu*) emulator="$emulator -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$built/lib" ;; esac
    # shellcheck disable=SC2086
    $emulator "$W/arm/list" tests/data/gpt2-tp2pp2dp1 >"$W/b" 2>&1
    check "the library lists and reads the same tensors" cmp "$W/a" "$W/b"
fi

# ---- the unit tests ------------------------------------------------------------------

# Run a test program, whose output names each case; add its cases to the counts.
run_unit() { # FOLDER/TEST
    test=${1#*/}
    if [ ! -x "$built/obj/tests/$test" ]; then
        echo "skipped: $1: not built"
        n_skipped=$((n_skipped + 1))
        return
    fi
    begin=$(date +%s)
    # Threads under qemu are slow, not wrong: only a test that hangs takes this long, and SLOWNESS multiplies the time that
    # a test gives its ranks. TEST_SELF is for a program that starts itself once more, which the kernel cannot do without
    # the emulator.
    # shellcheck disable=SC2086
    if TMPDIR=$W QUICK=1 MUTANTS=40 FLIP_SHARE=8 OMP_WAIT_POLICY=passive SLOWNESS=10 TEST_SELF="$emulator $built/obj/tests/$test" \
        timeout 3600 $emulator "$built/obj/tests/$test" >"$W/unit" 2>&1; then
        cases=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$W/unit" | awk '{ n += $1 } END { print n + 0 }')
        [ "$cases" -gt 0 ] || cases=1           # a program without cmocka
        passed=$((passed + cases)) programs=$((programs + 1))
        echo "$1: $cases cases, $(($(date +%s) - begin)) s"
    else
        fail "$1: exit status $?"
        grep -v '^\[ *\(RUN\|OK\)' "$W/unit" | sed 's/^/    /' | tail -n 20
    fi
}

if [ -d "$built/obj/tests" ]; then
    programs=0 n_skipped=0
    for source in tests/unit/*/test_*.c; do
        name=${source#tests/unit/}
        # shellcheck disable=SC2254
        case ${name%.c} in ${T:-*}) run_unit "${name%.c}" ;; esac
    done
    echo "the unit tests: $programs programs passed, $n_skipped skipped"
else
    echo "skipped: the unit tests: none are built: make static-tests ARCH=aarch64"
fi
finish

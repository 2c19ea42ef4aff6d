#!/bin/sh
# static.sh - the static programs (`make static`): no shared library, an empty chroot, equal bytes, time
#
# STATIC (build/static-ARCH/bin) holds the programs of this machine's architecture, BIN (bin) those that are compared.
# Needs root or user namespaces for the chroot, and qemu-x86_64-static for a processor without AVX and a kernel without
# io_uring; a check whose need is missing is skipped by name. QUICK=1 leaves out the times.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
root=$PWD BIN=${BIN:-$PWD/bin} STATIC=${STATIC:-$PWD/build/static-$(uname -m)/bin} TBIN=${TBIN:-build/release/tests}
work=$(mktemp -d "${TMPDIR:-/tmp}/static-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL $*"; }
check() { what=$1; shift; if "$@"; then ok; else bad "$what"; fi; }
skip() { echo "skip $*"; }

[ -x "$STATIC/ckpt-inspect" ] || { echo "static: no $STATIC/ckpt-inspect: make static" >&2; exit 1; }
tools=$(cd "$STATIC" && echo ckpt-* ds2* export-* merge-* preprocess reshape run-watch)

# ---- the file ------------------------------------------------------------------------

has_no_libraries() { ! readelf -lW "$STATIC/shardkit" | grep -q INTERP && ! readelf -dW "$STATIC/shardkit" 2>/dev/null | grep -q NEEDED; }
has_no_paths() { ! strings "$STATIC/shardkit" | grep -F "$root"; }
is_stripped() { ! readelf -SW "$STATIC/shardkit" | grep -q '\.symtab'; }
check "the program asks for shared libraries" has_no_libraries
check "the program holds the path of its build" has_no_paths
check "the program holds a symbol table" is_stripped
for t in $tools; do
    check "$t --help differs" sh -c '"$1/$3" --help >"$4/a" 2>&1; "$2/$3" --help >"$4/b" 2>&1; cmp -s "$4/a" "$4/b"' - "$BIN" "$STATIC" "$t" "$work"
done
printf 'static: %s bytes; %s\n' "$(stat -c %s "$STATIC/shardkit")" "$(readelf -nW "$STATIC/shardkit" | sed -n 's/.*ABI: /for /p')"

# ---- equal bytes ---------------------------------------------------------------------

# what BIN OUT RUN... - one command of each kind; RUN... precedes each program. Paths are relative, so that text agrees.
conversions() {
    bin=$1 out=$2
    shift 2
    for set in bloom-tp2pp2dp2 gpt2-fp16-tp2pp2dp2; do
        in=data/$set/global_step20 to=$out/$set
        "$@" mkdir "$to"
        for run in "ckpt-inspect $in" "ckpt-inspect ls $in" "ckpt-inspect verify $in" "ckpt-inspect stats $in" \
            "ds2universal -q $in $to/universal" "ds2universal -q --format hdf5 $in $to/hdf5" "merge-tp -q $in $to/merged" \
            "ckpt-inspect verify $to/hdf5" "reshape -q --target-tp 1 --target-pp 4 --target-dp 2 $in $to/reshaped" \
            "reshape -q --to dcp --ranks 3 $in $to/dcp" "reshape -q --to zero3 --ranks 2 $in $to/zero3" \
            "export-hf -q $in $to/hf" "export-hf -q --dtype fp32 $to/dcp $to/hf-dcp" \
            "ckpt-edit cast fp16 $in $to/edited" "ckpt-edit vocab --tokens 300 $in $to/vocab" \
            "ckpt-backup copy -q --pack $in $to/backup" "ckpt-backup verify $to/backup" \
            "ckpt-backup copy -q $in $to/copied" "ckpt-backup verify $to/copied"; do
            echo "$run"
            # shellcheck disable=SC2086
            "$@" "$bin"/$run 2>&1
            echo "status $?"
        done
    done
}
# Times of a run, and records that hold them, differ from run to run.
equal_trees() { diff -r -x .ckpt-backup -x '*.log' "$1" "$2"; }
same_text() { sed "s|$2|OUT|g; s/[0-9.]* [KMG]*B\/s//; s/[0-9.]* s\b//" "$1"; }

mkdir "$work/normal" "$work/normal/out"
ln -s "$root/tests/data" "$work/normal/data"
(cd "$work/normal" && conversions "$BIN" out env) >"$work/normal.text"
check "a conversion of the normal build failed" sh -c 'grep -c "status 0" "$1" | grep -qx 38' - "$work/normal.text"

# ---- an empty chroot -----------------------------------------------------------------

mkdir "$work/empty" "$work/empty/bin" "$work/empty/data" "$work/empty/out" "$work/empty/tmp"
cp -P "$STATIC"/* "$work/empty/bin"
cp -R tests/data/bloom-tp2pp2dp2 tests/data/gpt2-fp16-tp2pp2dp2 "$work/empty/data"
if [ "$(id -u)" -eq 0 ] && chroot "$work/empty" /bin/ckpt-inspect --version >/dev/null 2>&1; then
    in_empty() { chroot "$work/empty" "$@"; }
elif unshare -r chroot "$work/empty" /bin/ckpt-inspect --version >/dev/null 2>&1; then
    in_empty() { unshare -r chroot "$work/empty" "$@"; }
else
    in_empty() { false; }
    skip "an empty chroot: neither root nor user namespaces"
fi
# The chroot has no mkdir.
in_empty_or_outside() { if [ "$1" = mkdir ]; then mkdir "$work/empty/$2"; else in_empty "$@"; fi; }
if in_empty /bin/ckpt-inspect --version >"$work/version"; then
    conversions bin out in_empty_or_outside >"$work/empty.text"
    check "the empty chroot: files differ" equal_trees "$work/normal/out" "$work/empty/out"
    same_text "$work/normal.text" out >"$work/a"
    same_text "$work/empty.text" out >"$work/b"
    check "the empty chroot: text differs" diff "$work/a" "$work/b"
fi

# ---- an old processor and an old kernel ------------------------------------------------

# qemu offers no io_uring. Nehalem is x86-64-v2.
if [ "$(uname -m)" != x86_64 ]; then
    skip "a processor without AVX: this machine is no x86_64"
elif ! command -v qemu-x86_64-static >/dev/null; then
    skip "a processor without AVX and a kernel without io_uring: no qemu-x86_64-static (qemu-user-static)"
else
    mkdir "$work/old" "$work/old/out"
    ln -s "$root/tests/data" "$work/old/data"
    in_old() { if [ "$1" = mkdir ]; then "$@"; else qemu-x86_64-static -cpu Nehalem -r 4.15.0 "$@"; fi; }
    (cd "$work/old" && conversions "$STATIC" out in_old) >"$work/old.text"
    check "an old processor and kernel: files differ" equal_trees "$work/normal/out" "$work/old/out"
    same_text "$work/normal.text" out >"$work/a"
    same_text "$work/old.text" out | grep -v '^qemu-x86_64-static: warning' >"$work/b"
    check "an old processor and kernel: text differs" diff "$work/a" "$work/b"
fi

# ---- time ----------------------------------------------------------------------------

# Run a command; print its processor time and its wall-clock time in ms. Only the former ignores what else runs here.
times_ms() {
    begin=$(date +%s%N)
    cpu=$({ "$@" >/dev/null 2>&1 && times; } | awk 'NR == 2 { gsub(/[ms]/, " "); print int(1000 * (60 * ($1 + $3) + $2 + $4)) }')
    echo "${cpu:-failed} $((($(date +%s%N) - begin) / 1000000))"
}
# Compare the least processor time of 5 runs, the two builds in turn: at most 10 % and 20 ms more.
compare_times() { # LABEL TOOL ARGUMENT...
    label=$1 tool=$2 a=999999999 b=999999999 wall_a=999999999 wall_b=999999999
    shift 2
    for _ in 1 2 3 4 5; do
        rm -rf "$work/out"
        read -r cpu wall <<RUN
$(times_ms "$BIN/$tool" "$@")
RUN
        [ "$cpu" != failed ] || { bad "$label: the normal build failed"; return; }
        [ "$cpu" -ge "$a" ] || a=$cpu
        [ "$wall" -ge "$wall_a" ] || wall_a=$wall
        rm -rf "$work/out"
        read -r cpu wall <<RUN
$(times_ms "$STATIC/$tool" "$@")
RUN
        [ "$cpu" != failed ] || { bad "$label: the static build failed"; return; }
        [ "$cpu" -ge "$b" ] || b=$cpu
        [ "$wall" -ge "$wall_b" ] || wall_b=$wall
    done
    echo "time: $label: processor $a ms, static $b ms; wall clock $wall_a ms, static $wall_b ms"
    check "$label is slower: $b ms, the normal build $a ms" [ "$b" -le $((a + a / 10 + 20)) ]
}
if [ -n "${QUICK:-}" ]; then
    skip "times: QUICK"
elif [ ! -x "$TBIN/bench/mkckpt" ]; then
    skip "times: no $TBIN/bench/mkckpt: make tests-bin"
else
    "$TBIN/bench/mkckpt" --layers 4 --hidden 1024 --heads 16 --vocab 8000 "$work/large" >/dev/null
    compare_times "verify" ckpt-inspect verify "$work/large"
    compare_times "universal" ds2universal -q "$work/large" "$work/out"
    compare_times "hdf5" ds2universal -q --format hdf5 "$work/large" "$work/out"
    compare_times "export" export-hf -q "$work/large" "$work/out"
    compare_times "backup" ckpt-backup copy -q --pack "$work/large" "$work/out"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

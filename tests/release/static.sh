#!/bin/sh
# static.sh - the static programs (`make static`): no shared library, an empty chroot, equal bytes, time
#
# STATIC (build/static-ARCH/bin) holds the programs of this machine's architecture, BIN (bin) those that are compared.
# Needs root or user namespaces for the chroot, and qemu-x86_64-static for a processor without AVX and a kernel without
# io_uring; a check whose need is missing is skipped by name. QUICK=1 leaves out the times.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/conversions.sh || exit 1
root=$PWD STATIC=${STATIC:-$PWD/build/static-$(uname -m)/bin}

skipped() { echo "skipped: $*"; }

[ -x "$STATIC/ckpt-inspect" ] || skip "static: no $STATIC/ckpt-inspect: make static"
tools=$(cd "$STATIC" && echo ckpt-* ds2* export-* merge-* preprocess reshape run-watch)

# ---- the file ------------------------------------------------------------------------

has_no_libraries() { ! readelf -lW "$STATIC/shardkit" | grep -q INTERP && ! readelf -dW "$STATIC/shardkit" 2>/dev/null | grep -q NEEDED; }
has_no_paths() { ! strings "$STATIC/shardkit" | grep -F "$root"; }
is_stripped() { ! readelf -SW "$STATIC/shardkit" | grep -q '\.symtab'; }
check "the program asks for shared libraries" has_no_libraries
check "the program holds the path of its build" has_no_paths
check "the program holds a symbol table" is_stripped
for t in $tools; do
    check "$t --help differs" sh -c '"$1/$3" --help >"$4/a" 2>&1; "$2/$3" --help >"$4/b" 2>&1; cmp -s "$4/a" "$4/b"' - "$BIN" "$STATIC" "$t" "$W"
done
# README.md names the size in MB and the oldest kernel.
has_size_of_readme() {
    grep -q "static program of $((($(stat -c %s "$STATIC/shardkit") + 500000) / 1000000)) MB .*(x86-64, Linux $(readelf -nW \
        "$STATIC/shardkit" | sed -n 's/.*OS: Linux, ABI: \([0-9]*\.[0-9]*\)\..*/\1/p'))" README.md
}
[ "$(uname -m)" != x86_64 ] || check "README.md names another size or kernel" has_size_of_readme
printf 'static: %s bytes; %s\n' "$(stat -c %s "$STATIC/shardkit")" "$(readelf -nW "$STATIC/shardkit" | sed -n 's/.*ABI: /for /p')"

# ---- equal bytes ---------------------------------------------------------------------

mkdir "$W/normal" "$W/normal/out"
ln -s "$root/tests/data" "$W/normal/data"
(cd "$W/normal" && conversions "$BIN" out env) >"$W/normal.text"
check "a conversion of the normal build failed" sh -c 'grep -c "status 0" "$1" | grep -qx 49' - "$W/normal.text"

# ---- an empty chroot -----------------------------------------------------------------

mkdir "$W/empty" "$W/empty/bin" "$W/empty/data" "$W/empty/out" "$W/empty/tmp"
cp -P "$STATIC"/* "$W/empty/bin"
cp -R tests/data/bloom-tp2pp2dp2 tests/data/gpt2-fp16-tp2pp2dp2 tests/data/peft "$W/empty/data"
if [ "$(id -u)" -eq 0 ] && chroot "$W/empty" /bin/ckpt-inspect --version >/dev/null 2>&1; then
    in_empty() { chroot "$W/empty" "$@"; }
elif unshare -r chroot "$W/empty" /bin/ckpt-inspect --version >/dev/null 2>&1; then
    in_empty() { unshare -r chroot "$W/empty" "$@"; }
else
    in_empty() { false; }
    skipped "an empty chroot: neither root nor user namespaces"
fi
# The chroot has no mkdir.
in_empty_or_outside() { if [ "$1" = mkdir ]; then mkdir "$W/empty/$2"; else in_empty "$@"; fi; }
if in_empty /bin/ckpt-inspect --version >"$W/version"; then
    conversions bin out in_empty_or_outside >"$W/empty.text"
    check "the empty chroot: files differ" equal_trees "$W/normal/out" "$W/empty/out"
    same_text "$W/normal.text" out >"$W/a"
    same_text "$W/empty.text" out >"$W/b"
    check "the empty chroot: text differs" diff "$W/a" "$W/b"
fi

# ---- an old processor and an old kernel ------------------------------------------------

# qemu offers no io_uring. Nehalem is x86-64-v2.
if [ "$(uname -m)" != x86_64 ]; then
    skipped "a processor without AVX: this machine is no x86_64"
elif ! command -v qemu-x86_64-static >/dev/null; then
    skipped "a processor without AVX and a kernel without io_uring: no qemu-x86_64-static (qemu-user-static)"
else
    mkdir "$W/old" "$W/old/out"
    ln -s "$root/tests/data" "$W/old/data"
    in_old() { if [ "$1" = mkdir ]; then "$@"; else qemu-x86_64-static -cpu Nehalem -r 4.15.0 "$@"; fi; }
    (cd "$W/old" && conversions "$STATIC" out in_old) >"$W/old.text"
    check "an old processor and kernel: files differ" equal_trees "$W/normal/out" "$W/old/out"
    same_text "$W/normal.text" out >"$W/a"
    same_text "$W/old.text" out | grep -v '^qemu-x86_64-static: warning' >"$W/b"
    check "an old processor and kernel: text differs" diff "$W/a" "$W/b"
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
        rm -rf "$W/out"
        read -r cpu wall <<RUN
$(times_ms "$BIN/$tool" "$@")
RUN
        [ "$cpu" != failed ] || { fail "$label: the normal build failed"; return; }
        [ "$cpu" -ge "$a" ] || a=$cpu
        [ "$wall" -ge "$wall_a" ] || wall_a=$wall
        rm -rf "$W/out"
        read -r cpu wall <<RUN
$(times_ms "$STATIC/$tool" "$@")
RUN
        [ "$cpu" != failed ] || { fail "$label: the static build failed"; return; }
        [ "$cpu" -ge "$b" ] || b=$cpu
        [ "$wall" -ge "$wall_b" ] || wall_b=$wall
    done
    echo "time: $label: processor $a ms, static $b ms; wall clock $wall_a ms, static $wall_b ms"
    check "$label is slower: $b ms, the normal build $a ms" [ "$b" -le $((a + a / 10 + 20)) ]
}
if [ -n "${QUICK:-}" ]; then
    skipped "times: QUICK"
elif [ ! -x "$TBIN/bench/mkckpt" ]; then
    skipped "times: no $TBIN/bench/mkckpt: make tests-bin"
else
    "$TBIN/bench/mkckpt" --layers 4 --hidden 1024 --heads 16 --vocab 8000 "$W/large" >/dev/null
    compare_times "verify" ckpt-inspect verify "$W/large"
    compare_times "universal" ds2universal -q "$W/large" "$W/out"
    compare_times "hdf5" ds2universal -q --format hdf5 "$W/large" "$W/out"
    compare_times "export" export-hf -q "$W/large" "$W/out"
    compare_times "backup" ckpt-backup copy -q --pack "$W/large" "$W/out"
fi
finish

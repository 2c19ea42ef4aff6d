#!/bin/sh
# run.sh [PATTERN] - what `make test` does
#
# Groups, in this order; each is one line of output, its log is shown only when it fails:
#   build    tools and unit tests, gcc, release; libraries are installed first if missing
#   unit     build/release/tests/test_*           (PATTERN matches "zip" or "test_zip")
#   golden   tests/golden/*.sh                    against data of the real trainer
#   cli      tests/cli/run.sh PATTERN             the tools as a user calls them
#   fault    tests/fault/*.sh                     damage, full disks, kills
#   install  make install into an empty folder, each tool runs from there
#   debug    unit and cli again under ASan and UBSan
#   clang    everything compiles without a warning
#   cuda     the library of GPU kernels is built, where nvcc is found
#   lint     includes follow the arrows
#   fuzz     tests/fuzz/fuzz_*, $FUZZ_SECONDS (30) each, where clang has libFuzzer
# Scripts end with "N passed, N failed" (else their exit status is one case). What is not
# possible on this machine counts as skipped. A failing case keeps its scratch folder.
# The pattern also picks whole groups by their name: make test T=lint
# `make B=debug test` builds and tests that flavour in place of release.
set -u
cd "$(dirname "$0")/.." || exit 1
pattern=${1:-*}
jobs=$(nproc)
make=${MAKE:-make}
flavour=${B:-release}
# An outer make's job server and flags are not for the builds here.
unset MAKEFLAGS MFLAGS MAKELEVEL B
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-XXXXXX")
log=$work/log
n_scratch=0
total_passed=0 total_failed=0 total_skipped=0
now() { date +%s%N; }

# picked NAME...: does the pattern want this?
picked() {
    local word
    for word in "$@"; do
        # shellcheck disable=SC2254
        case $word in $pattern) return 0 ;; esac
    done
    return 1
}

# One line of the report, and the sums.
line() {    # GROUP NAME PASSED FAILED START
    local verdict
    total_passed=$((total_passed + $3)) total_failed=$((total_failed + $4))
    if [ "$4" -eq 0 ]; then verdict=ok; else verdict=FAIL; fi
    awk -v v=$verdict -v g="$1" -v n="$2" -v p="$3" -v f="$4" -v t=$(($(now) - $5)) 'BEGIN {
        printf "%-4s  %-8s %-24s %5d passed", v, g, n, p
        if (f) printf ", %d failed", f
        printf "  %.1f s\n", t * 1e-9 }'
}

skip() { total_skipped=$((total_skipped + 1)); printf 'skip  %-8s %s\n' "$1" "$2"; }

# How many cases a log tells of: cmocka's summaries or a script's closing line.
count() {   # passed|failed
    if grep -q '^\[  [PF]A[SI][SL]ED  \]' "$log"; then
        case $1 in
        passed) sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" ;;
        failed) sed -n 's/^\[  FAILED  \].* \([0-9]*\) test(s), listed below.*/\1/p' "$log" ;;
        esac | awk '{ n += $1 } END { print n + 0 }'
    else
        sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$log" | tail -n 1 |
            awk -v w="$1" '{ n = w == "passed" ? $1 : $2 } END { print n + 0 }'
    fi
}

# A new folder for one case, in $scratch. Short: tests put paths into small buffers.
new_scratch() {
    n_scratch=$((n_scratch + 1))
    scratch=$work/$n_scratch
    mkdir "$scratch"
}

# Run one command as one line of a group; its scratch folder lives on if it fails.
run() {     # GROUP NAME COMMAND...
    local group=$1 name=$2 start status passed failed scratch limit
    start=$(now)
    new_scratch
    # Compilers on a busy machine are slow; a test that takes as long hangs.
    case $group in build|debug|clang|fuzz|cuda) limit=3600 ;; *) limit=${CASE_SECONDS:-900} ;; esac
    shift 2
    TMPDIR=$scratch timeout "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    passed=$(count passed) failed=$(count failed)
    if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
    elif [ $status -eq 0 ] && [ "$passed" -eq 0 ]; then
        # A script that ran no case (the pattern picked none) is no news; else the command is the case.
        if grep -q '^0 passed, 0 failed' "$log"; then rm -rf "$scratch"; return 0; fi
        passed=1
    fi
    line "$group" "$name" "$passed" "$failed" "$start"
    if [ "$failed" -gt 0 ]; then
        cp "$log" "$scratch/log"
        grep -v '^  [A-Z][A-Z]*  *[a-z]*\/' "$log" | tail -n 60 | sed 's/^/      /'
        echo "      exit status $status; kept: $scratch"
    else
        rm -rf "$scratch"
    fi
    return $((failed > 0))
}

finish() {
    rm -f "$log"
    if [ $total_failed -eq 0 ]; then rm -rf "$work"; else echo "kept: $work"; fi
    if [ $total_skipped -gt 0 ]; then
        echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
    else
        echo "$total_passed passed, $total_failed failed"
    fi
    [ $total_failed -eq 0 ]
    exit
}
trap 'echo "interrupted; kept: $work"; exit 130' INT TERM

# The unit tests of build flavour $1, as group $2.
unit_tests() {
    for t in build/"$1"/tests/test_*; do
        [ -f "$t" ] && [ -x "$t" ] || continue
        # A binary whose source is gone is a left-over of an older build.
        [ -f "tests/unit/$(basename "$t").c" ] || continue
        picked "$(basename "$t")" "$(basename "$t" | sed s/^test_//)" "$2" && run "$2" "$(basename "$t")" "$t"
    done
}

# Each script of tests/$1; lib.sh is what they share.
scripts() {
    for t in tests/"$1"/*.sh; do
        [ -f "$t" ] && [ "$(basename "$t")" != lib.sh ] || continue
        picked "$(basename "$t")" "$(basename "$t" .sh)" "$1" && run "$1" "$(basename "$t" .sh)" sh "$t"
    done
}

cli() {     # GROUP
    [ -f tests/cli/run.sh ] || return 0
    # The script picks cases itself; a pattern that names the group means all of them.
    if picked cli "$1"; then run "$1" cli sh tests/cli/run.sh '*'
    else run "$1" cli sh tests/cli/run.sh "$pattern"; fi
}

# ---- build ----

if ! $make -s check-libs 2>/dev/null || ! pkg-config --exists cmocka; then
    $make -s deps || { echo "0 passed, 1 failed"; exit 1; }
fi
run build "$flavour" $make -s -j"$jobs" B="$flavour" all tests-bin || finish

tools_of() { if [ "$1" = release ]; then echo "$PWD/bin"; else echo "$PWD/build/$1/bin"; fi; }
export BIN TBIN UBSAN_OPTIONS=print_stacktrace=1
BIN=$(tools_of "$flavour") TBIN=$PWD/build/$flavour/tests
unit_tests "$flavour" unit
scripts golden
cli cli
scripts fault

install_check() {
    dir=$work/root
    $make -s install DESTDIR="$dir" PREFIX=/opt || return 1
    for t in bin/*; do
        case $t in
        *.so) [ -s "$dir/opt/lib/shardkit/$(basename "$t")" ] || return 1 ;;
        *) "$dir/opt/bin/$(basename "$t")" --version || return 1 ;;
        esac
    done
}
if picked install && [ -n "$(find docs -name '*.1' 2>/dev/null)" ]; then
    start=$(now)
    if install_check >"$log" 2>&1; then line install "tools run from there" 1 0 "$start"
    else line install "tools run from there" 0 1 "$start"; sed 's/^/      /' "$log"; fi
fi

# ---- the same under the sanitizers ----

# Not when the pattern names only a group that is not run twice, nor when it just ran.
if [ "$pattern" != '*' ] && picked golden fault install clang cuda lint fuzz; then :
elif [ "$flavour" != debug ] && run debug build $make -s -j"$jobs" B=debug all tests-bin; then
    BIN=$(tools_of debug) TBIN=$PWD/build/debug/tests
    unit_tests debug debug
    cli debug
fi

# ---- compilers, arrows ----

if picked clang; then
    if command -v clang >/dev/null; then
        objects=$(find libcommon tools tests -name '*.c' ! -path 'tests/fuzz/*' ! -path 'tests/fault/*' |
                  sed 's,\(.*\)\.c$,build/clang/\1.o,')
        # shellcheck disable=SC2086
        run clang "no warnings" $make -s -j"$jobs" CC=clang O=build/clang $objects build/clang/libkernels.a
    else
        skip clang "no clang here"
    fi
fi
if picked cuda && [ -n "$(find kernels -name '*.cu' 2>/dev/null)" ]; then
    if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
        run cuda "compiles and links" sh -c "$make -s -j$jobs all && test -s bin/shardkit-cuda.so"
    else
        skip cuda "no nvcc here"
    fi
fi
picked lint && run lint includes sh tests/lint.sh

# ---- fuzzers ----

has_libfuzzer() {
    printf '%s\n' '#include <stddef.h>' '#include <stdint.h>' \
        'int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) { return p && n ? 0 : 0; }' >"$work/probe.c"
    clang -fsanitize=fuzzer,address -fopenmp -o "$work/probe" "$work/probe.c" 2>/dev/null
}

# Seeds are copied: what a fuzzer adds to its corpus goes away with its scratch folder.
fuzz() {    # NAME
    local dir=$work/$1
    mkdir -p "$dir/corpus"
    [ -d "tests/fuzz/corpus/$1" ] && cp -r "tests/fuzz/corpus/$1/." "$dir/corpus"
    run fuzz "$1" "build/fuzz/$1" -max_total_time="${FUZZ_SECONDS:-30}" -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$dir/" "$dir/corpus"
}

if [ "${FUZZ_SECONDS:-30}" -gt 0 ] && [ -n "$(find tests/fuzz -name 'fuzz_*.c' 2>/dev/null)" ]; then
    if has_libfuzzer; then
        for f in tests/fuzz/fuzz_*.c; do
            name=$(basename "$f" .c)
            picked "$name" fuzz || continue
            run fuzz "$name-build" $make -s "build/fuzz/$name" && fuzz "$name"
        done
    else
        skip fuzz "no clang with libFuzzer and OpenMP here"
    fi
fi
finish

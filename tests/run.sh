#!/usr/bin/env bash
# run.sh [check] [PATTERN] - what `make test` does, and `make check`
#
# make test: a few minutes on two cores, a clean clone's build included
#   build    what the pattern asks for, gcc, release, without CUDA
#   fault    tests/fault/*.sh                     damage, full disks, kills (a few: KILLS)
#   golden   tests/golden/*.sh                    against data of the real trainer (QUICK=1: some topologies and runs)
#   unit     build/release/tests/test_*           (PATTERN matches "zip" or "test_zip")
#   cli      tests/cli/run.sh PATTERN             the tools as a user calls them
#   python   tests/python/run.sh                  libshardkit.so from C and from Python
#   install  make install into an empty folder, each tool runs from there
#   lint     includes follow the arrows
# make check: what takes longer
#   cuda     the library of GPU kernels is built, where nvcc is found
#   fault    the same with as many kills and flips as the scripts think right
#   golden   the same with every topology and run
#   slurm    tests/slurm/*.sh                     ops/slurm on a Slurm of six nodes, where slurmctld is found
#   lint     each rule of it complains about what it forbids, in a copy of the tree
#   debug    unit and cli again under ASan and UBSan
#   clang    everything compiles without a warning
#   tidy     sources are laid out as `make tidy` does it, where there is a clang-format that can
#   fuzz     tests/fuzz/fuzz_*, $FUZZ_SECONDS (30) each, where clang has libFuzzer
# Side by side run twice as many as there are processors, since many wait, one more in make check (JOBS=N: N), and
# beside what comes after them the scripts of slurm, one at a time. Each is one line of output; its log is shown only
# when it fails. Scripts end with "N passed, N failed" (else their exit status is one case). What is not
# possible on this machine counts as skipped. A failing case keeps its scratch folder.
# The pattern also picks whole groups by their name: make test T=lint
# `make B=debug test` builds and tests that flavour in place of release.
set -u
cd "$(dirname "$0")/.." || exit 1
mode=test
if [ "${1:-}" = check ]; then mode=check; shift; fi
pattern=${1:-*}
[ $mode = test ] && jobs=$(($(nproc) * 2)) || jobs=$(($(nproc) + 1))
jobs=${JOBS:-$jobs}
make=${MAKE:-make}
flavour=${B:-release}
# An outer make's job server and flags are not for the builds here.
unset MAKEFLAGS MFLAGS MAKELEVEL B
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-XXXXXX")
: >"$work/sums" >"$work/print"
n_jobs=0 running=()
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
# Of a file: its base name, the same without test_ and .sh, or the group.
wanted() { local b; b=$(basename "$2" .sh); picked "$b" "${b#test_}" "$1"; }

# ---- one case after the other, or side by side ----

# How many cases a log tells of: cmocka's summaries or a script's closing line.
count() {   # passed|failed LOG
    if grep -q '^\[  [PF]A[SI][SL]ED  \]' "$2"; then
        case $1 in
        passed) sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$2" ;;
        failed) sed -n 's/^\[  FAILED  \].* \([0-9]*\) test(s), listed below.*/\1/p' "$2" ;;
        esac | awk '{ n += $1 } END { print n + 0 }'
    else
        sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$2" | tail -n 1 |
            awk -v w="$1" '{ n = w == "passed" ? $1 : $2 } END { print n + 0 }'
    fi
}

# Seconds of processor time that this shell's children have used, of what `times` printed: in a pipe it would be another's.
busy() { awk 'END { split($1 " " $2, t, /[ms ]+/); print t[1] * 60 + t[2] + t[3] * 60 + t[4] }' "$1"; }

# One command is one line of a group; its scratch folder (short: tests put paths into small buffers) lives on if it fails.
one() {     # SCRATCH GROUP NAME COMMAND...
    local scratch=$1 group=$2 name=$3 start cpu status passed failed skipped limit log=$1.log verdict=ok
    times >"$scratch.times"
    start=$(now) cpu=$(busy "$scratch.times")
    mkdir "$scratch"
    # Compilers on a busy machine are slow; a test that takes as long hangs.
    case $group.$3 in build.*|clang.*|fuzz.*|cuda.*|*.build) limit=3600 ;; debug.*) limit=3600 ;; *) limit=${CASE_SECONDS:-900} ;; esac
    shift 3
    TMPDIR=$scratch timeout "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    times >"$scratch.times"
    cpu=$(busy "$scratch.times" | awk -v before="$cpu" '{ print $1 - before }')
    passed=$(count passed "$log") failed=$(count failed "$log")
    skipped=$(sed -n 's/^[0-9]* passed, [0-9]* failed, \([0-9]*\) skipped.*/\1/p' "$log" | tail -n 1)
    if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
    elif [ $status -eq 0 ] && [ "$passed" -eq 0 ] && [ -z "$skipped" ]; then
        # A script that ran no case (the pattern picked none) is no news; else the command is the case.
        if grep -q '^0 passed, 0 failed' "$log"; then rm -rf "$scratch" "$scratch.times" "$log"; return 0; fi
        passed=1
    fi
    [ "$failed" -eq 0 ] || verdict=FAIL
    [ "$passed$failed" != 00 ] || verdict=skip
    {
        flock 9
        echo "$passed $failed ${skipped:-0}" >>"$work/sums"
        awk -v v=$verdict -v g="$group" -v n="$name" -v p="$passed" -v f="$failed" -v t=$(($(now) - start)) -v cpu="$cpu" 'BEGIN {
            printf "%-4s  %-8s %-24s %5d passed", v, g, n, p
            if (f) printf ", %d failed", f
            printf "  %.1f s, %.1f of a processor\n", t * 1e-9, cpu }'
        if [ "$failed" -gt 0 ]; then
            cp "$log" "$scratch/log"
            grep -v '^  [A-Z][A-Z]*  *[a-z]*\/' "$log" | tail -n 60 | sed 's/^/      /'
            echo "      exit status $status; kept: $scratch"
        else
            rm -rf "$scratch"
        fi
    } 9>>"$work/print"
    rm -f "$log" "$scratch.times"
    return $((failed > 0))
}

# As one(), as soon as a place is free.
run() {     # GROUP NAME COMMAND...
    local p still
    n_jobs=$((n_jobs + 1))
    while [ ${#running[@]} -ge "$jobs" ]; do
        wait -n "${running[@]}"
        still=()
        for p in "${running[@]}"; do if kill -0 "$p" 2>/dev/null; then still+=("$p"); fi; done
        running=("${still[@]}")
    done
    one "$work/$n_jobs" "$@" &
    running+=($!)
}
all_ended() {
    [ ${#running[@]} -eq 0 ] || wait "${running[@]}"
    running=()
}

# Scripts that mostly wait: one after the other, beside all that comes after them. They are held to times: it gives way.
run_beside() {  # GROUP SCRIPT...
    local group=$1
    shift
    (k=0; for f; do k=$((k + 1)); one "$work/b$k" "$group" "$(basename "$f" .sh)" sh "$f"; done) &
    renice -n 5 $$ >/dev/null 2>&1
}

# The cases of the command line, in shares: as one they would be the last to end.
run_cases() {   # GROUP CASES
    local k
    # Sanitizers make the tools about five times slower.
    for k in 0 1 2 3; do
        run "$1" "cli $((k + 1)) of 4" env SHARE=$k/4 SLOWNESS="$([ "$1" = debug ] && echo 6 || echo 1)" \
            sh tests/cli/run.sh "$2"
    done
}

# As one(), when all that run() started has ended; its status.
alone() {
    all_ended
    n_jobs=$((n_jobs + 1))
    one "$work/$n_jobs" "$@"
}

skip() { echo "0 0 1" >>"$work/sums"; printf 'skip  %-8s %s\n' "$1" "$2"; }

finish() {
    wait                                # for what runs beside, too
    read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$work/sums")
    if [ "$failed" -eq 0 ]; then rm -rf "$work"; else echo "kept: $work"; fi
    if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"
    else echo "$passed passed, $failed failed"; fi
    [ "$failed" -eq 0 ]
    exit
}
interrupted() {
    local p
    for p in $(jobs -p); do pkill -P "$p"; kill "$p"; done 2>/dev/null
    echo "interrupted; kept: $work"
    exit 130
}
trap interrupted INT TERM

# ---- what there is ----

unit_names() {
    local f
    for f in tests/unit/*/test_*.c; do
        if wanted unit "${f%.c}" || picked "${1:-unit}"; then basename "$f" .c; fi
    done
}
script_names() {    # FOLDER
    local f
    for f in tests/"$1"/*.sh; do
        if [ -f "$f" ] && [ "$(basename "$f")" != lib.sh ] && wanted "$1" "$f"; then echo "$f"; fi
    done
}
cli_names() {
    local d
    picked cli "${1:-cli}" && { echo '*'; return; }
    for d in tests/cli/*/; do if picked "$(basename "$d")"; then echo "$pattern"; return; fi; done
}

tools_of() { if [ "$1" = release ]; then echo "$PWD/bin"; else echo "$PWD/build/$1/bin"; fi; }
flavour_is() { BIN=$(tools_of "$1") TBIN=$PWD/build/$1/tests; export BIN TBIN; }
export UBSAN_OPTIONS=print_stacktrace=1
# More threads than processors: one that waits in a loop takes time from the one it waits for.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# Build what the cases of a flavour need: no program of a unit test that is not picked.
build() {   # GROUP FLAVOUR UNITS SCRIPTS
    local targets=all t
    for t in $3; do targets="$targets build/$2/tests/$t"; done
    [ -z "$4" ] || targets="$targets bench-bin"
    [ "$pattern" != '*' ] || targets="all tests-bin"
    [ "$2" != release ] || targets="$targets lib"
    # shellcheck disable=SC2086
    alone "$1" build $make -s -j"$(nproc)" CUDA=0 B="$2" $targets
}

# ---- make test ----

install_check() {
    dir=$TMPDIR/root
    $make -s CUDA=0 install DESTDIR="$dir" PREFIX=/opt || return 1
    for t in bin/*; do
        case $t in
        *.so) ;;                        # built where there is an nvcc: `make check`
        *) "$dir/opt/bin/$(basename "$t")" --version || return 1 ;;
        esac
    done
    # A shell finds each tool's completion by its name; each is a script that bash takes.
    for t in shardkit ckpt-inspect ckpt-backup ckpt-edit ds2universal reshape merge-tp export-hf preprocess train run-watch; do
        bash -n "$dir/opt/share/bash-completion/completions/$t" || return 1
        grep -q "^complete .* $t\$" "$dir/opt/share/bash-completion/completions/$t" || return 1
        grep -q "^#compdef $t\$" "$dir/opt/share/zsh/site-functions/_$t" || return 1
        ! command -v zsh >/dev/null || zsh -n "$dir/opt/share/zsh/site-functions/_$t" || return 1
        grep -q "^complete -c $t " "$dir/opt/share/fish/vendor_completions.d/$t.fish" || return 1
        ! command -v fish >/dev/null || fish -n "$dir/opt/share/fish/vendor_completions.d/$t.fish" || return 1
    done
    cmp rules/llama.rules "$dir/opt/share/shardkit/rules/llama.rules" || return 1
    # A program in C finds the header and the library by pkg-config.
    # shellcheck disable=SC2046
    ${CC:-cc} -o "$dir/list" examples/list_tensors.c $(PKG_CONFIG_PATH=$dir/opt/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir \
        pkg-config --cflags --libs shardkit) || return 1
    LD_LIBRARY_PATH=$dir/opt/lib "$dir/list" tests/data/gpt2-tp2pp2dp1 >/dev/null || return 1
    rm "$dir/list"
    # Each file that a man page names as installed is there, and shardkit shows the page of a verb.
    for f in $(sed 's/\\-/-/g' docs/*.1 | grep -oE 'share/(doc/)?shardkit/[A-Za-z0-9._/-]*[A-Za-z0-9]' | sort -u); do
        [ -e "$dir/opt/$f" ] || { echo "a man page names $f, which is not installed"; return 1; }
    done
    "$dir/opt/bin/shardkit" help verify </dev/null | grep -qE 'CKPT-INSPECT|shardkit verify' || return 1
    $make -s CUDA=0 uninstall DESTDIR="$dir" PREFIX=/opt || return 1
    left=$(find "$dir" -type f -o -name '*shardkit*')
    [ -z "$left" ] || { echo "uninstall leaves $left"; return 1; }
}
export -f install_check
export make

if [ $mode = test ]; then
    units=$(unit_names) cases=$(cli_names) scripts="$(script_names fault) $(script_names golden)"
    if [ -n "$units$cases${scripts// /}" ] || picked install || picked python; then
        build build "$flavour" "$units" "$cases${scripts// /}" || finish
    fi
    flavour_is "$flavour"
    export QUICK=${QUICK:-1} KILLS=${KILLS:-3} FLIP_SHARE=${FLIP_SHARE:-8}
    # The long ones first, and what mostly waits.
    early=
    for t in test_flips test_comm_watch; do
        case " ${units//$'\n'/ } " in *" $t "*) early="$early $t"; run unit "$t" "$TBIN/$t" ;; esac
    done
    for f in $scripts; do run "$(basename "$(dirname "$f")")" "$(basename "$f" .sh)" sh "$f"; done
    [ -z "$cases" ] || run_cases cli "$cases"
    for t in $units; do case " $early " in *" $t "*) ;; *) run unit "$t" "$TBIN/$t" ;; esac; done
    if picked lint; then run lint includes sh tests/lint.sh; fi
    # An instrumented library needs its run-time library in the program that loads it.
    if picked python && [ "$flavour" = release ]; then run python library sh tests/python/run.sh; fi
    if picked install; then alone install "tools run from there" bash -c install_check; fi
    finish
fi

# ---- make check ----

if picked cuda && [ -n "$(find kernels -name '*.cu' 2>/dev/null)" ]; then
    if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
        alone cuda "compiles and links" sh -c "$make -s -j$jobs all && test -s bin/shardkit-cuda.so"
    else
        skip cuda "no nvcc here"
    fi
fi

scripts="$(script_names fault) $(script_names golden)" flips=$(picked fault flips test_flips && echo test_flips)
if [ -n "${scripts// /}$flips" ]; then
    build build release "$flips" "$scripts" || finish
    flavour_is release
    [ -z "$flips" ] || run fault test_flips "$TBIN/test_flips"
    for f in $scripts; do run "$(basename "$(dirname "$f")")" "$(basename "$f" .sh)" sh "$f"; done
    all_ended
fi

scripts=$(script_names slurm | grep -v '/cluster.sh$')
if [ -n "$scripts" ]; then
    build build release "" "$scripts" || finish
    flavour_is release
    # One at a time: each brings up a cluster.
    # shellcheck disable=SC2086
    run_beside slurm $scripts
fi

if picked lint; then
    alone lint objects $make -s -j"$jobs" CUDA=0 all && run lint "each rule can fail" sh tests/tools/lint_fails.sh
fi

units=$(unit_names debug) cases=$(cli_names debug)
if [ -n "$units$cases" ] && build debug debug "$units" "$cases"; then
    flavour_is debug
    export FLIP_SHARE=${FLIP_SHARE:-4}
    [ -z "$cases" ] || run_cases debug "$cases"
    for t in $units; do run debug "$t" "$TBIN/$t"; done
    all_ended
    unset FLIP_SHARE
fi

if picked clang; then
    if command -v clang >/dev/null; then
        objects=$(find libcommon tools tests -name '*.c' ! -path 'tests/fuzz/*' ! -path 'tests/fault/*' |
                  sed 's,\(.*\)\.c$,build/clang/\1.o,')
        # shellcheck disable=SC2086
        alone clang "no warnings" $make -s -j"$jobs" CC=clang O=build/clang $objects build/clang/libkernels.a
    else
        skip clang "no clang here"
    fi
fi

if picked tidy; then
    # Asked of a file that it leaves alone: is there a clang-format that can?
    if sh tests/tidy.sh -n Makefile >/dev/null 2>&1; then
        alone tidy "as make tidy lays out" sh tests/tidy.sh -n
    else
        skip tidy "no clang-format here, or an old one"
    fi
fi

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
        names=
        for f in tests/fuzz/fuzz_*.c; do
            name=$(basename "$f" .c)
            if picked "$name" fuzz; then names="$names $name"; fi
        done
        # shellcheck disable=SC2086
        if [ -n "$names" ] && alone fuzz build $make -s -j"$jobs" $(printf 'build/fuzz/%s ' $names); then
            for name in $names; do fuzz "$name"; done
        fi
    else
        skip fuzz "no clang with libFuzzer and OpenMP here"
    fi
fi
finish

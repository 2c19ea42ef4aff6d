#!/bin/sh
# compare_builds.sh OLD_BIN [NEW_BIN] - times and peak memory of two builds of the tools on the same inputs, in one run
#
# Makes a model of SIZE_GB (2) of masters and moments as 3D shards, ZeRO-3, DCP, torch_dist, universal and Transformers folder,
# with the tools of NEW_BIN (default: bin). Then it runs every command below with both builds, alternately, ROUNDS (5) times,
# inputs in the page cache. Prints for each command the median seconds of both, the ratio new/old of the medians, the median of
# the ratios of the pairs, the ratio of the medians of the processor time (user and system), and the peak memory of both. The
# last lines count the commands with a ratio of the pairs, and with one of processor time, above LIMIT (1.05): on a machine
# where other programs run, only processor time compares the builds.
#
# "edit set" copies files where the file system has no reflinks; builds of before that rule made hard links.
# DIR (build/bench) is the folder to work in, with room for 8 times SIZE_GB; ONLY is a pattern (case) of commands to run.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../../.."
old=$(cd "${1:?usage: compare_builds.sh OLD_BIN [NEW_BIN]}" && pwd)
new=$(cd "${2:-bin}" && pwd)
BIN=$new
. tests/bench/lib.sh
size_gb=${SIZE_GB:-2} rounds=${ROUNDS:-5} dir=${DIR:-build/bench} limit=${LIMIT:-1.05} only=${ONLY:-*}
mkdir -p "$dir"
W=$(mktemp -d "$dir/compare-XXXXXX")
trap 'rm -rf "$W"' EXIT
W=$(cd "$W" && pwd)
cd "$W"

shape="--hidden 1024 --heads 16 --seq 1024 --vocab 50257 --tp 2 --pp 2 --dp 2"
# shellcheck disable=SC2086
"$BENCH/mkckpt" $shape --layers "$(layers_for "$size_gb" 4 4 $shape)" run >/dev/null
"$new/reshape" -q --to zero3 --ranks 4 run/global_step20 zero3 2>/dev/null
"$new/reshape" -q --to dcp --ranks 4 run/global_step20 dcp 2>/dev/null
"$new/ds2universal" -q run/global_step20 universal 2>/dev/null
"$new/export-hf" -q run/global_step20 hf 2>/dev/null
"$new/reshape" -q --to torchdist --ranks 2 hf torchdist 2>/dev/null || rm -rf torchdist
cp -R zero3 zero3-copy

# compare NAME COMMAND...: {} in a word stands for the build's folder; `out` is removed before each run.
compare() {
    name=$1
    shift
    # shellcheck disable=SC2254
    case $name in $only) ;; *) return 0 ;; esac
    rm -f old.times new.times
    round=0
    while [ $round -lt "$rounds" ]; do
        order="old new"
        [ $((round % 2)) -eq 0 ] || order="new old"
        for build in $order; do
            if [ "$build" = old ]; then folder=$old; else folder=$new; fi
            rm -rf out out.*
            "$BENCH/measure" "$build.times" sh -c 'bin=$1; shift; tool=$1; shift; exec "$bin/$tool" "$@" >run.log 2>&1' sh "$folder" "$@" ||
                { printf '%-28s %s build failed: %s\n' "$name" "$build" "$(tail -n 1 run.log)"; return 0; }
        done
        round=$((round + 1))
    done
    paste -d' ' old.times new.times | awk -v name="$name" '
        function median(v, n,   i, j, t) {
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] < v[j - 1]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        }
        { n++; a[n] = $1; b[n] = $5; r[n] = $5 / $1; c[n] = $2 + $3; d[n] = $6 + $7; if ($4 > ma) ma = $4; if ($8 > mb) mb = $8 }
        END { x = median(a, n); y = median(b, n); p = median(r, n); q = median(d, n) / median(c, n)
              printf "%-28s %8.3f s %8.3f s  %5.2f  %5.2f  %5.2f  %7.0f MB %7.0f MB\n", name, x, y, y / x, p, q, ma / 1e6, mb / 1e6
              print p, q >>"ratios" }'
}

printf '%-28s %10s %10s  %5s  %5s  %5s  %10s %10s\n' command old new ratio pairs cpu "old peak" "new peak"
for set in run/global_step20 zero3 dcp universal hf; do
    compare "verify $set" ckpt-inspect verify "$set"
done
compare "stats run" ckpt-inspect stats run/global_step20
compare "diff zero3" ckpt-inspect diff zero3 zero3-copy
compare "universal from run" ds2universal -q run/global_step20 out
compare "universal from zero3" ds2universal -q zero3 out
compare "hdf5 from run" ds2universal -q --format hdf5 run/global_step20 out
compare "hf from run" export-hf -q run/global_step20 out
compare "hf from zero3" export-hf -q zero3 out
compare "hf from dcp" export-hf -q dcp out
compare "hf bf16 from universal" export-hf -q --dtype bf16 universal out
compare "TP1 PP1 DP4 from run" reshape -q --target-tp 1 --target-pp 1 --target-dp 4 run/global_step20 out
compare "TP4 PP2 DP1 from run" reshape -q --target-tp 4 --target-pp 2 --target-dp 1 run/global_step20 out
compare "run from universal" reshape -q --to deepspeed --target-tp 2 --target-pp 2 --target-dp 2 universal out
compare "dcp from run" reshape -q --to dcp --ranks 8 run/global_step20 out
compare "zero3 from dcp" reshape -q --to zero3 --ranks 8 dcp out
compare "zero2 from zero3" reshape -q --to zero2 --ranks 2 zero3 out
compare "dcp from hf" reshape -q --to dcp --ranks 4 hf out
compare "edit set" ckpt-edit -q set lr=0.5 run/global_step20 out
compare "edit cast fp32" ckpt-edit -q cast fp32 hf out
compare "edit average" ckpt-edit -q average hf hf out
compare "backup copy" ckpt-backup copy -q run out
awk -v limit="$limit" '
    $1 > limit { n++ }
    $2 > limit { m++ }
    END { printf "%d of %d commands have a median ratio above %s\n", n, NR, limit
          printf "%d of %d commands take more than %s of the processor time\n", m, NR, limit }' ratios

#!/bin/sh
# bench_threads.sh - threads against rate on the fastest storage there is: files in memory
#
# Makes a checkpoint in DIR and runs, with 1, 2, 4 ... THREADS threads:
#   verify         reads every byte and hashes it
#   stats          reads every byte and looks at each value
#   diff           of the checkpoint and a copy of it
#   ds2universal, reshape (TP 2, PP 2, DP 2 to TP 1, PP 1, DP 1), export-hf
# and beside them what copying costs there: cp -r, and cp of single files, as many at a time. `moved` counts bytes read
# and written. At last ds2universal as PARTS processes of THREADS / PARTS threads.
#
# SIZE_GB (20) of optimizer state; DIR (/dev/shm/shardkit-bench) wants three times that; THREADS (all cores);
# First the limit of one file there: how fast its pages are made (fallocate), which no number of threads changes.
# ROUNDS (2), the best counts; PARTS (4). BIN, BENCH: where the tools and the benchmarks' programs lie.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-20} dir=${DIR:-/dev/shm/shardkit-bench} most=${THREADS:-$(nproc)} rounds=${ROUNDS:-2} parts=${PARTS:-4}
[ "$parts" -le "$most" ] || parts=$most
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf in copy out latest_universal took log' EXIT

shape="--hidden 2048 --heads 16 --seq 2048 --vocab 50257 --tp 2 --pp 2 --dp 2"
echo "$(uname -r), $(nproc) cores, $(stat -f -c %T .)"
# shellcheck disable=SC2086
"$BENCH/mkckpt" $shape --layers "$(layers_for "$size_gb" 2 1 $shape)" in
cp -r in copy && cp -r in out && rm -rf out         # a virtual machine gives memory slowly when it is first touched
tag=in/global_step20
begun=$(date +%s.%N)
fallocate -l 4G out
awk -v a="$begun" -v b="$(date +%s.%N)" 'BEGIN { printf "pages of one file are made at %.1f GB/s\n", 4.294967296 / (b - a) }'
rm out

# timed BYTES COMMAND...: GB/s of the best round. OUT is removed before each; what a command wrote is added to BYTES.
timed() {
    n=$1 left=$rounds
    shift
    while [ "$left" -gt 0 ]; do
        left=$((left - 1))
        rm -rf out latest_universal
        begun=$(date +%s.%N)
        if ! "$@" >log 2>&1; then
            tail -n 3 log >&2
            exit 1
        fi
        echo "$begun $(date +%s.%N) $n $([ -e out ] && bytes_in out || echo 0)"
    done | awk '{ r = ($3 + $4) / ($2 - $1) / 1e9; if (r > best) best = r } END { printf "%7.2f", best }'
}

copy_files() { mkdir out && find $tag -type f -print0 | xargs -0 -P "$1" -n 1 cp -t out; }

in_parts() {
    k=0
    while [ $k -lt "$parts" ]; do
        "$BIN/ds2universal" -q --threads $((most / parts)) --part $k/"$parts" --format pt $tag out &
        k=$((k + 1))
    done
    wait
}

opt=$(bytes_in $tag/*zero_pp_rank_* $tag/mp_rank_*)
all=$(bytes_in $tag)
echo "GB/s moved:"
echo "threads  verify   stats    diff  ds2univ reshape  export   cp"
t=1
while [ $t -le "$most" ]; do
    printf '%7d' $t
    printf ' %s' "$(timed "$all" "$BIN/ckpt-inspect" verify -q --threads $t $tag)" \
        "$(timed "$all" "$BIN/ckpt-inspect" stats --threads $t $tag)" \
        "$(timed $((2 * all)) "$BIN/ckpt-inspect" diff --threads $t $tag copy/global_step20)" \
        "$(timed "$opt" "$BIN/ds2universal" -q --threads $t --format pt $tag out)" \
        "$(timed "$all" "$BIN/reshape" -q --threads $t --target-tp 1 --target-pp 1 --target-dp 1 $tag out)" \
        "$(timed $((opt / 3)) "$BIN/export-hf" -q --threads $t $tag out)" \
        "$(timed "$all" copy_files $t)"
    echo
    t=$((t * 2))
done
echo "cp -r:$(timed "$all" cp -r $tag out), ds2universal as $parts processes:$(timed "$opt" in_parts)"

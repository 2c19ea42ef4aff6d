#!/bin/sh
# bench_average.sh - average of several torch_dist checkpoints: ckpt-edit beside Megatron-Core's functions, in one run
#
# The peer (core_average.py) loads, sums and saves as Megatron-LM's tools/checkpoint/weighted_merge.py does in its mode
# cpu-resident, but for that script's command line and model options, which need a GPU. N (4) checkpoints of a GPT of
# SIZE (hidden,layers: 1024,12) in bf16, weights of the style minus-sqrt. Prints wall time, processor time and peak
# memory of each, and the largest difference from the mean in fp64. The peer's time includes its start, of which
# `import` is a part. DIR is the folder that is worked in. Needs a Python ($PYTHON) with torch and megatron-core.
set -eu
cd "$(dirname "$0")/../../.."
. tests/bench/lib.sh
. tests/lib/python.sh
n=${N:-4} SIZE=${SIZE:-1024,12}
export SIZE
python=$(python_with 'torch, megatron.core')
[ -n "$python" ] || { echo "no Python with torch and megatron-core here: skipped"; exit 0; }
peer=$PWD/tests/bench/peers/core_average.py
work=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/shardkit-average-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
"$python" -W ignore "$peer" make run "$n" "${SIZE%,*}" "${SIZE#*,}" >log 2>&1 || { tail -n 3 log; exit 1; }
set -- run/iter_*
weights=$(awk -v n="$n" 'BEGIN { for (i = 0; i < n; i++) printf "%s%.17g", i ? "," : "", sqrt((i + 1) / n) - sqrt(i / n) }')
for round in 1 2 3; do
    rm -rf ours theirs
    "$BENCH/measure" ours.times "$BIN/ckpt-edit" -q average --style minus-sqrt "$@" ours 2>/dev/null
    "$BENCH/measure" theirs.times "$python" -W ignore "$peer" average theirs "$weights" "$@" >log 2>&1
done
echo "$n checkpoints of $(du -sm "$1" | cut -f1) MB"
for who in ours theirs; do
    sort -n "$who.times" | sed -n 2p | awk -v who="$who" '{
        printf "%-7s %6.2f s  %6.2f s of processors  %5.0f MB\n", who, $1, $2 + $3, $4 / 1e6 }'
done
"$python" -W ignore "$peer" compare ours theirs "$@" "$weights" 2>/dev/null | tail -n 1

#!/bin/sh
# bench_open.sh - how long it takes to open a checkpoint of 720 files, cold cache
#
# BLOOM-176B's layout (70 blocks, TP 4, PP 12, DP 8: 384 shards, 48 model-state files, 288 layer
# files) with a small hidden size: opening reads tables, not tensors, so the size hardly matters.
# ROUNDS (5), medians.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
rounds=${ROUNDS:-5}
dir=${DIR:-build/bench-open}
mkdir -p "$dir"
cd "$dir"
trap 'cd ..; rm -rf "$OLDPWD"' EXIT
"$BENCH/mkckpt" --layers 70 --hidden 128 --heads 8 --seq 64 --vocab 4000 --tp 4 --pp 12 --dp 8 in
echo "$(find in -name '*.pt' | wc -l) files"

for command in "ckpt-inspect in" "ckpt-inspect ls in" "ckpt-inspect verify in" "ckpt-inspect replicas in" \
               "ds2universal -q --force --format virtual in/global_step20 virtual"; do
    : >times
    for _ in $(seq "$rounds"); do
        cold
        # shellcheck disable=SC2086
        "$BENCH/measure" times "$BIN/"$command >/dev/null
    done
    cut -d' ' -f1 times | median | awk -v c="$command" '{
        printf "%-64s %6.2f s\n{\"bench\": \"open\", \"command\": \"%s\", \"files\": 720, \"wall_s\": %s}\n", c, $1, c, $1 }'
done

#!/bin/sh
# bench_inspect.sh - verify, stats and diff of one checkpoint beside each other, cold cache
#
# All three read every byte once (diff those of two checkpoints) through the same executor, so
# all should take what the disk takes. A made-up model of 202 M parameters, TP 2, PP 2, DP 2
# (2.9 GB); the diff is with a copy whose moments all differ and with one that is equal.
# ROUNDS (3), medians; LAYERS (12) for another size.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
rounds=${ROUNDS:-3}
dir=${DIR:-build/bench-inspect}
mkdir -p "$dir"
cd "$dir"
trap 'cd ..; rm -rf "$OLDPWD"' EXIT
make_one() { "$BENCH/mkckpt" --layers "${LAYERS:-12}" --hidden 1024 --heads 16 --vocab 50304 "$@"; }
make_one a
make_one --seed 43 b
bytes=$(du -sb a | cut -f1)
echo "$bytes bytes"

base=
for command in "verify a" "stats a" "diff a a" "diff a b"; do
    : >times
    for _ in $(seq "$rounds"); do
        cold
        # shellcheck disable=SC2086
        "$BENCH/measure" times "$BIN/ckpt-inspect" $command >/dev/null || [ "$command" = "diff a b" ]
    done
    wall=$(cut -d' ' -f1 times | median)
    : "${base:=$wall}"
    case $command in diff*) n=2 ;; *) n=1 ;; esac
    echo "$command" | awk -v s="$wall" -v base="$base" -v bytes="$bytes" -v n=$n '{
        gbs = n * bytes / s / 1e9; ratio = s / base / n
        printf "%-10s %7.2f s  %6.2f GB/s  %5.2f x verify a byte\n", $0, s, gbs, ratio
        printf "{\"bench\": \"inspect\", \"command\": \"%s\", \"wall_s\": %s, \"gb_per_s\": %.3f, \"times_verify\": %.3f}\n",
               $0, s, gbs, ratio }'
done

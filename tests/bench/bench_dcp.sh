#!/bin/sh
# bench_dcp.sh - folders of torch.distributed.checkpoint with very many pieces: are time and memory in proportion?
#
# One tensor in CHUNKS (1000000) chunks, which is 512 ranks times 2,000 tensors, and a small model with VALUES (100000)
# plain values beside it, each also at a tenth of that. Wall seconds, and peak bytes a piece of what was added from the
# small set to the large one. 2 GB in DIR (build/bench-dcp).
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
chunks=${CHUNKS:-1000000} values=${VALUES:-100000} dir=${DIR:-build/bench-dcp}
mkdir -p "$dir"
cd "$dir"
trap 'cd ..; rm -rf "$OLDPWD"' EXIT

# report NAME N: of the two lines in NAME.times, a tenth of N pieces and N
report() {
    awk -v c="$1" -v n="$2" '
        { wall[NR] = $1; peak[NR] = $4 }
        END {
            per = (peak[2] - peak[1]) / (n - n / 10)
            printf "%-10s %8d pieces %8.2f s, %8d pieces %8.2f s (%.1f times), %4.0f bytes a piece\n",
                   c, n / 10, wall[1], n, wall[2], wall[2] / wall[1], per
            printf "{\"bench\": \"dcp\", \"command\": \"%s\", \"pieces\": %d, \"wall_s\": %s, \"times\": %.2f, \"bytes\": %.0f}\n",
                   c, n, wall[2], wall[2] / wall[1], per
        }' "$1.times"
}

for n in $((chunks / 10)) "$chunks"; do
    "$BENCH/mkdcp" chunks "$n" set
    "$BENCH/measure" ls.times "$BIN/ckpt-inspect" ls set >/dev/null
    "$BENCH/measure" verify.times "$BIN/ckpt-inspect" verify set >/dev/null
    rm -r set
done
report ls "$chunks"
report verify "$chunks"
for n in $((values / 10)) "$values"; do
    "$BENCH/mkdcp" values "$n" set
    "$BENCH/measure" to-zero2.times "$BIN/reshape" -q --to zero2 --ranks 1 set out
    "$BENCH/measure" to-dcp.times "$BIN/reshape" -q --ranks 1 set again
    rm -r set out again
done
report to-zero2 "$values"
report to-dcp "$values"

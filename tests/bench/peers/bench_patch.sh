#!/bin/sh
# bench_patch.sh - size and rate of ckpt-inspect diff --patch on the bf16 weights of neighbouring saves, beside zstd
#
# Trains a BLOOM of SIZE (hidden,layers,heads,vocab: 256,4,8,8192) in bf16 for STEPS (300) steps with a cosine schedule,
# and saves it at the end, and 1, 5, 20 and 100 steps before. Exports the weights of each save. For each distance prints
# the size of the patch from that save to the last one, as parts of the weights, next to `zstd -3` of the last one, and to
# `zstd -19 --patch-from`, which is a general program for the same purpose. Then the rate of writing and of applying the
# patch of the whole model, REPEAT (8) times as large by repeating its layers, in bytes of one side by seconds of wall time.
# DIR is the folder that is worked in.
set -eu
cd "$(dirname "$0")/../../.."
. tests/bench/lib.sh
size=${SIZE:-256,4,8,8192} steps=${STEPS:-300} threads=${THREADS:-$(nproc)} repeat=${REPEAT:-8}
[ -n "${DIR:-}" ] || { [ -w /dev/shm ] && DIR=/dev/shm; } || DIR=${TMPDIR:-/tmp}
work=$(mktemp -d "$DIR/shardkit-patch-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Train to step $1 of the schedule, and save there.
train_to() {
    "$BIN/train" --bf16 --num-layers "$layers" --hidden-size "$hidden" --num-attention-heads "$heads" \
        --seq-length 128 --max-position-embeddings 128 --position-embedding-type alibi --embed-layernorm \
        --vocab-size "$vocab" --pad-vocab-size-to "$vocab" --micro-batch-size 4 --global-batch-size 4 \
        --train-iters "$steps" --exit-interval "$1" --lr 3e-4 --min-lr 3e-5 --lr-warmup-iters $((steps / 10)) \
        --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta2 0.95 --attention-dropout 0 \
        --hidden-dropout 0 --eval-iters 0 --split 100,0,0 --data-path "$work/owt_slice" --threads "$threads" \
        --save "$work/run" --save-interval 1000000 $2 >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
}

IFS=, read -r hidden layers heads vocab <<END
$size
END
cp tests/data/text/owt_slice.bin tests/data/text/owt_slice.idx "$work"
load=
for back in 100 20 5 1 0; do
    train_to $((steps - back)) "$load"
    load="--load $work/run"
    "$BIN/export-hf" -q "$work/run/global_step$((steps - back))" "$work/hf$back"
done

cd "$work"
all=$(stat -c %s hf0/model.safetensors)
zstd -3 -q -o last.zst hf0/model.safetensors
echo "BLOOM $size, $steps steps: $all bytes of bf16 weights; zstd -3 of the last: $(stat -c %s last.zst)" |
    awk '{ n = $NF; $NF = ""; printf "%s%.1f %%\n", $0, 100 * n / '"$all"' }'
for back in 1 5 20 100; do
    "$BIN/ckpt-inspect" diff -q --patch "patch$back" "hf$back" hf0
    zstd -19 -q --long=27 --patch-from="hf$back/model.safetensors" -o "zstd$back" hf0/model.safetensors 2>/dev/null
    echo "$back $(stat -c %s "patch$back") $(stat -c %s "zstd$back")" | awk -v all="$all" '{
        printf "%4d steps before: patch %5.1f %% (1/%.1f)   zstd -19 --patch-from %5.1f %%   ratio %.2f\n",
               $1, 100 * $2 / all, all / $2, 100 * $3 / all, $3 / $2 }'
done

list=$(for i in $(seq "$repeat"); do echo "0-$((layers - 1))"; done | paste -sd,)
for back in 1 0; do "$BIN/ckpt-edit" -q layers keep "$list" "hf$back" "large$back" 2>/dev/null; done
bytes=$(stat -c %s large0/model.safetensors)
for round in 1 2 3; do
    rm -rf large.patch large.out
    "$BENCH/measure" write.times "$BIN/ckpt-inspect" diff -q --patch large.patch --threads "$threads" large1 large0
    "$BENCH/measure" apply.times "$BIN/ckpt-edit" -q apply --threads "$threads" large.patch large1 large.out
done
cmp large.out/model.safetensors large0/model.safetensors
for what in write apply; do
    sort -g "$what.times" | awk -v what="$what" -v bytes="$bytes" -v threads="$threads" 'NR == 1 {
        printf "%s: %.2f GB in %.2f s, %.2f GB/s with %d threads, %.0f MB of memory\n",
               what, bytes / 1e9, $1, bytes / 1e9 / $1, threads, $4 / 1e6 }'
done

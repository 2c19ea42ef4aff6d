#!/bin/sh
# bench_busy.sh - train on processors that other programs use as well: one thread, all threads, and threads that spin
#
# As many endless loops as processors run next to train. Wall times of one small model on a quiet and on a busy
# machine: with one thread, with one thread per processor, and the latter with the spin that GNU's OpenMP has by
# default. ROUNDS (3) interleaved rounds, medians; HIDDEN (256).
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
rounds=${ROUNDS:-3} hidden=${HIDDEN:-256}
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-bench-XXXXXX")
loops=
trap 'kill $loops 2>/dev/null || true; rm -rf "$work"' EXIT
cp tests/data/text/text_document.bin tests/data/text/text_document.idx "$work"

train_with() {      # FILE THREADS
    "$BENCH/measure" "$work/$1" "$BIN/train" --bf16 --num-layers 4 --hidden-size "$hidden" --num-attention-heads 4 \
        --seq-length 128 --max-position-embeddings 128 --position-embedding-type alibi --embed-layernorm \
        --vocab-size 257 --micro-batch-size 1 --global-batch-size 8 --train-samples 160 --lr 2e-3 --eval-iters 0 \
        --split 100,0,0 --data-path "$work/text_document" --threads "$2" >/dev/null
}

for state in quiet busy; do
    if [ $state = busy ]; then
        for _ in $(seq "$(nproc)"); do
            sh -c 'while :; do :; done' &
            loops="$loops $!"
        done
    fi
    : >"$work/one"; : >"$work/all"; : >"$work/spin"
    for _ in $(seq "$rounds"); do
        train_with one 1
        train_with all "$(nproc)"
        GOMP_SPINCOUNT=300000 train_with spin "$(nproc)"
    done
    for w in one all spin; do echo "$w $(cut -d' ' -f1 "$work/$w" | median)"; done |
    awk -v state=$state -v n="$(nproc)" '{ t[$1] = $2 } END {
        printf "%-5s  1 thread %.2f s, %d threads %.2f s (%.2f x), with the default spin %.2f s (%.2f x)\n",
               state, t["one"], n, t["all"], t["all"] / t["one"], t["spin"], t["spin"] / t["one"]
        printf "{\"bench\": \"busy\", \"machine\": \"%s\", \"one_thread_s\": %s, \"all_threads_s\": %s, \"spinning_s\": %s}\n",
               state, t["one"], t["all"], t["spin"] }'
done

#!/bin/sh
# data.sh - token files that are truncated while a job reads them: the message names rank, file and byte, instead of a
# bare SIGBUS
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
LAUNCH=sockets
iterations() { grep -c '^ iteration ' "$W/log"; }

# cut_short NAME FILE BYTES: run a job of two ranks and truncate its FILE to BYTES once it trains.
cut_short() {
    name=$1 file=$2 bytes=$3
    cp tests/data/text/text_document* "$DATA_DIR"
    : >"$W/log"
    # shellcheck disable=SC2086
    launch 2 --num-layers 1 --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON --global-batch-size 8 \
        --train-samples 500000 --eval-iters 0 --data-path "$DATA_DIR/text_document" >"$W/log" 2>&1 & job=$!
    tenths=300
    while [ "$(iterations)" -lt 2 ] && [ $tenths -gt 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
    truncate -s "$bytes" "$DATA_DIR/$file"
    tenths=300
    while kill -0 $job 2>/dev/null && [ $tenths -gt 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
    kill $job 2>/dev/null; wait $job; status=$?
    if [ $status -eq 1 ]; then pass; else fail "$name: exit status $status"; fi
    if grep -q "^rank [01] (host .*) failed: .*$file: at byte $bytes: became shorter while in use: it had " "$W/log"; then pass
    else fail "$name: not said"; tail -n 5 "$W/log"; fi
}
cut_short "tokens, at once" text_document.bin 0
cut_short "tokens, within a page" text_document.bin 100001
cut_short "lengths" text_document.idx 1024
index=$(cd "$DATA_DIR" && ls text_document_train_indexmap_500000ns_128sl_42s_sample_idx.npy)
cut_short "the order of samples" "$index" 4096
finish

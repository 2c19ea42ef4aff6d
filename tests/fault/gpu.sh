#!/bin/sh
# gpu.sh - health checks of training on GPUs: preflight, memory reported before allocation, stragglers and dead ranks
# by name
#
# Without a GPU, or without a trainer built for one, there is nothing to check. Some checks need two GPUs.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
n=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null | wc -l)
if [ "$n" -eq 0 ] || [ ! -e "$BIN/shardkit-cuda.so" ]; then
    echo "no GPU here, or built without CUDA"
    finish
fi
nvidia-smi --query-gpu=uuid,pci.bus_id --format=csv,noheader >"$W/gpus"

MODEL="--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024
    --position-embedding-type alibi --embed-layernorm --vocab-size 257 --bf16 --attention-dropout 0 --hidden-dropout 0
    --lr 1e-4 --split 949,50,1 --eval-iters 0 --log-interval 1 --backend cuda"
DATA_ARGS="--data-path $DATA_DIR/text_document"

# preflight RANKS ARGS...: return the exit status; the table stays in $W/table.
preflight() { ranks=$1; shift; launch "$ranks" --preflight --backend cuda "$@" >"$W/table" 2>&1; }
# Each GPU has its line, with a rate that only a GPU reaches.
has_lines() {
    cat "$W/table"
    [ "$(grep -c -E '[0-9.]+ TFLOP/s' "$W/table")" -eq "$1" ] && head -n "$1" "$W/gpus" | while IFS=', ' read -r uuid pci; do
        grep -q "$uuid" "$W/table" || exit 1
    done
}
check "one GPU is well" preflight 1
check "its line has UUID and rates" has_lines 1
# shellcheck disable=SC2086
check "one GPU is well with a model's shapes" preflight 1 $MODEL --micro-batch-size 8

# A model too large for any GPU is reported at once, with advice, and nothing is trained.
begin=$(date +%s)
# shellcheck disable=SC2086
check_exit "too large a model is refused before it begins" 1 "train: does not fit: rank 0 (host " \
    "$BIN/train" $MODEL $DATA_ARGS --num-layers 200 --hidden-size 8192 --num-attention-heads 64 --micro-batch-size 8 \
    --global-batch-size 64 --train-iters 2
check "within seconds" test $(($(date +%s) - begin)) -lt 60
# shellcheck disable=SC2086
check_exit "what fits is said" 0 "it fits: " "$BIN/train" $MODEL $DATA_ARGS --micro-batch-size 1 --train-iters 2 --dry-run

if [ "$n" -ge 2 ]; then
    # Two GPUs share the reading of a checkpoint. The logits must be those of one GPU that reads it alone.
    # shellcheck disable=SC2086
    logits() { launch "$1" $MODEL $DATA_ARGS --micro-batch-size 4 --global-batch-size 8 --train-iters 100 --load "$W/ckpt" \
        --eval-iters 1 --eval-only --dump-logits "$W/logits-$1"; }
    # shellcheck disable=SC2086
    check "a checkpoint to load" launch 1 $MODEL $DATA_ARGS --micro-batch-size 4 --global-batch-size 8 --train-iters 100 \
        --exit-iterations 2 --save "$W/ckpt" --save-interval 100
    check "one GPU loads it" logits 1
    check "two GPUs load it" logits 2
    check "... and have the same weights" cmp "$W/logits-1" "$W/logits-2"
    check "all GPUs are well" preflight "$n"
    check "each has its line" has_lines "$n"
    # Another process also uses rank 1's GPU: the straggler line names rank 1.
    (while [ ! -e "$W/enough" ]; do CUDA_VISIBLE_DEVICES=1 "$BIN/train" --preflight --backend cuda --num-layers 4 \
        --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --vocab-size 257 --bf16 >/dev/null 2>&1; done) &
    sleep 5
    # shellcheck disable=SC2086
    launch 2 $MODEL $DATA_ARGS --micro-batch-size 4 --global-batch-size 8 --train-iters 120 --log-straggler-interval 40 \
        >"$W/shared" 2>&1
    : >"$W/enough"
    wait
    straggler() { tail -n 20 "$W/shared"; [ "$(grep -c '^\[straggler\].*slowest rank: 1 ' "$W/shared")" -ge 2 ]; }
    check "a GPU that is shared is the straggler" straggler
    # A rank that dies is named with its GPU.
    # shellcheck disable=SC2086
    launch 2 $MODEL $DATA_ARGS --micro-batch-size 4 --global-batch-size 8 --train-iters 100000 >"$W/dies" 2>&1 &
    job=$!
    t=0
    until grep -q ' iteration  *3/' "$W/dies" || [ $t -gt 120 ]; do t=$((t + 1)); sleep 1; done
    kill -KILL "$(pgrep -f "^[^ ]*/train .*--train-iters 100000" | tail -n 1)"
    wait $job
    named() { tail -n 20 "$W/dies"; grep -qE 'rank [01] \(host [^)]*, GPU-[0-9a-f-]* at [0-9a-fA-F:.]*\) died' "$W/dies"; }
    check "a rank that dies is named with its GPU" named
    # A rank stops without a message: the job ends after a timeout and names that rank.
    # shellcheck disable=SC2086
    launch 2 $MODEL $DATA_ARGS --micro-batch-size 4 --global-batch-size 8 --train-iters 100001 --stall-notice 2 \
        --collective-timeout 6 >"$W/hangs" 2>&1 &
    job=$!
    t=0
    until grep -q ' iteration  *3/' "$W/hangs" || [ $t -gt 120 ]; do t=$((t + 1)); sleep 1; done
    begin=$(date +%s)
    kill -STOP "$(pgrep -f "^[^ ]*/train .*--train-iters 100001" | tail -n 1)"
    wait $job
    status=$?
    hang() { tail -n 20 "$W/hangs"; echo "status $status"; [ $status -ne 0 ] && grep -qE 'rank [01] .*(stopped|hang)' "$W/hangs"; }
    check "a rank that hangs is named, and the job ends" hang
    check "... within seconds" test $(($(date +%s) - begin)) -lt 40
fi
finish

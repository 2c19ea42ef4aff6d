#!/bin/sh
# train_clock.sh - somebody sets the wall clock back again and again: what a run tells of its speed stays true
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
MODEL="--backend cpu --threads 1 --bf16 --num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length 32
    --max-position-embeddings 32 --position-embedding-type alibi --vocab-size 257 --micro-batch-size 1
    --global-batch-size 4 --train-samples 80 --lr 1e-3 --eval-iters 0 --log-interval 1 --steps-per-print 4
    --log-straggler-interval 4 --data-path $DATA_DIR/text_document"
if ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/badio.c -ldl; then
    echo "no shared-object compiler: the clock is not tested"
    finish
fi
# shellcheck disable=SC2086
env LD_PRELOAD="$W/badio.so" ASAN_OPTIONS=verify_asan_link_order=0 BADIO_CLOCK=3600 "$BIN/train" $MODEL >"$W/run.log" 2>&1
status=$?
check "exit status 0, not $status" [ $status -eq 0 ]
check "all iterations are told" [ "$(grep -c '^ iteration.*elapsed time per iteration (s): [0-9]' "$W/run.log")" -eq 20 ]
check "no time and no rate is negative" [ "$(grep -c '^[^[].*[ =:]-[0-9]' "$W/run.log")" -eq 0 ]
finish

#!/bin/sh
# slow.sh - a rank that is delayed again and again is reported as the slow one, with its host, without any option
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
port=$((20000 + $(random 10000))) dir=$W/run
for rank in 0 1 2; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$BIN/train" \
        --num-layers 1 --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON --global-batch-size 12 \
        --train-samples 5000000 --eval-iters 0 --data-path "$DATA_DIR/text_document" --save "$dir" --save-interval 1000000 \
        >>"$dir.log" 2>&1 &
    eval "pid$rank=$!"
done
trained() { [ "$(grep -c '^ iteration' "$dir.log")" -ge "$1" ]; }
n=0
until trained 320 || [ $n -gt 900 ]; do n=$((n + 1)); sleep 0.1; done
told() { grep -Eq "^warning: iterations take [0-9.]* % longer than the 256 before; rank 1 \(host $(uname -n)\) computes [0-9.]* % longer than its stage's median" "$dir.log"; }
# A busy machine may have made the rank slow before. Then it must recover first.
n=0
until told || [ $n -gt 1600 ]; do
    if [ $((n % 80)) -lt 40 ]; then kill -STOP "$pid1"; sleep 0.15; kill -CONT "$pid1"; sleep 0.02; else sleep 0.1; fi
    n=$((n + 1))
done
check "it is told, by rank and host" told
# The line appears first, its report right after it.
reported() { grep -q '"cause":"slow","exit_status":null,.*"rank":1,"host":"' "$dir"/reports/*/slow-step*.json; }
n=0
until reported 2>/dev/null || [ $n -gt 100 ]; do n=$((n + 1)); sleep 0.1; done
check "it is reported" reported
kill -9 "$pid0" "$pid1" "$pid2"
finish

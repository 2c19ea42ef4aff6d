# train.sh - functions shared by the scripts that run the trainer; sourced after tests/fault/lib.sh
#
# launch N ARGS...: train on N ranks of this machine with one thread each. Uses mpirun if it exists
# and LAUNCH is not "sockets". Otherwise starts the ranks one by one with torchrun's variables.

# The settings used to train the sets in tests/data.
BLOOM="--position-embedding-type alibi --embed-layernorm --global-batch-size 16 --rampup-batch-size 4 4 96
    --pp-partition-method type:transformer|embedding"
HEADONLY="--position-embedding-type alibi --embed-layernorm --global-batch-size 4 --train-samples 400
    --pp-partition-method type:transformer|embedding"
GPT2="--position-embedding-type absolute --global-batch-size 8"
COMMON="--bf16 --micro-batch-size 1 --train-samples 1200 --lr 2e-3 --min-lr 2e-4 --lr-decay-style cosine
    --lr-decay-samples 1500 --lr-warmup-samples 80 --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9
    --adam-beta2 0.95 --adam-eps 1e-8 --init-method-std 0.02 --seed 42 --attention-dropout 0 --hidden-dropout 0
    --seq-length 128 --max-position-embeddings 128 --eval-interval 10 --eval-iters 2 --split 949,50,1
    --log-interval 1 --threads 1"
# Iterations of these tests are faster than any disk, so wait until a save is complete.
SHARDKIT_SAVE_WHEN_BUSY=wait
export SHARDKIT_SAVE_WHEN_BUSY
# Index files are written next to the data, so work on a copy.
DATA_DIR=$W/data
mkdir -p "$DATA_DIR" && cp tests/data/text/text_document* "$DATA_DIR"

launch() {
    ranks=$1; shift
    if [ "$ranks" -eq 1 ]; then
        "$BIN/train" "$@"
    elif [ "${LAUNCH:-}" != sockets ] && command -v mpirun >/dev/null; then
        mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$BIN/train" "$@"
    else
        launch_sockets "$ranks" "$@"
    fi
}

# Start each rank as a separate process. The exit status is the largest of theirs.
launch_sockets() {
    ranks=$1; shift
    port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 10000))
    pids= rank=0 worst=0
    while [ $rank -lt "$ranks" ]; do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=$port "$BIN/train" "$@" &
        pids="$pids $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do
        wait "$pid"
        status=$?
        [ $status -gt $worst ] && worst=$status
    done
    return $worst
}

# Print "iteration loss norm" of each training line of a log, and "valid iteration loss".
series() {
    sed -n -e 's/^ iteration *\([0-9]*\)\/.*lm loss: \([^ ]*\) |.* grad norm: \([^ ]*\) .*/\1 \2 \3/p' \
        -e 's/^valid loss at iteration \([0-9]*\) | lm loss value: \([^ ]*\) .*/valid \1 \2/p' "$1"
}
# Print "iteration scale" of each training line.
scales() { sed -n 's/^ iteration *\([0-9]*\)\/.* loss scale: \([^ ]*\) .*/\1 \2/p' "$1"; }
# Print the exact fields of a training line: iteration, samples, tokens, rate, batch.
exact() { sed -n 's/^ iteration *\([0-9]*\)\/ *\([0-9]*\) | consumed samples: *\([0-9]*\) | consumed tokens: *\([0-9]*\) .*learning rate: \([^ ]*\) | global batch size: *\([0-9]*\) .*/\1 \2 \3 \4 \5 \6/p' "$1"; }

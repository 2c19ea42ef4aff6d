#!/bin/sh
# overlap.sh - on GPUs, running the work of data parallelism concurrently with the passes changes no bit
#
# The runs include an evaluation and a save. One does all that work after the passes; REPEAT (2) others do it during
# the passes. Losses, norms and checkpoints must be the same. Prints the samples per second of each. SHAPES="tp,pp,dp
# ..." replaces the list. Skipped with fewer than two GPUs; tests/unit/train/test_overlap.c checks what needs no GPU.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -ge 2 ] || skip "fewer than two GPUs here"
shapes="1,1,2"
[ "$gpus" -ge 4 ] && shapes="1,1,4 1,2,2 2,1,2"
MODEL="--backend cuda --bf16 --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024
    --max-position-embeddings 1024 --position-embedding-type alibi --embed-layernorm --vocab-size 32768
    --pad-vocab-size-to 32768 --micro-batch-size 4 --global-batch-size 64 --train-iters 20 --lr 1e-3
    --lr-decay-style constant --clip-grad 1.0 --seed 1 --attention-dropout 0 --hidden-dropout 0.1 --split 90,10,0
    --eval-interval 7 --eval-iters 2 --save-interval 10 --log-interval 1"
"$TBIN/bench/mktokens" "$W/tokens" 4000000 32768

# run NAME SHAPE OPTIONS...
run() {
    name=$1 tp=${2%%,*} dp=${2##*,} pp=${2#*,} pp=${pp%,*}; shift 2
    # shellcheck disable=SC2086
    launch $((tp * pp * dp)) $MODEL --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" \
        --data-path "$W/tokens" --save "$W/$name" "$@" >"$W/$name.log" 2>&1 ||
        { fail "$name runs at TP $tp, PP $pp, DP $dp"; tail -n 3 "$W/$name.log"; }
    series "$W/$name.log" >"$W/$name.series"
    [ "$(grep -c . "$W/$name.series")" -ge 22 ] || fail "$name: too few lines"
    sed -n 's/.*samples per second: \([0-9.]*\) .*/\1/p' "$W/$name.log" | tail -n +4 | sort -g |
        awk -v what="TP $tp, PP $pp, DP $dp, $*" '{ x[NR] = $1 } END { print what ": " x[int((NR + 1) / 2)] " samples/s" }'
}

for shape in ${SHAPES:-$shapes}; do
    for reduce in fp32 bf16; do
        run behind "$shape" --grad-reduce-dtype $reduce --overlap-grad-reduce False --overlap-param-gather False
        i=0
        while [ $i -lt "${REPEAT:-2}" ]; do
            run beside "$shape" --grad-reduce-dtype $reduce --overlap-grad-reduce --overlap-param-gather
            check "$shape $reduce: losses and norms" cmp "$W/behind.series" "$W/beside.series"
            for step in 10 20; do
                check "$shape $reduce: checkpoint $step" ckpt-inspect diff --tensors-only "$W/behind/global_step$step" \
                    "$W/beside/global_step$step"
            done
            rm -rf "$W/beside"
            i=$((i + 1))
        done
        rm -rf "$W/behind"
    done
done
finish

#!/bin/sh
# deepspeed.sh - DeepSpeed's own converter and checkpoint class accept the files that shardkit writes
#
# The converter runs without --inject_missing_state; its result must equal that of --vocab strip. Needs a Python with
# deepspeed and torch (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh && . tests/lib/train.sh
need_python 'torch, deepspeed.checkpoint.ds_to_universal' "deepspeed and torch"
script=$PWD/tests/golden/forms/deepspeed_check.py bloom=$PWD/tests/data/bloom-tp2pp2dp2/global_step20
gpt2=$PWD/tests/data/gpt2-tp2pp2dp1/global_step20

# same NAME FOLDER TP PP DP: both converters give the same result for FOLDER, and DeepSpeed counts these degrees.
same() {
    check "$1: ours" ds2universal -q --vocab strip "$2" "$W/ours"
    check "$1: both converters, degrees" "$python" "$script" universal "$2" "$W/ours" "$3" "$4" "$5"
    rm -rf "$W/ours"
}

for to in "1 1 3" "4 2 1" "1 4 2"; do
    set -- $to
    for model in bloom gpt2; do
        check "$model to $to" reshape -q --target-tp "$1" --target-pp "$2" --target-dp "$3" "$(eval echo \$$model)" "$W/out"
        same "$model to $to" "$W/out" "$1" "$2" "$3"
        rm -rf "$W/out"
    done
done
check "merge-tp" merge-tp -q "$bloom" "$W/out"
same "merge-tp" "$W/out" 1 2 2
rm -rf "$W/out"

# The next sets have degrees that DeepSpeed 0.19 stores under a separate key.
check "noted degrees" "$python" "$script" dimensions "$bloom" "$W/noted" 2 2
for to in "4 1 2" "1 2 1"; do
    set -- $to
    check "noted degrees to $to" reshape -q --target-tp "$1" --target-pp "$2" --target-dp "$3" "$W/noted" "$W/out"
    same "noted degrees to $to" "$W/out" "$1" "$2" "$3"
    rm -rf "$W/out"
done
check "noted degrees, merge-tp" merge-tp -q "$W/noted" "$W/out"
same "noted degrees, merge-tp" "$W/out" 1 2 2
rm -rf "$W/out"

# Sets saved by the trainer: from scratch, and from a checkpoint with recorded degrees to other degrees.
small="--num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 257 --position-embedding-type alibi"
# shellcheck disable=SC2086
check "train" launch 2 $COMMON $small --global-batch-size 2 --tensor-model-parallel-size 2 --exit-interval 2 --save "$W/run" \
    --save-interval 2 --data-path "$DATA_DIR/text_document"
same "train" "$W/run/global_step2" 2 1 1
# shellcheck disable=SC2086
check "train on" launch 2 $BLOOM $COMMON --pipeline-model-parallel-size 2 --exit-interval 21 --save "$W/on" \
    --save-interval 21 --data-path "$DATA_DIR/text_document" --load "$W/noted"
same "train on" "$W/on/global_step21" 1 2 1

# fp16: ZeRO stage 1's shards and DeepSpeed's scaler, from scratch (the first step overflows, the second is good) and on
# from the reference's.
fp16=tests/data/gpt2-fp16-tp2pp2dp2 json="--deepspeed --deepspeed_config tests/data/gpt2-fp16-tp2pp2dp2/ds.json"
fp16_common=$(echo "$COMMON" | sed 's/--bf16/--fp16/')
check "fp16 to 1 2 3" reshape -q --target-tp 1 --target-pp 2 --target-dp 3 $fp16 "$W/out"
check "fp16 to 1 2 3: the scaler" "$python" "$script" scaler "$W/out" "$fp16/global_step20" cur_scale=131072.0 cur_iter=20 \
    last_overflow_iter=19 cur_hysteresis=1
same "fp16 to 1 2 3" "$W/out" 1 2 3
rm -rf "$W/out"
# shellcheck disable=SC2086
check "fp16: train" launch 2 $fp16_common $small --global-batch-size 2 --tensor-model-parallel-size 2 --exit-interval 2 \
    --save "$W/half" --save-interval 2 --data-path "$DATA_DIR/text_document" --initial-loss-scale 1024 --loss-scale-window 500
check "fp16: its scaler" "$python" "$script" scaler "$W/half/global_step2" "$fp16/global_step20" cur_scale=1024.0 \
    cur_iter=2 last_overflow_iter=-1 cur_hysteresis=2 scale_window=500 delayed_shift=2 scale_factor=2.0
same "fp16: train" "$W/half/global_step2" 2 1 1
# shellcheck disable=SC2086
check "fp16: train on" launch 4 $fp16_common $json --global-batch-size 16 --rampup-batch-size 4 4 96 \
    --position-embedding-type absolute --pipeline-model-parallel-size 2 --exit-interval 26 --save "$W/half-on" \
    --save-interval 26 --data-path "$DATA_DIR/text_document" --load "$fp16"
check "fp16: the scaler goes on" "$python" "$script" scaler "$W/half-on/global_step26" "$fp16/global_step20" \
    cur_scale=262144.0 cur_iter=26 last_overflow_iter=19 cur_hysteresis=2 min_scale=1 scale_window=6
same "fp16: train on" "$W/half-on/global_step26" 1 2 2

check "export" export-hf -q "$bloom" "$W/hf"
check "import" export-hf -q --import --target-tp 2 --target-dp 2 "$W/hf" "$W/out"
same "import" "$W/out" 2 1 2
rm -rf "$W/out" "$W/hf"
check "fp16: export" export-hf -q "$fp16" "$W/hf"
check "fp16: import" export-hf -q --import --target-tp 2 --target-dp 2 "$W/hf" "$W/out"
same "fp16: import" "$W/out" 2 1 2
finish

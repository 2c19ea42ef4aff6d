#!/bin/sh
# deepspeed.sh - DeepSpeed's own converter and checkpoint class take what our writers write
#
# No --inject_missing_state: its result must be ours with --vocab strip. Needs a Python with deepspeed
# and torch (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh && . tests/lib/train.sh
need_python 'torch, deepspeed.checkpoint.ds_to_universal' "deepspeed and torch"
script=$PWD/tests/golden/deepspeed_check.py bloom=$PWD/tests/data/bloom-tp2pp2dp2/global_step20
gpt2=$PWD/tests/data/gpt2-tp2pp2dp1/global_step20

# same NAME FOLDER TP PP DP: both converters make the same of FOLDER; DeepSpeed counts these degrees.
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

# Degrees that DeepSpeed 0.19 notes in a key of their own follow.
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

# The trainer's saves: from scratch, and from a checkpoint with noted degrees onto others.
small="--num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 257 --position-embedding-type alibi"
# shellcheck disable=SC2086
check "train" launch 2 $COMMON $small --global-batch-size 2 --tensor-model-parallel-size 2 --exit-interval 2 --save "$W/run" \
    --save-interval 2 --data-path "$DATA_DIR/text_document"
same "train" "$W/run/global_step2" 2 1 1
# shellcheck disable=SC2086
check "train on" launch 2 $BLOOM $COMMON --pipeline-model-parallel-size 2 --exit-interval 21 --save "$W/on" \
    --save-interval 21 --data-path "$DATA_DIR/text_document" --load "$W/noted"
same "train on" "$W/on/global_step21" 1 2 1

check "export" export-hf -q "$bloom" "$W/hf"
check "import" export-hf -q --import --target-tp 2 --target-dp 2 "$W/hf" "$W/out"
same "import" "$W/out" 2 1 2
finish

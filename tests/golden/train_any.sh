#!/bin/sh
# train_any.sh - train loads checkpoints of other software and computes the same results
#
# The models were saved by Transformers (safetensors, and a .bin of torch.save), by torch.distributed.checkpoint
# (FSDP2 on 2 ranks, after two steps of AdamW) and by Megatron-core; the GPT-2 of tests/data/zero was saved by
# DeepSpeed. Logits in fp32 are equal to theirs, on one rank and with TP 2 and PP 2. Needs a Python with torch and
# transformers (tests/lib/python.sh), and megatron-core for its models; skipped without. QUICK=1 uses only those of
# tests/data.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
need_python 'torch.distributed.fsdp, transformers' "torch with FSDP2 and transformers"
core=
quick || core=$(python_with 'torch, transformers, megatron.core')
. tests/lib/train.sh
script=tests/golden/families/train_check.py
check "tokens" "$TBIN/bench/mktokens" "$W/tokens" 40000 29

# own WHAT FOLDER HOW OF ARGS...: write train's logits of a folder to n.npy, for comparison with those of OF. Python
# takes long to start, so one call compares all of a kind.
n=0
own() {
    what=$1 folder=$2 how=$3 of=$4; shift 4
    n=$((n + 1)) ranks=1
    case "$*" in *parallel*) ranks=2 ;; esac
    check "$what: train loads it${*:+ ($*)}" launch $ranks --load "$folder" --data-path "$W/tokens" --split 60,40,0 \
        --micro-batch-size 1 --global-batch-size 4 --train-samples 8 --seq-length 16 --eval-iters 1 --eval-only --threads 1 \
        --backend cpu --bf16 False --hidden-dropout 0 --attention-dropout 0 --num-attention-heads "$heads" --dump-logits "$W/$n.npy" "$@"
    echo "$of $W/$n.npy" >>"$W/$how.list"
}
two_ranks() {
    own "$@" --tensor-model-parallel-size 2
    own "$@" --pipeline-model-parallel-size 2
}

heads=4 kinds="gpt2 bloom"
quick && kinds= || check "models" "$python" -W ignore "$script" make "$W/models"
for kind in $kinds; do
    own "$kind of Transformers" "$W/models/$kind" logits "$W/models/$kind"
    own "$kind, pickled" "$W/models/$kind-bin" logits "$W/models/$kind"
    own "$kind of FSDP2" "$W/models/$kind-fsdp" logits "$W/models/$kind-fsdp.hf"
    two_ranks "$kind of FSDP2" "$W/models/$kind-fsdp" logits "$W/models/$kind-fsdp.hf"
done

heads=2
for set in tests/data/zero/*gpt2*; do
    hidden=8 inner=16
    case $set in *zero2* | *zero3*) hidden=6 inner=10 ;; esac
    short=${set##*/}
    cat >"$W/config.json" <<END
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": $hidden, "n_inner": $inner, "n_layer": 1, "n_head": 2,
 "n_positions": 32, "vocab_size": 29}
END
    check "$short: export" export-hf -q --dtype fp32 --config "$W/config.json" "$set/ckpt" "$W/$short"
    own "$short" "$set/ckpt" logits "$W/$short"
done
check "the logits of Transformers" "$python" -W ignore "$script" logits "$W/logits.list"
grep logits "$W/log"

if [ -n "$core" ]; then
    heads=4
    check "Megatron-core's model" "$core" -W ignore "$script" core "$W/core"
    own "Megatron-core's" "$W/core" core_logits "$W/core"
    two_ranks "Megatron-core's" "$W/core" core_logits "$W/core"
    check "the logits of Megatron-core" "$core" -W ignore "$script" core_logits "$W/core_logits.list"
    grep logits "$W/log"
elif ! quick; then
    echo "no Python with megatron-core here: its model is skipped"
fi
finish

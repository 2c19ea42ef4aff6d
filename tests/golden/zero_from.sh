#!/bin/sh
# zero_from.sh - DeepSpeed continues from ZeRO files that reshape made of Megatron's checkpoints
#
# The sources are shards of the pipeline engine and a torch_dist folder. A DeepSpeed engine with other weights, rates
# and decays loads the result on 2 ranks. Three steps give the losses of the software that uses the source directly:
# torch's AdamW, and Megatron-core itself. The last case uses --like with an engine that has other groups, in another
# order, and frozen norms. Needs a Python with deepspeed and megatron-core; skipped without. CASES=PATTERN selects
# cases.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'deepspeed, megatron.core.dist_checkpointing' "deepspeed and megatron-core"
script=$PWD/tests/golden/zero/zero_from_check.py pipeline=tests/data/gpt2-tp2pp2dp1/global_step20
core=tests/data/torchdist/stacked/iter_0000002
OMP_NUM_THREADS=1 PATH=$(dirname "$(command -v "$python")"):$PATH       # its build of kernels wants ninja
export OMP_NUM_THREADS PATH

engine() { "$python" -W ignore -m torch.distributed.run --standalone --nproc-per-node 2 "$script" "$@"; }
wanted() { case $1 in ${CASES:-*}) ;; *) return 1 ;; esac; rm -rf "$W/run"; mkdir "$W/run"; }
tell() { grep 'losses' "$W/log"; }

# The local layers of Megatron-core have other names for norms than its checkpoints.
norms() { ckpt-edit -q rename "$1" "$2" "$W/run/a" "$W/run/b" && ckpt-edit -q rename "$3" "$4" "$W/run/b" "$W/run/global_step2"; }
to_model() { norms self_attention.linear_qkv.layer_norm_weight input_layernorm.weight mlp.linear_fc1.layer_norm_weight \
    pre_mlp_layernorm.weight; }

ds2universal -q $pipeline "$W/universal" 2>/dev/null
for stage in 1 2 3; do
    wanted "pipeline zero$stage" || continue
    check "pipeline: zero$stage" reshape -q --verify --set-latest --to zero$stage --dtype fp32 --ranks 2 $pipeline \
        "$W/run/global_step20"
    check "pipeline: an engine of ZeRO-$stage" engine pipeline "$W/universal" $stage "$W/run"; tell
done
for stage in 2 3; do
    wanted "core zero$stage" || continue
    check "core: zero$stage" reshape -q --verify --to zero$stage --ranks 2 $core "$W/run/a"
    check "core: names" to_model
    echo global_step2 >"$W/run/latest"
    check "core: an engine of ZeRO-$stage" engine core $core $stage "$W/run"; tell
done
for stage in 2 3; do
    wanted "core like zero$stage" || continue
    mkdir "$W/own"
    check "like: an engine's own" engine frozen $core $stage "$W/own"
    mv "$W/own/start" "$W/run/a"
    check "like: names" norms input_layernorm.weight self_attention.linear_qkv.layer_norm_weight \
        pre_mlp_layernorm.weight mlp.linear_fc1.layer_norm_weight
    mv "$W/run/global_step2" "$W/like"; rm -rf "$W/run/a" "$W/run/b"
    check "like: zero$stage" reshape -q --verify --to zero$stage --ranks 2 --like "$W/like" $core "$W/run/a"
    check "like: names back" to_model
    echo global_step2 >"$W/run/latest"
    check "like: an engine of ZeRO-$stage" engine core $core $stage "$W/run" like; tell
    rm -rf "$W/own" "$W/like"
done
finish

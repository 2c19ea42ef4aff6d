#!/bin/sh
# edit_torch.sh - edits by ckpt-edit of 3D shards, ZeRO and universal forms equal the same edits by torch bit for bit
#
# Needs a Python with torch 2.3 or later, which has uint16 (tests/lib/python.sh); skipped without. QUICK=1 edits one
# folder of each kind.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'torch; torch.uint16' 'torch.uint16'
script=$PWD/tests/golden/forms/edit_torch.py
data=$PWD/tests/data
bloom=$data/bloom-tp2pp2dp2

# Each case has its own folder. torch checks all of them in one call, because it takes seconds to start.
n=0
# edit NAME IN VERB ARG... -- ARG...: ckpt-edit makes $out with the first arguments, torch makes its result with the
# others.
edit() { loose "$@"; check "$this: verified" ckpt-inspect -q verify "$out"; }
loose() {           # what no training leaves
    this=$1 in=$2 verb=$3; shift 3
    n=$((n + 1)) out=$W/out/$n
    mine=
    while [ "$1" != -- ]; do mine="$mine $(printf "'%s'" "$1")"; shift; done
    shift
    case $verb in average|ema) folders="\"\$in\" $mine" ;; *) folders="$mine \"\$in\"" ;; esac
    eval "check \"\$this\" ckpt-edit -q $verb $folders \"\$out\""
    printf '%s\t%s\t%s\t%s' "$this" "$verb" "$in" "$out" >>"$W/todo"
    for arg; do printf '\t%s' "$arg" >>"$W/todo"; done
    echo >>"$W/todo"
}
# array NAME IN PARAM: make a .npy of the parameter's shape, to be filled with numbers of all kinds.
array() { ckpt-inspect cat --npy "$2" "$3" >"$W/$1.npy" && arrays="$arrays $W/$1.npy"; }

# Folders: NAME PATH, a weight that is cut, a bias or norm, what else there is to set.
list() {
    echo "bloom $bloom/global_step20 3.mlp.dense_4h_to_h.weight 5.input_layernorm.bias"
    echo "zero1-fp32 $data/zero/zero1-fp32-gpt2-2ranks/ckpt/global_step5 transformer.wte.weight transformer.ln_f.bias"
    echo "zero2 $data/zero/zero2-edge-3ranks/ckpt/global_step5 model.layers.0.mlp.down_proj.weight model.norm.weight"
    echo "zero3-fp16 $data/zero/zero3-fp16-gpt2-2ranks/ckpt/global_step5 transformer.wte.weight transformer.ln_f.bias"
    echo "universal $W/universal tied_modules.embed.word_embeddings.weight 5.input_layernorm.bias"
    quick && return
    echo "reshaped $W/reshaped model.layers.0.mlp.down_proj.weight model.norm.weight"
    echo "bloom-head $data/bloom-headonly-tp1pp3dp2/global_step10 4.mlp.dense_4h_to_h.weight 3.input_layernorm.bias"
    echo "gpt2 $data/gpt2-tp2pp2dp1/global_step20 tied_modules.embed.word_embeddings.weight 5.input_layernorm.bias"
    echo "gpt2-fp16 $data/gpt2-fp16-tp2pp2dp2/global_step20 4.self_attention.query_key_value.weight 5.input_layernorm.bias"
    for z in zero1-fp16-gpt2-2ranks zero2-elastic-gpt2-3ranks zero3-gpt2-4ranks; do
        echo "$z $data/zero/$z/ckpt/global_step5 transformer.wte.weight transformer.ln_f.bias"
    done
    for z in zero2-fp16-3ranks zero2-roundrobin-3ranks zero3-edge-2ranks; do
        echo "$z $data/zero/$z/ckpt/global_step5 model.layers.0.mlp.gate_proj.weight model.norm.weight"
    done
    for z in zero2-autotp-tp2dp2 zero3-autotp-tp2dp2; do
        echo "$z $data/zero/$z/ckpt/global_step3 model.layers.0.mlp.down_proj.weight model.norm.weight"
    done
    echo "universal-zero2 $W/universal-zero2 model.layers.0.mlp.down_proj.weight model.norm.weight"
    echo "universal-zero3 $W/universal-zero3 transformer.wte.weight transformer.ln_f.bias"
    echo "universal-genuine $bloom/global_step20_universal tied_modules.embed.word_embeddings.weight tied_modules.embed.word_embeddings.weight"
}

check "universal" ds2universal -q --format pt "$bloom/global_step20" "$W/universal"
check "universal of ZeRO-2" ds2universal -q --format pt "$data/zero/zero2-edge-3ranks/ckpt" "$W/universal-zero2"
check "universal of ZeRO-3" ds2universal -q --format pt "$data/zero/zero3-gpt2-4ranks/ckpt" "$W/universal-zero3"
check "ours of other ranks" reshape -q --ranks 2 "$data/zero/zero2-edge-3ranks/ckpt" "$W/reshaped"
list >"$W/list"
check "ours of fp32" reshape -q --ranks 3 "$data/zero/zero1-fp32-gpt2-2ranks/ckpt" "$W/fp32"
ckpt-inspect cat --npy "$W/universal-zero2" model.layers.0.self_attn.k_proj.weight >"$W/frozen.npy"
arrays=$W/frozen.npy
while read -r key path big small; do
    array "$key-big" "$path" "$big.fp32" && array "$key-small" "$path" "$small.fp32" || fail "$key: no array"
done <"$W/list"
# shellcheck disable=SC2086
check "arrays" "$python" "$script" make "$W" $arrays
mkdir "$W/out"

while read -r key path big small; do
    edit "$key: put" "$path" put "$big" "$W/$key-big.npy" -- "$big" "$W/$key-big.npy"
    other=$out
    loose "$key: zero" "$path" zero '*' -- '*'
    edit "$key: average" "$path" average "$other" -- '' '' "$other"
    loose "$key: retag" "$path" retag --step 77 -- 77
    case $key in
    bloom*|gpt2*)
        loose "$key: set" "$path" set lr=0.125 lr_scheduler.max_lr=0.25 -- args.lr 0.125 lr_scheduler.max_lr 0.25
        loose "$key: retag all" "$path" retag --step 30 --samples 300 --tokens 40000 -- 30 300 40000
        loose "$key: drop" "$path" drop optimizer rng -- optimizer rng ;;
    universal)
        loose "$key: set" "$path" set lr=0.125 -- args.lr 0.125
        loose "$key: drop" "$path" drop '3.mlp.*' '*norm.bias' -- '3.mlp.*' '*norm.bias' ;;
    zero[123]*)
        loose "$key: set" "$path" set global_samples=12 -- global_samples 12
        loose "$key: drop" "$path" drop optimizer -- optimizer ;;
    esac
    quick && continue
    edit "$key: put a small one" "$path" put "$small" "$W/$key-small.npy" -- "$small" "$W/$key-small.npy"
    loose "$key: put moments" "$path" put "$small:exp_avg_sq" "$W/$key-small.npy" -- "$small" "$W/$key-small.npy" exp_avg_sq
    edit "$key: zero some" "$path" zero "$big:exp_avg" "$small*" -- "$big:exp_avg" "$small*"
    edit "$key: weighted average" "$path" average "$other" --weights 0.3,0.7 --moments -- 0.3,0.7 moments "$other"
    edit "$key: ema" "$path" ema --decay 0.9 "$other" "$path" -- 0.9 "$other" "$path"
    edit "$key: thin" "$path" thin --
done <"$W/list"
edit "a second name" "$W/fp32" put lm_head.weight "$W/zero1-fp32-big.npy" -- transformer.wte.weight "$W/zero1-fp32-big.npy"
edit "the first name" "$W/fp32" put transformer.wte.weight "$W/zero1-fp32-big.npy" -- transformer.wte.weight "$W/zero1-fp32-big.npy"
frozen=model.layers.0.self_attn.k_proj.weight
edit "frozen, twice" "$W/frozen" put $frozen "$W/frozen.npy" -- $frozen "$W/frozen.npy"
edit "two steps of a run" "$bloom/global_step20" average "$bloom/global_step10" -- '' '' "$bloom/global_step10"
edit "ema of two steps" "$bloom/global_step20" ema --decay 0.25 "$bloom/global_step10" -- 0.25 "$bloom/global_step10"
edit "thin what is bloated" "$W/bloated" thin --
check "torch" "$python" "$script" look "$W/todo"
finish

#!/bin/sh
# mixed.sh - files of another save, run or rank under a checkpoint's names: errors and refusals, never a wrong model
#
# Every case runs with the names that torch writes inside its archives, and again with names that carry no
# information.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
LC_ALL=C
export LC_ALL
golden=tests/data/bloom-tp2pp2dp2
"$TBIN/bench/mkckpt" --layers 2 --hidden 64 --heads 4 --vocab 300 --seed 1 "$W/one" >/dev/null 2>&1 &&
"$TBIN/bench/mkckpt" --layers 2 --hidden 64 --heads 4 --vocab 300 --seed 2 "$W/two" >/dev/null 2>&1 || exit 1
other=$W/two/global_step20
layer00=layer_04-model_00-model_states.pt layer01=layer_04-model_01-model_states.pt
zero() { echo "bf16_zero_pp_rank_${2:-0}_mp_rank_$1_optim_states.pt"; }

fresh() { rm -rf "$W/in"; cp -r "${1:-$W/one}" "$W/in"; chmod -R u+w "$W/in"; d=$(echo "$W"/in/global_step20); }
# Replace the name inside every archive by as many x, so that it carries no information.
unnamed() {
    for f in "$d"/*.pt; do
        stem=$(basename "$f" .pt)
        for s in "$stem" "$@"; do sed -i "s/$s\//$(echo "$s" | tr -c '\n' x)\//g" "$f"; done
    done
}

# refused NAME TEXT TOOL [OPTIONS]: the tool exits with 1, prints TEXT and makes no OUT; or it succeeds with a
# warning.
refused() {
    what=$1 text=$2; shift 2
    rm -rf "$W/out"*
    check_exit "$what: $1" 1 "$text" "$@" "$d" "$W/out"
    cp "$W/log" "$W/said"
    check "$what: $1 names the option" grep -F -- "; --accept-mismatch " "$W/said"
    check "$what: $1 wrote nothing" [ ! -e "$W/out" ]
    check_exit "$what: $1 --accept-mismatch" 0 "warning: " "$@" --accept-mismatch --replicas average "$d" "$W/out"
}
found() { check_exit "$1: verify" 1 "$2" ckpt-inspect verify "$W/in"; }
# Masters or weights of another rank or run: every tool that reads both, or the wrong file, must refuse.
refused_by_all() {  # NAME TEXT [TEXT of export-hf, which reads the shards for their masters alone]
    found "$1" "$2"
    refused "$1" "$2" ds2universal
    refused "$1" "$2" reshape --target-tp 1
    refused "$1" "$2" merge-tp
    refused "$1" "${3:-$2}" export-hf
}

# ---- sound checkpoints are sound under each of their names ----
for s in "$W/one" $golden tests/data/gpt2-tp2pp2dp1; do check "sound: $s" ckpt-inspect verify --strict "$s"; done
for step in 10 20; do check "sound: step $step" ckpt-inspect verify --strict $golden/global_step$step; done
fresh; unnamed; check "unnamed" ckpt-inspect verify --strict "$W/in"
mv "$d" "$W/in/best"; printf best >"$W/in/latest"; check "renamed tag" ckpt-inspect verify --strict "$W/in"
check "reshaped" reshape -q --target-tp 1 --target-pp 1 --target-dp 3 $golden "$W/r"
check "merged" merge-tp -q $golden "$W/m"
for s in r m; do check "sound: $s" ckpt-inspect verify --strict "$W/$s"; check "on from $s" ds2universal -q "$W/$s" "$W/$s.u"; done
check "exported" export-hf -q $golden "$W/hf"
check "imported" export-hf -q --import "$W/hf" "$W/i" --target-tp 2
check "sound: imported" ckpt-inspect verify "$W/i"

# ---- a layer file of another run: same names, same steps ----
fresh; for f in $layer00 $layer01; do cp "$other/$f" "$d/$f"; done; refused_by_all "layer of another run" "rounded"
unnamed; refused "unnamed layer of another run" "rounded" export-hf
fresh $golden; cp $golden/global_step10/$layer00 "$d"; chmod u+w "$d"/*; refused_by_all "layer of another step" "rounded"

# ---- other ranks' files ----
for dp in 0 1; do
    fresh $golden; cp "$d/$(zero 02 $dp)" "$d/$(zero 03 $dp)"
    refused_by_all "shard of another tensor rank" "was saved as $(zero 02 $dp)" "rounded"
    unnamed "$(basename "$(zero 02 $dp)" .pt)"; refused_by_all "unnamed shard of another tensor rank" "rounded"
done
fresh $golden; cp "$d/$layer01" "$d/$layer00"; refused_by_all "layer of another tensor rank" "was saved as $layer01"
unnamed "${layer01%.pt}"; refused_by_all "unnamed layer of another tensor rank" "rounded"
fresh $golden; cp "$d/mp_rank_01_model_states.pt" "$d/mp_rank_00_model_states.pt"
refused_by_all "mp_rank of another rank" "was saved as mp_rank_01"
unnamed mp_rank_01_model_states; refused_by_all "unnamed mp_rank of another rank" "args.rank"

# ---- two runs of the same shape and step ----
fresh; cp "$other/mp_rank_02_model_states.pt" "$d"; refused_by_all "mp_rank of another run" "args.seed"

# ---- files that a manifest lists ----
check "universal" ds2universal -q $golden "$W/u"
exchange() { mv "$1" "$W/t"; mv "$2" "$1"; mv "$W/t" "$2"; }
exchange "$W/u/zero/3.mlp.dense_4h_to_h.weight/fp32.pt" "$W/u/zero/4.mlp.dense_4h_to_h.weight/fp32.pt"
check_exit "exchanged universal files: verify" 1 "digest" ckpt-inspect verify "$W/u"
check_exit "exchanged universal files: reshape" 1 "digest" reshape -q "$W/u" "$W/out2"
check_exit "exchanged universal files: export-hf" 1 "digest" export-hf -q "$W/u" "$W/out2"
check "merged, for its manifest" merge-tp -q --target-tp 2 $golden "$W/m2"
rm -rf "$W/out2"; exchange "$W/m2/layer_04-model_00-model_states.pt" "$W/m2/layer_05-model_00-model_states.pt"
check_exit "exchanged layers: reshape" 1 "" reshape -q "$W/m2" "$W/out2"
check_exit "accepted, but for the manifest" 1 "digest" reshape -q --accept-mismatch --replicas average "$W/m2" "$W/out2"

# ---- the trainer ----
fresh $golden; cp "$d/$layer01" "$d/$layer00"
# shellcheck disable=SC2086
resume() { launch 1 --load "$W/in" --num-layers 4 --hidden-size 64 --num-attention-heads 4 $BLOOM $COMMON --vocab-size 257 \
    --data-path "$DATA_DIR/text_document" --exit-interval 21 "$@"; }
check_exit "train" 1 "accept-mismatch" resume
unnamed "${layer01%.pt}"; check_exit "train, unnamed" 1 "rounded" resume
check_exit "train --accept-mismatch" 0 "warning: " resume --accept-mismatch
finish

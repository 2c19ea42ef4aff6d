#!/bin/sh
# transformers.sh - the output of export-hf loads in Transformers, computes the same, and equals its converter's bytes
#
# With torch alone, every tensor is compared with a separate merge. With Transformers as well (tests/lib/python.sh),
# the folders are loaded and logits compared.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
script=$PWD/tests/golden/transformers_check.py
need_python torch torch
torch=$python full=$(python_with 'torch, transformers')
[ -n "$full" ] || echo "no Python with transformers here: bytes are compared, loading is skipped"

bloom=tests/data/bloom-tp2pp2dp2/global_step20 gpt2=tests/data/gpt2-tp2pp2dp1/global_step20
# Compare every tensor of one folder, and load it if Transformers is there.
look() {    # NAME FOLDER TAG [ROWS]
    name=$1
    shift
    check "$name: tensors" "$torch" "$script" bytes "$@"
    [ -z "$full" ] || check "$name: loads, same logits" "$full" "$script" load "$@"
}
for model in bloom gpt2; do
    tag=$(eval echo \$$model)
    check "$model" export-hf -q "$tag" "$W/$model"
    look "$model" "$W/$model" "$tag"
    check "$model in files" export-hf -q --max-shard-size 100KB "$tag" "$W/$model-files"
    look "$model in files" "$W/$model-files" "$tag"
    check "$model by layer" export-hf -q --per-layer --no-prefix "$tag" "$W/$model-layers"
    look "$model by layer" "$W/$model-layers" "$tag"
    check "$model pickled" export-hf -q --format bin "$tag" "$W/$model-bin"
    look "$model pickled" "$W/$model-bin" "$tag"
    check "$model stripped" export-hf -q --strip-vocab-padding "$tag" "$W/$model-strip"
    look "$model stripped" "$W/$model-strip" "$tag" 257
    # A briefly trained model hides most mistakes. These values do not result from training: weights and masters are
    # independent.
    check "$model with strong weights" "$torch" "$script" strong "$tag" "$W/$model-strong.in"
    check "$model, strong" export-hf -q --accept-mismatch "$W/$model-strong.in" "$W/$model-strong"
    look "$model, strong" "$W/$model-strong" "$W/$model-strong.in"
done
[ -z "$full" ] || check "bytes of the converter" "$full" "$script" converter "$W/bloom" "$bloom"
[ -z "$full" ] || { check "by layer" "$full" "$script" converter "$W/bloom-layers" "$bloom"; }

# The trainer and Transformers compute the same from the same masters, golden and strong ones.
if [ -n "$full" ]; then
    . tests/lib/train.sh
    for model in bloom gpt2 bloom-strong gpt2-strong; do
        case $model in bloom*) options=$BLOOM ;; *) options=$GPT2 ;; esac
        case $model in *strong) tag=$W/$model.in ;; *) tag=$(eval echo \$$model) ;; esac
        check "$model in fp32" export-hf -q --accept-mismatch --dtype fp32 "$tag" "$W/$model-masters"
        # shellcheck disable=SC2046,SC2086
        check "$model: logits of train" "$BIN/train" $options $(echo $COMMON | sed 's/--bf16/--bf16 False/') --eval-only \
            --accept-mismatch --dump-logits "$W/$model.npy" --data-path "$DATA_DIR/text_document" --load "$tag"
        check "$model: logits of train and of Transformers" "$full" - "$W/$model-masters" "$W/$model.npy" <<'END'
import sys, numpy, torch, transformers
m, info = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype="auto", output_loading_info=True)
assert not any(info.values()), info
want, ids = numpy.load(sys.argv[2]), numpy.load(sys.argv[2] + ".tokens.npy").astype("int64")
with torch.no_grad():
    got = m.eval()(input_ids=torch.tensor(ids)).logits.numpy()
worst = abs(got - want).max() / abs(want).max()
print(worst)
assert worst <= 1e-5
END
    done
fi
for kind in fp32 fp16; do
    check "$kind" export-hf -q --dtype $kind "$gpt2" "$W/gpt2-$kind"
    [ -z "$full" ] || check "$kind is loaded" "$full" - "$W/gpt2-$kind" <<'END'
import sys, transformers
m, info = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype="auto", output_loading_info=True)
assert not any(info.values()), info
assert str(m.dtype) == "torch.float" + sys.argv[1][-2:], m.dtype
END
done
finish

#!/bin/sh
# families.sh - a checkpoint under Megatron-core's names and a Transformers folder hold the same model, in both
# directions
#
# For a checkpoint of Megatron-core: Megatron-core loads the checkpoint, Transformers loads the export, and the logits
# are compared. For Transformers models of six families: Megatron-core loads the result of reshape at its default
# strictness, on one tensor rank and on two. Its keys are exactly those of the model, and its logits are those of
# Transformers. After conversion back the tensors are equal bit for bit. Needs a Python with torch, megatron-core and
# transformers (tests/lib/python.sh); skipped without. CASES=PATTERN selects families.
#
# A first part uses models of 28 families that were trained under FSDP2 and under ZeRO-3. Each export has the names,
# shapes and bytes that the model's own save_pretrained writes, and from_pretrained loads it without missing,
# unexpected or mismatched keys (families/saved_check.py; FAMILIES="llama gpt2" selects). It needs a Python with
# torch, safetensors and transformers 5, and for ZeRO also deepspeed. It is left out without them and with QUICK=1.
# A second part compares rules/transformers.models with the tensors that Transformers makes (families/required_check.py).
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
saved() { "$python" -W ignore tests/golden/families/saved_check.py "$@"; }
python=
quick || python=$(python_with 'torch.distributed.fsdp, safetensors, transformers.conversion_mapping')
for form in ${python:+fsdp zero}; do
    [ $form != zero ] || "$python" -c 'import deepspeed' >/dev/null 2>&1 || continue
    check "$form: models" saved make "$W/$form" $form
    mkdir -p "$W/$form-out"
    while read -r family; do
        check "$form: $family" reshape -q --to hf --verify --config "$W/$form/$family/hf/config.json" \
            "$W/$form/$family/ckpt" "$W/$form-out/$family"
    done <"$W/$form/families"
    check "$form: names, bytes, from_pretrained" saved check "$W/$form" "$W/$form-out"
    grep -e 'tensors under' -e WRONG "$W/log" | sed "s/^/$form: /"
done
if [ -n "$python" ]; then
    mkdir "$W/required"
    check "tensors that a model_type requires" "$python" -W ignore tests/golden/families/required_check.py "$W/required"
    grep -e 'with tensors removed' -e WRONG "$W/log"
fi
saved=$python python=$(python_with 'torch, megatron.core, transformers')
[ -n "$python$saved" ] || skip "no Python with torch, transformers, megatron-core or safetensors here"
[ -n "$python" ] || { echo "no Python with megatron-core here: its part is skipped"; finish; }
in=$PWD/tests/data/torchdist/gpt/iter_0000005
cat >"$W/config.json" <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 60, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 16, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "float32"}
EOF
check "export" export-hf -q --verify --config "$W/config.json" "$in" "$W/hf"
check "logits" "$python" tests/golden/families/logits_check.py "$in" "$W/hf"
grep logits "$W/log"

core() { "$python" -W ignore tests/golden/families/core_check.py "$@"; }
there_and_back() {      # FAMILY RANKS ROWS: the same tensors, no more and no fewer
    hf=$W/models/$1
    reshape -q --verify --to torchdist --ranks "$2" --pad-vocab-size-to "$3" --target-tp 2 "$hf" "$W/core" &&
        ckpt-inspect verify -q --strict "$W/core" &&
        reshape -q --verify --to hf --config "$hf/config.json" "$W/core" "$W/back" &&
        ckpt-inspect diff "$hf" "$W/back"
}
check "models of Transformers" "$python" -W ignore tests/golden/families/models.py "$W/models"
rows=90
for family in llama mistral qwen2 qwen3 gpt2 gpt_neox; do
    case $family in ${CASES:-*}) ;; *) continue ;; esac
    rm -rf "$W/core" "$W/back"
    check "$family: there and back" there_and_back $family 2 $rows
    check "$family: Megatron-core loads it, and computes the same" core "$W/models/$family" "$W/core"
    grep logits "$W/log"
    rows=$((186 - rows))                # of the next one: as it is, or padded
    [ "${QUICK:-0}" = 1 ] && continue
    check "$family: the same on two tensor ranks" core "$W/models/$family" "$W/core" 2
    grep logits "$W/log"
done
finish

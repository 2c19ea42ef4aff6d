#!/bin/sh
# families.sh - a checkpoint under Megatron-core's names, exported by the rules of its family, is the same model
#
# Megatron-core loads the checkpoint, Transformers the export: logits are compared. Needs a Python with torch,
# megatron-core and transformers (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'torch, megatron.core, transformers' "torch, megatron-core and transformers"
in=$PWD/tests/data/torchdist/gpt/iter_0000005
cat >"$W/config.json" <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 60, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 16, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "float32"}
EOF
check "export" export-hf -q --verify --config "$W/config.json" "$in" "$W/hf"
check "logits" "$python" tests/golden/families_check.py "$in" "$W/hf"
cat "$W/log"
finish

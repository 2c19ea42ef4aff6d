#!/usr/bin/env python3
"""mkmoe.py OUT [SCALE] - write a folder of the names and shapes of DeepSeek-V3 as Transformers saves it

61 layers, 256 experts, 45,395 tensors. Widths and the vocabulary are divided by SCALE (1). All values are 0, and the
files are sparse, so they occupy almost no space on disk. Prints the number of tensors, of files and of bytes.
"""
import json
import os
import struct
import sys

out, scale = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
layers, dense_layers, experts, heads = 61, 3, 256, 128
hidden, dense, expert = 7168 // scale, 18432 // scale, 2048 // scale
q_rank, kv_rank, nope, rope, value, vocab = (n // scale for n in (1536, 512, 128, 64, 128, 129280))
config = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=hidden, intermediate_size=dense,
    moe_intermediate_size=expert, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
    n_routed_experts=experts, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=dense_layers,
    q_lora_rank=q_rank, kv_lora_rank=kv_rank, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value,
    vocab_size=vocab, tie_word_embeddings=False, dtype="bfloat16", n_group=8, topk_group=4, hidden_act="silu",
    max_position_embeddings=4096, rms_norm_eps=1e-6)


def tensors():
    """Yield the name, the shape and the dtype of each tensor."""
    def feed_forward(prefix, width):
        yield prefix + "gate_proj.weight", [width, hidden], "BF16"
        yield prefix + "up_proj.weight", [width, hidden], "BF16"
        yield prefix + "down_proj.weight", [hidden, width], "BF16"
    yield "model.embed_tokens.weight", [vocab, hidden], "BF16"
    for i in range(layers):
        layer = f"model.layers.{i}."
        for name in "input_layernorm", "post_attention_layernorm":
            yield layer + name + ".weight", [hidden], "BF16"
        for name, shape in (("q_a_proj", [q_rank, hidden]), ("q_a_layernorm", [q_rank]),
                            ("q_b_proj", [heads * (nope + rope), q_rank]),
                            ("kv_a_proj_with_mqa", [kv_rank + rope, hidden]), ("kv_a_layernorm", [kv_rank]),
                            ("kv_b_proj", [heads * (nope + value), kv_rank]), ("o_proj", [hidden, heads * value])):
            yield layer + "self_attn." + name + ".weight", shape, "BF16"
        if i < dense_layers:
            yield from feed_forward(layer + "mlp.", dense)
            continue
        yield layer + "mlp.gate.weight", [experts, hidden], "BF16"
        yield layer + "mlp.gate.e_score_correction_bias", [experts], "F32"
        for e in ["shared_experts"] + [f"experts.{k}" for k in range(experts)]:
            yield from feed_forward(f"{layer}mlp.{e}.", expert)
    yield "model.norm.weight", [hidden], "BF16"
    yield "lm_head.weight", [vocab, hidden], "BF16"


files, header, size, n = [], {}, 0, 0
limit = max(5 * 10**9 // scale**2, 3 * 10**6)
for name, shape, dtype in tensors():
    length = 2 if dtype == "BF16" else 4
    for d in shape:
        length *= d
    if header and size + length > limit:
        files.append((header, size))
        header, size = {}, 0
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [size, size + length]}
    size += length
    n += 1
files.append((header, size))
os.makedirs(out)
weight_map = {}
for i, (header, size) in enumerate(files):
    file = f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, file), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + size)
    weight_map.update(dict.fromkeys(header, file))
total = sum(size for _, size in files)
with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
    json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
with open(os.path.join(out, "config.json"), "w") as f:
    json.dump(config, f, indent=1)
print(n, len(files), total)

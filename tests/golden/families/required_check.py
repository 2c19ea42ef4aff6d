"""required_check.py FOLDER [TYPE...] - rules/transformers.models lists the tensors that Transformers makes

Small random models of all listed types, and of some settings that change which tensors there are, are saved by
save_pretrained. `ckpt-inspect verify` must find nothing in them but the missing checksums. Then each kind of tensor is
removed, from all layers and from one, and verify must refuse the rest. Types that this release of Transformers does
not have, or does not make with small sizes, are counted as skipped.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

out, root = sys.argv[1], os.path.dirname(os.path.abspath(__file__)) + "/../../.."
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
torch.set_num_threads(1)
SIZES = {"hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 48, "ffn_dim": 48, "ffn_hidden_size": 48,
         "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "shared_intermediate_size": 16,
         "intermediate_size_mlp": 64, "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4,
         "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96, "max_position_embeddings": 64, "n_positions": 64,
         "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "moe_k": 2,
         "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "moe_num_shared_experts": 1,
         "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
         "word_embed_proj_dim": 32, "state_size": 8, "time_step_rank": 4, "rotary_dim": 4, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "expansion_ratio": 2,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BIAS, TIED, UNTIED = {"attention_bias": True}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
LAYERS = {"layer_types": ["full_attention", "linear_attention"] * 2}
ALWAYS = {"gpt_neo": {"attention_types": [[["global", "local"], 2]]}, "nemotron": {"num_key_value_heads": 2},
          "ministral": {"head_dim": 8}, "hunyuan_v1_dense": {"head_dim": 8},
          "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
          "deepseek_v3": {"first_k_dense_replace": 1}}
SETTINGS = {
    "llama": [BIAS, {"mlp_bias": True}, TIED], "mistral": [TIED], "qwen2": [TIED], "qwen3": [BIAS],
    "gemma": [BIAS, UNTIED],
    "gemma2": [BIAS], "gemma3_text": [BIAS], "granite": [{**BIAS, "mlp_bias": True}], "smollm3": [{**BIAS, "mlp_bias": True}],
    "helium": [{**BIAS, "mlp_bias": True}], "ernie4_5": [{"use_bias": True}], "apertus": [BIAS, {"hidden_act": "relu2"}],
    "seed_oss": [{"attention_bias": False}, {"attention_out_bias": True, "mlp_bias": True}], "diffllama": [BIAS],
    "arcee": [{**BIAS, "mlp_bias": True}], "nemotron": [{**BIAS, "mlp_bias": True}], "olmo": [BIAS, TIED], "olmo2": [BIAS],
    "stablelm": [{"use_qkv_bias": True}, {"qk_layernorm": True}, {"use_parallel_residual": True}],
    "starcoder2": [{"use_bias": False}, UNTIED], "cohere": [{"use_qk_norm": True}, BIAS, UNTIED], "cohere2": [BIAS],
    "phi": [{"qk_layernorm": True}, TIED], "glm": [BIAS, {"attention_bias": False}], "glm4": [{"attention_bias": False}],
    "persimmon": [{"qk_layernorm": False}], "lfm2": [{"layer_types": ["conv", "full_attention"] * 2}],
    "phimoe": [BIAS, {"lm_head_bias": True}], "qwen3_next": [{"mlp_only_layers": [0]}, LAYERS], "qwen3_5_text": [LAYERS],
    "qwen2_moe": [{"qkv_bias": False}, {"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}],
    "qwen3_moe": [{"mlp_only_layers": [0, 2], **BIAS}, {"decoder_sparse_step": 2}], "granitemoe": [BIAS],
    "deepseek_v2": [{"q_lora_rank": None}, BIAS, {"first_k_dense_replace": 2}],
    "deepseek_v3": [{"q_lora_rank": None}, BIAS, {"first_k_dense_replace": 0}], "glm4_moe": [BIAS, {"use_qk_norm": True}],
    "ernie4_5_moe": [{"use_bias": True}, {"moe_layer_start_index": 2}, {"moe_num_shared_experts": 0}],
    "gpt_oss": [{"attention_bias": False}], "llama4_text": [BIAS, {"interleave_moe_layer_step": 2}, {"moe_layers": [1]}],
    "gpt2": [UNTIED], "gptj": [TIED], "gpt_neox": [{"attention_bias": False}, TIED], "bloom": [UNTIED],
    "falcon": [{"bias": True}, {"parallel_attn": False}] + [
        {"new_decoder_architecture": True, "num_kv_heads": 2, **more}
        for more in ({}, {"num_ln_in_parallel_attn": 1}, {"parallel_attn": False})],
    "opt": [{"do_layer_norm_before": False}, {"enable_bias": False}, {"layer_norm_elementwise_affine": False},
            {"_remove_final_layer_norm": True}, UNTIED],
    "mamba": [{"use_bias": True}, {"use_conv_bias": False}, UNTIED], "glm4_moe_lite": [{"q_lora_rank": None}],
}
# Tensors that a class has and that begin with their right values.
CONSTANT = re.compile(r"\.act_fn\.(beta|eps)$|\.(slope_rate|query_decay|key_decay|diagonal_decay)$")


def build(kind, settings, path):
    cls = transformers.CONFIG_MAPPING[kind]
    stock = cls().to_dict()
    small = {k: v for k, v in SIZES.items()
             if k in stock and (k == "pad_token_id" or (stock[k] is not None and not isinstance(stock[k], (bool, list, dict))))}
    config = cls(**{**small, **ALWAYS.get(kind, {}), **settings})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.01)
    model.save_pretrained(path)


def verify(path):
    """Returns the status, and the findings other than the missing checksums."""
    r = subprocess.run(["ckpt-inspect", "verify", "--json", path], capture_output=True, text=True)
    found = json.loads(r.stdout)["findings"]
    return r.returncode, [f for f in found if f["severity"] in ("error", "warning") and f["code"] != "no_crc"]


def kinds_of(names):
    kinds = {}
    for name in names:
        kind = re.sub(r"((?:layers|h|blocks|experts|norms)\.)\d+\.", r"\1*.", name)
        kinds.setdefault(kind, []).append(name)
    return {k: v for k, v in kinds.items() if not CONSTANT.search(k)}


def remove_each(path, seen):
    """Remove the kinds of tensors that are not in `seen`, and add them to it.

    Returns the number of models from which tensors were removed, and the kinds of tensors that were not missed.
    """
    tensors, n, unmissed = {}, 0, []
    for f in glob.glob(path + "/*.safetensors"):
        tensors.update(load_file(f))
    rest = path + "-rest"
    os.mkdir(rest)
    shutil.copy(path + "/config.json", rest)
    for kind, names in kinds_of(tensors).items():
        if kind in seen:
            continue
        seen.add(kind)
        layer = re.match(r".*?(layers|h|blocks)\.\d+\.", names[-1])
        some = [x for x in names if layer and x.startswith(layer.group(0))]
        for gone in (names, some) if 0 < len(some) < len(names) else (names,):
            save_file({k: v for k, v in tensors.items() if k not in gone}, rest + "/model.safetensors")
            status, found = verify(rest)
            n += 1
            if status != 1 or not any(gone[0].split(".")[-2] in json.dumps(f) or "expert" in json.dumps(f) or
                                      "head" in json.dumps(f) for f in found):
                unmissed.append(f"{kind} ({len(gone)} of {len(names)}): {found}")
    shutil.rmtree(rest)
    return n, unmissed


def main():
    with open(root + "/rules/transformers.models") as f:
        listed = [w.split("=")[0] for line in f if line.startswith("model ") for w in line.split()[1:]]
    listed = [x for x in listed if x in sys.argv[2:] or not sys.argv[2:]]
    types = [x for x in listed if x in transformers.CONFIG_MAPPING]
    made = removed = wrong = 0
    skipped = [x for x in listed if x not in types]
    for kind in types:
        seen = set()
        for i, settings in enumerate([{}] + SETTINGS.get(kind, [])):
            path = f"{out}/{kind}-{i}"
            try:
                build(kind, settings, path)
            except Exception as e:                      # of the library, for these sizes
                skipped.append(f"{kind} {settings}")
                print(f"{kind} {settings}: {type(e).__name__}: {str(e).splitlines()[0][:120]}")
                continue
            made += 1
            status, found = verify(path)
            if status != 0 or found:
                wrong += 1
                print(f"WRONG: {kind} {settings}: accused: {found}")
            n, unmissed = remove_each(path, seen)
            removed += n
            wrong += len(unmissed)
            for text in unmissed:
                print(f"WRONG: {kind} {settings}: {text}")
            shutil.rmtree(path)
    print(f"{made} models of {len(types)} types, {removed} with tensors removed, {len(skipped)} skipped, {wrong} wrong")
    return 1 if wrong or made < min(40, len(listed)) else 0


sys.exit(main())

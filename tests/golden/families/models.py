"""models.py OUT [FAMILY...] - small models of Transformers, one of each family that has rules, in OUT/FAMILY

Numbers are random and nothing of them is left at what a module begins with: norms and biases count as well. Each is in
fp32 and has the shapes that tell names, groups of queries, gates and heads from each other.
"""
import sys

import torch
import transformers as t

out, only = sys.argv[1], sys.argv[2:]
base = dict(vocab_size=90, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=16)
grouped = dict(base, num_key_value_heads=2, intermediate_size=48, attention_dropout=0.0)
configs = {
    "llama": t.LlamaConfig(**grouped),
    "mistral": t.MistralConfig(**dict(grouped, num_key_value_heads=1), sliding_window=None),
    "qwen2": t.Qwen2Config(**grouped, tie_word_embeddings=True),
    "qwen3": t.Qwen3Config(**grouped, head_dim=12),         # heads are wider than the model
    "gpt2": t.GPT2Config(vocab_size=90, n_embd=32, n_layer=3, n_head=4, n_positions=16),
    # Megatron-core has no two residuals side by side.
    "gpt_neox": t.GPTNeoXConfig(**base, intermediate_size=48, use_parallel_residual=False),
}
torch.manual_seed(5)
for name, config in configs.items():
    if only and name not in only:
        continue
    model = t.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (p.ndim == 1))
    model.save_pretrained(f"{out}/{name}", max_shard_size="40KB" if name == "qwen3" else "5GB")

"""autotp_fused.py - what wrote tests/data/zero/zero2-autotp-fused-tp2dp2: fused parameters under DeepSpeed's AutoTP

python -m torch.distributed.run --standalone --nproc-per-node 4 autotp_fused.py STAGE OUT
python -m deepspeed.checkpoint.ds_to_universal --input_folder OUT/global_step3 --output_folder UNIVERSAL
The model computes nothing of sense, but each part of qkv_proj and gate_up_proj by itself.
"""
import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv_proj, self.o_proj = nn.Linear(16, 32), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        h = self.qkv_proj(x)
        part = h.shape[-1] // 4
        q, k, v = h.split([2 * part, part, part], -1)
        return self.o_proj(q * torch.cat([k, v], -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(16, 48, bias=False), nn.Linear(24, 16, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(torch.nn.functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp, self.norm = Attention(), Mlp(), nn.LayerNorm(16)

    def forward(self, x):
        x = x + self.self_attn(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(40, 16), nn.ModuleList([Layer()])

    def forward(self, x):
        h = self.embed_tokens(x)
        for layer in self.layers:
            h = layer(h)
        return h


class Top(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def forward(self, x):
        h = self.model(x)
        return (h @ self.model.embed_tokens.weight.T).float().pow(2).mean() + h.float().sum() * 1e-2


def main(stage, out):
    deepspeed.init_distributed("gloo")
    torch.manual_seed(7)
    model = Top().to(torch.bfloat16)
    specs = [{"patterns": [r".*o_proj\.weight$", r".*down_proj\.weight$"], "partition_type": "row"},
             {"patterns": [r".*qkv_proj\.weight$"], "partition_type": "column", "shape": [[16, 8, 8], -1],
              "partition_dim": 0},
             {"patterns": [r".*gate_up_proj\.weight$"], "partition_type": "column", "shape": [2, -1],
              "partition_dim": 0}]
    conf = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
            "tensor_parallel": {"autotp_size": 2,
                                "partition_config": {"use_default_specs": False, "layer_specs": specs}},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_allow_untested_optimizer": True}
    engine, _, _, _ = deepspeed.initialize(model=model, config=conf)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        loss = engine(torch.randint(0, 40, (1, 8), generator=generator))
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(out)
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

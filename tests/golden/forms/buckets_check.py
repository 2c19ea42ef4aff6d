"""Megatron-core's distributed optimizer on pipeline stages and with experts, saved as dp_reshardable, on CPUs.

Under torchrun:  buckets_check.py OUT TP PP VPP EP KIND [BUCKET]
KIND is tied, untied, moe, or same (experts whose weights are all equal), BUCKET the size of a bucket, LAYERS (of
the environment) the number of layers. With PARALLEL, data-parallel ranks share the save. The gradients are random
numbers that depend on the parameter's name alone, so that no stage waits for another. OUT receives the checkpoint,
OUT.sha256 the digests of the states that the optimizers themselves have.
  stages   torchrun --nproc-per-node 4  OUT 1 2 1 1 tied           tensor   LAYERS=2, 4 ranks  OUT 2 2 1 1 tied 600
  virtual  LAYERS=4, 2 ranks            OUT 1 2 2 1 untied         experts  4 ranks            OUT 1 2 1 2 moe
  same     LAYERS=1, 2 ranks            OUT 1 1 1 2 same           one      2 ranks            OUT 1 1 1 1 moe
  parallel PARALLEL=1, 4 ranks          OUT 1 2 1 1 untied
"""
import hashlib
import os
import re
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import distopt_check as D

LAYERS, HIDDEN, VOCAB = int(os.environ.get("LAYERS", 2)), 8, 16
FORM = {"distrib_optim_sharding_type": "dp_reshardable"}


def build(tp, pp, vpp, ep, kind, bucket):
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig
    ps.initialize_model_parallel(tp, pp, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None,
                                 expert_model_parallel_size=ep, expert_tensor_parallel_size=1)
    more = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 8} if kind in ("moe", "same") else {}
    c = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, ffn_hidden_size=12, num_attention_heads=2, use_cpu_initialization=True,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1, sequence_parallel=tp > 1 and ep > 1,
        virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None, pipeline_dtype=torch.bfloat16, bf16=True,
        params_dtype=torch.bfloat16, attention_dropout=0.0, hidden_dropout=0.0, bias_activation_fusion=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, gated_linear_unit=kind != "same",
        add_bias_linear=False,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", **more)
    models = []
    for v in range(vpp):
        torch.manual_seed(1234)
        stage = ps.get_pipeline_model_parallel_rank()
        post = stage == pp - 1 and v == vpp - 1
        m = GPTModel(config=c, transformer_layer_spec=get_gpt_layer_local_spec(num_experts=more.get("num_moe_experts"),
                     normalization="RMSNorm"), vocab_size=VOCAB, max_sequence_length=8,
                     share_embeddings_and_output_weights=kind == "tied",
                     position_embedding_type="learned_absolute" if kind == "tied" else "rope",
                     pre_process=stage == 0 and v == 0, post_process=post, vp_stage=v if vpp > 1 else None).bfloat16()
        models.append(m)
    for m in models:            # the same weights for a key on every rank, also for both copies of a tied embedding
        for n, p in m.named_parameters():
            fill(p, key_of(m, n), 7, 0.5)
            if kind == "same" and "experts" in n:
                p.data.fill_(0.5)
    models = [DistributedDataParallel(
        config=c, module=m, disable_bucketing=v > 0, ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=bool(bucket),
            bucket_size=bucket or None)) for v, m in enumerate(models)]
    return models, get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-5 if kind == "same" else 3e-3, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=True, clip_grad=0.0), models)


def key_of(model, name):
    """The name of a parameter in the whole model, with the part of it that this rank has."""
    from megatron.core import parallel_state as ps
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        name = "embedding.word_embeddings.weight"
    m = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
    if m:
        name = f"decoder.layers.{model.decoder.layers[int(m[1])].layer_number - 1}.{m[2]}"
    m = re.match(r"(.*local_experts\.)(\d+)(\..*)", name)
    if m:
        n = len(model.decoder.layers[0].mlp.experts.local_experts)
        name = f"{m[1]}{int(m[2]) + n * ps.get_expert_model_parallel_rank()}{m[3]}"
    cut = any(s in name for s in ("word_embeddings", "output_layer", "linear_qkv.w", "linear_fc", "linear_proj"))
    return name + (f"@{ps.get_tensor_model_parallel_rank()}" if cut and "experts" not in name else "@")


def fill(t, key, seed, by):
    g = torch.Generator().manual_seed(int(hashlib.sha256(f"{key} {seed}".encode()).hexdigest()[:12], 16))
    t.data.copy_(torch.randn(t.shape, generator=g) * by + (1 if "norm" in key and seed == 7 else 0))


def states(models, opt):
    """Key (as in shards) -> the three states in fp32, of this rank's parts, put together over data-parallel ranks."""
    mine = []
    for o in opt.chained_optimizers:
        name = {p: key_of(m.module, n) for m in models for n, p in m.module.named_parameters()}
        for ranges in o.gbuf_ranges:
            for buckets in ranges.values():
                for one in buckets:
                    for p, r in one["param_map"].items():
                        for k, v in o._get_main_param_and_optimizer_states(p).items():
                            if k != "step":
                                mine.append((name[p], k, tuple(p.shape), r["param"].start, r["param"].end,
                                             v.detach().clone()))
    every, out = [None] * dist.get_world_size(), {}
    dist.all_gather_object(every, mine)
    for key, k, shape, a, e, v in (x for y in every for x in y):
        n = torch.Size(shape).numel()
        t = out.setdefault((key, k), torch.full((n,), float("nan")))
        old = t[a:e]
        assert old.isnan().all() or torch.equal(old, v), ("copies differ", key)
        t[a:e] = v
        out[(key, k)] = t
        out.setdefault(("shape", key), shape)
    shapes = {k[1]: v for k, v in out.items() if k[0] == "shape"}
    out = {k: v.view(shapes[k[0]]) for k, v in out.items() if k[0] != "shape"}
    assert not any(t.isnan().any() for t in out.values())
    return out


def whole(have):
    """The states under the keys of their weights, joined over tensor ranks and experts."""
    parts, out = {}, {}
    for (key, k), t in have.items():
        name, tp = key.split("@")
        name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
        name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
        m = re.match(r"(.*experts\.)local_experts\.(\d+)\.(.*)", name)
        if m:
            name = f"{m[1]}experts.{m[3]}"
        parts.setdefault((name, k), {}).setdefault(int(m[2]) if m else -1, {})[int(tp or 0)] = t
    for (name, k), experts in parts.items():
        joined = []
        for _, ranks in sorted(experts.items()):
            ts = [ranks[r] for r in sorted(ranks)]
            if len(ts) > 1 and "linear_fc1.weight" in name:
                ts = [half for i in (0, 1) for half in (t.chunk(2)[i] for t in ts)]
            joined.append(torch.cat(ts, 1 if "linear_proj" in name or "linear_fc2" in name else 0))
        out[(name, "fp32" if k == "param" else k)] = torch.stack(joined) if -1 not in experts else joined[0]
    return out


def main():
    out, tp, pp, vpp, ep = sys.argv[1], *map(int, sys.argv[2:6])
    kind, bucket = sys.argv[6], int(sys.argv[7]) if len(sys.argv) > 7 else 0
    D.no_gpu()
    D.no_apex()
    dist.init_process_group("gloo")
    from megatron.core import dist_checkpointing
    models, opt = build(tp, pp, vpp, ep, kind, bucket)
    for i in range(3):
        for m in models:
            m.zero_grad_buffer()
            for n, p in m.module.named_parameters():
                fill(p.main_grad, key_of(m.module, n), i, 1.0)
        assert opt.step()[0]
    if dist.get_rank() == 0:
        os.makedirs(out, exist_ok=True)
    dist.barrier()
    sharded = {("model" if vpp == 1 else f"model{v}"): m.module.sharded_state_dict(prefix="", metadata=FORM)
               for v, m in enumerate(models)}
    optim = opt.sharded_state_dict(sharded if vpp > 1 else sharded["model"], metadata=FORM)
    strategy = None
    if os.environ.get("PARALLEL"):
        from megatron.core import parallel_state
        from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
        from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
        strategy = FullyParallelSaveStrategyWrapper(get_default_save_sharded_strategy("torch_dist", 1),
                                                    parallel_state.get_data_parallel_group(with_context_parallel=True))
    dist_checkpointing.save({**sharded, "optimizer": optim, "iteration": 3, "checkpoint_version": 3.0}, out, strategy,
                            content_metadata=FORM)
    have = states(models, opt)
    if dist.get_rank() == 0:
        with open(out + ".sha256", "w") as f:
            for (name, k), t in sorted(whole(have).items()):
                f.write(f"{hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest()} {name} --state {k}\n")
    D.leave()


if __name__ == "__main__":
    main()

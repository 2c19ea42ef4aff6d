"""Megatron-core's distributed optimizer, on CPUs: it saves a torch_dist folder, and loads what was made of one.

Under torchrun, any number of ranks; the model is a small GPT in bf16, its masters and moments are cut over data-parallel ranks.
  distopt_check.py save OUT TP          three steps, OUT/iter_0000003 ("fully_reshardable"), OUT/expected.json and two more
  distopt_check.py load FOLDER OUT TP   one of other weights, rates and ranks loads FOLDER: every tensor is the saved one, and
                                        two steps give the losses of the run that went on (to 3e-3: sums in another order, in bf16)
"""
import contextlib
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist

FORM = {"distrib_optim_sharding_type": "fully_reshardable"}


def no_gpu():
    """What Megatron-core asks of a GPU on the way is answered by the CPU; nothing that is saved or loaded comes from here."""
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.current_device = lambda: "cpu"
    for name in ("tensor", "zeros", "empty"):
        real = getattr(torch, name)
        setattr(torch, name, lambda *a, real=real, **k: real(
            *a, **{**k, **({"device": "cpu"} if str(k.get("device")).startswith("cuda") else {})}))
    torch.Tensor.cuda = lambda self, *a, **k: self
    kind = torch.Tensor.type            # it knows the types of tensors on GPUs alone, by these names
    torch.Tensor.type = lambda self, *a, **k: (
        kind(self, *a, **k) if a or k else kind(self).replace("torch.", "torch.cuda.", 1))
    from megatron.core.tensor_parallel import random
    random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()


def no_apex():
    """torch's AdamW, which stands in for Apex's, counts its steps in a state; Megatron-core reads that from the groups."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    real = DistributedOptimizer._set_main_param_and_optimizer_states

    def put(self, param, tensors):
        group, place = self.model_param_group_index_map[param]
        count = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]["step"]
        real(self, param, {"step": count, **tensors})

    DistributedOptimizer._set_main_param_and_optimizer_states = put


def build(tp, seed, lr):
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.transformer.transformer_config import TransformerConfig
    parallel_state.initialize_model_parallel(tp, 1)
    c = TransformerConfig(
        num_layers=2, hidden_size=32, ffn_hidden_size=64, num_attention_heads=4, use_cpu_initialization=True,
        tensor_model_parallel_size=tp, bf16=True, params_dtype=torch.bfloat16, attention_dropout=0.0, hidden_dropout=0.0,
        bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False)
    torch.manual_seed(seed)
    model = GPTModel(config=c, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=16,
                     share_embeddings_and_output_weights=True, position_embedding_type="learned_absolute").bfloat16()
    model = DistributedDataParallel(config=c, module=model, ddp_config=DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=True, bucket_size=5000))
    opt = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=lr, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
        clip_grad=1.0), [model])
    assert all(isinstance(o, DistributedOptimizer) for o in opt.chained_optimizers)
    return model, opt


def step(model, opt, i):
    g = torch.Generator().manual_seed(1000 + i)     # one batch for all ranks: its loss does not depend on their number
    x = torch.randint(0, 128, (2, 17), generator=g)
    mask = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)[None, None]
    model.zero_grad_buffer()
    opt.zero_grad()
    loss = model(x[:, :-1].contiguous(), torch.arange(16).expand(2, -1), mask, labels=x[:, 1:].contiguous()).mean()
    loss.backward()
    model.finish_grad_sync()
    assert opt.step()[0]
    return loss.item()


def state(model, opt, loading=False):
    sharded = model.module.sharded_state_dict(prefix="", metadata=FORM)
    return {"model": sharded, "optimizer": opt.sharded_state_dict(sharded, is_loading=loading, metadata=FORM)}


def whole(model, opt):
    """Key -> shape, type and SHA-256 of all ranks' parts put together."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
    mine = state(model, opt)
    apply_factories(mine)
    mine = [(s.key, s.global_shape, s.global_offset, s.prepend_axis_num, s.data.detach().clone())
            for s in nested_values(mine) if isinstance(s, ShardedTensor) and s.data is not None]
    parts, out = [None] * dist.get_world_size(), {}
    dist.all_gather_object(parts, mine)
    for key, shape, at, prepended, data in (p for rank in parts for p in rank):
        t = out.setdefault(key, torch.full(shape, float("nan"), dtype=data.dtype))
        data = data.view((1,) * prepended + tuple(data.shape))
        t[tuple(slice(a, a + n) for a, n in zip(at, data.shape))] = data
    return {k: {"shape": list(t.shape), "dtype": str(t.dtype)[6:], "sha256": hashlib.sha256(
        t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()} for k, t in sorted(out.items())}


def save(out, tp):
    from megatron.core import dist_checkpointing
    model, opt = build(tp, 1234, 3e-3)
    folder = os.path.join(out, "iter_0000003")
    for i in range(3):
        step(model, opt, i)
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save({**state(model, opt), "iteration": 3, "checkpoint_version": 3.0}, folder,
                            content_metadata=FORM)
    said = {"tensors": whole(model, opt), "next": [step(model, opt, i) for i in (3, 4)]}
    if dist.get_rank() == 0:
        with open(os.path.join(out, "expected.json"), "w") as f:
            json.dump(said, f, indent=0)


def load(folder, out, tp):
    from megatron.core import dist_checkpointing
    model, opt = build(tp, 99, 1.0)
    step(model, opt, 7)                 # torch's AdamW has no states before its first step
    got = dist_checkpointing.load({**state(model, opt, True), "iteration": 0}, folder)
    assert got["iteration"] == 3
    model.module.load_state_dict(got["model"])
    opt.load_state_dict(got["optimizer"])
    with open(os.path.join(out, "expected.json")) as f:
        want = json.load(f)
    have = whole(model, opt)
    bad = sorted(k for k in have.keys() | want["tensors"].keys() if have.get(k) != want["tensors"].get(k))
    assert not bad and len(have) > 30, bad[:4]
    losses = [step(model, opt, i) for i in (3, 4)]
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, TP {tp}: {len(have)} tensors equal, losses {losses}, the run's own {want['next']}")
    assert all(abs(a - b) < 3e-3 for a, b in zip(losses, want["next"])), losses


def leave():
    """Megatron-core's writer and its tracker outlive a rank that just returns."""
    import multiprocessing
    dist.barrier()
    for p in multiprocessing.active_children():
        p.kill()
        p.join(5)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    what, args = sys.argv[1], sys.argv[2:]
    if what not in ("save", "load"):
        sys.exit(__doc__)
    no_gpu()
    no_apex()
    dist.init_process_group("gloo")
    if what == "save":
        save(args[0], int(args[1]))
    else:
        load(args[0], args[1], int(args[2]))
    leave()

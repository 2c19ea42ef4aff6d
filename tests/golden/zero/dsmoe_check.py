"""dsmoe_check.py - engines of DeepSpeed with layers of its MoE save a checkpoint, or load one with other ranks

  dsmoe_check.py save|load|weights DIR RESULT --stage S --ep E ...   one rank of an engine, under torch.distributed.run
  dsmoe_check.py equal RESULT RESULT first|losses|states ...         compare what two engines wrote

RESULT is JSON: the losses of the next steps on each rank, and the SHA-256 of masters and moments of every parameter,
under its name over all ranks, before these steps.
"""
import argparse
import hashlib
import json
import os
import sys
import warnings

EXPERT = ".deepspeed_experts."


def equal(one, other, *what):
    a, b = (json.load(open(f)) for f in (one, other))
    if "states" in what:
        assert a["states"] and a["states"].keys() == b["states"].keys(), "other parameters"
        wrong = [k for k in a["states"] if a["states"][k] != b["states"][k]]
        assert not wrong, f"{len(wrong)} of {len(a['states'])} states differ, first {wrong[0]}"
        print(len(a["states"]), "states are equal")
    if "losses" in what:
        assert a["losses"] == b["losses"], f"losses differ: {a['losses']} {b['losses']}"
        print("losses of", len(a["losses"]), "steps are equal:", a["losses"][-1])
    if "first" in what:
        assert a["losses"][0] == b["losses"][0], f"losses differ: {a['losses'][0]} {b['losses'][0]}"
        print("the next loss is equal:", a["losses"][0])


if sys.argv[1] == "equal":
    equal(*sys.argv[2:])
    sys.exit()

warnings.filterwarnings("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("what")
ap.add_argument("dir")
ap.add_argument("result")
ap.add_argument("--type", default="bf16")
for name, default in dict(stage=1, ep=2, experts=4, data_first=0, groups=1, max_group=178956971).items():
    ap.add_argument("--" + name, type=int, default=default)
a = ap.parse_args()
torch.set_num_threads(1)
import deepspeed  # noqa: E402

deepspeed.init_distributed("gloo")
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import is_moe_param, split_params_into_different_moe_groups_for_optimizer  # noqa: E402

HIDDEN, INNER, WORDS, SEED = 5, 3, 30, 61
rank, world = dist.get_rank(), dist.get_world_size()


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(HIDDEN, INNER), torch.nn.Linear(INNER, HIDDEN)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(WORDS, HIDDEN), torch.nn.LayerNorm(HIDDEN)
        self.blocks = torch.nn.ModuleList(
            MoE(HIDDEN, Expert(), num_experts=a.experts, ep_size=a.ep, k=1, capacity_factor=4.0, min_capacity=8)
            for _ in range(2))
        self.head = torch.nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, x):
        h, more = self.words(x), 0
        for block in self.blocks:
            y, loss, _ = block(self.norm(h))
            h, more = h + y, more + loss
        return self.head(h), more


def make_engine():
    torch.manual_seed(SEED if a.what == "save" else SEED + 999)
    model = Model()
    torch.manual_seed(SEED + 100 + rank)
    with torch.no_grad():
        for p in model.parameters():
            if is_moe_param(p):
                p.add_(torch.randn_like(p) * 0.1)
    params = list(model.parameters())
    groups = [{"params": params, "name": "all"}] if a.groups == 1 else [
        {"params": [p for p in params if p.ndim > 1], "name": "matrices"},
        {"params": [p for p in params if p.ndim < 2], "name": "vectors", "weight_decay": 0.0}]
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": a.stage},
              "zero_force_ds_cpu_optimizer": False, "use_data_before_expert_parallelism": bool(a.data_first),
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True, "weight_decay": 0.1}},
              "bf16": {"enabled": a.type == "bf16"}, "fp16": {"enabled": a.type == "fp16", "initial_scale_power": 8}}
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, config=config,
        model_parameters=split_params_into_different_moe_groups_for_optimizer(groups, max_group_size=a.max_group))
    return engine, optimizer


def expert_rank():
    return rank // (world // a.ep) if a.data_first else rank % a.ep


def whole_states(names, optimizer):
    """Yield (name, state, tensor) of an optimizer without ZeRO."""
    inner = optimizer.optimizer if hasattr(optimizer, "fp32_groups") else optimizer
    for g, group in enumerate(inner.param_groups):
        for i, p in enumerate(group["params"]):
            name = names[id(optimizer.fp16_groups[g][i] if inner is not optimizer else p)]
            yield name, "fp32", p
            for key in ("exp_avg", "exp_avg_sq"):
                yield name, key, inner.state[p][key]


def joined_states(names, optimizer):
    """Yield the same of ZeRO-1/2: join the parts of this rank's vectors, and cut them into parameters."""
    for g, master in enumerate(optimizer.single_partition_of_fp32_groups):
        group = optimizer.real_dp_process_group[g]
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            v = master if key == "fp32" else optimizer.optimizer.state[master][key]
            parts = [torch.empty_like(v) for _ in range(dist.get_world_size(group=group))]
            dist.all_gather(parts, v.detach(), group=group)
            vector, at = torch.cat(parts), 0
            for p in optimizer.bit16_groups[g]:
                yield names[id(p)], key, vector[at:at + p.numel()]
                at += p.numel()


def read_states(engine, optimizer):
    names = {id(p): name for name, p in engine.module.named_parameters()}
    found, everyone, joined = {}, [None] * world, {}
    for name, key, v in (joined_states if a.stage else whole_states)(names, optimizer):
        if EXPERT in name:
            before, after = name.split(EXPERT)
            number, rest = after.split(".", 1)
            name = f"{before}{EXPERT}{expert_rank() * (a.experts // a.ep) + int(number)}.{rest}"
        found[f"{name} {key}"] = hashlib.sha256(v.detach().float().contiguous().numpy().tobytes()).hexdigest()
    dist.all_gather_object(everyone, found)
    for one in everyone:
        for key, digest in one.items():
            assert joined.setdefault(key, digest) == digest, f"ranks have other values of {key}"
    return joined


def step(engine, i):
    x = torch.randint(0, WORDS, (2, 9), generator=torch.Generator().manual_seed(SEED * 100 + i * 7 + rank))
    logits, more = engine(x[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, WORDS), x[:, 1:].reshape(-1)) + 0.01 * more
    engine.backward(loss)
    engine.step()
    everyone = [None] * world
    dist.all_gather_object(everyone, loss.item())
    return everyone


engine, optimizer = make_engine()
result = {"states": {}, "losses": []}
if a.what == "save":
    for i in range(2):
        step(engine, i)
    engine.save_checkpoint(a.dir)
else:
    path, _ = engine.load_checkpoint(a.dir, load_module_only=a.what == "weights",
                                     load_optimizer_states=a.what == "load")
    assert path, "nothing was loaded"
if a.what != "weights":
    result["states"] = read_states(engine, optimizer)
result["losses"] = [step(engine, i) for i in range(2, 5)]
if rank == 0:
    with open(a.result, "w") as f:
        json.dump(result, f)
dist.barrier()

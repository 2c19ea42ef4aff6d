"""Checkpoints of Megatron-core's dist_checkpointing by Megatron-core itself, on CPUs: load ours, compare; write odd ones.

torchdist_check.py load FOLDER EXPECTED W [COMMON]   `dist_checkpointing.load` of FOLDER on W ranks, every tensor cut along
                                                     its first dimension that W divides, nothing missing or left over;
                                                     its common state equals that of the folder COMMON
torchdist_check.py edited FOLDER JSON VERB ARG...    what FOLDER is to hold once VERB has changed it, in the form of an
                                                     expected.json: names FROM TO, layers I,J,..., rows N (others are 0),
                                                     cast DTYPE
torchdist_check.py args FOLDER KEY=VALUE...          arguments for its common.pt: whole numbers, and args.bf16
torchdist_check.py says FOLDER KEY=VALUE...          they are these
torchdist_check.py odd OUT                           a folder of states and numbers that are not known here
torchdist_check.py flat OUT                          OUT/iter_0000001 and OUT/expected.json: moments as releases up to 0.15
                                                     flattened them (2 ranks; the shapes are put into .metadata by hand)
"""
import hashlib
import json
import os
import pickle
import sys
import tempfile


def entry(t):
    import torch
    raw = t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"shape": list(t.shape), "dtype": str(t.dtype)[6:], "sha256": hashlib.sha256(raw).hexdigest()}


def start(rank, world, meet):
    import torch
    import torch.distributed as dist
    torch.cuda.current_device = lambda: "cpu"       # where the loader puts what it reads
    torch.cuda.synchronize = lambda *a, **k: None
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=world)


def is_stack(key):
    head, dot, rest = key.partition("layers.")
    return bool(dot) and not rest.split(".")[0].isdigit()


def wanted(key, want, rank, world):
    """What this rank asks for of a tensor: one ShardedTensor, or of a stack one for each layer."""
    import torch
    from megatron.core.dist_checkpointing import ShardedTensor
    shape, dtype = list(want["shape"]), getattr(torch, want["dtype"])
    layers = shape.pop(0) if is_stack(key) else 0
    axis = next((d for d, n in enumerate(shape) if n and n % world == 0), None)
    local = [n // world if d == axis else n for d, n in enumerate(shape)]
    cut = [] if axis is None else [(axis + (layers > 0), rank, world)]
    make = lambda *more: ShardedTensor.from_rank_offsets(
        key, torch.zeros(local, dtype=dtype), *more, *cut, replica_id=0 if cut else rank, prepend_axis_num=len(more))
    return axis, [make((0, i, layers)) for i in range(layers)] if layers else [make()]


def load_rank(rank, world, meet, folder, expected, common):
    start(rank, world, meet)
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing as dc
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from torch.distributed.checkpoint import FileSystemReader
    want = json.load(open(expected))
    state, axis = {}, {}
    for key, w in want["tensors"].items():
        axis[key], parts = wanted(key, w, rank, world)
        state[key] = dict(enumerate(parts))
    for key in want.get("objects", []):
        state["object " + key] = ShardedObject.empty_from_unique_key(key, replica_id=rank)
    got = dc.load(state, folder)
    # Its own strict loading fails on what torch 2.15 writes ("strides"), so keys are compared here.
    there = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
    if "objects" not in want:
        there = {k for k in there if "/shard_" not in k}
    there = {k for k in there if not k.startswith("rng_state/") or k in want.get("objects", [])}
    bad = sorted(there ^ (set(want["tensors"]) | set(want.get("objects", []))))
    for key, w in want["tensors"].items():
        mine = [got[key][i] for i in range(len(got[key]))]
        mine = torch.stack(mine) if is_stack(key) else mine[0]
        parts = [None] * world
        dist.all_gather_object(parts, mine)
        whole = parts[0] if axis[key] is None else torch.cat(parts, axis[key] + is_stack(key))
        bad += [key] if entry(whole) != w else []
    assert not bad, bad
    if common and rank == 0:
        was, now = dc.load_common_state_dict(common), dc.load_common_state_dict(folder)
        assert repr(was) == repr(now), (was, now)
    if rank == 0:
        print(len(want["tensors"]), "tensors and", len(want.get("objects", [])), "objects loaded are equal")
    leave()


def whole(folder):
    """Tensors by key as torch reads them, and the names of objects."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load
    there = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in there.items() if hasattr(v, "size")}
    load(state, checkpoint_id=folder, no_dist=True)
    return state, [k for k in there if k not in state]


def picked(tensors, objects, layers):
    take = lambda key, t: t[layers] if is_stack(key) else t
    made = []
    for o in objects:
        key, _, place = o.partition("/shard_")
        at, _, of = place.partition("_")
        numbers = [i for i, n in enumerate(layers) if str(n) == at] if is_stack(key) else None
        made += [o] if numbers is None else [f"{key}/shard_{i}_{len(layers)}" for i in numbers]
    return {k: take(k, t) for k, t in tensors.items()}, made


def cast(tensors, dtype):
    """Of masters, where a weight of 16 bits has some."""
    masters = {k.split("param.", 1)[1]: t for k, t in tensors.items() if k.startswith(("optimizer.state.fp32_param.",
                                                                                      "optimizer.state.param."))}
    import torch
    made = lambda k, t: (t if t.dtype == torch.float32 else masters.get(k, t)).to(dtype)
    return {k: t if k.startswith("optimizer.") or not t.dtype.is_floating_point or t.dtype == dtype else made(k, t)
            for k, t in tensors.items()}


def edited(folder, out, verb, *args):
    import torch
    tensors, objects = whole(folder)
    if verb == "names":
        name = lambda k: k.replace(*args)
        tensors, objects = {name(k): t for k, t in tensors.items()}, [name(o) for o in objects]
    elif verb == "layers":
        tensors, objects = picked(tensors, objects, [int(i) for i in args[0].split(",")])
    elif verb == "rows":
        n = int(args[0])
        fit = lambda t: torch.cat([t[:n], t.new_zeros([max(0, n - len(t)), *t.shape[1:]])])
        tensors = {k: fit(t) if k.endswith(("word_embeddings.weight", "output_layer.weight")) else t for k, t in tensors.items()}
    elif verb == "cast":
        tensors = cast(tensors, getattr(torch, args[0]))
    with open(out, "w") as f:
        json.dump({"tensors": {k: entry(v) for k, v in sorted(tensors.items())},
                   "objects": [o for o in objects if not o.startswith("rng_state")]}, f)


def common_args(what, folder, *pairs):
    import argparse
    import torch
    path = os.path.join(folder, "common.pt")
    common = torch.load(path, weights_only=False)
    want = {k: int(v) for k, v in (p.split("=") for p in pairs)}
    if what == "args":
        common["args"] = argparse.Namespace(**want, bf16=False, fp16=False, params_dtype=torch.float32)
        torch.save(common, path)
        return
    is_ = {k: int(getattr(common["args"], k)) for k in want}
    assert is_ == want, is_


def flat_rank(rank, world, meet, out):
    """Weights [2 layers, 6, 4] in bf16 by TP 2; masters and moments of a rank's [3, 4] flattened and dealt 5 + 7."""
    start(rank, world, meet)
    import torch
    from megatron.core import dist_checkpointing as dc
    from megatron.core.dist_checkpointing import ShardedTensor
    folder = os.path.join(out, "iter_0000001")
    key, state, tensors = "decoder.layers.mlp.linear_fc1.weight", {}, {}
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
    torch.distributed.barrier()
    for what in ("exp_avg", "exp_avg_sq", "fp32_param"):
        name = f"optimizer.state.{what}.{key}"
        whole = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(len(what))).abs()
        if what == "exp_avg_sq":        # of the length of fp32_param: two states would be the same
            whole *= 2
        tensors[name] = whole
        for layer in range(2):
            for tp in range(2):
                piece = whole[layer, 3 * tp:3 * tp + 3].reshape(-1)
                at, end = (0, 5) if rank == 0 else (5, 12)
                state[f"{name} {layer} {tp}"] = ShardedTensor(
                    name, piece[at:end].reshape(1, 1, 1, -1).clone(), torch.float32, (1, 1, 1, end - at), (2, 2, 1, 12),
                    (layer, tp, 0, at), None)
    weights = tensors[f"optimizer.state.fp32_param.{key}"].bfloat16()
    tensors[key] = weights
    for layer in range(2):
        state[f"{key} {layer}"] = ShardedTensor.from_rank_offsets(
            key, weights[layer, 3 * rank:3 * rank + 3].clone(), (0, layer, 2), (1, rank, 2), prepend_axis_num=1)
    dc.save({**state, "iteration": 1, "checkpoint_version": 3.0,
             "optimizer": {"param_state_sharding_type": "fully_sharded_model_space", "optimizer": {"param_groups": [
                 {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False, "lr": 0.001,
                  "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}]}}}, folder)
    torch.distributed.barrier()
    if rank == 0:
        from megatron.core.dist_checkpointing.strategies.torch import MCoreMetadata
        path = os.path.join(folder, ".metadata")
        old = pickle.load(open(path, "rb"))
        new = MCoreMetadata()
        new.__dict__.update({k: v for k, v in old.__dict__.items() if k not in ("storage_meta", "all_local_plans")})
        new.mcore_data = {k: {"nd_reformulated_orig_global_shape": (2, 6, 4)} for k in tensors if k != key}
        pickle.dump(new, open(path, "wb"), protocol=4)
        with open(os.path.join(out, "expected.json"), "w") as f:
            json.dump({"tensors": {k: entry(v) for k, v in sorted(tensors.items())}}, f, indent=0)
            f.write("\n")
    leave()


def odd_rank(rank, world, meet, out):
    """2 layers with whole numbers of their own, and an optimizer that keeps what is not known here."""
    start(rank, world, meet)
    import torch
    from megatron.core import dist_checkpointing as dc
    from megatron.core.dist_checkpointing import ShardedTensor
    os.makedirs(out, exist_ok=True)
    key, state = "decoder.layers.mlp.w.weight", {"head": ShardedTensor.from_rank_offsets("output_layer.weight", torch.randn(4, 4))}
    for layer in range(2):
        for name, v in ((key, torch.randn(4, 4)), ("decoder.layers.mlp.count", torch.arange(3)),
                        (f"optimizer.state.factored.{key}", torch.randn(4)), (f"optimizer.state.exp_avg.{key}", torch.randn(4, 4))):
            state[f"{name} {layer}"] = ShardedTensor.from_rank_offsets(name, v, (0, layer, 2), prepend_axis_num=1)
    dc.save({**state, "iteration": 1, "checkpoint_version": 3.0}, out)
    leave()


def leave():
    """Megatron-core's writer and its tracker outlive a rank that just returns."""
    import multiprocessing as mp
    import torch.distributed as dist
    dist.barrier()
    for p in mp.active_children():
        p.kill()
        p.join(5)
    sys.stdout.flush()
    os._exit(0)


def spawn(work, world, *args):
    import multiprocessing as mp
    with tempfile.TemporaryDirectory() as tmp:
        ranks = [mp.get_context("spawn").Process(target=work, args=(r, world, os.path.join(tmp, "meet"), *args))
                 for r in range(world)]
        for p in ranks:
            p.start()
        for p in ranks:
            p.join()
    sys.exit(max(abs(p.exitcode) for p in ranks))


if __name__ == "__main__":
    what, args = sys.argv[1], sys.argv[2:]
    if what == "load":
        spawn(load_rank, int(args[2]), args[0], args[1], args[3] if len(args) > 3 else None)
    elif what == "edited":
        edited(*args)
    elif what in ("args", "says"):
        common_args(what, *args)
    elif what == "odd":
        spawn(odd_rank, 1, args[0])
    elif what == "flat":
        spawn(flat_rank, 2, args[0])
    else:
        sys.exit(__doc__)

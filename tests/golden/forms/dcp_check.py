"""Checkpoints of torch.distributed.checkpoint by torch itself: write small ones, load ours, compare.

dcp_check.py save OUT KIND            OUT/ckpt and OUT/expected.json; KIND is fsdp (3 ranks) or mesh (2 x 2, bf16)
dcp_check.py load FOLDER EXPECTED W   load FOLDER into the same model under FSDP2 on W ranks (fsdp), all bit-equal
dcp_check.py tensors FOLDER EXPECTED  merge FOLDER by torch and compare with what EXPECTED says
dcp_check.py cat TOOL FOLDER EXPECTED the same through `TOOL cat`, the plain values too
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile


def sha(data):
    return hashlib.sha256(data).hexdigest()


def flat(d, pre=""):
    out = {}
    for k, v in d.items() if isinstance(d, dict) else enumerate(d):
        name = f"{pre}.{k}" if pre else str(k)
        if (isinstance(v, dict) and v) or (isinstance(v, list) and any(isinstance(x, dict) for x in v)):
            out.update(flat(v, name))
        else:
            out[name] = v
    return out


def entry(t):
    import torch
    t = t.detach().cpu().contiguous()
    return {"shape": list(t.shape), "dtype": str(t.dtype)[6:], "sha256": sha(t.reshape(-1).view(torch.uint8).numpy().tobytes())}


def merged(folder):
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    with tempfile.TemporaryDirectory() as tmp:
        dcp_to_torch_save(folder, os.path.join(tmp, "all.pt"))
        return flat(torch.load(os.path.join(tmp, "all.pt"), weights_only=False))


def small_model(seed):
    import torch
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5, bias=False), torch.nn.Linear(5, 2, bias=False))


def fsdp_state(world, seed):
    """The model after three steps of AdamW under FSDP2, as state_dict entries."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = small_model(seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for i in range(3):
        model(torch.arange(8.0).reshape(2, 4) + i).pow(2).sum().backward()
        opt.step()
        opt.zero_grad()
    weights, state = get_state_dict(model, opt)
    return {"model": weights, "optim": state, "iteration": 3, "rng_state": torch.Generator().manual_seed(1).get_state(),
            "data": {"seen": torch.tensor(24), "files": ["a", "b"]}}


def mesh_state():
    """Weights in bf16 on a mesh of 2 x 2: cut in rows by one of its dimensions, in columns by the other, or both."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2, 2))
    g = torch.Generator().manual_seed(7)
    make = lambda *shape: torch.randn(*shape, generator=g).to(torch.bfloat16)
    return {"blocks": distribute_tensor(make(7, 6), mesh, [Shard(0), Shard(1)]),
            "columns": distribute_tensor(make(3, 5), mesh, [Shard(1), Replicate()]),
            "stacked": distribute_tensor(make(2, 3, 4), mesh, [Shard(2), Shard(0)]),
            "rows": distribute_tensor(make(6), mesh, [Shard(0), Replicate()]),
            "half": distribute_tensor(make(4).half(), mesh, [Shard(0), Shard(0)]),
            "mask": torch.tensor([True, False, True])}


def start(rank, world, meet):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=world)


def end():
    """A rank has done and said all. In torch's own teardown a thread of gloo aborts the process now and then."""
    import torch.distributed as dist
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def save_rank(rank, world, meet, out, kind):
    import torch.distributed.checkpoint as dcp
    start(rank, world, meet)
    dcp.save(fsdp_state(world, 1) if kind == "fsdp" else mesh_state(), checkpoint_id=os.path.join(out, "ckpt"))
    end()


def load_rank(rank, world, meet, folder, expected):
    import torch
    import torch.distributed.checkpoint as dcp
    start(rank, world, meet)
    state = fsdp_state(world, 99)
    state.update({"iteration": -1, "rng_state": torch.Generator().get_state()})
    dcp.load(state, checkpoint_id=folder)
    got = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v) for k, v in flat(state).items()}
    if rank == 0:
        compare(got, expected)
    end()


def compare(got, expected):
    import torch
    want = json.load(open(expected))
    tensors = {k: entry(v) for k, v in got.items() if isinstance(v, torch.Tensor)}
    values = {k: v for k, v in got.items() if not isinstance(v, torch.Tensor)}
    values = json.loads(json.dumps(values))
    assert tensors == want["tensors"], [k for k in set(tensors) | set(want["tensors"]) if tensors.get(k) != want["tensors"].get(k)]
    assert values == want["values"], [k for k in set(values) | set(want["values"]) if values.get(k) != want["values"].get(k)]
    print(len(tensors), "tensors and", len(values), "values are equal")


def spawn(work, world, *args):
    import torch.multiprocessing as mp
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(work, (world, os.path.join(tmp, "meet"), *args), nprocs=world)


def save(out, kind):
    spawn(save_rank, 3 if kind == "fsdp" else 4, out, kind)
    import torch
    all_of = merged(os.path.join(out, "ckpt"))
    with open(os.path.join(out, "expected.json"), "w") as f:
        json.dump({"tensors": {k: entry(v) for k, v in sorted(all_of.items()) if isinstance(v, torch.Tensor)},
                   "values": {k: v for k, v in sorted(all_of.items()) if not isinstance(v, torch.Tensor)}}, f, indent=0)
        f.write("\n")


def cat(tool, folder, expected):
    want = json.load(open(expected))
    run = lambda *args: subprocess.run([tool, "cat", folder, *args], check=True, capture_output=True).stdout
    told = json.loads(subprocess.run([tool, "ls", "-v", "--json", folder], check=True, capture_output=True).stdout)
    names = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int64": "i64", "uint8": "u8", "bool": "bool"}
    bad = [k for k, v in want["tensors"].items() if sha(run(k, "--raw")) != v["sha256"]]
    stacks = {v["name"]: v for v in told.get("stacks", [])}
    beside = {**{v["name"]: v for v in told.get("values", [])}, **stacks}
    bad += [k for k, v in want["tensors"].items()
            if k in beside and (beside[k]["shape"], beside[k]["dtype"]) != (v["shape"], names[v["dtype"]])]
    # A stack's rows, each by the name that has its number, are the stack.
    row = lambda k, i: re.sub(r"\blayers\.", f"layers.{i}.", k, count=1)
    bad += [k for k, v in stacks.items()
            if sha(b"".join(run(row(k, i), "--raw") for i in range(v["shape"][0]))) != want["tensors"][k]["sha256"]]
    shapes = {p["name"]: p["shape"] for p in told["parameters"]}
    known = [(k, v["shape"]) for k, v in want["tensors"].items()]
    known += [(row(k, i), v["shape"][1:]) for k, v in stacks.items() for i in range(v["shape"][0])]
    bad += [k for k in shapes if not any(n.endswith(k) and s == shapes[k] for n, s in known)]
    # The list rounds to 15 digits, what is printed alone does not.
    bad += [k for k, v in want.get("values", {}).items()
            if beside[k]["value"] != v and json.loads(run(k, "--json"))["value"] != v]
    assert not bad, bad
    print(len(want["tensors"]), "tensors and", len(want.get("values", {})), "values are equal")


if __name__ == "__main__":
    what, args = sys.argv[1], sys.argv[2:]
    if what == "save":
        save(*args)
    elif what == "load":
        spawn(load_rank, int(args[2]), args[0], args[1])
    elif what == "tensors":
        compare(merged(args[0]), args[1])
    elif what == "cat":
        cat(*args)
    else:
        sys.exit(__doc__)

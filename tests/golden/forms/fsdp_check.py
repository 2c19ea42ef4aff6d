"""Folders of torch.distributed.checkpoint that ckpt-edit or reshape wrote, loaded by torch into FSDP2, bit for bit.

fsdp_check.py FOLDER WORLD IN [put NAME NPY | drop LAYER | vocab TOKENS]
    `dcp.load` of FOLDER on WORLD ranks gives the weights, moments and steps that torch itself merges of IN, changed by
    torch as the words behind it say: a parameter replaced, a layer left out, rows of a vocabulary (the first ones stay).
The model is a module of parameters with FOLDER's names and shapes, cut by fully_shard() and under AdamW.
"""
import os
import re
import sys

import numpy
import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from dcp_check import end, merged, spawn, start

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def weights_of(all_of):
    """Names in the model: "model.NAME" with a state of its own."""
    return [k[len("model."):] for k in all_of if k.startswith("model.") and f"optim.state.{k[6:]}.exp_avg" in all_of]


def expected(folder, verb="", *args):
    have = merged(folder)
    out = {}
    for name in weights_of(have):
        of = {"": have["model." + name], **{m: have[f"optim.state.{name}.{m}"] for m in MOMENTS}}
        new = name
        if verb == "put" and name == args[0]:
            of[""] = torch.from_numpy(numpy.load(args[1]).copy())
        if verb == "drop":
            layer = re.search(r"\blayers\.(\d+)\.", name)
            if layer and layer[1] == args[0]:
                continue
            if layer and int(layer[1]) > int(args[0]):
                new = name.replace(f"layers.{layer[1]}.", f"layers.{int(layer[1]) - 1}.", 1)
        out.update({(new, m): t for m, t in of.items()})
    return out


def rank_main(rank, world, meet, folder, want, rows):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    start(rank, world, meet)
    meta = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    model = torch.nn.Module()
    for name in weights_of(meta):
        at, (*path, last) = model, name.split(".")
        for word in path:
            if word not in dict(at.named_children()):
                at.add_module(word, torch.nn.Module())
            at = getattr(at, word)
        entry = meta["model." + name]
        at.register_parameter(last, torch.nn.Parameter(torch.full(entry.size, 7.0, dtype=entry.properties.dtype)))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=1.0)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    weights, state = get_state_dict(model, opt)
    dcp.load({"model": weights, "optim": {"state": state["state"]}}, checkpoint_id=folder)
    whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
    got = {(n, m): whole(t if m == "" else state["state"][n][m]) for n, t in weights.items() for m in ("", *MOMENTS)}
    if rank == 0:
        assert {k[0] for k in got} == {k[0] for k in want}, {k[0] for k in got} ^ {k[0] for k in want}
        bits = lambda t: t.detach().contiguous().reshape(-1).view(torch.uint8)
        for k, t in want.items():
            g = got[k]
            if rows and ("embed" in k[0] or "lm_head" in k[0]) and k[1] != "step":
                assert g.shape[0] == rows, (k, g.shape)
                g, t = g[:min(rows, t.shape[0])], t[:rows]
            assert g.dtype == t.dtype and g.shape == t.shape and torch.equal(bits(g), bits(t)), k
        print(f"FSDP2, {world} ranks: {len(want)} tensors equal")
    end()


if __name__ == "__main__":
    folder, world, of, *how = sys.argv[1:]
    spawn(rank_main, int(world), folder, expected(of, *how), int(how[1]) if how[:1] == ["vocab"] else 0)

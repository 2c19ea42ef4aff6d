"""Shards of torch's HuggingFaceStorageWriter by torch itself.

hfstorage_check.py load FOLDER EXPECTED        load FOLDER by HuggingFaceStorageReader, and compare with EXPECTED's
                                               lines "SHA256 NAME"
hfstorage_check.py shard FOLDER EXPECTED W     the same as DTensors on W ranks, cut by rows
hfstorage_check.py save OUT W                  save a model from W ranks by HuggingFaceStorageWriter: OUT/ckpt and
                                               OUT/expected
"""
import hashlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def sha(t):
    return hashlib.sha256(t.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def expected_of(path):
    return {name: value for value, name in (line.split() for line in open(path))}


def empty_like_saved(folder):
    found = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    return {k: torch.zeros(m.size, dtype=m.properties.dtype) for k, m in found.items()}


def compare(state, expected):
    wrong = sorted(set(state) ^ set(expected)) + [k for k in expected if k in state and sha(state[k]) != expected[k]]
    if wrong:
        sys.exit(f"{len(wrong)} tensors differ: {wrong[:3]}")
    print(len(expected), "tensors are equal")


def load(folder, expected):
    state = empty_like_saved(folder)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    compare(state, expected_of(expected))


def join(rank, world, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    return init_device_mesh("cpu", (world,))


def load_rank(rank, world, store, folder, expected):
    mesh = join(rank, world, store)
    state = {k: distribute_tensor(t, mesh, [Shard(0)] if t.ndim else [Replicate()])
             for k, t in empty_like_saved(folder).items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    whole = {k: t.full_tensor() for k, t in state.items()}
    if rank == 0:
        compare(whole, expected_of(expected))
    dist.destroy_process_group()


def save_rank(rank, world, store, out):
    mesh = join(rank, world, store)
    torch.manual_seed(3)
    whole = {"model.embed_tokens.weight": torch.randn(37, 8), "model.layers.0.mlp.up_proj.weight": torch.randn(11, 8),
             "model.layers.0.mlp.down_proj.weight": torch.randn(8, 11), "model.norm.weight": torch.randn(8),
             "model.scale": torch.randn(1), "model.experts": torch.randn(5, 3, 4)}
    whole = {k: v.bfloat16() if "norm" not in k else v for k, v in whole.items()}
    dim = {"model.layers.0.mlp.down_proj.weight": 1, "model.experts": 2}
    state = {k: distribute_tensor(v, mesh, [Shard(dim.get(k, 0))]) for k, v in whole.items()}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(out + "/ckpt", save_distributed=True))
    if rank == 0:
        with open(out + "/expected", "w") as f:
            f.writelines(f"{sha(v)} {k}\n" for k, v in sorted(whole.items()))
    dist.destroy_process_group()


def main():
    what, folder, *rest = sys.argv[1:]
    if what == "load":
        return load(folder, rest[0])
    world = int(rest[-1])
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as d:
        fn, args = (load_rank, (world, d + "/store", folder, rest[0])) if what == "shard" else \
                   (save_rank, (world, d + "/store", folder))
        mp.spawn(fn, args=args, nprocs=world)


if __name__ == "__main__":
    main()

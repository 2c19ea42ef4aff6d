"""train_check.py - models that others have written, for train to load, and their own logits beside train's

train_check.py make OUT                      OUT/gpt2 and OUT/bloom by Transformers, and of each -bin (torch.save), -fsdp
                                             (torch.distributed.checkpoint, FSDP2 on 2 ranks, two steps of AdamW; its
                                             weights as OUT/KIND-fsdp.hf)
train_check.py logits LIST                   lines of HFDIR FILE.npy: Transformers', of the tokens in FILE.npy.tokens.npy
train_check.py core OUT                      a GPT-2 of Megatron-core, by its dist_checkpointing.save
train_check.py core_logits LIST              lines of DIR FILE.npy: Megatron-core's, likewise
"""
import contextlib
import os
import sys
import tempfile

import torch

SIZES = dict(vocab_size=64, n_layer=2, n_head=4)


def models():
    import transformers as t
    torch.manual_seed(3)
    made = {"gpt2": t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_positions=32, **SIZES)),
            "bloom": t.BloomForCausalLM(t.BloomConfig(hidden_size=32, **SIZES))}
    for m in made.values():
        strong(m)
    return made


def strong(m):
    """Nothing is left at what a module begins with: norms and biases count as well."""
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (p.ndim == 1))


def fsdp_rank(rank, world, meet, out, kind):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    m = models()[kind]
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=world)
    fully_shard(m, mesh=init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False)
    for i in range(2):
        x = torch.arange(32).reshape(2, 16) + i
        m(input_ids=x, labels=x).loss.backward()
        opt.step()
        opt.zero_grad()
    weights, state = get_state_dict(m, opt)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=f"{out}/{kind}-fsdp")
    full = get_model_state_dict(m, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        plain = models()[kind]
        plain.load_state_dict(full)
        plain.save_pretrained(f"{out}/{kind}-fsdp.hf")
    dist.destroy_process_group()


def make(out):
    import multiprocessing as mp
    for kind, m in models().items():
        m.save_pretrained(f"{out}/{kind}")
        os.makedirs(f"{out}/{kind}-bin")
        m.config.save_pretrained(f"{out}/{kind}-bin")
        torch.save(m.state_dict(), f"{out}/{kind}-bin/pytorch_model.bin")
        with tempfile.TemporaryDirectory() as tmp:
            ranks = [mp.get_context("spawn").Process(target=fsdp_rank, args=(r, 2, tmp + "/meet", out, kind))
                     for r in range(2)]
            for p in ranks:
                p.start()
            for p in ranks:
                p.join()
            assert not any(p.exitcode for p in ranks)


def compare_all(path, compute):
    """compute(folder) gives logits of tokens; all are looked at before one that is off ends it."""
    import numpy
    bad = 0
    for line in open(path):
        folder, name = line.split()
        want = torch.from_numpy(numpy.load(name))
        with torch.no_grad():
            got = compute(folder)(tokens(name))
        off = ((got[..., :want.shape[-1]] - want[..., :got.shape[-1]]).abs().max() / want.abs().max()).item()
        print(f"{os.path.basename(folder)}: logits differ by {off:.1e} of the largest")
        bad += not off <= 1e-5
    assert not bad


def tokens(name):
    import numpy
    return torch.from_numpy(numpy.load(name + ".tokens.npy").astype("int64"))


def logits(path):
    from transformers import AutoModelForCausalLM

    def compute(hfdir):
        m, info = AutoModelForCausalLM.from_pretrained(hfdir, dtype=torch.float32, output_loading_info=True)
        assert not any(info.values()), info
        m.eval()
        return lambda x: m(input_ids=x).logits
    compare_all(path, compute)


def core_model():
    """Megatron-core's GPTModel, of one rank; the calls of CUDA that it makes on the way are stubbed in this process."""
    import torch.distributed as dist
    from transformers import GPT2Config
    import core_check
    torch.cuda.synchronize = lambda *x, **k: None
    torch.cuda.current_device = lambda: "cpu"
    plain = torch.tensor
    torch.tensor = lambda *x, **k: plain(*x, **{**k, **({"device": "cpu"} if str(k.get("device")) == "cuda" else {})})
    dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel import random as mcr
    mcr.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
    ps.initialize_model_parallel(1, 1)
    # Its own models.py has 16 positions in mind.
    return core_check.core_model(GPT2Config(n_embd=32, n_positions=16, **SIZES), 64, 1).eval()


def core(out):
    from megatron.core import dist_checkpointing as dc
    m = core_model()
    torch.manual_seed(4)
    strong(m)
    os.makedirs(out)
    dc.save({"model": m.sharded_state_dict(prefix=""), "iteration": 7, "checkpoint_version": 3.0}, out)


def core_logits(path):
    from megatron.core import dist_checkpointing as dc
    m = core_model()

    def compute(folder):
        m.load_state_dict(dc.load({"model": m.sharded_state_dict(prefix="")}, folder)["model"])
        return lambda x: m(x, torch.arange(x.shape[1]).unsqueeze(0),
                           torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)[None, None])
    compare_all(path, compute)


if __name__ == "__main__":
    what, args = sys.argv[1], sys.argv[2:]
    {"make": make, "logits": logits, "core": core, "core_logits": core_logits}[what](*args)
    sys.stdout.flush()
    os._exit(0)                         # Megatron-core's group stays open

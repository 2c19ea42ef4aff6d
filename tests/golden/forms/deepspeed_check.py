"""Run DeepSpeed's own tools on folders that we wrote, and compare with what ours make of them.

deepspeed_check.py universal IN OURS TP PP DP: its DeepSpeedCheckpoint counts these degrees; its ds_to_universal
    converts IN, without --inject_missing_state, and every file of the result must say what ours
    (`ds2universal --vocab strip`) says.
deepspeed_check.py scaler IN LIKE KEY=VALUE...: each shard of IN is of ZeRO stage 1, with the keys that the shards of LIKE
    have, and holds DeepSpeed's own DynamicLossScaler, with LIKE's fields and these values; it goes on from them.
deepspeed_check.py dimensions IN OUT TP PP: OUT is a copy of IN as DeepSpeed 0.19 notes degrees.
"""
import enum
import glob
import os
import shutil
import sys
import tempfile
import types

# Arguments of a run hold this class; no Megatron is needed beside it.
for module in ("megatron", "megatron.enums"):
    sys.modules[module] = types.ModuleType(module)
PositionEmbeddingType = enum.Enum("PositionEmbeddingType", {"rotary": 1, "absolute": 2, "alibi": 3},
                                  module="megatron.enums")
sys.modules["megatron.enums"].PositionEmbeddingType = PositionEmbeddingType

import torch
import deepspeed.checkpoint.ds_to_universal as converter
from deepspeed.checkpoint import DeepSpeedCheckpoint
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScalerBase
from deepspeed.runtime.zero.config import ZeroStageEnum


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def same(a, b):
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape and
                a.dtype == b.dtype and a.detach().numpy().tobytes() == b.detach().numpy().tobytes())
    if isinstance(a, LossScalerBase):
        return type(a) is type(b) and vars(a) == vars(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def universal(src, ours, *want):
    c = DeepSpeedCheckpoint(src)
    bad = (c.tp_degree, c.pp_degree, c.dp_degree) != tuple(int(x) for x in want)
    if bad:
        print(f"degrees: {c.tp_degree}, {c.pp_degree}, {c.dp_degree}")
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "universal")
        sys.argv = ["ds_to_universal", "--input_folder", src, "--output_folder", out, "--num_extract_workers", "1",
                    "--num_merge_workers", "1"]
        converter.main(converter.parse_arguments())
        names = {os.path.relpath(p, out) for p in glob.glob(os.path.join(out, "**", "*.pt"), recursive=True)}
        mine = {os.path.relpath(p, ours) for p in glob.glob(os.path.join(ours, "**", "*.pt"), recursive=True)}
        for name in sorted(names ^ mine):
            print(f"{name}: only in {'its' if name in names else 'our'} folder")
            bad = True
        for name in sorted(names & mine):
            if name.startswith("zero") and not same(load(os.path.join(out, name)), load(os.path.join(ours, name))):
                print(f"{name}: says something else")
                bad = True
    print(f"{len(names & mine)} files compared")
    return bad or not names


def scaler(src, like, *want):
    def shards(folder):
        return [load(p)["optimizer_state_dict"] for p in sorted(glob.glob(os.path.join(folder, "zero_pp_rank_*")))]

    model = shards(like)[0]
    mine = shards(src)
    bad = not mine
    for at, shard in enumerate(mine):
        s = shard["loss_scaler"]
        ok = (list(shard) == list(model) and shard["zero_stage"] == ZeroStageEnum.optimizer_states and
              type(s) is DynamicLossScaler and list(vars(s)) == list(vars(model["loss_scaler"])) and
              s.dtype == torch.float16 and shard["dynamic_loss_scale"] is True and
              all(str(vars(s)[key]) == value for key, value in (x.split("=") for x in want)))
        # It doubles in a window of good steps; versions differ in which.
        before = s.cur_scale
        for step in range(s.scale_window + 1 if ok else 0):
            s.update_scale(False)
        ok = ok and s.cur_scale in (2 * before, 4 * before)
        if not ok:
            print(f"shard {at}: {list(shard)}, {type(s)}, {vars(s)}")
        bad = bad or not ok
    return bad


def dimensions(src, out, tp, pp):
    shutil.copytree(src, out)
    for path in glob.glob(os.path.join(out, "mp_rank_*")):
        state = load(path)
        state["checkpoint_parallel_dimensions"] = {"pp_degree": int(pp), "tp_degree": int(tp)}
        torch.save(state, path)
    return 0


sys.exit({"universal": universal, "scaler": scaler, "dimensions": dimensions}[sys.argv[1]](*sys.argv[2:]))

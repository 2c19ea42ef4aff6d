"""Load every file of a universal-pt folder with torch, as a user's loader would.

torch_check.py OUT [REFERENCE]: weights_only and (torch >= 2.1) mmap; with REFERENCE, a
folder that the genuine converter wrote, every tensor is compared bit for bit.
"""
import glob
import os
import sys

import torch

# The reference concatenates these copies over tensor ranks; ours is the first stage's.
REFERENCE_IS_WRONG = "position_embeddings.weight"


def load(path):
    ways = [{"weights_only": True}]
    if tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 1):
        ways.append({"weights_only": True, "mmap": True})
    for way in ways:
        value = torch.load(path, map_location="cpu", **way)
    return value


def same(a, b):
    if isinstance(b, torch.Tensor):
        return (a.shape == b.shape and a.dtype == b.dtype and a.requires_grad == b.requires_grad and
                a.detach().numpy().tobytes() == b.detach().numpy().tobytes())
    return a == b


def main():
    out, reference = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    n = bad = 0
    for path in sorted(glob.glob(os.path.join(out, "zero", "*", "*.pt"))):
        ours = load(path)
        rel = os.path.relpath(path, out)
        n += 1
        if os.path.basename(path) == "step.pt":
            if float(ours) != 21.0:
                print(f"{rel}: step {ours}, expected 21")
                bad += 1
            continue
        if reference is None or REFERENCE_IS_WRONG in rel:
            continue
        theirs = torch.load(os.path.join(reference, rel), map_location="cpu")
        for key, value in theirs.items():
            if key not in ours or not same(ours[key], value):
                print(f"{rel}: '{key}' is not the reference's")
                bad += 1
    state = torch.load(os.path.join(out, "zero", "optimizer_state.pt"), map_location="cpu")
    if not state.get("param_groups"):
        print("zero/optimizer_state.pt: no param_groups")
        bad += 1
    if n == 0:
        print(f"{out}: no parameter files")
        bad += 1
    print(f"{n} files loaded with torch {torch.__version__}")
    sys.exit(1 if bad else 0)


main()
